"""Each part of syncer works as a role of its own, with the grants that `syncer grants` prints, and none can do more."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from syncer import grants
from syncer.grants import Duty
from tests.harness import BLOG_SCHEMA, World, wait_until

ROLES = [str(one) for one in Duty]


@pytest.fixture
def parted(empty_world: World) -> Iterator[World]:
    """A world in which every duty has a role of its own, and the tables belong to one that has none."""
    world = empty_world
    names = [f"{one} of {world.name}" for one in (*ROLES, "shop")]
    world.sql(f'CREATE ROLE "shop of {world.name}"')
    world.sql(f'GRANT CREATE, USAGE ON SCHEMA public TO "shop of {world.name}"')
    world.sql(f'SET ROLE "shop of {world.name}"; {BLOG_SCHEMA.read_text()}')
    world.sql("REVOKE ALL ON SCHEMA public FROM public")
    try:
        yield world
    finally:
        for one in names:
            world.sql(f'DROP OWNED BY "{one}" CASCADE; DROP ROLE IF EXISTS "{one}"')


def role(world: World, duty: str) -> dict[str, str]:
    """The environment of who has that duty."""
    return {"SYNCER_POSTGRES_DSN": make_conninfo(world.dsn, user=f"{duty} of {world.name}")}


def grant(world: World, *duties: str) -> None:
    """Run what `syncer grants` prints for these duties."""
    named = [word for duty in duties for word in (f"--{duty}", f"{duty} of {world.name}")]
    printed = world.syncer("grants", *named)
    assert printed.returncode == 0, printed.stderr
    world.sql(printed.stdout)


def done(world: World, duty: str, *command: str, code: int = 0) -> str:
    """A command as the role of that duty; what it says."""
    ended = world.syncer(*command, environment=role(world, duty))
    assert ended.returncode == code, (duty, command, ended.stdout, ended.stderr)
    return ended.stdout + ended.stderr


def test_every_table_and_sequence_of_the_schema_has_its_grants(world: World) -> None:
    """What a migration adds is not forgotten: each table and each sequence is named."""
    found = world.sql(
        "SELECT relkind::text, relname::text FROM pg_class WHERE relnamespace = 'syncer'::regnamespace "
        "AND relkind IN ('r', 'p', 'S') AND (relname = '_yoyo_migration' OR relname !~ 'yoyo') "
        "AND oid NOT IN (SELECT objid FROM pg_depend WHERE deptype = 'i' AND classid = 'pg_class'::regclass "
        "                AND refclassid = 'pg_class'::regclass AND objid IN (SELECT seqrelid FROM pg_sequence))"
    )
    assert {name for kind, name in found if kind != "S"} <= set(grants.TABLES)
    named = {name for by_name in grants.ON_SEQUENCES.values() for name in by_name}
    # That of an identity needs no grant, but for who looks how many changes there have been.
    assert {name for kind, name in found if kind == "S"} == named - {"outbox_id_seq"}
    assert {name for by_name in grants.ON_TABLES.values() for name in by_name} <= set(grants.TABLES)


def test_relay_and_workers_do_the_whole_job_as_roles_of_their_own(parted: World) -> None:
    """Changes, fan-outs, TRUNCATE, dead letters, jobs and a rebuild; and the doctor finds each role well."""
    world = parted
    grant(world, "migrator")
    done(world, "migrator", "migrate")
    assert "order" not in done(world, "migrator", "plan")
    done(world, "migrator", "apply", "--yes")
    world.sql("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA syncer FROM public")
    grant(world, "relay", "worker", "operator", "reader")
    few = {"SYNCER_WORKER_FAN_OUT_DOCUMENTS_MAX": "5", "SYNCER_RELAY_TRIM_SECONDS": "0.1", "SYNCER_LOG_LEVEL": "debug"}
    relay = world.daemon("--only", "relay", environment={**role(world, "relay"), **few})
    workers = world.daemon("--only", "workers", environment={**role(world, "worker"), **few})

    world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John', 'john@smith.com'), (2, 'Eve', 'e')")
    world.sql("INSERT INTO posts (id, user_id, title, body) SELECT n, 1, 't', 'b' FROM generate_series(1, 50) AS n")
    world.wait_until_level()
    world.sql("UPDATE users SET name = 'Jack' WHERE id = 1")
    world.wait_until_level()
    wait_until(
        lambda: any(one["event"] == "job.created" and one["kind"] == "fan-out" for one in workers.events()),
        what="it is said that there was a fan-out",
    )
    world.sql("TRUNCATE comments")
    relay.wait_for("relay.outbox_trimmed")
    world.sql("INSERT INTO posts (id, user_id, title, body, created) VALUES (99, 2, 'no date', 'b', 'infinity')")
    workers.wait_for("document.parked")
    assert "document_parsing_exception" in done(world, "reader", "dead-letters", "list")
    world.sql("DELETE FROM posts WHERE id = 99")
    world.wait_until_level()

    for part, duty in (("relay", "relay"), ("workers", "worker")):
        seen = json.loads(done(world, duty, "doctor", "--only", part, "--json"))
        found = [one for one in seen["findings"] if one["id"].startswith("postgres.")]
        assert [one for one in found if one["severity"] == "wrong"] == []
    [[token]] = world.sql("UPDATE posts SET title = 'waited for' WHERE id = 1 RETURNING syncer.token()")
    done(world, "reader", "wait", token)
    for command in (("status",), ("verify",), ("explain", "blogpost", "2"), ("jobs", "list"), ("locks", "list")):
        done(world, "reader", *command)
    for command in (
        ("backfill", "blogpost"),
        ("backfill", "blogpost", "--rebuild"),
        ("backfill", "blogpost", "--rollback"),
        ("backfill", "blogpost", "--drop-old"),
        ("verify", "--repair"),
        ("dead-letters", "retry", "blogpost"),
    ):
        done(world, "operator", *command)
    assert relay.stop() == 0
    assert workers.stop() == 0


FORBIDDEN = {
    "relay": [
        "SELECT FROM posts",
        "SELECT nextval('syncer.version')",
        "UPDATE syncer.incarnation SET epoch = 1",
        "DELETE FROM syncer.dead_letter",
        "INSERT INTO syncer.document SELECT * FROM syncer.document",
    ],
    "worker": [
        "TRUNCATE syncer.outbox_0",
        "DELETE FROM syncer.outbox",
        "UPDATE syncer.outbox SET xid = '1'",
        "UPDATE syncer.relay_cursor SET snapshot = snapshot",
        "SELECT setval('syncer.outbox_segment', 1)",
        "SELECT setval('syncer.version', 1)",
        "DELETE FROM syncer.document",
        "UPDATE posts SET title = 'x'",
    ],
    "operator": ["TRUNCATE syncer.outbox_0", "UPDATE syncer.relay_cursor SET snapshot = snapshot", "DELETE FROM posts"],
    "reader": [
        "DELETE FROM syncer.job",
        "UPDATE syncer.document SET halted = 'x'",
        "DELETE FROM syncer.dead_letter",
        "SELECT nextval('syncer.version')",
        "UPDATE posts SET title = 'x'",
    ],
}


def test_no_duty_can_do_what_is_another_s(parted: World) -> None:
    """What each role lacks, Postgres refuses; nobody but the migrator creates anything."""
    world = parted
    grant(world, "migrator")
    done(world, "migrator", "migrate")
    done(world, "migrator", "apply", "--yes")
    # Who had more before has no more than this afterwards.
    world.sql(f'CREATE ROLE "worker of {world.name}" LOGIN')
    world.sql(f'GRANT ALL ON ALL TABLES IN SCHEMA syncer TO "worker of {world.name}"')
    grant(world, "relay", "worker", "operator", "reader")
    for duty, statements in FORBIDDEN.items():
        with psycopg.connect(role(world, duty)["SYNCER_POSTGRES_DSN"], autocommit=True) as connection:
            for statement in (*statements, "CREATE TABLE syncer.mine ()", "CREATE SCHEMA mine"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(statement)
    assert "Postgres refuses" in done(world, "reader", "backfill", "blogpost", code=1)


def test_grants_are_not_printed_for_nobody(empty_world: World) -> None:
    """Without a role, with none that can be, or before there is a schema, it is said what to do."""
    for arguments, says in (
        ((), "No role is named"),
        (("--relay", ""), "no name of a role"),
        (("--relay", "x" * 64), "no name of a role"),
        (("--worker", "w"), "syncer migrate"),
    ):
        said = empty_world.syncer("grants", *arguments)
        assert said.returncode == 1
        assert says in said.stderr
    printed = empty_world.syncer("grants", "--migrator", 'a"; DROP TABLE users; --')
    assert 'CREATE ROLE "a""; DROP TABLE users; --" LOGIN;' in printed.stdout
    assert "-- blogpost is left out" in printed.stdout
