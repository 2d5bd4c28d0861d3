"""Processes that lock, what is done to them, and a checker of what they did.

Each process adds one to two documents under a lock: it reads them, waits a little, and writes both. What it read and
wrote, and in which term, it appends to a file. `violations` reads these files afterwards.

    python -m tests.support.locking URL INDEX FOLDER crowd KIND NAME    locks again and again until it is killed
    python -m tests.support.locking URL INDEX FOLDER steps              see `stop_at_each_request`
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from elastic_transport import Transport
from elasticsearch import ApiError, Elasticsearch, TransportError

from syncer.locks import Edit, HeldLocks, LockLostError, Locks, LockTimeoutError, edits, held as held_module

EXAMPLES = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[2] / "docs" / "locks.md").read_text(), re.DOTALL)
PAIR = ("left", "right")
"""Documents that are always to be equal."""
FILES_INDEX: dict[str, Any] = {
    "settings": {
        "number_of_shards": 1,
        "index.gc_deletes": "1h",
        "analysis": {"analyzer": {"paths": {"tokenizer": "path_hierarchy"}}},
    },
    "mappings": {
        "properties": {
            "name": {"type": "keyword"},
            "path": {"type": "keyword", "fields": {"tree": {"type": "text", "analyzer": "paths"}}},
            "contents": {"type": "text"},
        }
    },
}
"""The guide's index of files."""
CROWD_LEASE_SECONDS, STEPS_LEASE_SECONDS = 1.0, 5.0
STEPS = 15
"""More than the requests that a holder sends, so that some processes come to their end."""


def page_example(url: str, index: str) -> dict[str, Any]:
    """Run the examples of docs/locks.md one after the other; return what they define."""
    known: dict[str, Any] = {}
    for example in EXAMPLES:
        here = example.replace("http://127.0.0.1:9200", url).replace('"files"', repr(index))
        exec(here.replace('owner="importer"', f'owner="importer", index="{index}-locks"'), known)  # noqa: S102
    return known


@contextmanager
def pair_index(url: str, *, pairs: Iterable[Sequence[str]] = (PAIR,)) -> Iterator[str]:
    """An index with pairs of documents, all 0; deleted afterwards, as are its locks."""
    name = f"pair-{uuid.uuid4().hex[:12]}"
    with Elasticsearch(url, request_timeout=60) as client:
        client.indices.create(index=name, settings={"number_of_shards": 1, "index.gc_deletes": "1h"})
        zero = [Edit(index=name, id=id_, source={"value": 0}) for pair in pairs for id_ in pair]
        assert edits.write(client, zero, term=1) is None
        try:
            yield name
        finally:
            client.indices.delete(index=[name, f"{name}-locks"], ignore_unavailable=True)


def set_pair(held: HeldLocks, index: str, value: int, *, pair: Sequence[str] = PAIR) -> None:
    """Write both documents."""
    held.write([Edit(index=index, id=id_, source={"value": value}) for id_ in pair])


