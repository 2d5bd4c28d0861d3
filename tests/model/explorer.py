"""The explorer: visits every state that a model can reach, breadth first, and finds the shortest path to a wrong one.

A model yields the possible steps from each state. It does not say when a step is taken: a stalled process is one whose
steps are not taken for a while, and the explorer tries every order of steps. There are two kinds of steps:

- Steps of the *protocol* are taken eventually. If a state has none left, all work is done, and what is wrong there
  stays wrong.
- Steps of the *world* may be taken or not: an application commits, a process dies, an hour passes.

Two states behave alike if they differ only in the names of identical processes, or in the gaps between versions.
`Model.canonical` maps them to one state. The printed path is computed again without that mapping, so that its names are
consistent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

State = TypeVar("State", bound=tuple[object, ...])
Item = TypeVar("Item")
Step = tuple[str, State]
"""What happens, in words, and the state after it."""


class Model(ABC, Generic[State]):
    """A part of the protocol. Its docstring says what it shows; its module's name is its name.

    What it annotates as bool are its rules and assumptions, which docs/protocol.md explains: whether each is kept.

    Args:
        without: The name of a rule to leave out.

    Attributes:
        bounds: How much happens in it.
        first: The first state.
        identical: The fields of a state that hold identical processes.
    """

    bounds: ClassVar[str]
    initial: ClassVar[Any]
    identical: ClassVar[tuple[str, ...]] = ()
    rules: ClassVar[tuple[str, ...]]

    def __init__(self, *, without: str = "") -> None:
        for rule in self.rules:
            setattr(self, rule, rule != without)

    def __init_subclass__(cls) -> None:
        """Collect the rules, and the fields of a state that are versions, or whose items have one."""
        cls.name = cls.__module__.rpartition(".")[2]
        cls.about = (cls.__doc__ or "")[0].lower() + (cls.__doc__ or "")[1:].rstrip(".")
        cls.rules = tuple(cls.__annotations__)
        fields = cls.initial._asdict()
        cls._versions = [field for field in fields if field.endswith("version")]
        cls._versioned = [
            field
            for field, value in fields.items()
            if isinstance(value, tuple) and value and hasattr(value[0], "version")
        ]

    name: ClassVar[str]
    about: ClassVar[str]
    _versions: ClassVar[list[str]]
    _versioned: ClassVar[list[str]]

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

    def canonical(self, state: Any) -> Any:
        """Return the state that represents all that behave alike: it has ranks for versions, and sorted processes."""
        versions = {0, *[getattr(state, field) for field in self._versions]}
        for field in self._versioned:
            versions.update([item.version for item in getattr(state, field)])
        if max(versions) >= len(versions):  # else each version is its own rank
            ranks = {version: rank for rank, version in enumerate(sorted(versions))}
            changed: dict[str, Any] = {field: ranks[getattr(state, field)] for field in self._versions}
            for field in self._versioned:
                items = getattr(state, field)
                changed[field] = tuple([item._replace(version=ranks[item.version]) for item in items])
            state = state._replace(**changed)
        for field in self.identical:
            items = tuple(sorted(getattr(state, field)))
            if items != getattr(state, field):
                state = state._replace(**{field: items})
        return state


class Explored(NamedTuple):
    """The result of an exploration.

    Args:
        states: The number of states visited.
        steps: The number of steps taken.
        ends: The number of states with no work left.
        path: The steps to a wrong state, in words, and what is wrong there; empty if there is none.
    """

    states: int
    steps: int
    ends: int
    path: tuple[str, ...] = ()


def explore(model: Model[State]) -> Explored:
    """Visit every state, or stop at the first wrong one."""
    initial = model.canonical(model.initial)
    predecessors: dict[State, State | None] = {initial: None}
    queue = [initial]
    steps = ends = 0
    for state in queue:  # which grows meanwhile
        ours = [successor for _, successor in model.protocol(state)]
        ends += not ours
        wrong = model.wrong(state) or (None if ours else model.unequal(state))
        if wrong:
            return Explored(len(predecessors), steps, ends, path=(*_path(model, predecessors, state), wrong))
        for successor in chain(ours, (successor for _, successor in model.world(state))):
            steps += 1
            representative = model.canonical(successor)
            size = len(predecessors)
            predecessors.setdefault(representative, state)  # hashes the state once
            if len(predecessors) > size:
                queue.append(representative)
    return Explored(len(predecessors), steps, ends)


def _path(model: Model[State], predecessors: dict[State, State | None], end: State) -> list[str]:
    """Return the steps that lead to a state, computed again from the first state."""
    states = [end]
    while (previous := predecessors[states[-1]]) is not None:
        states.append(previous)
    words, state = [], model.initial
    for target in reversed(states[:-1]):
        steps = chain(model.protocol(state), model.world(state))
        action, state = next(step for step in steps if model.canonical(step[1]) == target)
        words.append(action)
    return words


def processes(items: Iterable[Item], kind: str) -> Iterator[tuple[int, Item, str]]:
    """Yield each of some identical processes with its place and its name."""
    return ((slot, item, f"{kind} {'AB'[slot]}") for slot, item in enumerate(items))


def put(state: State, field: str, slot: int, item: object) -> State:
    """Return the state with one item of a field replaced."""
    items = getattr(state, field)
    changed: State = cast("Any", state)._replace(**{field: (*items[:slot], item, *items[slot + 1 :])})
    return changed
