"""Capture: which tables have the triggers that write the outbox, in the application's own transaction.

Guarantees: each row changed by INSERT, UPDATE, DELETE or TRUNCATE, from whatever client, leaves a row in the
outbox that commits or rolls back with it. An UPDATE that changes no watched column leaves none. A key that
changes is a delete and an insert. Installing and removing never make an application wait
behind a transaction that we wait for: the lock is asked for briefly, given up, and asked for again.

Assumes tables that `syncer.probe` allows, with a key; `syncer.dependency` finds it. What no trigger of a partitioned
table sees (a partition that is attached or detached with its rows, or truncated) is found by `note_files`. So is
what no trigger of any table sees: that it was written anew, with other values for all that anybody knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

import psycopg
from psycopg import sql

from syncer import doorbell, trigger
from syncer.errors import SourceError
from syncer.postgres import Connection, value
from syncer.trigger import Capture

_LOCK_TIMEOUT = "200ms"
_PAUSE_SECONDS = 0.5

# A table and its partitions of every level, each with the transaction that attached it. Asked of the catalogue: the
# function for it waits for whoever holds the lock of a partition.
_TREE = """
WITH RECURSIVE tree (oid, attached_by) AS (
    SELECT to_regclass($1)::oid, NULL::xid
    UNION ALL
    SELECT i.inhrelid, i.xmin FROM tree AS t JOIN pg_inherits AS i ON i.inhparent = t.oid WHERE NOT i.inhdetachpending
)
"""
# The worker of a subscription fires no trigger that sees a whole statement. What has a trigger by row keeps it.
_IS_BY_ROW = """
SELECT EXISTS (SELECT FROM pg_class WHERE oid = to_regclass($1) AND relkind = 'p')
    OR EXISTS (SELECT FROM pg_subscription_rel WHERE srrelid = to_regclass($1))
    OR EXISTS (SELECT FROM pg_trigger WHERE tgrelid = to_regclass($1) AND tgfoid = to_regproc($2) AND tgname = $3)
"""
# A table that has become a partition, or has others inherit from it, is written past its triggers.
_HAS_STATEMENT_TRIGGERS = """
SELECT count(*) = cardinality($3::text[])
       AND NOT EXISTS (SELECT FROM pg_inherits WHERE to_regclass($1) IN (inhrelid, inhparent))
FROM pg_trigger
WHERE tgrelid = to_regclass($1) AND tgfoid = to_regproc($2) AND tgenabled = 'A' AND tgname = ANY ($3)
"""
# A partition that came later has no trigger for TRUNCATE: `note_files` sees that.
_HAS_ROW_TRIGGERS = f"""{_TREE}
SELECT bool_and(EXISTS (
    SELECT FROM pg_trigger WHERE tgrelid = t.oid AND tgfoid = to_regproc($2) AND tgenabled = 'A' AND tgname = $3
)) AND EXISTS (
    SELECT FROM pg_trigger
    WHERE tgrelid = to_regclass($1) AND tgfoid = to_regproc($2) AND tgenabled = 'A' AND tgname = $4
)
FROM tree AS t
"""  # noqa: S608 - of constants
_HAS_BODY = """
SELECT EXISTS (SELECT FROM pg_proc
               WHERE oid = to_regproc($1) AND prosrc = $2 AND (cardinality(proconfig) = 1) = $3)
"""
# Those of the table, also if it had another name when it got them; and those of its function, also if the table that
# has them has another name by now, or has become a partition. Clones go with their original.
_TRIGGERS = """
SELECT format('%I.%I', n.nspname, c.relname), tgname::text
FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_proc AS p ON p.oid = t.tgfoid
WHERE tgparentid = 0
  AND (p.oid = to_regproc($2) OR c.oid = to_regclass($1) AND p.pronamespace = 'syncer'::regnamespace)
