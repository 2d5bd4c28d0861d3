"""Whatever is broken in Postgres, the doctor says so, and what he says mends it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

import psycopg
import pytest
from pydantic import SecretStr

from syncer import jobs, store
from syncer.doctor.examination import CHECKS, examine
from syncer.doctor.patient import Patient
from syncer.doctor.sessions import connections
from syncer.doctor.symptom import How, Severity
from syncer.job import JobKind
from syncer.sandbox import Endpoints, Sandbox
from syncer.settings import PostgresSettings, Settings
from tests.doctoring import is_well, look, mend
from tests.harness import World, made, postgres_with
from tests.scenarios.test_least_privilege import grants


@pytest.fixture(scope="module")
def world(sandbox: Sandbox, endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world on a Postgres of its own; each test leaves it as it has found it."""
    settings = {"max_prepared_transactions": "5"}
    with (
        postgres_with(endpoints, settings) as others,
        made(World(sandbox=sandbox, endpoints=others, folder=tmp_path_factory.mktemp("doctor"))) as world,
    ):
        world.set_up()
        world.sql("CREATE ROLE daemon LOGIN")
        world.sql(grants().replace(" TO worker;", " TO daemon;"))
        yield world


@dataclass(frozen=True, kw_only=True)
class Ill:
    """Something that is broken.

    Args:
        id: Which check sees it.
        breaks: What breaks it: SQL by the superuser, each line by itself.
        undo: What makes it well again, if the mend is no command that does.
        severity: How bad it is.
        says: What the finding names.
        role: Who the doctor is.
        limits: From where on a number is worth a word.
        after: What takes back what the mend has left besides.
    """

    id: str
    breaks: str
    undo: str = ""
    after: str = ""
    severity: Severity = Severity.WRONG
    says: str = ""
    role: str = "postgres"
    limits: Mapping[str, float] = field(default_factory=dict)


