"""Capture: the triggers that write the outbox, in the application's own transaction.

Guarantees: each row changed by INSERT, UPDATE, DELETE or TRUNCATE, from whatever client, leaves a row in the
outbox that commits or rolls back with it. An UPDATE that changes no watched column leaves none. A primary
key that changes is a delete and an insert. Installing and removing never make an application wait
behind a transaction that we wait for: the lock is asked for briefly, given up, and asked for again.

Assumes ordinary tables with a primary key; `syncer.dependency` refuses others.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import psycopg
from psycopg import sql

from syncer.errors import SourceError
from syncer.postgres import Connection, value

_LOCK_TIMEOUT = "200ms"
_PAUSE_SECONDS = 0.5
_IDENTIFIER_BYTES_MAX = 63

_OPERATIONS = ("insert", "update", "delete", "truncate")

# One statement a kind of change. Rows are compared byte by byte (*<> on records), since equality is not
# identity (1.0 and 1.00) and some types have none (json). search_path is pinned, as for every SECURITY DEFINER.
_FUNCTION = """
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $capture$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        INSERT INTO syncer.outbox (segment, relation, operation, old, new)
        {updated};
    ELSIF TG_OP = 'INSERT' THEN
        INSERT INTO syncer.outbox (segment, relation, operation, new)
        SELECT s.last_value, {relation}, 'I', {new_image}
        FROM new_rows AS n, syncer.outbox_segment AS s;
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO syncer.outbox (segment, relation, operation, old)
        SELECT s.last_value, {relation}, 'D', {old_image}
        FROM old_rows AS o, syncer.outbox_segment AS s;
    ELSE
        INSERT INTO syncer.outbox (segment, relation, operation)
        SELECT s.last_value, {relation}, 'T' FROM syncer.outbox_segment AS s;
    END IF;
    RETURN NULL;
END
$capture$
"""

# A row without its counterpart has changed its primary key: a delete or an insert.
_UPDATED = """
SELECT s.last_value, {relation},
       CASE WHEN n.{first_key} IS NULL THEN 'D' WHEN o.{first_key} IS NULL THEN 'I' ELSE 'U' END::"char",
       CASE WHEN o.{first_key} IS NOT NULL THEN {old_image} END,
       CASE WHEN n.{first_key} IS NOT NULL THEN {new_image} END
FROM {old_rows} AS o FULL JOIN {new_rows} AS n ON {same_key}, syncer.outbox_segment AS s
WHERE n.{first_key} IS NULL OR o.{first_key} IS NULL
   OR ROW({old_watched})::record OPERATOR(pg_catalog.*<>) ROW({new_watched})::record
"""

_TRIGGER = {
    "insert": "AFTER INSERT ON {table} REFERENCING NEW TABLE AS new_rows",
    "update": "AFTER UPDATE ON {table} REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows",
    "delete": "AFTER DELETE ON {table} REFERENCING OLD TABLE AS old_rows",
    "truncate": "AFTER TRUNCATE ON {table}",
}

_INSTALLED = """
SELECT count(*) FROM pg_trigger
WHERE tgrelid = to_regclass($1) AND tgfoid = to_regproc($2) AND tgenabled = 'A'
  AND tgname = ANY ($3::text[])
"""
_CAPTURED = "SELECT relation, key, watched, routing, aggregate, aggregate_column FROM syncer.capture ORDER BY relation"
_PUT = """
INSERT INTO syncer.capture (relation, key, watched, routing, aggregate, aggregate_column)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (relation) DO UPDATE
SET key = excluded.key, watched = excluded.watched, routing = excluded.routing,
    aggregate = excluded.aggregate, aggregate_column = excluded.aggregate_column
"""
# A prepared transaction holds its locks without a process.
_BLOCKERS = """
SELECT coalesce(format('process %s %s for %s s', l.pid, a.application_name,
                       extract(epoch FROM now() - a.xact_start)::bigint),
                'a prepared transaction')
FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a USING (pid)
WHERE l.relation = $1::regclass AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
ORDER BY l.mode = 'AccessShareLock', a.xact_start LIMIT 1
"""
_WRITERS = """
SELECT virtualtransaction FROM pg_locks
WHERE relation = $1::regclass AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND granted AND pid IS DISTINCT FROM pg_backend_pid()
  AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
