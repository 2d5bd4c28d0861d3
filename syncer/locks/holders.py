"""Holders: one document per process that locks. Each write to it is conditional on the previous one.

Declaring a holder dead is such a write by another process; after it, the holder cannot write its document any more.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from elasticsearch import ConflictError, Elasticsearch, NotFoundError
from elasticsearch.helpers import scan

from syncer.base.lifecycle import clock
from syncer.locks.intents import Intent

_MARGIN = 1.25
"""How much longer than its lease a holder must be silent, because clocks run at slightly different speeds."""
_SIGHTS_MAX = 10_000


def now() -> str:
    """Return the current time for display; no decision depends on it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeqNo:
    """The version of a holder's document, as a conditional write names it."""

    seq_no: int
    primary_term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process that holds locks.

    Args:
        id: Never reused.
        owner: A name for people.
        host: Where it runs.
        process: Its process id there.
        lease_seconds: After how long without a renewal it may be declared dead.
        since: When it began, by its own clock.
        renewed: When it last renewed its lease, by its own clock; no decision depends on it.
        is_dead: Whether it was declared dead.
        successor: The holder that settles a dead holder's changes.
        intent: The changes that it may be making.
    """

    id: str
    owner: str
    host: str = field(default_factory=socket.gethostname)
    process: int = field(default_factory=os.getpid)
    lease_seconds: float
    since: str = field(default_factory=now)
    renewed: str = field(default_factory=now)
    is_dead: bool = False
    successor: str | None = None
    intent: Intent | None = None


class Holders:
    """The documents of all holders in an index."""

    def __init__(self, client: Elasticsearch, *, index: str) -> None:
        self._client = client
        self._index = index

    def within(self, seconds: float) -> Holders:
        """Return the same, with this request timeout."""
        return Holders(self._client.options(request_timeout=seconds), index=self._index)

    def all(self) -> list[tuple[Holder, SeqNo]]:
        """Return all holders, including dead ones that are not buried yet."""
        self._client.indices.refresh(index=self._index)
        query = {"query": {"term": {"kind": "holder"}}, "seq_no_primary_term": True}
        return [_read(hit) for hit in scan(self._client, index=self._index, query=query)]

    def enter(self, holder: Holder) -> SeqNo:
        """Store a new holder. Safe to repeat."""
        return _seen(self._client.index(index=self._index, id=holder.id, document=_document(holder)).body)

    def look(self, holder: str) -> tuple[Holder, SeqNo] | None:
        """Return a holder as it is now; None if it has left."""
        try:
            return _read(self._client.get(index=self._index, id=holder).body)
        except NotFoundError:
            return None

    def amend(self, holder: Holder, seen: SeqNo) -> SeqNo | None:
        """Write a holder if it is unchanged; None if it is not."""
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

    def leave(self, holder: str, seen: SeqNo) -> bool:
        """Delete a holder if it is unchanged; return whether it was."""
        try:
            self._client.delete(index=self._index, id=holder, if_seq_no=seen.seq_no, if_primary_term=seen.primary_term)
        except (ConflictError, NotFoundError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class _Sight:
    seen: SeqNo
    since: float


class Liveness:
    """Tells which holders have not been written for how long, by our own clock.

    The process that buries a dead holder writes its document at each step. So a holder being buried is like any other:
    if it is unchanged for a lease, another process may continue, which is safe at any time. Observations are kept
    between calls, so that repeated attempts that do not wait detect a dead holder, too.
    """

    def __init__(self, holders: Holders, *, own: str) -> None:
        self._holders = holders
        self._own = own
        self._sights: dict[str, _Sight] = {}

    def look(self, holders: Iterable[str]) -> list[str]:
        """Observe holders once more.

        Returns:
            Those that are gone, unchanged for longer than their lease, or dead without another process burying them.
        """
        return [holder for holder in sorted(set(holders)) if self._is_over(holder)]

    def _is_over(self, holder: str) -> bool:
        found = self._holders.look(holder)
        before = self._sights.pop(holder, None)
        if found is None:
            return True
        known, seen = found
        sight = before if before is not None and before.seen == seen else _Sight(seen, clock())
        if len(self._sights) == _SIGHTS_MAX:
            del self._sights[next(iter(self._sights))]  # the one observed least recently
        self._sights[holder] = sight
        if known.is_dead and known.successor in (None, self._own):
            return True
        return clock() - sight.since > known.lease_seconds * _MARGIN


def _document(holder: Holder) -> dict[str, Any]:
    return {"kind": "holder", "holder": asdict(holder)}


def _read(hit: Mapping[str, Any]) -> tuple[Holder, SeqNo]:
    stored = hit["_source"]["holder"]
    intent = Intent(**stored["intent"]) if stored["intent"] else None
    return Holder(**{**stored, "intent": intent}), _seen(hit)


def _seen(answer: Mapping[str, Any]) -> SeqNo:
    return SeqNo(seq_no=answer["_seq_no"], primary_term=answer["_primary_term"])
