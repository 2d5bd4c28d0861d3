"""Writers stall, are overtaken, refused or die: the greater version wins, and nothing counts before it is written."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from syncer.base.errors import DocumentError
from syncer.base.model import Composition, Target
from syncer.base.settings import WorkerSettings
from syncer.elasticsearch.bulk import BulkOutcome
from syncer.worker.job_loop import JobWorker
from tests.faults import harness
from tests.faults.harness import Hold, Write, require_holds, spoilt, stalled_writer
from tests.support.routing import put_routing, put_shards, shards, users_on_two_shards, verified
from tests.support.world import DEADLINE_SECONDS, World, running

DELETE = "DELETE FROM posts WHERE id = 2"
WRITERS, STATES = 3, 400


@pytest.fixture
def blog(world: World) -> World:
    """Posts 1 to 3, in Postgres only."""
    harness.add_posts(world, 3)
    return world


# A writer has read a document, and others write it before it does


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


def test_a_writer_that_stalls_before_a_move_leaves_no_copy_on_the_other_shard(routed: World) -> None:
    """What was read under the old routing does not come back beside what was written under the new one."""
    with routed.index() as index, routed.writer(index) as prompt:
        here, there = users_on_two_shards(shards(routed, index))
        for id_, (name, changes) in enumerate(MOVES.items()):
            routed.sql("INSERT INTO posts (id, user_id, title, body) VALUES (%s, %s, 'old', '')", id_, here)
            with stalled_writer(routed, Hold(), str(id_)) as resume:
                for change in changes:
                    routed.sql(change.format(here=here, there=there, id=id_))
                    prompt.write(routed.index_of(), [str(id_)])
                assert resume().skipped == 1, name
            assert routed.differences() == [], name
    assert verified(routed).holds


def test_a_deleted_document_does_not_come_back_with_a_suspension(blog: World) -> None:
    """The index takes one document late and refuses another: both are written again when it is resumed."""
    name = blog.index_of()

    def late(write: Write, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        blog.sql(DELETE)
        prompt.write(name, ["2"])
        client.indices.close(index=name)  # Elasticsearch forgets the version of what it has deleted
        client.indices.open(index=name, wait_for_active_shards=1)
        outcome = write(target, [each for each in compositions if each.id != "3"])
        outcome.rejections += harness.refused(
            [each for each in compositions if each.id == "3"], "unavailable_shards_exception", status=503
        )
        return outcome

    with (
        blog.elasticsearch() as client,
        blog.index() as index,
        blog.writer(index) as prompt,
        spoilt(blog, late) as spoiled,
        blog.writer(spoiled) as writer,
    ):
        with pytest.raises(DocumentError) as raised:
            writer.write(name, ["1", "2", "3"])
        assert raised.value.is_stale
        assert "2" in blog.held()
        with running(JobWorker(connect=blog.connect, index=index)):
            blog.wait_until_level()


# Another client raises versions


@pytest.mark.parametrize("times", [1, 256])
def test_a_version_that_another_client_raises_keeps_no_change_from_being_written(blog: World, times: int) -> None:
    """On a quiet system, _update_by_query gives a document the versions that come next; also while it is written."""

    def raise_versions() -> None:
        if times == 1:
            client.indices.refresh(index=blog.alias)  # a query finds what searches find
            client.indices.refresh(index=blog.alias)  # else it finds versions that are no longer there
            client.update_by_query(index=blog.alias)
            return
        for id_ in ("1", "2", "3"):  # what so many of them come to
            held = client.get(index=blog.alias, id=id_).body
            version = int(held["_version"]) + times
            client.index(index=blog.alias, id=id_, document=held["_source"], version=version, version_type="external")

    with blog.index() as index, blog.elasticsearch() as client, blog.writer(index) as writer:
        writer.write(blog.index_of(), ["1", "2", "3"])
        raise_versions()
        for id_ in ("1", "2", "3"):
            blog.sql("UPDATE posts SET title = 'raised before' WHERE id = %s", id_)
            assert writer.write(blog.index_of(), [id_]).indexed == 1
        blog.sql("UPDATE posts SET title = 'raised in flight' WHERE id = 2")
        with stalled_writer(blog, Hold()) as resume:
            raise_versions()
            assert resume().indexed == 1
    require_holds(blog)


def test_a_reader_never_sees_an_earlier_state(blog: World) -> None:
    """Not even one that is earlier than a state whose change nobody has handled yet."""
    over = threading.Event()
    seen: list[int] = []
    blog.sql("UPDATE posts SET title = '0' WHERE id = 2")
    with blog.index() as index, blog.writer(index) as writer:
        writer.write(blog.index_of(), ["2"])

    def write() -> None:
        with blog.index() as index, blog.writer(index) as writer:
            while not over.is_set():
                writer.write(blog.index_of(), ["2"])

    def look() -> None:
        with blog.elasticsearch() as client:
            while not over.is_set():
                seen.append(int(client.get(index=blog.alias, id="2", realtime=True)["_source"]["title"]))

    with ThreadPoolExecutor(WRITERS + 1) as threads, blog.connect() as connection:
        racing = [threads.submit(work) for work in (*[write] * WRITERS, look)]
        deadline = time.monotonic() + DEADLINE_SECONDS
        try:
            for state in itertools.count(1):
                connection.execute("UPDATE public.posts SET title = $1 WHERE id = 2", (str(state),))
                is_enough = state >= STATES and len(set(seen)) > STATES / 20  # Postgres may be much the quicker
                if is_enough or time.monotonic() > deadline:
                    break
        finally:
            over.set()
        for each in racing:
            each.result()
    assert len(set(seen)) > STATES / 20
    assert seen == sorted(seen)


# Progress


def test_what_a_busy_elasticsearch_refuses_is_sent_again(world: World) -> None:
    """Whole requests, and single documents of others: neither workers nor jobs lose one, or count it twice."""
    harness.add_posts(world, 60)
    seen: set[str] = set()
    turn = itertools.count()

    def busy(write: Write, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        if next(turn) % 3 == 0:
            raise harness.too_many_requests()
        new = [each for each in compositions if each.id not in seen]
        seen.update(each.id for each in new)
        outcome = write(target, [each for each in compositions if each not in new])
        outcome.rejections += harness.refused(new, "es_rejected_execution_exception")
        return outcome

    with world.relay() as relay, spoilt(world, busy) as index, world.connect() as connection:
        relay.run_once()
        with world.worker(index) as worker:
            world.handle(worker)
        assert world.differences() == []
        seen.clear()
        with running(JobWorker(connect=world.connect, index=index, settings=WorkerSettings(batch_documents_max=20))):
            job = harness.wait_done(connection, harness.create(connection))
    assert (job.indexed + job.skipped, job.dead_lettered) == (60, 0)
    assert next(turn) > 5
    require_holds(world)


def test_a_document_at_which_elasticsearch_fails_holds_up_no_other(blog: World) -> None:
    """Its siblings are written at once; after some attempts it is dead-lettered, so that those behind it continue."""

    def failing(write: Write, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        outcome = write(target, [each for each in compositions if each.id != "2"])
        at_fault = [each for each in compositions if each.id == "2"]
        outcome.rejections += harness.refused(at_fault, "null_pointer_exception", status=500)
        return outcome

    with spoilt(blog, failing) as index, blog.writer(index) as writer:
        report = writer.write(blog.index_of(), ["1", "2", "3"])
    assert (report.indexed, report.dead_lettered) == (2, 1)
    assert blog.sql(harness.DEAD_LETTERS) == [("2", "null_pointer_exception")]
    assert json.loads(blog.syncer("status", "--json").stdout)["documents"][0]["dead_letters"] == 1
