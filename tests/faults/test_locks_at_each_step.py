"""A holder, or the process that recovers a dead one, is killed or stopped before each of its requests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elasticsearch import Elasticsearch

from syncer.locks import Edit, Locks
from syncer.locks.registry import ensure
from syncer.sandbox import Endpoints
from tests.support.locking import Turn, history, violations
from tests.support.locking.pair import pair_index, values
from tests.support.locking.steps import STANDING, STEPS, pair
from tests.support.world import REPOSITORY


@contextmanager
def processes(url: str, index: str, role: str, signal: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Processes at work, until each has ended or stands still."""
    command = [sys.executable, "-m", "tests.support.locking.steps", url, index, role, signal, str(folder)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert STANDING in program.stdout.readline()
        try:
            yield program
        finally:
            program.stdin.close()


def check(endpoints: Endpoints, role: str, signal: str, folder: Path) -> None:
    """Whoever takes everything from them finds each pair as it was, or as it was to be; what comes late is refused."""
    url, numbers = endpoints.elasticsearch_url, range(1, STEPS[role] + 1)
    with (
        pair_index(url, pairs=[pair(number) for number in numbers]) as index,
        Elasticsearch(url, request_timeout=60) as client,
        processes(url, index, role, signal, folder) as program,
        Locks(client, owner="heir", index=f"{index}-locks", lease_seconds=30) as locks,
    ):
        with locks.tree("/", timeout=120) as held:
            found = {number: values(client, index, pair=pair(number)) for number in numbers}
            held.write([Edit(index=index, id=one, source={"value": 100}) for number in numbers for one in pair(number)])
        assert program.stdin is not None
        program.stdin.close()
        program.wait()
        for number in numbers:
            heir = Turn(who="heir", term=held.term, read=found[number], wrote=100, is_done=True)
            turns = sorted([*history(folder.glob(f"*-{number}.jsonl")), heir], key=lambda turn: turn.term)
            last = values(client, index, pair=pair(number))
            assert violations(turns, last) == [], f"process {number}"
        assert list(ensure(client, f"{index}-locks").entries.of()) == []
    assert any(one.is_done for one in history(folder.glob("*.jsonl"))), "no process came to its end"


def test_a_holder_is_stopped_or_killed_at_each_step(endpoints: Endpoints, tmp_path: Path) -> None:
    """Its change is made whole, or not at all, and nothing of it comes later."""
    check(endpoints, "holder", "SIGSTOP", tmp_path)
