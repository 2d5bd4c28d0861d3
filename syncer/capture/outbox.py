"""The outbox: finds the rows that a cursor has not seen, and removes rows that it has.

A cursor is a ``pg_snapshot`` (as in PgQ). Unseen rows are found by index, even while another transaction stays open for
long. Rows are removed by TRUNCATE of whole segments. A DELETE would leave dead rows, which a transaction held open for
hours keeps from being vacuumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from syncer.base.postgres import Connection, value

SEGMENTS = 8
_LOOKED_AT_MAX = 1000
"""A transaction with this many changes or more is not examined change by change."""


class Row(NamedTuple):
    """A change as it is published.

    Args:
        key: Changes with the same key share a partition.
        value: The change as JSON.
        changed_at: When it was made, in Unix time.
    """

    key: bytes
    value: bytes
    changed_at: float


# Rows of transactions that had not begun, or were in progress, when the cursor was taken.
# Rule: the-cursor-is-a-snapshot.
_UNSEEN = "(o.xid >= {}::xid8 OR o.xid = ANY ({}::xid8[]))"
_CHANGE = """
json_build_object('id', o.id, 'changed_at', extract(epoch FROM o.changed_at), 'relation', o.relation,
                  'operation', o.operation, 'old', o.old, 'new', o.new, 'untouched', o.untouched)
"""
_CHANGES = f"""
SELECT coalesce(c.aggregate || ':' || coalesce(o.new ->> c.aggregate_column, o.old ->> c.aggregate_column, ''), '')
         AS key,
       {_CHANGE} AS change, extract(epoch FROM o.changed_at)::float8 AS changed_at, o.xid, o.id
