"""Re-check: reads differing documents again until the state of each is known.

*In flight is not drift.* A document that was being written when it was compared is suspect too. Each suspect is read
again from both sides; reads by id are real-time. If its copy in Elasticsearch changes, something is writing it, and its
time starts over. A document that keeps changing and is never equal when read is called *moving*.

*Drift* is what still differs, with the same version, after the allowed time and after everything committed before that
is handled, however long that takes: see `syncer.verify.watermark`. It is waited for as long as it makes progress. If
nothing has moved for the allowed time, a differing document is called *coming*: a change may or may not be in flight to
it. A foreign version that no change surpasses is drift even then.

*Pending is not drift* either: what a fan-out, a refresh or a load has yet to write differs while that job waits or is
paused. The order matters. First the changes are handled and become jobs; then the jobs of each suspect are read; then
it is read for the last time: see `syncer.verify.pending_jobs`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from syncer.base.postgres import Connection
from syncer.base.retry import retry
from syncer.documents import queries
from syncer.documents.registry import Document
from syncer.elasticsearch.bulk import Index
from syncer.indexing import dead_letters, failover, version
from syncer.indexing.failover import Origin
from syncer.verify import diff
from syncer.verify.diff import Cause, Drift, DriftKind
from syncer.verify.pending_jobs import Pending, PendingDocuments
from syncer.verify.watermark import Watermark

_LOOK_PAGE = 200
_LOOK_AGAIN_SECONDS = 0.25
_MOVING_FACTOR = 6
"""Documents that keep changing are left alone after this many times the allowed time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Suspect:
    """A document that differs.

    Args:
        held: The routings and versions of its copies in Elasticsearch.
        since: When that was first seen, by the monotonic clock.
    """

    drift: Drift
    held: frozenset[tuple[str | None, int]]
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The state of suspects that are not equal.

    Args:
        drifts: Documents that have drifted.
        coming: Documents that a change may be in flight to, while nothing moves.
        moving: The ids of documents that keep changing.
        pending: The ids of documents that are left to a job.
        awaited: In words, what is in flight and does not move; empty if nothing is coming.
    """

    drifts: list[Drift] = field(default_factory=list)
    coming: list[Drift] = field(default_factory=list)
    moving: list[str] = field(default_factory=list)
    pending: set[str] = field(default_factory=set)
    awaited: str = ""

    @property
    def ids(self) -> set[str]:
        """The ids of all of them."""
        return {one.id for one in (*self.drifts, *self.coming)}.union(self.moving, self.pending)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recheck:
    """Re-checks documents of one index.

    Args:
        pending: Knows which jobs may yet write the documents.
        watermark: Knows whether earlier changes are handled.
        settle_seconds: How long a document may stay different, and how long nothing may move.
        pause: Called to wait between two rounds.
    """

    document: Document
    index: Index
    connection: Connection
    pending: PendingDocuments
    watermark: Watermark
    settle_seconds: float
    values: bool
    pause: Callable[[float], None]

    def settled(self, ids: Iterable[str]) -> Seen:
        """Re-check documents until the state of each is known; return those that are not equal."""
        seen = Seen()
        suspects = self._look({}, list(ids))
        give_up_at = time.monotonic() + _MOVING_FACTOR * self.settle_seconds
        while suspects:
            due_since = time.monotonic() - self.settle_seconds
            is_waiting = self._settle_due(suspects, due_since, seen)
            if not suspects or (time.monotonic() > give_up_at and not is_waiting):
                break
            self.pause(_LOOK_AGAIN_SECONDS)
            suspects = self._look(suspects, list(suspects))
        unsettled = self._explained([one.drift for one in suspects.values()])
        foreign = [one for one in unsettled if one.cause in (Cause.FOREIGN, Cause.FOREIGN_AHEAD)]
        return Seen(
            drifts=_by_id(self._explained(seen.drifts) + foreign),
            coming=_by_id(self._explained(seen.coming)),
            moving=sorted(one.id for one in unsettled if one not in foreign),
            pending=seen.pending,
            awaited=self.watermark.says if seen.coming else "",
        )

    def _settle_due(self, suspects: dict[str, _Suspect], due_since: float, seen: Seen) -> bool:
        """Settle the suspects that differ since ``due_since``; return whether some wait for changes in flight."""
        due = [id_ for id_, one in suspects.items() if one.since <= due_since]
        if not due:
            return False
        before = [id_ for id_ in due if suspects[id_].since <= self.watermark.began_at]
        if not before:
            self.watermark.begin()
            before = due
        is_through = self.watermark.is_through()
        if not is_through and self.watermark.still_seconds < self.settle_seconds:
            return True
        drifts = self._take_due(suspects, before, due_since, seen)
        seen.drifts.extend(one for one in drifts if is_through or self._is_ahead(one))
        seen.coming.extend(one for one in drifts if not (is_through or self._is_ahead(one)))
        return len(before) < len(due)

    def _take_due(self, suspects: dict[str, _Suspect], ids: Sequence[str], due_since: float, seen: Seen) -> list[Drift]:
        """Remove these suspects; return those that have differed since ``due_since`` and are not left to a job."""
        coming = self.pending.coming(ids)
        last = self._look(suspects, ids)
        for id_ in ids:
            del suspects[id_]
        suspects |= {id_: one for id_, one in last.items() if one.since > due_since}
        drifts = [one.drift for one in last.values() if one.since <= due_since]
        return [one for one in drifts if not self._is_pending(one, coming.get(one.id, ()), seen)]

    def _is_pending(self, drift: Drift, coming: Sequence[Pending], seen: Seen) -> bool:
        """Whether a difference is left to a job; never if no write of a job can replace it."""
        is_orphan = drift.kind in (DriftKind.EXTRA, DriftKind.MISPLACED)
        is_pending = bool(coming) and not self._is_ahead(drift) and self.pending.note(coming, is_orphan=is_orphan)
        seen.pending.update([drift.id] if is_pending else [])
        return is_pending

    def _is_ahead(self, drift: Drift) -> bool:
        """Whether another client wrote it with a version that no write of syncer's surpasses."""
        number = drift.version
        if number is None or version.is_surpassed(self.connection, number):
            return False
        return failover.origin(self.connection, self.index, number) is Origin.FOREIGN

    def _look(self, before: dict[str, _Suspect], ids: Sequence[str]) -> dict[str, _Suspect]:
        """Read these documents from both sides; return those that still differ."""
        suspects: dict[str, _Suspect] = {}
        for part in parts(ids):
            copies = retry(
                partial(self.index.holdings.read, self.document.target, part), pause=self.pause, component="verify"
            )
            wanted = set(part)
            rows = queries.current(self.connection, self.document, part)
            # Postgres casts the id 007 to 7, which was not asked for.
            expected = {id_: row for id_, row in rows.items() if id_ in wanted}
            for one in diff.compare(self.document.name, self.document.index_name, expected, copies, values=self.values):
                held = frozenset((copy.routing, copy.version) for copy in copies if copy.id == one.id)
                last = before.get(one.id)
                since = last.since if last is not None and last.held == held else time.monotonic()
                suspects[one.id] = _Suspect(drift=one, held=held, since=since)
        return suspects

    def _explained(self, drifts: Sequence[Drift]) -> list[Drift]:
        """Add dead-letter errors and causes."""
        if not drifts:
            return []
        errors = dead_letters.errors(self.connection, self.document.index_name, [one.id for one in drifts])
        return [replace(one, error=errors.get(one.id), cause=self._cause(one, errors)) for one in drifts]

    def _cause(self, drift: Drift, errors: Mapping[str, str]) -> Cause | None:
        if drift.version is not None:
            if self._is_ahead(drift):
                return Cause.FOREIGN_AHEAD
            origin = failover.origin(self.connection, self.index, drift.version)
            if origin is Origin.LOST:
                return Cause.LOST
            if origin is Origin.FOREIGN and drift.id not in errors:
                return Cause.FOREIGN
        if drift.id in errors:
            return Cause.DEAD_LETTERED
        return drift.cause if self.document.is_loaded else Cause.INCOMPLETE


def _by_id(drifts: Iterable[Drift]) -> list[Drift]:
    return sorted(drifts, key=lambda one: one.id)


def parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Split ids into batches for one read or write."""
    return (ids[at : at + _LOOK_PAGE] for at in range(0, len(ids), _LOOK_PAGE))
