"""The outbox: reads the changes that a cursor has not seen, and removes rows that it has.

A cursor is a ``pg_snapshot`` (as in PgQ): new are the changes that the current snapshot sees and the cursor did not. So
there is no gap, and a transaction that stays open for hours causes neither a stall nor a rescan. Rows are removed by
TRUNCATE of whole segments. A DELETE would leave dead rows, which a transaction held open for hours keeps from being
vacuumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from syncer.base.postgres import Connection, value

SEGMENTS = 8
NOTHING_READ = "1:1:"
"""The cursor that has seen no change."""
BACKLOG_CHANGES_MIN = 100_000
"""Fewer changes than this are never given up: a refresh of every document costs more than they do."""
_LOOKED_AT_MAX = 1000
"""A transaction with this many changes or more is not examined change by change."""


class OutboxRow(NamedTuple):
    """A change as it is published, as JSON. Those of a table that lead to the same documents have the same key."""

    key: bytes
    value: bytes
    changed_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Changes that were read together, the last ones if no more are known to wait.

    The cursor is to be saved once they, and those read before, are done; it is None in the middle of a transaction.
    """

    rows: list[OutboxRow]
    cursor: str | None
    is_last: bool


# Rows of transactions that had not begun when the cursor was taken, and of those that were in progress and have ended
# since. One that is still open may have written very many, none of which is visible. They are asked for apart: joined
# by OR, an index gives all of them before the first.
# Rule: the-cursor-is-a-snapshot.
LATER = "xid >= pg_snapshot_xmax({0}::pg_snapshot)"
ENDED_SINCE = """
xid = ANY (ARRAY(SELECT x.id FROM pg_snapshot_xip({0}::pg_snapshot) AS x (id)
                 WHERE pg_visible_in_snapshot(x.id, pg_current_snapshot())))
"""
_CHANGES = """
SELECT concat(o.relation, ' ', jsonb_hash(coalesce(o.new, o.old))) AS key,
       json_build_object('id', o.id, 'changed_at', extract(epoch FROM o.changed_at), 'relation', o.relation,
                         'operation', o.operation, 'old', o.old, 'new', o.new, 'untouched', o.untouched) AS change,
       extract(epoch FROM o.changed_at)::float8 AS changed_at, o.xid, o.id
FROM syncer.outbox AS o
"""
# One statement is one snapshot, and one round trip.
# Rule: the-cursor-is-what-was-read.
_NEW = f"""
SELECT o.key, o.change, o.changed_at, s.snapshot
FROM (SELECT pg_current_snapshot()::text AS snapshot WHERE syncer.is_primary()) AS s
LEFT JOIN LATERAL (
    ({_CHANGES} WHERE {LATER.format("$1")} LIMIT $2)
    UNION ALL
    ({_CHANGES} WHERE {ENDED_SINCE.format("$1")} LIMIT $2)
    LIMIT $2
) AS o ON true
"""
_PAGE = f"""
{_CHANGES} WHERE (o.xid, o.id) > ($1::xid8, $2) AND o.xid < $3::xid8 AND pg_visible_in_snapshot(o.xid, $4::pg_snapshot)
  AND syncer.is_primary()
ORDER BY o.xid, o.id LIMIT $5
"""
_RELATIONS = """
SELECT array_agg(DISTINCT w.relation), count(*)
FROM (SELECT o.relation FROM syncer.outbox AS o WHERE o.xid = $1::xid8 LIMIT $2) AS w
"""
# A segment that was never analysed looks smaller than it is; and a plan that finds one row also finds many.
_BY_INDEX = "SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan"
_SEGMENTS = sql.SQL("SELECT last_value, ARRAY[{}] FROM syncer.outbox_segment").format(
    sql.SQL(", ").join(
        # Not whether a row is visible: behind very many that were rolled back, that takes long to find out.
        sql.SQL("pg_relation_size({}) > 0").format(sql.Literal(f"syncer.outbox_{number}"))
        for number in range(SEGMENTS)
    )
)
# What an open transaction keeps on the disk was read, and giving it up would free nothing.
_EXCEEDS = f"""
SELECT (SELECT sum(pg_total_relation_size(inhrelid)) FROM pg_inherits WHERE inhparent = 'syncer.outbox'::regclass) > $2
   AND (SELECT count(*) FROM (SELECT FROM syncer.outbox AS o WHERE {LATER.format("$1")} LIMIT $3) AS w) = $3
"""
_USE_SEGMENT = "SELECT setval('syncer.outbox_segment', $1)"


def prepare(connection: Connection) -> None:
    """Make every query on this connection find its rows by index."""
    connection.execute(_BY_INDEX)


