"""A mutation replaces a named part of a module, whatever kind of part that is; one that would not is refused."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from tests import mutations
from tests.mutations import DOES_NOTHING, SAYS_NO, Instead, Is, Lacks, Replaces, Returns

SOURCE = """
import functools

LIMIT = 5
QUERY = "SELECT 1 FOR UPDATE"
PART = "WHERE id = $1"
WHOLE = f"SELECT {PART}"
CODES = frozenset({1, 2})

def twice(one):
    return 2 * one

def four_times(one, *, doubled=twice):
    return 2 * twice(one)

@functools.cache
def cached(one):
    return one

class Counter:
    STEP = 1

    def __init__(self):
        self.count = 1

    def add(self, number, *, again=False):
        self.count += number
        return self.count

    @property
    def is_over(self):
        return True

    @classmethod
    def made(cls, count):
        made = cls()
        made.count = count
        return made

    @staticmethod
    def zero():
        return 0
"""
NAME = "a_module_of_test_mutations"


@pytest.fixture
def module() -> Iterator[ModuleType]:
    """A module as it was just executed."""
    made = sys.modules[NAME] = ModuleType(NAME)
    exec(SOURCE, made.__dict__)  # noqa: S102 - our own
    yield made
    del sys.modules[NAME]


def one_more(original: Instead, one: int) -> int:
    """One more than it is."""
    return int(original(one)) + 1


def adds_twice(original: Instead, self: Any, number: int, *, again: bool = False) -> int:
    """Each number is added once more."""
    original(self, number, again=again)
    return int(original(self, number, again=again))


def of_another(original: Instead, cls: type, count: int) -> object:
    """It has another count."""
    return original(cls, count + 1)


def of_other_names(original: Instead, other: int) -> int:
    """It cannot be called by name."""
    return int(original(other))


def patch(module: ModuleType, path: str, instead: Instead) -> None:
    """As a process does that a test starts: the replacement goes by name."""
    mutations.patch(module, path, lambda: mutations.decoded(mutations.encoded(f"{NAME}:{path}", instead)["instead"]))


EFFECTS: dict[str, tuple[str, Instead, Callable[[Any], object], object]] = {
    "function": ("twice", one_more, lambda it: it.twice(2), 5),
    "function that another one calls": ("twice", one_more, lambda it: it.four_times(2), 10),
    "function that is cached": ("cached", one_more, lambda it: it.cached(2), 3),
    "function that does nothing": ("twice", DOES_NOTHING, lambda it: it.twice(2), None),
    "method": ("Counter.add", adds_twice, lambda it: it.Counter().add(2), 5),
    "class method": ("Counter.made", of_another, lambda it: it.Counter.made(1).count, 2),
    "static method": ("Counter.zero", Returns(1), lambda it: it.Counter.zero(), 1),
    "property": ("Counter.is_over", SAYS_NO, lambda it: it.Counter().is_over, False),
    "constant": ("LIMIT", Is(6), lambda it: it.LIMIT, 6),
    "constant of a class": ("Counter.STEP", Is(2), lambda it: it.Counter().STEP, 2),
    "text": ("QUERY", Replaces(" FOR UPDATE", ""), lambda it: it.QUERY, "SELECT 1"),
    "set": ("CODES", Lacks(frozenset({2})), lambda it: it.CODES, frozenset({1})),
}


@pytest.mark.parametrize(("path", "instead", "ask", "expected"), EFFECTS.values(), ids=EFFECTS.keys())
def test_a_named_part_is_replaced(
    module: ModuleType, path: str, instead: Instead, ask: Callable[[Any], object], expected: object
) -> None:
    """Each kind of part; its name leads to the replacement, for those of the same module too."""
    target = f"{NAME}:{path}"
    if path != "twice":  # of which the module keeps another reference: see below
        assert mutations.misfit(target, instead) is None
    patch(module, path, instead)
    assert ask(module) == expected


REFUSED: dict[str, tuple[str, Instead, str]] = {
    "nothing of that name": ("absent", DOES_NOTHING, "there is no"),
    "nothing of that name in a class": ("Counter.absent", DOES_NOTHING, "there is no"),
    "a default is the same function": ("twice", one_more, "is called as"),
    "other names of parameters": ("cached", of_other_names, "takes ['other']"),
    "too few parameters": ("Counter.add", functools.partial(one_more), "takes ['one']"),
    "the same value": ("LIMIT", Is(5), "becomes 5"),
    "a value of another type": ("LIMIT", Is("5"), "becomes '5'"),
    "a text of which another one was built": ("PART", Is("WHERE false"), "is built from PART"),
}


@pytest.mark.parametrize(("path", "instead", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_a_mutation_that_does_not_fit_is_refused(module: ModuleType, path: str, instead: Instead, said: str) -> None:
    """Before any server is started."""
    assert vars(module)
    assert said in (mutations.misfit(f"{NAME}:{path}", instead) or "")


@pytest.mark.parametrize("instead", [Replaces("FOR SHARE", ""), Replaces("E", "")], ids=["absent", "twice"])
def test_a_text_is_replaced_where_it_occurs_once(instead: Replaces) -> None:
    """Else the mutation would change nothing, or more than it says."""
    with pytest.raises(ValueError, match="does not occur exactly once"):
        instead("SELECT 1")


def test_only_members_of_a_set_are_taken_away() -> None:
    """One that is not there would not be missed."""
    with pytest.raises(ValueError, match="not all of"):
        Lacks(frozenset({3}))(frozenset({1, 2}))
