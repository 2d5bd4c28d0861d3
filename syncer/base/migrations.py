"""The ``syncer`` schema in Postgres: numbered SQL files, applied in one transaction.

After the first, a file is ``NNNN.pre.words.sql``, beside which the daemons of the previous version go on, or
``NNNN.post.words.sql``, which is applied once they are gone: without it, those of the new version go on.

Owns ``syncer.migration``, which records each applied file with its checksum, and the objects that the last one left.

Guarantees: a migration is applied once and completely, even if two processes migrate at the same time, and no
application waits for it longer than `syncer.base.postgres.without_blocking` does. No program works with a schema that
is not made for it, nor with a damaged one. No daemon works with a database that is still being restored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import takewhile

from psycopg import sql

from syncer.base import postgres, settings as base_settings
from syncer.base.errors import NotReadyError, SourceError
from syncer.base.postgres import AdvisoryLock, Connection, value, without_blocking
from syncer.base.settings import PostgresSettings

_CREATE = """
CREATE SCHEMA IF NOT EXISTS syncer;
CREATE TABLE IF NOT EXISTS syncer.migration (
    name text PRIMARY KEY,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    objects text[]
)
"""
_RECORD = "INSERT INTO syncer.migration (name, checksum) VALUES ($1, $2)"
# Functions of triggers come and go with the definitions.
_OBJECTS = """
SELECT CASE c.relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' WHEN 'S' THEN 'sequence' ELSE 'table' END
       || ' syncer.' || c.relname AS object
FROM pg_class AS c WHERE c.relnamespace = to_regnamespace('syncer') AND c.relkind NOT IN ('i', 'I', 't')
UNION ALL
SELECT format('column syncer.%s.%s %s%s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
              CASE WHEN a.attnotnull THEN ' NOT NULL' END)
FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid
WHERE c.relnamespace = to_regnamespace('syncer') AND c.relkind = 'r' AND NOT c.relispartition
  AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT format('function syncer.%s', p.proname)
FROM pg_proc AS p WHERE p.pronamespace = to_regnamespace('syncer') AND p.prorettype <> 'trigger'::regtype
UNION ALL
SELECT unnest($1::text[])
"""
_SHAPE = "SELECT unnest(syncer.outbox_shape())"
_HAS_SHAPE = "SELECT to_regproc('syncer.outbox_shape') IS NOT NULL"
_RECORD_OBJECTS = f"""
UPDATE syncer.migration SET objects = ARRAY(SELECT o.object FROM ({_OBJECTS}) AS o)
WHERE name = (SELECT max(name) FROM syncer.migration)
"""
# What is missing, and what the outbox has that makes it other than it was. Of a table that is gone, its columns are not
# named too.
_DAMAGE = f"""
WITH recorded (object) AS (
    SELECT jsonb_array_elements_text(to_jsonb(m) -> 'objects') FROM syncer.migration AS m
    WHERE name = (SELECT max(name) FROM syncer.migration) AND jsonb_typeof(to_jsonb(m) -> 'objects') = 'array'
), gone (object) AS (
    SELECT object FROM recorded EXCEPT ({_OBJECTS})
), added (object) AS (
    SELECT unnest($1::text[]) WHERE EXISTS (SELECT FROM recorded) EXCEPT SELECT object FROM recorded
)
SELECT ARRAY(
           SELECT object FROM gone AS g
           WHERE NOT EXISTS (SELECT FROM gone AS t WHERE g.object LIKE replace(t.object, 'table ', 'column ') || '.%')
           ORDER BY object !~ '^(table|view|function)', 1
       ), ARRAY(SELECT object FROM added ORDER BY 1)
