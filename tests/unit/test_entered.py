"""Numbers and words that are typed at a command line."""

from __future__ import annotations

import math

import pytest
import typer
from hypothesis import given, strategies as st

from syncer.entered import number, whole, word
from syncer.locks import Recovery


@given(
    at=st.integers() | st.integers(10**308, 10**4000).map(lambda one: one * (-1) ** one),
    least=st.integers(),
    most=st.none() | st.integers(),
)
def test_a_whole_number_is_read_in_its_bounds(at: int, least: int, most: int | None) -> None:
    """One within them is what was typed; of any other the bounds are said, in few words."""
    if at >= least and (most is None or at <= most):
        assert whole(least=least, most=most)(str(at)) == at
        return
    with pytest.raises(typer.BadParameter, match="out of bounds") as refused:
        whole(least=least, most=most)(str(at))
    assert len(refused.value.message) < 250


@given(said=st.text() | st.sampled_from(["nan", "inf", "-inf", "1e999", "abc", ""]))
def test_a_number_is_finite_or_refused(said: str) -> None:
    """Whatever is typed, what comes of it has an end, or the option is told that it is no number."""
    try:
        value = number(least=0)(said)
    except typer.BadParameter:
        return
    assert math.isfinite(value)
    assert value >= 0


def test_a_word_is_one_of_those_that_are_said() -> None:
    """A word that is none of them is answered with all of them."""
    assert word(Recovery)("roll-back") is Recovery.ROLL_BACK
    with pytest.raises(typer.BadParameter, match="finish, roll-back"):
        word(Recovery)("undo")
