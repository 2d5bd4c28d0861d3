"""A stalled writer changes nothing: draw, then read, then write, and the greater version wins."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from elasticsearch import Elasticsearch

from syncer import version
from syncer.index import BulkOutcome, Index
from syncer.model import Composition, Target
from syncer.postgres import Connection
from syncer.writer import WriteReport
from tests.harness import DEADLINE_SECONDS, World

CHANGES = {
    "a newer text": "UPDATE posts SET title = 'new' WHERE id = 2",
    "a delete": "DELETE FROM posts WHERE id = 2",
}


class HeldIndex(Index):
    """Elasticsearch at the far end of a connection that stalls after the documents have been read."""

    def __init__(self, client: Elasticsearch) -> None:
        super().__init__(client, bulk_bytes_max=1_000_000)
        self.is_held = threading.Event()
        self.release = threading.Event()

    def write(self, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        """Write once released."""
        self.is_held.set()
        assert self.release.wait(DEADLINE_SECONDS)
        return super().write(target, self.at_last(compositions))

    def at_last(self, compositions: Sequence[Composition]) -> Sequence[Composition]:
        """What is written in the end: what was composed."""
        return compositions


class LateDrawIndex(HeldIndex):
    """The rule taken out: the version is drawn after the read, when the document is written."""

    def __init__(self, client: Elasticsearch, connection: Connection) -> None:
        super().__init__(client)
        self._connection = connection

    def at_last(self, compositions: Sequence[Composition]) -> Sequence[Composition]:
        """The same documents, with a version of now."""
        drawn = version.draw(self._connection)
        return [dataclasses.replace(one, version=drawn) for one in compositions]


@contextmanager
def stalled_writer(world: World, index: HeldIndex) -> Iterator[Callable[[], WriteReport]]:
    """A writer that has read post 2 and stalls; call what is yielded to let it write and see its report."""
    reports: list[WriteReport] = []

    def write() -> None:
        with world.writer(index) as writer:
            reports.append(writer.write(world.index_of(), ["2"]))

    thread = threading.Thread(target=write)
    thread.start()
    assert index.is_held.wait(DEADLINE_SECONDS)

    def resume() -> WriteReport:
        index.release.set()
        thread.join(DEADLINE_SECONDS)
        return reports[0]

    yield resume
    resume()


@pytest.fixture
def blog(world: World) -> World:
    """A world with one post, in Postgres only."""
    world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com')")
    world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (2, 1, 'old', '')")
    return world


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_writer_that_stalls_between_read_and_write_loses(blog: World, change: str) -> None:
    """What was read before a change cannot replace what was read after it."""
    with blog.elasticsearch() as client, blog.index() as index, blog.writer(index) as prompt:
        with stalled_writer(blog, HeldIndex(client)) as resume:
            blog.sql(change)
            prompt.write(blog.index_of(), ["2"])
            assert resume().superseded == 1
        assert blog.differences() == []


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_without_the_rule_the_stalled_writer_wins(blog: World, change: str) -> None:
    """With the draw moved after the read, the same race leaves a stale document."""
    with (
        blog.elasticsearch() as client,
        blog.index() as index,
        blog.writer(index) as prompt,
        blog.connect() as connection,
    ):
        with stalled_writer(blog, LateDrawIndex(client, connection)) as resume:
            blog.sql(change)
            prompt.write(blog.index_of(), ["2"])
            assert resume().superseded == 0
        assert len(blog.differences()) == 1


def test_a_draw_that_has_grown_old_is_not_written(blog: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that slept between draw and write composes again, since tombstones are forgotten in time."""
    moments = iter([0.0, 2000.0])  # the first draw, and the look at its age

    def clock() -> float:
        return next(moments, 2000.0)

    monkeypatch.setattr("syncer.compose.clock", clock)
    monkeypatch.setattr("syncer.writer.clock", clock)
    drawn: list[int] = []
    draw = version.draw

    def recorded(connection: Connection) -> int:
        drawn.append(draw(connection))
        return drawn[-1]

    monkeypatch.setattr("syncer.version.draw", recorded)
    with blog.index() as index, blog.writer(index) as writer:
        assert writer.write(blog.index_of(), ["2"]).indexed == 1
    with blog.elasticsearch() as client:
        client.indices.refresh(index=blog.alias)
        assert client.get(index=blog.alias, id="2")["_version"] == drawn[1]
    assert len(drawn) == 2
