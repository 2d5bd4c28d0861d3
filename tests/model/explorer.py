"""Explorer: every state that a model can reach, breadth first; the shortest way to one that is wrong.

A model says which steps there are from a state. Nothing is said of when they are taken: a process that stalls is one
whose steps are not taken for a while, and that is explored, since every order of steps is. Of two kinds of steps

- the *protocol's* are taken in the end: where none is left, all is done, and what is not right then never will be;
- the *world's* may be taken or not: an application commits, a process dies, an hour passes.

Two states that differ in nothing but the names of equal processes, or in how far apart versions are, behave alike:
`Model.canonical` makes them one. The way that is printed is found again without that, so that names stay as they are.
"""

from __future__ import annotations

import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, TypeVar

State = TypeVar("State", bound=tuple[object, ...])
Item = TypeVar("Item")
Step = tuple[str, State]
"""What happens, in words, and what is so then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Something that the code must not break.

    Args:
        name: What it is called with ``--without``.
        says: The rule.
        kept_by: The module of syncer that keeps it.
        otherwise: What happens without it.
    """

    name: str
    says: str
    kept_by: str
    otherwise: str


class Model(ABC, Generic[State]):
    """A part of the protocol.

    Args:
        without: Names of rules that are not kept.
        allowed: Names of what may happen besides, though it is known to be more than the protocol bears.
        is_large: Whether to explore further than continuous integration has time for.

    Attributes:
        name: What it is called.
        about: What it shows.
        rules: Those that it keeps, each of which can be taken out.
        beyond: What it does not bear, by name, in words: found by the model, and left so.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    rules: ClassVar[tuple[Rule, ...]]
    beyond: ClassVar[Mapping[str, str]] = {}

    def __init__(self, *, without: Collection[str] = (), allowed: Collection[str] = (), is_large: bool = False) -> None:
        unknown = set(without) - {rule.name for rule in self.rules}
        if unknown:
            raise ValueError(f"{self.name} has no rule {', '.join(sorted(unknown))}")
        self._without = frozenset(without)
        self.allowed = frozenset(allowed)
        self.is_large = is_large
        self.prepare()

    def prepare(self) -> None:
        """Set bounds, and look once which rules are kept."""

    def keeps(self, rule: Rule) -> bool:
        """Whether a rule is kept."""
        return rule.name not in self._without

    @property
    @abstractmethod
    def bounds(self) -> str:
        """How far it goes, in words."""

    @abstractmethod
    def initial(self) -> State:
        """How it begins."""

    @abstractmethod
    def protocol(self, state: State) -> Iterator[Step[State]]:
        """What syncer does next, each as one step that nobody can come between."""

    @abstractmethod
    def world(self, state: State) -> Iterator[Step[State]]:
        """What may happen to it."""

    def wrong(self, state: State) -> str | None:  # noqa: ARG002 - most have nothing to say here
        """What must never be so, in words."""
        return None

    @abstractmethod
    def unlevel(self, state: State) -> str | None:
        """What is not as it should be once nothing is left to do, in words."""

    def canonical(self, state: State) -> State:
        """The one state that stands for all that behave alike."""
        return state


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A shortest way to a state that is wrong.

    Args:
        steps: What happens, in words.
        wrong: What is wrong then.
    """

    steps: tuple[str, ...]
    wrong: str

    def lines(self) -> Iterator[str]:
        """The same to be read."""
        width = len(str(len(self.steps)))
        for number, step in enumerate(self.steps, 1):
            yield f"{number:>{width}}. {step}"
        yield f"{'':>{width}}  {self.wrong}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """What was found.

    Args:
        states: How many states were met.
        transitions: How many steps were taken.
        ends: How many states left nothing to do.
        depth: How many steps the farthest state is away.
        seconds: How much processor time it took.
        trace: What is wrong, if anything is; then not all was explored.
    """

    states: int
    transitions: int
    ends: int
    depth: int
    seconds: float
    trace: Trace | None


def explore(model: Model[State]) -> Explored:
    """Visit every state, or as many as it takes to find one that is wrong."""
    began = time.process_time()
    gc.disable()  # there is no garbage, and looking for it takes longer and longer
    try:
        found = _explored(model)
    finally:
        gc.enable()
    return replace(found, seconds=time.process_time() - began)


def _explored(model: Model[State]) -> Explored:
    first = model.initial()
    before: dict[State, State | None] = {model.canonical(first): None}
    transitions = ends = depth = 0
    layer = list(before)
    wrong, where = None, None
    while layer and wrong is None:
        following: list[State] = []
        for state in layer:
            wrong = model.wrong(state)
            is_end = True
            if wrong is None:
                for is_ours, steps in ((True, model.protocol(state)), (False, model.world(state))):
                    for _, after in steps:
                        transitions += 1
                        if is_ours:
                            is_end = False
                        known = model.canonical(after)
                        if known not in before:
                            before[known] = state
                            following.append(known)
                if is_end:
                    ends += 1
                    wrong = model.unlevel(state)
            if wrong is not None:
                where = state
                break
        else:
            depth += bool(following)
            layer = following
    trace = None if wrong is None or where is None else Trace(steps=_steps(model, before, where), wrong=wrong)
    return Explored(
        states=len(before),
        transitions=transitions,
        ends=ends,
        depth=depth,
        seconds=0,
        trace=trace,
    )


def _steps(model: Model[State], before: dict[State, State | None], last: State) -> tuple[str, ...]:
    """The steps to a state, found again from the first one on."""
    way = [last]
    while (previous := before[way[-1]]) is not None:
        way.append(previous)
    words, now = [], model.initial()
    for wanted in reversed(way[:-1]):
        said, now = next(step for step in _all(model, now) if model.canonical(step[1]) == wanted)
        words.append(said)
    return tuple(words)


def _all(model: Model[State], state: State) -> Iterable[Step[State]]:
    yield from model.protocol(state)
    yield from model.world(state)


def ranked(versions: Iterable[int]) -> dict[int, int]:
    """Versions are only ever compared: their order is all that counts. None is 0, and stays so."""
    return {version: rank for rank, version in enumerate(sorted({0, *versions}))}


def placed(many: tuple[Item, ...], at: int, one: Item) -> tuple[Item, ...]:
    """The same, with another one in one place."""
    return (*many[:at], one, *many[at + 1 :])
