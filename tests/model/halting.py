"""Halting: a document that cannot go on is skipped, and loses nothing; a new generation makes good what was skipped.

A generation is put in force in one commit, which makes the job that writes every document; each worker finds out in
its own snapshot which one is in force, and whether it is halted. Someone alters a table, so that the first
generation's SELECT no longer works; `syncer apply` brings one that does, and that reads one more table, which is
captured from then on. What Elasticsearch shows is a state of the database, in the form of a generation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Rule, Step, placed, ranked

BY_GENERATION = Rule(
    name="halt-a-generation",
    says="who halts a document names the generation that failed, not the document",
    kept_by="syncer.halting",
    otherwise="whoever is late halts the generation that was to mend it",
)
HALT_FIRST = Rule(
    name="halt-before-the-offset",
    says="a document is halted before the offset of what is skipped is committed",
    kept_by="syncer.worker",
    otherwise="a worker that dies in between skips a change, and nobody is told",
)
HALT_SEEN = Rule(
    name="skip-what-the-snapshot-says",
    says="a change is skipped only if the document is halted after the change was received",
    kept_by="syncer.affected",
    otherwise="a worker goes on skipping what has been mended and filled meanwhile",
)
GENERATION_READ = Rule(
    name="the-generation-is-read-in-the-snapshot",
    says="which definition is in force is read in the documents' snapshot",
    kept_by="syncer.compose",
    otherwise="a document is written in the old form, by a version that is newer than the fill's",
)
FILL_AFTER = Rule(
    name="fill-after-the-commit",
    says="what a fill writes is read after the commit that puts the generation in force",
    kept_by="syncer.apply",
    otherwise="what is skipped, or written in the old form, after the fill has read stays so",
)
CAPTURE_FIRST = Rule(
    name="capture-before-the-generation",
    says="tables are captured before the generation that reads them is in force",
    kept_by="syncer.apply",
    otherwise="a change between the fill and the triggers is told to nobody",
)

_IDLE, _RECEIVED, _DRAWN, _READ, _FAILED, _HALTED = range(6)
_NONE, _CAPTURED, _APPLIED, _ENDED = range(4)
_FILL = -1


class Hand(NamedTuple):
    """What a worker has in hand.

    Args:
        phase: How far it is.
        task: Its event; -1 for the fill.
        generation: The one that it knows, or has composed with.
        is_halted: Whether it knows it as halted.
        version: What it has drawn.
        state: What it has read.
    """

    phase: int = _IDLE
    task: int = 0
    generation: int = 0
    is_halted: bool = False
    version: int = 0
    state: int = 0


class Halting(NamedTuple):
    """Everything.

    Args:
        events: Of each commit, whether its offset is committed; True, too, if no trigger has told of it.
        generation: The one in force.
        is_halted: Whether it is halted.
        is_broken: Whether the first generation's SELECT fails.
        applying: How far `syncer apply` is.
        is_captured: Whether the other table is.
        fill: The generation that is yet to be filled; 0 for none.
        version: Which version Elasticsearch has.
        shown: Which state it shows, in the form of which generation.
        workers: All of them.
    """

    events: tuple[bool, ...]
    generation: int
    is_halted: bool
    is_broken: bool
    applying: int
    is_captured: bool
    fill: int
    version: int
    shown: tuple[int, int]
    workers: tuple[Hand, ...]


class HaltingModel(Model[Halting]):
    """A document that cannot go on."""

    name = "halting"
    about = "what is skipped while a document is halted, and what a new definition changes, is made good by its fill"
    rules = (BY_GENERATION, HALT_FIRST, HALT_SEEN, GENERATION_READ, FILL_AFTER, CAPTURE_FIRST)

    def prepare(self) -> None:
        self._commits = 3 if self.is_large else 2
        self._reads_generation, self._captures_first = self.keeps(GENERATION_READ), self.keeps(CAPTURE_FIRST)
        self._fills_after = self.keeps(FILL_AFTER)

    @property
    def bounds(self) -> str:
        return f"2 workers, {self._commits} commits, a table altered, a new definition applied, any deaths"

    def initial(self) -> Halting:
        return Halting(
            events=(),
            generation=1,
            is_halted=False,
            is_broken=False,
            applying=_NONE,
            is_captured=False,
            fill=0,
            version=0,
            shown=(0, 1),
            workers=(Hand(), Hand()),
        )

    def protocol(self, state: Halting) -> Iterator[Step[Halting]]:
        yield from self._apply(state)
        for at, hand in enumerate(state.workers):
            yield from self._work(state, at, hand, f"worker {'AB'[at]}")

    def _apply(self, state: Halting) -> Iterator[Step[Halting]]:
        if state.applying == _NONE:
            return
        # Rule capture-before-the-generation: `apply.carry_out`.
        captures_now = state.applying == (_CAPTURED if self._captures_first else _APPLIED) and not state.is_captured
        if captures_now:
            yield "apply captures the other table", state._replace(is_captured=True)
        elif state.applying == _CAPTURED:
            # Rule fill-after-the-commit: `apply._put_in_force` makes the job in the same transaction.
            fill = 2 if self._fills_after else state.fill
            in_force = state._replace(generation=2, is_halted=False, applying=_APPLIED, fill=fill)
            yield "apply puts generation 2 in force, and makes the fill", in_force
        elif state.applying == _APPLIED:
            yield "apply is through", state._replace(applying=_ENDED)

    def _work(self, state: Halting, at: int, hand: Hand, who: str) -> Iterator[Step[Halting]]:
        if hand.phase == _IDLE:
            yield from self._take(state, at, hand, who)
        elif hand.phase == _RECEIVED:
            is_halted = hand.is_halted if hand.generation else state.is_halted
            if is_halted and hand.task != _FILL:
                # Rule skip-what-the-snapshot-says: `AffectedReader.documents`, `Composer.compose`.
                yield f"{who} skips it, since the document is halted", self._done(state, at, hand)
            else:
                version = max(state.version, *(one.version for one in state.workers)) + 1
                drawn = hand._replace(phase=_DRAWN, version=version)
                yield f"{who} draws version {version}", _with(state, at, drawn)
        elif hand.phase == _DRAWN:
            yield self._read(state, at, hand, who)
        elif hand.phase == _READ:
            said = f"{who} writes state {hand.state} in form {hand.generation} as version {hand.version}"
            after = self._done(state, at, hand)
            if hand.version <= state.version:
                yield f"{said}, which is refused", after
            else:
                yield said, after._replace(version=hand.version, shown=(hand.state, hand.generation))
        elif hand.phase == _FAILED:
            halted, said = self._halt(state, hand, who)
            yield said, _with(halted, at, Hand(phase=_HALTED, task=hand.task))
        else:
            yield f"{who} skips what it could not read", self._done(state, at, hand)

    def _take(self, state: Halting, at: int, hand: Hand, who: str) -> Iterator[Step[Halting]]:
        # Without the rule what a worker has learnt of generations it goes by, until it dies.
        knows = Hand() if self.keeps(HALT_SEEN) else Hand(generation=hand.generation, is_halted=hand.is_halted)
        if not knows.generation and not self.keeps(HALT_SEEN):
            knows = Hand(generation=state.generation, is_halted=state.is_halted)
        if not self._reads_generation:
            knows = Hand(generation=state.generation, is_halted=state.is_halted)
        for number, is_done in enumerate(state.events):
            if not is_done:
                yield (
                    f"{who} receives event {number + 1}",
                    _with(state, at, knows._replace(phase=_RECEIVED, task=number)),
                )
        if state.fill and not (state.is_halted and state.generation == state.fill):
            filling = Hand(phase=_RECEIVED, task=_FILL, generation=0 if self._reads_generation else state.fill)
            yield f"{who} takes the fill's page", _with(state, at, filling)

    def _read(self, state: Halting, at: int, hand: Hand, who: str) -> Step[Halting]:
        # Rule the-generation-is-read-in-the-snapshot: `Composer.compose`.
        generation = state.generation if self._reads_generation or not hand.generation else hand.generation
        if hand.task == _FILL and not self._fills_after:
            generation = 2
        elif state.is_halted:
            return f"{who} finds the document halted, and skips it", self._done(state, at, hand)
        if state.is_broken and generation == 1:
            failed = Hand(phase=_FAILED, task=hand.task, generation=1)
            if self.keeps(HALT_FIRST):
                return f"{who} cannot read: generation 1 fails", _with(state, at, failed)
            done = self._done(state, at, hand)
            # The offset first, the halt after it.
            return f"{who} cannot read, and commits the offset", _with(done, at, failed)
        read = hand._replace(phase=_READ, generation=generation, is_halted=False, state=len(state.events))
        return f"{who} reads state {read.state} in form {generation}", _with(state, at, read)

    def _halt(self, state: Halting, hand: Hand, who: str) -> tuple[Halting, str]:
        # Rule halt-a-generation: `store.halt`.
        if state.generation == hand.generation or not self.keeps(BY_GENERATION):
            return state._replace(is_halted=True), f"{who} halts generation {state.generation}"
        return state, f"{who} would halt generation {hand.generation}, which is not in force any more"

    def _done(self, state: Halting, at: int, hand: Hand) -> Halting:
        knows = Hand() if self.keeps(HALT_SEEN) else Hand(generation=hand.generation, is_halted=hand.is_halted)
        if not self._reads_generation:
            knows = Hand()
        after = _with(state, at, knows)
        if hand.task == _FILL:
            # A page that is skipped since the document is halted waits; one that is written is done.
            return after._replace(fill=0) if hand.phase == _READ else after
        return after._replace(events=placed(state.events, hand.task, one=True))

    def world(self, state: Halting) -> Iterator[Step[Halting]]:
        if len(state.events) < self._commits:
            number = len(state.events) + 1
            yield f"state {number} is committed", state._replace(events=(*state.events, False))
            if state.is_captured or state.generation == 2:
                told = (*state.events, not state.is_captured)
                yield f"state {number} is committed, of the other table", state._replace(events=told)
        if not state.is_broken and state.generation == 1:
            yield "a table is altered: generation 1 no longer works", state._replace(is_broken=True)
        if state.applying == _NONE:
            begun = state._replace(applying=_CAPTURED)
            if not self._fills_after:
                begun = begun._replace(fill=2)
            yield "syncer apply begins, with generation 2", begun
        for at, hand in enumerate(state.workers):
            if hand.phase:
                yield f"worker {'AB'[at]} is killed", _with(state, at, Hand())

    def unlevel(self, state: Halting) -> str | None:
        if state.is_halted:
            return "generation 2 is halted, though it works" if state.generation == 2 else None
        if state.shown != (len(state.events), state.generation):
            return (
                f"Elasticsearch shows state {state.shown[0]} in form {state.shown[1]} for good, Postgres is at state "
                f"{len(state.events)}, and generation {state.generation} is in force"
            )
        return None

    def canonical(self, state: Halting) -> Halting:
        one, two = state.workers
        rank = ranked((state.version, one.version, two.version))
        one, two = one._replace(version=rank[one.version]), two._replace(version=rank[two.version])
        return state._replace(version=rank[state.version], workers=(one, two) if one <= two else (two, one))


def _with(state: Halting, at: int, hand: Hand) -> Halting:
    return state._replace(workers=placed(state.workers, at, hand))
