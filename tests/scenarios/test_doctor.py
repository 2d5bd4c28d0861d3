"""The doctor sees what is broken in each server, and its fix mends it, by the server's own tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from elasticsearch import Elasticsearch
from pydantic import SecretStr

from syncer.base.settings import PostgresSettings, Settings
from syncer.monitoring.doctor import CHECKS, CheckSeverity, Finding, examine
from syncer.sandbox import Endpoints, Sandbox
from tests.scenarios.test_schema_migrations import grant
from tests.support.doctor import fix, is_well, look
from tests.support.in_process import admin
from tests.support.standbys import standbys
from tests.support.world import World, elsewhere, postgres_server, wait_until

CONSIDER, WRONG = CheckSeverity.CONSIDER, CheckSeverity.WRONG
OF_POSTGRES = [check for check in CHECKS if check.server == "postgres"]
FUNCTION = 'syncer."capture_public.users"()'
Break = Callable[[Elasticsearch, World], object]


@pytest.fixture(scope="module")
def world(sandbox: Sandbox, endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world on a Postgres of its own, with a document in it; each test leaves it as it was."""
    with (
        postgres_server({}) as own,
        elsewhere(sandbox, endpoints, tmp_path_factory.mktemp("doctor"), postgres_dsn=own.address) as world,
    ):
        world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John', 'j@example.com')")
        world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (1, 1, 'title', 'body')")
        world.backfill()
        grant(world, "relay", "worker")
        world.sql(f"CREATE ROLE daemon LOGIN; GRANT {world.name}_relay, {world.name}_worker TO daemon")
        yield world


@dataclass(frozen=True, slots=True)
class Case:
    """Something that is broken.

    Args:
        id: The check that sees it.
        breaks: What breaks it: SQL of the superuser, or a request to another server.
        part: What the finding names.
        severity: How bad it is.
        role: The role that the doctor connects as.
        undo: SQL that restores what the fix leaves behind.
        is_advice: Whether `undo` mends it, as the fix is for a person to decide.
    """

    id: str
    breaks: str | Break
    part: str = ""
    severity: CheckSeverity = WRONG
    role: str = "postgres"
    undo: str = "SELECT"
    is_advice: bool = False


def off(setting: str, where: str = "ALTER SYSTEM", value: str = "off") -> str:
    """SQL that changes a setting."""
    return f"{where} SET {setting} = {value}; SELECT pg_reload_conf()"


def lacks(what: str, role: str, part: str, severity: CheckSeverity) -> Case:
    """A privilege that a daemon's role needs."""
    on = f"{what} {{verb}} {{{{database}}}}_{role}"
    revoke, grant_again = on.format(verb="FROM"), on.format(verb="TO")
    return Case(
        "postgres.privileges", f"REVOKE {revoke}", part, severity, "daemon", f"GRANT {grant_again}", is_advice=True
    )


def topic(name: str, value: str) -> Break:
    """Change a setting of the topic, and wait until the broker has it."""

    def configure(_: Elasticsearch, world: World) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = partial(ConfigResource, ResourceType.TOPIC, world.settings.kafka.topic)
        client, changed, asked = admin(world), resource(incremental_configs=[entry]), resource()
        client.incremental_alter_configs([changed])[changed].result()
        wait_until(lambda: client.describe_configs([asked])[asked].result()[name].value == value, what=f"{name} is set")

    return configure


def index(name: str, value: object) -> Break:
    """Change a setting of the index."""
    return lambda client, world: client.indices.put_settings(index=world.index_of(), settings={name: value})


def pipeline(client: Elasticsearch, world: World) -> None:
    """Add a pipeline that changes what is written."""
    client.ingest.put_pipeline(id="doctor-stamp", processors=[])
    client.indices.put_settings(index=world.index_of(), settings={"index.final_pipeline": "doctor-stamp"})


def orphan(name: str = "", *aliases: str) -> Break:
    """Make an index of this installation that Postgres does not know."""

    def make(client: Elasticsearch, world: World) -> None:
        installation = str(world.sql("SELECT installation FROM syncer.cluster_identity")[0][0])
        mark: dict[str, Any] = {"_meta": {"syncer": {"document": "page", "installation": installation}}}
        made_index = f"{world.alias}{name}-000099"
        named: dict[str, dict[str, object]] = {a.format(alias=world.alias, index=made_index): {} for a in aliases}
        client.indices.create(index=made_index, mappings=mark, aliases=named)

    return make


def forget_epoch(client: Elasticsearch, world: World) -> None:
    """Delete the record of the epoch."""
    ((installation, epoch),) = world.sql("SELECT installation, epoch FROM syncer.cluster_identity")
    client.delete(index="syncer-state", id=f"epoch-{installation}", version=epoch, version_type="external_gte")


def override_guard(client: Elasticsearch, world: World) -> None:
    """Add an index template that takes precedence over syncer's."""
    pattern = f"{world.alias}-*-write"
    client.indices.put_index_template(
        name=f"doctor-{world.name}", index_patterns=[pattern], allow_auto_create=True, priority=900
    )


