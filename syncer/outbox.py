"""The outbox: what is in it that a cursor has not seen, and how its rows go away.

A cursor is a ``pg_snapshot`` (as in PgQ). What it has not seen is found by index, however long some other transaction
stays open. Rows go away by TRUNCATE of whole segments: a DELETE would leave dead rows behind that a
transaction held open for hours keeps from being vacuumed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import sql

from syncer.postgres import Connection, copied, snapshot, value

SEGMENTS = 8
_LOOKED_AT_MAX = 1000
"""From how many changes of one transaction on they are not looked at one by one."""

Row = tuple[bytes, bytes]
"""A change as it is published: Kafka key and JSON."""

# What had not begun when the cursor was taken, or was in progress then.
_UNSEEN = "(o.xid >= {}::xid8 OR o.xid = ANY ({}::xid8[]))"
_CHANGE = """
json_build_object('id', o.id, 'changed_at', extract(epoch FROM o.changed_at), 'relation', o.relation,
                  'operation', o.operation, 'old', o.old, 'new', o.new)
"""
_ID_AT = len('{"id" : ')
_CHANGES = f"""
SELECT coalesce(c.aggregate || ':' || coalesce(o.new ->> c.aggregate_column, o.old ->> c.aggregate_column, ''), '')
         AS key,
       {_CHANGE} AS change
FROM syncer.outbox AS o LEFT JOIN syncer.capture AS c USING (relation)
WHERE {{unseen}}
"""  # noqa: S608 - a constant of ours
# One statement is one snapshot, and one round trip.
_NEW = f"""
SELECT s.snapshot, o.key, o.change
FROM (SELECT pg_current_snapshot()::text AS snapshot) AS s
LEFT JOIN LATERAL ({_CHANGES.format(unseen=_UNSEEN.format("$1", "$2"))} LIMIT $3) AS o ON true
"""  # noqa: S608 - a constant of ours
_CURRENT_SNAPSHOT = "SELECT pg_current_snapshot()::text"
_OLDEST = f"""
SELECT {_CHANGE} FROM syncer.outbox AS o WHERE {{unseen}} AND o.relation = ANY ($1) ORDER BY o.id LIMIT $2
"""  # noqa: S608 - a constant of ours
_WAITING = """
SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(o.changed_at)), 0)::float8
FROM syncer.outbox AS o
WHERE {unseen} AND ($1::text[] IS NULL OR o.relation = ANY ($1))
"""
# A cursor is true where all that will be written gets ids from behind its end: not in another cluster, nor where a dump
# of this one was restored that had come further. The ids of transactions that it saw going on do not come again.
_IS_TRUE = """
system_identifier = (SELECT system_identifier FROM pg_control_system())
AND pg_snapshot_xmax(snapshot) <= pg_snapshot_xmax(pg_current_snapshot())
"""
# Saved so often that, while some transaction stays open, the versions of its row are many: the newest is looked for.
CURSOR = "(SELECT * FROM syncer.relay_cursor ORDER BY stretch DESC LIMIT 1)"
"""The row of the saved cursor, if there is one, as a table."""
_SAVED_CURSOR = f"SELECT snapshot::text, {_IS_TRUE} FROM {CURSOR} AS c"  # noqa: S608 - constants of ours
_NOTHING_SEEN = "1:1:"
# What was adopted has another id since. A cursor that sees nothing of a transaction, and no row of it: it wrote none.
_PUBLICATION = f"""
SELECT coalesce(c.is_true AND pg_visible_in_snapshot(t.xid, c.snapshot), false),
       EXISTS (SELECT FROM syncer.outbox AS o WHERE o.xid = t.xid)
FROM (VALUES (true)) AS one (row)
LEFT JOIN (SELECT snapshot, adopted_in, {_IS_TRUE} AS is_true FROM {CURSOR} AS saved) AS c ON true
CROSS JOIN LATERAL (SELECT greatest($1::xid8, CASE WHEN c.is_true THEN c.adopted_in END) AS xid) AS t
"""  # noqa: S608 - constants of ours
# What was adopted has another id since, which is that of no writer: it counts as committed before.
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
# A segment that was never analysed looks smaller than it is; and what finds one row finds many.
_BY_INDEX = "SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan"
_ROOM = """
SELECT coalesce(sum(pg_total_relation_size(inhrelid)), 0), count(*) FILTER (WHERE pg_relation_size(inhrelid) > 0)
FROM pg_inherits WHERE inhparent = 'syncer.outbox'::regclass
"""
_RENEW = "UPDATE syncer.outbox SET xid = pg_current_xact_id()"

_CURRENT_SEGMENT = "SELECT last_value FROM syncer.outbox_segment"
_USE_SEGMENT = "SELECT setval('syncer.outbox_segment', $1)"
_IS_EMPTY = "SELECT NOT EXISTS (SELECT FROM {segment})"
_LOCK_SEGMENT = "LOCK TABLE {segment} IN ACCESS EXCLUSIVE MODE NOWAIT"
_IS_SEEN = "SELECT NOT EXISTS (SELECT FROM {segment} AS o WHERE {unseen})"
_TRUNCATE = "TRUNCATE {segment}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What has become of the changes of a transaction.

    Args:
        is_published: Whether the saved cursor sees it: Kafka has acknowledged all of them.
        is_captured: Whether it has any. One whose rows were given back counts as having some.
    """

    is_published: bool
    is_captured: bool