CONSIDER = Severity.CONSIDER
EDITED = "CREATE OR REPLACE FUNCTION {} RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS 'BEGIN RETURN NULL; END';"
ILLS = [
    Ill(id="postgres.fsync", breaks="ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf()"),
    Ill(id="postgres.full_page_writes", breaks="ALTER SYSTEM SET full_page_writes = off; SELECT pg_reload_conf()"),
    Ill(
        id="postgres.synchronous_commit",
        breaks="ALTER SYSTEM SET synchronous_commit = off; SELECT pg_reload_conf()",
        severity=CONSIDER,
    ),
    Ill(
        id="postgres.synchronous_commit",
        breaks="ALTER ROLE daemon SET synchronous_commit = off",
        severity=CONSIDER,
        says="role daemon",
    ),
    Ill(
        id="postgres.synchronous_commit",
        breaks="ALTER DATABASE {database} SET synchronous_commit = off",
        severity=CONSIDER,
        says="database",
    ),
    Ill(id="postgres.read_only", breaks="ALTER DATABASE {database} SET default_transaction_read_only = on"),
    Ill(id="postgres.read_only", breaks="ALTER ROLE daemon SET default_transaction_read_only = on", role="daemon"),
    Ill(
        id="postgres.timeouts",
        breaks="ALTER DATABASE {database} SET transaction_timeout = '1h'",
        undo="ALTER DATABASE {database} RESET transaction_timeout; "
        "ALTER ROLE postgres IN DATABASE {database} RESET transaction_timeout",
        severity=CONSIDER,
        says="3600 s",
    ),
    Ill(
        id="postgres.deadlock_timeout",
        breaks="ALTER SYSTEM SET deadlock_timeout = '500ms'; SELECT pg_reload_conf()",
        severity=CONSIDER,
    ),
    Ill(
        id="postgres.autovacuum",
        breaks="ALTER SYSTEM SET autovacuum = off; SELECT pg_reload_conf()",
        severity=CONSIDER,
    ),
    Ill(
        id="postgres.prepared",
        breaks="BEGIN; CREATE TABLE never (); PREPARE TRANSACTION 'it''s old'",
        severity=CONSIDER,
        says="it''s old",
        limits={"prepared_seconds": 0},
    ),
    Ill(
        id="postgres.slots",
        breaks="SELECT pg_create_physical_replication_slot('unread', true)",
        severity=CONSIDER,
        says="read by nobody",
        limits={"slot_bytes": -1},
    ),
    Ill(
        id="postgres.connections",
        breaks="ALTER ROLE daemon CONNECTION LIMIT 5",
        severity=CONSIDER,
        says="Role daemon",
        role="daemon",
    ),
    Ill(
        id="postgres.connections",
        breaks="ALTER DATABASE {database} CONNECTION LIMIT 5",
        severity=CONSIDER,
        says="Database",
        role="daemon",
    ),
    Ill(
        id="postgres.schema",
        breaks="INSERT INTO syncer._yoyo_migration (migration_hash, migration_id) VALUES ('later', '9999_later')",
        undo="DELETE FROM syncer._yoyo_migration WHERE migration_id = '9999_later'",
        says="9999_later",
    ),
    Ill(id="postgres.logged", breaks="ALTER TABLE syncer.outbox_3 SET UNLOGGED", says="syncer.outbox_3"),
    Ill(id="postgres.logged", breaks="ALTER SEQUENCE syncer.version SET UNLOGGED", says="syncer.version"),
    Ill(id="postgres.outbox", breaks="ALTER TABLE syncer.outbox DETACH PARTITION syncer.outbox_5", says="outbox_5"),
    Ill(id="postgres.outbox", breaks="DROP TABLE syncer.outbox_6", says="outbox_6"),
    Ill(id="postgres.outbox", breaks="DROP INDEX syncer.outbox_xid", says="index on xid"),
    Ill(id="postgres.outbox", breaks="ALTER SEQUENCE syncer.outbox_segment MAXVALUE 9", says="outbox_segment"),
    Ill(id="postgres.sequence", breaks="ALTER SEQUENCE syncer.version CACHE 50", says="cache 50"),
    Ill(id="postgres.sequence", breaks="ALTER SEQUENCE syncer.version INCREMENT 2 CYCLE", says="counts by 2"),
    Ill(id="postgres.tables", breaks="ALTER TABLE comments SET UNLOGGED", says="an unlogged table"),
    Ill(
        id="postgres.tables",
        breaks="CREATE TABLE heir () INHERITS (comments)",
        undo="DROP TABLE heir",
        says="inheritance",
    ),
    Ill(
        id="postgres.functions",
        breaks='ALTER FUNCTION syncer."capture_public.users"() SECURITY INVOKER',
        says="privileges of whoever writes",
    ),
    Ill(
        id="postgres.functions",
        breaks="CREATE ROLE clerk; GRANT CREATE ON SCHEMA syncer TO clerk; "
        'ALTER FUNCTION syncer."capture_public.users"() OWNER TO clerk',
        says="clerk",
    ),
    Ill(
        id="postgres.grants",
        breaks="REVOKE USAGE ON SCHEMA syncer FROM daemon",
        role="daemon",
        says="may not use the schema",
    ),
    Ill(
        id="postgres.grants",
        breaks="REVOKE DELETE ON syncer.job, syncer.job_page FROM daemon",
        role="daemon",
        says="DELETE on syncer.job",
    ),
    Ill(
        id="postgres.grants",
        breaks="REVOKE USAGE ON SEQUENCE syncer.version FROM daemon",
        role="daemon",
        says="syncer.version",
    ),
    Ill(id="postgres.reads", breaks="REVOKE SELECT ON comments FROM daemon", role="daemon", says="public.comments"),
    Ill(
        id="postgres.reads",
        breaks="REVOKE USAGE ON SCHEMA public FROM public",
        role="daemon",
        says="schema public",
        after="GRANT USAGE ON SCHEMA public TO public",
    ),
    Ill(
        id="postgres.row_security",
        breaks="ALTER TABLE comments ENABLE ROW LEVEL SECURITY",
        role="daemon",
        says="public.comments",
        after="ALTER ROLE daemon NOBYPASSRLS; ALTER TABLE comments DISABLE ROW LEVEL SECURITY",
    ),
    Ill(
        id="postgres.calls",
        breaks="REVOKE EXECUTE ON FUNCTION pg_control_system() FROM public",
        role="daemon",
        says="pg_control_system()",
        after="GRANT EXECUTE ON FUNCTION pg_control_system() TO public",
    ),
    Ill(
        id="postgres.incarnation",
        breaks="UPDATE syncer.incarnation SET epoch = 1, timeline = 0",
        undo="UPDATE syncer.incarnation SET epoch = 0",
        severity=CONSIDER,
    ),
    Ill(
        id="postgres.dead_letters",
        breaks="INSERT INTO syncer.dead_letter (document, index_name, id, version, kind, error) "
        "SELECT name, index_name, '7', 1, 'refused', 'refused' FROM syncer.document",
        undo="DELETE FROM syncer.dead_letter",
        says="such as 7",
    ),
    Ill(
        id="postgres.unreadable_records",
        breaks="INSERT INTO syncer.unreadable_topic (topic, kept, last_at) VALUES ('changes', 3, now())",
        undo="DELETE FROM syncer.unreadable_topic",
        says="3 records of changes",
    ),
    Ill(
        id="postgres.standby_indices",
        breaks="UPDATE syncer.document SET role = 'standby'",
        undo="UPDATE syncer.document SET role = 'serving'",
        severity=CONSIDER,
        limits={"standby_days": -1},
    ),
    Ill(id="postgres.indexes", breaks="DROP INDEX comments_post_id", severity=CONSIDER, says="post_id"),
]