ORDER BY 1, 2
"""
_PARTITIONS = f"""{_TREE}
SELECT format('%I.%I', n.nspname, c.relname)
FROM tree AS t JOIN pg_class AS c USING (oid) JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE t.attached_by IS NOT NULL
"""  # noqa: S608 - of constants
# Types whose text, as it stands in JSON, depends on no setting; enums too. Types that may hold JSON which jsonb does
# not take. And types of which JSON shows less than there is. Domains and arrays are what they are made of; what is made
# of several types is in the worse class.
_TYPES = """
WITH RECURSIVE type (column_name, oid) AS (
    SELECT attname::text, atttypid FROM pg_attribute
    WHERE attrelid = $1::regclass AND attname = ANY ($2) AND NOT attisdropped
    UNION
    SELECT y.column_name, CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.typelem END
    FROM type AS y JOIN pg_type AS t ON t.oid = y.oid
    WHERE t.typtype = 'd' OR t.typcategory = 'A'
)
SELECT coalesce(bool_and(t.oid = ANY ('{bool,bytea,bpchar,date,int2,int4,int8,json,jsonb,name,numeric,text,time,timetz,
                                   timestamp,timestamptz,uuid,varchar}'::regtype[])
                         OR t.typtype IN ('d', 'e') OR t.typcategory = 'A'), true),
       coalesce(bool_or(t.oid = 'json'::regtype OR t.typtype = 'c'), false),
       NOT coalesce(bool_or(t.oid = ANY ('{float4,float8,json,jsonb}'::regtype[])
                            OR t.typtype = 'c' OR t.typtype = 'b' AND t.oid >= 16384 AND t.typcategory <> 'A'), false)
FROM type AS y JOIN pg_type AS t ON t.oid = y.oid
"""

_UNCAPTURED = """
SELECT relation FROM unnest($1::text[]) AS relation
WHERE NOT EXISTS (
    SELECT FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
    WHERE t.tgrelid = to_regclass(relation) AND t.tgenabled <> 'D' AND p.pronamespace = 'syncer'::regnamespace
)
"""
_CAPTURED = "SELECT relation, key, watched, routing, aggregate, aggregate_column FROM syncer.capture ORDER BY relation"
# What is remembered of partitions stays as it is: documents that were not filled since then may lack what is new.
_PUT = """
INSERT INTO syncer.capture (relation, key, watched, routing, aggregate, aggregate_column, files)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (relation) DO UPDATE
SET key = excluded.key, watched = excluded.watched, routing = excluded.routing,
    aggregate = excluded.aggregate, aggregate_column = excluded.aggregate_column,
    files = CASE WHEN excluded.files IS NOT NULL
                      THEN coalesce(capture.files, excluded.files) END
"""
# Who attached a partition tells one that was away for a moment from one that was not; TRUNCATE gives it another file.
# So does an ALTER TABLE that computes a column anew. Null if there is no such table.
_PRESENT = f"""{_TREE}
SELECT CASE WHEN EXISTS (SELECT FROM pg_class WHERE oid = to_regclass($1) AND relkind IN ('p', 'r'))
            THEN array_agg(format('%s %s %s', oid, attached_by, pg_relation_filenode(oid)) ORDER BY oid) END
FROM tree
"""  # noqa: S608 - of constants
_REMEMBERED = "SELECT relation, files FROM syncer.capture WHERE files IS NOT NULL ORDER BY relation"
_LOCKED = "SELECT files FROM syncer.capture WHERE relation = $1 FOR UPDATE"
_REMEMBER = "UPDATE syncer.capture SET files = $2 WHERE relation = $1"
_WRITE_TRUNCATED = """
INSERT INTO syncer.outbox (segment, relation, operation) SELECT last_value, $1, 'T' FROM syncer.outbox_segment
"""
# A prepared transaction holds its locks without a process.
_BLOCKERS = f"""{_TREE}
SELECT coalesce(format('process %s %s for %s s', l.pid, a.application_name,
                       extract(epoch FROM now() - a.xact_start)::bigint),
                'a prepared transaction')
FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a USING (pid)
WHERE l.relation IN (SELECT t.oid FROM tree AS t)
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
ORDER BY l.mode = 'AccessShareLock', a.xact_start LIMIT 1
"""  # noqa: S608 - of constants
_WRITERS = f"""{_TREE}
SELECT virtualtransaction FROM pg_locks
WHERE relation IN (SELECT t.oid FROM tree AS t)
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND granted AND pid IS DISTINCT FROM pg_backend_pid()
  AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
