"""A process that locks until it is killed.

python -m tests.support.locking.locker URL INDEX KIND FILE NAME SEED
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TextIO

from elasticsearch import ApiError, Elasticsearch, TransportError

from syncer.base.errors import LockLostError, LockTimeoutError
from syncer.locks import HeldLocks, Locks
from tests.support.locking import PAIR, Turn
from tests.support.locking.pair import set_pair, values

LEASE_SECONDS = 1.0


def lock(locks: Locks, kind: str, index: str) -> AbstractContextManager[HeldLocks]:
    """One of the three kinds, each of which keeps all others out."""
    if kind == "global":
        return locks.everything(timeout=60)
    if kind == "document":
        return locks.documents(index, PAIR, timeout=60)
    # Whoever changes a file, and whoever changes the directory that it is in.
    return locks.tree(random.choice(["/a/b", "/a/b", "/a", "/"]), timeout=60)


def turn(
    client: Elasticsearch, held: HeldLocks, index: str, lines: TextIO, name: str, *, pair: Sequence[str] = PAIR
) -> None:
    """Read, write, and put down what was done, while the lock is held."""
    read = values(client, index, pair=pair)
    time.sleep(random.uniform(0, 0.02))
    held.require()
    wrote = read[0] + 1
    lines.write(Turn(who=name, term=held.term, read=read, wrote=wrote, is_done=False).line())
    set_pair(held, index, wrote, pair=pair)
    lines.write(Turn(who=name, term=held.term, read=read, wrote=wrote, is_done=True).line())


def main(*arguments: str) -> None:
    """Lock again and again."""
    url, index, kind, file, name, seed = arguments
    random.seed(f"{seed} {name}")
    client = Elasticsearch(url, request_timeout=5, max_retries=0)
    with Path(file).open("a", buffering=1) as lines:
        while True:
            with (
                suppress(LockLostError, LockTimeoutError, ApiError, TransportError),
                Locks(
                    client,
                    owner=name,
                    index=f"{index}-locks",
                    lease_seconds=LEASE_SECONDS,
                ) as locks,
            ):
                while True:
                    with lock(locks, kind, index) as held:
                        turn(client, held, index, lines, name)


if __name__ == "__main__":
    main(*sys.argv[1:])
