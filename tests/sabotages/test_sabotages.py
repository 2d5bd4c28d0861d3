"""The suite can fail: whatever breaks one rule of the protocol, the oracle finds.

Each test plays the moment that a rule is for, once with syncer as it is and once with a part of `tests.sabotages.parts`
that breaks the rule. In the end every document equals its SELECT, or, with the sabotage, does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pkgutil import resolve_name
from typing import Any

import pytest

from syncer.elasticsearch.bulk import Index
from syncer.indexing.writer import Writer
from syncer.kafka import producer
from syncer.recovery import backlog
from syncer.relay import loop as relay_loop
from syncer.worker.source import OutboxSource
from tests.faults.harness import following, needs_kafka
from tests.sabotages import parts
from tests.sabotages.__main__ import SABOTAGES
from tests.sabotages.parts import KilledError, Spoiled
from tests.support.in_process import handling, let_expire, publish
from tests.support.world import World, wait_until
from tests.support.writers import fill

POST = "UPDATE posts SET title = %s WHERE id = 2"


def test_each_part_that_a_sabotaged_soak_replaces_is_there() -> None:
    """Otherwise such a soak would fail because its daemons do not start."""
    for target in set(chain.from_iterable(SABOTAGES.values())):
        assert resolve_name(target)


@pytest.fixture(params=[False, True], ids=["as_it_is", "sabotaged"])
def is_sabotaged(request: pytest.FixtureRequest) -> bool:
    """Whether the rule is broken."""
    return bool(request.param)


@pytest.fixture
def judged(world: World, is_sabotaged: bool) -> Iterator[World]:
    """A world in which the oracle finds a difference in the end if the rule was broken, and none if it was not."""
    yield world
    assert bool(world.differences()) == is_sabotaged, world.differences()


@pytest.fixture
def plain(judged: World) -> World:
    """A blog without Kafka, all of it handled."""
    judged.uses_kafka = False
    fill(judged)
    judged.sql("INSERT INTO comments (id, post_id, name, comment) VALUES (1, 2, 'John', 'a comment')")
    handle(judged)
    assert judged.differences() == []
    return judged


@pytest.fixture
def receive(is_sabotaged: bool, monkeypatch: pytest.MonkeyPatch) -> Callable[[type[Spoiled]], None]:
    """From now on workers receive changes from a source that breaks a rule, if it is to be broken."""

    def spoil(kind: type[Spoiled]) -> None:
        if is_sabotaged:
            monkeypatch.setattr("syncer.daemon.OutboxSource", parts.spoiled(kind, OutboxSource))

    return spoil


@contextmanager
def index_of(world: World, kind: type[Index] = Index) -> Iterator[Any]:
    """Elasticsearch, as this kind sees it."""
    with world.elasticsearch() as client:
        yield kind(client, bulk_bytes_max=parts.BULK_BYTES_MAX)


def handle(world: World, *, index: type[Index] = Index) -> None:
    """Handle all changes, and do every job."""
    with index_of(world, index) as counted_index, following(world, index=counted_index) as follower:
        follower.handle()
        world.refresh(counted_index)


# What is received

Receive = Callable[[type[Spoiled]], None]


def test_progress_is_saved_after_the_write(plain: World, receive: Receive) -> None:
    """A worker dies between receiving a change and writing it."""
    plain.sql(POST, "new")
    receive(parts.SavesFirst)
    with index_of(plain, parts.Killing) as index, following(plain, index=index) as follower:

        def dies() -> bool:
            try:
                follower.turn()
            except KilledError:
                return True
            return False

        wait_until(dies, what="the worker dies")
    plain.sql("UPDATE posts SET title = 'another' WHERE id = 3")
    handle(plain)


def test_the_cursor_is_a_snapshot(plain: World, receive: Receive) -> None:
    """A transaction takes its id first, and commits last."""
    receive(parts.CursorIsAnId)
    with following(plain) as follower:
        with plain.application() as early:
            early.execute("UPDATE posts SET title = 'early' WHERE id = 1")
            plain.sql(POST, "late")
            wait_until(lambda: follower.turn() > 0, what="the other one is handled")
        follower.handle()


def test_the_old_row_leads_to_documents(plain: World, receive: Receive) -> None:
    """A comment moves from one post to another."""
    receive(parts.NewRowsOnly)
    plain.sql("UPDATE comments SET post_id = 3 WHERE id = 1")
    handle(plain)


def test_a_truncate_touches_every_document(plain: World, receive: Receive) -> None:
    """Rows go without being named."""
    receive(parts.SkipsTruncates)
    plain.sql("TRUNCATE comments")
    handle(plain)


# What Kafka has


@pytest.fixture
def published(judged: World) -> World:
    """A blog whose changes are all published and handled."""
    fill(judged)
    publish(judged, "UPDATE posts SET body = 'handled'")
    with handling(judged):
        judged.wait_until_level()
        wait_until(judged.is_handled, what="everything is handled")
    return judged


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


@needs_kafka
def test_a_gap_in_the_numbers_is_a_loss(published: World, is_sabotaged: bool) -> None:
    """Kafka loses records before they are handled, and the next one arrives."""
    lose(published)
    if is_sabotaged:
        published.sql(parts.EVERY_NUMBER_IS_HANDLED)
    handle_next(published, is_sabotaged=is_sabotaged)


@needs_kafka
def test_no_number_is_used_twice(published: World, is_sabotaged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay dies before it saves the numbers of its records; Kafka loses a record of the next one."""
    numbers = "SELECT sum(number) FROM syncer.partition"
    statement = published.sql(numbers)
    with monkeypatch.context() as dying:
        dying.setattr(producer, "QUIET_SECONDS", 0)
        dying.setattr(backlog, "OutboxReader", parts.DiesBeforeSaving)
        with published.relay() as relay, pytest.raises(KilledError):
            relay.run_once()
    with handling(published):
        wait_until(lambda: published.sql(numbers) > statement, what="the records without a change are handled")
    if is_sabotaged:
        monkeypatch.setattr(relay_loop, "ChangeProducer", parts.OldTerm)
    lose(published)
    handle_next(published, is_sabotaged=is_sabotaged)


