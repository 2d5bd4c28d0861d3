"""Processes that lock once, of which each is killed, or stands still, before another one of its requests.

    python -m tests.support.locking.steps URL INDEX ROLE SIGNAL FOLDER

Each process has a pair of documents and a path of its own, ``/NUMBER/file``, so all are at work at once. A *holder*
takes the lock, reads, writes both documents, each a page of its own, and leaves. A *burier* takes a lock over whose
holder was killed between the two documents; only the requests of the burial count. Process N sends itself the signal
before its request N. When none is running any more, the program says so, waits for a line, and lets those that stand
still go on.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from elastic_transport import Transport
from elasticsearch import Elasticsearch

from syncer.locks import Locks, burial, held
from syncer.locks.fence import Fence
from tests.support.locking.locker import turn

LEASE_SECONDS = 5.0
STEPS = {"holder": 24, "burier": 22}
"""More than there are, so that some come to their end."""
STANDING = "none is running any more"
_SECOND_PAGE = 2


def pair(number: int) -> Sequence[str]:
    """The documents of a process."""
    return (f"{number}-left", f"{number}-right")


def path(number: int) -> str:
    """The path of a process."""
    return f"/{number}/file"


def main(*arguments: str) -> None:
    """Start them all, and wait until none is running."""
    url, index, role, signal_name, folder = arguments
    held._PAGE_CHANGES_MAX = 1
    send = signal.Signals[signal_name]
    act = _hold if role == "holder" else _bury
    children = [_fork(partial(act, url, index, number, send, Path(folder))) for number in range(1, STEPS[role] + 1)]
    ended = {child for child in children if not os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])}
    print(STANDING, flush=True)  # noqa: T201 - the test waits for it
    sys.stdin.readline()
    for child in children:
        if child not in ended:
            os.kill(child, signal.SIGCONT)
            os.waitpid(child, 0)


def _hold(url: str, index: str, number: int, send: signal.Signals, folder: Path) -> None:
    _count_requests(number, send)
    _lock(url, index, number, folder / f"holder-{number}.jsonl")


def _bury(url: str, index: str, number: int, send: signal.Signals, folder: Path) -> None:
    os.waitpid(_fork(partial(_die_half_way, url, index, number, folder)), 0)
    bury, buries = burial.bury, threading.Event()

    def bury_and_count(*arguments: Any, **named: Any) -> Any:
        buries.set()
        try:
            return bury(*arguments, **named)
        finally:
            buries.clear()

    burial.bury = bury_and_count
    _count_requests(number, send, only_if=buries.is_set)
    _lock(url, index, number, folder / f"burier-{number}.jsonl")


def _die_half_way(url: str, index: str, number: int, folder: Path) -> None:
    """Die between the two documents."""
    writes = itertools.count(1)
    write = Fence.write

    def write_or_die(*arguments: Any, **named: Any) -> Any:
        if next(writes) == _SECOND_PAGE:
            os.kill(os.getpid(), signal.SIGKILL)
        return write(*arguments, **named)

    Fence.write = write_or_die  # type: ignore[method-assign]
    _lock(url, index, number, folder / f"holder-{number}.jsonl")


def _lock(url: str, index: str, number: int, file: Path) -> None:
    """Take a turn."""
    with (
        Elasticsearch(url, request_timeout=30) as client,
        file.open("a", buffering=1) as lines,
        Locks(
            client,
            owner=file.stem,
            index=f"{index}-locks",
            lease_seconds=LEASE_SECONDS,
        ) as locks,
        locks.tree(path(number), timeout=60) as taken,
    ):
        turn(client, taken, index, lines, file.stem, pair=pair(number))


def _count_requests(number: int, send: signal.Signals, *, only_if: Callable[[], bool] = lambda: True) -> None:
    """Send oneself a signal before the how many-th request; those that renew the lease do not count."""
    perform, turns = Transport.perform_request, itertools.count(1)

    def perform_or_stop(*arguments: Any, **named: Any) -> Any:
        if threading.current_thread() is threading.main_thread() and only_if() and next(turns) == number:
            os.kill(os.getpid(), send)
        return perform(*arguments, **named)

    Transport.perform_request = perform_or_stop  # type: ignore[method-assign]


def _fork(act: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        act()
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - what is wrong is seen in what it has put down
        print(repr(error), file=sys.stderr, flush=True)  # noqa: T201 - for who looks for the reason
        os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