FROM syncer.outbox AS o LEFT JOIN syncer.capture AS c USING (relation)
"""
# One statement is one snapshot, and one round trip.
# Rule: the-cursor-is-what-was-read.
_NEW = f"""
SELECT s.snapshot, o.key, o.change, o.changed_at
FROM (SELECT pg_current_snapshot()::text AS snapshot) AS s
LEFT JOIN LATERAL ({_CHANGES} WHERE {_UNSEEN.format("$1", "$2")} LIMIT $3) AS o ON true
"""
_OF_TRANSACTION = f"""
{_CHANGES} WHERE o.xid = $1::xid8 AND o.id > $2 AND pg_visible_in_snapshot(o.xid, $3::pg_snapshot)
ORDER BY o.id LIMIT $4
"""
_SINCE = f"""
{_CHANGES} WHERE (o.xid, o.id) > ($1::xid8, $2) AND pg_visible_in_snapshot(o.xid, $3::pg_snapshot)
ORDER BY o.xid, o.id LIMIT $4
"""
_WRITTEN_BY = f"SELECT {_CHANGE} FROM syncer.outbox AS o WHERE o.xid = $1::xid8 LIMIT $2"
_RELATIONS = """
SELECT array_agg(DISTINCT w.relation), count(*)
FROM (SELECT o.relation FROM syncer.outbox AS o WHERE o.xid = $1::xid8 LIMIT $2) AS w
"""
# A segment that was never analysed looks smaller than it is; and a plan that finds one row also finds many.
_BY_INDEX = "SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan"
_SEGMENTS = sql.SQL("SELECT last_value, ARRAY[{}] FROM syncer.outbox_segment").format(
    sql.SQL(", ").join(
        sql.SQL("EXISTS (SELECT FROM {})").format(sql.Identifier("syncer", f"outbox_{number}"))
        for number in range(SEGMENTS)
    )
)
_USE_SEGMENT = "SELECT setval('syncer.outbox_segment', $1)"
_LOCK_SEGMENT = "LOCK TABLE {segment} IN ACCESS EXCLUSIVE MODE NOWAIT"
_IS_SEEN = "SELECT NOT EXISTS (SELECT FROM {segment} AS o WHERE {unseen})"
_TRUNCATE = "TRUNCATE {segment}"


def prepare(connection: Connection) -> None:
    """Make every query on this connection find its rows by index."""
    connection.execute(_BY_INDEX)


def new(connection: Connection, cursor: str, *, rows_max: int) -> tuple[str, list[Row] | None]:
    """Return the snapshot that sees what is new, which is the next cursor, and the changes.

    The changes are None if there are more than ``rows_max``: read them in pages.
    """
    rows = connection.execute(_NEW, (*_bounds(cursor), rows_max + 1), prepare=True).fetchall()
    if len(rows) > rows_max:
        return rows[0][0], None
    found = [Row(key.encode(), change, changed_at) for _, key, change, changed_at in rows if change is not None]
    return rows[0][0], found


def of_transaction(connection: Connection, xid: int, seen: str, *, rows_max: int) -> Iterator[list[Row]]:
    """Yield the changes of a transaction in pages, if a snapshot sees it."""
    id_ = -1
    while found := connection.execute(_OF_TRANSACTION, (str(xid), id_, seen, rows_max)).fetchall():
        id_ = found[-1][-1]
        yield _rows(found)


def since(connection: Connection, cursor: str, seen: str, *, rows_max: int) -> Iterator[tuple[list[Row], int]]:
    """Yield the changes of transactions that had not begun at the cursor, in pages, by transaction id.

    Each comes with the id of the last transaction in it, of which more may follow. Only those that a snapshot sees.
    """
    xid, id_ = _bounds(cursor)[0], -1
    while found := connection.execute(_SINCE, (xid, id_, seen, rows_max)).fetchall():
        xid, id_ = found[-1][-2:]
        yield _rows(found), int(xid)


def _rows(found: list[tuple[Any, ...]]) -> list[Row]:
    return [Row(key.encode(), change, changed_at) for key, change, changed_at, *_ in found]


def in_progress(cursor: str) -> list[int]:
    """Return the transactions that were in progress when the cursor was taken."""
    return [int(xid) for xid in cursor.split(":")[2].split(",") if xid]


def as_of(seen: str, xid: int) -> str:
    """Return the cursor that has seen what a snapshot sees of the transactions before this one."""
    before = [id_ for id_ in in_progress(seen) if id_ < xid]
    return f"{min(before, default=xid)}:{xid}:{','.join(map(str, before))}"


def relations_of(connection: Connection, xid: int) -> frozenset[str] | None:
    """The tables that a transaction changed; None if its changes are trimmed already, or too many to examine."""
    relations, rows = connection.execute(_RELATIONS, (str(xid), _LOOKED_AT_MAX)).fetchone() or (None, 0)
    return frozenset(relations) if relations and rows < _LOOKED_AT_MAX else None


def written_by(connection: Connection, xid: int) -> list[bytes] | None:
    """The changes of a transaction, as JSON; None if they are trimmed already, or too many to examine."""
    rows = connection.execute(_WRITTEN_BY, (str(xid), _LOOKED_AT_MAX)).fetchall()
    return [change for (change,) in rows] if 0 < len(rows) < _LOOKED_AT_MAX else None


def _unseen(cursor: str) -> sql.Composed:
    return sql.SQL(_UNSEEN).format(*(sql.Literal(bound) for bound in _bounds(cursor)))


def _bounds(cursor: str) -> tuple[str, str]:
    """The first transaction id that had not begun, and the earlier ones that were in progress."""
    _, xmax, in_progress = cursor.split(":")
    return xmax, f"{{{in_progress}}}"


def trim(connection: Connection, cursor: str) -> int:
    """Empty every segment whose rows the cursor has all seen, and direct writers to an empty one.

    Never waits: a segment that a transaction still uses is left for the next time.

    Returns:
        How many segments were emptied.
    """
    row = connection.execute(_SEGMENTS).fetchone()
    assert row is not None  # a sequence has a row
    current, has_rows = row
    others = [number for number in range(SEGMENTS) if number != current]
    trimmed = [number for number in others if has_rows[number] and _truncate_seen(connection, number, cursor)]
    empty = [number for number in others if not has_rows[number]] + trimmed
    if empty and has_rows[current]:
        connection.execute(_USE_SEGMENT, (min(empty),))
    return len(trimmed)


def _truncate_seen(connection: Connection, number: int, cursor: str) -> bool:
    segment = _segment(number)
    try:
        with connection.transaction():
            # Under this lock nothing is writing the segment: each of its rows is committed or never will be.
            # Rule: trim-under-a-lock.
            connection.execute(sql.SQL(_LOCK_SEGMENT).format(segment=segment))
            query = sql.SQL(_IS_SEEN).format(segment=segment, unseen=_unseen(cursor))
            if not value(connection, query):
                return False
            connection.execute(sql.SQL(_TRUNCATE).format(segment=segment))
    except psycopg.errors.LockNotAvailable:
        return False
    return True


def _segment(number: int) -> sql.Identifier:
    return sql.Identifier("syncer", f"outbox_{number}")