"""
_IS_LOST = "SELECT is_called FROM syncer.lost"
_APPLIED = "SELECT name, checksum FROM syncer.migration ORDER BY name"
_EXISTS = "SELECT EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace('syncer'))"
_HAS_TABLE = "SELECT to_regclass($1) IS NOT NULL"
# What a migration may have to wait for; and the tables that triggers go from if the schema is dropped.
_RELATIONS = "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = to_regnamespace('syncer')"
_CAPTURED = """
SELECT DISTINCT format('%I.%I', n.nspname, c.relname)
FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_proc AS p ON p.oid = t.tgfoid
WHERE p.pronamespace = to_regnamespace('syncer') AND t.tgparentid = 0 ORDER BY 1
"""
_NAMED_MAX = 3
_TAKE_OVER = "syncer apply --take-over '*'"
_START_OVER = (
    f"Start over: syncer migrate --anew && {_TAKE_OVER}\n"
    "Every document is written again, to a new index. Until that is complete, searches find the one that is there."
)

# Restoring a dump loads materialized views last: see the migration that creates this one.
_IS_WHOLE = "SELECT coalesce((SELECT relispopulated FROM pg_class WHERE oid = to_regclass('syncer.restored')), false)"


def migrate(
    connection: Connection,
    *,
    anew: bool = False,
    has_other_daemons: Callable[[Connection], bool] = lambda _: False,
    timeout_seconds: float = 60,
    waiting: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Apply all missing migrations in one transaction, or none; return their names.

    A schema without any row is dropped first, as every one is if it is to be made ``anew``: with all triggers.
    If it ``has_other_daemons``, of another version, those from the first *post* on are left out: see `postponed`.
    ``waiting`` is called with the holder of a lock after each failed request.

    Raises:
        SourceError: Another version of syncer created the schema, it is broken, or the locks were not available in
            time.
    """
    names: list[str] = []

    def change() -> None:
        recorded: dict[str, str] = {} if anew else applied(connection)
        if not recorded and exists(connection):
            captured = [relation for (relation,) in connection.execute(_CAPTURED)]
            if captured:  # before the outbox, for which writers of these tables wait
                tables = sql.SQL(", ").join(map(sql.SQL, captured))
                connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(tables))
            connection.execute("DROP SCHEMA syncer CASCADE")
        missing = _missing(recorded)
        if recorded and has_other_daemons(connection):
            missing = dict(takewhile(lambda file: ".post." not in file[0], missing.items()))
        if missing:
            connection.execute(_CREATE)
        for name, content in missing.items():
            connection.execute(content)
            connection.execute(_RECORD, (name, _checksum(content)))
        if missing:
            connection.execute(_RECORD_OBJECTS, (_shape(connection),))
        else:
            try:
                require_current(connection)
            except NotReadyError:  # definitions and data were restored from two dumps, which lack the REFRESH
                connection.execute("REFRESH MATERIALIZED VIEW syncer.restored")
        names[:] = missing

    # Of the session, so that another process that migrates is waited for, however long it takes.
    connection.execute("SELECT pg_advisory_lock($1)", (AdvisoryLock.SCHEMA,))
    try:
        relations = [relation for query in (_RELATIONS, _CAPTURED) for (relation,) in connection.execute(query)]
        without_blocking(connection, relations, change, timeout_seconds, waiting, subject="the syncer schema")
    finally:
        connection.execute("SELECT pg_advisory_unlock($1)", (AdvisoryLock.SCHEMA,))
    return names


def postponed(connection: Connection) -> list[str]:
    """Return the migrations that are still to be applied, once no daemon of another version runs."""
    return list(_missing(applied(connection)))


def require_current(connection: Connection) -> None:
    """Check that the schema is one that this program can use.

    Nothing of it was dropped or altered, and the triggers could write every change.

    Raises:
        SourceError: The schema is missing, emptied or broken, or belongs to another version.
    """
    recorded = applied(connection)
    if not recorded and exists(connection):
        raise SourceError(
            "The syncer schema has no rows: a dump of definitions was restored, or every table was truncated",
            hint="If a dump is being restored, wait until it is. In a new database: syncer migrate && syncer apply\n"
            f"If tables were truncated, replace the indices that are there: syncer migrate && {_TAKE_OVER}",
        )
    if not recorded:
        raise SourceError("The database has no syncer schema", hint="Run: syncer migrate")
    if missing := [name for name in _missing(recorded) if ".post." not in name]:
        raise SourceError(
            f"The syncer schema is older than this program: {', '.join(missing)} not applied",
            hint="Run: syncer migrate",
        )
    shape = _shape(connection)
    [(missing, added)] = connection.execute(_DAMAGE, (shape,))
    for table in ("installation", "mark"):
        if not missing and not added and not _has_rows(connection, table, default=True):
            missing = [f"the row of table syncer.{table}"]
    if not missing and not added and shape and value(connection, _IS_LOST):
        added = ["lost changes that its triggers could not write"]
    if missing or added:
        raise _broken(missing, added)
    _require_whole(connection)


