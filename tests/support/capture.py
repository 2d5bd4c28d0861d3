"""What tests of capture share: definitions that no server but Postgres has a part in, and what the outbox holds."""

from __future__ import annotations

import shutil
from typing import Any

import psycopg

from syncer.apply import plan as apply_plan
from syncer.capture import install as capture_install
from tests.support.world import World, planned

Change = tuple[str, str, Any, Any]
"""Relation, operation, old and new image."""


def forget(world: World) -> None:
    """Empty the outbox."""
    world.sql("DELETE FROM syncer.outbox")


def written(world: World, session: psycopg.Connection[Any] | None = None) -> list[Change]:
    """What the outbox holds, in a stable order; and empty it. In a session, also what it has not committed."""
    query = "DELETE FROM syncer.outbox RETURNING relation, operation::text, old, new"
    changes = world.sql(query) if session is None else session.execute(query).fetchall()
    return sorted(((str(relation), str(operation), old, new) for relation, operation, old, new in changes), key=repr)


def plan(world: World) -> apply_plan.Plan:
    """What apply would do."""
    with world.connect() as connection, world.indices() as indices:
        return planned(connection, indices, world.config)


def capture_only(world: World, tables: str, select: str, **affects: str) -> None:
    """A database with these tables, captured for one document; Elasticsearch and Kafka have no part in it."""
    shutil.rmtree(world.document_folder)
    world.define("thing", select, None, **affects)
    world.sql(tables)
    world.migrate()
    install(world)


def install(world: World) -> None:
    """Install the triggers that the definitions ask for."""
    with world.connect() as connection:
        for capture in plan(world).captures:
            capture_install.install(connection, capture)
            capture_install.narrow(connection, capture)


def is_installed(world: World, relation: str) -> bool:
    """Whether a table has its triggers, and they fire always."""
    with world.connect() as connection:
        return not capture_install.lost(connection, [relation])


def triggers(world: World, table: str) -> list[tuple[str, str]]:
    """The triggers of a table that are syncer's, each with how it is enabled."""
    return world.sql(
        "SELECT tgname::text, tgenabled::text FROM pg_trigger "
        "WHERE tgrelid = %s::regclass AND tgname LIKE 'syncer%%' ORDER BY tgname",
        table,
    )
