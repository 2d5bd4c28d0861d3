"""The outbox: what is in it that a cursor has not seen, and how its rows go away.

A cursor is a ``pg_snapshot`` (as in PgQ). What it has not seen is found by index, however long some other transaction
stays open. Rows go away by TRUNCATE of whole segments: a DELETE would leave dead rows behind that a
transaction held open for hours keeps from being vacuumed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import psycopg
from psycopg import sql

from syncer.postgres import Connection, stream, value

SEGMENTS = 8

_CHANGE = """
json_build_object('id', o.id, 'changed_at', extract(epoch FROM o.changed_at), 'relation', o.relation,
                  'operation', o.operation, 'old', o.old, 'new', o.new)
"""
_CHANGES = f"""
SELECT c.aggregate || ':' || coalesce(o.new ->> c.aggregate_column, o.old ->> c.aggregate_column, ''), {_CHANGE}
FROM syncer.outbox AS o LEFT JOIN syncer.capture AS c USING (relation)
WHERE {{unseen}}
"""  # noqa: S608 - a constant of ours
_OLDEST = f"""
SELECT {_CHANGE} FROM syncer.outbox AS o WHERE {{unseen}} AND o.relation = ANY ($1) ORDER BY o.id LIMIT $2
"""  # noqa: S608 - a constant of ours
_WAITING = """
SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(o.changed_at)), 0)::float8
FROM syncer.outbox AS o
WHERE {unseen} AND ($1::text[] IS NULL OR o.relation = ANY ($1))
"""
# One of another cluster means nothing here: the relay will publish all that there is.
_SAVED_CURSOR = """
SELECT coalesce((SELECT c.snapshot::text
                 FROM syncer.relay_cursor AS c JOIN pg_control_system() AS s USING (system_identifier)), '1:1:')
"""
_BY_INDEX = "SET LOCAL enable_seqscan = off"
_RENEW = "UPDATE syncer.outbox SET xid = pg_current_xact_id()"

_CURRENT_SEGMENT = "SELECT last_value FROM syncer.outbox_segment"
_USE_SEGMENT = "SELECT setval('syncer.outbox_segment', $1)"
_IS_EMPTY = "SELECT NOT EXISTS (SELECT FROM {segment})"
_LOCK_SEGMENT = "LOCK TABLE {segment} IN ACCESS EXCLUSIVE MODE NOWAIT"
_IS_SEEN = "SELECT NOT EXISTS (SELECT FROM {segment} AS o WHERE {unseen})"
_TRUNCATE = "TRUNCATE {segment}"


def changes(connection: Connection, cursor: str, *, page: int) -> Iterator[list[tuple[str | None, bytes]]]:
    """The changes that the caller's snapshot sees and the cursor did not: Kafka key and JSON, in pages.

    To be called in the transaction of that snapshot.
    """
    # A segment that was never analysed looks smaller than it is.
    connection.execute(_BY_INDEX)
    query = sql.SQL(_CHANGES).format(unseen=_unseen(cursor))
    for rows in stream(connection, query, page=page):
        yield [(key, change) for key, change in rows]


def saved_cursor(connection: Connection) -> str:
    """Where the relay would begin: what it has not seen is not published, or not known to be."""
    return str(value(connection, _SAVED_CURSOR))


def oldest(connection: Connection, cursor: str, relations: Collection[str], *, limit: int) -> list[bytes]:
    """The changes of these tables that the cursor has not seen, as JSON: those that were captured first."""
    query = sql.SQL(_OLDEST).format(unseen=_unseen(cursor))
    return [change for (change,) in connection.execute(query, (list(relations), limit))]


def _unseen(cursor: str) -> sql.Composed:
    """What had not begun when the cursor was taken, or was in progress then."""
    _, xmax, in_progress = cursor.split(":")
    return sql.SQL("(o.xid >= {}::xid8 OR o.xid = ANY ({}::xid8[]))").format(
        sql.Literal(xmax), sql.Literal(f"{{{in_progress}}}")
    )


def waiting(connection: Connection, cursor: str, relations: Collection[str] | None = None) -> tuple[int, float]:
    """How many changes the cursor has not seen, and the age of the oldest in seconds; of these tables, if any."""
    query = sql.SQL(_WAITING).format(unseen=_unseen(cursor))
    row = connection.execute(query, (None if relations is None else list(relations),)).fetchone()
    assert row is not None  # noqa: S101 - an aggregate returns a row
    return row[0], row[1]


def renew(connection: Connection) -> int:
    """Make every row a change of the current transaction; how many there were.

    For rows that came from another cluster, whose transaction ids mean nothing here.
    """
    return connection.execute(_RENEW).rowcount


def trim(connection: Connection, cursor: str) -> int:
    """Empty every segment that the cursor has seen whole, and turn writers to an empty one.

    Never waits: a segment that a transaction still uses is left for the next time.

    Returns:
        How many segments were emptied.
    """
    current = int(str(value(connection, _CURRENT_SEGMENT)))
    trimmed, empty = 0, []
    for number in range(SEGMENTS):
        if number == current:
            continue
        if _is_empty(connection, number):
            empty.append(number)
        elif _truncate_seen(connection, number, cursor):
            trimmed += 1
            empty.append(number)
    if empty and not _is_empty(connection, current):
        connection.execute(_USE_SEGMENT, (empty[0],))
    return trimmed


def _is_empty(connection: Connection, number: int) -> bool:
    return bool(value(connection, sql.SQL(_IS_EMPTY).format(segment=_segment(number))))


def _truncate_seen(connection: Connection, number: int, cursor: str) -> bool:
    segment = _segment(number)
    try:
        with connection.transaction():
            # Under this lock nobody is writing the segment: what is in it is committed or never will be.
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