def values(client: Elasticsearch, index: str, *, pair: Sequence[str] = PAIR) -> tuple[int, ...]:
    """Read both documents."""
    return tuple(hit["_source"]["value"] for hit in client.mget(index=index, ids=list(pair)).body["docs"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a process read and wrote while it held a lock, and whether `HeldLocks.write` has returned."""

    who: str
    term: int
    read: Sequence[int]
    wrote: int
    is_done: bool


def take_turn(client: Elasticsearch, held: HeldLocks, index: str, file: Path, *, pair: Sequence[str] = PAIR) -> None:
    """Read, write, and record it."""
    read = values(client, index, pair=pair)
    time.sleep(random.uniform(0, 0.02))
    turn = Turn(who=file.stem, term=held.term, read=read, wrote=read[0] + 1, is_done=False)
    with file.open("a", buffering=1) as lines:
        lines.write(json.dumps(asdict(turn)) + "\n")
        set_pair(held, index, turn.wrote, pair=pair)
        lines.write(json.dumps(asdict(replace(turn, is_done=True))) + "\n")


def history(files: Iterable[Path]) -> list[Turn]:
    """All turns in the order of their terms; of each the last line."""
    lines = [line for file in files for line in file.read_text().splitlines() if line.endswith("}")]
    turns = {(turn.who, turn.term): turn for turn in (Turn(**json.loads(line)) for line in lines)}
    return sorted(turns.values(), key=lambda turn: turn.term)


def violations(turns: Sequence[Turn], last: Sequence[int]) -> list[str]:
    """What cannot be if processes hold the lock one at a time, in the order of their terms.

    A turn that is done has changed both documents. One that is not, because the process was killed or has lost its
    lock, has changed both or none, and may have read what a later holder wrote.
    """
    found, possible = [], {0}
    for turn in [*turns, Turn(who="the end", term=0, read=last, wrote=0, is_done=True)]:
        if turn.is_done and (len(set(turn.read)) != 1 or turn.read[0] not in possible):
            found.append(f"{turn.who} in term {turn.term} has read {turn.read}, and possible are {sorted(possible)}")
        possible = {turn.wrote} if turn.is_done else {*possible, turn.wrote}
    return found + [f"term {turn.term} was granted twice" for turn, other in pairwise(turns) if turn.term == other.term]


def lock_forever(url: str, index: str, folder: Path, kind: str, name: str) -> None:
    """Lock and change the documents again and again; each kind of lock keeps all others of its kind out."""
    client = Elasticsearch(url, request_timeout=5, max_retries=0)
    locks = Locks(client, owner=name, index=f"{index}-locks", lease_seconds=CROWD_LEASE_SECONDS)
    kinds: dict[str, Callable[[], AbstractContextManager[HeldLocks]]] = {
        "global": lambda: locks.everything(timeout=60),
        "document": lambda: locks.documents(index, PAIR, timeout=60),
        "tree": lambda: locks.tree(random.choice(["/a/b", "/a/b", "/a", "/"]), timeout=60),
    }
    while True:
        with suppress(LockLostError, LockTimeoutError, ApiError, TransportError), kinds[kind]() as held:
            take_turn(client, held, index, folder / f"{name}.jsonl")


def stop_at_each_request(url: str, index: str, folder: Path) -> None:
    """Run processes of which number N stops before its request N; once all have stopped, wait for a line, and continue.

    Each takes a lock of its own, writes its pair of documents, each as a page of its own, and leaves. Their clocks
    stand still, so only Elasticsearch tells them what they have lost.
    """
    edits.PAGE_EDITS_MAX = 1
    held_module.clock = lambda: 0.0  # type: ignore[attr-defined]
    children = [_fork(partial(_lock_once, url, index, folder, number)) for number in range(1, STEPS + 1)]
    stopped = [child for child in children if os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])]
    print("stopped", flush=True)  # noqa: T201 - the test waits for it
    sys.stdin.readline()
    for child in stopped:
        os.kill(child, signal.SIGCONT)
        os.waitpid(child, 0)


def _lock_once(url: str, index: str, folder: Path, number: int) -> None:
    perform, requests = Transport.perform_request, count(1)

    def perform_or_stop(*arguments: Any, **named: Any) -> Any:
        if threading.current_thread() is threading.main_thread() and next(requests) == number:
            os.kill(os.getpid(), signal.SIGSTOP)
        return perform(*arguments, **named)

    Transport.perform_request = perform_or_stop  # type: ignore[method-assign]
    with Elasticsearch(url, request_timeout=30) as client:
        locks = Locks(client, owner="holder", index=f"{index}-locks", lease_seconds=STEPS_LEASE_SECONDS)
        with locks.tree(f"/{number}/file", timeout=60) as held:
            take_turn(client, held, index, folder / f"holder-{number}.jsonl", pair=numbered_pair(number))


def numbered_pair(number: int) -> Sequence[str]:
    """The documents of a process."""
    return (f"{number}-left", f"{number}-right")


def _fork(act: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        act()
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - the test reads what it has recorded
        print(repr(error), file=sys.stderr, flush=True)  # noqa: T201
        os._exit(1)


if __name__ == "__main__":
    _, address, index_name, folder_name, *what = sys.argv
    if what[0] == "crowd":
        lock_forever(address, index_name, Path(folder_name), *what[1:])
    else:
        stop_at_each_request(address, index_name, Path(folder_name))
