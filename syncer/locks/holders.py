"""Holders: whoever locks has one document of its own, and each write to it is conditional on the one before.

So a holder that was taken for dead, which is such a write by somebody else, can write its document no more.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from elasticsearch import ConflictError, Elasticsearch, NotFoundError
from elasticsearch.helpers import scan

from syncer.locks.change import Intent


def now() -> str:
    """The time, for who reads it; nothing is decided by it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A holder's document at one moment: what a conditional write names."""

    seq_no: int
    primary_term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds locks.

    Args:
        id: Which; never used again.
        owner: As a person calls it.
        host: Where it runs.
        process: Its process id there.
        lease_seconds: After how long without a renewal it may be taken for dead.
        since: When it began, by its own clock.
        renewals: How often its document was written.
        is_dead: Whether it was taken for dead.
        successor: Who finishes what it left behind, if it is dead.
        intent: The changes that it may be making.
    """

    id: str
    owner: str
    host: str = field(default_factory=socket.gethostname)
    process: int = field(default_factory=os.getpid)
    lease_seconds: float
    since: str = field(default_factory=now)
    renewals: int = 0
    is_dead: bool = False
    successor: str | None = None
    intent: Intent | None = None


class Holders:
    """The documents of all holders.

    Args:
        client: Elasticsearch.
        index: Where they are.
    """

    def __init__(self, client: Elasticsearch, *, index: str) -> None:
        self._client = client
        self._index = index

    def within(self, seconds: float) -> Holders:
        """The same, for requests that are given up after so many seconds."""
        return Holders(self._client.options(request_timeout=seconds), index=self._index)

    def all(self) -> list[tuple[Holder, Seen]]:
        """Everybody who holds locks, or did and has left something behind."""
        self._client.indices.refresh(index=self._index)
        query = {"query": {"term": {"kind": "holder"}}, "seq_no_primary_term": True}
        return [_read(hit) for hit in scan(self._client, index=self._index, query=query)]

    def enter(self, holder: Holder) -> Seen:
        """Put a new holder down; harmless to do again."""
        return _seen(self._client.index(index=self._index, id=holder.id, document=_document(holder)).body)

    def look(self, holder: str) -> tuple[Holder, Seen] | None:
        """A holder as it is now; None if it has left."""
        try:
            return _read(self._client.get(index=self._index, id=holder).body)
        except NotFoundError:
            return None

    def amend(self, holder: Holder, seen: Seen) -> Seen | None:
        """Write a holder, if it is as it was seen; None if it is not."""
        try:
            answer = self._client.index(
                index=self._index,
                id=holder.id,
                document=_document(holder),
                if_seq_no=seen.seq_no,
                if_primary_term=seen.primary_term,
            )
        except (ConflictError, NotFoundError):
            return None
        return _seen(answer.body)

    def leave(self, holder: str, seen: Seen) -> bool:
        """Remove a holder, if it is as it was seen."""
        try:
            self._client.delete(index=self._index, id=holder, if_seq_no=seen.seq_no, if_primary_term=seen.primary_term)
        except (ConflictError, NotFoundError):
            return False
        return True


def _document(holder: Holder) -> dict[str, Any]:
    return {"kind": "holder", "holder": asdict(holder)}


def _read(hit: Mapping[str, Any]) -> tuple[Holder, Seen]:
    stored = hit["_source"]["holder"]
    intent = Intent(**stored["intent"]) if stored["intent"] else None
    return Holder(**{**stored, "intent": intent}), _seen(hit)


def _seen(answer: Mapping[str, Any]) -> Seen:
    return Seen(seq_no=answer["_seq_no"], primary_term=answer["_primary_term"])
