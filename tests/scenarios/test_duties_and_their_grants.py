"""No part of syncer can do more as a member of its group role in docs/roles.sql than its duty is.

That it can do its duty, `test_secured_servers` shows.
"""

from __future__ import annotations

import re
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from tests.support.world import REPOSITORY, World

DUTIES = ("relay", "worker", "operator", "reader")


def grant(world: World, *duties: str) -> None:
    """Run docs/roles.sql with group roles of this world, and make a login role a member of each."""
    script = (REPOSITORY / "docs" / "roles.sql").read_text()
    examples = "\n".join(re.findall(r"^--     (GRANT .* TO .*syncer_documents;)", script, re.MULTILINE))
    assert examples.count("GRANT") == 2
    world.sql(re.sub(rf"\bsyncer_(?=documents|{'|'.join(DUTIES)})", f"{world.name}_", f"{script}\n{examples}"))
    for duty in duties:
        role = f"{duty}_{world.name}"
        if not world.sql(f"SELECT FROM pg_roles WHERE rolname = '{role}'"):
            world.sql(f"CREATE ROLE {role} LOGIN")
        world.sql(f"GRANT {world.name}_{duty} TO {role}")


MAKE_OTHERS_EXECUTE = [
    "UPDATE syncer.document SET definition = definition",
    "UPDATE syncer.document SET name = name",
    "UPDATE syncer.document SET index_name = index_name",
    "UPDATE syncer.document SET write_alias = write_alias",
    "UPDATE syncer.document SET revision = revision",
    "UPDATE syncer.document SET role = role",
    "INSERT INTO syncer.document SELECT * FROM syncer.document",
    "UPDATE syncer.capture SET relation = relation",
    "UPDATE syncer.capture SET routing = routing",
    "INSERT INTO syncer.capture SELECT * FROM syncer.capture",
    "UPDATE syncer.job SET condition = 'true'",
    "UPDATE syncer.job SET index_name = index_name",
    "INSERT INTO syncer.job (condition) VALUES ('true')",
    "INSERT INTO syncer.revision VALUES ('blogpost', 1000)",
    "INSERT INTO syncer.orphan_index VALUES ('blogpost', 'blogpost')",
    "ALTER TABLE syncer.document ADD COLUMN mine text",
    "CREATE FUNCTION syncer.mine() RETURNS text LANGUAGE sql AS 'SELECT 1::text'",
    'CREATE OR REPLACE FUNCTION syncer."capture_public.posts"() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN END $$',
]
"""What would have another role run the SQL of this one, or write to another index."""

FORBIDDEN = {
    "relay": [
        *MAKE_OTHERS_EXECUTE,
        "UPDATE syncer.outbox SET relation = relation",
        "SELECT FROM posts",
        "SELECT nextval('syncer.version')",
        "UPDATE syncer.cluster_identity SET epoch = 1",
        "DELETE FROM syncer.dead_letter",
        "UPDATE syncer.event SET message = message",
    ],
    "worker": [
        *MAKE_OTHERS_EXECUTE,
        "TRUNCATE syncer.outbox_0",
        "DELETE FROM syncer.outbox",
        "UPDATE syncer.outbox SET xid = '1'",
        "UPDATE syncer.cursor SET snapshot = snapshot",
        "SELECT setval('syncer.outbox_segment', 1)",
        "SELECT setval('syncer.version', 1)",
        "DELETE FROM syncer.document",
        "UPDATE syncer.event SET message = message",
        "UPDATE posts SET title = 'x'",
    ],
    "operator": [
        "TRUNCATE syncer.outbox_0",
        "UPDATE syncer.cursor SET snapshot = snapshot",
        "DELETE FROM syncer.event",
        "DELETE FROM posts",
    ],
    "reader": [
        *MAKE_OTHERS_EXECUTE,
        "DELETE FROM syncer.job",
        "UPDATE syncer.document SET suspended = 'x'",
        "DELETE FROM syncer.dead_letter",
        "DELETE FROM syncer.event",
        "SELECT nextval('syncer.version')",
        "UPDATE posts SET title = 'x'",
    ],
}


def is_refused(connection: psycopg.Connection[Any], statement: str) -> bool:
    """Whether a role lacks the privilege for a statement."""
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(statement.encode())
    except psycopg.errors.InsufficientPrivilege:
        return True
    return False


def test_no_duty_can_do_what_is_another_s(world: World) -> None:
    """What each role lacks, Postgres refuses; nobody but the migrator creates anything."""
    grant(world, *DUTIES)
    try:
        # A role that had more before has no more after the script runs again.
        world.sql(f"GRANT ALL ON ALL TABLES IN SCHEMA syncer TO {world.name}_worker")
        grant(world, *DUTIES)
        for duty, statements in FORBIDDEN.items():
            with psycopg.connect(make_conninfo(world.dsn, user=f"{duty}_{world.name}"), autocommit=True) as connection:
                tried = (*statements, "CREATE TABLE syncer.mine ()", "CREATE SCHEMA mine")
                assert [statement for statement in tried if not is_refused(connection, statement)] == [], duty
        reader = {"SYNCER_POSTGRES_DSN": make_conninfo(world.dsn, user=f"reader_{world.name}")}
        ended = world.syncer("backfill", "blogpost", environment=reader)
        assert ended.returncode == 1
        assert "Postgres refuses" in ended.stdout + ended.stderr
    finally:
        groups = [f"{world.name}_{name}" for name in ("documents", *DUTIES)]
        for role in (*groups, *(f"{duty}_{world.name}" for duty in DUTIES)):
            world.sql(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")