"""  # noqa: S608 - of constants
_COLUMNS = "SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped"


def captured(connection: Connection) -> dict[str, Capture]:
    """The tables that are captured, by relation."""
    return {
        relation: Capture(
            relation=relation,
            key=tuple(key),
            watched=frozenset(watched),
            routing=frozenset(routing),
            aggregate=aggregate,
            aggregate_column=aggregate_column,
        )
        for relation, key, watched, routing, aggregate, aggregate_column in connection.execute(_CAPTURED)
    }


def is_installed(connection: Connection, relation: str) -> bool:
    """Whether a table, and each of its partitions, has all of its triggers, and they are enabled."""
    function = trigger.function(relation).as_string()
    if _is_by_row(connection, relation):
        names = trigger.row_trigger(relation), trigger.truncate_trigger(relation)
        return bool(value(connection, _HAS_ROW_TRIGGERS, (relation, function, *names)))
    return bool(value(connection, _HAS_STATEMENT_TRIGGERS, (relation, function, list(trigger.STATEMENT_TRIGGERS))))


def uncaptured(connection: Connection, relations: Collection[str]) -> list[str]:
    """Those without a trigger of ours, in the caller's snapshot: a table that has taken another one's name has none."""
    return [row[0] for row in connection.execute(_UNCAPTURED, (sorted(relations),), prepare=True)]


def is_current(connection: Connection, capture: Capture) -> bool:
    """Whether a table's function is the one that this program would make for the table as it is now."""
    function = trigger.function(capture.relation).as_string()
    body, is_plain = _body(connection, capture, is_by_row=_is_by_row(connection, capture.relation))
    return bool(value(connection, _HAS_BODY, (function, body, is_plain)))


def install(
    connection: Connection,
    capture: Capture,
    *,
    timeout_seconds: float = 60,
    waiting: Callable[[str], None] = lambda _: None,
) -> None:
    """Install or update the triggers of one table.

    Args:
        connection: As a role that owns the table.
        capture: How.
        timeout_seconds: How long to go on asking for the lock.
        waiting: Told, each time the lock was not to be had, who holds the table.

    Raises:
        SourceError: The lock was not to be had in time.
        psycopg.Error: A privilege is missing.
    """
    with connection.transaction():
        connection.execute("SET LOCAL search_path = pg_catalog, pg_temp")  # as the trigger has it
        connection.execute(trigger.check_statement(capture))
    # Before the triggers: what is attached from now on is either captured or noted.
    files = value(connection, _PRESENT, (capture.relation,))
    before = captured(connection).get(capture.relation)
    has_triggers = is_installed(connection, capture.relation)

    def change() -> None:
        is_by_row = _is_by_row(connection, capture.relation)
        body, is_plain = _body(connection, capture, is_by_row=is_by_row)
        connection.execute(trigger.function_statement(body, capture.relation, is_plain=is_plain))
        if not has_triggers:
            _create_triggers(connection, capture.relation, is_by_row=is_by_row)

    deadline = time.monotonic() + timeout_seconds
    _without_blocking(connection, capture.relation, change, timeout_seconds, waiting)
    if has_triggers and (before is None or not _covers(before, capture)):
        _wait_for_writers(connection, capture.relation, deadline, waiting)
    # Last, so that whoever is interrupted before waits for the writers again.
    connection.execute(_PUT, (*_columns(capture), files))


def _columns(capture: Capture) -> tuple[object, ...]:
    """As they are remembered."""
    return (
        capture.relation,
        list(capture.key),
        sorted(capture.watched),
        sorted(capture.routing),
        capture.aggregate,
        capture.aggregate_column,
    )


def _body(connection: Connection, capture: Capture, *, is_by_row: bool) -> tuple[str, bool]:
    """A table's function, and whether it can do without settings of its own."""
    is_plain, has_json, _ = _types(connection, capture.relation, capture.routing)
    if not is_by_row:
        return trigger.statement_body(capture, has_json=has_json).as_string(connection), is_plain
    _, _, is_exact = _types(connection, capture.relation, capture.compared)
    return trigger.row_body(capture, is_exact=is_exact).as_string(connection), False


def _types(connection: Connection, relation: str, columns: Iterable[str]) -> tuple[bool, bool, bool]:
    """Whether the text of these columns depends on no setting, one may hold any JSON, and JSON shows all of a value."""
    row = connection.execute(_TYPES, (relation, list(columns))).fetchone()
    assert row is not None  # noqa: S101 - an aggregate returns a row
    return row[0], row[1], row[2]


def _is_by_row(connection: Connection, relation: str) -> bool:
    """Whether a trigger for each row is what sees the changes of a table."""
    asked = relation, trigger.function(relation).as_string(), trigger.row_trigger(relation)
    return bool(value(connection, _IS_BY_ROW, asked))


def _create_triggers(connection: Connection, relation: str, *, is_by_row: bool) -> None:
    for table, name in connection.execute(_TRIGGERS, (relation, trigger.function(relation).as_string())).fetchall():
        connection.execute(sql.SQL("DROP TRIGGER {} ON {}").format(sql.Identifier(name), sql.SQL(table)))
    if not is_by_row:
        for statement in trigger.statement_triggers(relation):
            connection.execute(statement)
        return
    for statement in trigger.row_triggers(relation):
        connection.execute(statement)
    # The triggers above hold a lock that keeps other partitions away.
    for (partition,) in connection.execute(_PARTITIONS, (relation,)).fetchall():
        for statement in trigger.truncate_triggers(relation, partition):
            connection.execute(statement)


