"""A stalled writer changes nothing: assign, then read, then write, and the greater version wins."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from syncer.base.model import Composition, Target
from syncer.base.write_report import WriteReport
from syncer.elasticsearch.bulk import BulkOutcome, Index
from syncer.indexing.compose import Composer
from tests.support.world import DEADLINE_SECONDS, World

CHANGES = {
    "a newer text": "UPDATE posts SET title = 'new' WHERE id = 2",
    "a delete": "DELETE FROM posts WHERE id = 2",
}


WRITERS = 3
STATES = 1000


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
        return super().write(target, compositions)


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


@pytest.mark.parametrize("times", [1, 255, 256, 300])
def test_a_raised_version_keeps_no_change_from_being_written(world: World, times: int) -> None:
    """On a quiet system, _update_by_query gives a document the versions that come next; each change still shows."""
    ids = ["1", "2", "3"]
    world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com')")
    with world.index() as index, world.elasticsearch() as client, world.writer(index) as writer:
        for id_ in ids:
            world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (%s, 1, 'old', '')", id_)
            writer.write(world.index_of(), [id_])
        for state in range(5 if times == 1 else 1):
            for _ in range(times):
                client.update_by_query(index=world.alias, refresh=True)
            for id_ in ids:
                world.sql("UPDATE posts SET title = %s WHERE id = %s", f"state {state}", id_)
                report = writer.write(world.index_of(), [id_])
                assert (report.documents, report.indexed) == (1, 1)
            assert not world.differences()


def test_a_version_raised_in_flight_keeps_no_change_from_being_written(blog: World) -> None:
    """Another client raises the version between a writer's read and its write, to exactly the writer's own."""
    with blog.elasticsearch() as client, blog.index() as plain, blog.writer(plain) as first:
        first.write(blog.index_of(), ["2"])
        blog.sql("UPDATE posts SET title = 'new' WHERE id = 2")
        held = HeldIndex(client)
        with stalled_writer(blog, held) as resume:
            for _ in range(256):
                client.update_by_query(index=blog.alias, refresh=True)
            assert resume().indexed == 1
    assert not blog.differences()


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_writer_that_stalls_between_read_and_write_loses(blog: World, change: str) -> None:
    """What was read before a change cannot replace what was read after it."""
    with blog.elasticsearch() as client, blog.index() as index, blog.writer(index) as prompt:
        with stalled_writer(blog, HeldIndex(client)) as resume:
            blog.sql(change)
            prompt.write(blog.index_of(), ["2"])
            assert resume().skipped == 1
        assert blog.differences() == []


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_that_comes_while_others_read_wins(blog: World, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose snapshot is older has assigned before, so that he loses, whoever writes last."""
    answers = Composer._answers
    changes = [change]

    with blog.index() as index, blog.writer(index) as late, blog.writer(index) as prompt:

        def change_meanwhile(self: Composer, text: str) -> Iterator[list[Any]]:
            read = list(answers(self, text))
            if changes:
                blog.sql(changes.pop())
                prompt.write(blog.index_of(), ["2"])
            yield from read

        monkeypatch.setattr(Composer, "_answers", change_meanwhile)
        late.write(blog.index_of(), ["2"])
    assert blog.differences() == []


def test_who_looks_never_sees_an_earlier_state(blog: World) -> None:
    """Not even one that is earlier than a state whose change nobody has handled yet."""
    over = threading.Event()
    seen: list[int] = []

    def write() -> None:
        with blog.index() as index, blog.writer(index) as writer:
            while not over.is_set():
                writer.write(blog.index_of(), ["2"])

    def look() -> None:
        with blog.elasticsearch() as client:
            while not over.is_set():
                seen.append(int(client.get(index=blog.alias, id="2", realtime=True)["_source"]["title"]))

    blog.sql("UPDATE posts SET title = '0' WHERE id = 2")
    with blog.index() as index, blog.writer(index) as writer:
        writer.write(blog.index_of(), ["2"])
    with ThreadPoolExecutor(WRITERS + 1) as threads, blog.connect() as connection:
        racing = [threads.submit(work) for work in (*[write] * WRITERS, look)]
        try:
            deadline = time.monotonic() + DEADLINE_SECONDS
            for state in itertools.count(1):
                connection.execute("UPDATE public.posts SET title = $1 WHERE id = 2", (str(state),))
                is_enough = state >= STATES and len(set(seen)) > STATES / 20  # Postgres may be much the quicker
                if is_enough or time.monotonic() > deadline:
                    break
        finally:
            over.set()
        for one in racing:
            one.result()
    assert len(set(seen)) > STATES / 20
    assert seen == sorted(seen)
