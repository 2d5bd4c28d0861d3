"""An Elasticsearch that refuses, lies, hangs or is changed by hand costs time, never a document."""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import ApiError, Elasticsearch

from syncer.base.errors import DocumentError
from syncer.base.lifecycle import Stop, Stopping
from syncer.base.write_report import WriteReport
from syncer.daemon import STOP_SECONDS
from syncer.elasticsearch.bulk import Index
from syncer.indexing import writer
from syncer.indexing.writer import Slice
from syncer.sandbox import Endpoints, Reporter, Sandbox
from syncer.sandbox.elasticsearch import ElasticsearchServer
from tests.support.breakpoints import Plan
from tests.support.elasticsearch_proxy import Answer, Forward, Proxy, cut, emptied, page, refused, swallowed, truncated
from tests.support.world import DEADLINE_SECONDS, Daemon, World, made, wait_until
from tests.support.writers import fill, writing

_REQUEST_BYTES_MAX = 1024 * 1024
_PRESSURE_BYTES_MAX = 600 * 1024
_SETTINGS = {
    "http.max_content_length": str(_REQUEST_BYTES_MAX) + "b",
    "indexing_pressure.memory.limit": str(_PRESSURE_BYTES_MAX) + "b",
    "thread_pool.write.queue_size": "2",
    # Whoever says no name may do everything; whoever says one must be known.
    "xpack.security.enabled": "true",
    "xpack.security.http.ssl.enabled": "false",
    "xpack.security.transport.ssl.enabled": "false",
    "xpack.security.authc.anonymous.username": "anyone",
    "xpack.security.authc.anonymous.roles": "superuser",
}


@pytest.fixture(scope="module")
def server(sandbox: Sandbox, endpoints: Endpoints) -> Iterator[ElasticsearchServer]:  # noqa: ARG001 - it loads the cache
    """A narrow Elasticsearch that no other module uses."""
    with tempfile.TemporaryDirectory(prefix="syncer-elasticsearch-") as folder:
        Path(folder).chmod(0o755)  # for root's servers, which run as nobody
        one = ElasticsearchServer(
            Path(folder) / "server", sandbox._cache, sandbox.elasticsearch._account, report=Reporter()
        )
        one.settings |= _SETTINGS | {"path.repo": f"{folder}/snapshots"}
        one._account.own(Path(folder) / "snapshots")
        one.start()
        try:
            yield one
        finally:
            one.stop()


@pytest.fixture
def narrow(sandbox: Sandbox, endpoints: Endpoints, server: ElasticsearchServer, tmp_path: Path) -> Iterator[World]:
    """A world on that Elasticsearch, with users and posts."""
    there = replace(endpoints, elasticsearch_url=server.address)
    with made(World(sandbox=sandbox, endpoints=there, folder=tmp_path)) as world:
        world.set_up()
        fill(world)
        yield world


@pytest.fixture
def proxy(server: ElasticsearchServer) -> Iterator[Proxy]:
    """What stands before it."""
    with Proxy(server.address).running() as one:
        yield one


def through(proxy: Proxy, **more: str) -> dict[str, str]:
    """The environment of a daemon that reaches Elasticsearch through the proxy."""
    return {"SYNCER_ELASTICSEARCH_URL": proxy.address, **more}


def retried(daemon: Daemon) -> Counter[str]:
    """How often a daemon has told of trouble, by component."""
    return Counter(one["component"] for one in daemon.events() if one["event"] == "component.retried")


# On the way


def test_whatever_becomes_of_an_answer_the_request_is_made_again(narrow: World, proxy: Proxy) -> None:
    """Nothing is lost, nothing goes back, no document suspends, and the daemon goes on."""
    daemon = narrow.daemon(environment=through(proxy))
    narrow.wait_until_level()
    faults = [swallowed, cut, truncated, emptied, page(200), page(302), page(404), page(502)]
    with writing(narrow):
        for fault in faults:
            with proxy.spoiling(fault, times=3):
                wait_until(lambda: proxy.is_through, what=f"{fault} is met", detail=daemon.log_file.read_text)
    narrow.wait_until_level()
    assert narrow.sql("SELECT count(*) FROM syncer.document WHERE suspended IS NOT NULL") == [(0,)]
    assert narrow.sql("SELECT count(*) FROM syncer.dead_letter") == [(0,)]
    assert daemon.stop() == 0


