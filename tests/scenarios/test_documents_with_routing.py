"""A document with a ``_routing`` is on its shard and nowhere else, as Elasticsearch itself computes that shard."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from elasticsearch import Elasticsearch

from syncer.base.errors import IndexingError
from syncer.base.model import Target
from syncer.documents import analyze
from syncer.documents.definition import Definition
from syncer.elasticsearch import reader
from syncer.elasticsearch.bulk import Index
from syncer.elasticsearch.reader import Shards
from syncer.indexing import compose
from syncer.verify.diff import DriftKind
from tests.faults.harness import DEAD_LETTERS, following
from tests.support.routing import put, put_routing, put_shards, require_routing, verified
from tests.support.world import World

BLOG = """
INSERT INTO users (id, name, email) SELECT g, 'name ' || g, '' FROM generate_series(0, 5) AS g;
INSERT INTO posts (id, user_id, title, body) SELECT g, g % 6, 'title', '' FROM generate_series(0, 59) AS g
"""


def make(world: World, *, routing: str | None = "p.user_id", shards: int = 3) -> World:
    """Sixty posts by six authors, in Postgres and in Elasticsearch."""
    put_shards(world, shards)
    put_routing(world, routing)
    world.set_up()
    world.sql(BLOG)
    world.backfill()
    world.sql("TRUNCATE syncer.outbox")  # as if that were handled
    return world


def test_a_document_is_found_with_its_routing(empty_world: World) -> None:
    """A get with the routing finds what the SELECT routed so; it is no field; NULL is the id's own shard.

    Copies of another client are found and removed wherever they are.
    """
    routing = "'a,b €😀' || nullif(p.user_id, 3)"
    make(empty_world, routing=routing)
    assert empty_world.differences() == []
    assert verified(empty_world).holds
    rows = empty_world.sql(f"SELECT p.id::text, coalesce(({routing})::text, p.id::text) FROM posts AS p")
    with empty_world.elasticsearch() as client:
        for id_, place in rows:
            hit = client.get(index=empty_world.alias, id=id_, routing=place).body
            assert (hit["_source"]["title"], "_routing" in hit["_source"]) == ("title", False)
        for place in map(str, range(10)):  # on every shard, and under another routing on its own
            put(client, empty_world, "7", place, {"title": "a copy"})
    report = verified(empty_world, repair=True)
    assert [(drift.id, drift.kind) for drift in report.repaired] == [("7", DriftKind.MISPLACED)]
    assert empty_world.differences() == []


REMOVALS = {
    "of everything": "DELETE FROM posts",
    "of an author": "DELETE FROM posts WHERE user_id = 2; DELETE FROM users WHERE id = 2",
    "without rows named": "TRUNCATE posts CASCADE",
    "and a new place": "DELETE FROM posts WHERE id < 20; UPDATE posts SET user_id = 5 WHERE id < 40",
}


@pytest.mark.parametrize(
    ("removal", "shards"),
    [*((removal, 3) for removal in REMOVALS.values()), (REMOVALS["of everything"], 1)],
    ids=[*REMOVALS, "of everything in one shard"],
)
def test_a_delete_has_the_routing_that_the_mapping_requires(empty_world: World, removal: str, shards: int) -> None:
    """A row that is gone leaves no document and no dead letter: by its change, a backfill or a repair."""
    require_routing(empty_world)
    make(empty_world, shards=shards)
    with following(empty_world) as follower:
        empty_world.sql(removal)
        follower.drain()
        empty_world.sql("DELETE FROM posts WHERE id = (SELECT max(id) FROM posts); TRUNCATE syncer.outbox")
        empty_world.backfill()
        assert empty_world.differences() == []
    with empty_world.elasticsearch() as client:
        put(client, empty_world, "99", "a stranger", {"title": "of no row"})
    verified(empty_world, repair=True)
    assert empty_world.differences() == []
    assert empty_world.sql(DEAD_LETTERS) == []


# Which writes delete on other shards

CHANGES = {
    "of fields": ("UPDATE posts SET title = 'x' WHERE id < 5", 0),
    "of a row that is shown": ("UPDATE users SET name = 'x' WHERE id = 1", 0),
    "of rows that are shown": ("INSERT INTO comments (post_id, name, comment) VALUES (3, '', ''), (4, '', '')", 0),
    "of the routing": ("UPDATE posts SET user_id = 5 WHERE id = 1", 2),
    "of both": ("UPDATE posts SET user_id = 4 WHERE id = 1; UPDATE posts SET title = 'y' WHERE id IN (1, 2)", 2),
    "of the key": ("UPDATE posts SET id = 99 WHERE id = 8", 3 + 2),
    "of existence": ("DELETE FROM posts WHERE id = 7; INSERT INTO posts VALUES (7, 0, '', '')", 2),
}


def test_only_a_write_for_a_change_that_moves_a_document_deletes_it_elsewhere(empty_world: World) -> None:
    """Elasticsearch counts no delete for the others; a document that is gone is deleted on each of three shards.

    What was committed before a worker got its partition of the topic, another worker may have received.
    """
    make(empty_world)
    empty_world.sql("UPDATE posts SET title = 'early' WHERE id = 1")

    def deletes() -> int:
        stats = client.indices.stats(index=empty_world.alias, metric="indexing").body
        return int(stats["_all"]["primaries"]["indexing"]["delete_total"])

    with following(empty_world) as follower, empty_world.elasticsearch() as client:
        earlier = deletes()
        follower.drain()
        assert deletes() - earlier == (2 if empty_world.uses_kafka else 0)
        for name, (change, expected) in CHANGES.items():
            earlier = deletes()
            empty_world.sql(change)
            follower.drain()
            assert deletes() - earlier == expected, name
    assert verified(empty_world).holds


MOVE = "UPDATE posts SET user_id = 5 - user_id"
FAILED_MOVES = {
    "at once": [f"{MOVE}, views = 13 WHERE id < 9", "UPDATE posts SET views = 0"],
    "then": ["UPDATE posts SET views = 13 WHERE id < 9", f"{MOVE} WHERE id < 9", "UPDATE posts SET views = 1"],
    "shown": [
        "UPDATE users SET email = '0' WHERE id IN (1, 4)",
        f"{MOVE} WHERE user_id = 1",
        "UPDATE users SET email = '7'",
    ],
    "too large": [f"{MOVE}, body = repeat('x', 9000) WHERE id < 9", "UPDATE posts SET body = ''"],
}


@pytest.mark.parametrize("changes", FAILED_MOVES.values(), ids=FAILED_MOVES.keys())
def test_a_document_that_could_not_be_written_is_deleted_elsewhere_once_it_can(
    empty_world: World, monkeypatch: pytest.MonkeyPatch, changes: list[str]
) -> None:
    """Nothing was sent for the move, and the edit that corrects the document moves nothing."""
    monkeypatch.setattr(compose, "DOCUMENT_BYTES_MAX", 8000)
    shown = "(SELECT (1 || u.email)::int - 10 FROM users AS u WHERE u.id = p.user_id)"
    empty_world.edit_file("p.body,", f"p.body, 9 / (p.views - 13) / {shown} AS ratio,")
    empty_world.edit_file('"strict"', "true", file="index.json")
    make(empty_world)
    with following(empty_world) as follower:
        for change in changes:
            empty_world.sql(change)
            follower.handle()
            assert bool(empty_world.sql(DEAD_LETTERS)) is (change != changes[-1])
    assert empty_world.differences() == []


JOINED = "FROM a JOIN b ON b.id = a.x"
PLACED = {
    f"SELECT a.id AS _id, a.x AS _routing, a.y, b.y AS z {JOINED.replace('JOIN', 'LEFT JOIN')}": ("id x", "id"),
    f"SELECT a.id AS _id, b.x AS _routing {JOINED} WHERE NOT a.y = 'gone'": ("id x y", "id x"),
    "SELECT a.id AS _id, a.x AS _routing, (SELECT b.y FROM b WHERE b.id = a.x) AS z FROM a": ("id x", ""),
    "SELECT 'a' || id AS _id, x AS _routing, y FROM a UNION ALL SELECT 'b' || id, id, y FROM b": ("id x", "id"),
    "SELECT a.id AS _id, max(v.x) AS _routing, max(a.y) FROM a JOIN v USING (id) GROUP BY a.id": ("id", "id x y"),
    f"SELECT a.id AS _id, a.x AS _routing, unnest(string_to_array(a.y, ',')) AS y {JOINED}": (None, None),
    f"SELECT DISTINCT a.id AS _id, a.x AS _routing, b.y {JOINED}": (None, None),
    f"SELECT a.id AS _id, b.y {JOINED}": ("", ""),
}


def test_what_places_documents_is_what_the_select_reads_without_its_fields(empty_world: World) -> None:
    """Any column may, if a field takes part in which rows there are; none does without a ``_routing``."""
    empty_world.sql("CREATE TABLE a (id int PRIMARY KEY, x int, y text); CREATE TABLE b (LIKE a INCLUDING ALL)")
    empty_world.sql("CREATE VIEW v AS SELECT id, x, lower(y) AS low FROM b")
    with empty_world.connect() as connection:
        for select, expected in PLACED.items():
            asked = Definition(name="a", index="a", select=select, index_body={}, affects={}, folder=Path("a"))
            tables = analyze.analyse(connection, asked).tables
            places = [use.places if (use := tables.get(f"public.{name}")) else None for name in "ab"]
            named = [None if columns is None else " ".join(sorted(columns)) for columns in places]
            assert named == [*expected], select


# Definitions that change


@pytest.mark.parametrize(
    ("former", "latter", "is_rebuilt"),
    [
        (None, "p.user_id", False),
        ("p.user_id", "NULL::text", False),
        ("p.user_id", None, True),  # a late writer may put a copy on any shard
    ],
    ids=["gained", "given up", "dropped"],
)
def test_another_routing_leaves_nothing_behind(
    empty_world: World, former: str | None, latter: str | None, *, is_rebuilt: bool
) -> None:
    """After an apply that changes the routing of everything, each document is in its new place only."""
    make(empty_world, routing=former)
    index = empty_world.index_of()
    put_routing(empty_world, latter)
    empty_world.apply()
    assert empty_world.differences() == []
    assert verified(empty_world).holds
    assert (empty_world.index_of() != index) is is_rebuilt


INDICES: dict[str, tuple[dict[str, Any], str, int]] = {
    "two": ({"number_of_shards": 2}, "", 0),
    "own_routing_number": ({"number_of_shards": 3, "number_of_routing_shards": 27}, "", 0),
    "shrunk": ({"number_of_shards": 6}, "shrink", 2),
    "split": ({"number_of_shards": 2}, "split", 8),
}


def values() -> list[str]:
    """Routing values of all kinds: keys, words, every plane of Unicode, separators, long ones."""
    dice = random.Random(1)
    alphabets = ("0123456789", "abc-_", "äß€", "漢字かな", "😀𝔘𐍈", " ,;|\"'\\/\t", "é\u0301\u200d\ufeff\uffff")
    alike = {"".join(dice.choices(dice.choice(alphabets), k=dice.randint(1, 40))) for _ in range(1000)}
    mixed = {"".join(dice.choices("".join(alphabets), k=dice.randint(1, 9))) for _ in range(1000)}
    return sorted(alike | mixed | {"x" * 32000} | {str(number) for number in range(-500, 500)})


def shards_of(client: Elasticsearch, name: str) -> Shards:
    """As syncer reads them."""
    return Index(client).holdings.shards(Target(index_name=name, write_alias=name))


@pytest.fixture
def name(client: Elasticsearch) -> Iterator[str]:
    """The name of an index that no other test uses; it is deleted afterwards, as is one that it is resized to."""
    name = f"shards-{uuid4().hex}"
    yield name
    client.indices.delete(index=f"{name},{name}-resized", ignore_unavailable=True)


@pytest.mark.parametrize(("settings", "resize", "number"), INDICES.values(), ids=INDICES.keys())
def test_a_routing_leads_where_elasticsearch_puts_the_document(
    client: Elasticsearch, name: str, settings: dict[str, Any], resize: str, number: int
) -> None:
    """Thousands of values, beyond the basic plane too, lead to the shards where their documents are found.

    A split or shrunk index moves whole parts of its source's shards.
    """
    client.indices.create(index=name, settings={**settings, "number_of_replicas": 0})
    lines = [line for value in values() for line in ({"index": {"routing": value}}, {"routing": value})]
    assert not client.bulk(index=name, operations=lines).body["errors"]
    if resize:
        client.indices.put_settings(index=name, settings={"index.blocks.write": True})
        changed = {"index.number_of_shards": number, "index.number_of_replicas": 0, "index.blocks.write": None}
        source, name = name, f"{name}-resized"
        getattr(client.indices, resize)(index=source, target=name, settings=changed, wait_for_active_shards=1)
    client.indices.refresh(index=name)
    shards, number_of_hits = shards_of(client, name), 0
    for shard in range(shards.number):
        hits = client.search(index=name, preference=f"_shards:{shard}", size=10_000).body["hits"]["hits"]
        assert {shards.shard(hit["_source"]["routing"]) for hit in hits} <= {shard}
        number_of_hits += len(hits)
    assert number_of_hits == len(values())


def test_an_unknown_function_is_refused(client: Elasticsearch, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If Elasticsearch finds shards by another function, nothing is written by ours."""
    refused = 0
    monkeypatch.setattr(reader, "OPENSEARCH_BIT", 1 << 40)
    client.indices.create(index=name, settings={"number_of_shards": 3, "number_of_replicas": 0})
    for since in (0, 10**9):  # whichever of its two functions Elasticsearch has, syncer takes the other one once
        monkeypatch.setattr(reader, "MODULO_SINCE", since)
        try:
            shards_of(client, name)
        except IndexingError as error:
            assert "to other shards than syncer computes" in error.message  # noqa: PT017 - one of the two
            refused += 1
    assert refused == 1


@pytest.mark.parametrize(
    ("created", "shard"), [("8518000", 1), ("9063999", 1), ("9064000", 0), ("9064001", 0), ("137297827", 1)]
)
def test_an_index_keeps_the_function_that_it_was_created_with(created: str, shard: int) -> None:
    """Elasticsearch 9.4 has another function for new indices, and the former for older ones; OpenSearch has that."""
    settings = {"number_of_shards": "3", "version": {"created": created}}
    shards = Shards({"routing_num_shards": 768, "settings": {"index": settings}})
    assert shards.shard("2") == shard
