"""The doctor sees what is broken in Postgres, and its fix mends it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from pydantic import SecretStr

from syncer.base.settings import PostgresSettings, Settings
from syncer.monitoring.doctor import CHECKS, Severity, examine
from syncer.sandbox import Endpoints, Sandbox
from tests.scenarios.test_duties_and_their_grants import grant
from tests.support.doctor import fix, is_well, look
from tests.support.standbys import standbys
from tests.support.world import World, made, postgres_with

CONSIDER, WRONG = Severity.CONSIDER, Severity.WRONG
OF_POSTGRES = [one for one in CHECKS if one.server == "postgres"]


@pytest.fixture(scope="module")
def world(sandbox: Sandbox, endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world on a Postgres of its own; each test leaves it as it was."""
    with (
        postgres_with(endpoints, {}) as others,
        made(World(sandbox=sandbox, endpoints=others, folder=tmp_path_factory.mktemp("doctor"))) as world,
    ):
        world.set_up()
        grant(world, "relay", "worker")
        world.sql(f"CREATE ROLE daemon LOGIN; GRANT {world.name}_relay, {world.name}_worker TO daemon")
        yield world


@dataclass(frozen=True, kw_only=True)
class Case:
    """Something that is broken.

    Args:
        id: The check that sees it.
        breaks: SQL that breaks it, as the superuser.
        says: What the finding names.
        severity: How bad it is.
        role: The role that the doctor connects as.
        restore: SQL that restores what the fix leaves behind.
        by_restoring: Whether that mends it, and not the fix.
    """

    id: str
    breaks: str
    says: str = ""
    severity: Severity = WRONG
    role: str = "postgres"
    restore: str = "SELECT"
    by_restoring: bool = False


RELOAD = "; SELECT pg_reload_conf()"
FUNCTION = 'syncer."capture_public.users"()'
CASES = [
    Case(
        id="postgres.reach",
        breaks="INSERT INTO syncer.migration (name, checksum) VALUES ('9999_later', 'later')",
        says="9999_later",
        restore="DELETE FROM syncer.migration WHERE name = '9999_later'",
        by_restoring=True,
    ),
    Case(id="postgres.durability", breaks=f"ALTER SYSTEM SET fsync = off{RELOAD}"),
    Case(id="postgres.durability", breaks=f"ALTER SYSTEM SET full_page_writes = off{RELOAD}"),
    *(
        Case(
            id="postgres.synchronous_commit", breaks=f"{where} SET synchronous_commit = off{RELOAD}", severity=CONSIDER
        )
        for where in ("ALTER SYSTEM", "ALTER ROLE daemon", "ALTER DATABASE {database}", "ALTER ROLE ALL")
    ),
    Case(
        id="postgres.deadlock_timeout",
        breaks=f"ALTER SYSTEM SET deadlock_timeout = '500ms'{RELOAD}",
        severity=CONSIDER,
    ),
    *(
        Case(
            id="postgres.privileges",
            breaks=breaks,
            says=says,
            severity=severity,
            role="daemon",
            restore=restore,
            by_restoring=True,
        )
        for severity, breaks, says, restore in (
            (
                WRONG,
                "REVOKE USAGE ON SCHEMA syncer FROM {database}_relay, {database}_worker",
                "use the schema syncer",
                "GRANT USAGE ON SCHEMA syncer TO {database}_relay, {database}_worker",
            ),
            (
                CONSIDER,
                "REVOKE TRUNCATE ON syncer.outbox_0 FROM {database}_relay",
                "TRUNCATE on syncer.outbox_0",
                "GRANT TRUNCATE ON syncer.outbox_0 TO {database}_relay",
            ),
            (
                CONSIDER,
                "REVOKE USAGE ON SEQUENCE syncer.version FROM {database}_worker",
                "USAGE on syncer.version",
                "GRANT USAGE ON SEQUENCE syncer.version TO {database}_worker",
            ),
        )
    ),
    Case(id="postgres.logged", breaks="ALTER TABLE syncer.outbox_3 SET UNLOGGED", says="syncer.outbox_3"),
    Case(id="postgres.logged", breaks="ALTER SEQUENCE syncer.version SET UNLOGGED", says="syncer.version"),
    Case(id="postgres.sequence", breaks="ALTER SEQUENCE syncer.version CACHE 50", says="CACHE 50"),
    Case(id="postgres.sequence", breaks="ALTER SEQUENCE syncer.version INCREMENT 2 CYCLE", says="INCREMENT 2"),
    Case(
        id="postgres.triggers",
        breaks="ALTER TABLE comments DISABLE TRIGGER syncer_row_fe6ac3f5",
        says="public.comments",
    ),
    Case(id="postgres.triggers", breaks="DELETE FROM syncer.capture WHERE relation = 'public.posts'", says="posts"),
    Case(
        id="postgres.triggers",
        breaks=f"CREATE OR REPLACE FUNCTION {FUNCTION} RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER "
        "AS 'BEGIN RETURN NULL; END'",
        says="not the one",
    ),
    Case(id="postgres.functions", breaks=f"ALTER FUNCTION {FUNCTION} SECURITY INVOKER", says="privileges of the role"),
    Case(
        id="postgres.functions",
        breaks=f"CREATE ROLE clerk; GRANT CREATE ON SCHEMA syncer TO clerk; ALTER FUNCTION {FUNCTION} OWNER TO clerk",
        says="clerk",
    ),
    *(
        Case(id="postgres.reads", breaks=breaks, says=says, role="daemon", restore=restore)
        for breaks, says, restore in (
            ("REVOKE SELECT ON comments FROM {database}_documents", "public.comments", "SELECT"),
            (
                "REVOKE USAGE ON SCHEMA public FROM public, {database}_relay, {database}_documents",
                "schema public",
                "GRANT USAGE ON SCHEMA public TO public",
            ),
            (
                "ALTER TABLE comments ENABLE ROW LEVEL SECURITY",
                "Row-level security of public.comments",
                "ALTER ROLE daemon NOBYPASSRLS; ALTER TABLE comments DISABLE ROW LEVEL SECURITY",
            ),
        )
    ),
]


