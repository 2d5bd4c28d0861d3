"""The suite can fail: whatever breaks one rule of the protocol, the oracle finds.

Each test plays the moment that a rule is for, once with syncer as it is and once with a part of `tests.sabotages.parts`
that breaks the rule. In the end every document equals its SELECT, or, with the sabotage, does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from syncer.base.postgres import Link
from syncer.elasticsearch.bulk import Index
from syncer.kafka import producer
from syncer.relay import loop as relay_loop
from syncer.worker.loop import Worker
from tests.sabotages import parts
from tests.sabotages.parts import Counting, KilledError
from tests.support.in_process import handling, let_expire, publish
from tests.support.world import World, wait_until
from tests.support.writers import fill

POST = "UPDATE posts SET title = %s WHERE id = 2"


@pytest.fixture(params=[False, True], ids=["as_it_is", "sabotaged"])
def is_sabotaged(request: pytest.FixtureRequest) -> bool:
    """Whether the rule is broken."""
    return bool(request.param)


@pytest.fixture
def plain(world: World) -> World:
    """A blog without Kafka, all of it handled."""
    world.uses_kafka = False
    fill(world)
    world.sql("INSERT INTO comments (id, post_id, name, comment) VALUES (1, 2, 'John', 'a comment')")
    handle(world)
    assert world.differences() == []
    return world


@contextmanager
def index_of(world: World, kind: type[Index] = Index) -> Iterator[Any]:
    """Elasticsearch, as this kind sees it."""
    with world.elasticsearch() as client:
        yield kind(client, bulk_bytes_max=parts.BULK_BYTES_MAX)


@contextmanager
def worker_of(world: World, index: Index, kind: type[Counting] = Counting) -> Iterator[tuple[Worker, Counting]]:
    """A worker, and its source."""
    made: list[Counting] = []

    def source(link: Link, pause: Callable[[float], None]) -> Counting:
        made.append(kind(world.source(link, pause)))
        return made[0]

    worker = Worker(connect=world.connect, source=source, index=index, settings=world.settings.worker)
    try:
        yield worker, made[0]
    finally:
        worker.close()


def handle(world: World, kind: type[Counting] = Counting, *, index: type[Index] = Index) -> None:
    """Handle all changes, and do every job."""
    with index_of(world, index) as seen, worker_of(world, seen, kind) as (worker, source):
        finish(world, worker, source)
        world.refresh(seen)


def finish(world: World, worker: Worker, source: Counting) -> None:
    """Turn a worker until it has saved what is committed."""
    before, newest = source.saved, world.sql("SELECT pg_snapshot_xmin(pg_current_snapshot())")[0][0]

    def is_saved() -> bool:
        worker.run_once()
        (saved,) = world.sql("SELECT pg_snapshot_xmax(snapshot) FROM syncer.cursor ORDER BY id DESC LIMIT 1")[0]
        return source.saved > before and int(saved) >= int(newest)

    wait_until(is_saved, what="what is committed is saved")


def check(world: World, *, is_sabotaged: bool) -> None:
    """The oracle finds a difference if the rule was broken, and none if it was not."""
    assert bool(world.differences()) == is_sabotaged, world.differences()


# What is received


def test_progress_is_saved_after_the_write(plain: World, is_sabotaged: bool) -> None:
    """A worker dies between receiving a change and writing it."""
    plain.sql(POST, "new")
    source = parts.SavesFirst if is_sabotaged else Counting
    with index_of(plain, parts.Killing) as index, worker_of(plain, index, source) as (worker, _):

        def dies() -> bool:
            try:
                worker.run_once()
            except KilledError:
                return True
            return False

        wait_until(dies, what="the worker dies")
    plain.sql("UPDATE posts SET title = 'another' WHERE id = 3")
    handle(plain)
    check(plain, is_sabotaged=is_sabotaged)


def test_the_cursor_is_a_snapshot(plain: World, is_sabotaged: bool) -> None:
    """A transaction takes its id first, and commits last."""
    source = parts.CursorIsAnId if is_sabotaged else Counting
    with index_of(plain) as index, worker_of(plain, index, source) as (worker, counting):
        with plain.application() as early:
            early.execute("UPDATE posts SET title = 'early' WHERE id = 1")
            plain.sql(POST, "late")
            wait_until(lambda: worker.run_once() > 0, what="the other one is handled")
        finish(plain, worker, counting)
    check(plain, is_sabotaged=is_sabotaged)


def test_the_old_row_leads_to_documents(plain: World, is_sabotaged: bool) -> None:
    """A comment moves from one post to another."""
    plain.sql("UPDATE comments SET post_id = 3 WHERE id = 1")
    handle(plain, parts.NewRowsOnly if is_sabotaged else Counting)
    check(plain, is_sabotaged=is_sabotaged)


def test_triggers_capture_the_old_row(plain: World, is_sabotaged: bool) -> None:
    """The same, as far as the outbox tells."""
    if is_sabotaged:
        plain.sql(parts.OLD_IS_NEW)
    plain.sql("UPDATE comments SET post_id = 3 WHERE id = 1")
    handle(plain)
    check(plain, is_sabotaged=is_sabotaged)


def test_a_truncate_touches_every_document(plain: World, is_sabotaged: bool) -> None:
    """Rows go without being named."""
    plain.sql("TRUNCATE comments")
    handle(plain, parts.SkipsTruncates if is_sabotaged else Counting)
    check(plain, is_sabotaged=is_sabotaged)


# What Kafka has


@pytest.fixture
def published(world: World) -> World:
    """A blog whose changes are all published and handled."""
    fill(world)
    publish(world, "UPDATE posts SET body = 'handled'")
    with handling(world):
        world.wait_until_level()
        wait_until(world.is_handled, what="everything is handled")
    return world


def lose(world: World) -> None:
    """Have Kafka lose a change that is not handled."""
    publish(world, "UPDATE posts SET body = 'lost' WHERE id = 1")
    let_expire(world)


def handle_next(world: World, *, is_sabotaged: bool) -> None:
    """Handle changes in all partitions that follow a lost one, and what is found of the loss."""
    publish(world, "UPDATE posts SET title = 'found' WHERE id <> 1")
    with handling(world):
        wait_until(lambda: world.held()["2"]["title"] == "found", what="the next change is written")
        wait_until(world.is_handled, what="everything counts as handled")
        if not is_sabotaged:
            world.wait_until_level()
    check(world, is_sabotaged=is_sabotaged)


def test_a_gap_in_the_numbers_is_a_loss(published: World, is_sabotaged: bool) -> None:
    """Kafka loses records before they are handled, and the next one arrives."""
    lose(published)
    if is_sabotaged:
        published.sql(parts.EVERY_NUMBER_IS_HANDLED)
    handle_next(published, is_sabotaged=is_sabotaged)


def test_no_number_is_used_twice(published: World, is_sabotaged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay dies before it saves the numbers of its records; Kafka loses a record of the next one."""
    numbers = "SELECT sum(number) FROM syncer.partition"
    before = published.sql(numbers)
    with monkeypatch.context() as dying:
        dying.setattr(producer, "QUIET_SECONDS", 0)
        dying.setattr(relay_loop, "OutboxReader", parts.DiesBeforeSaving)
        with published.relay() as relay, pytest.raises(KilledError):
            relay.run_once()
    with handling(published):
        wait_until(lambda: published.sql(numbers) > before, what="the records without a change are handled")
    if is_sabotaged:
        monkeypatch.setattr(relay_loop, "ChangeProducer", parts.OldTerm)
    lose(published)
    handle_next(published, is_sabotaged=is_sabotaged)


