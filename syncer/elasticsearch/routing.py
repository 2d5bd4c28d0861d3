"""Computes the shard that a routing value leads to, exactly as Elasticsearch does.

When the ``_routing`` of a document changes, the document may move to another shard, and each shard keeps only the
versions of its own copies. So a write of such a document must address every shard: see `syncer.elasticsearch.bulk`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Self

import mmh3

MODULO_SINCE = 9_064_000
"""The ``index.version.created`` from which on a shard is the hash modulo the number of shards: Elasticsearch 9.4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """The shards of one physical index. Their number never changes: a split or shrunk index is a new one.

    Args:
        number: How many shards the index has.
        routing_number: A multiple of ``number``: the hash modulo this is divided evenly among the shards.
        addresses: For each shard, a routing value that leads to it.
    """

    number: int
    routing_number: int
    addresses: tuple[str, ...]

    @classmethod
    def of_index(cls, metadata: Mapping[str, Any]) -> Self:
        """Return the shards of an index from its metadata in the cluster state."""
        settings = metadata["settings"]["index"]
        number = int(settings["number_of_shards"])
        is_modulo = int(settings["version"]["created"]) >= MODULO_SINCE
        return cls.of(number=number, routing_number=number if is_modulo else metadata["routing_num_shards"])

    @classmethod
    def of(cls, *, number: int, routing_number: int) -> Self:
        """Return the shards of an index with these two numbers."""
        addresses: dict[int, str] = {}
        for tried in map(str, count()):
            addresses.setdefault(_shard(tried, number, routing_number), tried)
            if len(addresses) == number:
                break
        ordered = tuple(addresses[shard] for shard in range(number))
        return cls(number=number, routing_number=routing_number, addresses=ordered)

    def shard(self, routing: str) -> int:
        """Return the shard of a routing value. A document without a routing is routed by its id."""
        return _shard(routing, self.number, self.routing_number)

    def others(self, routing: str) -> tuple[str, ...]:
        """Return a routing value for every shard except the one that this routing leads to."""
        own = self.shard(routing)
        return self.addresses[:own] + self.addresses[own + 1 :]


def _shard(routing: str, number: int, routing_number: int) -> int:
    # Java hashes UTF-16 code units, and Python's % equals Java's floorMod.
    return mmh3.hash(routing.encode("utf-16-le"), 0, signed=True) % routing_number // (routing_number // number)
