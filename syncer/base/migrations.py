"""The ``syncer`` schema in Postgres: numbered SQL files, applied in one transaction.

Owns ``syncer.migration``, which records each applied file with its checksum.

Guarantees: a migration is applied once and completely, even if two processes migrate at the same time. No program works
with a schema other than its own. No daemon works with a database that is still being restored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from syncer.base import postgres, settings as base_settings
from syncer.base.errors import NotReadyError, SourceError
from syncer.base.postgres import AdvisoryLock, Connection, value
from syncer.base.settings import PostgresSettings

_CREATE = """
CREATE SCHEMA IF NOT EXISTS syncer;
CREATE TABLE IF NOT EXISTS syncer.migration (
    name text PRIMARY KEY,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""
_RECORD = "INSERT INTO syncer.migration (name, checksum) VALUES ($1, $2)"
_APPLIED = "SELECT name, checksum FROM syncer.migration ORDER BY name"
_HAS_RECORD = "SELECT to_regclass('syncer.migration') IS NOT NULL"

# Restoring a dump loads materialized views last: see the migration that creates this one.
_IS_WHOLE = """
SELECT coalesce((SELECT relispopulated FROM pg_class WHERE oid = to_regclass('syncer.restored')), false)
"""


def migrate(connection: Connection) -> list[str]:
    """Apply all missing migrations in one transaction, or none; return their names.

    Raises:
        SourceError: Another version of syncer created the schema.
    """
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock($1)", (AdvisoryLock.SCHEMA,))
        missing = _missing(applied(connection))
        if missing:
            connection.execute(_CREATE)
        for name, content in missing.items():
            connection.execute(content)
            connection.execute(_RECORD, (name, hashlib.sha256(content).hexdigest()))
    return list(missing)


def require_current(connection: Connection) -> None:
    """Check that the schema is the one of this program.

    Raises:
        SourceError: The schema is missing, or belongs to another version.
    """
    found = applied(connection)
    if not found:
        raise SourceError("The database has no syncer schema", hint="Run: syncer migrate")
    if missing := _missing(found):
        raise SourceError(
            f"The syncer schema is older than this program: {', '.join(missing)} not applied",
            hint="Run: syncer migrate",
        )


def connected(settings: PostgresSettings, *, name: str, idle_seconds_max: float = 0) -> Connection:
    """Open a connection as `syncer.base.postgres.connect` does, to a database that is completely restored.

    A daemon may run while a dump is restored. Rows not restored yet would look deleted to it, and its own writes would
    conflict with the restore.

    Raises:
        NotReadyError: The restore is not complete.
    """
    connection = postgres.connect(settings, name=name, idle_seconds_max=idle_seconds_max)
    try:
        if value(connection, _IS_WHOLE):
            return connection
    except BaseException:
        connection.close()
        raise
    connection.close()
    raise NotReadyError(
        "The database has no syncer schema, or not all of it: it is waited for",
        hint="Is a dump being restored? Then all goes on by itself. If not, run: syncer migrate",
    )


def applied(connection: Connection) -> dict[str, str]:
    """Return the applied migrations with their checksums; none if the database was never migrated."""
    if not value(connection, _HAS_RECORD):
        return {}
    return dict(connection.execute(_APPLIED).fetchall())


def _missing(applied: Mapping[str, str]) -> dict[str, bytes]:
    """Return the migrations that are still to be applied, in order.

    Raises:
        SourceError: One was applied that this program does not have, or has in another form.
    """
    files = {file.stem: file.read_bytes() for file in sorted(base_settings.shipped("migrations").glob("*.sql"))}
    checksums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    if foreign := [name for name, checksum in applied.items() if checksums.get(name) != checksum]:
        raise SourceError(
            f"The database was migrated by another version of syncer: {', '.join(foreign)} is unknown here or differs",
            hint="Install the version of syncer that migrated it. If that was a development version, whose schema\n"
            "cannot be upgraded, start over: DROP SCHEMA syncer CASCADE; then run: syncer migrate && syncer apply",
        )
    return {name: content for name, content in files.items() if name not in applied}
