"""The outcome of writing documents: filled in by writers, read by workers, jobs and commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

OUTCOMES: Final = ("indexed", "deleted", "skipped", "dead_lettered")
"""What may become of a document."""


@dataclass(slots=True)
class WriteReport:
    """The outcome of writing documents; each document counts once, however often it was tried.

    Args:
        documents: The sum of the outcomes.
        deleted: Deleted, or known to be absent.
        skipped: Not written because a version at least as new is there.
        compose_seconds: Time spent in Postgres.
        index_seconds: Time spent in Elasticsearch.
    """

    documents: int = 0
    indexed: int = 0
    deleted: int = 0
    skipped: int = 0
    dead_lettered: int = 0
    compose_seconds: float = 0.0
    index_seconds: float = 0.0

    @property
    def outcomes(self) -> dict[str, int]:
        """The number of documents by outcome."""
        return {name: getattr(self, name) for name in OUTCOMES}

    def add(self, other: WriteReport) -> None:
        """Add another report to this one."""
        for name in ("documents", *OUTCOMES, "compose_seconds", "index_seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
