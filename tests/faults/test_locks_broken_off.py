"""Changes under a lock that are broken off, refused, sent twice or too late: all of a change is made, or nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from elasticsearch import ConnectionError as NoConnectionError, ConnectionTimeout, Elasticsearch

from syncer.base.errors import LockError, LockLostError
from syncer.locks import Edit, Locks
from syncer.locks.intents import Intent
from syncer.locks.names import Mode
from syncer.locks.registry import ensure
from syncer.sandbox import Endpoints
from tests.support.locking import PAIR
from tests.support.locking.owners import fail_at, held_up, lockers
from tests.support.locking.pair import pair_index, set_pair, values
from tests.support.world import DEADLINE_SECONDS, wait_until


@pytest.fixture
def index(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An index with two documents that are equal; each is a page of its own."""
    monkeypatch.setattr("syncer.locks.held._PAGE_CHANGES_MAX", 1)
    with pair_index(endpoints.elasticsearch_url) as name:
        yield name


def pages(client: Elasticsearch, index: str) -> int:
    """How many pages of intents are kept."""
    client.indices.refresh(index=f"{index}-locks-intents")
    return int(client.count(index=f"{index}-locks-intents")["count"])


def test_a_change_that_is_broken_off_is_rolled_back(
    endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has the lock before it is; nothing of it is kept; and who broke it off can lock again."""
    with lockers(endpoints, index) as (first, second):
        with monkeypatch.context() as patched:
            fail_at(patched, first._fence, "write", KeyboardInterrupt(), turn=2, ever=True)
            with suppress(KeyboardInterrupt), first.everything() as held:
                try:
                    set_pair(held, index, 7)
                finally:
                    with pytest.raises(LockLostError):
                        set_pair(held, index, 8)
        with second.everything():
            assert values(second._client, index) == (0, 0)
        with first.everything() as held:
            set_pair(held, index, 9)
        assert pages(first._client, index) == 0


def test_a_change_that_fails_is_rolled_back_at_once(
    endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted, or by an error of what yields the changes, which has changed one document twice: the lock stays."""

    def changes() -> Iterator[Edit]:
        yield Edit(index=index, id=PAIR[0], source={"value": 6})
        yield Edit(index=index, id=PAIR[0], source={"value": 7})
        raise ZeroDivisionError

    with lockers(endpoints, index) as (first, _), first.everything() as held:
        with pytest.raises(ZeroDivisionError):
            held.write(changes())
        assert values(first._client, index) == (0, 0)
        fail_at(monkeypatch, first._fence, "write", KeyboardInterrupt(), turn=2)
        with pytest.raises(KeyboardInterrupt):
            set_pair(held, index, 8)
        assert values(first._client, index) == (0, 0)
        refused = [Edit(index=index, id=one, source={"value": 8 if one == PAIR[0] else "no number"}) for one in PAIR]
        with pytest.raises(LockError, match="is refused"):
            held.write(refused)
        assert values(first._client, index) == (0, 0)
        set_pair(held, index, 9)
        assert pages(first._client, index) == 0


def test_who_stood_still_alone_leaves_nothing_half_done(
    endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease is over by its own clock alone: it does not give back what others must find and roll back."""
    with lockers(endpoints, index) as (first, second), ThreadPoolExecutor() as pool:
        come, go = held_up(monkeypatch, first, "write")

        def change() -> None:
            with first.everything() as held:
                set_pair(held, index, 7)

        late = pool.submit(change)
        assert come.wait(DEADLINE_SECONDS)
        wait_until(lambda: first._lease.is_over, what="its lease is over")
        go.set()
        with pytest.raises(LockLostError):
            late.result()
        with second.everything():
            assert values(second._client, index) == (0, 0)


def test_a_request_that_comes_late_undoes_nothing_of_its_own_holders(
    endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was sent again because it was not answered; by the time it arrives the documents have moved on."""
    with lockers(endpoints, index) as (first, _), first.everything() as held:
        write, sent = first._fence.write, []

        def write_and_note(changes: list[Edit], *, term: int) -> LockError | None:
            sent.append((changes, term))
            return write(changes, term=term)

        monkeypatch.setattr(first._fence, "write", write_and_note)
        set_pair(held, index, 7)
        late = list(sent)
        set_pair(held, index, 8)
        for changes, term in late:
            write(changes, term=term)
        assert values(first._client, index) == (8, 8)


def test_what_is_rolled_back_is_not_rolled_back_again(
    endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would undo what the next holder has written."""
    with (
        lockers(endpoints, index) as (first, second),
        Locks(second._client, owner="third", index=f"{index}-locks", lease_seconds=15) as third,
        ThreadPoolExecutor() as pool,
    ):
        with monkeypatch.context() as patched:
            fail_at(patched, first._fence, "write", KeyboardInterrupt(), turn=2, ever=True)
            with pytest.raises(KeyboardInterrupt), first.everything() as held:
                set_pair(held, index, 7)
        come, go = threading.Event(), threading.Event()
        drop, page = second._registry.intents.drop_all_of, third._registry.intents.page

        def wait_and_drop(holder: str) -> None:
            come.set()
            assert go.wait(DEADLINE_SECONDS)
            drop(holder)

        def change() -> None:
            with second.everything() as held:
                set_pair(held, index, 9)

        def read_and_wait(intent: Intent, number: int) -> list[Edit]:
            found = page(intent, number)
            go.set()
            changed.result(DEADLINE_SECONDS)
            return found

        monkeypatch.setattr(second._registry.intents, "drop_all_of", wait_and_drop)
        monkeypatch.setattr(third._registry.intents, "page", read_and_wait)
        changed = pool.submit(change)
        assert come.wait(DEADLINE_SECONDS)
        third.bury(first._lease.id)
        go.set()
        changed.result(DEADLINE_SECONDS)
        assert values(second._client, index) == (9, 9)


@pytest.mark.parametrize("method", ["give_back", "take"])
def test_a_lock_that_could_not_be_given_back_is_free_though_its_owner_lives(
    endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Who is unsure of what it has leaves, so that others free what is there, and comes back as somebody else."""
    with lockers(endpoints, index) as (first, second):
        entries, holder = first._registry.entries, first._lease.id
        take = entries.take
        error = NoConnectionError("it hangs") if method == "give_back" else ConnectionTimeout("it takes long")
        fail_at(monkeypatch, entries, method, error)
        with first.everything():
            locks = [one.lock for one in entries.of(holder)]
        if method == "take":  # the request that was given up arrives at last
            monkeypatch.setattr(entries, "take", take)
            assert take(holder, [(lock, Mode.EXCLUSIVE) for lock in locks]) == {}
        with second.everything(timeout=DEADLINE_SECONDS):
            pass
        with first.everything():
            pass
        assert list(ensure(first._client, f"{index}-locks").entries.of()) == []
