"""Finding: what a check is, and what came of it.

A check looks at one thing and yields a `Symptom` for whatever is not well; if it yields none, all is well. What it
cannot look at, for want of a privilege or of a server, it says by an error: that is no symptom of the thing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from syncer.doctor.patient import Patient
from syncer.doctor.symptom import Group, Mend, Severity, Symptom

Look = Callable[[Patient], Iterable[Symptom]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing to look at.

    Args:
        id: Stable: ``server.thing``.
        claim: What is so if all is well.
        why: What rests on it.
        promises: Which promises, by number: see `syncer`.
        look: Looks.
    """

    id: str
    claim: str
    why: str
    promises: tuple[int, ...]
    look: Look

    @property
    def group(self) -> Group:
        """Whose check it is."""
        return Group(self.id.partition(".")[0])


def check(id_: str, claim: str, *, promises: tuple[int, ...], why: str) -> Callable[[Look], Check]:
    """Make a check of a function that looks."""
    return lambda look: Check(id=id_, claim=claim, why=why, promises=promises, look=look)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What came of a check; one that has found several things has several findings.

    Args:
        check: Which.
        severity: How bad it is.
        found: What was found; if it could not be looked at, why not; empty if all is well.
        mend: What to do, if there is something.
    """

    check: Check
    severity: Severity
    found: str = ""
    mend: Mend | None = None
