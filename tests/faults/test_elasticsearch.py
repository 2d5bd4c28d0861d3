"""An Elasticsearch that refuses, lies, has no room, is restored or is changed by hand costs time, never a document."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import ApiError, Elasticsearch

from syncer.sandbox import Endpoints, Sandbox
from syncer.sandbox.servers import ElasticsearchServer
from tests.faults.harness import DEAD_LETTERS, require_holds, require_quiet, wait_for_trouble
from tests.support.elasticsearch_proxy import Proxy, cut, emptied, page, refused, swallowed
from tests.support.world import World, elsewhere, sandbox_of_its_own, wait_until
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
    with sandbox_of_its_own() as own:
        own.elasticsearch.settings |= _SETTINGS | {"path.repo": str(own.elasticsearch.folder / "snapshots")}
        own.elasticsearch.start()
        yield own.elasticsearch


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
        yield "inflight_requests"
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


def test_whatever_becomes_of_a_request_it_is_made_again(narrow: World, proxy: Proxy) -> None:
    """Nothing is lost, no document is suspended, and the log says each trouble once."""
    daemon = narrow.daemon()
    narrow.wait_until_level()
    with writing(narrow, writers=2), narrow.elasticsearch() as client:
        for name, fault in ANSWERS.items():
            with proxy.spoiling(fault, times=2):
                wait_until(lambda: proxy.left == 0, what=name, detail=daemon.log_file.read_text)
        for trouble in (no_room, read_only):
            with trouble(client) as words:
                wait_for_trouble(daemon, words)
    require_holds(narrow)
    daemon.wait_for("component.recovered")
    require_quiet(daemon, lines=2 * len(ANSWERS) + 6)
    assert daemon.stop() == 0


def test_a_command_waits_for_room(narrow: World, proxy: Proxy) -> None:
    """What Elasticsearch refuses with 429 was not done, and is asked for again."""
    narrow.backfill()
    with proxy.spoiling(refused(429, "circuit_breaking_exception"), times=2, path="/"):
        done = narrow.syncer("verify")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "larger than the limit" in done.stderr


def test_what_is_too_large_is_split_or_dead_lettered(narrow: World) -> None:
    """Requests are halved until they fit. A document that never fits is dead-lettered, with the limit's name."""
    posts = "INSERT INTO posts (id, user_id, title, body) "
    many = "SELECT g, 1, 'of many', repeat('x', 5000) FROM generate_series(1000, 1999) AS g"
    narrow.sql(posts + many)
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


# It is changed by hand


@pytest.fixture
def blog(world: World) -> World:
    """A world with users and posts, which Elasticsearch has too."""
    fill(world)
    world.backfill()
    return world


def delete_alias(client: Elasticsearch, world: World) -> None:
    """Searches find nothing any more."""
    client.indices.delete_alias(index=world.index_of(), name=world.alias)


def delete_write_alias(client: Elasticsearch, world: World) -> None:
    """Nothing can be written any more."""
    client.indices.delete_alias(index=world.index_of(), name=f"{world.index_of()}-syncer-write")


@pytest.mark.parametrize("by_hand", [delete_alias, delete_write_alias])
def test_an_alias_that_is_deleted_is_given_back(blog: World, by_hand: Callable[[Elasticsearch, World], None]) -> None:
    """`syncer apply` gives the alias back, and writes what was missed meanwhile."""
    daemon = blog.daemon()
    with blog.elasticsearch() as client, writing(blog, writers=2):
        by_hand(client, blog)
        blog.sql("UPDATE users SET name = 'while it is away' WHERE id = 3")
        if by_hand is delete_write_alias:
            daemon.wait_for("document.suspended")
        applied = blog.syncer("apply", "--yes")
    assert applied.returncode == 0, applied.stderr
    assert "aliases" in applied.stdout + applied.stderr
    require_holds(blog)
    assert daemon.stop() == 0
