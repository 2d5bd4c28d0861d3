"""Waiting for a lock, or holding it, while others die and Elasticsearch does not answer: no process waits forever."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest
from elasticsearch import ConnectionError as NoConnectionError, Elasticsearch

from syncer.base.errors import LockLostError, LockTimeoutError
from syncer.locks import Locks, names
from syncer.locks.names import Mode
from syncer.sandbox import Endpoints
from tests.support.elasticsearch_proxy import Forward, Proxy
from tests.support.locking.owners import fail_at, lockers, stall
from tests.support.locking.pair import pair_index, set_pair, values
from tests.support.world import DEADLINE_SECONDS, wait_until

SHORT = 0.5


@pytest.fixture
def index(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An index with two documents that are equal, each a page of its own; the first owner's lease is short."""
    monkeypatch.setattr("syncer.locks.held._PAGE_CHANGES_MAX", 1)
    monkeypatch.setattr("tests.support.locking.owners.LEASE", 1.0)
    with pair_index(endpoints.elasticsearch_url) as name:
        yield name


def test_who_never_waits_finds_out_who_is_dead(endpoints: Endpoints, index: str) -> None:
    """A worker that goes through a list of tasks, and skips what others have, does what the dead have left."""
    with (
        lockers(endpoints, index) as (first, second),
        Locks(second._client, owner="third", index=f"{index}-locks", lease_seconds=1) as third,
        ExitStack() as dead,
    ):
        for one, locks in (("1", first), ("2", third)):
            dead.enter_context(pytest.raises(LockLostError))
            dead.enter_context(locks.documents(index, [one]))
            stall(locks)
        had: set[str] = set()

        def are_had() -> bool:
            for one in ("1", "2"):
                with suppress(LockTimeoutError), second.documents(index, [one], timeout=0):
                    had.add(one)
            return had == {"1", "2"}

        wait_until(are_had, what="both are had")


def test_who_loses_its_lease_while_it_waits_is_granted_nothing(
    endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had taken before was somebody else's share, who has left: others may have it by now."""
    with lockers(endpoints, index, other_lease=1) as (first, second):
        look = second._watch.look

        def look_and_stand_still(holders: set[str]) -> list[str]:
            if dead := look(holders):
                stall(second)
                wait_until(lambda: second._lease.is_over, what="its lease is over")
            return dead

        monkeypatch.setattr(second._watch, "look", look_and_stand_still)
        with first.documents(index, ["2"]):
            stall(first)
            with pytest.raises(LockLostError), second.documents(index, ["1", "2"]):
                pytest.fail("it has both")


def test_waiting_ends_in_time_though_elasticsearch_takes_nothing(
    endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is not had, and said to be not had; later another owner rolls back what was begun."""
    with lockers(endpoints, index) as (first, second), ThreadPoolExecutor() as pool:
        fail_at(monkeypatch, first._fence, "write", KeyboardInterrupt(), turn=2, ever=True)
        with pytest.raises(KeyboardInterrupt), first.everything() as held:
            set_pair(held, index, 7)
        first._lease.close()
        block = "index.blocks.read_only_allow_delete"
        second._client.indices.put_settings(index=index, settings={block: True})

        def take() -> tuple[int, ...]:
            with second.everything(timeout=SHORT):
                return values(second._client, index)

        try:
            with pytest.raises(LockTimeoutError, match="did not do what it was asked for in time"):
                pool.submit(take).result(DEADLINE_SECONDS / 4)
        finally:
            second._client.indices.put_settings(index=index, settings={block: None})
        assert take() == (0, 0)


def test_one_answer_that_never_comes_costs_no_lease(endpoints: Endpoints, index: str) -> None:
    """The connection hangs, Elasticsearch does not: the next request gets through in time."""
    lease, given_up = 2.0, threading.Event()

    def hang(forward: Forward) -> None:
        forward()
        given_up.wait(DEADLINE_SECONDS)

    with (
        Proxy(endpoints.elasticsearch_url).running() as proxy,
        Elasticsearch(proxy.address) as client,
        Locks(client, owner="first", index=f"{index}-locks", lease_seconds=lease) as locks,
        locks.everything() as held,
        proxy.spoiling(hang, times=1, path="/_doc/holder:"),
    ):
        wait_until(lambda: proxy.is_through, what="a renewal hangs")
        until = time.monotonic() + 1.5 * lease

        def is_held_so_long() -> bool:
            held.require()
            return time.monotonic() > until

        try:
            wait_until(is_held_so_long, what="it is held for longer than a lease")
        finally:
            given_up.set()


def test_who_cannot_know_whether_it_was_alone_is_told_so(
    endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else may have had the lock since: what was read under it may be old."""
    with lockers(endpoints, index) as (first, _), ExitStack() as held:
        held.enter_context(pytest.raises(LockLostError))
        held.enter_context(first.everything())
        stall(first)
        wait_until(lambda: first._lease.is_over, what="its lease is over")
        fail_at(monkeypatch, first._registry.entries, "give_back", NoConnectionError("it is away"))


def test_who_takes_no_notice_is_told_at_the_end(
    endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has lost its locks: others roll the change back."""
    with lockers(endpoints, index) as (first, _):
        fail_at(monkeypatch, first._fence, "write", RuntimeError("broken off"), turn=2, ever=True)
        with pytest.raises(LockLostError), first.everything() as held, suppress(RuntimeError):
            set_pair(held, index, 7)


def test_a_lock_that_was_asked_for_and_interrupted_is_free(
    endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though whoever asked lives, and asks for other locks."""
    with lockers(endpoints, index) as (first, second):
        entries, holder = first._registry.entries, first._lease.id
        with monkeypatch.context() as patched:
            fail_at(patched, entries, "take", KeyboardInterrupt())
            with pytest.raises(KeyboardInterrupt), first.everything():
                pass
        assert entries.take(holder, [(lock, Mode.EXCLUSIVE) for lock in names.everything("everything")]) == {}
        with first.documents(index, ["1"]), second.everything(timeout=DEADLINE_SECONDS / 4):
            pass
