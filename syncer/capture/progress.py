"""Progress: how far the outbox was read, and how far what was read is handled. All of it is in Postgres.

*Handled* is a snapshot: everything visible in it has reached its documents, or its jobs. `syncer status`, `wait` and
`verify` ask for it here, so that no other server has to answer.

    syncer.cursor       a row for each save of the process that reads the outbox: the snapshot, and the last number that
                        Kafka has acknowledged in each partition
    syncer.partition    the offset and the number that workers have handled, by partition
    syncer.handled      the newest row of syncer.cursor whose numbers are all handled; without Kafka it has none

    syncer.term         the terms of the leaders that have published to Kafka

Each record in Kafka has a number: the term of the leader that sent it, and a counter. No number is used twice, and
later ones are greater. A term has a name, too, which is committed before its first record. Records of a term that this
database lacks do not count: another primary has published them, or a failover has taken back the term. Then it has also
taken back every cursor that was saved in it, so the changes are published again.

A cursor is a ``pg_snapshot``, never an id or a time. It is stored in the database that it refers to, and is restored
together with it. After a failover or a restore of files it belongs to a state that the database still has: a commit
that it saw precedes it in the WAL. Ids that are assigned anew to other transactions are all beyond its end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import psycopg
from psycopg.types.json import Jsonb

from syncer.base.errors import SourceError, TokenError
from syncer.base.formatting import shortened
from syncer.base.postgres import Connection, row, value

WAIT_FOR_DISK = "SET LOCAL synchronous_commit TO DEFAULT"
"""For a transaction that creates jobs and saves progress: a crash must not keep the progress and forget the jobs."""
_COUNTER_BITS = 32
NOTES_MAX = 1000
"""How many saved cursors are kept that are not handled; beyond that, neighbours are merged."""

# A cursor is valid where every later write gets a transaction id behind its end. That excludes another cluster, where
# the row was written by the transaction that restored a dump, and this one after the restore of a dump of it that had
# advanced further. The ids that it saw in progress are not assigned again. No row may be written within a savepoint:
# its xmin would be that of a subtransaction.
# Rule: no-cursor-of-another-cluster.
IS_VALID = """
written_in::text::numeric % 4294967296 = xmin_of_row::text::numeric
AND pg_snapshot_xmax(snapshot) <= pg_snapshot_xmax(pg_current_snapshot())
"""
CURSOR = "(SELECT *, xmin AS xmin_of_row FROM syncer.cursor ORDER BY id DESC LIMIT 1)"
"""The row of the saved cursor, if there is one, as a table."""
_READ = f"SELECT snapshot::text, numbers, changes, {IS_VALID} FROM {CURSOR} AS c"
_SAVE = f"""
INSERT INTO syncer.cursor (snapshot, changed_at, changes, numbers, adopted_in)
SELECT $1::pg_snapshot, to_timestamp($2::float8), $3, $4, c.adopted_in FROM {CURSOR} AS c
"""
# A transaction that waits for one that has written some of these rows waits for this one: see `syncer.capture.outbox`.
_SAVE_ADOPTED = """
INSERT INTO syncer.cursor (snapshot, changes, numbers, adopted_in)
SELECT format('%1$s:%1$s:', pg_snapshot_xmin(pg_current_snapshot()))::pg_snapshot, 0, '{}', pg_current_xact_id()
"""
TERMS_MAX = 1000
"""How many terms are kept. If a record of an older one was not handled, its loss is noticed."""
_BEGIN_TERM = """
WITH gone AS (DELETE FROM syncer.term WHERE number <= (SELECT max(number) FROM syncer.term) - $1)
INSERT INTO syncer.term (number) SELECT coalesce(max(number), 0) + 1 FROM syncer.term RETURNING number, name::text
"""
_HAS_TERM = "SELECT EXISTS (SELECT FROM syncer.term WHERE name::text = $1) WHERE syncer.is_primary()"
_MERGE = """
WITH note AS (
    SELECT id, changed_at, lead(id) OVER w AS next, row_number() OVER w AS number, count(*) OVER () AS notes
    FROM syncer.cursor WHERE id > (SELECT id FROM syncer.handled) WINDOW w AS (ORDER BY id)
), gone AS (
    DELETE FROM syncer.cursor AS c USING note AS n
    WHERE c.id = n.id AND n.notes > $1 AND n.number % 2 = 1 AND n.next IS NOT NULL
    RETURNING n.next, n.changed_at
)
UPDATE syncer.cursor AS c SET changed_at = least(c.changed_at, gone.changed_at), written_in = pg_current_xact_id()
FROM gone WHERE c.id = gone.next
"""
# Adopted rows of the outbox have another transaction's id since, which belongs to no writer: they count as older than
# any moment, and are handled once that transaction is.
_LATEST = f"""
syncer.handled AS h
LEFT JOIN (SELECT id, snapshot, adopted_in, {IS_VALID} AS is_valid FROM {CURSOR} AS saved) AS c ON true
"""
# If nothing is written for a while, no cursor is saved either: then the outbox says that there is nothing to handle.
_IS_HANDLED = f"""
SELECT coalesce(c.is_valid AND pg_visible_in_snapshot(c.adopted_in, h.snapshot)
                AND pg_snapshot_xmax(h.snapshot) >= pg_snapshot_xmax(m.moment)
                AND NOT EXISTS (SELECT FROM pg_snapshot_xip(h.snapshot) AS x (id)
                                WHERE pg_visible_in_snapshot(x.id, m.moment)), false)
    OR h.id = coalesce(c.id, 0)
       AND NOT EXISTS (SELECT FROM syncer.outbox AS o
                       WHERE o.xid >= CASE WHEN c.is_valid THEN pg_snapshot_xmax(c.snapshot) ELSE '0' END
                         AND o.xid < pg_snapshot_xmax(m.moment) AND pg_visible_in_snapshot(o.xid, m.moment))
       AND NOT EXISTS (SELECT FROM pg_snapshot_xip(c.snapshot) AS x (id) JOIN syncer.outbox AS o ON o.xid = x.id
                       WHERE pg_visible_in_snapshot(x.id, m.moment))
       AND NOT EXISTS (SELECT FROM syncer.outbox AS o
                       WHERE o.xid = c.adopted_in AND NOT pg_visible_in_snapshot(c.adopted_in, c.snapshot))
