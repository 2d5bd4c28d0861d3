"""Postgres crashes, refuses sessions, is set back, or is behind a pooler: syncer waits and loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr

from syncer.base import migrations, postgres
from syncer.base.errors import SourceError, SyncerError
from syncer.base.settings import ElasticsearchSettings, PostgresSettings
from syncer.capture.outbox import SEGMENTS
from syncer.capture.reader import OutboxReader
from syncer.elasticsearch.client import connect
from syncer.indexing import failover
from syncer.recovery import backlog
from syncer.sandbox import Endpoints, Sandbox
from syncer.sandbox.servers import PostgresServer
from tests.faults.harness import GRANTS, REPEATS, following, require_holds, require_quiet, wait_for_trouble
from tests.support.breakpoints import Plan
from tests.support.doctor import fix, is_well, look
from tests.support.elasticsearch_proxy import Forward, Proxy
from tests.support.network import Balancer, Pooler, SessionPooler
from tests.support.standbys import ask, commit_lazily, restore, standbys
from tests.support.world import BLOG_SCHEMA, World, elsewhere, wait_until
from tests.support.writers import fill

ROLE = "syncer_worker"
PASSWORD = "one"  # noqa: S105 - of a server that ends with the test
OURS = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'syncer %%' AND datname = %s"
TRIMS = Plan(constants={"syncer.capture.reader:TRIM_SECONDS": 0.05})
SERVER = {"max_prepared_transactions": "10", "autovacuum": "off"}
"""Transactions can be prepared, and nobody commits beside us."""


def rule(server: PostgresServer, line: str) -> None:
    """Let a role log in by this rule before any other."""
    loaded = ask(server, "SELECT pg_conf_load_time()")
    rules = server.data_folder / "pg_hba.conf"
    rules.write_text(f"{line}\n{rules.read_text()}")
    ask(server, "SELECT pg_reload_conf()")
    # Postgres reads the file later: by then, a next rule must not have emptied it.
    wait_until(lambda: ask(server, "SELECT pg_conf_load_time()") != loaded, what="Postgres has read the rules")


@pytest.fixture(scope="module")
def server(sandbox: Sandbox) -> Iterator[PostgresServer]:
    """A Postgres of these tests' own, in which one role needs its password."""
    with standbys(sandbox, **SERVER) as servers:
        started = servers.primary
        with psycopg.connect(started.address, autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'")
        rule(started, f"host all {ROLE} 127.0.0.1/32 scram-sha-256")
        rule(started, "host all postgres 127.0.0.1/32 trust")  # the poolers of these tests know of no passwords
        yield started


@pytest.fixture
def private_world(sandbox: Sandbox, endpoints: Endpoints, server: PostgresServer, tmp_path: Path) -> Iterator[World]:
    """The blog on that Postgres."""
    server.start()
    with elsewhere(sandbox, endpoints, tmp_path, postgres_dsn=server.address) as world:
        world.sql(GRANTS.format(role=ROLE))
        fill(world)
        yield world


def operate(world: World, statement: str) -> None:
    """What an operator does, or the superuser."""
    with psycopg.connect(world.endpoints.postgres_dsn, autocommit=True) as connection:
        connection.execute(statement)


# It refuses sessions


REFUSALS = (
    (f"ALTER ROLE {ROLE} CONNECTION LIMIT 2", "too many connections", f"ALTER ROLE {ROLE} CONNECTION LIMIT -1"),
    (
        'ALTER DATABASE "{}" SET default_transaction_read_only = on',
        "read-only transaction",
        'ALTER DATABASE "{}" RESET default_transaction_read_only',
    ),
    (f"ALTER ROLE {ROLE} PASSWORD 'another'", "password authentication failed", ""),
)
"""What is refused, how the server says that, and how it is allowed again; a password is changed for the client too."""


def passwords(world: World, password: str) -> str:
    """A file with the role's password, which libpq reads at each connection."""
    file = world.folder / "passwords"
    file.write_text(f"*:*:*:{ROLE}:{password}\n")
    file.chmod(0o600)
    return str(file)


def test_a_database_that_refuses_sessions_is_waited_for(private_world: World) -> None:
    """The daemon logs what the server says, in a few lines, and continues when it may."""
    dsn = f"postgresql://{ROLE}@{private_world.dsn.rpartition('@')[2]}"
    environment = {"SYNCER_POSTGRES_DSN": dsn, "PGPASSFILE": passwords(private_world, PASSWORD)}
    daemon = private_world.daemon(environment=environment, plan=REPEATS)
    private_world.wait_until_level()
    for number, (refuse, words, allow) in enumerate(REFUSALS):
        operate(private_world, refuse.format(private_world.name))
        for (pid,) in private_world.sql(OURS, private_world.name):
            private_world.sql("SELECT pg_terminate_backend(%s)", pid)
        wait_for_trouble(daemon, words)
        private_world.sql(f"SET TRANSACTION READ WRITE; UPDATE posts SET title = 'refused {number}' WHERE id < 5")
        if allow:
            operate(private_world, allow.format(private_world.name))
        else:
            passwords(private_world, "another")
        private_world.wait_until_level()
    operate(private_world, f"ALTER ROLE {ROLE} PASSWORD '{PASSWORD}'")
    require_holds(private_world)
    require_quiet(daemon, lines=6 * len(REFUSALS))
    assert daemon.stop() == 0


def test_a_database_that_is_being_restored_is_waited_for(private_world: World) -> None:
    """The daemon meets it half full, and keeps out of the way until all of it is there."""
    daemon = private_world.daemon()
    private_world.wait_until_level()
    dumped = private_world.dump()
    private_world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (1000, 1, 'lost', '')")
    private_world.wait_until_level()
    half = dumped.index("COPY syncer.cursor")
    restrict = "".join(row for row in dumped.splitlines(keepends=True) if row.startswith("\\restrict"))
    restore(private_world, dumped[:half])
    wait_for_trouble(daemon, "no syncer schema")
    private_world.restore(restrict + dumped[half:])
    require_holds(private_world)
    require_quiet(daemon, lines=10)
    assert daemon.stop() == 0


# A writer's own limits: capture does not fail, or wait, where the same write would not

NO_TEMPORARY_FILES = "SET temp_file_limit = 0; SET work_mem = '64kB'"
NO_WAIT = "SET synchronous_commit = 'local'; SET lock_timeout = '1ms'"


@contextmanager
def standby_is_away(world: World) -> Iterator[None]:
    """Commits wait for a synchronous standby that does not answer, while the block lasts."""
    operate(world, "ALTER SYSTEM SET synchronous_standby_names = 'away'")
    operate(world, "SELECT pg_reload_conf()")
    try:
        yield
    finally:
        operate(world, "ALTER SYSTEM RESET synchronous_standby_names")
        operate(world, "SELECT pg_reload_conf()")


def test_a_writer_with_narrow_limits_is_captured(private_world: World) -> None:
    """Neither temporary files, nor locks of the leader that trims, nor a synchronous standby that is away matter."""
    daemon = private_world.daemon(environment={"SYNCER_LOG_LEVEL": "debug"}, plan=TRIMS)
    daemon.wait_for("relay.led")
    with private_world.application() as writer:
        private_world.sql(
            "INSERT INTO posts (id, user_id, title, body) SELECT g, 1, '', '' FROM generate_series(100, 9999) AS g"
        )
        writer.execute(NO_TEMPORARY_FILES)
        writer.execute("UPDATE posts SET title = title || '!'")
        writer.commit()
        with standby_is_away(private_world):
            writer.execute(NO_WAIT)
            writer.commit()
            for number in range(1000):
                writer.execute("UPDATE users SET name = %s WHERE id = 1", (str(number),))
                writer.commit()
            wait_until(lambda: "synchronous standby" in private_world.syncer("status").stdout, what="status names it")
    daemon.wait_for("relay.outbox_trimmed")
    require_holds(private_world)


# It crashes


def crash(server: PostgresServer) -> None:
    """SIGKILL to all of it, as if the power had failed; and back again."""
    server.kill()
    server.start()


def test_a_commit_that_a_crash_takes_back_is_not_shown_for_long(private_world: World, server: PostgresServer) -> None:
    """What was written since the last mark is written again: nothing else tells that the commit is gone."""
    with following(private_world) as follower:
        follower.drain()
        commit_lazily(private_world, "UPDATE posts SET title = 'on no disk' WHERE id = 1")
        wait_until(lambda: follower.turn() > 0, what="the change is done")
        assert private_world.held()["1"]["title"] == "on no disk"
        crash(server)
    with following(private_world) as follower:
        private_world.sql("UPDATE posts SET title = 'another' WHERE id = 2")
        follower.drain()


def test_a_prepared_transaction_outlives_a_crash(private_world: World, server: PostgresServer) -> None:
    """Its changes are new when they are committed, however far the cursor has come meanwhile."""
    private_world.daemon()
    with psycopg.connect(private_world.dsn, autocommit=True) as connection:
        connection.execute("BEGIN")
        connection.execute("UPDATE posts SET title = 'prepared' WHERE id = 1")
        connection.execute(f"PREPARE TRANSACTION '{private_world.name}'")
    private_world.sql("UPDATE posts SET title = 'before' WHERE id = 2")
    private_world.wait_until_level()
    crash(server)
    private_world.sql("UPDATE posts SET title = 'after' WHERE id = 3")
    private_world.wait_until_level()
    with psycopg.connect(private_world.dsn, autocommit=True) as connection:
        connection.execute(f"COMMIT PREPARED '{private_world.name}'")
    require_holds(private_world)
    assert private_world.held()["1"]["title"] == "prepared"


# It is set back to an earlier state, and loses commits that documents show


@pytest.mark.parametrize("is_migrated", [False, True], ids=["before migrate", "before apply"])
def test_a_database_that_knows_of_no_document(
    empty_world: World, monkeypatch: pytest.MonkeyPatch, *, is_migrated: bool
) -> None:
    """Its own index is reported, and taken up again with greater versions; another database's is not touched."""
    world = empty_world
    world.sql(BLOG_SCHEMA.read_text())
    fill(world)
    if is_migrated:
        world.migrate()
    dump_before = world.dump()
    world.migrate()
    world.apply()
    world.sql("SELECT setval('syncer.version', 300000)")  # a number that is greater than those that are assigned later
    world.sql("UPDATE users SET name = 'lost'; DELETE FROM posts WHERE id = 3")
    world.backfill()
    indexed, index = world.held(), world.index_of()
    restore(world, dump_before)
    if is_migrated:
        (forgotten,) = look(world, "elasticsearch.orphans")
        assert f"Searches of {world.alias} find {index}, made for blogpost" in forgotten.found
        monkeypatch.setattr(failover, "SILENT_SECONDS", 0.0)  # else apply waits until the other one is not in use
        with world.connect() as connection, world.index() as search:
            failover.enter(connection, search)
        fix(world, forgotten)
        world.wait_until_level()
        assert is_well(look(world, "elasticsearch.orphans"))
        return
    with pytest.raises(SourceError, match="no syncer schema"), world.connect() as connection:
        migrations.require_current(connection)
    world.migrate()
    with pytest.raises(SyncerError, match="not this database's"):
        world.apply()
    assert world.held() == indexed


# It is behind a pooler


def test_a_pooler_that_shares_sessions_is_refused(private_world: World, server: PostgresServer) -> None:
    """By every command, which says what to do; nothing is set in a session that another client gets."""
    with closing(Pooler(server.port)) as pooler:
        dsn = make_conninfo(private_world.dsn, host="127.0.0.1", port=str(pooler.port))
        with psycopg.connect(dsn) as first, psycopg.connect(dsn) as second:  # it is in use by applications
            first.execute("SELECT 1")
            second.execute("SELECT 1")
        for _ in range(3):
            with pytest.raises(SourceError, match="behind a pooler") as refused:
                postgres.connect(PostgresSettings(dsn=SecretStr(dsn)), name="test").close()
            assert "pool_mode = session" in refused.value.hint
        with psycopg.connect(dsn) as application:
            assert application.execute("SELECT current_setting('search_path')").fetchone() == ('"$user", public',)
        for command in (("apply", "--yes"), ("run",), ("doctor",)):
            ended = private_world.syncer(*command, environment={"SYNCER_POSTGRES_DSN": dsn})
            assert ended.returncode == 1, (command, ended.stdout, ended.stderr)
            assert "behind a pooler that shares sessions" in ended.stdout + ended.stderr, (command, ended)


def left_behind(dsn: str) -> tuple[object, ...]:
    """What the next client of a pooler finds of the one before."""
    query = """
        SELECT current_setting('search_path'), current_setting('row_security'),
               (SELECT count(*) FROM pg_prepared_statements),
               (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory')
    """
    with psycopg.connect(dsn, autocommit=True) as application:
        return application.execute(query).fetchall()[0]


CLEAN = ('"$user", public', "on", 0, 0)


@pytest.mark.parametrize("reset_query", ["", "SELECT 1", "DEALLOCATE ALL"])
def test_a_pooler_that_does_not_reset_sessions_is_refused(
    private_world: World, server: PostgresServer, reset_query: str
) -> None:
    """By every command, which names DISCARD ALL; the next application finds nothing of syncer's in its session."""
    with closing(SessionPooler(server.port, reset_query=reset_query)) as pooler:
        dsn = make_conninfo(private_world.dsn, host="127.0.0.1", port=str(pooler.port))
        for command in (("apply", "--yes"), ("run",), ("status",)):
            ended = private_world.syncer(*command, environment={"SYNCER_POSTGRES_DSN": dsn})
            assert ended.returncode == 1, (command, ended.stdout, ended.stderr)
            assert "DISCARD ALL" in ended.stdout + ended.stderr, (command, ended)
            assert left_behind(dsn) == CLEAN


def test_a_pooler_that_resets_sessions_is_used(private_world: World, server: PostgresServer) -> None:
    """Everything works through it, and the next application finds nothing of syncer's in its session."""
    with closing(SessionPooler(server.port, reset_query="DISCARD ALL")) as pooler:
        dsn = make_conninfo(private_world.dsn, host="127.0.0.1", port=str(pooler.port))
        daemon = private_world.daemon(environment={"SYNCER_POSTGRES_DSN": dsn})
        private_world.sql("UPDATE posts SET title = 'edited' WHERE id < 5")
        require_holds(private_world)
        assert daemon.stop() == 0
        assert left_behind(dsn) == CLEAN


# Some of its statements are answered by a standby

BALANCED = {
    "the poll of the outbox": b"pg_current_snapshot()::text AS snapshot",
    "a page of a backlog": b"ORDER BY o.xid",
    "whether rows may be removed": b"EXISTS (SELECT FROM",
}


def follow(world: World, reader: OutboxReader) -> None:
    """Read, save and trim what is committed, while every segment gets a row."""
    for _ in range(SEGMENTS):
        while not (page := reader.read(rows_max=10)).is_last:
            pass
        reader.save(page, {})
        reader.trim()
        world.sql("UPDATE posts SET title = title || '.' WHERE id = 2")


@pytest.mark.parametrize("statement", BALANCED)
def test_no_snapshot_of_a_standby_decides_on_progress(
    sandbox: Sandbox, endpoints: Endpoints, tmp_path: Path, statement: str
) -> None:
    """A pooler that balances the load is refused in each such statement: no open transaction is passed."""
    with (
        standbys(sandbox) as servers,
        elsewhere(sandbox, endpoints, tmp_path, postgres_dsn=servers.primary.address) as world,
    ):
        fill(world)
        rule(servers.primary, "host all postgres 127.0.0.1/32 trust")
        standby = servers.follow()
        balancer = Balancer(servers.primary.port, standby_port=standby.port, words=BALANCED[statement])
        with closing(balancer), world.application() as late:
            dsn = make_conninfo(world.dsn, host="127.0.0.1", port=str(balancer.port))
            settings = PostgresSettings(dsn=SecretStr(dsn))
            late.execute("UPDATE posts SET title = 'late' WHERE id = 1")
            wait_until(
                lambda: (
                    ask(servers.primary, "SELECT pg_current_wal_flush_lsn()")
                    == ask(standby, "SELECT pg_last_wal_replay_lsn()")
                ),
                what="the standby has replayed all",
            )
            balanced = partial(postgres.connect, settings, name="test")
            with closing(backlog.reader(balanced, bytes_max=10**9)) as reader:
                assert reader.lead()
                with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="a standby has answered"):
                    follow(world, reader)
            late.commit()
        with closing(backlog.reader(world.connect, bytes_max=10**9)) as reader:
            assert reader.lead()
            rows = reader.read(rows_max=1000).rows
        assert any(b'"id": "1"' in row.value for row in rows), [row.value for row in rows]


