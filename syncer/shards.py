"""Which shard of an index a routing value leads to, computed exactly as Elasticsearch does.

A document with a ``_routing`` may move to another shard when its routing changes, and each shard keeps the versions
of its own copies only. So whoever writes such a document must speak to every shard: see `syncer.index`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Self

import mmh3


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """The shards of one physical index. Their number never changes: a split or shrunk index is another one.

    Args:
        number: How many the index has.
        routing_number: Elasticsearch's ``routing_num_shards``, a multiple of it.
        addresses: For each shard, a routing value that leads to it.
    """

    number: int
    routing_number: int
    addresses: tuple[str, ...]

    @classmethod
    def of(cls, *, number: int, routing_number: int) -> Self:
        """The shards of an index with these two numbers."""
        addresses: dict[int, str] = {}
        for tried in map(str, count()):
            addresses.setdefault(_shard(tried, number, routing_number), tried)
            if len(addresses) == number:
                break
        ordered = tuple(addresses[one] for one in range(number))
        return cls(number=number, routing_number=routing_number, addresses=ordered)

    def shard(self, routing: str) -> int:
        """The shard of a routing value; without one, a document's routing is its id."""
        return _shard(routing, self.number, self.routing_number)

    def others(self, routing: str) -> tuple[str, ...]:
        """A routing value for each shard but the one that this routing leads to."""
        own = self.shard(routing)
        return self.addresses[:own] + self.addresses[own + 1 :]


def _shard(routing: str, number: int, routing_number: int) -> int:
    # Java hashes its own form of a string, and Python's % is Java's floorMod.
    return mmh3.hash(routing.encode("utf-16-le"), 0, signed=True) % routing_number // (routing_number // number)