FROM (VALUES ($1::pg_snapshot)) AS m (moment) CROSS JOIN {_LATEST}
WHERE syncer.is_primary()
"""
# Of a transaction that was open while rows were adopted, the rows keep its own id.
_TRANSACTION = f"""
SELECT r.is_read, coalesce(r.is_read AND pg_visible_in_snapshot($1::xid8, h.snapshot)
                             AND pg_visible_in_snapshot(c.adopted_in, h.snapshot), false),
       r.is_read OR EXISTS (SELECT FROM syncer.outbox AS o WHERE o.xid = $1::xid8)
                 OR NOT pg_visible_in_snapshot(c.adopted_in, c.snapshot)
                    AND EXISTS (SELECT FROM syncer.outbox AS o WHERE o.xid = c.adopted_in)
FROM {_LATEST} CROSS JOIN LATERAL (
    SELECT coalesce(c.is_valid AND pg_visible_in_snapshot($1::xid8, c.snapshot)
                    AND pg_visible_in_snapshot(c.adopted_in, c.snapshot), false) AS is_read
) AS r
WHERE syncer.is_primary()
"""
# Forwards only, by number: a worker that was replaced meanwhile may be late. A refresh covers a number, and no offset.
_ADVANCE = """
INSERT INTO syncer.partition AS p (partition, next_offset, number)
SELECT * FROM unnest($1::integer[], $2::bigint[], $3::bigint[])
ON CONFLICT (partition) DO UPDATE
SET next_offset = coalesce(excluded.next_offset, p.next_offset), number = excluded.number, saved_at = clock_timestamp()
WHERE p.number < excluded.number
"""
_TOKEN = re.compile(r"(?P<xid>[0-9]{1,20})(?:\.(?P<identity>[0-9a-f]{8}))?", re.ASCII)
_XIDS = range(3, 1 << 64)
"""Postgres reserves smaller ids."""
_STATUS = "SELECT pg_xact_status($1::xid8), syncer.identity(), syncer.identity(of_start => true)"
_NOT_COMMITTED = {
    "aborted": ("was rolled back", "Nothing of it will be indexed. Do it again, if it failed."),
    "in progress": (
        "is not committed as yet",
        "Take the token inside the transaction, commit, and wait then. (It may be prepared, for a two-phase commit.)",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A cursor as it is saved, of this database if it is valid, with the number of changes that were read so far.

    It has the number of the last record that Kafka has acknowledged, by partition; none without Kafka.
    """

    snapshot: str
    numbers: dict[int, int]
    changes: int
    is_valid: bool


