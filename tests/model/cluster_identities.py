"""Cluster identities: versions never go back, even if the database does.

A crash loses sequence numbers that were assigned but not yet on disk. A failover to a lagging standby, or a restore,
also loses commits, and resets the sequence and the epoch. A connecting writer checks the cluster identity and enters a
new one: it writes the epoch to Elasticsearch, then to Postgres. Then every document is refreshed. A writer that still
belongs to the earlier identity may send documents that it has already built. Here, a write and its completion are one
step; `tests.model.writing` shows that nothing is lost in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Rule, Step, placed

NEW_EPOCH = Rule(
    name="a-new-identity-has-a-greater-epoch",
    says="a new cluster identity has a higher epoch",
    kept_by="syncer.indexing.failover",
    otherwise="after a failover, numbers are assigned again, and lose to writes of commits that the database has lost",
)
RECORDED = Rule(
    name="the-epoch-is-kept-in-elasticsearch",
    says="the new epoch is also higher than the one recorded in Elasticsearch",
    kept_by="syncer.indexing.failover",
    otherwise="a restore from before the last failover resets the epoch, and it is used twice",
)
RECORDED_FIRST = Rule(
    name="the-record-comes-first",
    says="the epoch is recorded in Elasticsearch before it is written to Postgres",
    kept_by="syncer.indexing.failover",
    otherwise="a writer that dies in between leaves an epoch that is in use but not recorded",
)
SKIPPED = Rule(
    name="skip-unflushed-numbers",
    says="a new connection skips every number that may have been assigned without being on disk",
    kept_by="syncer.indexing.version",
    otherwise="after a crash, a number is assigned again, and the write that uses it is rejected as old",
)
REFRESHED = Rule(
    name="a-new-identity-refreshes-all",
    says="a new cluster identity refreshes every document: the commit that enters it creates the jobs",
    kept_by="syncer.indexing.failover",
    otherwise="documents keep showing commits that the database has lost",
)

_IDLE, _ENTERING, _CONNECTED, _ASSIGNED, _READ = range(5)
_EPOCH = 100


class Database(NamedTuple):
    """The part of the state that a restore resets.

    Args:
        states: The states of the document, as numbers of commits; a number is never used again.
        identity: The cluster identity that Postgres remembers.
        epoch: The epoch that Postgres remembers.
        assigned: The last number assigned from the sequence.
    """

    states: tuple[int, ...]
    identity: int
    epoch: int
    assigned: int


class Worker(NamedTuple):
    """What a worker is doing.

    Args:
        phase: Its phase.
        ticket: The last change that its write handles.
        is_cut: Whether its connection is gone, after a crash, a failover or a restore.
        version: The version that it has assigned, or the epoch that it enters.
        state: The state of the database that it has read.
    """

    phase: int = _IDLE
    ticket: int = 0
    is_cut: bool = False
    version: int = 0
    state: int = 0


class ClusterIdentities(NamedTuple):
    """The state of the model.

    Args:
        database: The part that a restore resets.
        flushed: The last number of the sequence that survives a crash.
        identity: The current cluster identity.
        recorded: The epoch recorded in Elasticsearch.
        asked: How many changes and refreshes there have been.
        done: The last of them that is handled.
        commits: How many commits there have been.
        version: The version that Elasticsearch has.
        shown: The state that Elasticsearch shows.
        workers: The two workers.
        troubles: How many more times Postgres may crash, fail over or be restored.
    """

    database: Database
    flushed: int
    identity: int
    recorded: int
    asked: int
    done: int
    commits: int
    version: int
    shown: int
    workers: tuple[Worker, ...]
    troubles: int


_BACKUP = Database(states=(0,), identity=1, epoch=1, assigned=0)


class ClusterIdentitiesModel(Model[ClusterIdentities]):
    """Crash, fail over, restore."""

    name = "cluster_identities"
    about = "after a crash, failover or restore, versions keep growing and lost commits disappear"
    rules = (NEW_EPOCH, RECORDED, RECORDED_FIRST, SKIPPED, REFRESHED)

    def prepare(self) -> None:
        self._commits = 2 if self.is_large else 1
        self._records, self._records_first = self.keeps(RECORDED), self.keeps(RECORDED_FIRST)

    @property
    def bounds(self) -> str:
        return f"2 workers, {1 + self._commits} changes, 3 crashes, failovers or restores in any order"

    def initial(self) -> ClusterIdentities:
        return ClusterIdentities(
            database=_BACKUP,
            flushed=0,
            identity=1,
            recorded=1,
            asked=1,
            done=0,
            commits=0,
            version=0,
            shown=0,
            workers=(Worker(), Worker()),
            troubles=3,
        )

    def protocol(self, state: ClusterIdentities) -> Iterator[Step[ClusterIdentities]]:
        for at, worker in enumerate(state.workers):
            yield from self._work(state, at, worker, f"worker {'AB'[at]}")

    def _work(self, state: ClusterIdentities, at: int, worker: Worker, name: str) -> Iterator[Step[ClusterIdentities]]:
        database = state.database
        if worker.phase == _IDLE:
            yield from self._connect(state, at, name)
        elif worker.phase == _ENTERING:
            yield self._enter(state, at, worker.version, name)
        elif worker.phase == _CONNECTED and state.done < state.asked:
            number = database.assigned + 1
            assigned = Worker(phase=_ASSIGNED, ticket=state.asked, version=database.epoch * _EPOCH + number)
            said = f"{name} receives all pending changes, and assigns {_said(assigned.version)}"
            yield said, _assigned(_with(state, at, assigned), number)
        elif worker.phase == _ASSIGNED:
            read = worker._replace(phase=_READ, state=database.states[-1])
            yield f"{name} reads state {read.state}", _with(state, at, read)
        elif worker.phase == _READ:
            said = f"{name} writes state {worker.state} as {_said(worker.version)}"
            # If its connection is gone, it notices after the write and starts again.
            after = _with(state, at, Worker() if worker.is_cut else Worker(phase=_CONNECTED))
            after = after._replace(done=max(state.done, worker.ticket))
            if worker.version <= state.version:
                yield f"{said}, which is rejected: {_said(state.version)} is there", after
            else:
                yield said, after._replace(version=worker.version, shown=worker.state)

    def _connect(self, state: ClusterIdentities, at: int, name: str) -> Iterator[Step[ClusterIdentities]]:
        if any(one.phase == _ENTERING for one in state.workers):
            return  # another worker is entering, and has locked the row
        # Rule a-new-identity-has-a-greater-epoch: `failover.enter_cluster_identity`.
        if state.identity == state.database.identity or not self.keeps(NEW_EPOCH):
            yield f"{name} connects", self._connected(state, at)
            return
        # Rule the-epoch-is-kept-in-elasticsearch: `Index.read_epoch`.
        epoch = max(state.database.epoch, state.recorded if self._records else 0) + 1
        entering = _with(state, at, Worker(phase=_ENTERING, version=epoch))
        # Rule the-record-comes-first: `Index.write_epoch`, before the transaction commits.
        if self._records_first:
            said = f"{name} connects, and records epoch {epoch} in Elasticsearch"
            yield said, entering._replace(recorded=max(state.recorded, epoch))
        else:
            said = f"{name} connects, and writes epoch {epoch} to Postgres"
            yield said, entering._replace(database=state.database._replace(identity=state.identity, epoch=epoch))

    def _enter(self, state: ClusterIdentities, at: int, epoch: int, name: str) -> Step[ClusterIdentities]:
        # Rule a-new-identity-refreshes-all: `failover.refresh_all`. Here the refresh exists at once.
        asked = state.asked + self.keeps(REFRESHED)
        after = self._connected(state, at)
        database = after.database._replace(identity=state.identity, epoch=epoch)
        after = after._replace(database=database, recorded=max(state.recorded, epoch), asked=asked)
        return f"{name} enters epoch {epoch}", after

    def _connected(self, state: ClusterIdentities, at: int) -> ClusterIdentities:
        # Rule skip-unflushed-numbers: `version.skip_unflushed`. In this model, at most one number is not on disk.
        number = state.database.assigned + (2 if self.keeps(SKIPPED) else 0)
        return _assigned(_with(state, at, Worker(phase=_CONNECTED)), number)

    def world(self, state: ClusterIdentities) -> Iterator[Step[ClusterIdentities]]:
        database = state.database
        if state.commits < self._commits:
            number = state.commits + 1
            after = state._replace(commits=number, asked=state.asked + 1)
            states = database._replace(states=(*database.states, number))
            yield f"state {number} is committed", after._replace(database=states)
        if state.troubles:
            cut = _cut(state)
            said = f"Postgres crashes, and its sequence continues after {state.flushed}"
            yield said, cut._replace(database=database._replace(assigned=state.flushed))
            after = cut._replace(identity=state.identity + 1)
            if len(database.states) > 1:
                behind = database._replace(states=database.states[:-1], assigned=state.flushed)
                said = f"a standby that has not received state {database.states[-1]} takes over"
                yield said, _forgets(after, behind)
            yield "the first backup is restored", _forgets(after, _BACKUP)

    def unequal(self, state: ClusterIdentities) -> str | None:
        if state.shown != state.database.states[-1]:
            return f"Elasticsearch shows state {state.shown} for good, and Postgres is at {state.database.states[-1]}"
        return None

    def canonical(self, state: ClusterIdentities) -> ClusterIdentities:
        # The number of handled changes does not matter.
        done = state.done
        one, two = state.workers
        if done:
            one, two = one._replace(ticket=max(0, one.ticket - done)), two._replace(ticket=max(0, two.ticket - done))
            state = state._replace(asked=state.asked - done, done=0)
        return state._replace(workers=(one, two) if one <= two else (two, one))


def _assigned(state: ClusterIdentities, number: int) -> ClusterIdentities:
    database = state.database._replace(assigned=number)
    return state._replace(database=database, flushed=max(state.flushed, number - 1))


def _cut(state: ClusterIdentities) -> ClusterIdentities:
    """Close all connections; a worker may still send the document that it has built."""
    workers = tuple(one._replace(ticket=0, is_cut=True) if one.phase == _READ else Worker() for one in state.workers)
    return state._replace(workers=workers, troubles=state.troubles - 1)


def _forgets(state: ClusterIdentities, database: Database) -> ClusterIdentities:
    """Replace the database; the pending changes are lost with the old one."""
    return state._replace(database=database, flushed=database.assigned, done=state.asked)


def _said(version: int) -> str:
    return f"version {version // _EPOCH}.{version % _EPOCH}"


def _with(state: ClusterIdentities, at: int, worker: Worker) -> ClusterIdentities:
    return state._replace(workers=placed(state.workers, at, worker))
