"""Locks in Elasticsearch: one holder at a time, in the order of terms, despite kills, freezes and delays."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from syncer.base.errors import LockError, LockLostError
from syncer.elasticsearch.client import open_client
from syncer.locks import Edit, Locks, edits
from syncer.locks.table import Table
from syncer.sandbox import Endpoints
from tests.support.elasticsearch_proxy import Forward, Proxy
from tests.support.locking import CROWD_LEASE_SECONDS, PAIR, history, pair_index, set_pair, values, violations
from tests.support.world import DEADLINE_SECONDS, REPOSITORY, wait_until

LEASE = 2.0


@pytest.fixture
def index(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An index with two documents that are equal; each is a page of its own."""
    monkeypatch.setattr(edits, "PAGE_EDITS_MAX", 1)
    with pair_index(endpoints.elasticsearch_url) as name:
        yield name


def owner(client: Elasticsearch, index: str, *, lease: float = 15) -> Locks:
    """An owner of locks."""
    return Locks(client, owner="owner", index=f"{index}-locks", lease_seconds=lease)


def interrupt(monkeypatch: pytest.MonkeyPatch, *, at: int, always: bool = False) -> None:
    """Interrupt a write of documents, and ``always`` all later ones too."""
    write, calls = edits.write, iter(range(1, 1000))

    def write_or_interrupt(*arguments: Any, **named: Any) -> LockError | None:
        number = next(calls)
        if number == at or (always and number > at):
            raise KeyboardInterrupt
        return write(*arguments, **named)

    monkeypatch.setattr(edits, "write", write_or_interrupt)


def left_over(client: Elasticsearch, index: str) -> int:
    """How many documents the index of locks has besides the table."""
    client.indices.refresh(index=f"{index}-locks")
    return int(client.count(index=f"{index}-locks")["count"]) - 1


# Processes that are killed or frozen


def test_processes_that_are_killed_or_frozen_change_documents_one_at_a_time(
    endpoints: Endpoints, client: Elasticsearch, index: str, tmp_path: Path
) -> None:
    """What they read and wrote could have been done one after the other, in the order of their terms."""
    processes: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        program = [sys.executable, "-m", "tests.support.locking", endpoints.elasticsearch_url, index, str(tmp_path)]
        name = f"locker-{len(list(tmp_path.iterdir()))}-{random.randrange(10**9)}"
        processes.append(subprocess.Popen([*program, name], cwd=REPOSITORY))

    def done() -> int:
        return len([turn for turn in history(tmp_path.iterdir()) if turn.is_done])

    def wait_for_turns() -> None:
        before = done()
        wait_until(lambda: done() >= before + 2, what="two turns")

    try:
        for _ in range(4):
            start()
        wait_for_turns()
        frozen, killed = processes[0], processes.pop()
        frozen.send_signal(signal.SIGSTOP)
        time.sleep(2 * CROWD_LEASE_SECONDS)
        frozen.send_signal(signal.SIGCONT)
        wait_for_turns()
        killed.kill()
        killed.wait()
        start()
        wait_for_turns()
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for holder in Table.ensure(client, f"{index}-locks").holders():
        assert owner(client, index).break_holder(holder)
    assert violations(history(tmp_path.iterdir()), values(client, index)) == []


# Changes that are broken off, or sent twice


def test_a_change_that_fails_is_rolled_back_at_once(
    client: Elasticsearch, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an error of what yields the changes, by an interrupt, or by Elasticsearch: the lock is still held."""

    def changes() -> Iterator[Edit]:
        yield Edit(index=index, id=PAIR[0], source={"value": 7})
        raise ZeroDivisionError

    with owner(client, index).everything() as lock:
        with pytest.raises(ZeroDivisionError):
            lock.write(changes())
        assert values(client, index) == (0, 0)
        with monkeypatch.context() as patched:
            interrupt(patched, at=2)
            with pytest.raises(KeyboardInterrupt):
                set_pair(lock, index, 8)
        assert values(client, index) == (0, 0)
        refused = [Edit(index=index, id=id_, source={"value": 8 if id_ == PAIR[0] else "no number"}) for id_ in PAIR]
        with pytest.raises(LockError, match="is refused"):
            lock.write(refused)
        assert values(client, index) == (0, 0)
        set_pair(lock, index, 9)
    assert values(client, index) == (9, 9)
    assert left_over(client, index) == 0


def test_a_change_that_cannot_be_rolled_back_is_rolled_back_by_the_next_holder(
    client: Elasticsearch, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the lock is not free. The owner is told, at the latest at the end of the block, and may lock again."""
    first = owner(client, index, lease=LEASE)

    def change() -> None:
        with first.everything() as lock:
            with pytest.raises(KeyboardInterrupt):
                set_pair(lock, index, 7)
            with pytest.raises(LockLostError):
                set_pair(lock, index, 8)

    with monkeypatch.context() as patched:
        interrupt(patched, at=2, always=True)
        with pytest.raises(LockLostError):
            change()
    assert values(client, index) == (7, 0)
    with owner(client, index).everything():
        assert values(client, index) == (0, 0)
    with first.everything() as lock:
        set_pair(lock, index, 9)
    assert left_over(client, index) == 0


# Answers that do not come


def test_any_answer_may_be_lost(endpoints: Endpoints, client: Elasticsearch, index: str) -> None:
    """Elasticsearch has done what it was asked for, and nobody knows: it is repeated, and nothing is left over."""
    for lost in range(1, 10):
        numbers = iter(range(1, 1000))

        def lose(forward: Forward, numbers: Iterator[int] = numbers, lost: int = lost) -> Any:
            answer = forward()
            return None if next(numbers) == lost else answer

        with (
            Proxy(endpoints.elasticsearch_url).running() as proxy,
            open_client(proxy.address) as spoilt,
            proxy.spoiling(lose),
            owner(spoilt, index, lease=LEASE).tree("/a/b") as lock,
        ):
            set_pair(lock, index, lost)
        with owner(client, index).tree("/a", timeout=DEADLINE_SECONDS):
            assert values(client, index) == (lost, lost)
