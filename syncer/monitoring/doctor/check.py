"""Check: one function that looks at one thing, and yields a finding with its fix for each problem."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from syncer.monitoring.doctor.deployment import Deployment


class Severity(StrEnum):
    """How bad a finding is."""

    WRONG = "wrong"
    """A guarantee does not hold, or will not."""
    CONSIDER = "consider"
    """The guarantees hold, but an operator should decide whether this is intended."""
    UNSEEN = "unseen"
    """The check could not be made."""
    WELL = "well"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """What to do.

    Args:
        how: ``sql``: statements for psql, one a line. ``shell``: a command. ``advice``: for a person to decide.
        text: What to paste, or the advice.
        note: What to know before.
    """

    how: Literal["sql", "shell", "advice"]
    text: str
    note: str = ""


def sql(text: str, note: str = "") -> Fix:
    """A fix in psql, in the database that syncer follows."""
    return Fix(how="sql", text=text, note=note)


def shell(text: str, note: str = "") -> Fix:
    """A fix in a shell."""
    return Fix(how="shell", text=text, note=note)


def advice(text: str) -> Fix:
    """A fix that needs a decision."""
    return Fix(how="advice", text=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found.

    Args:
        severity: How bad it is.
        found: The problem, as a sentence without a full stop; the reason if the check could not be made; else empty.
        fix: What to do.
    """

    severity: Severity
    found: str = ""
    fix: Fix | None = None


def wrong(found: str, fix: Fix) -> Finding:
    """A guarantee does not hold."""
    return Finding(severity=Severity.WRONG, found=found, fix=fix)


def consider(found: str, fix: Fix) -> Finding:
    """An operator should decide."""
    return Finding(severity=Severity.CONSIDER, found=found, fix=fix)


Look = Callable[[Deployment], Iterable[Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing to look at.

    Args:
        id: A stable name: ``server.thing``.
        claim: What holds if all is well.
        why: What depends on it.
        guarantees: The numbers of the guarantees that rest on it: see README.md.
        look: Yields a finding for each problem; raises an error if it cannot look.
    """

    id: str
    claim: str
    why: str
    guarantees: tuple[int, ...]
    look: Look

    @property
    def server(self) -> str:
        """The server that it looks at."""
        return self.id.partition(".")[0]


def check(id_: str, claim: str, *guarantees: int) -> Callable[[Look], Check]:
    """Make a check of a function; its docstring says what depends on it."""

    def make(look: Look) -> Check:
        return Check(id=id_, claim=claim, why=" ".join((look.__doc__ or "").split()), guarantees=guarantees, look=look)

    return make