APPLIED = [
    Ill(id="postgres.triggers", breaks="ALTER TABLE comments DISABLE TRIGGER syncer_update", says="public.comments"),
    Ill(id="postgres.triggers", breaks="ALTER TABLE users ENABLE TRIGGER syncer_delete", says="public.users"),
    Ill(
        id="postgres.triggers",
        breaks="DELETE FROM syncer.capture WHERE relation = 'public.posts'",
        says="public.posts",
    ),
    Ill(id="postgres.functions", breaks=EDITED.format('syncer."capture_public.users"()'), says="capture_public.users"),
    Ill(id="postgres.filled", breaks="UPDATE syncer.document SET filled_at = NULL", says="blogpost"),
]
"""What `syncer apply` mends, all of it at once."""


def as_role(world: World, role: str) -> Settings:
    """The settings of a daemon of that role."""
    dsn = SecretStr(world.dsn.replace("postgres@", f"{role}@"))
    return world.settings.model_copy(update={"postgres": PostgresSettings(dsn=dsn)})


def run(world: World, statements: str) -> None:
    """As the superuser, each statement by itself, whatever the database's settings are."""
    with psycopg.connect(world.dsn, autocommit=True, options="-c default_transaction_read_only=off") as connection:
        for one in [statements] if "BEGIN RETURN" in statements else statements.split("; "):
            connection.execute(one.format(database=world.name))


@pytest.mark.parametrize("ill", ILLS, ids=lambda ill: f"{ill.id}-{ill.breaks[:40]}")
def test_what_is_broken_is_seen_and_mended(world: World, ill: Ill) -> None:
    """It is well, it is broken and seen, what the doctor says is pasted, and it is well again."""
    settings = as_role(world, ill.role)
    before = look(world, ill.id, settings=settings)
    assert is_well(before), before
    with ExitStack() as stack:
        for statements in (ill.undo, ill.after):
            stack.callback(run, world, statements or "SELECT")
        run(world, ill.breaks)
        found = look(world, ill.id, settings=settings, limits=ill.limits)
        assert {one.severity for one in found} == {ill.severity}, found
        assert ill.says in found[0].found
        for one in found:
            assert one.mend is not None
            if not ill.undo or (one.mend.how is How.SQL and "TABLE " not in one.mend.text[:6]):
                mend(world, one)
        if not ill.undo:
            after = look(world, ill.id, settings=settings, limits=ill.limits)
            assert is_well(after), after
    after = look(world, ill.id, settings=settings)
    assert is_well(after), after


