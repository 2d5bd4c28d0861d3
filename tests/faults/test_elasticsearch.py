"""Elasticsearch refuses, lies, has no room, is restored or overtakes a writer: it costs time, never a document."""

from __future__ import annotations

import itertools
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from elasticsearch import ApiError, Elasticsearch

from syncer.base.error_policy import Action, decide, explain
from syncer.base.model import Composition, Target
from syncer.base.settings import WorkerSettings
from syncer.elasticsearch.bulk import BulkOutcome
from syncer.elasticsearch.client import connect
from syncer.elasticsearch.indices import Indices
from syncer.sandbox import Endpoints, Sandbox
from syncer.sandbox.servers import ElasticsearchServer
from syncer.worker.job_loop import JobWorker
from tests.faults import harness
from tests.faults.harness import (
    DEAD_LETTERS,
    REPEATS,
    Write,
    after,
    require_holds,
    require_quiet,
    spoilt,
    wait_for_trouble,
)
from tests.support.doctor import is_well, look
from tests.support.elasticsearch_proxy import Proxy, cut, emptied, page, refused, swallowed
from tests.support.routing import put_routing, put_shards, shards, users_on_two_shards, verified
from tests.support.world import VERSIONS, World, elsewhere, running, sandbox_of_its_own, wait_until
from tests.support.writers import fill, writing

_REQUEST_BYTES_MAX = 1024 * 1024
_PRESSURE_BYTES_MAX = 600 * 1024
_SETTINGS = {
    "http.max_content_length": f"{_REQUEST_BYTES_MAX}b",
    "indexing_pressure.memory.limit": f"{_PRESSURE_BYTES_MAX}b",
    "thread_pool.write.queue_size": "2",
}


@pytest.fixture(scope="module")
def server() -> Iterator[ElasticsearchServer]:
    """A narrow Elasticsearch that no other module uses."""
    with sandbox_of_its_own() as fresh:
        fresh.elasticsearch.settings |= _SETTINGS
        fresh.elasticsearch.start()
        yield fresh.elasticsearch


@pytest.fixture
def narrow(sandbox: Sandbox, endpoints: Endpoints, server: ElasticsearchServer, tmp_path: Path) -> Iterator[World]:
    """A world on that Elasticsearch, with users and posts."""
    with elsewhere(sandbox, endpoints, tmp_path, elasticsearch_url=server.address) as world:
        fill(world)
        yield world


@pytest.fixture
def proxy(narrow: World) -> Iterator[Proxy]:
    """What stands before it; the world's daemons and commands reach it through the proxy."""
    with Proxy(narrow.endpoints.elasticsearch_url).running() as running:
        narrow.worker_settings["SYNCER_ELASTICSEARCH_URL"] = running.address
        yield running


# What it answers, and what it refuses for now

ANSWERS = {
    "it is applied, and no answer comes": swallowed,
    "the connection is cut in the answer": cut,
    "an empty answer": emptied,
    **{f"a page of a load balancer, {status}": page(status) for status in (200, 502)},
    "no room": refused(429, "circuit_breaking_exception"),
    "no master": refused(503, "no_master"),
}


@contextmanager
def no_room(client: Elasticsearch) -> Iterator[str]:
    """A breaker that lets next to nothing through, while the block lasts."""
    limit = "network.breaker.inflight_requests.limit"
    client.cluster.put_settings(persistent={limit: "200b"})
    try:
        yield "in_flight_requests" if VERSIONS.opensearch else "inflight_requests"
    finally:
        wait_until(lambda: _is_reset(client, limit), what="the breaker is as it was")


def _is_reset(client: Elasticsearch, setting: str) -> bool:
    with suppress(ApiError):
        client.cluster.put_settings(persistent={setting: None})
        return True
    return False


@contextmanager
def read_only(client: Elasticsearch) -> Iterator[str]:
    """What somebody does by hand to a whole cluster."""
    client.cluster.put_settings(persistent={"cluster.blocks.read_only": True})
    yield "cluster read-only"
    client.cluster.put_settings(persistent={"cluster.blocks.read_only": None})


