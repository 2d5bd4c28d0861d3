"""Problems: what `syncer plan` reports about a definition, from a refusal down to a note."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from syncer.base.postgres import Connection
from syncer.lineage.remarks import remarks


class Severity(StrEnum):
    """How bad a problem is, the worst first."""

    REFUSED = "refused"
    """apply does not accept the definition."""
    ERROR = "error"
    """Documents cannot be written."""
    WARNING = "warning"
    """Documents are written, probably not as intended."""
    NOTE = "note"
    """It may be intended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem of a definition, and what to do about it."""

    severity: Severity
    message: str
    action: str = ""

    @property
    def is_error(self) -> bool:
        """Whether apply refuses it, or cannot write all documents."""
        return self.severity in (Severity.REFUSED, Severity.ERROR)


def notes(connection: Connection, select: str, name: str) -> Iterator[Problem]:
    """Yield what depends on the session, on chance or on the date of the build; ``name`` is for errors."""
    for remark in remarks(connection, select, name):
        yield Problem(severity=Severity.NOTE, message=remark.message, action=remark.action)
