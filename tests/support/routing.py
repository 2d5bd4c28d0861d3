"""Documents with a ``_routing``: the blog's posts under their author."""

from __future__ import annotations

from typing import Any

from elasticsearch import Elasticsearch

from syncer.documents.registry import Document, named
from syncer.elasticsearch.bulk import Index
from syncer.elasticsearch.reader import Shards
from syncer.verify.compare import VerifyReport, verify
from tests.support.world import World


def put_shards(world: World, number: int) -> None:
    """Give the document's index that many shards, when it is made."""
    world.edit_index(lambda body: body["settings"].update(number_of_shards=number))


def require_routing(world: World) -> None:
    """Have the document's mapping demand a routing, as is usual beside a join field."""
    world.edit_index(lambda body: body["mappings"].update(_routing={"required": True}))


def put_routing(world: World, expression: str | None) -> None:
    """Give the document of the blog's posts this ``_routing``; None for none."""
    file = world.document_folder / "select.sql"
    lines = [line for line in file.read_text().splitlines() if not line.endswith(" AS _routing,")]
    if expression is not None:
        lines.insert(lines.index("    p.id AS _id,") + 1, f"    {expression} AS _routing,")
    file.write_text("\n".join(lines) + "\n")


def shards(world: World, index: Index) -> Shards:
    """The shards of the document's index."""
    return index.holdings.shards(document(world).target)


def document(world: World) -> Document:
    """The document whose index is searched."""
    with world.connect() as connection:
        return named(connection, "blogpost")[0]


def verified(world: World, *, repair: bool = False, **options: Any) -> VerifyReport:
    """What verify finds, without patience; a repair writes at once."""
    with world.index() as index, world.writer(index) as writer:
        if repair:
            options["repair"] = lambda ids: writer.write(world.index_of(), ids, everywhere=True)
        return verify(world.connect, document(world), index=index, settle_seconds=0, **options)


def put(client: Elasticsearch, world: World, id_: str, routing: str | None, source: dict[str, Any]) -> None:
    """What somebody writes into the index behind syncer's back."""
    client.index(index=world.alias, id=id_, routing=routing, document=source)


def users_on_two_shards(shards: Shards) -> tuple[int, int]:
    """Two of the blog's users whose posts lie on shards of their own."""
    second = next(id_ for id_ in range(2, 6) if shards.shard(str(id_)) != shards.shard("1"))
    return 1, second
