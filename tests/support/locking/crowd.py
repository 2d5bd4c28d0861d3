"""Processes that lock again and again, and what is done to them."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elasticsearch import Elasticsearch

from syncer.locks import Locks
from syncer.locks.registry import ensure
from syncer.sandbox import Endpoints
from tests.support.locking import Turn, history
from tests.support.locking.pair import values
from tests.support.world import REPOSITORY, wait_until

_LOCKERS = 4


class LockerCrowd:
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
        command = [sys.executable, "-m", "tests.support.locking.locker", *self._arguments]
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
def crowd(endpoints: Endpoints, index: str, kind: str, folder: Path) -> Iterator[LockerCrowd]:
    """Lockers at work."""
    seed = random.randrange(10**6)
    random.seed(seed)
    made = LockerCrowd(endpoints.elasticsearch_url, index, kind, folder, seed)
    try:
        for _ in range(_LOCKERS):
            made.add()
        yield made
    finally:
        made.close()


def settled(url: str, index: str) -> tuple[int, ...]:
    """What the two documents say once whoever was killed is buried."""
    with (
        Elasticsearch(url, request_timeout=60) as client,
        Locks(client, owner="test", index=f"{index}-locks", lease_seconds=15) as locks,
    ):
        for one, _ in ensure(client, f"{index}-locks").holders.all():
            if one.owner != "test":
                wait_until(lambda dead=one.id: locks.bury(dead), what="the dead are buried")  # type: ignore[misc]
        return values(client, index)