CASES = [
    Case("kafka.topic", topic("cleanup.policy", "compact"), "compact"),
    Case("kafka.topic", topic("unclean.leader.election.enable", "true"), "true"),
    Case("kafka.topic", topic("retention.ms", "60000"), "60000", CONSIDER),
    Case("elasticsearch.settings", index("index.gc_deletes", None), "is 60s"),
    Case(
        "postgres.documents",
        "UPDATE syncer.document SET suspended = 'a column is gone;'",
        "a column is gone",
        undo="UPDATE syncer.document SET suspended = NULL",
        is_advice=True,
    ),
    Case("elasticsearch.settings", index("index.translog.durability", "async"), "async"),
    Case("elasticsearch.settings", index("index.refresh_interval", "-1"), "-1"),
    Case("elasticsearch.settings", pipeline, "doctor-stamp"),
    Case("elasticsearch.guard", override_guard, "overridden"),
    Case("elasticsearch.orphans", orphan("x", "{index}-syncer-write"), "x-000099, made for page", CONSIDER),
    Case("elasticsearch.epoch", forget_epoch, "recorded none"),
    Case(
        "postgres.reach",
        "INSERT INTO syncer.migration (name, checksum) VALUES ('9999_later', 'later')",
        "9999_later",
        undo="DELETE FROM syncer.migration WHERE name = '9999_later'",
        is_advice=True,
    ),
    Case("postgres.durability", off("full_page_writes")),
    *(
        Case("postgres.synchronous_commit", off("synchronous_commit", where), severity=CONSIDER)
        for where in ("ALTER SYSTEM", "ALTER ROLE daemon", "ALTER DATABASE {database}")
    ),
    lacks("USAGE ON SCHEMA syncer", "relay, {{database}}_worker", "use the schema syncer", WRONG),
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


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}-{case.part[:20]}")
def test_what_is_broken_is_seen_and_fixed(world: World, case: Case) -> None:
    """It is well, it is broken and seen, the fix is pasted, and it is well again."""
    settings = as_role(world, case.role)

    before = [each for each in look(world, case.id, settings=settings) if each.severity is not CheckSeverity.WELL]
    assert [each.found for each in before if "one replica" not in each.found] == []

    def new() -> list[Finding]:
        seen = look(world, case.id, settings=settings)
        return [each for each in seen if each.severity is not CheckSeverity.WELL and each not in before]

    with world.elasticsearch() as client:
        try:
            if isinstance(case.breaks, str):
                run(world, case.breaks)
            else:
                case.breaks(client, world)
            (found,) = new()
            assert (found.severity, case.part in found.found) == (case.severity, True)
            if not case.is_advice:
                fix(world, found)
                wait_until(lambda: not new(), what="it is well again", detail=lambda: str(new()))
        finally:
            run(world, case.undo)
            client.options(ignore_status=404).indices.delete_index_template(name=f"doctor-{world.name}")
    assert new() == []


def test_a_missing_topic_is_seen(world: World) -> None:
    """Kafka answers, but cannot take changes."""
    elsewhere = world.settings.kafka.model_copy(update={"topic": f"{world.name}.missing"})
    settings = world.settings.model_copy(update={"kafka": elsewhere})
    (found,) = look(world, "kafka.reach", settings=settings)
    assert found.severity is WRONG
    (found,) = look(world, "kafka.topic", settings=settings)
    assert found.severity is CheckSeverity.UNSEEN


def test_a_disk_that_was_restored_is_seen_and_fixed(world: World) -> None:
    """Elasticsearch has recorded a greater epoch than that of a database that believes it is the same."""
    ((installation, epoch),) = world.sql("SELECT installation, epoch FROM syncer.cluster_identity")
    assert is_well(look(world, "elasticsearch.epoch"))
    with world.elasticsearch() as client:
        client.index(index="syncer-state", id=f"epoch-{installation}", document={"epoch": epoch + 4}, refresh=True)
    (found,) = look(world, "elasticsearch.epoch")
    assert found.severity is WRONG
    fix(world, found)
    world.backfill()
    assert world.sql("SELECT epoch FROM syncer.cluster_identity") == [(epoch + 5,)]
    assert is_well(look(world, "elasticsearch.epoch"))


def test_a_role_is_judged_by_its_privileges(world: World) -> None:
    """With the documented grants every check is well; what a role cannot check for want of a privilege is unseen."""
    report = examine(as_role(world, "daemon"), checks=OF_POSTGRES)
    assert is_well(report)
    world.sql("CREATE ROLE newcomer LOGIN")
    report = examine(as_role(world, "newcomer"), checks=OF_POSTGRES)
    severities = {found.id: found.severity for found in report}
    assert [id_ for id_, severity in severities.items() if severity is WRONG] == ["postgres.privileges"]
    assert severities["postgres.functions"] is severities["postgres.triggers"] is CheckSeverity.UNSEEN
    assert severities["postgres.durability"] is CheckSeverity.WELL


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