TROUBLES = (read_only,) if VERSIONS.elasticsearch == "9" else (no_room, read_only)
"""Elasticsearch 9 does not count a bulk request among those in flight."""


def test_whatever_becomes_of_a_request_it_is_made_again(narrow: World, proxy: Proxy) -> None:
    """Nothing is lost, no document is suspended, and the log says each trouble once."""
    daemon = narrow.daemon(plan=REPEATS)
    narrow.wait_until_level()
    with writing(narrow, writers=2), narrow.elasticsearch() as client:
        for name, fault in ANSWERS.items():
            with proxy.spoiling(fault, times=1):
                wait_until(lambda: proxy.left == 0, what=name, detail=daemon.log_file.read_text)
        for trouble in TROUBLES:
            with trouble(client) as words:
                wait_for_trouble(daemon, words)
    require_holds(narrow)
    daemon.wait_for("component.recovered")
    require_quiet(daemon, lines=2 * len(ANSWERS) + 10)
    assert daemon.stop() == 0


def test_no_connection_idles_unseen(narrow: World) -> None:
    """A firewall may forget an idle connection without a word. The kernel asks the peer, as it does for Postgres."""
    with closing(connect(narrow.settings.elasticsearch)):
        port = urlsplit(narrow.endpoints.elasticsearch_url).port
        found = [c.fd for c in psutil.Process().net_connections("tcp4") if c.raddr and c.raddr.port == port]
        options = []
        for number in found:
            with socket.socket(fileno=os.dup(number)) as opened:
                options.append((opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), _timeouts(opened)))
    assert (1, [10, 5, 4, 30_000]) in options


def _timeouts(opened: socket.socket) -> list[int]:
    names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    return [opened.getsockopt(socket.IPPROTO_TCP, name) for name in names]


def test_a_command_waits_for_room(narrow: World, proxy: Proxy) -> None:
    """What Elasticsearch refuses with 429 was not done, and is asked for again."""
    narrow.backfill()
    with proxy.spoiling(refused(429, "circuit_breaking_exception"), times=2, path="/"):
        completed = narrow.syncer("verify")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "larger than the limit" in completed.stderr