# The first of several addresses is dead, and the one in use dies

DEAD = "127.0.0.1:1"


def unreachable(_: Forward) -> None:
    """The connection is closed, and nothing is done."""


def test_the_next_address_is_used(sandbox: Sandbox, endpoints: Endpoints, tmp_path: Path) -> None:
    """Of each server: commands and the daemon pass over what is dead, and over a standby, also after a failover."""
    with standbys(sandbox) as servers, Proxy(endpoints.elasticsearch_url).running() as node:
        standby = servers.follow()
        primary, other = (urlsplit(server.address).netloc.rpartition("@")[2] for server in (servers.primary, standby))
        user = servers.primary.address.partition("@")[0]
        endpoints_there = {
            "postgres_dsn": f"{user}@{DEAD},{primary},{other}/postgres",
            "kafka_bootstrap_servers": f"{DEAD},{endpoints.kafka_bootstrap_servers}",
        }
        with elsewhere(sandbox, endpoints, tmp_path, **endpoints_there) as world:
            world.worker_settings = {
                "SYNCER_POSTGRES_DSN": f"{user}@{DEAD},{other},{primary}/{world.name}",
                "SYNCER_ELASTICSEARCH_URL": f"http://{DEAD}, {node.address}, {endpoints.elasticsearch_url}",
            }
            fill(world)
            daemon = world.daemon()
            world.wait_until_level()
            with node.spoiling(unreachable, path="/"):
                world.sql("UPDATE users SET name = 'a node is gone'")
                world.wait_until_level()
                servers.primary.kill()
                ask(standby, "SELECT pg_promote(true, 120)")
                world.sql("UPDATE users SET name = 'the primary is gone'")
                require_holds(world)
                world.prints("verify")
            assert daemon.stop() == 0
    dead = ",".join(f"http://127.0.0.1:{port}" for port in (1, 2, 3))
    for _ in range(10):  # each begins with a node by lot
        with closing(connect(ElasticsearchSettings(url=f"{dead},{endpoints.elasticsearch_url}"))) as client:
            assert client.info()["version"]
