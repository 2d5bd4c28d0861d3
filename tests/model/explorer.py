"""The explorer: visits every state that a model can reach, breadth first, and finds the shortest path to a wrong one.

A model yields the possible steps from each state. It does not say when a step is taken. A stalled process is therefore
covered: it is one whose steps are not taken for a while, and the explorer tries every order of steps. There are two
kinds of steps:

- Steps of the *protocol* are taken eventually. If a state has none left, all work is done, and what is wrong there
  stays wrong.
- Steps of the *world* may be taken or not: an application commits, a process dies, an hour passes.

Two states behave alike if they differ only in the names of identical processes, or in the gaps between versions.
`Model.canonical` maps them to one state. The printed path is computed again without that mapping, so that its names are
consistent.
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
"""What happens, in words, and the state after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule of the protocol, which the code must keep.

    Args:
        name: Its name, also for ``--without``.
        says: The rule, as a sentence without its full stop.
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
        without: The names of the rules to leave out.
        allowed: The names of the events in `beyond` that may happen.
        is_large: Whether to use larger bounds than continuous integration has time for.

    Attributes:
        about: What it shows.
        rules: The rules that it keeps; each can be left out.
        beyond: Events that the protocol is known not to survive: name and description.
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
        """Set the bounds, and look up the rules that are checked often."""

    def keeps(self, rule: Rule) -> bool:
        """Return whether the model keeps a rule."""
        return rule.name not in self._without

    @property
    @abstractmethod
    def bounds(self) -> str:
        """The bounds, in words."""

    @abstractmethod
    def initial(self) -> State:
        """Return the first state."""

    @abstractmethod
    def protocol(self, state: State) -> Iterator[Step[State]]:
        """Yield what syncer may do next, each as one atomic step."""

    @abstractmethod
    def world(self, state: State) -> Iterator[Step[State]]:
        """Yield what may happen to syncer next."""

    def wrong(self, state: State) -> str | None:  # noqa: ARG002 - most models have no such check
        """Return what is wrong with a state at any time, in words."""
        return None

    @abstractmethod
    def unequal(self, state: State) -> str | None:
        """Return what is wrong with a state that has no work left, in words."""

    def canonical(self, state: State) -> State:
        """Return the state that represents all states that behave alike."""
        return state


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A shortest path to a wrong state.

    Args:
        steps: What happens, in words.
        wrong: What is wrong with the last state, in words.
    """

    steps: tuple[str, ...]
    wrong: str

    def lines(self) -> Iterator[str]:
        """Yield the lines to print."""
        width = len(str(len(self.steps)))
        for number, step in enumerate(self.steps, 1):
            yield f"{number:>{width}}. {step}"
        yield f"{'':>{width}}  {self.wrong}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """The result of an exploration.

    Args:
        states: The number of states visited.
        transitions: The number of steps taken.
        ends: The number of states with no work left.
        depth: The distance of the farthest state, in steps.
        seconds: The processor time used.
        trace: The path to a wrong state, if there is one; the exploration stops there.
    """

    states: int
    transitions: int
    ends: int
    depth: int
    seconds: float
    trace: Trace | None


def explore(model: Model[State]) -> Explored:
    """Visit every state, or stop at the first wrong one."""
    began = time.process_time()
    gc.disable()  # there is no garbage, and each search for it takes longer
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
                    wrong = model.unequal(state)
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
    """Return the steps that lead to a state, computed again from the first state."""
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
    """Map versions to their ranks: versions are only compared, so only their order counts. 0 means none and stays 0."""
    return {version: rank for rank, version in enumerate(sorted({0, *versions}))}


def placed(many: tuple[Item, ...], at: int, one: Item) -> tuple[Item, ...]:
    """Return a copy with the item at one position replaced."""
    return (*many[:at], one, *many[at + 1 :])
