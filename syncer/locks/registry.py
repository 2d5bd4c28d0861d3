"""Registry: the two indices in which locks, holders and intents are documents, and the order of all writes to them.

The index of locks and holders has one shard. So the sequence numbers of all writes to it are in one order, which a
deleted document does not leave: the number of a later write is greater. With the second in which the index was made as
its upper half it is greater too after the index was deleted and made again. Such a number is a *term*.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticsearch import BadRequestError, Elasticsearch, NotFoundError

from syncer.errors import LockError
from syncer.locks.entries import Entries
from syncer.locks.holders import Holders, Seen
from syncer.locks.intents import Intents

INDEX = "syncer-locks"
"""Where locks are, if nobody says otherwise."""
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
"""Of the sequence number, below the seconds at which the index was made."""


class Registry:
    """The documents that locks are made of.

    Args:
        client: Elasticsearch.
        index: Where they are.
        born: The second in which it was made.
    """

    def __init__(self, client: Elasticsearch, *, index: str, born: int) -> None:
        self._born = born
        self.entries = Entries(client, index=index)
        self.holders = Holders(client, index=index)
        self.intents = Intents(client, index=_intents(index))

    def term(self, seen: Seen) -> int:
        """The term of a write: greater than that of any before it."""
        return (self._born << _TERM_BITS) + seen.seq_no


def ensure(client: Elasticsearch, index: str) -> Registry:
    """The documents that locks are made of; their indices are made if they are not there.

    Raises:
        LockError: There is an index of that name that cannot hold locks.
    """
    made = find(client, index)
    if made is not None:
        return made
    _make(client, index, _MAPPINGS)
    _make(client, _intents(index), _INTENT_MAPPINGS)
    return Registry(client, index=index, born=_born(client.indices.get(index=index).body, index))


def find(client: Elasticsearch, index: str) -> Registry | None:
    """The same; None if nobody has ever locked anything there.

    Raises:
        LockError: There is an index of that name that cannot hold locks.
    """
    try:
        found = client.indices.get(index=f"{index},{_intents(index)}", ignore_unavailable=True).body
    except NotFoundError:  # a name that no index can have
        return None
    if found.keys() <= {_intents(index)}:
        return None
    born = _born(found, index)
    return Registry(client, index=index, born=born) if _intents(index) in found else None


def _born(found: Mapping[str, Any], index: str) -> int:
    """The second in which the index was made.

    Raises:
        LockError: It cannot hold locks.
    """
    if index not in found:
        raise LockError(
            f"{index} is an alias or a pattern, and terms need one index",
            hint="Name an index, or one that is not there.",
        )
    settings, mappings = found[index]["settings"]["index"], found[index]["mappings"]
    if settings["number_of_shards"] != "1":
        raise LockError(
            f"The index {index} has {settings['number_of_shards']} shards, and locks need one",
            hint="Name another index: the order of terms is that of the sequence numbers of one shard.",
        )
    if mappings.get("properties", {}).get("holders") != _MAPPINGS["properties"]["holders"]:  # type: ignore[index]
        raise LockError(
            f"The index {index} was not made for locks",
            hint="Name another index; or delete this one, if nobody who is alive holds a lock, and it is made anew.",
        )
    return int(settings["creation_date"]) // 1000


def _make(client: Elasticsearch, name: str, mappings: dict[str, Any]) -> None:
    try:
        # Not under a lease, so it may take longer than one lasts.
        client.options(request_timeout=_MAKE_SECONDS).indices.create(index=name, settings=_SETTINGS, mappings=mappings)
    except BadRequestError as error:
        if error.error == "invalid_index_name_exception":
            raise LockError(f"No index can be called {name!r}", hint=f"As in: {INDEX}") from error
        if error.error != "resource_already_exists_exception":
            raise


def _intents(index: str) -> str:
    return f"{index}-intents"