def test_a_command_waits_until_elasticsearch_has_room(narrow: World, proxy: Proxy) -> None:
    """A refusal with 429 is repeated, and the user is told why it takes long."""
    daemon = narrow.daemon()
    narrow.wait_until_level()
    assert daemon.stop() == 0
    with proxy.spoiling(refused(429, "circuit_breaking_exception"), times=3, path="/"):
        verified = narrow.syncer("verify", environment=through(proxy))
    assert proxy.is_through
    assert verified.returncode == 0, verified.stderr
    assert "has no room for the request" in verified.stderr
    assert "docs/sizing.md" in verified.stderr


def hang(seconds_max: float = DEADLINE_SECONDS) -> tuple[Callable[[Forward], Answer], threading.Event, threading.Event]:
    """A fault that keeps a request, and then lets it be applied; with whether it has one, and what lets it go on."""
    has_one, go_on = threading.Event(), threading.Event()

    def fault(forward: Forward) -> Answer:
        has_one.set()
        go_on.wait(seconds_max)
        return forward()

    return fault, has_one, go_on


def test_a_stop_waits_for_no_hung_server(narrow: World, proxy: Proxy) -> None:
    """It ends in reasonable time and says what it gave up; the next daemon does that, and what comes late loses."""
    hasty = Plan(constants={"syncer.base.lifecycle:GRACE_SECONDS": 1})
    daemon = narrow.daemon(environment=through(proxy), program=hasty.program)
    narrow.wait_until_level()
    fault, has_one, go_on = hang(DEADLINE_SECONDS + STOP_SECONDS)
    with proxy.spoiling(fault):
        narrow.sql("UPDATE posts SET title = 'hung' WHERE id = 1")
        assert has_one.wait(DEADLINE_SECONDS)
        before = len(daemon.events())
        assert daemon.stop() == 0
    last = daemon.events()[before:]
    gave_up = {one["component"] for one in last if one["event"] == "component.gave_up"}
    assert gave_up
    # They have left the group, so that nobody waits until they are taken for dead.
    assert gave_up <= {one["worker"] for one in last if one["event"] == "worker.partitions_revoked"}
    narrow.sql("UPDATE posts SET title = 'newer' WHERE id = 1")
    successor = narrow.daemon()
    narrow.wait_until_level()
    go_on.set()
    narrow.sql("UPDATE posts SET title = 'newest' WHERE id = 2")
    narrow.wait_until_level()
    assert narrow.held()["1"]["title"] == "newer"
    assert successor.stop() == 0


# What it refuses for now


def test_what_is_refused_for_now_is_told_of_once(narrow: World, proxy: Proxy) -> None:
    """Many attempts whose words differ are one line of the log for each component, and one when it is over."""
    daemon = narrow.daemon(environment=through(proxy))
    narrow.wait_until_level()
    with writing(narrow):
        for status, kind in ((429, "circuit_breaking_exception"), (503, "no_master")):
            with proxy.spoiling(refused(status, kind), times=8):
                wait_until(lambda: proxy.is_through, what="it is refused", detail=daemon.log_file.read_text)
    narrow.wait_until_level()
    daemon.wait_for("component.recovered")
    told = retried(daemon)
    assert told
    assert max(told.values()) <= 4, told
    assert daemon.stop() == 0


@contextmanager
def broken(_: World, client: Elasticsearch) -> Iterator[None]:
    """A breaker that lets next to nothing through, while the block lasts."""
    client.cluster.put_settings(persistent={"network.breaker.inflight_requests.limit": "200b"})
    try:
        yield
    finally:
        wait_until(lambda: _reset(client), what="the breaker is as it was")


def _reset(client: Elasticsearch) -> bool:
    try:
        client.cluster.put_settings(persistent={"network.breaker.inflight_requests.limit": None})
    except ApiError:
        return False
    return True


@contextmanager
def read_only(_: World, client: Elasticsearch) -> Iterator[None]:
    """What somebody does by hand to a whole cluster."""
    client.cluster.put_settings(persistent={"cluster.blocks.read_only": True})
    yield
    client.cluster.put_settings(persistent={"cluster.blocks.read_only": None})