def test_what_apply_mends_is_seen_and_mended(world: World) -> None:
    """Triggers that are gone or disabled, an edited function, a document that is not filled: one apply mends them."""
    for ill in APPLIED:
        run(world, ill.breaks)
    for ill in APPLIED:
        found = [one for one in look(world, ill.id) if ill.says in one.found]
        assert [one.severity for one in found] == [Severity.WRONG], (ill.id, look(world, ill.id))
        assert found[0].mend is not None
        assert found[0].mend.text == "syncer apply"
    mend(world, found[0])
    for ill in APPLIED:
        assert is_well(look(world, ill.id)), look(world, ill.id)


def test_a_document_that_halted_or_differs_from_its_folder_is_seen_and_mended(world: World) -> None:
    """What the halt says is passed on, and so is which file is not what is in force."""
    select = world.document_folder / "select.sql"
    assert is_well(look(world, "syncer.definitions"))
    world.sql("UPDATE syncer.document SET halted = E'It broke\nMend it', halted_at = now()")
    select.write_text(select.read_text() + "\nWHERE p.id > 0")
    (halted,) = look(world, "postgres.halted")
    (edited,) = look(world, "syncer.definitions")
    assert "It broke" in halted.found
    assert "select.sql" in edited.found
    assert halted.mend is not None
    assert halted.mend.note == "Mend it"
    mend(world, edited)
    assert is_well(look(world, "postgres.halted"))
    assert is_well(look(world, "syncer.definitions"))


def test_an_index_that_takes_no_documents_is_seen(world: World) -> None:
    """What Elasticsearch says of it, and what to do, are passed on."""
    assert is_well(look(world, "postgres.unwell"))
    world.sql("UPDATE syncer.document SET unwell = E'No shard\nFind it', unwell_at = now()")
    (unwell,) = look(world, "postgres.unwell")
    assert unwell.found == "No shard"
    assert unwell.mend is not None
    assert unwell.mend.text == "Find it"
    world.sql("UPDATE syncer.document SET unwell = NULL, unwell_at = NULL")
    assert is_well(look(world, "postgres.unwell"))


def test_a_least_privileged_daemon_finds_its_postgres_well(world: World) -> None:
    """With the grants of the README nothing of Postgres is wrong, and nothing is out of its sight."""
    checks = [one for one in CHECKS if one.id.startswith("postgres.")]
    report = examine(as_role(world, "daemon"), world.config, checks=checks)
    assert [one for one in report.findings if one.severity is not Severity.WELL] == []


def test_a_role_that_may_do_nothing_is_told_what_it_may_not(world: World) -> None:
    """What cannot be looked at is said as such, and is no fault of the thing."""
    world.sql("CREATE ROLE nobody_yet LOGIN")
    checks = [one for one in CHECKS if one.id.startswith("postgres.")]
    report = examine(as_role(world, "nobody_yet"), world.config, checks=checks)
    wrong = {one.check.id for one in report.findings if one.severity is Severity.WRONG}
    unseen = {one.check.id for one in report.findings if one.severity is Severity.UNSEEN}
    assert wrong == {"postgres.grants"}
    assert {"postgres.halted", "postgres.sequence", "postgres.triggers"} <= unseen
    assert "postgres.fsync" not in unseen


def test_a_transaction_that_stays_open_is_named_and_ended(world: World) -> None:
    """The doctor names the process, and the mend ends it."""
    with world.application() as connection:
        connection.execute("SELECT 1")
        found = look(world, "postgres.transactions", limits={"transaction_seconds": 0})
        assert [f"process {connection.info.backend_pid}" in one.found for one in found] == [True]
        mend(world, found[0])
        with pytest.raises(psycopg.errors.AdminShutdown):
            connection.execute("SELECT 1")
        connection.close()
    assert is_well(look(world, "postgres.transactions", limits={"transaction_seconds": 0}))


