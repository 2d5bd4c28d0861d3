"""Reindexing: a new index beside the one that serves, the alias, the way back, and the end of the old one.

Index A serves. Index B is made, put in force in one commit that makes its fill as well, filled, and verified; the
alias moves, A stays on standby, for a way back, until it is dropped. A worker finds out which indices are in force
once it has received its event, and writes one after the other, each with a draw and a snapshot of its own; in the
snapshot it sees whether the index is still in force.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Rule, Step, placed, ranked

IN_FORCE_NOW = Rule(
    name="ask-for-indices-after-receiving",
    says="which indices are in force is asked once the event was received",
    kept_by="syncer.affected",
    otherwise="a worker goes on writing the old index only, after the fill of the new one has gone by",
)
FILLED_AFTER = Rule(
    name="fill-the-new-index-after-the-commit",
    says="what fills the new index is read after the commit that puts it in force",
    kept_by="syncer.apply",
    otherwise="a change is handled after the fill has read and before the index is in force",
)
COMPLETE = Rule(
    name="the-alias-moves-to-what-is-filled",
    says="the alias moves only to an index that is filled",
    kept_by="syncer.rebuild",
    otherwise="searches find less than what they found before",
)
STANDBY_FOLLOWED = Rule(
    name="the-old-index-is-followed",
    says="the index before is written until it is put out of force",
    kept_by="syncer.rebuild",
    otherwise="the way back leads to an old state",
)
ALIAS_REQUIRED = Rule(
    name="writes-require-the-alias",
    says="a write names the index's write alias, and requires that it is one",
    kept_by="syncer.index",
    otherwise="a late write makes the dropped index anew, as one that nobody knows",
)
OUT_OF_FORCE_FIRST = Rule(
    name="out-of-force-before-dropping",
    says="an index is put out of force before it is dropped, and skipped from then on",
    kept_by="syncer.apply",
    otherwise="workers try to write for ever what is no longer there",
)

_A, _B = 0, 1
_IDLE, _HOLDS, _DRAWN, _READ = range(4)
_FILL = -1
_NOTHING = (0, -1)
# How far the new index is.
_NONE, _MADE, _IN_FORCE, _FILLED, _MOVED, _SERVES, _WITHDRAWN, _DROPPED = range(8)


class Hand(NamedTuple):
    """What a worker has in hand.

    Args:
        phase: How far it is.
        task: Its event; -1 for the fill's page.
        indices: Those that it has yet to write.
        version: What it has drawn.
        state: What it has read.
    """

    phase: int = _IDLE
    task: int = 0
    indices: tuple[int, ...] = ()
    version: int = 0
    state: int = 0


class Reindexing(NamedTuple):
    """Everything.

    Args:
        events: Of each commit, whether its offset is committed.
        stage: How far the new index is.
        in_force: Whether A is, and B.
        exists: Whether A does, and B.
        holds: Of A and B, the version and the state.
        alias: Which of them is searched.
        is_back: Whether the alias has been moved back.
        is_filling: Whether the fill has yet to be written.
        workers: All of them.
    """

    events: tuple[bool, ...]
    stage: int
    in_force: tuple[bool, bool]
    exists: tuple[bool, bool]
    holds: tuple[tuple[int, int], tuple[int, int]]
    alias: int
    is_back: bool
    is_filling: bool
    workers: tuple[Hand, ...]


class ReindexingModel(Model[Reindexing]):
    """Two targets."""

    name = "reindexing"
    about = "a new index takes the place of the old one, and gives it back, beside live traffic"
    rules = (IN_FORCE_NOW, FILLED_AFTER, COMPLETE, STANDBY_FOLLOWED, ALIAS_REQUIRED, OUT_OF_FORCE_FIRST)

    def prepare(self) -> None:
        self._commits = 3 if self.is_large else 2
        self._asks, self._fills_after = self.keeps(IN_FORCE_NOW), self.keeps(FILLED_AFTER)
        self._requires, self._follows = self.keeps(ALIAS_REQUIRED), self.keeps(STANDBY_FOLLOWED)

    @property
    def bounds(self) -> str:
        return f"2 workers, {self._commits} commits, a rebuild, a way back, a drop, any deaths"

    def initial(self) -> Reindexing:
        return Reindexing(
            events=(),
            stage=_NONE,
            in_force=(True, False),
            exists=(True, False),
            holds=((0, 0), _NOTHING),
            alias=_A,
            is_back=False,
            is_filling=False,
            workers=(Hand(), Hand()),
        )

    def protocol(self, state: Reindexing) -> Iterator[Step[Reindexing]]:
        for at, hand in enumerate(state.workers):
            yield from self._work(state, at, hand, f"worker {'AB'[at]}")
        if state.stage == _MOVED:
            yield "the commit says that B serves", self._serve(state)
        elif state.stage == _WITHDRAWN:
            # Rule out-of-force-before-dropping: `apply.withdraw`.
            if self.keeps(OUT_OF_FORCE_FIRST):
                yield "A is dropped", _dropped(state, _A)._replace(stage=_DROPPED)
        elif state.stage == _IN_FORCE and not state.is_filling:
            yield "the fill is done", state._replace(stage=_FILLED)

    def _serve(self, state: Reindexing) -> Reindexing:
        # Rule the-old-index-is-followed: `rebuild.serve` gives it another role, and leaves it in force.
        in_force = state.in_force if self._follows else (False, True)
        return state._replace(stage=_SERVES, in_force=in_force)

    def _work(self, state: Reindexing, at: int, hand: Hand, who: str) -> Iterator[Step[Reindexing]]:
        if hand.phase == _IDLE:
            # Rule ask-for-indices-after-receiving: `AffectedReader.documents`. Else: as when the worker began.
            indices = tuple(one for one in (_A, _B) if state.in_force[one]) if self._asks else (_A,)
            for number, is_done in enumerate(state.events):
                if not is_done:
                    said = " and ".join("AB"[one] for one in indices)
                    got = Hand(phase=_HOLDS, task=number, indices=indices)
                    yield f"{who} receives event {number + 1}, for {said}", _with(state, at, got)
            if state.is_filling:
                yield f"{who} takes the fill's page", _with(state, at, Hand(phase=_HOLDS, task=_FILL, indices=(_B,)))
        elif not hand.indices:
            if hand.task == _FILL:
                yield f"{who} finishes the fill's page", _with(state, at, Hand())._replace(is_filling=False)
            else:
                after = state._replace(events=placed(state.events, hand.task, one=True))
                yield f"{who} commits the offset of event {hand.task + 1}", _with(after, at, Hand())
        elif hand.phase == _HOLDS:
            version = 1 + max(*(one for one, _ in state.holds), *(one.version for one in state.workers))
            yield f"{who} draws version {version}", _with(state, at, hand._replace(phase=_DRAWN, version=version))
        elif hand.phase == _DRAWN:
            yield self._read(state, at, hand, who)
        else:
            yield from self._send(state, at, hand, who)

    def _read(self, state: Reindexing, at: int, hand: Hand, who: str) -> Step[Reindexing]:
        index = hand.indices[0]
        if not state.in_force[index] and (hand.task != _FILL or self._fills_after):
            skipped = Hand(phase=_HOLDS, task=hand.task, indices=hand.indices[1:])
            return f"{who} finds {'AB'[index]} no longer in force, and skips it", _with(state, at, skipped)
        read = hand._replace(phase=_READ, state=len(state.events))
        return f"{who} reads state {read.state} for {'AB'[index]}", _with(state, at, read)

    def _send(self, state: Reindexing, at: int, hand: Hand, who: str) -> Iterator[Step[Reindexing]]:
        index = hand.indices[0]
        said = f"{who} writes state {hand.state} to {'AB'[index]} as version {hand.version}"
        sent = Hand(phase=_HOLDS, task=hand.task, indices=hand.indices[1:])
        if not state.exists[index]:
            # Rule writes-require-the-alias: `Index._write_part`.
            if not self._requires:
                made = state._replace(exists=placed(state.exists, index, one=True))  # type: ignore[arg-type]
                yield f"{said}, which makes the index anew", _with(_held(made, index, hand), at, sent)
                return
            again = Hand(phase=_HOLDS, task=hand.task, indices=hand.indices)
            yield f"{said}, which is refused: there is no such alias; it begins again", _with(state, at, again)
        elif hand.version <= state.holds[index][0]:
            yield f"{said}, which is refused", _with(state, at, sent)
        else:
            yield said, _with(_held(state, index, hand), at, sent)

    def world(self, state: Reindexing) -> Iterator[Step[Reindexing]]:
        if len(state.events) < self._commits:
            yield f"state {len(state.events) + 1} is committed", state._replace(events=(*state.events, False))
        for at, hand in enumerate(state.workers):
            if hand.phase:
                yield f"worker {'AB'[at]} is killed", _with(state, at, Hand())
        yield from self._build(state)
        # Rule the-alias-moves-to-what-is-filled: `rebuild.serve`.
        if state.stage == _FILLED or (state.stage == _IN_FORCE and not self.keeps(COMPLETE)):
            yield "the alias moves to B", state._replace(stage=_MOVED, alias=_B)
        elif state.stage == _SERVES:
            yield from self._go_back_or_drop(state)

    def _build(self, state: Reindexing) -> Iterator[Step[Reindexing]]:
        if state.stage == _NONE:
            # Rule fill-the-new-index-after-the-commit: `apply._put_in_force`.
            made = state._replace(stage=_MADE, exists=(True, True), is_filling=not self._fills_after)
            yield "index B is made", made
        elif state.stage == _MADE:
            is_filling = True if self._fills_after else state.is_filling
            in_force = state._replace(stage=_IN_FORCE, in_force=(True, True), is_filling=is_filling)
            yield "one commit puts B in force, and makes its fill", in_force

    def _go_back_or_drop(self, state: Reindexing) -> Iterator[Step[Reindexing]]:
        if not state.is_back:
            yield "the alias moves back to A", state._replace(alias=_A, is_back=True)
        elif state.alias == _A:
            yield "the alias moves to B again", state._replace(alias=_B)
        if state.alias == _B:
            if self.keeps(OUT_OF_FORCE_FIRST):
                out = state._replace(stage=_WITHDRAWN, in_force=(False, True))
                yield "A is put out of force", out
            else:
                yield "A is dropped", _dropped(state, _A)._replace(stage=_DROPPED)

    def wrong(self, state: Reindexing) -> str | None:
        shown = state.holds[state.alias][1]
        done = max((number for number, is_done in enumerate(state.events, 1) if is_done), default=0)
        if shown < done:
            return f"a search finds state {max(shown, 0)} in {'AB'[state.alias]}, though event {done} was done"
        return None

    def unlevel(self, state: Reindexing) -> str | None:
        for index in (_A, _B):
            if state.exists[index] and not state.in_force[index] and state.stage != _MADE:
                return f"{'AB'[index]} is there, and nobody knows of it"
            if state.in_force[index] and state.holds[index][1] != len(state.events):
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