def shard_file(server: ElasticsearchServer, client: Elasticsearch, name: str) -> Path:
    """Where Elasticsearch notes that shard 0 is corrupt."""
    settings = client.indices.get_settings(index=name, flat_settings=True).body[name]["settings"]
    return server.data_folder / "indices" / str(settings["index.uuid"]) / "0" / "index" / "corrupted_by_a_test"


@contextmanager
def red(world: World, client: Elasticsearch, server: ElasticsearchServer) -> Iterator[None]:
    """A shard that has lost its primary while the block lasts; to be entered while nothing is written."""
    name = world.index_of()
    note = shard_file(server, client, name)
    client.indices.close(index=name)
    note.write_bytes(b"not a segment")
    note.chmod(0o666)
    client.indices.open(index=name, wait_for_active_shards="0")
    wait_until(lambda: _status(client, name) == "red", what="the index is red")
    yield
    note.unlink()
    command = {"index": name, "shard": 0, "node": "sandbox", "accept_data_loss": True}
    client.cluster.reroute(commands=[{"allocate_stale_primary": command}], metric="none")


def _status(client: Elasticsearch, name: str) -> str:
    return str(client.cluster.health(index=f"{name}*").body["status"])


def test_what_is_refused_for_now_is_waited_out(narrow: World) -> None:
    """Nothing is dead-lettered or suspended, the log says it once, and all documents catch up by themselves."""
    daemon = narrow.daemon()
    narrow.wait_until_level()
    with narrow.elasticsearch() as client:
        for trouble, says in (
            (broken, "inflight_requests"),
            (read_only, "cluster read-only"),
        ):
            with writing(narrow, writers=2), trouble(narrow, client):
                wait_until(partial(is_told, daemon, says), what=says, detail=daemon.log_file.read_text)
            narrow.wait_until_level()
    assert max(retried(daemon).values()) <= 6, daemon.log_file.read_text()
    assert narrow.sql("SELECT count(*) FROM syncer.document WHERE suspended IS NOT NULL") == [(0,)]
    assert narrow.sql("SELECT count(*) FROM syncer.dead_letter") == [(0,)]
    assert daemon.stop() == 0


def told(daemon: Daemon, words: str) -> list[dict[str, Any]]:
    """What a daemon has told of trouble in these words."""
    return [one for one in daemon.events() if one["event"] == "component.retried" and words in one["error"]]


def is_told(daemon: Daemon, words: str) -> bool:
    """Whether it has."""
    return bool(told(daemon, words))


