"""The ``syncer`` schema in Postgres: made by numbered migrations, all in one transaction.

Owns which migrations exist (``migrations/``), which are applied, and the rule that a program never works
with a schema that it does not know, nor a daemon with one that a restore has not finished. Bookkeeping is yoyo's; the
lock is Postgres's own, so that a migration that was killed leaves none behind.
"""

from __future__ import annotations

from typing import Any

import psycopg
from yoyo import read_migrations
from yoyo.backends.core.postgresql import PostgresqlPsycopgBackend
from yoyo.connections import parse_uri
from yoyo.migrations import MigrationList, default_migration_table

from syncer import postgres, shipped
from syncer.errors import RestoringError, SourceError
from syncer.postgres import AdvisoryLock, Connection, value
from syncer.settings import PostgresSettings

_CREATE_SCHEMA = "CREATE SCHEMA IF NOT EXISTS syncer"
_LOCK = "SELECT pg_advisory_lock($1)"
_UNLOCK = "SELECT pg_advisory_unlock($1)"
_APPLIED = "SELECT migration_id FROM syncer._yoyo_migration ORDER BY applied_at_utc, migration_id"

# What a restore of a dump does last is to fill materialized views: see the migration that makes this one.
_IS_WHOLE = """
SELECT coalesce((SELECT relispopulated FROM pg_class WHERE oid = to_regclass('syncer.restored')), false)
"""


class _Backend(PostgresqlPsycopgBackend):  # type: ignore[misc]  # yoyo has no types
    # yoyo has no types
    """Yoyo's bookkeeping on a connection that we have opened, in our own schema."""

    schema = "syncer"

    def __init__(self, connection: Connection) -> None:
        self._ours = connection
        super().__init__(parse_uri("postgresql:"), default_migration_table)  # asked for no more than a name

    def connect(self, dburi: object) -> Connection:  # noqa: ARG002 - the signature is yoyo's
        return self._ours

    def cursor(self) -> psycopg.Cursor[Any]:
        # Yoyo writes %(name)s, our connections take $1.
        return psycopg.Cursor(self._ours)


def migrate(connection: Connection) -> list[str]:
    """Bring the schema up to date; all that is missing is applied in one transaction, or nothing.

    Returns:
        The names of the migrations that were applied; empty if the schema was current.

    Raises:
        SourceError: The database was migrated by a newer syncer.
        psycopg.Error: A privilege is missing, or a migration failed; nothing was applied.
    """
    connection.execute(_LOCK, (AdvisoryLock.SCHEMA,))
    try:
        connection.execute(_CREATE_SCHEMA)
        return _apply_missing(_Backend(connection))
    finally:
        connection.execute("RESET search_path")
        connection.execute(_UNLOCK, (AdvisoryLock.SCHEMA,))


def _apply_missing(backend: _Backend) -> list[str]:
    backend.create_lock_table()
    backend.break_lock()  # whoever held yoyo's own lock is dead: we hold Postgres's
    backend.ensure_internal_schema_updated()
    migrations = read_migrations(str(shipped.folder("migrations")))
    _require_known([row[0] for row in backend.execute(_APPLIED).fetchall()], migrations)
    missing = backend.to_apply(migrations)
    with backend.transaction():
        for migration in missing:
            migration.process_steps(backend, "apply")
            backend.mark_one(migration, log=False)
    return [migration.id for migration in missing]


def connected(settings: PostgresSettings, *, name: str, idle_seconds_max: float = 0) -> Connection:
    """Open a connection for one stage of a daemon, as `syncer.postgres.connect`, to a database that is whole.

    A daemon may be running while a dump is restored. What it would read then looks like rows that have been deleted;
    what it would write would be in the way.

    Raises:
        RestoringError: It is not whole, or not yet.
        psycopg.OperationalError, SourceError: As there.
    """
    connection = postgres.connect(settings, name=name, idle_seconds_max=idle_seconds_max)
    try:
        _require_whole(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _require_whole(connection: Connection) -> None:
    if not value(connection, _IS_WHOLE):
        raise RestoringError(
            "The database has no syncer schema, or not all of it: it is waited for",
            hint="Is a dump being restored? Then all goes on by itself. If not, run: syncer migrate",
        )


def exists(connection: Connection) -> bool:
    """Whether the database has a syncer schema at all."""
    return bool(value(connection, "SELECT to_regnamespace('syncer') IS NOT NULL"))


def require_current(connection: Connection) -> None:
    """Refuse a database whose schema is missing, older or newer than this program.

    Raises:
        SourceError: With what to do.
    """
    try:
        applied = [row[0] for row in connection.execute(_APPLIED)]
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
        raise SourceError("The database has no syncer schema", hint="Run: syncer migrate") from error
    migrations = read_migrations(str(shipped.folder("migrations")))
    _require_known(applied, migrations)
    missing = [migration.id for migration in migrations if migration.id not in applied]
    if missing:
        raise SourceError(
            f"The syncer schema is older than this program: {', '.join(missing)} not applied",
            hint="Run: syncer migrate",
        )


def _require_known(applied: list[str], migrations: MigrationList) -> None:
    unknown = sorted(set(applied) - {migration.id for migration in migrations})
    if unknown:
        raise SourceError(
            f"The database was migrated by a newer syncer: {', '.join(unknown)} is unknown here",
            hint="Install that newer version of syncer here too.",
        )