class Token(NamedTuple):
    """The name of a transaction: its id, and the identity of its database, which a failover changes, if it is known."""

    xid: int
    identity: str | None = None


class Term(NamedTuple):
    """The time during which one process leads. Every number in it is greater than ``start``, by 4 billion at most."""

    start: int
    name: str


class Transaction(NamedTuple):
    """How far the changes of a committed transaction are: read from the outbox, and handled.

    It ``is_captured`` if it has any changes. One whose rows were trimmed counts as having some.
    """

    is_read: bool
    is_handled: bool
    is_captured: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlace:
    """How far a partition is handled: up to this number.

    ``next_offset`` is that of the first record that is not; None to begin with the oldest, or if it is as saved.
    """

    next_offset: int | None
    number: int


def begin_term(connection: Connection) -> Term:
    """Begin a term, as the leader."""
    # Rules: numbers-are-never-reused, a-term-has-a-name, a-term-is-committed-before-its-records.
    number, name = row(connection, _BEGIN_TERM, (TERMS_MAX,))
    return Term(number << _COUNTER_BITS, name)


def has_term(connection: Connection, name: str) -> bool:
    """Whether a term was begun in the history of this database."""
    return bool(value(connection, _HAS_TERM, (name,)))


def read(connection: Connection) -> Cursor | None:
    """The saved cursor, if there is one."""
    row = connection.execute(_READ).fetchone()
    if row is None:
        return None
    snapshot, numbers, changes, is_valid = row
    by_partition = {int(partition): number for partition, number in numbers.items()}
    return Cursor(snapshot=snapshot, numbers=by_partition, changes=changes, is_valid=is_valid)


def save(connection: Connection, cursor: Cursor, *, changed_at: float | None) -> None:
    """Save a cursor, as the leader; everything between it and the one before belongs to its numbers.

    ``changed_at`` is when the oldest change in between was made, in Unix time; None if there is none.
    """
    connection.execute(_SAVE, (cursor.snapshot, changed_at, cursor.changes, Jsonb(cursor.numbers)), prepare=True)


def adopt(connection: Connection) -> int:
    """Start without a valid cursor: every row in the outbox becomes a new change; return how many there are.

    Transaction ids of another cluster mean nothing here, neither in the cursor nor in the rows.
    """
    with connection.transaction():
        connection.execute("DELETE FROM syncer.cursor")
        connection.execute(_SAVE_ADOPTED)
        return connection.execute("UPDATE syncer.outbox SET xid = pg_current_xact_id()").rowcount


def prune(connection: Connection) -> None:
    """Remove cursors that are handled, except the last; merge neighbours if there are very many others."""
    connection.execute("DELETE FROM syncer.cursor WHERE id < (SELECT id FROM syncer.handled)")
    connection.execute(_MERGE, (NOTES_MAX,))


