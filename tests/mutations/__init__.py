"""Mutations: what stands in the place of a named part of syncer when a rule is taken out.

A rule names its target as ``module:qualified.name``. The target is patched in every process that a test starts, right
after its module has been executed, so every ``from module import name`` gets the replacement. The replacement is
plain Python and receives the original first:

- For a function, a method or a property it takes the original's parameters after that, by the same names. It is
  imported at the first call, so it may import anything. Here is what many rules share: `SAYS_YES`, `SAYS_NO`,
  `DOES_NOTHING` and `Returns`. What one rule needs stands in a module beside this one, called like what it patches.
- For a constant it is called once, with the value, and returns another one: `Is`, `Replaces` and `Lacks`. Name the
  constant that is used in the end: one that other texts are built from at import is too late to patch, and refused. It
  is imported at once, so it should import little.

`misfit` says what is wrong with a rule's target or replacement; tests/unit/test_proofs.py asks it of every rule. This
module is imported by daemons, so it imports neither syncer nor pytest.
"""

from __future__ import annotations

import base64
import functools
import importlib
import inspect
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

MUTATION = "SYNCER_TEST_MUTATION"
"""The environment variable that tells a process which rule is taken out: see `encoded`."""

Instead = Callable[..., Any]
"""A replacement; see above."""


@dataclass(frozen=True, slots=True)
class Returns:
    """For a function: it does nothing, and returns this value."""

    value: object

    def __call__(self, _original: Instead, *_args: object, **_kwargs: object) -> object:
        """The value."""
        return self.value


DOES_NOTHING = Returns(None)
SAYS_YES = Returns(value=True)
SAYS_NO = Returns(value=False)


@dataclass(frozen=True, slots=True)
class Is:
    """For a constant: another value of the same type."""

    value: object

    def __call__(self, _original: object) -> object:
        """The other value."""
        return self.value


@dataclass(frozen=True, slots=True)
class Replaces:
    """For a constant text, SQL as a rule: a part of it, which occurs once, is replaced."""

    old: str
    new: str

    def __call__(self, original: str) -> str:
        """The changed text."""
        if original.count(self.old) != 1:
            raise ValueError(f"{self.old!r} does not occur exactly once in {original!r}")
        return original.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Lacks:
    """For a constant set: without some of its members."""

    members: frozenset[object]

    def __call__(self, original: frozenset[object]) -> frozenset[object]:
        """The others."""
        if not self.members <= original:
            raise ValueError(f"not all of {set(self.members)} are in {set(original)}")
        return original - self.members


# Applying


def encoded(target: str, instead: Instead) -> dict[str, str]:
    """A mutation, as JSON can carry it to other processes: functions go by name."""
    return {"target": target, "instead": base64.b85encode(pickle.dumps(instead)).decode()}


def decoded(instead: str) -> Instead:
    """The replacement; imports its module."""
    found: Instead = pickle.loads(base64.b85decode(instead))  # noqa: S301 - our own
    return found


def patch(module: ModuleType, path: str, load: Callable[[], Instead]) -> None:
    """Replace a part of a module.

    Args:
        module: It has just been executed.
        path: The qualified name in it.
        load: Returns the replacement.
    """
    owner, name, original = located(module, path)
    setattr(owner, name, _patched(original, functools.cache(load)))


def located(module: ModuleType, path: str) -> tuple[Any, str, Any]:
    """Where a name is bound, and to what; a method is found only in the class that defines it.

    Raises:
        LookupError: There is none.
    """
    owner: Any = module
    *parents, name = path.split(".")
    for one in parents:
        owner = vars(owner)[one]
    return owner, name, vars(owner)[name]


def _patched(original: Any, load: Callable[[], Instead]) -> Any:
    if isinstance(original, property):
        getter = original.fget
        assert getter is not None
        return property(_wrapped(getter, load), original.fset, original.fdel, original.__doc__)
    if isinstance(original, staticmethod | classmethod):
        return type(original)(_wrapped(original.__func__, load))
    if _is_function(original):
        return _wrapped(original, load)
    return load()(original)