def pages(connection: Connection, cursor: str, *, rows_max: int) -> Iterator[Page]:
    """Yield the changes that a cursor has not seen and the current snapshot sees.

    A long backlog comes in pages: first of the transactions that were in progress at the cursor, then by transaction
    id. The cursor of such a page sees everything before its last transaction, except what is still in progress. So a
    backlog of any size, and a transaction of any size, take the memory of a page.
    """
    rows = connection.execute(_NEW, (cursor, rows_max + 1), prepare=True).fetchall()
    seen = rows[0][-1]
    if len(rows) <= rows_max:
        yield Page(rows=_rows(rows), cursor=seen, is_last=True)
        return
    xmax, in_progress = _parsed(cursor)
    end, still_in_progress = _parsed(seen)
    ended = [xid for xid in in_progress if xid not in still_in_progress]
    ranges = [(xid, xid + 1, False) for xid in ended] + [(xmax, end, True)]
    for xid, end, has_cursor in ranges:
        id_ = -1
        while rows := connection.execute(_PAGE, (str(xid), id_, str(end), seen, rows_max)).fetchall():
            xid, id_ = int(rows[-1][-2]), rows[-1][-1]  # noqa: PLW2901 - where the next page begins
            yield Page(rows=_rows(rows), cursor=_as_of(seen, xid) if has_cursor else None, is_last=False)
    yield Page(rows=[], cursor=seen, is_last=True)


def _rows(rows: list[tuple[Any, ...]]) -> list[OutboxRow]:
    return [
        OutboxRow(key.encode("utf-8", "surrogateescape"), change, changed_at)
        for key, change, changed_at, *_ in rows
        if change is not None
    ]


def _parsed(cursor: str) -> tuple[int, list[int]]:
    """The first transaction id that had not begun, and the earlier ones that were in progress."""
    _, xmax, in_progress = cursor.split(":")
    return int(xmax), [int(xid) for xid in in_progress.split(",") if xid]


def _as_of(seen: str, xid: int) -> str:
    """Return the cursor that has seen what a snapshot sees of the transactions before this one."""
    running = [id_ for id_ in _parsed(seen)[1] if id_ < xid]
    return f"{min(running, default=xid)}:{xid}:{','.join(map(str, running))}"


def relations_of(connection: Connection, xid: int) -> frozenset[str] | None:
    """The tables that a transaction changed; None if its changes are trimmed already, or too many to examine."""
    relations, rows = connection.execute(_RELATIONS, (str(xid), _LOOKED_AT_MAX)).fetchone() or (None, 0)
    return frozenset(relations) if relations and rows < _LOOKED_AT_MAX else None


def exceeds(connection: Connection, cursor: str, *, bytes_max: int, changes_min: int | None = None) -> bool:
    """Whether the outbox takes more of the disk than this, and so many of its changes, or many, have not been read."""
    changes_min = BACKLOG_CHANGES_MIN if changes_min is None else changes_min
    return bool(value(connection, _EXCEEDS, (cursor, bytes_max, changes_min)))


def oldest_changed_at(connection: Connection, cursor: str) -> float | None:
    """The time of the first change that has not been read, in Unix time; None if there is none."""
    query = f"SELECT extract(epoch FROM changed_at)::float8 FROM syncer.outbox WHERE {LATER.format('$1')}"
    row = connection.execute(f"{query} ORDER BY xid, id LIMIT 1", (cursor,)).fetchone()
    return None if row is None else float(row[0])


def trim(connection: Connection, cursor: str) -> tuple[int, bool]:
    """Empty every segment whose rows the cursor has all seen, and direct writers to an empty one.

    Never waits: a segment that a transaction still uses is left for the next time. Returns how many were emptied, and
    whether any rows are left.
    """
    [(current, has_rows)] = connection.execute(_SEGMENTS)
    other_segments = [number for number in range(SEGMENTS) if number != current]
    trimmed = [number for number in other_segments if has_rows[number] and _truncate_seen(connection, number, cursor)]
    empty = [number for number in other_segments if not has_rows[number]] + trimmed
    if empty and has_rows[current]:
        connection.execute(_USE_SEGMENT, (min(empty),))
    return len(trimmed), sum(has_rows) > len(trimmed)


def _truncate_seen(connection: Connection, number: int, cursor: str) -> bool:
    segment = sql.Identifier("syncer", f"outbox_{number}")
    unseen = sql.SQL(f"EXISTS (SELECT FROM {{1}} WHERE {LATER}) OR EXISTS (SELECT FROM {{1}} WHERE {ENDED_SINCE})")
    try:
        with connection.transaction():
            # Under this lock nothing is writing the segment: each of its rows is committed or never will be. No
            # transaction that is still in progress has a row in it.
            # Rule: trim-under-a-lock.
            connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE NOWAIT").format(segment))
            if value(
                connection,
                sql.SQL("SELECT {} WHERE syncer.is_primary()").format(unseen.format(sql.Literal(cursor), segment)),
            ):
                return False
            connection.execute(sql.SQL("TRUNCATE {}").format(segment))
    except psycopg.errors.LockNotAvailable:
        return False
    return True
