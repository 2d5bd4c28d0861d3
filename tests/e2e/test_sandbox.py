"""The embedded servers: they answer, keep what they are told, die and come back, and leave nothing behind."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg
import pytest
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from elasticsearch import Elasticsearch

from syncer.sandbox import Endpoints, Sandbox
from syncer.sandbox.process import wait_until
from tests.support.world import DEADLINE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from syncer.sandbox.server import EmbeddedServer

THAI_INDEX = {"properties": {"text": {"type": "text", "analyzer": "thai"}}}


@pytest.fixture(scope="module")
def base_folder() -> Iterator[Path]:
    """A folder that the servers' account can look into; pytest's own is closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="syncer-sandbox-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def sandbox(base_folder: Path) -> Iterator[Sandbox]:
    """A sandbox that is stopped at the end; each test starts what it needs."""
    sandbox = Sandbox(base_folder / "one")
    yield sandbox
    sandbox.stop()


@pytest.fixture
def endpoints(sandbox: Sandbox) -> Endpoints:
    """The sandbox, running."""
    return sandbox.start()


def processes_below(folder: Path) -> list[str]:
    """The command lines that name a folder."""
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if str(folder) in line]


def test_postgres_answers(endpoints: Endpoints) -> None:
    """It is a real and durable Postgres 18."""
    with psycopg.connect(endpoints.postgres_dsn) as connection:
        assert connection.info.server_version // 10_000 == 18
        settings = {
            name: connection.execute("SELECT current_setting(%s)", [name]).fetchone()
            for name in ("fsync", "wal_level", "max_prepared_transactions", "listen_addresses")
        }
    assert settings == {
        "fsync": ("on",),
        "wal_level": ("replica",),
        "max_prepared_transactions": ("0",),
        "listen_addresses": ("127.0.0.1",),
    }


