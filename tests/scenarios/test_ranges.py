"""A document is walked in ranges of its ids: each id belongs to one range, whatever is written meanwhile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from syncer.base.postgres import Connection
from syncer.documents import analyze, queries, registry
from syncer.documents.definition import Definition
from syncer.documents.queries import IdRange, query_of
from syncer.documents.registry import Document
from tests.support.world import World

_IN_RANGE = "SELECT d._id::text FROM ({select}) AS d WHERE {condition}"


def things(connection: Connection) -> Document:
    """A document of the table ``things``."""
    asked = Definition(
        name="things", index="things", select="SELECT t.id AS _id FROM things AS t", index_body={}, affects={},
        folder=Path("things"),
    )  # fmt: skip
    [document] = registry.documents(connection)
    return replace(document, dependencies=analyze.analyse(connection, asked))


def ids(connection: Connection, document: Document, span: IdRange) -> list[str]:
    """The ids of a range."""
    query = query_of(_IN_RANGE, document, condition=queries.condition(document, span))
    return [row[0] for row in connection.execute(query)]


def walk(connection: Connection, document: Document, *, rows: int) -> list[list[str]]:
    """The ids of each range of a walk."""
    ranges: list[list[str]] = []
    span = IdRange(through=None)
    while not ranges or not span.is_last:
        span = queries.next_range(connection, document, span.through, rows=rows)
        ranges.append(ids(connection, document, span))
    return ranges


TYPES = {
    "bigint": ["-9223372036854775808", "-1", "0", "7", "10", "9223372036854775807"],
    "numeric": ["NaN", "-Infinity", "1.5", "10", "9", "1e30"],
    "text": ["", "'", "\\", "ä", "a", "B", "b", "10", "9", "x\ny", "{", "%s", "$1"],
    'text COLLATE "C"': ["ä", "a", "B", "b", "Z", "_"],
    "character(3)": ["a", "ab", "B", "c"],
    "uuid": [f"00000000-0000-0000-0000-00000000000{digit}" for digit in "f0a19"],
    "timestamptz": ["2024-01-01 00:00:00.000001", "infinity", "-infinity", "0044-03-15 BC", "2024-01-01"],
    "mood": ["sad", "ok", "happy"],
    "positive": ["1", "10", "9", "2"],
}


def test_every_id_of_every_type_is_in_one_range(world: World) -> None:
    """Ranges of two rows: together they have what the SELECT returns, each id once."""
    world.sql("CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy'); CREATE DOMAIN positive AS integer CHECK (VALUE > 0)")
    for type_, values in TYPES.items():
        world.sql(f"DROP TABLE IF EXISTS things; CREATE TABLE things (id {type_} PRIMARY KEY)")
        for value in values:
            world.sql(f"INSERT INTO things VALUES (%s::{type_.partition(' COLLATE')[0]})", value)
        with world.connect() as connection:
            document = things(connection)
            ranges = walk(connection, document, rows=2)
            assert sorted(id_ for page in ranges for id_ in page) == sorted(ids(connection, document, IdRange())), type_
            assert [len(page) for page in ranges[:-1]] == [2] * (len(values) // 2), type_


def test_a_walk_misses_no_row_that_was_there_all_the_time(world: World) -> None:
    """Rows that come and go before, in and after the range at hand; also where the range was to end."""
    world.sql("CREATE TABLE things (number serial PRIMARY KEY, id integer UNIQUE)")
    world.sql("INSERT INTO things (id) SELECT g * 10 FROM generate_series(1, 10) AS g UNION ALL SELECT NULL")
    with world.connect() as connection:
        document = things(connection)
        first = queries.next_range(connection, document, None, rows=3)
        assert first == IdRange(through="30")
        world.sql("DELETE FROM things WHERE id = 30; INSERT INTO things (id) VALUES (5), (29), (31), (32)")
        assert ids(connection, document, first) == ["10", "20", "5", "29"]
        second = queries.next_range(connection, document, "30", rows=3)
        assert second == IdRange(after="30", through="40")
        last = queries.next_range(connection, document, "40", rows=7)
        assert (last.is_last, len(ids(connection, document, last))) == (True, 6)


def test_without_an_index_in_the_order_of_the_ids_there_is_one_range(world: World) -> None:
    """A walk would sort the whole table for each range, or in another order than ids are compared in."""
    world.sql("CREATE TABLE things (id text PRIMARY KEY); INSERT INTO things VALUES ('a'), ('b'), ('c')")
    with world.connect() as connection:
        document = things(connection)
        assert len(walk(connection, document, rows=1)) == 3 + 1
        world.sql("ALTER TABLE things DROP CONSTRAINT things_pkey")
        for index in ("(id) WHERE id > 'b'", '(id COLLATE "C")', "(id text_pattern_ops)"):
            assert walk(connection, document, rows=1) == [["a", "b", "c"]]
            world.sql(f"CREATE INDEX ON things {index}")
        assert walk(connection, document, rows=1) == [["a", "b", "c"]]
