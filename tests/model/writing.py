"""Writing: two workers bring one document up to date, whatever is delayed, repeated, reordered or dies.

Each commit makes a new state of the database, numbered from 1, and an event. A worker takes any event whose offset is
not committed, be it in somebody else's hands: that is a rebalance. It is idle, or has *received* an event, *drawn* a
version too early, *read* a snapshot, or *sent* what it has read. Drawing and reading are one step, that nobody comes
between: they are done in turn.

Elasticsearch forgets deletes when an hour has passed, when it is restarted, when a shard moves. All of that takes
longer than a writer takes who is not held up; one who is, is *late* from then on.

What is shown of promise 2: once a state has been seen, no earlier one ever is, be its change handled or not. Where
Elasticsearch forgets deletes, that begins anew.

Not shown, since nothing could prevent it: that whoever is late does no harm if it is killed as well, between the
answer of Elasticsearch and the end of what it does again, and if somebody else has committed the offset of its event
before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from tests.model.explorer import Model, Rule, Step, placed, ranked

RECEIVED_FIRST = Rule(
    name="draw-after-receiving",
    says="a version is drawn after the event was received",
    kept_by="syncer.worker",
    otherwise="a version from before the change is written with what the change made, and loses to one that missed it",
)
IN_TURN = Rule(
    name="draw-and-read-in-turn",
    says="nobody else draws a version, or takes his snapshot, between a draw and its snapshot",
    kept_by="syncer.version",
    otherwise="an old snapshot gets a new version, and wins for good",
)
VERSIONED = Rule(
    name="external-versions",
    says="Elasticsearch takes no version that is less than the one that it has",
    kept_by="syncer.index",
    otherwise="whoever comes last wins, be it the one who read first",
)
DELETED_WITH_VERSION = Rule(
    name="deletes-have-versions",
    says="a delete carries a version, and leaves it behind",
    kept_by="syncer.index",
    otherwise="a late writer brings a deleted document back",
)
WRITTEN_FIRST = Rule(
    name="write-before-committing-offsets",
    says="an offset is committed only for what is written",
    kept_by="syncer.worker",
    otherwise="a worker that dies in between takes the change with it",
)
LATE_AGAIN = Rule(
    name="late-creations-are-done-again",
    says="who has created a document, and finds that it took long, composes and writes it again",
    kept_by="syncer.writer",
    otherwise="a worker that was held up brings back a document whose delete is forgotten",
)

_IDLE, _RECEIVED, _DRAWN, _READ, _SENT = range(5)


class Worker(NamedTuple):
    """What a worker has in hand.

    Args:
        phase: How far it is.
        event: The number of the commit that it handles.
        version: What it has drawn; 0 for none.
        state: The state of the database that it has read.
        is_there: Whether the document is in it.
        late: Whether deletes may have been forgotten since the draw; 2 once it knows, and does it again.
    """

    phase: int = _IDLE
    event: int = 0
    version: int = 0
    state: int = 0
    is_there: bool = False
    late: int = 0


class Writing(NamedTuple):
    """Everything.

    Args:
        events: For each commit, whether the offset of its event is committed.
        is_there: Whether the document is in Postgres.
        version: Which version Elasticsearch has or remembers; 0 for none.
        shown: Which state of the database Elasticsearch shows.
        is_shown: Whether it has the document.
        seen: The last state that it has shown.
        workers: All of them.
        forgets: How often Elasticsearch may yet forget deletes.
    """

    events: tuple[bool, ...]
    is_there: bool
    version: int
    shown: int
    is_shown: bool
    seen: int
    workers: tuple[Worker, ...]
    forgets: int


class WritingModel(Model[Writing]):
    """Receive, draw, read, write."""

    name = "writing"
    about = "the version rule: two workers, one document, any delay, repetition, order and death"
    beyond: ClassVar = {
        "kill-the-late": "a worker that was held up while Elasticsearch forgot a delete is killed as well, between the "
        "answer and the end of what it does again, and somebody else has committed the offset of its event before",
    }
    rules = (RECEIVED_FIRST, IN_TURN, VERSIONED, DELETED_WITH_VERSION, WRITTEN_FIRST, LATE_AGAIN)

    def prepare(self) -> None:
        self._commits = 4 if self.is_large else 3
        self._receives_first, self._in_turn = self.keeps(RECEIVED_FIRST), self.keeps(IN_TURN)
        self._versions, self._remembers = self.keeps(VERSIONED), self.keeps(DELETED_WITH_VERSION)
        self._writes_first, self._does_again = self.keeps(WRITTEN_FIRST), self.keeps(LATE_AGAIN)

    @property
    def bounds(self) -> str:
        return f"2 workers, {self._commits} commits, deletes forgotten once; any number of crashes and deliveries"

    def initial(self) -> Writing:
        return Writing(
            events=(),
            is_there=False,
            version=0,
            shown=0,
            is_shown=False,
            seen=0,
            workers=(Worker(), Worker()),
            forgets=1,
        )

    def protocol(self, state: Writing) -> Iterator[Step[Writing]]:
        for at, worker in enumerate(state.workers):
            yield from self._work(state, at, worker, f"worker {'AB'[at]}")

    def _work(self, state: Writing, at: int, worker: Worker, who: str) -> Iterator[Step[Writing]]:
        phase = worker.phase
        if phase == _IDLE or (phase == _DRAWN and not worker.event):
            yield from self._receive(state, at, worker, who)
        elif phase == _RECEIVED:
            yield from self._begin(state, at, worker, who)
        elif phase == _DRAWN:
            read = _read(state, worker)
            yield f"{who} reads state {read.state}: {_seen(read.is_there)}", _with(state, at, read)
        elif phase == _READ and not worker.version:
            drawn = worker._replace(version=_next(state))
            yield f"{who} draws version {drawn.version}", _with(state, at, drawn)
        elif phase == _READ:
            yield from self._send(state, at, worker, who)
        elif worker.late == 1 and self._does_again:
            # Rule late-creations-are-done-again: `Writer.settle`.
            again = Worker(phase=_RECEIVED, event=worker.event, late=2)
            yield f"{who} finds that it took long, and begins again", _with(state, at, again)
        else:
            yield f"{who} commits the offset of event {worker.event}", _with(_commit(state, worker), at, Worker())

    def _receive(self, state: Writing, at: int, worker: Worker, who: str) -> Iterator[Step[Writing]]:
        for number, is_done in enumerate(state.events, 1):
            if not is_done:
                got = worker._replace(phase=worker.phase or _RECEIVED, event=number)
                after = _with(state, at, got)
                # Rule write-before-committing-offsets: `Worker._commit`.
                yield f"{who} receives event {number}", after if self._writes_first else _commit(after, got)
        # Rule draw-after-receiving: `Worker._receive` comes before `Pipeline.write`.
        if not self._receives_first and worker.phase == _IDLE and len(state.events) < self._commits:
            version = _next(state)
            yield f"{who} draws version {version}", _with(state, at, Worker(phase=_DRAWN, version=version))

    def _begin(self, state: Writing, at: int, worker: Worker, who: str) -> Iterator[Step[Writing]]:
        # One snapshot shows all of the document: `syncer.compose`.
        read = _read(state, worker)
        if self._in_turn:
            # Rule draw-and-read-in-turn: `version.draw`.
            read = read._replace(version=_next(state))
            what = f"{who} draws version {read.version} and reads state {read.state}: {_seen(read.is_there)}"
        else:
            what = f"{who} reads state {read.state}: {_seen(read.is_there)}"
        yield what, _with(state, at, read)

    def _send(self, state: Writing, at: int, worker: Worker, who: str) -> Iterator[Step[Writing]]:
        after = _with(state, at, worker._replace(phase=_SENT, version=0, state=0, is_there=False))
        what = f"{who} {'writes' if worker.is_there else 'deletes'} state {worker.state} as version {worker.version}"
        # Rule external-versions: `Index.write`.
        if self._versions and worker.version <= state.version:
            yield f"{what}, which is refused: {state.version} is there", after
            return
        # Rule deletes-have-versions: `Index.write`.
        version = worker.version if worker.is_there or self._remembers else 0
        seen = max(state.seen, worker.state)
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
            if worker.phase and (not worker.late or "kill-the-late" in self.allowed):
                yield f"worker {'AB'[at]} is killed", _with(state, at, Worker())
        if state.forgets and not state.is_shown:
            workers = tuple(one._replace(late=int(one.phase >= _DRAWN)) for one in state.workers)
            # A document that is forgotten may be seen once more, until its late writer has looked at the clock.
            after = state._replace(version=0, seen=0, forgets=state.forgets - 1, workers=workers)
            yield "Elasticsearch forgets deletes: it is restarted, or an hour passes", after

    def wrong(self, state: Writing) -> str | None:
        if state.shown < state.seen:
            return f"Elasticsearch shows state {state.shown}, and has shown state {state.seen} before"
        return None

    def unlevel(self, state: Writing) -> str | None:
        if state.is_shown != state.is_there:
            return f"Elasticsearch {'has' if state.is_shown else 'lacks'} the document for good, unlike Postgres"
        if state.is_there and state.shown != len(state.events):
            return f"Elasticsearch shows state {state.shown} for good, and Postgres is at state {len(state.events)}"
        return None

    def canonical(self, state: Writing) -> Writing:
        one, two = state.workers
        version = state.version
        if version or one.version or two.version:
            rank = ranked((version, one.version, two.version))
            version = rank[version]
            one, two = one._replace(version=rank[one.version]), two._replace(version=rank[two.version])
        if (version, one, two) == (state.version, *state.workers) and one <= two:
            return state
        return state._replace(version=version, workers=(one, two) if one <= two else (two, one))


def _next(state: Writing) -> int:
    """A version that is greater than any that somebody still has."""
    return max(state.version, *(one.version for one in state.workers)) + 1


def _read(state: Writing, worker: Worker) -> Worker:
    return worker._replace(phase=_READ, state=len(state.events), is_there=state.is_there)


def _with(state: Writing, at: int, worker: Worker) -> Writing:
    return state._replace(workers=placed(state.workers, at, worker))


def _commit(state: Writing, worker: Worker) -> Writing:
    return state._replace(events=placed(state.events, worker.event - 1, one=True))


def _seen(is_there: bool) -> str:
    return "the document is there" if is_there else "the document is not there"