def test_kafka_carries_messages(endpoints: Endpoints) -> None:
    """A transaction written by an idempotent producer is read by a group."""
    connection: dict[str, Any] = {"bootstrap.servers": endpoints.kafka_bootstrap_servers}
    client = AdminClient(connection)
    [created] = client.create_topics([NewTopic("carries", 2, 1)]).values()
    created.result(timeout=DEADLINE_SECONDS)
    producer = Producer(connection | {"transactional.id": "carries"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("carries", b"value", b"key")
    producer.commit_transaction()
    consumer = Consumer(connection | {"group.id": "carries", "auto.offset.reset": "earliest"})
    consumer.subscribe(["carries"])
    messages: list[Message] = []

    def has_come() -> bool:
        messages.extend(consumer.consume(1, 1))  # or why there is none yet
        return any(one.error() is None for one in messages)

    came = wait_until(has_come, seconds=DEADLINE_SECONDS)
    consumer.close()
    assert came, [str(one.error()) for one in messages]
    assert [(one.key(), one.value()) for one in messages if one.error() is None] == [(b"key", b"value")]


def test_kafka_does_not_make_topics_by_itself(endpoints: Endpoints) -> None:
    """A misspelt topic stays absent."""
    client = AdminClient({"bootstrap.servers": endpoints.kafka_bootstrap_servers})
    client.list_topics("misspelt", timeout=DEADLINE_SECONDS)
    assert "misspelt" not in client.list_topics(timeout=DEADLINE_SECONDS).topics


def test_elasticsearch_indexes_and_searches(endpoints: Endpoints) -> None:
    """It is an 8.16 that can analyse, which is what a trimmed Java runtime would break."""
    with Elasticsearch(endpoints.elasticsearch_url, request_timeout=DEADLINE_SECONDS) as client:
        assert client.info()["version"]["number"].startswith("8.16.")
        client.indices.create(index="searches", mappings=THAI_INDEX)
        client.index(index="searches", id="1", document={"text": "สวัสดีชาวโลก"}, refresh=True)
        assert client.search(index="searches", query={"match": {"text": "โลก"}})["hits"]["total"]["value"] == 1
        client.indices.delete(index="searches")


def test_second_start_uses_what_runs(sandbox: Sandbox, endpoints: Endpoints) -> None:
    """Another command on the same folder finds the same servers, and starts none."""
    other = Sandbox(sandbox.folder)
    pids = [server.pid for server in sandbox.servers]
    assert other.start() == endpoints
    assert [server.pid for server in other.servers] == pids
    status = other.status()
    assert status.endpoints == endpoints
    assert [server.name for server in status.servers if server.running] == ["Postgres", "Kafka", "Elasticsearch"]


@pytest.mark.usefixtures("endpoints")
def test_killed_server_comes_back_where_it_was(sandbox: Sandbox) -> None:
    """After a kill of its whole family, start brings it back on its port and leaves the others alone."""
    server: EmbeddedServer = sandbox.postgres
    others = {other: other.pid for other in sandbox.servers if other is not server}
    address, pid = server.address, server.pid
    server.kill()
    assert not server.is_running()
    assert not processes_below(server.data_folder)
    assert sandbox.status().endpoints is None
    sandbox.start()
    assert server.address == address
    assert server.pid not in {None, pid}
    assert {other: other.pid for other in others} == others


def test_postgres_keeps_what_was_committed_before_a_crash(sandbox: Sandbox, endpoints: Endpoints) -> None:
    """Killed or stopped without a checkpoint, it recovers every commit."""
    with psycopg.connect(endpoints.postgres_dsn) as connection:
        connection.execute("CREATE TABLE committed (id int)")
    for _ in range(2):
        with psycopg.connect(endpoints.postgres_dsn) as connection:
            connection.execute("INSERT INTO committed VALUES (1)")
        sandbox.postgres.kill()
        sandbox.postgres.start()
        with psycopg.connect(endpoints.postgres_dsn) as connection:
            connection.execute("INSERT INTO committed VALUES (2)")
        sandbox.postgres.stop(mode="immediate")
        sandbox.postgres.start()
    with psycopg.connect(endpoints.postgres_dsn) as connection:
        assert connection.execute("SELECT count(*) FROM committed").fetchone() == (4,)


def test_paused_server_is_deaf_until_resumed(sandbox: Sandbox, endpoints: Endpoints) -> None:
    """A paused server lives and does not answer; resumed, it answers."""
    sandbox.elasticsearch.pause()
    try:
        with Elasticsearch(endpoints.elasticsearch_url, request_timeout=0.5, max_retries=0) as client:
            assert not client.ping()
            assert sandbox.elasticsearch.is_running()
            sandbox.elasticsearch.resume()
            assert wait_until(client.ping, seconds=DEADLINE_SECONDS)
    finally:
        sandbox.elasticsearch.resume()


@pytest.mark.usefixtures("endpoints")
def test_client_programs_are_there(sandbox: Sandbox) -> None:
    """The programs that faults and benchmarks are made with are beside the server."""
    programs = {"psql", "pgbench", "pg_dump", "pg_restore", "pg_basebackup", "pg_ctl"}
    assert programs <= {program.name for program in sandbox.postgres.bin_folder.iterdir()}


@pytest.mark.usefixtures("endpoints")
def test_stop_leaves_no_process(sandbox: Sandbox) -> None:
    """After a stop, even of a paused server, nothing runs; stopping again does no harm; data is still there."""
    assert processes_below(sandbox.folder)
    sandbox.kafka.pause()
    sandbox.stop()
    assert not processes_below(sandbox.folder)
    assert not any(server.running for server in sandbox.status().servers)
    sandbox.stop()
    with psycopg.connect(sandbox.start().postgres_dsn) as connection:
        assert connection.execute("SELECT count(*) FROM committed").fetchone() == (4,)


def test_who_stops_another_folder_is_told(base_folder: Path) -> None:
    """Where nothing runs, it is said so, with the folder that was looked at; that is no error."""
    another = base_folder / "another"
    stop = [sys.executable, "-m", "syncer", "sandbox", "stop", "--folder", str(another)]
    said = subprocess.run(stop, capture_output=True, text=True, check=True, timeout=60)
    assert (said.stdout, said.stderr) == ("", f"No server is running in {another}\n")


def test_version_that_there_is_not_is_refused(base_folder: Path) -> None:
    """The error names those that there are, and nothing is started."""
    old = [
        sys.executable,
        "-m",
        "syncer",
        "sandbox",
        "start",
        "--postgres",
        "9.6",
        "--folder",
        str(base_folder / "old"),
    ]
    said = subprocess.run(old, capture_output=True, text=True, check=False, timeout=60)
    assert (said.returncode, said.stdout) == (1, "")
    assert "There is no Postgres 9.6 for the sandbox" in said.stderr
    assert "14, 15, 16, 17, 18" in said.stderr
    assert not processes_below(base_folder / "old")
