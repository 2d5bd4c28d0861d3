"""Each part of syncer works as a member of its group role in docs/roles.sql, and none can do more."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.support.world import BLOG_SCHEMA, REPOSITORY, World, wait_until

DUTIES = ("relay", "worker", "operator", "reader")


@pytest.fixture
def parted(empty_world: World) -> Iterator[World]:
    """A world in which every duty has a login role, and the tables belong to a role that has no duty."""
    world = empty_world
    owner = f"shop_{world.name}"
    world.sql(f"CREATE ROLE {owner}; GRANT CREATE, USAGE ON SCHEMA public TO {owner}")
    world.sql(f"SET ROLE {owner}; {BLOG_SCHEMA.read_text()}")
    world.sql("REVOKE ALL ON SCHEMA public FROM public")
    world.sql(f"CREATE ROLE migrator_{world.name} LOGIN; GRANT {owner} TO migrator_{world.name}")
    world.sql(f"GRANT CREATE ON DATABASE {world.name} TO migrator_{world.name}")
    world.sql(f"GRANT USAGE ON SCHEMA public TO migrator_{world.name}")
    done(world, "migrator", "migrate")
    done(world, "migrator", "apply", "--yes")
    grant(world, *DUTIES)
    try:
        yield world
    finally:
        groups = [f"{world.name}_{name}" for name in ("documents", *DUTIES)]
        for role in (*groups, *(f"{duty}_{world.name}" for duty in (*DUTIES, "migrator")), owner):
            world.sql(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


def as_role(world: World, duty: str) -> dict[str, str]:
    """Return the environment of the login role with a duty."""
    return {"SYNCER_POSTGRES_DSN": make_conninfo(world.dsn, user=f"{duty}_{world.name}")}


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


def done(world: World, duty: str, *command: str, code: int = 0) -> str:
    """A command as the role of that duty; what it says."""
    ended = world.syncer(*command, environment=as_role(world, duty))
    assert ended.returncode == code, (duty, command, ended.stdout, ended.stderr)
    return ended.stdout + ended.stderr


def test_relay_and_workers_do_the_whole_job_as_roles_of_their_own(parted: World) -> None:
    """Changes, fan-outs, TRUNCATE, dead letters, jobs and a rebuild; and the doctor finds each role well."""
    world = parted
    few = {"SYNCER_WORKER_BATCH_DOCUMENTS_MAX": "5", "SYNCER_LOG_LEVEL": "debug"}
    relay = world.daemon("--only", "relay", environment={**as_role(world, "relay"), **few})
    workers = world.daemon("--only", "workers", environment={**as_role(world, "worker"), **few})

    world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John', 'john@smith.com'), (2, 'Eve', 'e')")
    world.sql("INSERT INTO posts (id, user_id, title, body) SELECT n, 1, 't', 'b' FROM generate_series(1, 50) AS n")
    world.wait_until_level()
    world.sql("UPDATE users SET name = 'Jack' WHERE id = 1")
    world.wait_until_level()
    wait_until(
        lambda: any(one["event"] == "job.created" and one["kind"] == "fan_out" for one in workers.events()),
        what="it is said that there was a fan-out",
    )
    world.sql("TRUNCATE comments")
    relay.wait_for("relay.outbox_trimmed")
    world.sql("INSERT INTO posts (id, user_id, title, body, created) VALUES (99, 2, 'no date', 'b', 'infinity')")
    workers.wait_for("document.dead_lettered")
    assert "document_parsing_exception" in done(world, "reader", "dead-letters", "list")
    world.sql("DELETE FROM posts WHERE id = 99")
    world.wait_until_level()

    for duty in ("relay", "worker", "reader"):
        seen = json.loads(done(world, duty, "doctor", "--json"))
        found = [one for one in seen["findings"] if one["id"].startswith("postgres.")]
        assert [one for one in found if one["severity"] == "wrong"] == []
    wait_until(
        lambda: world.syncer("status", environment=as_role(world, "reader")).returncode == 0,
        what="no refresh is running",
    )
    [[token]] = world.sql("UPDATE posts SET title = 'waited for' WHERE id = 1 RETURNING syncer.token()")
    done(world, "reader", "wait", token)
    for command in (("verify",), ("explain", "blogpost", "2"), ("jobs", "list"), ("locks", "list")):
        done(world, "reader", *command)
    wait_until(
        lambda: (
            {"relay.led", "apply.finished", "job.finished", "verify.finished"}
            <= {one["event"] for one in json.loads(done(world, "reader", "events", "--json"))}
        ),
        what="the timeline has what each role did",
    )
    for words in (
        ("backfill", "blogpost"),
        ("index", "rebuild", "blogpost"),
        ("verify", "--repair"),
        ("dead-letters", "retry", "blogpost"),
    ):
        done(world, "operator", *words)
    assert relay.stop() == 0
    assert workers.stop() == 0


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


def test_no_duty_can_do_what_is_another_s(parted: World) -> None:
    """What each role lacks, Postgres refuses; nobody but the migrator creates anything."""
    world = parted
    # A role that had more before has no more after the script runs again.
    world.sql(f"GRANT ALL ON ALL TABLES IN SCHEMA syncer TO {world.name}_worker")
    grant(world, *DUTIES)
    for duty, statements in FORBIDDEN.items():
        with psycopg.connect(as_role(world, duty)["SYNCER_POSTGRES_DSN"], autocommit=True) as connection:
            tried = (*statements, "CREATE TABLE syncer.mine ()", "CREATE SCHEMA mine")
            assert [one for one in tried if not is_refused(connection, one)] == [], duty
    assert "Postgres refuses" in done(world, "reader", "backfill", "blogpost", code=1)