def _shape(connection: Connection) -> list[str]:
    """Whatever decides whether a trigger can write to the outbox; nothing if the schema cannot tell."""
    return [item for (item,) in connection.execute(_SHAPE)] if value(connection, _HAS_SHAPE) else []


def _has_rows(connection: Connection, table: str, *, default: bool) -> bool:
    """Whether a table has rows; the default if there is no such table."""
    if not value(connection, _HAS_TABLE, (f"syncer.{table}",)):
        return default
    return bool(value(connection, f"SELECT EXISTS (SELECT FROM syncer.{table})"))


def _broken(missing: list[str], added: Sequence[str] = ()) -> SourceError:
    faults = []
    for verb, names in ("lacks", missing), ("has", added):
        if names:
            unnamed = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
            faults.append(f"it {verb} {', '.join(names[:_NAMED_MAX])}{unnamed}")
    return SourceError(f"The syncer schema is broken: {'; '.join(faults)}", hint=_START_OVER)


def exists(connection: Connection) -> bool:
    """Whether there is a syncer schema with anything in it."""
    return bool(value(connection, _EXISTS))


def connected(settings: PostgresSettings, *, name: str, idle_seconds_max: float = 0) -> Connection:
    """Open a connection as `syncer.base.postgres.connect` does, to a database that is completely restored.

    A daemon may run while a dump is restored. Rows not restored yet would look deleted to it, and its own writes would
    conflict with the restore.

    Raises:
        NotReadyError: The restore is not complete.
    """
    connection = postgres.connect(settings, name=name, idle_seconds_max=idle_seconds_max)
    with postgres.closed_on_error(connection):
        _require_whole(connection)
    return connection


def _require_whole(connection: Connection) -> None:
    if not value(connection, _IS_WHOLE):
        raise NotReadyError(
            "The database has no syncer schema, or a dump of it is not restored whole",
            hint="Is a dump being restored? Then wait: a daemon goes on by itself. If not, run: syncer migrate",
        )


def applied(connection: Connection) -> dict[str, str]:
    """Return the applied migrations with their checksums; none if the database was never migrated, or is emptied.

    Raises:
        SourceError: They are not known, and the schema is not empty.
    """
    if not value(connection, _HAS_TABLE, ("syncer.migration",)):
        if exists(connection):
            raise _broken(["table syncer.migration"])
        return {}
    recorded: dict[str, str] = dict(connection.execute(_APPLIED).fetchall())
    if not recorded and _has_rows(connection, "document", default=False):
        raise _broken(["the rows of table syncer.migration"])
    return recorded


def _missing(applied: Mapping[str, str]) -> dict[str, bytes]:
    """Return the migrations that are still to be applied, in order.

    Raises:
        SourceError: One was applied that this program has in another form, or does not have and cannot work beside.
    """
    checksums = {name: _checksum(content) for name, content in files().items()}
    relevant = {name: checksum for name, checksum in applied.items() if name in checksums or ".pre." not in name}
    if foreign := [name for name, checksum in relevant.items() if checksums.get(name) != checksum]:
        raise SourceError(
            f"The database was migrated by another version of syncer: {', '.join(foreign)} is unknown here or differs",
            hint="Install the version of syncer that migrated it. If that was a development version, whose schema\n"
            f"cannot be upgraded, start over: syncer migrate --anew && {_TAKE_OVER}",
        )
    return {name: content for name, content in files().items() if name not in applied}


@cache  # a daemon looks every few seconds whether all are applied
def files() -> dict[str, bytes]:
    """Return the migrations of this program by name, in their order."""
    return {file.stem: file.read_bytes() for file in sorted(base_settings.shipped("migrations").glob("*.sql"))}


@cache
def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
