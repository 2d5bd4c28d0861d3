"""`syncer init --from-select` derives the mapping of any SELECT, and adds what a mapping lacks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from syncer.apply.scaffold import mapping
from tests.scenarios.test_init_drafts import followed
from tests.support.world import World

SHOP = """
CREATE TYPE state AS ENUM ('open', 'paid');
CREATE TABLE customers (id bigint PRIMARY KEY, name text NOT NULL, born date, tags text[]);
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer_id bigint NOT NULL REFERENCES customers, placed timestamptz NOT NULL, state state,
    total numeric(12, 2), extra jsonb, number numeric(10, 0)
);
CREATE TABLE lines (
    order_id bigint REFERENCES orders, n integer, sku uuid, price numeric(8, 2), PRIMARY KEY (order_id, n)
);
CREATE VIEW summaries AS
    SELECT order_id, jsonb_build_object('lines', count(*), 'dearest', max(price)) AS summary
    FROM lines GROUP BY order_id;
INSERT INTO customers VALUES (1, 'Ada', '1990-01-02', '{a,b}');
INSERT INTO orders VALUES (1, 1, '2026-11-21', 'paid', 9.50,
                           '{"gift": true, "grams": 7, "due": "2026-12-24", "by": {"van": 1}}', 12),
                          (2, 1, '2026-11-22', 'open', NULL, NULL, NULL);
INSERT INTO lines VALUES (1, 1, '7f3d5a70-6f2c-4b0a-9b57-3a2f6b9f7f0e', 4.75), (1, 2, NULL, 4.75);
"""
SELECT = """
WITH kept AS (SELECT l.order_id, l.n, l.sku, l.price FROM lines AS l)
SELECT
    o.id AS _id,
    o.number,
    o.state,
    o.total IS NULL AS "isOpen",
    (SELECT jsonb_build_object('name', c.name, 'born', c.born, 'tags', c.tags) FROM customers AS c
     WHERE c.id = o.customer_id) AS customer,
    coalesce(each.lines, '[]') AS lines,
    (SELECT to_jsonb(x) FROM (SELECT k.n, k.price * 2 AS twice FROM kept AS k WHERE k.order_id = o.id AND k.n = 1) AS x)
        AS first,
    (SELECT row_to_json(w) FROM lines AS w WHERE w.order_id = o.id AND w.n = 2) AS second,
    (SELECT s.summary FROM summaries AS s WHERE s.order_id = o.id) AS summary,
    ARRAY(SELECT jsonb_build_object('sku', y.sku) FROM lines AS y WHERE y.order_id = o.id) AS skus,
    CASE WHEN o.total > 5 THEN json_build_object('dear', true) ELSE json_build_object('cheap', 1) END AS verdict,
    jsonb_build_object('a', o.placed) || jsonb_build_object('b', o.id) AS both,
    (SELECT array_agg(z.price ORDER BY z.n) FILTER (WHERE z.n > 0) FROM lines AS z WHERE z.order_id = o.id) AS prices,
    (SELECT jsonb_object_agg(v.n, v.price) FROM lines AS v WHERE v.order_id = o.id) AS by_line,
    o.extra,
    o.extra -> 'due' AS due
FROM orders AS o
LEFT JOIN LATERAL (
    SELECT jsonb_agg(jsonb_build_object('n', k.n, 'sku', k.sku, 'price', k.price, 'order',
                                        jsonb_build_object('state', o.state)) ORDER BY k.n) AS lines
    FROM kept AS k WHERE k.order_id = o.id
) AS each ON true
"""
KEYWORD = {"type": "keyword", "ignore_above": 8191}
TEXT = {"type": "text", "fields": {"keyword": KEYWORD}}
LINE = {"n": {"type": "integer"}, "sku": KEYWORD, "price": {"type": "double"}}
EXPECTED: dict[str, Any] = {
    "number": {"type": "long"},
    "state": KEYWORD,
    "isOpen": {"type": "boolean"},
    "customer": {"properties": {"name": TEXT, "born": {"type": "date"}, "tags": KEYWORD}},
    "lines": {"type": "nested", "properties": LINE | {"order": {"properties": {"state": KEYWORD}}}},
    "first": {"properties": {"n": {"type": "integer"}, "twice": {"type": "double"}}},
    "second": {"properties": {"order_id": {"type": "long"}, **LINE}},
    "summary": {"properties": {"lines": {"type": "long"}, "dearest": {"type": "double"}}},
    "skus": {"type": "nested", "properties": {"sku": KEYWORD}},
    "verdict": {"properties": {"dear": {"type": "boolean"}, "cheap": {"type": "integer"}}},
    "both": {"properties": {"a": {"type": "date"}, "b": {"type": "long"}}},
    "prices": {"type": "double"},
    "by_line": {
        "type": "object",
        "dynamic": False,
        "properties": {"1": {"type": "double"}, "2": {"type": "double"}},
    },
    "extra": {
        "type": "object",
        "dynamic": False,
        "properties": {
            "by": {"type": "object", "dynamic": False, "properties": {"van": {"type": "long"}}},
            "due": {"type": "date"},
            "gift": {"type": "boolean"},
            "grams": {"type": "long"},
        },
    },
    "due": {"type": "date"},
}


def mapped(world: World, name: str) -> dict[str, Any]:
    """The mapping in a document's index.json."""
    file = world.config / "documents" / name / "index.json"
    mappings: dict[str, Any] = json.loads(file.read_text())["mappings"]
    return mappings


@pytest.fixture
def bare(empty_world: World) -> World:
    """A world without a document."""
    (empty_world.config / "documents" / "blogpost").rename(empty_world.folder / "unused")
    return empty_world


