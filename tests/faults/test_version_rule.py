"""A stalled writer changes nothing: draw, then read, then write, and the greater version wins."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from elasticsearch import Elasticsearch

from syncer import version
from syncer.index import BulkOutcome, Index
from syncer.model import Composition, Target
from syncer.postgres import Connection
from syncer.reading import require_shape
from syncer.store import Document
from syncer.writer import WriteReport
from tests.faults.rules import DRAWN_IN_TURN, DRAWN_WITH_THE_SNAPSHOT, WRITTEN_WITH_THE_DRAW
from tests.harness import DEADLINE_SECONDS, World
from tests.proof import Rule, faces

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


@faces(
    "a writer stalls between reading and writing, while a change is written by another",
    promises=(1, 2, 3),
    without=WRITTEN_WITH_THE_DRAW,
)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_writer_that_stalls_between_read_and_write_loses(blog: World, change: str) -> None:
    """What was read before a change cannot replace what was read after it."""
    with blog.elasticsearch() as client, blog.index() as index, blog.writer(index) as prompt:
        with stalled_writer(blog, HeldIndex(client)) as resume:
            blog.sql(change)
            prompt.write(blog.index_of(), ["2"])
            assert resume().superseded == 1
        assert blog.differences() == []


@faces(
    "a change is made and written by another while a writer is reading",
    promises=(1, 2, 3),
    without=DRAWN_WITH_THE_SNAPSHOT,
)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_that_comes_while_others_read_wins(blog: World, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose snapshot is older has drawn before, so that he loses, whoever writes last."""
    with blog.index() as index, blog.writer(index) as late, blog.writer(index) as prompt:

        def change_meanwhile(connection: Connection, document: Document) -> None:
            monkeypatch.setattr("syncer.compose.require_shape", require_shape)
            blog.sql(change)
            prompt.write(document.index_name, ["2"])
            require_shape(connection, document)

        monkeypatch.setattr("syncer.compose.require_shape", change_meanwhile)
        late.write(blog.index_of(), ["2"])
    assert blog.differences() == []


@faces("writers of one document race, while it changes all the time", promises=(2,), without=DRAWN_IN_TURN)
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
                connection.execute("UPDATE posts SET title = $1 WHERE id = 2", (str(state),))
                is_enough = state >= STATES and len(set(seen)) > STATES / 20  # Postgres may be much the quicker
                if is_enough or time.monotonic() > deadline:
                    break
        finally:
            over.set()
        for one in racing:
            one.result()
    assert len(set(seen)) > STATES / 20
    assert seen == sorted(seen)


@faces(
    "a writer sleeps for longer than Elasticsearch remembers a delete",
    promises=(2, 3),
    without=Rule(
        "what was drawn too long ago is composed anew",
        module="syncer.writer",
        text="while clock() - batch.drawn_at > DRAW_AGE_SECONDS_MAX:",
        instead="while False:",
    ),
)
def test_a_draw_that_has_grown_old_is_not_written(blog: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that slept between draw and write composes again, since tombstones are forgotten in time."""
    with blog.index() as index, blog.writer(index) as writer:
        writer.write(blog.index_of(), ["2"])  # so that it is not for creating it that it is written again
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
    assert len(drawn) == 2
    with blog.elasticsearch() as client:
        client.indices.refresh(index=blog.alias)
        assert client.get(index=blog.alias, id="2")["_version"] == drawn[1]