def test_the_cursor_is_saved_after_the_acknowledgement(
    published: World, is_sabotaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay dies before Kafka has its records."""
    published.sql("UPDATE posts SET body = 'lost' WHERE id = 1")
    with monkeypatch.context() as dying:
        if is_sabotaged:
            dying.setattr(relay_loop, "OutboxReader", parts.SavesUnacknowledged)
        dying.setattr(relay_loop, "ChangeProducer", parts.DiesBeforeSending)
        with published.relay() as relay, pytest.raises(KilledError):
            relay.run_once()
    handle_next(published, is_sabotaged=is_sabotaged)


# What is written


def test_a_version_belongs_to_a_snapshot(plain: World, is_sabotaged: bool) -> None:
    """A writer has read, another one writes a newer state, and only then the first one is assigned its version."""
    connect = parts.reads_first(plain.connect) if is_sabotaged else plain.connect
    with index_of(plain) as index, plain.writer(index, connect=connect) as late, plain.writer(index) as prompt:
        plain.sql(POST, "new")
        prompt.write(plain.index_of(), ["2"])
        late.write(plain.index_of(), ["2"])
    check(plain, is_sabotaged=is_sabotaged)


def test_a_late_write_does_not_win(plain: World, is_sabotaged: bool) -> None:
    """A writer is overtaken between its read and its write."""
    kind = parts.SlowIgnoringVersions if is_sabotaged else parts.Slow
    with (
        index_of(plain, kind) as slow,
        index_of(plain) as index,
        plain.writer(slow) as late,
        plain.writer(index) as prompt,
    ):
        slow.meanwhile = lambda: (plain.sql(POST, "new"), prompt.write(plain.index_of(), ["2"]))
        late.write(plain.index_of(), ["2"])
    check(plain, is_sabotaged=is_sabotaged)


def test_a_late_creation_is_checked(plain: World, is_sabotaged: bool) -> None:
    """A writer is delayed until Elasticsearch has forgotten that its document was deleted."""
    name = plain.index_of()
    with (
        index_of(plain, parts.HidesCreations if is_sabotaged else parts.Slow) as slow,
        index_of(plain) as index,
        plain.writer(slow) as late,
        plain.writer(index) as prompt,
        plain.elasticsearch() as client,
    ):

        def delete_and_forget() -> None:
            plain.sql("DELETE FROM posts WHERE id = 3")
            prompt.write(name, ["3"])
            client.indices.close(index=name)
            client.indices.open(index=name, wait_for_active_shards=1)

        slow.meanwhile = delete_and_forget
        late.write(name, ["3"])
    check(plain, is_sabotaged=is_sabotaged)


def test_a_failed_request_is_sent_again(plain: World, is_sabotaged: bool) -> None:
    """Elasticsearch does not get a request."""
    plain.sql(POST, "new")
    handle(plain, index=parts.SwallowsFailures if is_sabotaged else parts.FailsOnce)
    check(plain, is_sabotaged=is_sabotaged)


# Jobs


def test_a_listing_is_complete(plain: World, is_sabotaged: bool) -> None:
    """A backfill repairs documents whose changes were not captured."""
    if is_sabotaged:
        plain.sql(parts.LAST_IDS_ARE_LOST)
    plain.sql("SET session_replication_role = replica; UPDATE posts SET body = 'not captured'")
    plain.backfill()
    check(plain, is_sabotaged=is_sabotaged)


def test_a_job_removes_orphans(plain: World, is_sabotaged: bool) -> None:
    """Documents go without being named."""
    plain.sql("TRUNCATE posts CASCADE")
    with index_of(plain) as index, worker_of(plain, index) as (worker, source):
        finish(plain, worker, source)
        if is_sabotaged:
            with plain.elasticsearch() as client:
                index.holdings = parts.FindsNoOrphans(client)
                plain.refresh(index)
        else:
            plain.refresh(index)
    check(plain, is_sabotaged=is_sabotaged)
