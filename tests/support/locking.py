"""Processes that lock, what is done to them, and a checker of what they did.

Each process adds one to two documents under a lock: it reads them, waits a little, and writes both. What it read and
wrote, and in which term, it appends to a file. `violations` reads these files afterwards.

    python -m tests.support.locking URL INDEX FOLDER NAME    locks again and again until it is killed
"""

from __future__ import annotations

import json
import random
import re
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from elasticsearch import ApiError, Elasticsearch, TransportError

from syncer.elasticsearch.client import open_client
from syncer.locks import Edit, HeldLocks, LockLostError, Locks, LockTimeoutError, edits
from tests.support.world import VERSIONS

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
CROWD_LEASE_SECONDS = 1.0


def page_example(url: str, index: str) -> dict[str, Any]:
    """Run the examples of docs/locks.md one after the other; return what they define."""
    namespace: dict[str, Any] = {"open_client": open_client}
    for example in EXAMPLES:
        program = example.replace("Elasticsearch(", "open_client(") if VERSIONS.opensearch else example
        program = program.replace("http://127.0.0.1:9200", url).replace('"files"', repr(index))
        exec(program.replace('owner="importer"', f'owner="importer", index="{index}-locks"'), namespace)  # noqa: S102
    return namespace


@contextmanager
def pair_index(url: str) -> Iterator[str]:
    """An index with the two documents, both 0; deleted afterwards, as are its locks."""
    name = f"pair-{uuid.uuid4().hex[:12]}"
    with open_client(url, request_timeout=60) as client:
        client.indices.create(index=name, settings={"number_of_shards": 1, "index.gc_deletes": "1h"})
        zero = [Edit(index=name, id=id_, source={"value": 0}) for id_ in PAIR]
        assert edits.write(client, zero, term=1) is None
        try:
            yield name
        finally:
            client.indices.delete(index=[name, f"{name}-locks"], ignore_unavailable=True)


def set_pair(locks: HeldLocks, index: str, value: int) -> None:
    """Write both documents."""
    locks.write([Edit(index=index, id=id_, source={"value": value}) for id_ in PAIR])


def values(client: Elasticsearch, index: str) -> tuple[int, ...]:
    """Read both documents."""
    return tuple(hit["_source"]["value"] for hit in client.mget(index=index, ids=list(PAIR)).body["docs"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a process read and wrote while it held a lock, and whether `HeldLocks.write` has returned."""

    who: str
    term: int
    read: Sequence[int]
    wrote: int
    is_done: bool


def history(files: Iterable[Path]) -> list[Turn]:
    """All turns in the order of their terms; of each the last line."""
    lines = [line for file in files for line in file.read_text().splitlines() if line.endswith("}")]
    turns = {(turn.who, turn.term): turn for turn in (Turn(**json.loads(line)) for line in lines)}
    return sorted(turns.values(), key=lambda turn: turn.term)


def violations(turns: Sequence[Turn], final_values: Sequence[int]) -> list[str]:
    """What cannot be if processes hold the lock one at a time, in the order of their terms.

    A turn that is done has changed both documents. One that is not, because the process was killed or has lost its
    lock, has changed both or none, and may have read what a later holder wrote.
    """
    violated, possible = [], {0}
    for turn in [*turns, Turn(who="the end", term=0, read=final_values, wrote=0, is_done=True)]:
        if turn.is_done and (len(set(turn.read)) != 1 or turn.read[0] not in possible):
            violated.append(f"{turn.who} in term {turn.term} has read {turn.read}, and possible are {sorted(possible)}")
        possible = {turn.wrote} if turn.is_done else {*possible, turn.wrote}
    return violated + [
        f"term {turn.term} was granted twice" for turn, next_turn in pairwise(turns) if turn.term == next_turn.term
    ]


def lock_forever(url: str, index: str, folder: Path, name: str) -> None:
    """Lock trees that overlap, read and write the documents, and record it, again and again."""
    client = open_client(url, request_timeout=5, max_retries=0)
    locks = Locks(client, owner=name, index=f"{index}-locks", lease_seconds=CROWD_LEASE_SECONDS)
    with (folder / f"{name}.jsonl").open("a", buffering=1) as lines:
        while True:
            with (
                suppress(LockLostError, LockTimeoutError, ApiError, TransportError),
                locks.tree(random.choice(["/a/b", "/a/b", "/a", "/"]), timeout=60) as lock,
            ):
                pair = values(client, index)
                time.sleep(random.uniform(0, 0.02))
                turn = Turn(who=name, term=lock.term, read=pair, wrote=pair[0] + 1, is_done=False)
                lines.write(json.dumps(asdict(turn)) + "\n")
                set_pair(lock, index, turn.wrote)
                lines.write(json.dumps(asdict(replace(turn, is_done=True))) + "\n")


if __name__ == "__main__":
    _, address, index_name, folder_name, owner_name = sys.argv
    lock_forever(address, index_name, Path(folder_name), owner_name)