def prepare(connection: Connection) -> None:
    """Have every query on this connection find its rows by index."""
    connection.execute(_BY_INDEX)


def new(connection: Connection, cursor: str, *, rows_max: int) -> tuple[str, list[Row]] | None:
    """The changes that the cursor has not seen, and the snapshot that sees them: the next cursor.

    Returns:
        None if there are more than that; `all_new` has them all.
    """
    rows = connection.execute(_NEW, (*_bounds(cursor), rows_max + 1), prepare=True).fetchall()
    if len(rows) > rows_max:
        return None
    return rows[0][0], [(key.encode(), change) for _, key, change in rows if change is not None]


@contextmanager
def all_new(connection: Connection, cursor: str) -> Iterator[tuple[str, Iterator[Row]]]:
    """The same however many there are, as Postgres finds them: never whole in memory."""
    with snapshot(connection):
        seen = str(value(connection, _CURRENT_SNAPSHOT))
        # Closed before the transaction ends, which waits for its connection: whoever reads may have failed in between.
        with closing(copied(connection, sql.SQL(_CHANGES).format(unseen=_unseen(cursor)))) as rows:
            yield seen, ((key or b"", change or b"") for key, change in rows)


def saved_cursor(connection: Connection) -> str:
    """Where the relay would begin: what it has not seen is not published, or not known to be."""
    saved, is_true = read_cursor(connection) or (_NOTHING_SEEN, True)
    return saved if is_true else _NOTHING_SEEN


def read_cursor(connection: Connection) -> tuple[str, bool] | None:
    """The cursor that was saved, if any, and whether it is true here."""
    row = connection.execute(_SAVED_CURSOR).fetchone()
    return None if row is None else (row[0], row[1])


def publication(connection: Connection, xid: int) -> Publication:
    """What has become of the changes of a transaction that is committed."""
    is_published, is_there = connection.execute(_PUBLICATION, (str(xid),)).fetchone() or (False, False)
    return Publication(is_published=is_published, is_captured=is_published or is_there)


def moment(connection: Connection) -> str:
    """What is committed as of now, for `unpublished`."""
    return str(value(connection, _CURRENT_SNAPSHOT))


def unpublished(connection: Connection, moment: str, relations: Collection[str]) -> int:
    """How many changes of these tables were committed before a moment, and are not known to be published."""
    query = sql.SQL(_UNPUBLISHED).format(unseen=_unseen(saved_cursor(connection)))
    return int(str(value(connection, query, (moment, list(relations)))))


def relations_of(connection: Connection, xid: int) -> frozenset[str] | None:
    """The tables that a transaction has changed; None if that is not known: its changes are given back, or too many."""
    relations, rows = connection.execute(_RELATIONS, (str(xid), _LOOKED_AT_MAX)).fetchone() or (None, 0)
    return frozenset(relations) if relations and rows < _LOOKED_AT_MAX else None


def written_by(connection: Connection, xid: int) -> list[bytes] | None:
    """The changes of a transaction, as JSON; None if they are given back already, or too many to be looked at."""
    rows = connection.execute(_WRITTEN_BY, (str(xid), _LOOKED_AT_MAX)).fetchall()
    return [change for (change,) in rows] if 0 < len(rows) < _LOOKED_AT_MAX else None


def oldest(connection: Connection, cursor: str, relations: Collection[str], *, limit: int) -> list[bytes]:
    """The changes of these tables that the cursor has not seen, as JSON: those that were captured first."""
    query = sql.SQL(_OLDEST).format(unseen=_unseen(cursor))
    return [change for (change,) in connection.execute(query, (list(relations), limit))]


def id_of(row: Row) -> int:
    """Which change a row is; read from the beginning of its JSON, where `_CHANGE` puts it."""
    change = row[1]
    return int(change[_ID_AT : change.index(b",", _ID_AT)])


def _unseen(cursor: str) -> sql.Composed:
    return sql.SQL(_UNSEEN).format(*(sql.Literal(one) for one in _bounds(cursor)))


def _bounds(cursor: str) -> tuple[str, str]:
    """From where on nothing had begun, and what was in progress before."""
    _, xmax, in_progress = cursor.split(":")
    return xmax, f"{{{in_progress}}}"


def waiting(connection: Connection, cursor: str, relations: Collection[str] | None = None) -> tuple[int, float]:
    """How many changes the cursor has not seen, and the age of the oldest in seconds; of these tables, if any."""
    query = sql.SQL(_WAITING).format(unseen=_unseen(cursor))
    row = connection.execute(query, (None if relations is None else list(relations),)).fetchone()
    assert row is not None  # noqa: S101 - an aggregate returns a row
    return row[0], row[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the outbox takes.

    Args:
        bytes: On disk, published rows that are not yet given back included.
        segments: How many segments have rows.
    """

    bytes: int
    segments: int


def room(connection: Connection) -> Room:
    """What it takes."""
    row = connection.execute(_ROOM).fetchone()
    assert row is not None  # noqa: S101 - an aggregate returns a row
    return Room(bytes=int(row[0]), segments=row[1])


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