def newest(connection: Connection) -> int:
    """The row of the saved cursor; 0 if there is none."""
    return int(str(value(connection, "SELECT coalesce(max(id), 0) FROM syncer.cursor")))


def handled(connection: Connection) -> int:
    """The row of the newest saved cursor up to which everything is handled; 0 if there is none."""
    return int(str(value(connection, "SELECT id FROM syncer.handled")))


def moment(connection: Connection) -> str:
    """A snapshot of what is committed now, for `is_handled`."""
    return str(value(connection, "SELECT pg_current_snapshot()::text WHERE syncer.is_primary()"))


def is_handled(connection: Connection, moment: str) -> bool:
    """Whether every change committed before a moment is handled."""
    return bool(value(connection, _IS_HANDLED, (moment,)))


def parse_token(text: str) -> Token:
    """Parse a token as an application passes it.

    Raises:
        TokenError: The text is not a token.
    """
    token_match = _TOKEN.fullmatch(text.strip())
    if token_match is None or (xid := int(token_match["xid"])) not in _XIDS:
        raise TokenError(
            f"{str(shortened(text))!r} is no token",
            hint="A token is what SELECT syncer.token() returns in the transaction that is waited for, before its "
            "commit,\nor what SELECT pg_current_xact_id() does.",
        )
    return Token(xid, token_match["identity"])


def require_committed(connection: Connection, token: Token) -> Token:
    """Refuse a transaction that there is no point in waiting for; return the token with the database's identity.

    A transaction so old that Postgres has forgotten its outcome is taken to be committed.

    Raises:
        TokenError: It is open, was rolled back, has not begun, or has another database identity.
        SourceError: This server is a replica, so the outcome is not known here.
    """
    if value(connection, "SELECT pg_is_in_recovery()"):
        raise SourceError(
            "postgres.dsn leads to a replica, which does not know what syncer has done",
            hint="Ask the primary: a token may be waited for from anywhere, but not there.",
        )
    try:
        [(status, *identities)] = connection.execute(_STATUS, (str(token.xid),)).fetchall()
    except psycopg.errors.InvalidParameterValue as error:
        raise TokenError(
            f"No transaction {token.xid} has begun in this database",
            hint="Is the token of another database, or from before a restore? Documents are written anew after one.",
        ) from error
    if token.identity not in (None, *identities):
        raise TokenError(
            f"Transaction {token.xid} is of another database than this one, or of one before a failover or a restore",
            hint="The token cannot show whether its commit survived. Check whether the data is there;\n"
            "what was in doubt is written again after a failover, which syncer status shows as jobs.",
        )
    if status in _NOT_COMMITTED:
        outcome, hint = _NOT_COMMITTED[status]
        raise TokenError(f"Transaction {token.xid} {outcome}", hint=hint)
    return Token(token.xid, identities[0])


def transaction(connection: Connection, xid: int) -> Transaction:
    """How far the changes of a committed transaction are."""
    return Transaction(*connection.execute(_TRANSACTION, (str(xid),)).fetchall()[0])


def places(connection: Connection) -> dict[int, PartitionPlace]:
    """How far each partition is handled, as far as anything in it is."""
    rows = connection.execute("SELECT partition, next_offset, number FROM syncer.partition")
    return {partition: PartitionPlace(next_offset=offset, number=number) for partition, offset, number in rows}


def forget(connection: Connection, partitions: int) -> None:
    """Forget how far partitions were handled that the topic does not have, as it has so many."""
    connection.execute("DELETE FROM syncer.partition WHERE partition >= $1", (partitions,))


def advance(connection: Connection, reached: Mapping[int, PartitionPlace]) -> None:
    """Save how far partitions are handled, unless more was saved before."""
    positions = reached.values()
    columns = [*reached], [position.next_offset for position in positions], [position.number for position in positions]
    connection.execute(_ADVANCE, columns, prepare=True)
