"""Locks in Elasticsearch: one at a time, in the order of terms, whoever is killed, stopped or late."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from syncer.errors import LockLostError
from syncer.locks import Change, Held, Locks, Recovery
from syncer.locks.registry import Registry
from syncer.sandbox import Endpoints
from tests.harness import DEADLINE_SECONDS, REPOSITORY, wait_until
from tests.locking import PAIR, Turn, history, violations
from tests.locking.locker import LEASE_SECONDS
from tests.proof import Rule, faces

LOCKERS = 4
TROUBLES = 4
FENCE = Rule(
    "a document is written with the term of the lock as its version",
    module="syncer.locks.fence",
    text="{**_place(one), **version}",
    instead="_place(one)",
)
RECOVERY = Rule(
    "whoever takes a lock over finishes or rolls back what its holder had put down",
    module="syncer.locks.burial",
    text="if dead.intent is not None:",
    instead="if False:",
)
DEATH = Rule(
    "who is taken for dead can put down nothing more",
    module="syncer.locks.lease",
    text="if found is None or found[0].is_dead:",
    instead="if found is None:",
)


@pytest.fixture
def index(endpoints: Endpoints, tmp_path: Path) -> Iterator[str]:
    """An index with two documents that are equal; gone afterwards, as are its locks."""
    name = f"locks-{tmp_path.name.lower()}-{random.randrange(10**6)}"
    client = Elasticsearch(endpoints.elasticsearch_url)
    client.indices.create(index=name, settings={"number_of_shards": 1, "index.gc_deletes": "1h"})
    for one in PAIR:
        client.index(index=name, id=one, document={"value": 0}, version=1, version_type="external")
    try:
        yield name
    finally:
        client.indices.delete(index=[name, f"{name}-locks", f"{name}-locks-intents"], ignore_unavailable=True)
        client.close()


class Crowd:
    """Processes that lock.

    Args:
        url: Elasticsearch.
        index: Where the pair is.
        kind: Of lock.
        folder: For what they put down.
        seed: For their choices.
    """

    def __init__(self, url: str, index: str, kind: str, folder: Path, seed: int) -> None:
        self._arguments = (url, index, kind)
        self._folder = folder
        self._seed = seed
        self._processes: list[subprocess.Popen[bytes]] = []
        self._count = 0

    def add(self) -> None:
        """One more."""
        self._count += 1
        name = f"locker-{self._count}"
        command = [sys.executable, "-m", "tests.locking.locker", *self._arguments]
        command += [str(self._folder / f"{name}.jsonl"), name, str(self._seed)]
        self._processes.append(subprocess.Popen(command, cwd=REPOSITORY))

    def kill(self) -> None:
        """Kill one, and start another one for it."""
        process = self._processes.pop(random.randrange(len(self._processes)))
        process.kill()
        process.wait()
        self.add()

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """One that stands still for so long, and goes on as if nothing had been."""
        process = random.choice(self._processes)
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def turns(self) -> list[Turn]:
        """What was done."""
        return history(self._folder.glob("*.jsonl"))

    def wait_for(self, number: int) -> None:
        """Until so many more turns are done."""
        before = self._done()
        wait_until(lambda: self._done() >= before + number, what=f"{number} more turns", detail=lambda: str(before))

    def _done(self) -> int:
        return len([one for one in self.turns() if one.is_done])

    def close(self) -> None:
        """Kill all."""
        for process in self._processes:
            process.kill()
            process.wait()


@contextmanager
def crowd(endpoints: Endpoints, index: str, kind: str, folder: Path) -> Iterator[Crowd]:
    """Lockers at work."""
    seed = random.randrange(10**6)
    random.seed(seed)
    made = Crowd(endpoints.elasticsearch_url, index, kind, folder, seed)
    try:
        for _ in range(LOCKERS):
            made.add()
        yield made
    finally:
        made.close()


def pair(url: str, index: str) -> tuple[int, ...]:
    """What the two documents say once whoever was killed is buried."""
    with Elasticsearch(url) as client, Locks(client, owner="test", index=f"{index}-locks", lease_seconds=5) as locks:
        for one, _ in Registry(client, index=f"{index}-locks").holders.all():
            if one.owner != "test":
                wait_until(partial(locks.bury, one.id), what="the dead are buried")
        return tuple(client.get(index=index, id=one)["_source"]["value"] for one in PAIR)


LEASE = 2.0


@contextmanager
def lockers(endpoints: Endpoints, index: str, *, recovery: Recovery = Recovery.FINISH) -> Iterator[tuple[Locks, Locks]]:
    """Two owners in one process; the second one recovers what the first one leaves."""
    with Elasticsearch(endpoints.elasticsearch_url) as client:
        first = Locks(client, owner="first", index=f"{index}-locks", lease_seconds=LEASE)
        with first, Locks(client, owner="second", index=f"{index}-locks", lease_seconds=5, recovery=recovery) as second:
            yield first, second


def stall(locks: Locks) -> None:
    """Renew no more, as a process that stands still."""
    locks._lease._ended.set()
    locks._lease._thread.join()


def held_up(monkeypatch: pytest.MonkeyPatch, locks: Locks, method: str) -> tuple[threading.Event, threading.Event]:
    """Hold an owner up in a method of its fence: has it come there, and may it go on?"""
    come, go = threading.Event(), threading.Event()
    call = getattr(locks._fence, method)

    def wait_and_call(*arguments: Any, **named: Any) -> Any:
        if not go.is_set():
            stall(locks)
            come.set()
            assert go.wait(DEADLINE_SECONDS)
        return call(*arguments, **named)

    monkeypatch.setattr(locks._fence, method, wait_and_call)
    return come, go


def set_pair(held: Held, index: str, value: int) -> None:
    """Change both documents."""
    held.write([Change(index=index, id=one, source={"value": value}) for one in PAIR])


def values(locks: Locks, index: str) -> tuple[int, ...]:
    """What the documents say."""
    return tuple(locks._client.get(index=index, id=one)["_source"]["value"] for one in PAIR)


@faces(
    "a holder of a lock stands still before its write, and goes on when the lock has another holder",
    promises=(),
    without=(FENCE, RECOVERY),
)
@pytest.mark.parametrize(("recovery", "found"), [(Recovery.FINISH, (7, 7)), (Recovery.ROLL_BACK, (0, 0))])
def test_who_comes_back_from_the_dead_changes_nothing(
    endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch, recovery: Recovery, found: tuple[int, ...]
) -> None:
    """What it had put down is finished or rolled back before the next one gets the lock; its own write is too late."""
    with lockers(endpoints, index, recovery=recovery) as (first, second), ThreadPoolExecutor() as pool:
        come, go = held_up(monkeypatch, first, "write")

        def change() -> None:
            with first.everything() as held:
                set_pair(held, index, 7)

        late = pool.submit(change)
        assert come.wait(DEADLINE_SECONDS)
        with second.everything() as held:
            assert values(second, index) == found
            set_pair(held, index, 8)
            go.set()
            with pytest.raises(LockLostError):
                late.result()
            assert values(second, index) == (8, 8)


@faces(
    "a holder of a lock stands still before it puts down what it is going to change",
    promises=(),
    without=Rule(
        "what is to be changed is referred to by a write that fails for who was taken for dead",
        module="syncer.locks.held",
        text="self._lease.persist(lambda: self._lease.amend(intent=intent))",
        instead="self._lease._seen",
    ),
)
def test_who_was_taken_for_dead_begins_nothing(
    endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clock may even stand still: it finds out from Elasticsearch, before any document is written."""
    monkeypatch.setattr("syncer.locks.lease.clock", time.monotonic)
    with lockers(endpoints, index) as (first, second), ThreadPoolExecutor() as pool:
        come, go = held_up(monkeypatch, first, "plan")

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
            assert values(second, index) == (0, 0)


@faces("holders of locks are killed, and stopped for longer than their lease", promises=(), without=DEATH)
@pytest.mark.parametrize("kind", ["global", "document", "tree"])
def test_one_at_a_time_whoever_dies_or_stands_still(
    endpoints: Endpoints, index: str, kind: str, tmp_path: Path
) -> None:
    """What they read and wrote could have been done one after the other, in the order of their terms."""
    with crowd(endpoints, index, kind, tmp_path) as lockers:
        lockers.wait_for(5)
        for trouble in range(TROUBLES):
            if trouble % 2:
                lockers.kill()
            else:
                with lockers.stalled():
                    time.sleep(2 * LEASE_SECONDS)
            lockers.wait_for(2)
    turns = lockers.turns()
    assert len(turns) > TROUBLES
    assert violations(turns, pair(endpoints.elasticsearch_url, index)) == []
