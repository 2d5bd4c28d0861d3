"""The doctor sees what is broken in each server, and its fix cures it, by the server's own tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import psycopg
import pytest
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from pydantic import SecretStr

from syncer.base.settings import PostgresSettings, Settings
from syncer.documents import registry
from syncer.indexing import failover
from syncer.monitoring.doctor import CHECKS, CheckSeverity, Finding, examine
from syncer.sandbox import Endpoints, Sandbox
from tests.scenarios.test_schema_migrations import grant
from tests.support.doctor import fix, is_well, look
from tests.support.in_process import admin
from tests.support.standbys import standbys
from tests.support.world import VERSIONS, World, elsewhere, require_kafka, wait_until

CONSIDER, WRONG = CheckSeverity.CONSIDER, CheckSeverity.WRONG
OF_POSTGRES = [check for check in CHECKS if check.server == "postgres"]
FUNCTION = 'syncer."capture_public.users"()'


@pytest.fixture(scope="module")
def world(sandbox: Sandbox, endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world on a Postgres of its own, with a document in it; each test leaves it as it was."""
    with (
        standbys(sandbox) as servers,
        elsewhere(sandbox, endpoints, tmp_path_factory.mktemp("doctor"), postgres_dsn=servers.primary.address) as world,
    ):
        world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John', 'j@example.com')")
        world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (1, 1, 'title', 'body')")
        world.backfill()
        grant(world, "relay", "worker")
        with world.elasticsearch() as client:
            client.ingest.put_pipeline(id="doctor-stamp", processors=[])
        world.sql(f"CREATE ROLE daemon LOGIN; GRANT {world.name}_relay, {world.name}_worker TO daemon")
        yield world


@dataclass(frozen=True, slots=True)
class Case:
    """Something that is broken.

    Args:
        id: The check that sees it.
        breaks: SQL of the superuser, a request to Elasticsearch, or a setting of the topic.
        part: What the finding names.
        severity: How bad it is.
        role: The role that the doctor connects as.
        undo: SQL that restores what the fix leaves behind.
        is_advice: Whether `undo` cures it, as the fix is for a person to decide.
    """

    id: str
    breaks: str
    part: str = ""
    severity: CheckSeverity = WRONG
    role: str = "postgres"
    undo: str = "SELECT"
    is_advice: bool = False


def setting(name: str, value: str, words: str) -> Case:
    """A setting of the index."""
    return Case("elasticsearch.settings", f'PUT /@index/_settings {{"{name}": {value}}}', words)


def off(name: str, scope: str = "ALTER SYSTEM") -> str:
    """SQL that turns a setting off."""
    return f"{scope} SET {name} = off; SELECT pg_reload_conf()"


def lacks(privilege: str, roles: str, words: str, severity: CheckSeverity) -> Case:
    """A privilege that a daemon's role needs."""
    revoke, undo = f"REVOKE {privilege} FROM {roles}", f"GRANT {privilege} TO {roles}"
    return Case("postgres.privileges", revoke, words, severity, "daemon", undo, is_advice=True)


