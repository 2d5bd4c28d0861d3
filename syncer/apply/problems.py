"""Problems: what `syncer plan` reports about a definition, from a refusal down to a note."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from syncer.base.postgres import Connection
from syncer.lineage import catalog
from syncer.lineage.remarks import RemarkKind, remarks


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


_REMARKS = {
    RemarkKind.ORDER: (
        "has no ORDER BY: the elements may come in another order each time, and verify then reports a difference",
        "Add ORDER BY inside the call, as in: jsonb_agg(c.name ORDER BY c.id).",
    ),
    RemarkKind.TIME_ZONE: (
        "depends on TimeZone: syncer uses UTC, whatever the database, the role or psql use",
        "Name the zone, as in: (placed AT TIME ZONE 'America/New_York')::date.",
    ),
    RemarkKind.FORMAT: (
        "depends on TimeZone, DateStyle, IntervalStyle or extra_float_digits: syncer uses UTC, ISO, iso_8601 and 1",
        "If the text matters, use to_char with a format.",
    ),
}


def notes(connection: Connection, select: str, name: str) -> Iterator[Problem]:
    """Yield what depends on the session, on chance or on the date of the build; ``name`` is for errors."""
    for type_ in catalog.casts_from_text(connection, select, name):
        yield Problem(
            severity=Severity.NOTE,
            message=f"a text is cast to {type_} while the SELECT runs: a row with the text 'today', 'now' or the like "
            "makes a document that is soon outdated, without a change",
            action="If a row may have such a text, use to_date(column, 'YYYY-MM-DD') or to_timestamp instead.",
        )
    for remark in remarks(connection, select, name):
        message, action = _REMARKS[remark.kind]
        where = f" in the view {remark.view}" if remark.view else ""
        yield Problem(severity=Severity.NOTE, message=f"{remark.name}{where} {message}", action=action)
