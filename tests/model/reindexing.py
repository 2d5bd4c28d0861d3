"""Reindexing: a new index beside the current one, the alias, and the removal of the old index.

Index A is current. Index B is created, and one commit activates it and creates its initial load. Once B is loaded and
verified, the alias moves to B. The commit that records that deactivates A, which is then dropped. A worker
reads which indices are active after it has received its event. It writes them one after the other, each with its own
version and snapshot, and the snapshot shows whether the index is still active.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Rule, Step, placed, ranked

ASKED_AFTER = Rule(
    name="ask-for-indices-after-receiving",
    says="a worker reads which indices are active after it has received the event",
    kept_by="syncer.documents.affected",
    otherwise="a worker keeps writing to the old index only, after the new one has been loaded",
)
LOADED_AFTER = Rule(
    name="load-the-new-index-after-the-commit",
    says="the load of a new index reads the documents after the commit that activates the index",
    kept_by="syncer.apply.activate",
    otherwise="a change that is handled between the load's read and the activation never reaches the new index",
)
COMPLETE = Rule(
    name="the-alias-moves-to-what-is-loaded",
    says="the alias moves only to an index that is loaded",
    kept_by="syncer.apply.reindex",
    otherwise="searches find less than before",
)
OLD_FOLLOWED = Rule(
    name="the-old-index-is-followed",
    says="the old index is kept up to date until the alias has moved",
    kept_by="syncer.apply.reindex",
    otherwise="a search finds an old state until the alias moves",
)
ALIAS_REQUIRED = Rule(
    name="writes-require-the-alias",
    says="a write names the index's write alias, and requires that the name is an alias",
    kept_by="syncer.elasticsearch.bulk",
    otherwise="a late write creates the dropped index again, as an orphan",
)
DEACTIVATED_FIRST = Rule(
    name="out-of-force-before-dropping",
    says="an index is deactivated before it is dropped, and writers skip it from then on",
    kept_by="syncer.apply.activate",
    otherwise="workers retry forever to write to an index that no longer exists",
)

_A, _B = 0, 1
_IDLE, _HOLDS, _ASSIGNED, _READ = range(4)
_INITIAL_LOAD = -1
_NOTHING = (0, -1)
# The phases of the new index.
_NONE, _CREATED, _ACTIVE, _LOADED, _MOVED, _CURRENT, _DROPPED = range(7)


class Hand(NamedTuple):
    """What a worker is doing.

    Args:
        phase: Its phase.
        task: The number of its event; -1 for the load's chunk.
        indices: The indices that it has still to write.
        version: The version that it has assigned.
        state: The state of the database that it has read.
    """

    phase: int = _IDLE
    task: int = 0
    indices: tuple[int, ...] = ()
    version: int = 0
    state: int = 0


class Reindexing(NamedTuple):
    """The state of the model.

    Args:
        events: For each commit, whether the offset of its event is committed.
        phase: The phase of the new index.
        active: Whether A is active, and whether B is.
        exists: Whether A exists, and whether B does.
        holds: For A and B, the version and the state that they hold.
        alias: The index that the alias points to.
        is_loading: Whether the load's chunk is still to be written.
        workers: The two workers.
    """

    events: tuple[bool, ...]
    phase: int
    active: tuple[bool, bool]
    exists: tuple[bool, bool]
    holds: tuple[tuple[int, int], tuple[int, int]]
    alias: int
    is_loading: bool
    workers: tuple[Hand, ...]


class ReindexingModel(Model[Reindexing]):
    """Write two indices, and move the alias between them."""

    name = "reindexing"
    about = "a new index replaces the old one beside live traffic"
    rules = (ASKED_AFTER, LOADED_AFTER, COMPLETE, OLD_FOLLOWED, ALIAS_REQUIRED, DEACTIVATED_FIRST)

    def prepare(self) -> None:
        self._commits = 3 if self.is_large else 2
        self._asks, self._initial_loads_after = self.keeps(ASKED_AFTER), self.keeps(LOADED_AFTER)
        self._requires = self.keeps(ALIAS_REQUIRED)

    @property
    def bounds(self) -> str:
        return f"2 workers, {self._commits} commits, a rebuild, any crashes"

    def initial(self) -> Reindexing:
        return Reindexing(
            events=(),
            phase=_NONE,
            active=(True, False),
            exists=(True, False),
            holds=((0, 0), _NOTHING),
            alias=_A,
            is_loading=False,
            workers=(Hand(), Hand()),
        )

    def protocol(self, state: Reindexing) -> Iterator[Step[Reindexing]]:
        for at, hand in enumerate(state.workers):
            yield from self._work(state, at, hand, f"worker {'AB'[at]}")
        if state.phase == _MOVED:
            # Rule out-of-force-before-dropping: `reindex.serve`.
            active = (False, True) if self.keeps(DEACTIVATED_FIRST) else state.active
            yield "a commit makes B the current index, and deactivates A", state._replace(phase=_CURRENT, active=active)
        elif state.phase == _CURRENT:
            yield "A is dropped", _dropped(state, _A)._replace(phase=_DROPPED)
        elif state.phase == _ACTIVE and not state.is_loading:
            yield "the load is done", state._replace(phase=_LOADED)

    def _work(self, state: Reindexing, at: int, hand: Hand, name: str) -> Iterator[Step[Reindexing]]:
        if hand.phase == _IDLE:
            # Rule ask-for-indices-after-receiving: `AffectedReader.documents`. Without it: those at the worker's start.
            indices = tuple(one for one in (_A, _B) if state.active[one]) if self._asks else (_A,)
            for number, is_done in enumerate(state.events):
                if not is_done:
                    said = " and ".join("AB"[one] for one in indices)
                    got = Hand(phase=_HOLDS, task=number, indices=indices)
                    yield f"{name} receives event {number + 1}, for {said}", _with(state, at, got)
            if state.is_loading:
                yield (
                    f"{name} takes the load's chunk",
                    _with(state, at, Hand(phase=_HOLDS, task=_INITIAL_LOAD, indices=(_B,))),
                )
        elif not hand.indices:
            if hand.task == _INITIAL_LOAD:
                yield f"{name} finishes the load's chunk", _with(state, at, Hand())._replace(is_loading=False)
            else:
                after = state._replace(events=placed(state.events, hand.task, one=True))
                yield f"{name} commits the offset of event {hand.task + 1}", _with(after, at, Hand())
        elif hand.phase == _HOLDS:
            version = 1 + max(*(one for one, _ in state.holds), *(one.version for one in state.workers))
            yield f"{name} assigns version {version}", _with(state, at, hand._replace(phase=_ASSIGNED, version=version))
        elif hand.phase == _ASSIGNED:
            yield self._read(state, at, hand, name)
        else:
            yield from self._send(state, at, hand, name)

    def _read(self, state: Reindexing, at: int, hand: Hand, name: str) -> Step[Reindexing]:
        index = hand.indices[0]
        if not state.active[index] and (hand.task != _INITIAL_LOAD or self._initial_loads_after):
            skipped = Hand(phase=_HOLDS, task=hand.task, indices=hand.indices[1:])
            return f"{name} finds {'AB'[index]} no longer active, and skips it", _with(state, at, skipped)
        read = hand._replace(phase=_READ, state=len(state.events))
        return f"{name} reads state {read.state} for {'AB'[index]}", _with(state, at, read)

    def _send(self, state: Reindexing, at: int, hand: Hand, name: str) -> Iterator[Step[Reindexing]]:
        index = hand.indices[0]
        said = f"{name} writes state {hand.state} to {'AB'[index]} as version {hand.version}"
        sent = Hand(phase=_HOLDS, task=hand.task, indices=hand.indices[1:])
        if not state.exists[index]:
            # Rule writes-require-the-alias: `Index._write_part`.
            if not self._requires:
                made = state._replace(exists=placed(state.exists, index, one=True))  # type: ignore[arg-type]
                yield f"{said}, which creates the index again", _with(_held(made, index, hand), at, sent)
                return
            again = Hand(phase=_HOLDS, task=hand.task, indices=hand.indices)
            yield f"{said}, which is rejected: there is no such alias; it starts again", _with(state, at, again)
        elif hand.version <= state.holds[index][0]:
            yield f"{said}, which is rejected", _with(state, at, sent)
        else:
            yield said, _with(_held(state, index, hand), at, sent)

    def world(self, state: Reindexing) -> Iterator[Step[Reindexing]]:
        if len(state.events) < self._commits:
            yield f"state {len(state.events) + 1} is committed", state._replace(events=(*state.events, False))
        for at, hand in enumerate(state.workers):
            if hand.phase:
                yield f"worker {'AB'[at]} is killed", _with(state, at, Hand())
        yield from self._build(state)
        # Rule the-alias-moves-to-what-is-loaded: `reindex.serve`.
        if state.phase == _LOADED or (state.phase == _ACTIVE and not self.keeps(COMPLETE)):
            yield "the alias moves to B", state._replace(phase=_MOVED, alias=_B)
        # Rule the-old-index-is-followed: `reindex.serve` deactivates it after the alias has moved.
        if state.phase == _LOADED and state.active[_A] and not self.keeps(OLD_FOLLOWED):
            yield "A is deactivated", state._replace(active=(False, True))

    def _build(self, state: Reindexing) -> Iterator[Step[Reindexing]]:
        if state.phase == _NONE:
            # Rule load-the-new-index-after-the-commit: `activate._activate`.
            made = state._replace(phase=_CREATED, exists=(True, True), is_loading=not self._initial_loads_after)
            yield "index B is created", made
        elif state.phase == _CREATED:
            is_loading = True if self._initial_loads_after else state.is_loading
            active = state._replace(phase=_ACTIVE, active=(True, True), is_loading=is_loading)
            yield "one commit activates B and creates its load", active

    def wrong(self, state: Reindexing) -> str | None:
        shown = state.holds[state.alias][1]
        done = max((number for number, is_done in enumerate(state.events, 1) if is_done), default=0)
        if shown < done:
            return f"a search finds state {max(shown, 0)} in {'AB'[state.alias]}, though event {done} is done"
        return None

    def unequal(self, state: Reindexing) -> str | None:
        for index in (_A, _B):
            if state.exists[index] and not state.active[index] and state.phase != _CREATED:
                return f"{'AB'[index]} exists, but is not active: an orphan"
            if state.active[index] and state.holds[index][1] != len(state.events):
                return (
                    f"{'AB'[index]} holds state {state.holds[index][1]} for good, and Postgres is at state "
                    f"{len(state.events)}"
                )
        return None

    def canonical(self, state: Reindexing) -> Reindexing:
        one, two = state.workers
        (version_a, state_a), (version_b, state_b) = state.holds
        rank = ranked((version_a, version_b, one.version, two.version))
        one, two = one._replace(version=rank[one.version]), two._replace(version=rank[two.version])
        holds = ((rank[version_a], state_a), (rank[version_b], state_b))
        return state._replace(holds=holds, workers=(one, two) if one <= two else (two, one))


def _with(state: Reindexing, at: int, hand: Hand) -> Reindexing:
    return state._replace(workers=placed(state.workers, at, hand))


def _held(state: Reindexing, index: int, hand: Hand) -> Reindexing:
    one, two = state.holds
    held = (hand.version, hand.state)
    return state._replace(holds=(held, two) if index == _A else (one, held))


def _dropped(state: Reindexing, index: int) -> Reindexing:
    one, two = state.holds
    return state._replace(
        exists=(False, state.exists[_B]) if index == _A else (state.exists[_A], False),
        holds=(_NOTHING, two) if index == _A else (one, _NOTHING),
    )
