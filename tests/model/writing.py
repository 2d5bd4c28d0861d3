"""Writing: two workers keep one document up to date despite delays, repetition, reordering and crashes.

Each commit produces a new state of the database, numbered from 1, and an event. A worker may take any event whose
offset is not committed, even if another worker is handling it: that is a rebalance. A worker is idle, or has *received*
an event, *assigned* a version too early, *read* a snapshot, or *sent* what it read. Assigning a version and taking the
snapshot are one step, serialised among all workers.

Elasticsearch may forget deletes at any time: after an hour, after a restart, or when a shard moves. A worker that
assigned its version before that, and has not committed its offset, is *late* from then on.

The model shows this of guarantee 2: once a state has been seen, no earlier state is ever seen, even if its change has
not been handled. When Elasticsearch forgets deletes, this starts anew.

One case is excluded, because nothing can prevent it. A late worker brings back a deleted document and is killed before
it has finished its re-check. Another worker has already committed the offset of the same event.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from tests.model.explorer import Model, Rule, Step, placed, ranked

RECEIVED_FIRST = Rule(
    name="assign-after-receiving",
    says="a worker assigns the version after it has received the event",
    kept_by="syncer.worker.loop",
    otherwise="a document with the change gets a version from before it, and loses to a document without the change",
)
IN_TURN = Rule(
    name="assign-and-read-in-turn",
    says="no other writer assigns a version or takes a snapshot between a version's assignment and its snapshot",
    kept_by="syncer.indexing.version",
    otherwise="an old snapshot gets a new version, and wins for good",
)
VERSIONED = Rule(
    name="external-versions",
    says="Elasticsearch rejects a version that is not higher than the one it has",
    kept_by="syncer.elasticsearch.bulk",
    otherwise="the last write wins, even if it read first",
)
DELETED_WITH_VERSION = Rule(
    name="deletes-have-versions",
    says="a delete carries a version, which Elasticsearch remembers",
    kept_by="syncer.elasticsearch.bulk",
    otherwise="a late writer brings a deleted document back",
)
WRITTEN_FIRST = Rule(
    name="write-before-saving-progress",
    says="a worker saves its progress only after it has written the documents",
    kept_by="syncer.worker.loop",
    otherwise="a worker that dies in between loses the change",
)
LATE_AGAIN = Rule(
    name="late-creations-are-done-again",
    says="a writer that created a document checks whether Postgres still has it, and if not, writes it again",
    kept_by="syncer.indexing.writer",
    otherwise="a delayed worker brings back a document whose delete Elasticsearch has forgotten",
)

GAPS = Rule(
    name="gaps-between-versions",
    says="between two assigned versions are more than other clients add to the version of a document",
    kept_by="syncer.indexing.version",
    otherwise="an _update_by_query gives the document the version that its next change is assigned, which is rejected",
)
UNASSIGNED_AGAIN = Rule(
    name="write-again-over-what-was-not-assigned",
    says="a write that meets its own version, or one that was not assigned, is done again with a new version",
    kept_by="syncer.indexing.writer",
    otherwise="a document whose version other clients have raised across a gap keeps an old state",
)

_IDLE, _RECEIVED, _ASSIGNED, _READ, _SENT = range(5)


class Worker(NamedTuple):
    """A worker and the event that it handles.

    Args:
        phase: Its phase.
        event: The number of the commit that it handles.
        version: The version that it has assigned; 0 for none.
        state: The state of the database that it has read.
        is_there: Whether the document exists in that state.
        created: Whether its write created the document, and the check with Postgres is still to come.
        is_late: Whether Elasticsearch has forgotten deletes since it assigned its version.
    """

    phase: int = _IDLE
    event: int = 0
    version: int = 0
    state: int = 0
    is_there: bool = False
    created: bool = False
    is_late: bool = False


class Writing(NamedTuple):
    """The state of the model.

    Args:
        events: For each commit, whether the offset of its event is committed.
        is_there: Whether the document is in Postgres.
        version: The version that Elasticsearch has or remembers; 0 for none.
        last: The last version that was assigned.
        shown: The state of the database that Elasticsearch shows.
        is_shown: Whether Elasticsearch has the document.
        seen: The newest state that Elasticsearch has shown.
        workers: The two workers.
        forgets: How many more times Elasticsearch may forget deletes.
        bumps: How many more times other clients may raise the version of the document.
        others: How many more versions may be assigned for other documents.
    """

    events: tuple[bool, ...]
    is_there: bool
    version: int
    last: int
    shown: int
    is_shown: bool
    seen: int
    workers: tuple[Worker, ...]
    forgets: int
    bumps: int
    others: int


class WritingModel(Model[Writing]):
    """Receive, assign, read, write."""

    name = "writing"
    about = "the version rule holds for two workers and one document, with any delay, repetition, order and crash"
    beyond: ClassVar = {
        "kill-the-late": "a worker is delayed while Elasticsearch forgets a delete, brings the document back, and is "
        "killed before it has finished its re-check; another worker has already committed the offset of the same event",
        "bump-to-another's": "other clients raise the version of a document across gaps, to exactly a version that is "
        "assigned for other documents",
    }
    rules = (
        RECEIVED_FIRST,
        IN_TURN,
        VERSIONED,
        DELETED_WITH_VERSION,
        WRITTEN_FIRST,
        LATE_AGAIN,
        GAPS,
        UNASSIGNED_AGAIN,
    )

    def prepare(self) -> None:
        self._commits = 4 if self.is_large else 3
        self._receives_first, self._in_turn = self.keeps(RECEIVED_FIRST), self.keeps(IN_TURN)
        self._versions, self._remembers = self.keeps(VERSIONED), self.keeps(DELETED_WITH_VERSION)
        self._writes_first, self._does_again = self.keeps(WRITTEN_FIRST), self.keeps(LATE_AGAIN)
        self._has_gaps, self._writes_over = self.keeps(GAPS), self.keeps(UNASSIGNED_AGAIN)

    @property
    def bounds(self) -> str:
        return (
            f"2 workers, {self._commits} commits, deletes forgotten once, a version raised once; "
            "any number of crashes and deliveries"
        )

    def initial(self) -> Writing:
        return Writing(
            events=(),
            is_there=False,
            version=0,
            last=0,
            shown=0,
            is_shown=False,
            seen=0,
            workers=(Worker(), Worker()),
            forgets=1,
            bumps=1,
            others=1,
        )

    def protocol(self, state: Writing) -> Iterator[Step[Writing]]:
        for at, worker in enumerate(state.workers):
            yield from self._work(state, at, worker, f"worker {'AB'[at]}")

    def _work(self, state: Writing, at: int, worker: Worker, name: str) -> Iterator[Step[Writing]]:
        phase = worker.phase
        if phase == _IDLE or (phase == _ASSIGNED and not worker.event):
            yield from self._receive(state, at, worker, name)
        elif phase == _RECEIVED:
            yield from self._begin(state, at, worker, name)
        elif phase == _ASSIGNED:
            read = _read(state, worker)
            yield f"{name} reads state {read.state}: {_seen(read.is_there)}", _with(state, at, read)
        elif phase == _READ and not worker.version:
            assigned = worker._replace(version=state.last + 1)
            yield f"{name} assigns version {assigned.version}", _with(_assigned(state), at, assigned)
        elif phase == _READ:
            yield from self._send(state, at, worker, name)
        elif worker.created and state.is_there:
            yield f"{name} finds that the row still exists", _with(state, at, worker._replace(created=False))
        elif worker.created:
            # Rule late-creations-are-done-again: `Writer._gone`.
            again = Worker(phase=_RECEIVED, event=worker.event, is_late=worker.is_late)
            yield f"{name} finds that the row is gone, and starts again", _with(state, at, again)
        else:
            yield f"{name} commits the offset of event {worker.event}", _with(_commit(state, worker), at, Worker())

    def _receive(self, state: Writing, at: int, worker: Worker, name: str) -> Iterator[Step[Writing]]:
        for number, is_done in enumerate(state.events, 1):
            if not is_done:
                got = worker._replace(phase=worker.phase or _RECEIVED, event=number)
                after = _with(state, at, got)
                # Rule write-before-saving-progress: `Worker._done`.
                yield f"{name} receives event {number}", after if self._writes_first else _commit(after, got)
        # Rule assign-after-receiving: `Membership.receive` comes before `Worker._take`.
        if not self._receives_first and worker.phase == _IDLE and len(state.events) < self._commits:
            version = state.last + 1
            assigned = Worker(phase=_ASSIGNED, version=version)
            yield f"{name} assigns version {version}", _with(_assigned(state), at, assigned)

    def _begin(self, state: Writing, at: int, worker: Worker, name: str) -> Iterator[Step[Writing]]:
        # One snapshot contains the whole document: `syncer.documents.queries`.
        read = _read(state, worker)
        if self._in_turn:
            # Rule assign-and-read-in-turn: `version.assign_version`.
            read = read._replace(version=state.last + 1)
            state = _assigned(state)
            what = f"{name} assigns version {read.version} and reads state {read.state}: {_seen(read.is_there)}"
        else:
            what = f"{name} reads state {read.state}: {_seen(read.is_there)}"
        yield what, _with(state, at, read)

    def _send(self, state: Writing, at: int, worker: Worker, name: str) -> Iterator[Step[Writing]]:
        after = _with(state, at, worker._replace(phase=_SENT, version=0, state=0, is_there=False))
        what = f"{name} {'writes' if worker.is_there else 'deletes'} state {worker.state} as version {worker.version}"
        # Rule external-versions: `bulk._lines`.
        if self._versions and worker.version <= state.version:
            what += f", which is rejected: {state.version} is there"
            # Rule write-again-over-what-was-not-assigned: `Writer.settle`.
            if self._writes_over and (worker.version == state.version or state.version > state.last):
                again = Worker(phase=_RECEIVED, event=worker.event, is_late=worker.is_late)
                yield f"{what}, and starts again", _with(state, at, again)
            else:
                yield what, after
            return
        # Rule deletes-have-versions: `bulk._lines`.
        version = worker.version if worker.is_there or self._remembers else 0
        seen = max(state.seen, worker.state)
        if worker.is_there and not state.is_shown and self._does_again:
            after = _with(state, at, after.workers[at]._replace(created=True))
        yield what, after._replace(version=version, shown=worker.state, is_shown=worker.is_there, seen=seen)

    def world(self, state: Writing) -> Iterator[Step[Writing]]:
        if len(state.events) < self._commits:
            number, events = len(state.events) + 1, (*state.events, False)
            if state.is_there:
                yield f"the row is changed: state {number}", state._replace(events=events)
                yield f"the row is deleted: state {number}", state._replace(events=events, is_there=False)
            else:
                yield f"the row is inserted: state {number}", state._replace(events=events, is_there=True)
        for at, worker in enumerate(state.workers):
            if worker.phase and (not worker.is_late or "kill-the-late" in self.allowed):
                yield f"worker {'AB'[at]} is killed", _with(state, at, Worker())
        if state.forgets and not state.is_shown:
            workers = tuple(one._replace(is_late=one.phase >= _ASSIGNED) for one in state.workers)
            # A late writer may show a deleted document once more, until it has checked with Postgres.
            after = state._replace(version=0, seen=0, forgets=state.forgets - 1, workers=workers)
            yield "Elasticsearch forgets deletes: it restarts, or an hour passes", after

        if state.others:
            what = f"version {state.last + 1} is assigned for another document"
            yield what, _assigned(state)._replace(others=state.others - 1)
        if state.bumps and state.is_shown:
            yield from self._bump(state)

    def _bump(self, state: Writing) -> Iterator[Step[Writing]]:
        """Raise the version of the document to another one. Within a gap it changes no order, and has no step."""
        held = sorted(one.version for one in state.workers if one.version)
        for raised in range(state.version + 1, state.last + 2):
            after = state._replace(version=raised, bumps=state.bumps - 1)
            # Rule gaps-between-versions: `version.assign_version`.
            if not self._has_gaps:
                yield f"other clients raise the version to {raised}", after
            elif "bump-to-another's" in self.allowed:
                yield f"other clients raise the version across gaps, to {raised}", after
            elif raised == (held or [state.last + 1])[0]:
                yield f"other clients raise the version across gaps, to {raised}", after._replace(others=0)

    def wrong(self, state: Writing) -> str | None:
        if state.shown < state.seen:
            return f"Elasticsearch shows state {state.shown}, and has shown state {state.seen} before"
        return None

    def unequal(self, state: Writing) -> str | None:
        if state.is_shown != state.is_there:
            return f"Elasticsearch {'has' if state.is_shown else 'lacks'} the document for good, unlike Postgres"
        if state.is_there and state.shown != len(state.events):
            return f"Elasticsearch shows state {state.shown} for good, and Postgres is at state {len(state.events)}"
        return None

    def canonical(self, state: Writing) -> Writing:
        one, two = state.workers
        version, last = state.version, state.last
        if version or last:
            rank = ranked((version, last, one.version, two.version))
            version, last = rank[version], rank[last]
            one, two = one._replace(version=rank[one.version]), two._replace(version=rank[two.version])
        if (version, last, one, two) == (state.version, state.last, *state.workers) and one <= two:
            return state
        return state._replace(version=version, last=last, workers=(one, two) if one <= two else (two, one))


def _assigned(state: Writing) -> Writing:
    return state._replace(last=state.last + 1)


def _read(state: Writing, worker: Worker) -> Worker:
    return worker._replace(phase=_READ, state=len(state.events), is_there=state.is_there)


def _with(state: Writing, at: int, worker: Worker) -> Writing:
    return state._replace(workers=placed(state.workers, at, worker))


def _commit(state: Writing, worker: Worker) -> Writing:
    return state._replace(events=placed(state.events, worker.event - 1, one=True))


def _seen(is_there: bool) -> str:
    return "the document is there" if is_there else "the document is not there"