def note_files(connection: Connection) -> list[str]:
    """Have the documents refreshed that read a table that lies in other files, or in other partitions, than before.

    Sees what no trigger does: a partition that was attached or detached with its rows, or dropped, or truncated by
    itself; and a table of any kind that was written anew, as by ALTER TABLE … TYPE … USING. VACUUM FULL, CLUSTER and
    TRUNCATE look the same. What it has noted is a change in the outbox, as if the table had been truncated: relay and
    workers do the rest. Needs to read the catalogue, and to write the syncer schema; at most one of several daemons
    notes a thing.

    Returns:
        The tables that it has noted.
    """
    return [
        relation
        for relation, files in connection.execute(_REMEMBERED).fetchall()
        if value(connection, _PRESENT, (relation,)) not in (files, None) and _note(connection, relation)
    ]


def _note(connection: Connection, relation: str) -> bool:
    with connection.transaction():
        locked = connection.execute(_LOCKED, (relation,)).fetchone()
        # Whatever is seen here was committed before the change that tells of it.
        present = value(connection, _PRESENT, (relation,))
        if locked is None or present in (locked[0], None):
            return False
        connection.execute(_REMEMBER, (relation, present))
        connection.execute(_WRITE_TRUNCATED, (relation,))
        connection.execute(doorbell.RING)
    return True


def widened(connection: Connection, capture: Capture, before: Capture | None) -> Capture:
    """A capture that leaves out nothing that was captured before, as far as the table still has it."""
    if before is None:
        return capture
    existing = {row[0] for row in connection.execute(_COLUMNS, (capture.relation,))}
    return replace(
        capture,
        watched=capture.watched | (before.watched & existing),
        routing=capture.routing | (before.routing & existing),
    )


def _covers(before: Capture, after: Capture) -> bool:
    return after.watched | after.routing <= before.watched | before.routing and after.routing <= before.routing


def _wait_for_writers(connection: Connection, relation: str, deadline: float, waiting: Callable[[str], None]) -> None:
    """Return when whoever wrote the table under the function before has ended.

    What such a transaction left out of the outbox is visible then to whoever fills the documents. Nobody is
    held up: no lock is asked for.
    """
    writers = {row[0] for row in connection.execute(_WRITERS, (relation,))}
    while writers:
        now = {row[0] for row in connection.execute(_WRITERS, (relation,))}
        # A transaction that is prepared meanwhile goes on under another name.
        writers = {one for one in now if one in writers or one.startswith("-1/")}
        if not writers:
            return
        blocker = _blocker(connection, relation)
        if time.monotonic() > deadline:
            raise SourceError(
                f"{relation} has been written by a transaction that is still open{blocker}",
                hint="Nothing is in force yet. Wait for that transaction to end, or end it, and run this again.",
            )
        waiting(f"waiting for writers of {relation}{blocker}")
        time.sleep(_PAUSE_SECONDS)


def remove(
    connection: Connection,
    relation: str,
    *,
    timeout_seconds: float = 60,
    waiting: Callable[[str], None] = lambda _: None,
) -> None:
    """Remove the triggers of one table, if it has them.

    Raises:
        SourceError: The lock was not to be had in time.
    """

    def change() -> None:
        connection.execute(sql.SQL("DROP FUNCTION IF EXISTS {} CASCADE").format(trigger.function(relation)))
        connection.execute("DELETE FROM syncer.capture WHERE relation = $1", (relation,))

    _without_blocking(connection, relation, change, timeout_seconds, waiting)


def _without_blocking(
    connection: Connection,
    relation: str,
    change: Callable[[], None],
    timeout_seconds: float,
    waiting: Callable[[str], None],
) -> None:
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            with connection.transaction():
                # Whoever queues behind us waits no longer than this.
                connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
                change()
        except psycopg.errors.LockNotAvailable as error:
            blocker = _blocker(connection, relation)
            if time.monotonic() > deadline:
                raise SourceError(
                    f"{relation} is in use: its lock was not to be had in {timeout_seconds:.0f} s{blocker}",
                    hint="Nothing was changed. Wait for that transaction to end, or end it, and run this again.",
                ) from error
            waiting(f"waiting for {relation}{blocker}")
            time.sleep(_PAUSE_SECONDS)
        else:
            return


def _blocker(connection: Connection, relation: str) -> str:
    row = connection.execute(_BLOCKERS, (relation,)).fetchone()
    return f", held by {row[0]}" if row else ""