ASKED: dict[str, Callable[[Indices, Target], object]] = {
    "an alias": lambda indices, target: indices.require_free(target.index_name, ""),
    "an index": Indices.is_own,
    "its aliases": lambda indices, target: indices.hide(target, target.write_alias),
    "settings": Indices.is_settled,
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_a_page_of_a_proxy_does_not_say_that_something_is_absent(
    narrow: World, proxy: Proxy, ask: Callable[[Indices, Target], object]
) -> None:
    """Its 404 is an error that is retried; only the server's own one says that the name is free."""
    settings = narrow.settings.elasticsearch.model_copy(update={"url": proxy.address})
    target = Target.of_index(narrow.index_of())
    with connect(settings) as client, proxy.spoiling(page(404), path="/"), pytest.raises(ApiError) as raised:
        ask(Indices(client), target)
    assert decide(raised.value) is Action.RETRY
    assert "does not say that it is a search server" in str(explain(raised.value))


def test_what_is_too_large_is_split_or_dead_lettered(narrow: World) -> None:
    """Requests are halved until they fit. A document that never fits is dead-lettered, with the limit's name."""
    posts = "INSERT INTO posts (id, user_id, title, body) "
    many_rows = "SELECT g, 1, 'of many', repeat('x', 5000) FROM generate_series(1000, 1999) AS g"
    narrow.sql(posts + many_rows)
    for id_, size in ((7001, _REQUEST_BYTES_MAX), (7002, _PRESSURE_BYTES_MAX)):
        narrow.sql(posts + "VALUES (%s, 1, 'too large', repeat('x', %s))", id_, size + 1)
    daemon = narrow.daemon()
    wait_until(
        lambda: [id_ for id_, _ in narrow.sql(DEAD_LETTERS)] == ["7001", "7002"],
        what="both are dead-lettered",
        detail=daemon.log_file.read_text,
    )
    wait_until(lambda: len(narrow.differences()) == 2, what="all others are written")
    assert "http.max_content_length" in narrow.sql("SELECT error FROM syncer.dead_letter WHERE id = '7001'")[0][0]
    narrow.sql("UPDATE posts SET body = 'short now' WHERE id > 7000")
    narrow.wait_until_level()
    wait_until(lambda: narrow.sql(DEAD_LETTERS) == [], what="neither is dead-lettered any more")
    assert daemon.stop() == 0


# Its templates and settings are in the way of the index that syncer has for itself


STATE = {
    "mappings": {"dynamic": "strict", "_source": {"enabled": False}},
    "settings": {"index.default_pipeline": "gone"},
}


@pytest.mark.parametrize("content", [{}, STATE], ids=["no template", "a template"])
def test_syncers_own_index_is_made_explicitly(narrow: World, content: dict[str, Any]) -> None:
    """Whatever templates and settings say of new indices, the record can be written and read."""
    with narrow.elasticsearch() as client:
        client.indices.delete(index="syncer-state")
        client.indices.put_index_template(name="own", index_patterns=["s*"], priority=901, template=content)
        strict = {"action.auto_create_index": "false", "action.destructive_requires_name": True}
        client.cluster.put_settings(persistent=strict)
        narrow.sql("TRUNCATE syncer.cluster_identity")  # the next writer enters an epoch, and records it
        try:
            narrow.daemon()
            with writing(narrow, writers=1):
                pass
            require_holds(narrow)
            doctor = look(narrow, "elasticsearch.epoch")
        finally:
            client.cluster.put_settings(persistent=dict.fromkeys(strict))
            client.indices.delete_index_template(name="own")
            client.indices.delete(index="syncer-state", ignore_unavailable=True)
    assert is_well(doctor), doctor


def test_what_forbids_syncers_own_index_is_named(narrow: World) -> None:
    """A template for data streams forbids it: apply says that, and not that an index is gone."""
    with narrow.elasticsearch() as client:
        client.indices.delete(index="syncer-state")
        client.indices.put_index_template(name="own", index_patterns=["syncer-s*"], priority=902, data_stream={})
        narrow.sql("TRUNCATE syncer.cluster_identity")
        try:
            refused = narrow.syncer("backfill", "blogpost")
        finally:
            client.indices.delete_index_template(name="own")
    assert f"{narrow.sandbox.elasticsearch.name} refuses to create syncer-state" in refused.stderr, refused.stderr
    narrow.prints("backfill", "blogpost")


# It is restored


def test_an_older_snapshot_is_found_and_made_good(narrow: World) -> None:
    """Verify finds what differs; a repair writes all of it with greater versions, and a delete is made again."""
    narrow.backfill()
    names = f"{narrow.index_of()},syncer-state"
    older: dict[str, Any] = {"repository": narrow.name, "snapshot": "older", "indices": names}
    with narrow.elasticsearch() as client:
        repository = {"type": "fs", "settings": {"location": narrow.name}}
        client.snapshot.create_repository(name=narrow.name, repository=repository)
        client.snapshot.create(**older, include_global_state=False, wait_for_completion=True)
        narrow.sql("UPDATE posts SET title = 'newer' WHERE id < 30; DELETE FROM posts WHERE id > 50")
        narrow.sql("DELETE FROM syncer.outbox")  # no change is in flight
        narrow.backfill()
        assert narrow.differences() == []
        client.indices.delete(index=names)
        client.snapshot.restore(**older, include_global_state=False, wait_for_completion=True)
        client.snapshot.delete_repository(name=narrow.name)
    assert narrow.syncer("verify").returncode == 1
    narrow.daemon()
    narrow.syncer("verify", "--repair")
    require_holds(narrow)


# Writers stall, are overtaken or refused: the greater version wins, and nothing counts before it is written


@pytest.fixture
def blog(world: World) -> World:
    """Posts 1 to 3, in Postgres only."""
    harness.add_posts(world, 3)
    return world


# A writer has read a document, and others write it before it does


@pytest.mark.parametrize("of", [World.alias_of, World.write_alias_of], ids=["search", "write"])
def test_an_alias_that_is_deleted_is_given_back(blog: World, of: Callable[[World, str], str]) -> None:
    """`syncer apply` gives it back, and writes what was missed. A daemon may give back a write alias first."""
    daemon, index = blog.daemon(), blog.index_of()
    with blog.elasticsearch() as client, writing(blog, writers=2):
        client.indices.delete_alias(index=index, name=of(blog, "blogpost"))
        blog.sql("UPDATE users SET name = 'while it is away' WHERE id = 3")
        if of is World.write_alias_of:
            daemon.wait_for("document.suspended")
        blog.prints("apply", "--yes")
        assert of(blog, "blogpost") in client.indices.get_alias(index=index)[index]["aliases"]
    require_holds(blog)


@pytest.fixture
def routed(empty_world: World) -> World:
    """Posts that are routed by their author, in an index of three shards."""
    put_shards(empty_world, 3)
    put_routing(empty_world, "p.user_id")
    empty_world.set_up()
    empty_world.sql("INSERT INTO users (id, name, email) SELECT g, 'name', '' FROM generate_series(0, 99) AS g")
    return empty_world


MOVE, BACK = "UPDATE posts SET user_id = {there} WHERE id = {id}", "UPDATE posts SET user_id = {here} WHERE id = {id}"
GO = "DELETE FROM posts WHERE id = {id}"
MOVES = {"moves": (MOVE,), "is deleted": (GO,), "moves and is deleted": (MOVE, GO), "moves and returns": (MOVE, BACK)}


@pytest.mark.parametrize("unmoved", [frozenset[str](), frozenset(map(str, range(len(MOVES))))], ids=["any", "edits"])
def test_a_writer_that_stalls_before_a_move_leaves_no_copy_on_the_other_shard(
    routed: World, unmoved: frozenset[str]
) -> None:
    """What was read under the old routing does not come back beside what was written under the new one."""
    with routed.index() as index, routed.writer(index) as prompt:
        here, there = users_on_two_shards(shards(routed, index))
        for id_, (name, changes) in enumerate(MOVES.items()):
            routed.sql("INSERT INTO posts (id, user_id, title, body) VALUES (%s, %s, 'old', '')", id_, here)

            def change(id_: int = id_, changes: Sequence[str] = changes) -> None:
                for statement in changes:
                    routed.sql(statement.format(here=here, there=there, id=id_))
                    prompt.write(routed.index_of(), [str(id_)])

            with spoilt(routed, after(change)) as overtaken, routed.writer(overtaken) as late:
                assert late.write(routed.index_of(), [str(id_)], unmoved=unmoved).skipped == 1, name
            assert routed.differences() == [], name
    assert verified(routed).holds


def test_what_a_late_edit_creates_on_a_former_shard_is_written_again_everywhere(routed: World) -> None:
    """Elasticsearch has forgotten that the document was deleted there, and the write deletes nothing elsewhere."""
    with (
        routed.index() as index,
        routed.writer(index) as prompt,
        harness.index_settings(routed, {"index.gc_deletes": "0s"}),
    ):
        here, there = users_on_two_shards(shards(routed, index))
        routed.sql("INSERT INTO posts (id, user_id, title, body) VALUES (1, %s, 'old', '')", here)
        prompt.write(routed.index_of(), ["1"])

        def move_and_forget() -> None:
            routed.sql(MOVE.format(there=there, id=1))
            prompt.write(routed.index_of(), ["1"])
            wait_until(lambda: harness.is_forgotten(routed, "1", routing=str(here)), what="the delete is forgotten")

        with spoilt(routed, after(move_and_forget)) as overtaken, routed.writer(overtaken) as late:
            late.write(routed.index_of(), ["1"], unmoved=frozenset({"1"}))
    assert routed.differences() == []
    assert verified(routed).holds


# Another client raises versions


def test_a_version_that_another_client_raises_keeps_no_change_from_being_written(blog: World) -> None:
    """On a quiet system, _update_by_query gives a document the versions that come next; also while it is written."""
    ids = ["1", "2", "3"]

    def raise_versions() -> None:
        for _ in range(2):  # a query finds what searches find, else versions that are no longer there
            client.indices.refresh(index=blog.alias)
        client.update_by_query(index=blog.alias)

    with blog.index() as index, blog.elasticsearch() as client, blog.writer(index) as writer:
        writer.write(blog.index_of(), ids)
        raise_versions()
        blog.sql("UPDATE posts SET title = 'raised before'")
        assert writer.write(blog.index_of(), ids).indexed == 3
        blog.sql("UPDATE posts SET title = 'raised in flight' WHERE id = 2")
        with spoilt(blog, after(raise_versions)) as overtaken, blog.writer(overtaken) as late:
            assert late.write(blog.index_of(), ["2"]).indexed == 1
    require_holds(blog)


def test_a_reader_never_sees_an_earlier_state(blog: World) -> None:
    """Not even one that is earlier than a state whose change is not handled yet."""
    over = threading.Event()
    versions: list[int] = []
    blog.sql("UPDATE posts SET title = '0' WHERE id = 2")

    def write() -> None:
        with blog.index() as index, blog.writer(index) as writer:
            while not over.is_set():
                writer.write(blog.index_of(), ["2"])

    def look() -> None:
        with blog.elasticsearch() as client:
            while not over.is_set():
                answer = client.options(ignore_status=404).get(index=blog.alias, id="2")
                versions.extend([int(answer["_source"]["title"])] if answer["found"] else [])

    with ThreadPoolExecutor(4) as threads, blog.connect() as connection:
        racing = [threads.submit(work) for work in (write, write, write, look)]
        states = itertools.count(1)

        def is_enough() -> bool:
            for state in itertools.islice(states, 50):
                connection.execute("UPDATE public.posts SET title = $1 WHERE id = 2", (str(state),))
            return len(set(versions)) > 20 or any(racer.done() for racer in racing)

        try:
            wait_until(is_enough, what="twenty states are seen")
        finally:
            over.set()
        for racer in racing:
            racer.result()
    assert versions == sorted(versions)


# Progress


def test_what_a_busy_elasticsearch_refuses_is_sent_again(world: World) -> None:
    """Whole requests, and single documents of others: neither workers nor jobs lose one, or count it twice."""
    harness.add_posts(world, 60)
    ids_seen: set[str] = set()
    turn = itertools.count()

    def busy(write: Write, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        if next(turn) % 3 == 0:
            raise harness.too_many_requests()
        new = [composition for composition in compositions if composition.id not in ids_seen]
        ids_seen.update(composition.id for composition in new)
        outcome = write(target, [composition for composition in compositions if composition not in new])
        outcome.rejections += harness.refused(new, "es_rejected_execution_exception")
        return outcome

    with spoilt(world, busy) as index, world.connect() as connection:
        with harness.following(world, index=index) as follower:
            follower.drain()
        ids_seen.clear()
        with running(JobWorker(connect=world.connect, index=index, settings=WorkerSettings(batch_documents_max=20))):
            job = harness.wait_done(connection, harness.create(connection))
    assert (job.indexed + job.skipped, job.dead_lettered) == (60, 0)
    assert next(turn) > 5
    require_holds(world)


def test_a_document_at_which_elasticsearch_fails_holds_up_no_other(blog: World) -> None:
    """Its siblings are written at once; after some attempts it is dead-lettered, so that those behind it continue."""

    def failing(write: Write, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        outcome = write(target, [composition for composition in compositions if composition.id != "2"])
        at_fault = [composition for composition in compositions if composition.id == "2"]
        outcome.rejections += harness.refused(at_fault, "null_pointer_exception", status=500)
        return outcome

    with spoilt(blog, failing) as index, blog.writer(index) as writer:
        report = writer.write(blog.index_of(), ["1", "2", "3"])
    assert (report.indexed, report.dead_lettered) == (2, 1)
    assert blog.sql(harness.DEAD_LETTERS) == [("2", "null_pointer_exception")]
    assert json.loads(blog.syncer("status", "--json").stdout)["documents"][0]["dead_letters"] == 1
