"""Registry: the two indices that hold locks, holders and intents, and the total order of all writes to them.

The index of locks and holders has one shard, so the sequence numbers of all writes to it are in one order, deletes
included: a later write has a greater number. The upper half of a *term* is the second in which the index was created,
the lower half such a sequence number. So terms grow even if the index is deleted and created again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticsearch import BadRequestError, Elasticsearch, NotFoundError

from syncer.base.errors import LockError
from syncer.locks.entries import Entries
from syncer.locks.holders import Holders, SeqNo
from syncer.locks.intents import Intents

INDEX = "syncer-locks"
"""The default index of locks."""
_SETTINGS = {"number_of_shards": 1, "auto_expand_replicas": "0-1", "hidden": True}
_MAPPINGS = {
    "dynamic": False,
    "properties": {
        "kind": {"type": "keyword"},
        "holders": {"type": "keyword"},
        "entries": {"type": "object", "enabled": False},
    },
}
_INTENT_MAPPINGS = {"dynamic": False, "properties": {"holder": {"type": "keyword"}}}
_MAKE_SECONDS = 60
_TERM_BITS = 31
"""The bits of the sequence number; the bits above them are the second of the index's creation."""


class Registry:
    """The documents of all locks in an index that was created in the second ``born``."""

    def __init__(self, client: Elasticsearch, *, index: str, born: int) -> None:
        self._born = born
        self.entries = Entries(client, index=index)
        self.holders = Holders(client, index=index)
        self.intents = Intents(client, index=_intents(index))

    def term(self, seen: SeqNo) -> int:
        """Return the term of a write: greater than that of any earlier write."""
        return (self._born << _TERM_BITS) + seen.seq_no


def ensure(client: Elasticsearch, index: str) -> Registry:
    """Return the registry of an index; create its indices if they are missing.

    Raises:
        LockError: The index exists but cannot hold locks.
    """
    made = find(client, index)
    if made is not None:
        return made
    _make(client, index, _MAPPINGS)
    _make(client, _intents(index), _INTENT_MAPPINGS)
    return Registry(client, index=index, born=_born(client.indices.get(index=index).body, index))


def find(client: Elasticsearch, index: str) -> Registry | None:
    """Return the registry of an index; None if it does not exist.

    Raises:
        LockError: The index exists but cannot hold locks.
    """
    try:
        found = client.indices.get(index=f"{index},{_intents(index)}", ignore_unavailable=True).body
    except NotFoundError:  # not a valid index name
        return None
    if found.keys() <= {_intents(index)}:
        return None
    born = _born(found, index)
    return Registry(client, index=index, born=born) if _intents(index) in found else None


def _born(found: Mapping[str, Any], index: str) -> int:
    """Return the second in which the index was created.

    Raises:
        LockError: It cannot hold locks.
    """
    body = found.get(index)  # None: the name is an alias or a pattern
    if body is None or body["settings"]["index"]["number_of_shards"] != "1" or not _is_mapped(body["mappings"]):
        raise LockError(
            f"{index} is not an index that was made for locks",
            hint="Name another index. Or, if no running process holds a lock, delete this one: it is created again.",
        )
    return int(body["settings"]["index"]["creation_date"]) // 1000


def _is_mapped(mappings: Mapping[str, Any]) -> bool:
    return bool(mappings.get("properties", {}).get("holders") == {"type": "keyword"})


def _make(client: Elasticsearch, name: str, mappings: dict[str, Any]) -> None:
    try:
        # No lease is held yet, so this may take longer than one.
        client.options(request_timeout=_MAKE_SECONDS).indices.create(index=name, settings=_SETTINGS, mappings=mappings)
    except BadRequestError as error:
        if error.error != "resource_already_exists_exception":
            raise


def _intents(index: str) -> str:
    return f"{index}-intents"