def _wrapped(function: Callable[..., Any], load: Callable[[], Instead]) -> Callable[..., Any]:
    @functools.wraps(function)
    def mutated(*args: object, **kwargs: object) -> object:
        return load()(function, *args, **kwargs)

    return mutated


def _is_function(one: object) -> bool:
    return isinstance(one, FunctionType) or hasattr(one, "cache_info")


# Checking


def misfit(target: str, instead: Instead) -> str | None:
    """Why a mutation cannot be applied, or would change nothing; None if all is well."""
    module_name, _, path = target.partition(":")
    module = importlib.import_module(module_name)
    try:
        owner, name, original = located(module, path)
    except LookupError:
        return f"there is no {target}"
    if not isinstance(original, property | staticmethod | classmethod) and not _is_function(original):
        return _misfit_of_constant(module, owner, name, original, instead)
    function: Any = original.fget if isinstance(original, property) else getattr(original, "__func__", original)
    copies = [place for place, one in _held(module) if one is function and place != f"{module_name}.{path}"]
    if copies:
        return f"{target} is called as {copies} too"
    return _misfit_of_signature(function, instead)


def _misfit_of_constant(module: ModuleType, owner: Any, name: str, original: Any, instead: Instead) -> str | None:
    changed = instead(original)
    if type(changed) is not type(original) or changed == original:
        return f"{name} becomes {changed!r}"
    if isinstance(original, str):
        for place, one in _held(module):
            if isinstance(one, str) and original in one and place != f"{_name(owner)}.{name}":
                return f"{place} is built from {name} before that is patched"
    return None


def _misfit_of_signature(function: Callable[..., Any], instead: Instead) -> str | None:
    first, *others = inspect.signature(instead).parameters.values()
    if first.kind is first.VAR_POSITIONAL:
        return "the replacement does not take the original"
    expected = _named(inspect.signature(function).parameters.values())
    named = _named(others)
    unknown = {one.name for one in named} - {one.name for one in expected}
    if unknown:
        return f"the replacement takes {sorted(unknown)}, which {function.__qualname__} does not"
    required = [one for one in expected if one.default is one.empty]
    for given in (expected, required):
        positional = [one.name for one in given if one.kind is not one.KEYWORD_ONLY]
        by_name = {one.name: one.name for one in given if one.kind is one.KEYWORD_ONLY}
        try:
            bound = inspect.signature(instead).bind(function, *positional, **by_name).arguments
        except TypeError as error:
            return f"the replacement does not fit {function.__qualname__}: {error}"
        if misplaced := [one.name for one in named if bound.get(one.name, one.name) != one.name]:
            return f"the replacement has {misplaced} at other places than {function.__qualname__}"
    return None


def _named(parameters: Iterable[inspect.Parameter]) -> list[inspect.Parameter]:
    return [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]


def _held(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Whatever a module, its classes, its collections and the defaults of its functions hold, and where."""
    for name, one in vars(module).items():
        if not name.startswith("__"):
            yield from _held_by(f"{module.__name__}.{name}", one, module)


def _held_by(place: str, one: object, module: ModuleType) -> Iterator[tuple[str, object]]:
    yield place, one
    if isinstance(one, type) and one.__module__ == module.__name__:
        for name, inner in vars(one).items():
            if not name.startswith("__"):
                yield from _held_by(f"{place}.{name}", inner, module)
    elif isinstance(one, FunctionType) and one.__module__ == module.__name__:
        for number, default in enumerate([*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]):
            yield f"default {number} of {place}", default
    elif isinstance(one, Mapping):
        yield from ((f"{place}[{key!r}]", inner) for key, inner in one.items())
    elif isinstance(one, tuple | list | set | frozenset):
        yield from ((f"a part of {place}", inner) for inner in one)


def _name(owner: Any) -> str:
    return owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"