def test_transaction_ids_that_come_to_their_end_are_frozen(world: World) -> None:
    """The age is told against its limit, and the mend lowers it."""
    with psycopg.connect(world.dsn, autocommit=True) as connection:
        for _ in range(300):
            connection.execute("SELECT pg_current_xact_id()")
    for limits, severity in (({"xid_age": 250}, CONSIDER), ({"xid_age": 250, "xid_age_wrong": 250}, Severity.WRONG)):
        found = look(world, "postgres.wraparound", limits=limits)
        assert [one.severity for one in found] == [severity]
    mend(world, found[0])
    assert is_well(look(world, "postgres.wraparound", limits={"xid_age": 250}))


def test_a_server_with_too_few_connections_is_told_of(world: World) -> None:
    """What a daemon of these settings takes is held against what is left; one that runs has what it needs."""
    many = world.settings.model_copy(update={"worker": world.settings.worker.model_copy(update={"threads": 500})})
    found = look(world, "postgres.connections", settings=many)
    assert [one.severity for one in found] == [CONSIDER]
    assert "1006" in found[0].found
    assert is_well(look(world, "postgres.connections"))


def test_a_daemon_takes_as_many_connections_as_the_doctor_says(world: World) -> None:
    """The figure that the room is held against is that of a daemon at work."""
    daemon = world.daemon()
    world.sql("INSERT INTO users (name, email) VALUES ('John', 'j@example.com')")
    world.wait_until_level()
    taken = world.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name ~ '^syncer (w|re|s)'")[0][0]
    assert daemon.stop() == 0
    with Patient(world.settings, world.config) as patient:
        assert taken <= connections(patient)


def test_a_clock_that_is_off_is_told_of(world: World) -> None:
    """The clock of Postgres is held against this machine's, with the limit that is given."""
    assert [one.severity for one in look(world, "postgres.clock", limits={"clock_seconds": -1})] == [CONSIDER]
    assert is_well(look(world, "postgres.clock"))


def test_an_outbox_that_nobody_publishes_is_told_of(world: World) -> None:
    """Changes that wait, and the room that they take."""
    id_ = "postgres.outbox_backlog"
    with world.relay() as relay:
        relay.run_once()
    assert is_well(look(world, id_, limits={"outbox_seconds": 0}))
    world.sql("INSERT INTO users (name, email) VALUES ('Jane', 'j@example.com')")
    waiting, large = look(world, id_, limits={"outbox_seconds": 0, "outbox_bytes": 0})
    assert "1 change in the outbox" in waiting.found
    assert "takes" in large.found
    with world.relay() as relay:
        relay.run_once()
    assert is_well(look(world, id_, limits={"outbox_seconds": 0}))


def test_a_job_that_stands_still_is_told_of(world: World) -> None:
    """A job that is paused is resumed by the mend; one that nobody works on is told of after a while."""
    with world.index() as index:
        world.refresh(index)
    assert is_well(look(world, "postgres.jobs"))
    with world.connect() as connection:
        made_job = jobs.create(connection, store.served(connection)["blogpost"], JobKind.BACKFILL)
        assert made_job is not None
        jobs.pause(connection, made_job.id)
    (paused,) = look(world, "postgres.jobs")
    assert "is paused" in paused.found
    mend(world, paused)
    assert is_well(look(world, "postgres.jobs"))
    (still,) = look(world, "postgres.jobs", limits={"job_seconds": -1})
    assert "has not moved" in still.found
    with world.index() as index:
        world.refresh(index)
    assert is_well(look(world, "postgres.jobs", limits={"job_seconds": -1}))


def test_a_database_without_an_encoding_is_told_of(world: World) -> None:
    """SQL_ASCII is found."""
    with psycopg.connect(world.endpoints.postgres_dsn, autocommit=True) as connection:
        connection.execute(
            "CREATE DATABASE ascii TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE_PROVIDER libc LOCALE 'C'"
        )
    dsn = SecretStr(world.dsn.replace(world.name, "ascii"))
    settings = world.settings.model_copy(update={"postgres": PostgresSettings(dsn=dsn)})
    assert [one.severity for one in look(world, "postgres.encoding", settings=settings)] == [CONSIDER]
    assert is_well(look(world, "postgres.encoding"))