@needs_kafka
def test_the_cursor_is_saved_after_the_acknowledgement(
    published: World, is_sabotaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay dies before Kafka has its records."""
    published.sql("UPDATE posts SET body = 'lost' WHERE id = 1")
    with monkeypatch.context() as dying:
        if is_sabotaged:
            dying.setattr(backlog, "OutboxReader", parts.SavesUnacknowledged)
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


@contextmanager
def overtaken(world: World, kind: type[parts.Slow]) -> Iterator[tuple[parts.Slow, Writer]]:
    """A writer that writes a document late, in the end, and another one, which does not."""
    with (
        index_of(world, kind) as slow,
        world.index() as index,
        world.writer(slow) as late,
        world.writer(index) as prompt,
    ):
        yield slow, prompt
        late.write(world.index_of(), ["2"])


def test_a_late_write_does_not_win(plain: World, is_sabotaged: bool) -> None:
    """A writer is overtaken between its read and its write."""
    with overtaken(plain, parts.SlowIgnoringVersions if is_sabotaged else parts.Slow) as (slow, prompt):
        slow.meanwhile = lambda: (plain.sql(POST, "new"), prompt.write(plain.index_of(), ["2"]))


def test_a_late_creation_is_checked(plain: World, is_sabotaged: bool) -> None:
    """A writer is delayed until Elasticsearch has forgotten that its document was deleted."""
    name = plain.index_of()
    with overtaken(plain, parts.HidesCreations if is_sabotaged else parts.Slow) as (slow, prompt):

        def delete_and_forget() -> None:
            plain.sql("DELETE FROM posts WHERE id = 2")
            prompt.write(name, ["2"])
            with plain.elasticsearch() as client:
                client.indices.close(index=name)
                client.indices.open(index=name, wait_for_active_shards=1)

        slow.meanwhile = delete_and_forget


def test_a_failed_request_is_sent_again(plain: World, is_sabotaged: bool) -> None:
    """Elasticsearch does not get a request."""
    plain.sql(POST, "new")
    handle(plain, index=parts.SwallowsFailures if is_sabotaged else parts.FailsOnce)


# Jobs


def test_a_job_removes_orphans(plain: World, is_sabotaged: bool) -> None:
    """Documents go without being named."""
    plain.sql("TRUNCATE posts CASCADE")
    with plain.elasticsearch() as client, following(plain) as follower:
        follower.handle()
        if is_sabotaged:
            follower.index.holdings = parts.FindsNoOrphans(client)
        plain.refresh(follower.index)
