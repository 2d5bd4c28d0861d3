"""Looking: documents that differ, looked at as they are now, until it is known of each what has become of it.

*In flight is not drift.* What was being written when it was compared is suspect too. Each suspect is looked at again,
as both sides are now: a read by id is realtime. If what Elasticsearch has of it changes, somebody is at work on it, and
all begins anew; one that changes all the while and never is equal when we look is called *moving*.

*Drift* is what has differed for the time allowed, and differs still, with the same version, once all that was committed
before we saw it so is handled, however long that takes: see `syncer.transit`. As long as that moves on, it is waited
for. If nothing has moved for the time allowed, what differs is called *coming*: a change may be on its way to it, or
not; but for what somebody wrote with a version that no change surpasses.

*Owed is not drift* either: what a fan-out, a refresh or a fill has yet to write differs for as long as that waits for
its turn, or is paused. Which jobs come to a suspect is asked once the changes are handled, which become jobs, and then
it is looked at for the last time, in this order: see `syncer.owing`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from syncer import compose, dead_letters, drift, version
from syncer.drift import Cause, Drift, Kind
from syncer.index import Index
from syncer.lifecycle import persist
from syncer.owing import Owed, Pending
from syncer.postgres import Connection
from syncer.store import Document
from syncer.transit import Transit
from syncer.version import Origin

_LOOK_PAGE = 200
_LOOK_AGAIN_SECONDS = 0.25
_MOVING_FACTOR = 6
"""After how many times the time allowed a document that is being written all the while is left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Suspect:
    """A document that differs.

    Args:
        drift: How.
        held: Which versions of it are where in Elasticsearch.
        since: Since when that has been so, by the monotonic clock.
    """

    drift: Drift
    held: frozenset[tuple[str | None, int]]
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What has become of suspects that are not equal.

    Args:
        drifts: Those that have drifted.
        coming: Those that a change may be on its way to: nothing moves.
        moving: The ids of those that are being written all the while.
        owed: The ids of those that are left to a job.
        awaited: What is on its way and does not move, in words; empty if nothing is coming.
    """

    drifts: list[Drift] = field(default_factory=list)
    coming: list[Drift] = field(default_factory=list)
    moving: list[str] = field(default_factory=list)
    owed: set[str] = field(default_factory=set)
    awaited: str = ""

    @property
    def ids(self) -> set[str]:
        """Of all of them."""
        return {one.id for one in (*self.drifts, *self.coming)}.union(self.moving, self.owed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Looking:
    """Looks at documents again and again.

    Args:
        document: Which definition.
        index: Elasticsearch.
        asking: For what Postgres says.
        owed: Which jobs may yet come to the documents.
        transit: Whether the changes that were committed before are handled.
        settle_seconds: How long a document may stay different, and how long nothing may move.
        values: Whether to show the values that differ.
        pause: How to wait between two looks.
    """

    document: Document
    index: Index
    asking: Connection
    owed: Owed
    transit: Transit
    settle_seconds: float
    values: bool
    pause: Callable[[float], None]

    def settled(self, ids: Iterable[str]) -> Seen:
        """What has become of those that are not equal."""
        seen = Seen()
        suspects = self._look({}, list(ids))
        give_up_at = time.monotonic() + _MOVING_FACTOR * self.settle_seconds
        while suspects:
            ripe_at = time.monotonic() - self.settle_seconds
            is_waiting = self._take_ripe(suspects, ripe_at, seen)
            if not suspects or (time.monotonic() > give_up_at and not is_waiting):
                break
            self.pause(_LOOK_AGAIN_SECONDS)
            suspects = self._look(suspects, list(suspects))
        restless = self._explained([one.drift for one in suspects.values()])
        foreign = [one for one in restless if one.cause in (Cause.FOREIGN, Cause.FOREIGN_AHEAD)]
        return Seen(
            drifts=_in_order(self._explained(seen.drifts) + foreign),
            coming=_in_order(self._explained(seen.coming)),
            moving=sorted(one.id for one in restless if one not in foreign),
            owed=seen.owed,
            awaited=self.transit.says if seen.coming else "",
        )

    def _take_ripe(self, suspects: dict[str, _Suspect], ripe_at: float, seen: Seen) -> bool:
        """Take away those that have differed since then, once it is known what they are; whether that is waited for."""
        ripe = [id_ for id_, one in suspects.items() if one.since <= ripe_at]
        if not ripe:
            return False
        before = [id_ for id_ in ripe if suspects[id_].since <= self.transit.began_at]
        if not before:
            self.transit.begin()
            before = ripe
        is_through = self.transit.is_through()
        if not is_through and self.transit.still_seconds < self.settle_seconds:
            return True
        drifts = self._ripe(suspects, before, ripe_at, seen)
        seen.drifts.extend(one for one in drifts if is_through or self._is_ahead(one))
        seen.coming.extend(one for one in drifts if not (is_through or self._is_ahead(one)))
        return len(before) < len(ripe)

    def _ripe(self, suspects: dict[str, _Suspect], ids: Sequence[str], ripe_at: float, seen: Seen) -> list[Drift]:
        """Take these away: those that differ are returned, the others are owed, or equal now."""
        coming = self.owed.coming(ids)
        last = self._look(suspects, ids)
        for id_ in ids:
            del suspects[id_]
        suspects |= {id_: one for id_, one in last.items() if one.since > ripe_at}
        drifts = [one.drift for one in last.values() if one.since <= ripe_at]
        return [one for one in drifts if not self._is_owed(one, coming.get(one.id, ()), seen)]

    def _is_owed(self, drift: Drift, coming: Sequence[Pending], seen: Seen) -> bool:
        """Whether it is left to a job: not what no write of a job replaces."""
        is_stray = drift.kind in (Kind.EXTRA, Kind.MISPLACED)
        is_owed = bool(coming) and not self._is_ahead(drift) and self.owed.owe(coming, is_stray=is_stray)
        seen.owed.update([drift.id] if is_owed else [])
        return is_owed

    def _is_ahead(self, drift: Drift) -> bool:
        """Whether somebody else wrote it with a version that no write of syncer's surpasses."""
        number = drift.version
        if number is None or version.is_surpassed(self.asking, number):
            return False
        return version.origin(self.asking, self.index, number) is Origin.FOREIGN

    def _look(self, before: dict[str, _Suspect], ids: Sequence[str]) -> dict[str, _Suspect]:
        """Those that still differ."""
        suspects: dict[str, _Suspect] = {}
        for part in parts(ids):
            copies = persist(
                partial(self.index.holdings.read, self.document.target, part), pause=self.pause, stage="verify"
            )
            wanted = set(part)
            rows = compose.current(self.asking, self.document, part)
            # To Postgres 007 is 7: which nobody asked for.
            expected = {id_: row for id_, row in rows.items() if id_ in wanted}
            for one in drift.compare(
                self.document.name, self.document.index_name, expected, copies, values=self.values
            ):
                held = frozenset((copy.routing, copy.version) for copy in copies if copy.id == one.id)
                last = before.get(one.id)
                since = last.since if last is not None and last.held == held else time.monotonic()
                suspects[one.id] = _Suspect(drift=one, held=held, since=since)
        return suspects

    def _explained(self, drifts: Sequence[Drift]) -> list[Drift]:
        """The same, with what is known of why."""
        if not drifts:
            return []
        errors = dead_letters.errors(self.asking, self.document.index_name, [one.id for one in drifts])
        return [self._traced(replace(one, error=errors.get(one.id))) for one in drifts]

    def _traced(self, drift: Drift) -> Drift:
        """With its cause, and when its version was drawn."""
        cause = None if self.document.is_filled else Cause.UNFILLED
        cause = cause if drift.error is None else Cause.PARKED
        if drift.version is None:
            return replace(drift, cause=cause)
        if self._is_ahead(drift):
            return replace(drift, cause=Cause.FOREIGN_AHEAD)
        match version.origin(self.asking, self.index, drift.version):
            case Origin.FOREIGN:
                return replace(drift, cause=cause if drift.error is not None else Cause.FOREIGN)
            case Origin.LOST:
                return replace(drift, cause=Cause.LOST)
        after, before = version.drawn_between(self.asking, drift.version)
        return replace(drift, cause=cause, drawn_after=after, drawn_before=before)


def _in_order(drifts: Iterable[Drift]) -> list[Drift]:
    return sorted(drifts, key=lambda one: one.id)


def parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """So many of them at once as are looked at, or written."""
    return (ids[at : at + _LOOK_PAGE] for at in range(0, len(ids), _LOOK_PAGE))
