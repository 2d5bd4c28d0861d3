"""What repeats itself is said once, and then counted; no number is lost."""

from __future__ import annotations

from syncer.base.log_limit import Repeated

Said = list[tuple[str, int, str]]


def counting(*, seconds: float) -> tuple[Repeated[str, str], Said]:
    """One that notes what it says."""
    said: Said = []
    return Repeated(lambda *one: said.append(one), seconds=seconds), said


def test_the_first_is_said_at_once_and_the_others_at_the_end() -> None:
    """Each kind by itself; the example is the last."""
    repeated, said = counting(seconds=3600)
    for number in range(5):
        repeated.note("a", f"example {number}", 10)
    repeated.note("b", "other")
    assert said == [("a", 10, "example 0"), ("b", 1, "other")]
    repeated.tell()
    assert len(said) == 2
    repeated.flush()
    assert said[2:] == [("a", 40, "example 4")]
    repeated.note("a", "again")
    assert said[3:] == [("a", 1, "again")]


def test_what_has_been_counted_for_long_enough_is_said() -> None:
    """Without waiting for another one; once it has not happened for as long, it is as if it had never."""
    repeated, said = counting(seconds=0)
    repeated.note("a", "first")
    repeated.note("a", "second", 2)
    assert said == [("a", 1, "first"), ("a", 2, "second")]
    repeated.tell()
    repeated.note("a", "third")
    assert said[2:] == [("a", 1, "third")]


def test_there_is_no_end_of_kinds() -> None:
    """However many there are, memory is bounded, and all are said."""
    repeated, said = counting(seconds=3600)
    for number in range(2500):
        repeated.note(str(number), "example")
        repeated.note(str(number), "example")
    repeated.flush()
    assert sum(number for _, number, _ in said) == 5000
    assert len(repeated._counts) == 0
