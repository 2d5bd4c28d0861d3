"""The doctor sees what is broken in Postgres, and its fix mends it."""

from __future__ import annotations

from collections.abc import Iterator
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
OF_POSTGRES = [check for check in CHECKS if check.server == "postgres"]
FUNCTION = 'syncer."capture_public.users"()'


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


@dataclass(frozen=True, slots=True)
class Case:
    """Something that is broken.

    Args:
        id: The check that sees it.
        breaks: SQL that breaks it, as the superuser.
        part: What the finding names.
        severity: How bad it is.
        role: The role that the doctor connects as.
        undo: SQL that restores what the fix leaves behind.
        is_advice: Whether `undo` mends it, as the fix is for a person to decide.
    """

    id: str
    breaks: str
    part: str = ""
    severity: Severity = WRONG
    role: str = "postgres"
    undo: str = "SELECT"
    is_advice: bool = False


def off(setting: str, where: str = "ALTER SYSTEM", value: str = "off") -> str:
    """SQL that changes a setting."""
    return f"{where} SET {setting} = {value}; SELECT pg_reload_conf()"


def lacks(what: str, role: str, part: str, severity: Severity) -> Case:
    """A privilege that a daemon's role needs."""
    on = f"{what} {{verb}} {{{{database}}}}_{role}"
    revoke, grant_again = on.format(verb="FROM"), on.format(verb="TO")
    return Case(
        "postgres.privileges", f"REVOKE {revoke}", part, severity, "daemon", f"GRANT {grant_again}", is_advice=True
    )


CASES = [
    Case(
        "postgres.reach",
        "INSERT INTO syncer.migration (name, checksum) VALUES ('9999_later', 'later')",
        "9999_later",
        undo="DELETE FROM syncer.migration WHERE name = '9999_later'",
        is_advice=True,
    ),
    Case("postgres.durability", off("fsync")),
    Case("postgres.durability", off("full_page_writes")),
    *(
        Case("postgres.synchronous_commit", off("synchronous_commit", where), severity=CONSIDER)
        for where in ("ALTER SYSTEM", "ALTER ROLE daemon", "ALTER DATABASE {database}", "ALTER ROLE ALL")
    ),
    Case("postgres.deadlock_timeout", off("deadlock_timeout", value="'500ms'"), severity=CONSIDER),
    lacks("USAGE ON SCHEMA syncer", "relay, {{database}}_worker", "use the schema syncer", WRONG),
    lacks("TRUNCATE ON syncer.outbox_0", "relay", "TRUNCATE on syncer.outbox_0", CONSIDER),
    lacks("USAGE ON SEQUENCE syncer.version", "worker", "USAGE on syncer.version", CONSIDER),
    Case("postgres.triggers", "ALTER TABLE comments DISABLE TRIGGER syncer_row_fe6ac3f5", "public.comments"),
    Case("postgres.triggers", "DELETE FROM syncer.capture WHERE relation = 'public.posts'", "posts"),
    Case(
        "postgres.triggers",
        f"CREATE OR REPLACE FUNCTION {FUNCTION} RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER "
        "AS 'BEGIN RETURN NULL; END'",
        "not the one",
    ),
    Case(
        "postgres.functions",
        f"CREATE ROLE clerk; GRANT CREATE ON SCHEMA syncer TO clerk; ALTER FUNCTION {FUNCTION} OWNER TO clerk",
        "clerk",
    ),
    Case("postgres.reads", "REVOKE SELECT ON comments FROM {database}_documents", "public.comments", role="daemon"),
    Case(
        "postgres.reads",
        "REVOKE USAGE ON SCHEMA public FROM public, {database}_relay, {database}_documents",
        "schema public",
        role="daemon",
        undo="GRANT USAGE ON SCHEMA public TO public",
    ),
    Case(
        "postgres.reads",
        "ALTER TABLE comments ENABLE ROW LEVEL SECURITY",
        "Row-level security of public.comments",
        role="daemon",
        undo="ALTER ROLE daemon NOBYPASSRLS; ALTER TABLE comments DISABLE ROW LEVEL SECURITY",
    ),
]


def as_role(world: World, role: str) -> Settings:
    """The settings of a daemon of that role."""
    dsn = SecretStr(world.dsn.replace("postgres@", f"{role}@"))
    return world.settings.model_copy(update={"postgres": PostgresSettings(dsn=dsn)})


def run(world: World, statements: str) -> None:
    """Run statements as the superuser, each in a transaction of its own."""
    with psycopg.connect(world.dsn, autocommit=True) as connection:
        for statement in [statements] if "BEGIN" in statements else statements.split("; "):
            connection.execute(statement.format(database=world.name))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}-{case.breaks[:40]}")
def test_what_is_broken_is_seen_and_fixed(world: World, case: Case) -> None:
    """It is well, it is broken and seen, the fix is pasted, and it is well again."""
    settings = as_role(world, case.role)
    before = look(world, case.id, settings=settings)
    assert is_well(before), before
    try:
        run(world, case.breaks)
        (found,) = look(world, case.id, settings=settings)
        assert (found.severity, case.part in found.found) == (case.severity, True)
        if not case.is_advice:
            fix(world, found)
            after = look(world, case.id, settings=settings)
            assert is_well(after), after
    finally:
        run(world, case.undo)
    assert is_well(look(world, case.id, settings=settings))


def test_a_role_is_judged_by_its_privileges(world: World) -> None:
    """With the documented grants every check is well; what a role cannot check for want of a privilege is unseen."""
    report = examine(as_role(world, "daemon"), world.config, checks=OF_POSTGRES)
    assert is_well(report.findings)
    world.sql("CREATE ROLE newcomer LOGIN")
    report = examine(as_role(world, "newcomer"), world.config, checks=OF_POSTGRES)
    severities = {found.id: found.severity for found in report.findings}
    assert [id_ for id_, severity in severities.items() if severity is WRONG] == ["postgres.privileges"]
    assert severities["postgres.functions"] is severities["postgres.triggers"] is Severity.UNSEEN
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