ORPHAN = """PUT /@aliasx-000099 {
    "mappings": {"_meta": {"syncer": {"document": "page", "installation": "@installation"}}},
    "aliases": {"@aliasx-000099-syncer-write-1": {}}
}"""
CASES = [
    Case("kafka.topic", "TOPIC cleanup.policy=compact", "compact"),
    Case("kafka.topic", "TOPIC unclean.leader.election.enable=true", "true"),
    Case("kafka.topic", "TOPIC retention.ms=60000", "60000", CONSIDER),
    setting("index.gc_deletes", "null", "is 60s"),
    setting("index.translog.durability", '"async"', "async"),
    setting("index.refresh_interval", '"-1"', "-1"),
    setting("index.final_pipeline", '"doctor-stamp"', "doctor-stamp"),
    Case("elasticsearch.orphans", ORPHAN, "x-000099, made for page", CONSIDER),
    Case(
        "elasticsearch.epoch",
        "DELETE /syncer-state/_doc/epoch-@installation?version=@recorded&version_type=external_gte",
        "recorded none",
    ),
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
        for where in ("ALTER SYSTEM", "ALTER ROLE daemon", "ALTER DATABASE @database")
    ),
    lacks("USAGE ON SCHEMA syncer", "@database_relay, @database_worker", "use the schema syncer", WRONG),
    lacks("USAGE ON SEQUENCE syncer.version", "@database_worker", "USAGE on syncer.version", CONSIDER),
    Case(
        "postgres.privileges",
        "ALTER ROLE daemon SUPERUSER",
        "is a superuser",
        CONSIDER,
        "daemon",
        "ALTER ROLE daemon NOSUPERUSER",
        is_advice=True,
    ),
    Case("postgres.triggers", "ALTER TABLE comments DISABLE TRIGGER syncer_row_fe6ac3f5", "public.comments"),
    Case("postgres.triggers", "DELETE FROM syncer.capture WHERE relation = 'public.posts'", "posts"),
    Case(
        "postgres.triggers",
        f"CREATE OR REPLACE FUNCTION {FUNCTION} RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER "
        "AS 'BEGIN RETURN NULL; END'",
        "is not what this syncer makes",
    ),
    Case(
        "postgres.functions",
        f"CREATE ROLE clerk; GRANT CREATE ON SCHEMA syncer TO clerk; ALTER FUNCTION {FUNCTION} OWNER TO clerk",
        "clerk",
    ),
    Case("postgres.reads", "REVOKE SELECT ON comments FROM @database_documents", "public.comments", role="daemon"),
    Case(
        "postgres.reads",
        "REVOKE SELECT ON comments FROM @database_documents, daemon; "
        "GRANT SELECT (id, post_id, name, comment, age, stars, date) ON comments TO @database_documents",
        "public.comments",  # it is locked as a whole
        role="daemon",
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
    dsn = SecretStr(world.dsn_of(role))
    return world.settings.model_copy(update={"postgres": PostgresSettings(dsn=dsn)})


def act(world: World, text: str) -> None:
    """Set a property of the topic and wait for it, send a request, or run SQL, each statement in its transaction."""
    version = "SELECT installation, epoch << 40 | number FROM syncer.installation, syncer.mark"
    ((installation, recorded),) = world.sql(version)
    names = {"database": world.name, "alias": world.alias, "installation": installation, "recorded": recorded}
    for name, value in (names | {"index": world.index_of()}).items():
        text = text.replace(f"@{name}", str(value))
    kind, _, rest = text.partition(" ")
    if kind == "TOPIC":
        require_kafka()
        if VERSIONS.kafka == "4.4":
            pytest.skip("kafka-configs.sh of this version needs a jar that the sandbox lacks")
        name, _, value = rest.partition("=")
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = partial(ConfigResource, ResourceType.TOPIC, world.settings.kafka.topic)
        client, changed, asked = admin(world), resource(incremental_configs=[entry]), resource()
        client.incremental_alter_configs([changed])[changed].result()
        wait_until(lambda: client.describe_configs([asked])[asked].result()[name].value == value, what=f"{name} is set")
    elif rest.startswith("/"):
        path, _, body = rest.partition(" ")
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        with world.elasticsearch() as elasticsearch:
            elasticsearch.perform_request(kind, path, headers=headers, body=json.loads(body) if body else None)
    else:
        with psycopg.connect(world.dsn, autocommit=True) as connection:
            for statement in [text] if "BEGIN" in text else text.split("; "):
                connection.execute(statement.encode())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}-{case.part[:20]}")
def test_what_is_broken_is_seen_and_fixed(world: World, case: Case) -> None:
    """It is well, it is broken and seen, the fix is pasted, and it is well again."""
    settings = as_role(world, case.role)

    def troubles() -> list[Finding]:
        findings = look(world, case.id, settings=settings)
        return [finding for finding in findings if finding.severity is not CheckSeverity.WELL]

    earlier = troubles()
    assert [finding.found for finding in earlier if "one replica" not in finding.found] == []

    def new() -> list[Finding]:
        return [finding for finding in troubles() if finding not in earlier]

    try:
        act(world, case.breaks)
        (finding,) = new()
        assert (finding.severity, case.part in finding.found) == (case.severity, True)
        if not case.is_advice:
            fix(world, finding)
            wait_until(lambda: not new(), what="it is well again", detail=lambda: str(new()))
    finally:
        act(world, case.undo)
    assert new() == []


def test_another_database_of_the_installation_is_seen(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elasticsearch has recorded a greater epoch; once no daemon is of it any more, this database takes over."""
    ((installation, epoch),) = world.sql("SELECT installation, epoch FROM syncer.installation")
    assert is_well(look(world, "elasticsearch.epoch"))
    with world.index() as index:
        index.record.renew(installation, epoch + 4, 1)
    (finding,) = look(world, "elasticsearch.epoch")
    assert (finding.severity, "Stop the daemons of the other one" in finding.fix) == (WRONG, True)
    monkeypatch.setattr(failover, "SILENT_SECONDS", 0.0)
    world.backfill()
    assert world.sql("SELECT epoch FROM syncer.installation") == [(epoch + 5,)]
    assert is_well(look(world, "elasticsearch.epoch"))


def test_the_indices_of_many_documents_are_asked_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their names are longer together than the first line of a request may be."""
    with world.connect() as connection:
        active = registry.documents(connection)
    many = [replace(active[0], index=f"{active[0].index}-{'x' * 150}-{number}") for number in range(50)]
    monkeypatch.setattr(registry, "documents", lambda _: [*active, *many])
    assert is_well(look(world, "elasticsearch.orphans"))


def test_a_role_is_judged_by_its_privileges(world: World) -> None:
    """With the documented grants every check is well; what a role cannot check for want of a privilege is unseen."""
    report = examine(as_role(world, "daemon"), checks=OF_POSTGRES)
    assert is_well(report)
    world.sql("CREATE ROLE newcomer LOGIN")
    report = examine(as_role(world, "newcomer"), checks=OF_POSTGRES)
    severities = {finding.id: finding.severity for finding in report}
    assert [id_ for id_, severity in severities.items() if severity is WRONG] == ["postgres.privileges"]
    assert severities["postgres.functions"] is severities["postgres.triggers"] is CheckSeverity.UNSEEN
    assert severities["postgres.durability"] is CheckSeverity.WELL
