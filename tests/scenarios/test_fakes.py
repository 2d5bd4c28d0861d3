"""Fakes do what the real ones do: each test runs with both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from syncer.base.link import Link
from syncer.base.settings import KafkaSettings
from syncer.kafka import topic
from syncer.kafka.consumer import ChangeConsumer
from syncer.worker.group import Membership
from tests.support.fakes import FakeMembership
from tests.support.in_process import publish
from tests.support.world import World, wait_until

ROWS = 7
_QUIET_SECONDS = 1.0

_Member = FakeMembership | Membership


def one_partition(world: World) -> KafkaSettings:
    """A topic whose order is total."""
    return world.settings.kafka.model_copy(update={"partitions": 1})


@contextmanager
def fake(world: World) -> Iterator[_Member]:
    """A fake that has the same records."""
    values: list[bytes] = []
    with real(world) as member:
        wait_until(lambda: len(received(member, values)) == ROWS, what="all records have come")
    yield FakeMembership(values)


def received(member: _Member, values: list[bytes]) -> list[bytes]:
    """Take what has arrived, and return all that has arrived so far."""
    come = member.receive(records_max=ROWS, wait_seconds=0.1)
    values.extend(come[0].values if come else ())
    return values


@contextmanager
def real(world: World) -> Iterator[_Member]:
    """A member of the group, in Kafka."""
    with world.connect() as connection:
        link = Link(lambda: connection)
        member = Membership(
            consume=lambda on_change: ChangeConsumer(one_partition(world), on_change=on_change),
            link=link,
            pause=time.sleep,
            name="member",
        )
        try:
            yield member
        finally:
            member.leave()


@pytest.fixture(params=[fake, real])
def member(request: pytest.FixtureRequest, empty_world: World) -> Iterator[_Member]:
    """A member of a group whose topic has a few records in one partition."""
    world = empty_world
    topic.make(one_partition(world))
    world.set_up()
    publish(world, f"INSERT INTO users (id, name, email) SELECT g, 'u', 'e' FROM generate_series(1, {ROWS}) AS g")
    joined: Callable[[World], AbstractContextManager[_Member]] = request.param
    with joined(world) as one:
        yield one


def take(member: _Member, records: int) -> list[tuple[int, ...]]:
    """Receive this many records, at most three at a time, without committing; returns the offsets of each batch."""
    batches: list[tuple[int, ...]] = []

    def is_enough() -> bool:
        come = member.receive(records_max=min(3, records - sum(map(len, batches))), wait_seconds=0.1)
        if come is not None:
            assert len(come[0].values) == len(come[1]) <= 3
            batches.append(tuple(offset for _, offset in come[0].places))
        return sum(map(len, batches)) == records

    wait_until(is_enough, what="the records have come")
    return batches


def test_records_come_once_and_in_order(member: _Member) -> None:
    """At most as many at a time as asked for; then none."""
    assert [one for batch in take(member, ROWS) for one in batch] == list(range(ROWS))
    assert member.receive(records_max=3, wait_seconds=_QUIET_SECONDS) is None


def test_a_member_that_rejoins_begins_at_the_committed_offset(member: _Member) -> None:
    """Received is not handled: what was not committed comes again, and what was committed does not."""
    take(member, 2)
    come = None
    while come is None:
        come = member.receive(records_max=1, wait_seconds=0.1)
    member.commit(come[0])
    take(member, 2)
    member.leave()
    assert [one for batch in take(member, ROWS - 3) for one in batch] == list(range(3, ROWS))