"""
_COLUMNS = "SELECT attname::text FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """How one table is captured, for all documents that read it.

    Args:
        relation: ``schema.table``, quoted where SQL needs it.
        key: The primary key's columns.
        watched: An UPDATE that touches none of these leaves no change.
        routing: The columns that a change carries.
        aggregate: The table whose row a change belongs to; changes of one aggregate share a partition.
        aggregate_column: The routing column that holds that row's key.
    """

    relation: str
    key: tuple[str, ...]
    watched: frozenset[str]
    routing: frozenset[str]
    aggregate: str
    aggregate_column: str


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
    """Whether a table has all of its triggers, and they are enabled."""
    function = _identifier(_function_name(relation)).as_string()
    triggers = [f"syncer_{one}" for one in _OPERATIONS]
    return value(connection, _INSTALLED, (relation, function, triggers)) == len(_OPERATIONS)


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
        connection.execute(_check_statement(capture))
    before = captured(connection).get(capture.relation)
    function = _function_name(capture.relation)
    has_triggers = is_installed(connection, capture.relation)

    def change() -> None:
        connection.execute(_function_statement(capture))
        if not has_triggers:
            _create_triggers(connection, capture.relation, function)

    deadline = time.monotonic() + timeout_seconds
    _without_blocking(connection, capture.relation, change, timeout_seconds, waiting)
    if has_triggers and (before is None or not _covers(before, capture)):
        _wait_for_writers(connection, capture.relation, deadline, waiting)
    # Last, so that whoever is interrupted before waits for the writers again.
    connection.execute(
        _PUT,
        (
            capture.relation,
            list(capture.key),
            sorted(capture.watched),
            sorted(capture.routing),
            capture.aggregate,
            capture.aggregate_column,
        ),
    )


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
        connection.execute(sql.SQL("DROP FUNCTION IF EXISTS {} CASCADE").format(_identifier(_function_name(relation))))
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


def _function_name(relation: str) -> tuple[str, str]:
    name = f"capture_{relation}"  # with its dot, so that a.b_c and a_b.c differ
    if len(name.encode()) > _IDENTIFIER_BYTES_MAX or '"' in relation:
        name = "capture_" + hashlib.sha256(relation.encode()).hexdigest()[:32]
    return "syncer", name


def _identifier(name: tuple[str, str]) -> sql.Identifier:
    return sql.Identifier(*name)


def _create_triggers(connection: Connection, relation: str, function: tuple[str, str]) -> None:
    table = sql.SQL(relation)  # quoted by Postgres itself, with format('%I.%I')
    for operation in _OPERATIONS:
        name = sql.Identifier(f"syncer_{operation}")
        connection.execute(sql.SQL("DROP TRIGGER IF EXISTS {} ON {}").format(name, table))
        connection.execute(
            sql.SQL("CREATE TRIGGER {} {} FOR EACH STATEMENT EXECUTE FUNCTION {}()").format(
                name, sql.SQL(_TRIGGER[operation]).format(table=table), _identifier(function)
            )
        )
        # Also for sessions with session_replication_role = replica: their rows are in our documents too.
        connection.execute(sql.SQL("ALTER TABLE {} ENABLE ALWAYS TRIGGER {}").format(table, name))


def _image(alias: str, columns: Iterable[str]) -> sql.Composed:
    pairs = [sql.SQL("{}, {}").format(sql.Literal(one), sql.Identifier(alias, one)) for one in sorted(columns)]
    return sql.SQL("pg_catalog.jsonb_build_object({})").format(sql.SQL(", ").join(pairs))


def _columns(alias: str, columns: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(alias, one) for one in sorted(columns))


def _updated_select(capture: Capture, old_rows: sql.Composable, new_rows: sql.Composable) -> sql.Composed:
    compared = capture.watched | capture.routing
    return sql.SQL(_UPDATED).format(
        relation=sql.Literal(capture.relation),
        first_key=sql.Identifier(capture.key[0]),
        old_image=_image("o", capture.routing),
        new_image=_image("n", capture.routing),
        old_rows=old_rows,
        new_rows=new_rows,
        same_key=sql.SQL(" AND ").join(
            sql.SQL("{} = {}").format(sql.Identifier("o", one), sql.Identifier("n", one)) for one in capture.key
        ),
        old_watched=_columns("o", compared),
        new_watched=_columns("n", compared),
    )


def _function_statement(capture: Capture) -> sql.Composed:
    return sql.SQL(_FUNCTION).format(
        function=_identifier(_function_name(capture.relation)),
        relation=sql.Literal(capture.relation),
        updated=_updated_select(capture, sql.SQL("old_rows"), sql.SQL("new_rows")),
        old_image=_image("o", capture.routing),
        new_image=_image("n", capture.routing),
    )


def _check_statement(capture: Capture) -> sql.Composed:
    """The trigger's most demanding statement, over the table itself: what cannot be planned fails here.

    In the trigger it would fail the application's own writes.
    """
    table = sql.SQL(capture.relation)  # quoted by Postgres itself
    return sql.SQL("EXPLAIN ") + _updated_select(capture, table, table)
