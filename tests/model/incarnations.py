"""Incarnations: versions never go back, though the database does.

A crash loses numbers of the sequence that were handed out and not yet on disk. A failover to a standby that was
behind, or a restore, loses commits besides, and takes the sequence and the epoch back to what they were. Whoever
connects finds out whose life it is, and enters it: the epoch is written to Elasticsearch, then to Postgres. Then
what differs is written once more. A writer of the life before may yet send what it has composed. What is written is
done, here, in the same step: that nothing is lost in between is the matter of `tests.model.writing`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Rule, Step, placed

NEW_EPOCH = Rule(
    name="a-new-life-has-a-greater-epoch",
    says="in another life of the database versions have a greater epoch",
    kept_by="syncer.version",
    otherwise="after a failover numbers are drawn that were drawn before, and lose to what the database has lost",
)
RECORDED = Rule(
    name="the-epoch-is-kept-in-elasticsearch",
    says="the new epoch is greater than what Elasticsearch has recorded, too",
    kept_by="syncer.version",
    otherwise="a restore from before the last failover takes the epoch back, and it is used twice",
)
RECORDED_FIRST = Rule(
    name="the-record-comes-first",
    says="the epoch is recorded in Elasticsearch before it is written to Postgres",
    kept_by="syncer.version",
    otherwise="a writer that dies in between leaves an epoch that is used, and not recorded",
)
SKIPPED = Rule(
    name="skip-unflushed-numbers",
    says="a new connection skips every number that may have been handed out and not been on disk",
    kept_by="syncer.version",
    otherwise="after a crash a number is handed out again, and what is written with it is taken for an old one",
)
REFRESHED = Rule(
    name="a-new-life-refreshes-all",
    says="in a new life every document is written once more: the commit that enters it makes the jobs",
    kept_by="syncer.incarnation",
    otherwise="documents go on showing commits that the database has lost",
)

_IDLE, _ENTERING, _CONNECTED, _DRAWN, _READ = range(5)
_EPOCH = 100


class Database(NamedTuple):
    """What a restore takes back.

    Args:
        states: What the document has been like, as numbers of commits that are never used again.
        life: The timeline that Postgres remembers.
        epoch: The epoch that it remembers.
        drawn: The last number of the sequence that was handed out.
    """

    states: tuple[int, ...]
    life: int
    epoch: int
    drawn: int


class Worker(NamedTuple):
    """What a worker has in hand.

    Args:
        phase: How far it is.
        ticket: Up to which change it will have handled.
        is_cut: Whether its connection is of a life that is over.
        version: What it has drawn.
        state: What it has read.
    """

    phase: int = _IDLE
    ticket: int = 0
    is_cut: bool = False
    version: int = 0
    state: int = 0


class Incarnations(NamedTuple):
    """Everything.

    Args:
        database: As it is.
        flushed: The number that the sequence has after a crash.
        life: Which timeline it is on.
        recorded: The epoch in Elasticsearch.
        asked: How many changes, and refreshes, there have been.
        done: Up to which one they are handled.
        commits: How many there have been.
        version: Which version Elasticsearch has.
        shown: Which state it shows.
        workers: All of them.
        troubles: How often Postgres may yet crash, fail over or be restored.
    """

    database: Database
    flushed: int
    life: int
    recorded: int
    asked: int
    done: int
    commits: int
    version: int
    shown: int
    workers: tuple[Worker, ...]
    troubles: int


_BACKUP = Database(states=(0,), life=1, epoch=1, drawn=0)


class IncarnationsModel(Model[Incarnations]):
    """Crash, failover, restore."""

    name = "incarnations"
    about = "crash, failover, restore: versions go on growing, and lost commits go away"
    rules = (NEW_EPOCH, RECORDED, RECORDED_FIRST, SKIPPED, REFRESHED)

    def prepare(self) -> None:
        self._commits = 2 if self.is_large else 1
        self._records, self._records_first = self.keeps(RECORDED), self.keeps(RECORDED_FIRST)

    @property
    def bounds(self) -> str:
        return f"2 workers, {1 + self._commits} changes, 3 crashes, failovers or restores in any order"

    def initial(self) -> Incarnations:
        return Incarnations(
            database=_BACKUP,
            flushed=0,
            life=1,
            recorded=1,
            asked=1,
            done=0,
            commits=0,
            version=0,
            shown=0,
            workers=(Worker(), Worker()),
            troubles=3,
        )

    def protocol(self, state: Incarnations) -> Iterator[Step[Incarnations]]:
        for at, worker in enumerate(state.workers):
            yield from self._work(state, at, worker, f"worker {'AB'[at]}")

    def _work(self, state: Incarnations, at: int, worker: Worker, who: str) -> Iterator[Step[Incarnations]]:
        database = state.database
        if worker.phase == _IDLE:
            yield from self._connect(state, at, who)
        elif worker.phase == _ENTERING:
            yield self._enter(state, at, worker.version, who)
        elif worker.phase == _CONNECTED and state.done < state.asked:
            number = database.drawn + 1
            drawn = Worker(phase=_DRAWN, ticket=state.asked, version=database.epoch * _EPOCH + number)
            said = f"{who} receives what there is to do, and draws {_said(drawn.version)}"
            yield said, _drawn(_with(state, at, drawn), number)
        elif worker.phase == _DRAWN:
            read = worker._replace(phase=_READ, state=database.states[-1])
            yield f"{who} reads state {read.state}", _with(state, at, read)
        elif worker.phase == _READ:
            said = f"{who} writes state {worker.state} as {_said(worker.version)}"
            # If that life is over it finds that its connection is gone, and begins again.
            after = _with(state, at, Worker() if worker.is_cut else Worker(phase=_CONNECTED))
            after = after._replace(done=max(state.done, worker.ticket))
            if worker.version <= state.version:
                yield f"{said}, which is refused: {_said(state.version)} is there", after
            else:
                yield said, after._replace(version=worker.version, shown=worker.state)

    def _connect(self, state: Incarnations, at: int, who: str) -> Iterator[Step[Incarnations]]:
        if any(one.phase == _ENTERING for one in state.workers):
            return  # the row is locked
        # Rule a-new-life-has-a-greater-epoch: `version.enter_incarnation`.
        if state.life == state.database.life or not self.keeps(NEW_EPOCH):
            yield f"{who} connects", self._connected(state, at)
            return
        # Rule the-epoch-is-kept-in-elasticsearch: `EpochRecord.read_epoch`.
        epoch = max(state.database.epoch, state.recorded if self._records else 0) + 1
        entering = _with(state, at, Worker(phase=_ENTERING, version=epoch))
        # Rule the-record-comes-first: `EpochRecord.write_epoch`, before the transaction commits.
        if self._records_first:
            said = f"{who} connects, and records epoch {epoch} in Elasticsearch"
            yield said, entering._replace(recorded=max(state.recorded, epoch))
        else:
            said = f"{who} connects, and writes epoch {epoch} to Postgres"
            yield said, entering._replace(database=state.database._replace(life=state.life, epoch=epoch))

    def _enter(self, state: Incarnations, at: int, epoch: int, who: str) -> Step[Incarnations]:
        # Rule a-new-life-refreshes-all: here it is there at once.
        asked = state.asked + self.keeps(REFRESHED)
        after = self._connected(state, at)
        database = after.database._replace(life=state.life, epoch=epoch)
        after = after._replace(database=database, recorded=max(state.recorded, epoch), asked=asked)
        return f"{who} has entered epoch {epoch}", after

    def _connected(self, state: Incarnations, at: int) -> Incarnations:
        # Rule skip-unflushed-numbers: `version.skip_unflushed`. At most one number is not on disk here.
        number = state.database.drawn + (2 if self.keeps(SKIPPED) else 0)
        return _drawn(_with(state, at, Worker(phase=_CONNECTED)), number)

    def world(self, state: Incarnations) -> Iterator[Step[Incarnations]]:
        database = state.database
        if state.commits < self._commits:
            number = state.commits + 1
            after = state._replace(commits=number, asked=state.asked + 1)
            states = database._replace(states=(*database.states, number))
            yield f"state {number} is committed", after._replace(database=states)
        if state.troubles:
            cut = _cut(state)
            said = f"Postgres crashes, and its sequence goes on after {state.flushed}"
            yield said, cut._replace(database=database._replace(drawn=state.flushed))
            after = cut._replace(life=state.life + 1)
            if len(database.states) > 1:
                behind = database._replace(states=database.states[:-1], drawn=state.flushed)
                said = f"a standby that has not received state {database.states[-1]} takes over"
                yield said, _forgets(after, behind)
            yield "the first backup is restored", _forgets(after, _BACKUP)

    def unlevel(self, state: Incarnations) -> str | None:
        if state.shown != state.database.states[-1]:
            return f"Elasticsearch shows state {state.shown} for good, and Postgres is at {state.database.states[-1]}"
        return None

    def canonical(self, state: Incarnations) -> Incarnations:
        # Of what is done it does not matter how much it was.
        done = state.done
        one, two = state.workers
        if done:
            one, two = one._replace(ticket=max(0, one.ticket - done)), two._replace(ticket=max(0, two.ticket - done))
            state = state._replace(asked=state.asked - done, done=0)
        return state._replace(workers=(one, two) if one <= two else (two, one))


def _drawn(state: Incarnations, number: int) -> Incarnations:
    database = state.database._replace(drawn=number)
    return state._replace(database=database, flushed=max(state.flushed, number - 1))


def _cut(state: Incarnations) -> Incarnations:
    """Connections are gone; what was composed may yet be sent."""
    workers = tuple(one._replace(ticket=0, is_cut=True) if one.phase == _READ else Worker() for one in state.workers)
    return state._replace(workers=workers, troubles=state.troubles - 1)


def _forgets(state: Incarnations, database: Database) -> Incarnations:
    """What was to be done is forgotten along with it."""
    return state._replace(database=database, flushed=database.drawn, done=state.asked)


def _said(version: int) -> str:
    return f"version {version // _EPOCH}.{version % _EPOCH}"


def _with(state: Incarnations, at: int, worker: Worker) -> Incarnations:
    return state._replace(workers=placed(state.workers, at, worker))
