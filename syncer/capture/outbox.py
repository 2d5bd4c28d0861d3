"""The outbox: finds the rows that a cursor has not seen, and removes rows that it has.

A cursor is a ``pg_snapshot`` (as in PgQ). Unseen rows are found by index, even while another transaction stays open for
long. Rows are removed by TRUNCATE of whole segments. A DELETE would leave dead rows, which a transaction held open for
hours keeps from being vacuumed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import sql

from syncer.base.postgres import Connection, copied, snapshot, value

SEGMENTS = 8
_LOOKED_AT_MAX = 1000
"""A transaction with this many changes or more is not examined change by change."""

Row = tuple[bytes, bytes]
"""A change as it is published: Kafka key and JSON."""

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
       {_CHANGE} AS change
FROM syncer.outbox AS o LEFT JOIN syncer.capture AS c USING (relation)
WHERE {{unseen}}
"""  # noqa: S608 - a constant of ours
# One statement is one snapshot, and one round trip.
# Rule: the-cursor-is-what-was-read.
_NEW = f"""
SELECT s.snapshot, o.key, o.change
FROM (SELECT pg_current_snapshot()::text AS snapshot) AS s
LEFT JOIN LATERAL ({_CHANGES.format(unseen=_UNSEEN.format("$1", "$2"))} LIMIT $3) AS o ON true
"""  # noqa: S608 - a constant of ours
_CURRENT_SNAPSHOT = "SELECT pg_current_snapshot()::text"
_WAITING = """
SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(o.changed_at)), 0)::float8
FROM syncer.outbox AS o
WHERE {unseen} AND ($1::text[] IS NULL OR o.relation = ANY ($1))
"""
# A cursor is valid where every later write gets a transaction id behind its end. That excludes another cluster, and
# this one after the restore of a dump of it that had advanced further. The ids that it saw in progress are not assigned
# again.
# Rule: no-cursor-of-another-cluster.
_IS_TRUE = """
system_identifier = (SELECT system_identifier FROM pg_control_system())
AND pg_snapshot_xmax(snapshot) <= pg_snapshot_xmax(pg_current_snapshot())
"""
# The cursor is saved so often that its row has many versions while a transaction stays open; this finds the newest.
CURSOR = "(SELECT * FROM syncer.relay_cursor ORDER BY number DESC LIMIT 1)"
"""The row of the saved cursor, if there is one, as a table."""
_SAVED_CURSOR = f"SELECT snapshot::text, {_IS_TRUE} FROM {CURSOR} AS c"  # noqa: S608 - constants of ours
_NOTHING_SEEN = "1:1:"
# Adopted rows have another transaction id since. If the cursor does not see a transaction, and the outbox has no row of
# it, it wrote none.
_PUBLICATION = f"""
SELECT coalesce(c.is_true AND pg_visible_in_snapshot(t.xid, c.snapshot), false),
       EXISTS (SELECT FROM syncer.outbox AS o WHERE o.xid = t.xid)
FROM (VALUES (true)) AS one (row)
LEFT JOIN (SELECT snapshot, adopted_in, {_IS_TRUE} AS is_true FROM {CURSOR} AS saved) AS c ON true
CROSS JOIN LATERAL (SELECT greatest($1::xid8, CASE WHEN c.is_true THEN c.adopted_in END) AS xid) AS t
"""  # noqa: S608 - constants of ours
# Adopted rows have another id since, which belongs to no writer: they count as committed before.
_UNPUBLISHED = f"""
SELECT count(*) FROM syncer.outbox AS o
WHERE {{unseen}} AND o.relation = ANY ($2)
  AND (pg_visible_in_snapshot(o.xid, $1::pg_snapshot) OR o.xid = (SELECT c.adopted_in FROM {CURSOR} AS c))
"""  # noqa: S608 - a constant of ours
_WRITTEN_BY = f"SELECT {_CHANGE} FROM syncer.outbox AS o WHERE o.xid = $1::xid8 LIMIT $2"  # noqa: S608 - a constant of ours
_RELATIONS = """
SELECT array_agg(DISTINCT w.relation), count(*)
FROM (SELECT o.relation FROM syncer.outbox AS o WHERE o.xid = $1::xid8 LIMIT $2) AS w
"""
# A segment that was never analysed looks smaller than it is; and a plan that finds one row also finds many.
_BY_INDEX = "SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan"
_ROOM = """
SELECT coalesce(sum(pg_total_relation_size(inhrelid)), 0), count(*) FILTER (WHERE pg_relation_size(inhrelid) > 0)
FROM pg_inherits WHERE inhparent = 'syncer.outbox'::regclass
"""
_RENEW = "UPDATE syncer.outbox SET xid = pg_current_xact_id()"

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What became of a transaction's changes.

    Args:
        is_published: Whether the saved cursor sees it: Kafka has acknowledged all of them.
        is_captured: Whether it has any. A transaction whose rows were trimmed counts as having some.
    """

    is_published: bool
    is_captured: bool


def prepare(connection: Connection) -> None:
    """Make every query on this connection find its rows by index."""
    connection.execute(_BY_INDEX)


def new(connection: Connection, cursor: str, *, rows_max: int) -> tuple[str, list[Row]] | None:
    """The changes that the cursor has not seen, and the snapshot that sees them: the next cursor.

    Returns:
        None if there are more than `rows_max`; `all_new` has them all.
    """
    rows = connection.execute(_NEW, (*_bounds(cursor), rows_max + 1), prepare=True).fetchall()
    if len(rows) > rows_max:
        return None
    return rows[0][0], [(key.encode(), change) for _, key, change in rows if change is not None]


@contextmanager
def all_new(connection: Connection, cursor: str) -> Iterator[tuple[str, Iterator[Row]]]:
    """Like `new`, but without a limit; the rows are streamed, never whole in memory."""
    with snapshot(connection):
        seen = str(value(connection, _CURRENT_SNAPSHOT))
        # Closed before the transaction ends, which waits for its connection: the reader may have failed in between.
        with closing(copied(connection, sql.SQL(_CHANGES).format(unseen=_unseen(cursor)))) as rows:
            yield seen, ((key or b"", change or b"") for key, change in rows)


def saved_cursor(connection: Connection) -> str:
    """The cursor that the relay would start from: what it has not seen is not known to be published."""
    saved, is_true = read_cursor(connection) or (_NOTHING_SEEN, True)
    return saved if is_true else _NOTHING_SEEN


def read_cursor(connection: Connection) -> tuple[str, bool] | None:
    """The saved cursor, if any, and whether it is valid in this database."""
    row = connection.execute(_SAVED_CURSOR).fetchone()
    return None if row is None else (row[0], row[1])


def publication(connection: Connection, xid: int) -> Publication:
    """What became of the changes of a committed transaction."""
    is_published, is_there = connection.execute(_PUBLICATION, (str(xid),)).fetchone() or (False, False)
    return Publication(is_published=is_published, is_captured=is_published or is_there)


def moment(connection: Connection) -> str:
    """A snapshot of what is committed now, for `unpublished`."""
    return str(value(connection, _CURRENT_SNAPSHOT))


def unpublished(connection: Connection, moment: str, relations: Collection[str]) -> int:
    """How many changes of these tables were committed before a moment, and are not known to be published."""
    query = sql.SQL(_UNPUBLISHED).format(unseen=_unseen(saved_cursor(connection)))
    return int(str(value(connection, query, (moment, list(relations)))))


def relations_of(connection: Connection, xid: int) -> frozenset[str] | None:
    """The tables that a transaction changed; None if its changes are trimmed already, or too many to examine."""
    relations, rows = connection.execute(_RELATIONS, (str(xid), _LOOKED_AT_MAX)).fetchone() or (None, 0)
    return frozenset(relations) if relations and rows < _LOOKED_AT_MAX else None


def written_by(connection: Connection, xid: int) -> list[bytes] | None:
    """The changes of a transaction, as JSON; None if they are trimmed already, or too many to examine."""
    rows = connection.execute(_WRITTEN_BY, (str(xid), _LOOKED_AT_MAX)).fetchall()
    return [change for (change,) in rows] if 0 < len(rows) < _LOOKED_AT_MAX else None


def are_writers_busy(before: str, now: str) -> bool:
    """Whether a transaction that began after the first cursor was taken was in progress at the second."""
    began_from, _ = _bounds(before)
    _, _, in_progress = now.split(":")
    return any(int(xid) >= int(began_from) for xid in in_progress.split(",") if xid)


def _unseen(cursor: str) -> sql.Composed:
    return sql.SQL(_UNSEEN).format(*(sql.Literal(one) for one in _bounds(cursor)))


def _bounds(cursor: str) -> tuple[str, str]:
    """The first transaction id that had not begun, and the earlier ones that were in progress."""
    _, xmax, in_progress = cursor.split(":")
    return xmax, f"{{{in_progress}}}"


def waiting(connection: Connection, cursor: str, relations: Collection[str] | None = None) -> tuple[int, float]:
    """How many changes of these tables, or of all, the cursor has not seen; and the age of the oldest in seconds."""
    query = sql.SQL(_WAITING).format(unseen=_unseen(cursor))
    row = connection.execute(query, (None if relations is None else list(relations),)).fetchone()
    assert row is not None  # noqa: S101 - an aggregate returns a row
    return row[0], row[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The outbox's disk usage.

    Args:
        bytes: The size on disk, including published rows that are not trimmed yet.
        segments: How many segments have rows.
    """

    bytes: int
    segments: int


def room(connection: Connection) -> Room:
    """The outbox's disk usage now."""
    row = connection.execute(_ROOM).fetchone()
    assert row is not None  # noqa: S101 - an aggregate returns a row
    return Room(bytes=int(row[0]), segments=row[1])


def renew(connection: Connection) -> int:
    """Make every row a change of the current transaction; return how many there were.

    For rows from another cluster, whose transaction ids mean nothing here.
    """
    return connection.execute(_RENEW).rowcount


def trim(connection: Connection, cursor: str) -> int:
    """Empty every segment whose rows the cursor has all seen, and direct writers to an empty one.

    Never waits: a segment that a transaction still uses is left for the next time.

    Returns:
        How many segments were emptied.
    """
    row = connection.execute(_SEGMENTS).fetchone()
    assert row is not None  # noqa: S101 - a sequence has a row
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