def as_role(world: World, role: str) -> Settings:
    """The settings of a daemon of that role."""
    dsn = SecretStr(world.dsn.replace("postgres@", f"{role}@"))
    return world.settings.model_copy(update={"postgres": PostgresSettings(dsn=dsn)})


def run(world: World, statements: str) -> None:
    """Run statements as the superuser, each in a transaction of its own."""
    with psycopg.connect(world.dsn, autocommit=True) as connection:
        for one in [statements] if "BEGIN" in statements else statements.split("; "):
            connection.execute(one.format(database=world.name))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}-{case.breaks[:40]}")
def test_what_is_broken_is_seen_and_fixed(world: World, case: Case) -> None:
    """It is well, it is broken and seen, the fix is pasted, and it is well again."""
    settings = as_role(world, case.role)
    before = look(world, case.id, settings=settings)
    assert is_well(before), before
    with ExitStack() as stack:
        stack.callback(run, world, case.restore)
        run(world, case.breaks)
        (found,) = look(world, case.id, settings=settings)
        assert found.severity is case.severity
        assert case.says in found.found
        if not case.by_restoring:
            fix(world, found)
            after = look(world, case.id, settings=settings)
            assert is_well(after), after
    assert is_well(look(world, case.id, settings=settings))


def test_a_least_privileged_daemon_finds_its_postgres_well(world: World) -> None:
    """With the documented grants every check can be made, and is well."""
    report = examine(as_role(world, "daemon"), world.config, checks=OF_POSTGRES)
    assert [found for found in report.findings.values() if not is_well(found)] == []


def test_a_role_without_privileges_is_told_which_it_lacks(world: World) -> None:
    """What it cannot check for want of a privilege is unseen, and not wrong."""
    world.sql("CREATE ROLE nobody_yet LOGIN")
    report = examine(as_role(world, "nobody_yet"), world.config, checks=OF_POSTGRES)
    severities = {check.id: found[0].severity for check, found in report.findings.items()}
    assert [id_ for id_, severity in severities.items() if severity is WRONG] == ["postgres.privileges"]
    assert severities["postgres.sequence"] is severities["postgres.triggers"] is Severity.UNSEEN
    assert severities["postgres.durability"] is Severity.WELL


def test_a_standby_in_place_of_the_primary_is_seen(sandbox: Sandbox, endpoints: Endpoints, tmp_path: Path) -> None:
    """So is a server without the syncer schema."""
    world = World(sandbox=sandbox, endpoints=endpoints, folder=tmp_path)

    def reached(dsn: str) -> str:
        settings = world.settings.model_copy(update={"postgres": PostgresSettings(dsn=SecretStr(dsn))})
        (found,) = look(world, "postgres.reach", settings=settings)
        return found.found

    with standbys(sandbox) as servers:
        assert "no syncer schema" in reached(servers.primary.address)
        assert "is a standby" in reached(servers.follow().address)
