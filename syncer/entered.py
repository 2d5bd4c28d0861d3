"""Entered: numbers and words as they are typed at a command line, and what is said of those that will not do.

Whoever mistypes a value is told what it is to be, in the words of a person, whatever reads the command line.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

import typer

_LONG_NUMBER = 40

_Word = TypeVar("_Word", bound=StrEnum)


def whole(*, least: int, most: int | None = None) -> Callable[[str | int], int]:
    """What reads a whole number in these bounds."""

    def read(said: str | int) -> int:
        try:
            number = int(said)
        except ValueError:
            raise typer.BadParameter(f"{said!r} is not a whole number, as in: {max(least, 1)}") from None
        return _within(number, least, most)

    return read


def number(*, least: float, most: float | None = None) -> Callable[[str | float], float]:
    """What reads a number in these bounds; one that is none, or without end, is in no bounds."""

    def read(said: str | float) -> float:
        try:
            value = float(said)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise typer.BadParameter(f"{said!r} is not a number, as in: {max(least, 1):g}")
        return _within(value, least, most)

    return read


def word(kind: type[_Word]) -> Callable[[str | _Word], _Word]:
    """What reads one of these words."""

    def read(said: str | _Word) -> _Word:
        try:
            return kind(said)
        except ValueError:
            raise typer.BadParameter(f"{said!r} is none of these: {', '.join(kind)}") from None

    return read


_Number = TypeVar("_Number", int, float)


def _within(value: _Number, least: _Number, most: _Number | None) -> _Number:
    if value >= least and (most is None or value <= most):
        return value
    bounds = f"at least {_said(least)}" if most is None else f"between {_said(least)} and {_said(most)}"
    raise typer.BadParameter(f"{_said(value)} is out of bounds: it is {bounds}")


def _said(value: float) -> str:
    if isinstance(value, float):
        return f"{value:,.10g}"
    said = f"{value:,}"  # as a float it may have no end
    return said if len(said) <= _LONG_NUMBER else f"{said[:_LONG_NUMBER]}… ({len(str(abs(value)))} digits)"