def completed(world: World, *arguments: str) -> str:
    """What `syncer init --from-select` says."""
    ended = world.syncer("init", "--from-select", *arguments)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_every_level_of_a_select_is_mapped(bare: World) -> None:
    """Objects, arrays, CTEs, views and whole rows get their types from Postgres; only JSON columns are guessed."""
    world = bare
    world.sql(SHOP)
    file = world.folder / "order.sql"
    file.write_text(SELECT)
    said = completed(world, str(file))
    assert mapped(world, "order")["properties"] == EXPECTED
    guessed = [line.strip().partition(":")[0] for line in said.splitlines() if "is a guess" in line]
    assert guessed == ["by_line", "extra", "due"]
    assert "personal or secret by name: customer.born;" in said
    (world.config / "documents" / "order" / "document.yaml").write_text(f"index: {world.alias_of('order')}\n")
    world.documents = ("order",)
    followed(world)


OTHERS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        """SELECT o.id AS _id, jsonb_agg(jsonb_build_object('n', l.n) ORDER BY l.n) AS lines FROM orders AS o
           JOIN lines AS l ON l.order_id = o.id GROUP BY o.id""",
        {"lines": {"type": "nested", "properties": {"n": {"type": "integer"}}}},
    ),
    (
        """SELECT 'o' || o.id AS _id, jsonb_build_object('a', o.id) AS x FROM orders AS o UNION ALL
           SELECT 'c' || c.id, jsonb_build_object('a', 1, 'b', c.born) FROM customers AS c""",
        {"x": {"properties": {"a": {"type": "long"}, "b": {"type": "date"}}}},
    ),
    (
        """WITH RECURSIVE r AS (
               SELECT o.id, o.id AS up, jsonb_build_object('at', o.placed) AS doc FROM orders AS o
               UNION SELECT r.id, o.id, r.doc FROM r JOIN orders AS o ON o.id = r.up - 1
           ) SELECT id AS _id, doc FROM r WHERE up = id""",
        {"doc": {"properties": {"at": {"type": "date"}}}},
    ),
    (
        "SELECT s.order_id AS _id, s.summary AS d FROM summaries AS s",
        {"d": {"properties": {"lines": {"type": "long"}, "dearest": {"type": "double"}}}},
    ),
    (
        "SELECT o.id AS _id, (SELECT json_agg(l) FROM lines AS l WHERE l.order_id = o.id) AS d FROM orders AS o",
        {"d": {"type": "nested", "properties": {"order_id": {"type": "long"}, **LINE}}},
    ),
    (
        "SELECT o.id AS _id, o.extra || '{}' AS d FROM orders AS o WHERE false",
        {"d": {"type": "object", "enabled": False}},
    ),
)


def test_other_ways_to_build_json(bare: World) -> None:
    """Aggregates of a join, each branch of a UNION, a recursive CTE, a view alone, whole rows, nothing to guess by."""
    bare.sql(SHOP)
    with bare.connect() as connection:
        for select, expected in OTHERS:
            body, _ = mapping.completed(connection, select, "select.sql", {})
            found = body["mappings"]["properties"]
            assert found == expected, select


def test_what_the_user_has_set_is_kept(bare: World) -> None:
    """Only fields that index.json lacks are added, at any level; objects that say what to do with others stay."""
    world = bare
    world.sql(SHOP)
    folder = world.config / "documents" / "order"
    folder.mkdir(parents=True)
    (folder / "select.sql").write_text(SELECT)
    (folder / "document.yaml").write_text("index: mine\n")
    ours: dict[str, Any] = {
        "settings": {"number_of_replicas": 0},
        "mappings": {
            "dynamic": "false",
            "properties": {
                "state": {"type": "text", "analyzer": "english"},
                "customer": {"type": "nested", "properties": {"name": {"type": "keyword"}}},
                "second": {"dynamic": "false", "properties": {}},
                "extra": {"type": "flattened"},
            },
        },
    }
    (folder / "index.json").write_text(json.dumps(ours))
    said = completed(world, str(folder / "select.sql"))
    assert "index.json" in said
    assert "select.sql" not in said.partition("Review")[0]
    assert (folder / "document.yaml").read_text() == "index: mine\n"
    assert json.loads((folder / "index.json").read_text())["settings"] == {"number_of_replicas": 0}
    found = mapped(world, "order")
    assert found["dynamic"] == "false"
    kept = {"state", "second", "extra"}
    assert {name: found["properties"][name] for name in kept} == {
        name: ours["mappings"]["properties"][name] for name in kept
    }
    customer = EXPECTED["customer"]["properties"] | {"name": {"type": "keyword"}}
    assert found["properties"]["customer"] == {"type": "nested", "properties": customer}
    others = EXPECTED.keys() - kept - {"customer"}
    assert {name: found["properties"][name] for name in others} == {name: EXPECTED[name] for name in others}
    before = (folder / "index.json").read_text()
    completed(world, str(folder / "select.sql"))
    assert (folder / "index.json").read_text() == before


def test_a_select_that_cannot_be_followed_writes_nothing(bare: World) -> None:
    """A SELECT that Postgres or syncer refuses, and a folder that is taken, are one sentence each."""
    world = bare
    world.sql(SHOP)
    file = world.folder / "order.sql"
    for select, says in (
        ("SELECT o.id AS _id, o.nope FROM orders AS o", "nope"),
        ("SELECT o.id AS _id, now() AS at FROM orders AS o", "now()"),
        ("", "is empty"),
    ):
        file.write_text(select)
        ended = world.syncer("init", "--from-select", str(file))
        assert ended.returncode == 1
        assert says in ended.stderr
        assert not (world.config / "documents" / "order").exists()
    file.write_text("SELECT o.id AS _id, o.state FROM orders AS o")
    completed(world, str(file))
    ended = world.syncer("init", "--from-select", str(file))
    assert "--force" in ended.stderr
