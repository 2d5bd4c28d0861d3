"""Settle: finds out which differing documents have drifted, and which are busy.

A document that differs may be about to be written. So it is compared, then a moment is taken, and once everything
committed before that moment is handled and no open job holds the document, it is compared again. If it still differs
and has kept its version, nothing is in flight to it: it has *drifted*, however slow the workers are. For if it differed
before the moment, a change that it does not show was committed before the moment. Once that change is handled, the
document was written again and has another version.

If its version has changed, something writes it: it is compared again after another moment, up to three times. So is
one that Elasticsearch lacks, as what is deleted and written again has no version in between. What never stood still is
*busy*. So is what changes in flight or an open job may yet write, once these have made no progress for the allowed
time. A version that no write of syncer's surpasses stays, whatever is in flight: that is drift at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from syncer.base.postgres import Connection
from syncer.base.retry import retry
from syncer.capture import progress
from syncer.documents import queries
from syncer.documents.registry import Document
from syncer.elasticsearch.bulk import Index
from syncer.indexing import dead_letters, failover, version
from syncer.jobs import listing, model
from syncer.verify import diff
from syncer.verify.diff import Cause, Drift, DriftKind

SETTLE_SECONDS = 10.0
"""How long what is in flight may stand still before its documents are called busy."""
_PAGE = 200
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
_ORPHANS = (DriftKind.EXTRA, DriftKind.MISPLACED)


class _Differing(NamedTuple):
    """A document that differs, with the routings and versions of its copies in Elasticsearch."""

    drift: Drift
    held: frozenset[tuple[str | None, int]]


@dataclass(slots=True, kw_only=True)
class Settled:
    """What became of documents that differed.

    Args:
        drifts: Those that have drifted.
        busy: Those that may be about to be written.
        jobs: The open jobs that hold some of these.
        are_changes_handled: False if changes in flight have made no progress.
    """

    drifts: list[Drift] = field(default_factory=list)
    busy: list[Drift] = field(default_factory=list)
    jobs: set[int] = field(default_factory=set)
    are_changes_handled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Settler:
    """Compares documents of one index until it is known what they are.

    Args:
        connection: To Postgres; used for nothing else meanwhile.
        settle_seconds: How long changes in flight may make no progress, and how long jobs are waited for.
        values: Whether to report differing values.
        retries: Whether to wait for an Elasticsearch that is away.
        pause: Called to wait; may raise `Stopping`.
    """

    document: Document
    index: Index
    connection: Connection
    settle_seconds: float = SETTLE_SECONDS
    values: bool = False
    retries: bool = False
    pause: Callable[[float], None] = time.sleep

    def settle(self, ids: Collection[str]) -> Settled:
        """Return which of these documents differ, once that is known; the others equal their SELECT."""
        settled = Settled()
        left = self._compare(ids)
        for last in (False, False, False, True):
            if not left:
                break
            before = left
            is_handled, holders = self._wait(before)
            settled.are_changes_handled &= is_handled
            surpassed = version.least_next(self.connection)
            left = {}
            for id_, now in self._compare(before).items():
                if any(number >= surpassed and self._is_foreign(number) for _, number in now.held):
                    settled.drifts.append(now.drift)
                elif id_ in holders or not is_handled:
                    settled.busy.append(now.drift)
                    settled.jobs.update(holders.get(id_, ()))
                elif now.held == before[id_].held and (now.held or last):
                    settled.drifts.append(now.drift)
                else:
                    left[id_] = now
        settled.busy += [now.drift for now in left.values()]
        settled.drifts, settled.busy = self._explained(settled.drifts), self._explained(settled.busy)
        return settled

    def _compare(self, ids: Collection[str]) -> dict[str, _Differing]:
        """Read these documents from both sides; return those that differ."""
        found: dict[str, _Differing] = {}
        asked = list(ids)
        for page in (asked[at : at + _PAGE] for at in range(0, len(asked), _PAGE)):
            read = partial(self.index.holdings.read, self.document.target, page)
            copies = retry(read, pause=self.pause, component="verify") if self.retries else read()
            # Postgres casts the id 007 to 7, which was not asked for.
            rows = queries.current(self.connection, self.document, page)
            expected = {id_: rows[id_] for id_ in page if id_ in rows}
            for drift in diff.compare(expected, copies, values=self.values):
                held = frozenset((copy.routing, copy.version) for copy in copies if copy.id == drift.id)
                found[drift.id] = _Differing(drift, held)
        return found

    def _wait(self, differing: Mapping[str, _Differing]) -> tuple[bool, dict[str, list[int]]]:
        """Wait until all changes so far are handled, and no job that is open then holds one of these documents.

        Returns:
            Whether the changes are handled, and the jobs that hold documents after all.
        """
        orphans = [id_ for id_, now in differing.items() if now.drift.kind in _ORPHANS]
        moment, state, since, pause = progress.moment(self.connection), -1, time.monotonic(), _FIRST_PAUSE
        while not progress.is_handled(self.connection, moment):
            before, state = state, progress.handled(self.connection)
            since = since if state == before else time.monotonic()
            if time.monotonic() - since >= self.settle_seconds:
                return False, {}
            self.pause(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
        jobs, since = model.unfinished(self.connection, self.document.index_name), time.monotonic()
        while True:  # later jobs are of later changes
            holders = listing.held(self.connection, jobs, differing, orphans)
            if not holders or time.monotonic() - since >= self.settle_seconds:
                return True, holders
            self.pause(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
            jobs = [job for job in model.some(self.connection, [job.id for job in jobs]) if not job.state.is_finished]

    def _explained(self, drifts: Sequence[Drift]) -> list[Drift]:
        """Add dead-letter errors and causes; return them by id."""
        errors = dead_letters.errors(self.connection, self.document.index_name, [drift.id for drift in drifts])
        explained = [replace(drift, error=errors.get(drift.id), cause=self._cause(drift, errors)) for drift in drifts]
        return sorted(explained, key=lambda drift: drift.id)

    def _cause(self, drift: Drift, errors: Mapping[str, str]) -> Cause | None:
        is_foreign = drift.version is not None and self._is_foreign(drift.version)
        if is_foreign and (drift.version or 0) >= version.least_next(self.connection):
            return Cause.FOREIGN_AHEAD
        if drift.id in errors:
            return Cause.DEAD_LETTERED
        if is_foreign:
            return Cause.FOREIGN
        return drift.cause if self.document.is_loaded else Cause.INCOMPLETE

    def _is_foreign(self, number: int) -> bool:
        return failover.is_foreign(self.connection, self.index, number)
