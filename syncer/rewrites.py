"""Rewrites: from which offset on Kafka has taken back what it had acknowledged, so that newer records lie there.

A broker that lacks records is elected, or comes back from a crash without them, and what is published next takes their
places. A worker that had handled the lost ones is behind the new ones, and would skip them. So the relay, who knows by
acknowledgements how far each partition was, leaves a *rewrite* here, in the transaction that has every document
written again; and each offset that a worker commits says up to which rewrite he knew. An offset whose worker did not
know of one counts no further than where that begins.

Why nothing is skipped: take a record. If it was published before the rewrite was committed, the jobs of that very
transaction see its change. If after, it lies where the rewrite begins, or behind: the relay alone publishes, each of
its acknowledgements comes after it has seen the end there, and an end that falls back again is another rewrite. Whoever
commits an offset and names the rewrite has either begun no further than that and read on, or goes on from an offset
of somebody who had.

A running worker looks for rewrites every few seconds. What he commits before he has seen one does not name it, so
that he, and whoever follows him, goes back. To read again what was handled is harmless.

Guarantee: a mark is never given twice, also if Postgres is set back to an earlier time. One that is not found here
counts as none: every rewrite of the partition is heeded.

Not noticed: that records are gone which the relay had not saved as acknowledged when it died, if a worker had handled
them, and others are in their place before any worker looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from syncer.postgres import Connection

_ALL = "SELECT mark::text, partition, begins FROM syncer.rewrite WHERE topic = $1 ORDER BY number"
_ADD = "INSERT INTO syncer.rewrite (topic, partition, begins) VALUES ($1, $2, $3)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """One partition, taken back once.

    Args:
        mark: Names it.
        partition: Which.
        begins: No record that was published since lies before this offset.
    """

    mark: str
    partition: int
    begins: int


@dataclass(frozen=True, slots=True)
class Rewrites:
    """All that are known of a topic, the oldest first."""

    known: tuple[Rewrite, ...] = ()

    @property
    def mark(self) -> str:
        """Says that all of them are known; empty if there are none."""
        return self.known[-1].mark if self.known else ""

    def true_until(self, partition: int, offset: int, mark: str) -> int:
        """How far an offset counts that was committed with this mark."""
        marks = [one.mark for one in self.known]
        unknown = self.known[marks.index(mark) + 1 if mark in marks else 0 :]
        return min([offset, *(one.begins for one in unknown if one.partition == partition)])


def read(connection: Connection, topic_id: str) -> Rewrites:
    """All that were noticed so far."""
    return Rewrites(
        tuple(
            Rewrite(mark=mark, partition=partition, begins=begins)
            for mark, partition, begins in connection.execute(_ALL, (topic_id,))
        )
    )


def add(connection: Connection, topic_id: str, begins: Mapping[int, int]) -> None:
    """Leave a rewrite of each of these partitions; in the transaction that has every document written again.

    Only who leads the relay does so, so that they become visible in the order of their numbers.
    """
    for partition, offset in begins.items():
        connection.execute(_ADD, (topic_id, partition, offset))