def test_a_shard_that_is_away_suspends_its_document(
    narrow: World, server: ElasticsearchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documents of other shards are written meanwhile, and its own once it is back."""
    monkeypatch.setattr("syncer.elasticsearch.bulk._WAIT_FOR_SHARD", "1s")
    reshard(narrow)
    with narrow.elasticsearch() as client, narrow.index() as index:
        name = narrow.index_of()
        ids = [str(one) for one in range(60)]
        with narrow.writer(index) as one:
            one.write(name, ids)
            with red(narrow, client, server):
                narrow.sql("UPDATE posts SET title = 'while a shard is away'")
                one.build(current := Slice(index_name=name, ids=ids))
                one.send(current)
                assert 0 < len(current.outcome.done) < len(ids)
                with pytest.raises(DocumentError, match="unavailable_shards"):
                    one.settle(current)
            one.write(name, ids)
        assert narrow.differences() == []


def reshard(world: World) -> None:
    """Let the blog have two shards."""
    file = world.document_folder / "index.json"
    file.write_text(file.read_text().replace('"number_of_shards": 1', '"number_of_shards": 2'))
    assert world.syncer("apply", "--yes").returncode == 0


# What is too large


def test_what_is_too_large_is_split_or_dead_lettered(narrow: World, proxy: Proxy) -> None:
    """Requests are halved until they fit.

    A document that never fits is dead-lettered, with words.
    """
    narrow.sql(
        "INSERT INTO posts (id, user_id, title, body) SELECT g, 1, 'one of many', repeat('x', 5000) "
        "FROM generate_series(1000, 1999) AS g"
    )
    narrow.sql(
        "INSERT INTO posts (id, user_id, title, body) VALUES (7001, 1, 'too large', repeat('x', %s))",
        _REQUEST_BYTES_MAX + 1,
    )
    narrow.sql(
        "INSERT INTO posts (id, user_id, title, body) VALUES (7002, 1, 'never room', repeat('x', %s))",
        _PRESSURE_BYTES_MAX + 1,
    )
    daemon = narrow.daemon(environment=through(proxy))
    dead_lettered = "SELECT id FROM syncer.dead_letter ORDER BY 1"
    wait_until(
        lambda: narrow.sql("SELECT count(*) FROM syncer.dead_letter") == [(2,)],
        what="both are dead-lettered",
        detail=daemon.log_file.read_text,
    )
    wait_until(lambda: len(narrow.differences()) == 2, what="all others are written")
    assert [id_ for (id_,) in narrow.sql(dead_lettered)] == ["7001", "7002"]
    shown = narrow.sql("SELECT error FROM syncer.dead_letter WHERE id = '7001'")[0][0]
    assert "http.max_content_length" in shown
    narrow.sql("UPDATE posts SET body = 'short now' WHERE id > 7000")
    narrow.wait_until_level()
    wait_until(lambda: narrow.sql(dead_lettered) == [], what="neither is dead-lettered any more")
    assert daemon.stop() == 0


# The login


# Defects of Elasticsearch


def test_a_document_at_which_elasticsearch_fails_is_no_plug(narrow: World, proxy: Proxy) -> None:
    """Its siblings are written at once, and after some attempts it is dead-lettered, so that those behind it go on."""

    def failing(forward: Forward) -> Answer:
        answer = forward()
        body = answer.body.decode()
        for item in ('{"index":{"status":201}}', '{"index":{"status":200}}'):
            head, found, tail = body.partition(item)
            if found:
                error = '{"index":{"status":500,"error":{"type":"null_pointer_exception","reason":"a defect"}}}'
                changed = (head + error + tail).replace('"errors":false', '"errors":true')
                return replace(answer, body=changed.encode())
        return answer

    stop = Stop()
    reports: list[WriteReport] = []
    with Elasticsearch(proxy.address, request_timeout=60) as client, proxy.spoiling(failing):
        index = Index(client, bulk_bytes_max=1_000_000)
        one = writer.Writer(connect=narrow.connect, index=index, pause=stop.pause, name="test")
        thread = threading.Thread(target=write_into, args=(reports, one, narrow.index_of()))
        thread.start()
        thread.join(DEADLINE_SECONDS)
        stop.request()
        thread.join(DEADLINE_SECONDS)
        one.close()
    [report] = reports
    assert report.dead_lettered == 1
    assert report.indexed + report.skipped >= 2
    assert len(narrow.sql("SELECT error FROM syncer.dead_letter WHERE error LIKE 'null_pointer_exception%'")) == 1


def write_into(reports: list[WriteReport], one: writer.Writer, name: str) -> None:
    """Write three posts, unless told to stop."""
    with suppress(Stopping):
        reports.append(one.write(name, ["1", "2", "3"]))


# Snapshots


def test_an_older_snapshot_is_found_and_made_good(narrow: World) -> None:
    """Verify says what differs; a repair writes all of it with greater versions, and a delete is made again."""
    narrow.backfill()
    names = f"{narrow.index_of()},syncer-state"
    with narrow.elasticsearch() as client:
        settings = {"location": f"{narrow.name}"}
        client.snapshot.create_repository(name=narrow.name, repository={"type": "fs", "settings": settings})
        client.snapshot.create(
            repository=narrow.name,
            snapshot="older",
            indices=names,
            include_global_state=False,
            wait_for_completion=True,
        )
        narrow.sql("UPDATE posts SET title = 'newer' WHERE id < 30; DELETE FROM posts WHERE id > 50")
        narrow.backfill()
        assert narrow.differences() == []
        client.indices.delete(index=narrow.index_of())
        client.indices.delete(index="syncer-state")
        client.snapshot.restore(
            repository=narrow.name,
            snapshot="older",
            indices=names,
            include_global_state=False,
            wait_for_completion=True,
        )
        client.snapshot.delete_repository(name=narrow.name)
    assert narrow.syncer("verify").returncode != 0
    daemon = narrow.daemon()
    narrow.syncer("verify", "--repair")
    narrow.wait_until_level()
    assert daemon.stop() == 0
