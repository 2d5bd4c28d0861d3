"""Changes that are made under a lock, and what becomes of those that were left half done."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Recovery(StrEnum):
    """What to do with the changes that a dead holder had put down."""

    FINISH = "finish"
    """Make all of them; if Elasticsearch refuses one, put back what was there before."""
    ROLL_BACK = "roll-back"
    """Put back what was there before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A document as it is to be.

    Args:
        index: Where.
        id: Which.
        source: Its fields; None to delete it.
        routing: Its routing, if it has one.
    """

    index: str
    id: str
    source: dict[str, Any] | None
    routing: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """Changes that a holder has put down before it makes them.

    Args:
        id: Which.
        pages: In how many parts they are kept.
    """

    id: str
    pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A change, with what was there before.

    Args:
        after: As it is to be.
        before: As it was.
    """

    after: Change
    before: Change

    def by(self, recovery: Recovery) -> Change:
        """What is to be written."""
        return self.after if recovery is Recovery.FINISH else self.before

    def makes(self, recovery: Recovery) -> bool:
        """Whether that makes a document which is not there otherwise."""
        otherwise = self.before if recovery is Recovery.FINISH else self.after
        return self.by(recovery).source is not None and otherwise.source is None
