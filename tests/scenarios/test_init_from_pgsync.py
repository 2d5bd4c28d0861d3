"""`syncer init --from-pgsync` converts a schema of PGSync, and lists what it leaves."""

from __future__ import annotations

import json

import pytest

from tests.harness import World
from tests.scenarios.test_init_drafts import drafted, followed

BOOKS = """
CREATE SCHEMA places;
CREATE TABLE places.city (id integer PRIMARY KEY, name text);
CREATE TABLE publisher (id integer PRIMARY KEY, name text, is_active boolean);
CREATE TABLE book (isbn text PRIMARY KEY, title text, publisher_id integer REFERENCES publisher);
CREATE TABLE author (id integer PRIMARY KEY, name text, city_id integer REFERENCES places.city);
CREATE TABLE book_author (book_isbn text REFERENCES book, author_id integer REFERENCES author,
                          PRIMARY KEY (book_isbn, author_id));
CREATE TABLE subject (id integer PRIMARY KEY, name text);
CREATE TABLE book_subject (book_isbn text REFERENCES book, subject_id integer REFERENCES subject,
                           PRIMARY KEY (book_isbn, subject_id));
CREATE TABLE rating (id integer PRIMARY KEY, book_isbn text, value numeric(3, 1));
INSERT INTO places.city VALUES (1, 'Paris');
INSERT INTO publisher VALUES (1, 'Tiger', true);
INSERT INTO book VALUES ('001-002', 'It''s {0}', 1);
INSERT INTO book VALUES ('003');
INSERT INTO author VALUES (1, 'Ada', 1), (2, 'Bob', NULL);
INSERT INTO book_author VALUES ('001-002', 1), ('001-002', 2);
INSERT INTO subject VALUES (1, 'SQL'), (2, 'Go');
INSERT INTO book_subject VALUES ('001-002', 1), ('001-002', 2);
INSERT INTO rating VALUES (1, '001-002', 4.5), (2, '001-002', 3);
"""
SCHEMA = [
    {
        "database": "book",
        "index": "books",
        "routing": "book_isbn",
        "plugins": ["Hero"],
        "setting": {"analysis": {"analyzer": {"mine": {"type": "custom", "tokenizer": "standard"}}}},
        "nodes": {
            "table": "book",
            "columns": ["isbn", "title", "doc->a->b->1"],
            "transform": {
                "rename": {"isbn": "book_isbn"},
                "concat": {"columns": ["book_isbn", "title"], "destination": "whole"},
                "mapping": {"title": {"type": "text", "analyzer": "mine"}},
                "move": {"column": "isbn", "destination": "x"},
            },
            "children": [
                {
                    "table": "publisher",
                    "label": "by",
                    "columns": ["name", "id"],
                    "relationship": {
                        "variant": "object",
                        "type": "one_to_one",
                        "foreign_key": {"child": ["id"], "parent": ["publisher_id"]},
                    },
                    "transform": {
                        "rename": {"id": "publisher_id"},
                        "mapping": {"name": {"type": "keyword"}},
                    },
                },
                {
                    "table": "author",
                    "label": "authors",
                    "columns": ["name"],
                    "relationship": {"variant": "object", "type": "one_to_many", "through_tables": ["book_author"]},
                    "children": [
                        {
                            "table": "city",
                            "schema": "places",
                            "columns": ["name"],
                            "relationship": {"variant": "scalar", "type": "one_to_one"},
                        }
                    ],
                },
                {
                    "table": "subject",
                    "label": "subjects",
                    "columns": ["name"],
                    "relationship": {"variant": "scalar", "type": "one_to_many", "through_tables": ["book_subject"]},
                },
                {
                    "table": "rating",
                    "columns": ["value"],
                    "relationship": {
                        "variant": "object",
                        "type": "one_to_one",
                        "foreign_key": {"child": ["book_isbn"], "parent": ["isbn"]},
                    },
                },
            ],
        },
    }
]


@pytest.fixture
def books(empty_world: World) -> World:
    """A world with the tables of PGSync's own example, and without a document."""
    (empty_world.config / "documents" / "blogpost").rename(empty_world.folder / "unused")
    empty_world.sql(BOOKS)
    return empty_world


def test_a_schema_is_converted_and_followed(books: World) -> None:
    """The tree, columns, through tables, names, mapping, settings and routing."""
    world = books
    file = world.folder / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    said = drafted(world, "--from-pgsync", str(file))
    for left in ("plugins", "transform.move", "transform.concat", "doc->a->b->1, a path into JSON"):
        assert f"not carried over: {left}" in said
    assert "rating is an array" in said
    body = json.loads((world.config / "documents" / "books" / "index.json").read_text())
    assert body["settings"]["analysis"] == SCHEMA[0]["setting"]["analysis"]  # type: ignore[index]
    assert body["mappings"]["properties"]["title"] == {"type": "text", "analyzer": "mine"}
    assert body["mappings"]["properties"]["by"]["properties"]["name"] == {"type": "keyword"}
    followed(world)
    held = world.held("books")
    assert held["003"] == {
        "book_isbn": "003",
        "title": None,
        "_routing": "003",
        "by": None,
        "authors": [],
        "subjects": [],
        "rating": [],
    }
    assert held["001-002"] == {
        "_routing": "001-002",
        "book_isbn": "001-002",
        "title": "It's {0}",
        "by": {"name": "Tiger", "publisher_id": 1},
        "authors": [{"name": "Ada", "city": "Paris"}, {"name": "Bob", "city": None}],
        "subjects": ["SQL", "Go"],
        "rating": [{"value": 4.5}, {"value": 3.0}],
    }


def test_a_schema_that_cannot_be_converted_is_said(books: World) -> None:
    """No JSON, no schema, a table that is not there, no way between two: one sentence, and nothing is written."""
    world = books
    file = world.folder / "schema.json"
    lost = {"table": "subject", "relationship": {"variant": "object", "type": "one_to_many"}}
    for content, says in (
        ("{", "cannot be read"),
        ("[]", "is not a schema of PGSync"),
        (json.dumps([{"index": "x", "nodes": {"children": []}}]), "nodes.table: Field required"),
        (json.dumps([{"index": "x", "nodes": {"table": "nope"}}]), "no table public.nope"),
        (json.dumps([{"index": "x", "nodes": {"table": "book", "children": [lost]}}]), "no foreign key between"),
    ):
        file.write_text(content)
        ended = world.syncer("init", "--from-pgsync", str(file))
        assert ended.returncode == 1
        assert says in ended.stderr, ended.stderr
    assert not (world.config / "documents").exists() or not list((world.config / "documents").iterdir())
