"""Locks in Elasticsearch: one owner at a time, in the order of terms, despite kills, freezes and delays."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from syncer.base.errors import LockLostError
from syncer.sandbox import Endpoints
from tests.support.locking import violations
from tests.support.locking.crowd import crowd, settled
from tests.support.locking.locker import LEASE_SECONDS
from tests.support.locking.owners import held_up, lockers
from tests.support.locking.pair import pair_index, set_pair, values
from tests.support.world import DEADLINE_SECONDS


@pytest.fixture
def index(endpoints: Endpoints) -> Iterator[str]:
    """An index with two documents that are equal."""
    with pair_index(endpoints.elasticsearch_url) as name:
        yield name


def test_who_comes_back_from_the_dead_changes_nothing(
    endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had begun is rolled back before the next one gets the lock; its own write is too late."""
    with lockers(endpoints, index) as (first, second), ThreadPoolExecutor() as pool:
        come, go = held_up(monkeypatch, first, "write")

        def change() -> None:
            with first.everything() as held:
                set_pair(held, index, 7)

        late = pool.submit(change)
        assert come.wait(DEADLINE_SECONDS)
        with second.everything() as held:
            go.set()
            with pytest.raises(LockLostError):
                late.result()
            assert values(second._client, index) == (0, 0)
            set_pair(held, index, 8)
            assert values(second._client, index) == (8, 8)


def test_who_was_taken_for_dead_begins_nothing(
    endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clock may even stand still: it finds out from Elasticsearch, before any document is written."""
    with lockers(endpoints, index) as (first, second), ThreadPoolExecutor() as pool:
        come, go = held_up(monkeypatch, first, "read")

        def change() -> None:
            with first.everything() as held:
                first._lease._renewed_at = float("inf")  # a clock that stands still
                set_pair(held, index, 7)

        late = pool.submit(change)
        assert come.wait(DEADLINE_SECONDS)
        with second.everything():
            go.set()
            with pytest.raises(LockLostError):
                late.result()
            assert values(second._client, index) == (0, 0)


def test_who_is_being_buried_is_not_told_that_its_change_is_made(
    endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has written both documents before its successor rolls them back: that must not pass for done."""
    with lockers(endpoints, index) as (first, second), ThreadPoolExecutor() as pool:
        come, go = held_up(monkeypatch, first, "write")
        buries, go_on = held_up(monkeypatch, second, "write")

        def change() -> None:
            with first.everything() as held:
                set_pair(held, index, 7)

        def take_over() -> tuple[int, ...]:
            with second.everything():
                return values(second._client, index)

        late = pool.submit(change)
        assert come.wait(DEADLINE_SECONDS)
        next_one = pool.submit(take_over)
        assert buries.wait(DEADLINE_SECONDS)
        first._lease._renewed_at = float("inf")  # a clock that stands still
        go.set()
        try:
            with pytest.raises(LockLostError):
                late.result()
        finally:
            go_on.set()
        assert next_one.result() == (0, 0)


@pytest.mark.parametrize("kind", ["global", "document", "tree"])
def test_one_at_a_time_whoever_dies_or_stands_still(
    endpoints: Endpoints, index: str, kind: str, tmp_path: Path
) -> None:
    """What they read and wrote could have been done one after the other, in the order of their terms."""
    with crowd(endpoints, index, kind, tmp_path) as lockers:
        lockers.wait_for(2)
        for trouble in range(2):
            if trouble % 2:
                lockers.kill()
            else:
                with lockers.stalled():
                    time.sleep(2 * LEASE_SECONDS)
            lockers.wait_for(2)
    turns = lockers.turns()
    assert len(turns) > 2
    assert violations(turns, settled(endpoints.elasticsearch_url, index)) == []
