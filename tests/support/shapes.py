"""Every shape that the README claims, in one little shop: tables of two schemas, nine documents, random writers."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import psycopg

SCHEMA = """
CREATE SCHEMA shop;
CREATE SCHEMA "Back Office";
CREATE TYPE shop.status AS ENUM ('new', 'paid', 'sent');
CREATE DOMAIN shop.code AS text CHECK (value <> '');
CREATE TABLE shop.statuses (status shop.status PRIMARY KEY, title text NOT NULL);
CREATE TABLE shop.tenants (id bigint PRIMARY KEY, name text NOT NULL, plan text NOT NULL DEFAULT 'free');
CREATE TABLE shop.rates (rate numeric PRIMARY KEY, title text NOT NULL);
CREATE TABLE shop.categories (
    id integer PRIMARY KEY, parent_id integer REFERENCES shop.categories ON DELETE SET NULL, name text NOT NULL
);
CREATE TABLE shop.products (id uuid PRIMARY KEY, category_id integer, rate numeric, name text NOT NULL, price numeric);
CREATE TABLE shop.labels (code shop.code PRIMARY KEY, "Shown As" text NOT NULL);
CREATE TABLE shop.product_labels (
    product_id uuid REFERENCES shop.products ON DELETE CASCADE ON UPDATE CASCADE,
    label shop.code REFERENCES shop.labels ON DELETE CASCADE ON UPDATE CASCADE,
    PRIMARY KEY (product_id, label)
);
CREATE TABLE "Back Office"."Customers" (
    "Tenant Id" bigint REFERENCES shop.tenants ON DELETE CASCADE, "Customer No" integer, "Full Name" text NOT NULL,
    PRIMARY KEY ("Tenant Id", "Customer No")
);
CREATE TABLE "Back Office"."Orders" (
    "Tenant Id" bigint, "Order No" integer, "Customer No" integer NOT NULL, "Ship To" integer, status shop.status,
    PRIMARY KEY ("Tenant Id", "Order No")
);
CREATE TABLE "Back Office"."Order Lines" (
    "Tenant Id" bigint, "Order No" integer, "Line" integer, product_id uuid, amount integer NOT NULL,
    PRIMARY KEY ("Tenant Id", "Order No", "Line"),
    FOREIGN KEY ("Tenant Id", "Order No") REFERENCES "Back Office"."Orders" ON DELETE CASCADE ON UPDATE CASCADE
);
CREATE TABLE shop.readings (id integer, day integer, product_id uuid, note text, PRIMARY KEY (id, day))
PARTITION BY RANGE (day);
CREATE TABLE shop.readings_0 PARTITION OF shop.readings FOR VALUES FROM (0) TO (10);
CREATE TABLE shop.readings_1 PARTITION OF shop.readings FOR VALUES FROM (10) TO (20) PARTITION BY LIST (day);
CREATE TABLE shop.readings_1a PARTITION OF shop.readings_1 FOR VALUES IN (10, 11, 12, 13, 14);
CREATE TABLE shop.readings_1b PARTITION OF shop.readings_1 DEFAULT;
CREATE TABLE shop."Readings 2" (note text, product_id uuid, gone integer, day integer NOT NULL, id integer NOT NULL);
ALTER TABLE shop."Readings 2" DROP COLUMN gone;
ALTER TABLE shop.readings ATTACH PARTITION shop."Readings 2" FOR VALUES FROM (20) TO (30);
CREATE VIEW shop.line_totals AS
SELECT l."Tenant Id" AS tenant, l."Order No" AS number, l.amount * p.price AS total
FROM "Back Office"."Order Lines" AS l JOIN shop.products AS p ON p.id = l.product_id;
CREATE VIEW shop.order_totals AS
SELECT tenant, number, sum(total) AS total, count(*) AS lines FROM shop.line_totals GROUP BY tenant, number;
CREATE INDEX ON "Back Office"."Order Lines" (product_id);
CREATE INDEX ON shop.readings (product_id);
"""

SELECTS = {
    # Quoted names, a composite key, one table twice, an enum as key, a view over a view, subqueries two deep.
    "order": """
SELECT o."Tenant Id" || '/' || o."Order No" AS _id, o."Customer No" AS _routing,
       c."Full Name" AS customer, s."Full Name" AS "Ship To", st.title AS status, t.total, t.lines,
       (SELECT jsonb_agg(jsonb_build_object('line', l."Line", 'amount', l.amount,
                   'product', (SELECT p.name FROM shop.products AS p WHERE p.id = l.product_id),
                   'labels', (SELECT jsonb_agg((SELECT b."Shown As" FROM shop.labels AS b WHERE b.code = pl.label)
                                               ORDER BY pl.label)
                              FROM shop.product_labels AS pl WHERE pl.product_id = l.product_id)
               ) ORDER BY l."Line")
        FROM "Back Office"."Order Lines" AS l
        WHERE l."Tenant Id" = o."Tenant Id" AND l."Order No" = o."Order No") AS lines_of_it
FROM "Back Office"."Orders" AS o
JOIN "Back Office"."Customers" AS c ON c."Tenant Id" = o."Tenant Id" AND c."Customer No" = o."Customer No"
LEFT JOIN "Back Office"."Customers" AS s ON s."Tenant Id" = o."Tenant Id" AND s."Customer No" = o."Ship To"
LEFT JOIN shop.statuses AS st ON st.status = o.status
LEFT JOIN shop.order_totals AS t ON t.tenant = o."Tenant Id" AND t.number = o."Order No"
""",
    # A uuid as key, self-joins, a link table, LATERAL with LIMIT over partitions, UNION ALL in a subquery.
    "product": """
SELECT p.id AS _id, p.name, p.price, c.name AS category, parent.name AS parent, grandparent.name AS grandparent,
       latest.notes AS latest, r.title AS rate,
       (SELECT jsonb_agg(l."Shown As" ORDER BY l.code) FROM shop.product_labels AS pl
        JOIN shop.labels AS l ON l.code = pl.label WHERE pl.product_id = p.id) AS labels,
       (SELECT jsonb_agg(said.what ORDER BY said.what COLLATE "C")
        FROM (SELECT e.product_id, e.note AS what FROM shop.readings AS e
              UNION ALL SELECT pl.product_id, pl.label FROM shop.product_labels AS pl) AS said
        WHERE said.product_id = p.id) AS said
FROM shop.products AS p
LEFT JOIN shop.categories AS c ON c.id = p.category_id
LEFT JOIN shop.categories AS parent ON parent.id = c.parent_id
LEFT JOIN shop.categories AS grandparent ON grandparent.id = parent.parent_id
LEFT JOIN shop.rates AS r ON r.rate = p.rate
LEFT JOIN LATERAL (
    SELECT jsonb_agg(two.note ORDER BY two.day, two.id) AS notes
    FROM (SELECT e.note, e.day, e.id FROM shop.readings AS e WHERE e.product_id = p.id
          ORDER BY e.day DESC, e.id DESC LIMIT 2) AS two
) AS latest ON true
""",
    # GROUP BY on a column that is not unique.
    "shelf": """
SELECT p.category_id AS _id, count(*) AS products, sum(p.price) AS worth, min(p.name COLLATE "C") AS first
FROM shop.products AS p WHERE p.category_id IS NOT NULL GROUP BY p.category_id
""",
    # select *, bigints that no float holds, a CTE that is read twice.
    "tenant": """
WITH busy AS (
    SELECT o."Tenant Id" AS tenant, o."Customer No" AS customer, o.status, c."Full Name" AS name
    FROM "Back Office"."Orders" AS o
    JOIN "Back Office"."Customers" AS c ON c."Tenant Id" = o."Tenant Id" AND c."Customer No" = o."Customer No"
)
SELECT t.id AS _id, t.*,
       (SELECT jsonb_agg(DISTINCT one.name) FROM busy AS one WHERE one.tenant = t.id AND one.status = 'sent') AS sent,
       (SELECT count(DISTINCT other.customer) FROM busy AS other WHERE other.tenant = t.id) AS customers
FROM shop.tenants AS t
""",
    # LIMIT, for which the orders of other customers compete.
    "customer": """
SELECT c."Tenant Id" || '-' || c."Customer No" AS _id, c."Full Name" AS name, newest."Order No" AS newest
FROM "Back Office"."Customers" AS c
LEFT JOIN LATERAL (SELECT o."Order No", o."Customer No" FROM "Back Office"."Orders" AS o
                   WHERE o."Tenant Id" = c."Tenant Id" ORDER BY o."Order No" DESC LIMIT 1) AS newest
    ON newest."Customer No" = c."Customer No"
""",
    # A window, in which they compete too.
    "ranking": """
SELECT c."Tenant Id" || '-' || c."Customer No" AS _id,
       (SELECT jsonb_agg(ranked.place ORDER BY ranked.place)
        FROM (SELECT o."Tenant Id", o."Customer No",
                     row_number() OVER (PARTITION BY o."Tenant Id" ORDER BY o."Order No") AS place
              FROM "Back Office"."Orders" AS o) AS ranked
        WHERE ranked."Tenant Id" = c."Tenant Id" AND ranked."Customer No" = c."Customer No") AS places
FROM "Back Office"."Customers" AS c
""",
    # UNION ALL on top, each branch with ids and a routing of its own; a domain as key.
    "mixture": """
SELECT 'category-' || c.id AS _id, c.parent_id::text AS _routing, c.name,
       (SELECT count(*) FROM shop.products AS p WHERE p.category_id = c.id) AS number
FROM shop.categories AS c
UNION ALL
SELECT 'label-' || l.code, l."Shown As", l."Shown As",
       (SELECT count(*) FROM shop.product_labels AS pl JOIN shop.products AS p ON p.id = pl.product_id
        WHERE pl.label = l.code)
FROM shop.labels AS l
UNION ALL
SELECT 'customer-' || c."Tenant Id" || '-' || c."Customer No", t.plan, c."Full Name" || ' of ' || t.name, 1
FROM "Back Office"."Customers" AS c JOIN shop.tenants AS t ON t.id = c."Tenant Id"
""",
    # A partitioned table as root, with a routing that moves.
    "reading": """
SELECT e.id || '.' || e.day AS _id, e.product_id AS _routing, e.note, p.name AS product, c.name AS category
FROM shop.readings AS e
LEFT JOIN shop.products AS p ON p.id = e.product_id
LEFT JOIN shop.categories AS c ON c.id = p.category_id
""",
    # A numeric as key: 1.0 and 1.00 are one key and two ids.
    "rate": """
SELECT r.rate AS _id, r.title,
       (SELECT jsonb_agg(p.name ORDER BY p.id) FROM shop.products AS p WHERE p.rate = r.rate) AS products
FROM shop.rates AS r
""",
}
SHARDS = 3

Draw = Callable[[Random], object]


def _one_of(values: Sequence[object]) -> Draw:
    return lambda dice: dice.choice(values)


def _word(dice: Random) -> str:
    """A value that is hardly ever the same."""
    return dice.choice(("a", "Ä", "☃", '"')) + str(dice.randrange(10**6))


_TENANTS = [9007199254740993 + number for number in range(3)]
_STATUSES = ["new", "paid", "sent"]
_CODES = ["new in", "50 % off", "Größe", "a/b", "o'neil", "x y"]
_TENANT, _STATUS, _CODE = _one_of(_TENANTS), _one_of(_STATUSES), _one_of(_CODES)
_RATE = _one_of(["1.0", "1.00", "1", "19", "19.0", "0.5"])
# So many that what is missed is seldom made good by what happens next to the same document.
_PRODUCT = _one_of([str(uuid.UUID(int=number)) for number in range(1, 101)])
_CATEGORY, _READING, _DAY = _one_of(range(100)), _one_of(range(100)), _one_of(range(30))
_CUSTOMER, _NUMBER, _LINE = _one_of(range(10)), _one_of(range(25)), _one_of(range(3))
_ORDER_KEY, _READING_COLUMNS = ('"Tenant Id"', '"Order No"'), {"day": _DAY, "product_id": _PRODUCT, "note": _word}
# By which columns rows of a table are chosen, and what each column may have.
_TABLES: dict[str, tuple[tuple[str, ...], dict[str, Draw]]] = {
    "shop.statuses": (("status",), {"status": _STATUS, "title": _word}),
    "shop.tenants": (("id",), {"id": _TENANT, "name": _word, "plan": _word}),
    "shop.rates": (("rate",), {"rate": _RATE, "title": _word}),  # 1.0 becomes 1.00, too
    "shop.categories": (("id",), {"id": _CATEGORY, "parent_id": _one_of([*range(100), *[None] * 50]), "name": _word}),
    "shop.products": (
        ("id",),
        {"id": _PRODUCT, "category_id": _CATEGORY, "rate": _RATE, "name": _word, "price": _one_of(range(100))},
    ),
    "shop.labels": (("code",), {"code": _CODE, '"Shown As"': _word}),
    "shop.product_labels": (("product_id",), {"product_id": _PRODUCT, "label": _CODE}),
    '"Back Office"."Customers"': (
        ('"Tenant Id"', '"Customer No"'),
        {'"Tenant Id"': _TENANT, '"Customer No"': _CUSTOMER, '"Full Name"': _word},
    ),
    '"Back Office"."Orders"': (
        _ORDER_KEY,
        {
            '"Tenant Id"': _TENANT, '"Order No"': _NUMBER, '"Customer No"': _CUSTOMER, '"Ship To"': _CUSTOMER,
            "status": _STATUS,
        },
    ),
    '"Back Office"."Order Lines"': (
        _ORDER_KEY,
        {
            '"Tenant Id"': _TENANT, '"Order No"': _NUMBER, '"Line"': _LINE, "product_id": _PRODUCT,
            "amount": _one_of(range(9)),
        },
    ),
    "shop.readings": (("id",), {"id": _READING, **_READING_COLUMNS}),
    "shop.readings_1": (("id",), {"id": _READING, **_READING_COLUMNS}),
}  # fmt: skip
_KEPT = ("shop.statuses", "shop.tenants")
"""Tables of which a deleted row would be the end of too much."""


def define(config: Path, alias_of: Callable[[str], str]) -> tuple[str, ...]:
    """Make the documents the only ones of a config folder; their names."""
    for name, select in SELECTS.items():
        folder = config / "documents" / name
        folder.mkdir(parents=True)
        (folder / "document.yaml").write_text(f"index: {alias_of(name)}\n")
        (folder / "select.sql").write_text(select)
        settings = {"number_of_shards": SHARDS, "number_of_replicas": 0}
        (folder / "index.json").write_text(json.dumps({"settings": settings, "mappings": {"dynamic": False}}))
    return tuple(SELECTS)


def fill(connection: psycopg.Connection[Any], dice: Random) -> None:
    """Some rows of each table."""
    for status in _STATUSES:
        connection.execute("INSERT INTO shop.statuses VALUES (%s, %s)", (status, status.upper()))
    for tenant in _TENANTS:
        connection.execute("INSERT INTO shop.tenants VALUES (%s, 'somebody')", (tenant,))
    for table in _TABLES:
        for _ in range(150):
            _insert(connection, dice, table)


def _insert(connection: psycopg.Connection[Any], dice: Random, table: str) -> None:
    """Insert a row, unless its key is taken or what it refers to is not there."""
    row = {name: draw(dice) for name, draw in _TABLES[table][1].items()}
    marks = ", ".join(["%s"] * len(row))
    with suppress(psycopg.IntegrityError), connection.transaction():
        connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", [*row.values()])


def write(connection: psycopg.Connection[Any], dice: Random) -> None:
    """One thing that an application does, of those that touch some documents only."""
    if dice.random() < 0.1:
        dice.choice(_OTHERS)(connection, dice)
        return
    table = dice.choice([*_TABLES])
    key, columns = _TABLES[table]
    condition, values = " AND ".join(f"{name} = %s" for name in key), [columns[name](dice) for name in key]
    match dice.choices(("insert", "update", "delete"), weights=(50, 40, 0 if table in _KEPT else 10))[0]:
        case "insert":
            _insert(connection, dice, table)
        case "update":
            name = dice.choice([*columns])
            with suppress(psycopg.IntegrityError), connection.transaction():
                statement = f"UPDATE {table} SET {name} = %s WHERE {condition}"
                connection.execute(statement, [columns[name](dice), *values])
        case _:
            connection.execute(f"DELETE FROM {table} WHERE {condition}", values)


def _copy_readings(connection: psycopg.Connection[Any], dice: Random) -> None:
    with connection.cursor().copy("COPY shop.readings (id, day, product_id, note) FROM STDIN") as copy:
        for number in range(dice.randint(1, 5)):
            copy.write_row((dice.randrange(1000, 10**6) + number, _DAY(dice), _PRODUCT(dice), _word(dice)))


def _replace_tenant(connection: psycopg.Connection[Any], dice: Random) -> None:
    tenant = _TENANT(dice)
    connection.execute("DELETE FROM shop.tenants WHERE id = %s", (tenant,))  # and its customers
    connection.execute("INSERT INTO shop.tenants VALUES (%s, %s)", (tenant, _word(dice)))
    for _ in range(5):
        _insert(connection, dice, '"Back Office"."Customers"')


_MERGE = """
MERGE INTO shop.readings AS e USING (VALUES (%s::integer, %s::integer)) AS v (i, d) ON e.id = v.i AND e.day = v.d
WHEN MATCHED AND v.i %% 2 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET note = 'merged'
WHEN NOT MATCHED THEN INSERT (id, day) VALUES (v.i, v.d)
"""
_DROP_PRODUCT = """
WITH product AS (DELETE FROM shop.products WHERE id = %s RETURNING id),
     readings AS (UPDATE shop.readings SET product_id = NULL FROM product WHERE product_id = product.id)
DELETE FROM "Back Office"."Order Lines" USING product WHERE product_id = product.id
"""
_MOVE_CATEGORY = "UPDATE shop.products SET category_id = %s WHERE category_id = %s"
_OTHERS: tuple[Callable[[psycopg.Connection[Any], Random], object], ...] = (
    _copy_readings,
    _replace_tenant,
    lambda connection, dice: connection.execute(_MERGE, (_READING(dice), _DAY(dice))),
    lambda connection, dice: connection.execute(_MOVE_CATEGORY, (_CATEGORY(dice), _CATEGORY(dice))),
    lambda connection, dice: connection.execute(_DROP_PRODUCT, (_PRODUCT(dice),)),
)


# What has all documents refreshed


def upheave(connection: psycopg.Connection[Any], dice: Random) -> None:
    """A partition comes or goes, or a table is emptied."""
    dice.choice((move_partition, move_partition, _truncate))(connection, dice)


_ATTACHED = """
SELECT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = p.oid),
       EXISTS (SELECT FROM syncer.capture AS c, unnest(c.files) AS file
               WHERE c.relation = 'shop.readings' AND file LIKE p.oid || ' %')
FROM (SELECT 'shop."Readings 2"'::regclass::oid AS oid) AS p
"""


def move_partition(connection: psycopg.Connection[Any], dice: Random) -> None:
    """Take a partition with its rows out or in, or empty it; what becomes of its rows meanwhile is not captured.

    A partition that goes again before anything has seen it come is a limit: see docs/documents.md.
    """
    row = connection.execute(_ATTACHED).fetchone()
    assert row is not None
    is_attached, is_known = row
    if is_attached and not is_known:
        return
    if is_attached:
        detach = 'ALTER TABLE shop.readings DETACH PARTITION shop."Readings 2"'
        connection.execute(dice.choice((detach, detach, 'TRUNCATE shop."Readings 2"')))
        return
    connection.execute('DELETE FROM shop."Readings 2" WHERE id %% 3 = %s', (dice.randrange(3),))
    connection.execute('UPDATE shop."Readings 2" SET note = %s WHERE id %% 2 = 0', (_word(dice),))
    for _ in range(10):
        connection.execute(
            'INSERT INTO shop."Readings 2" (id, day, product_id, note) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING',
            (_READING(dice), dice.randrange(20, 30), _PRODUCT(dice), _word(dice)),
        )
    connection.execute('ALTER TABLE shop.readings ATTACH PARTITION shop."Readings 2" FOR VALUES FROM (20) TO (30)')


def _truncate(connection: psycopg.Connection[Any], dice: Random) -> None:
    lines, orders = '"Back Office"."Order Lines"', '"Back Office"."Orders"'
    table = dice.choice(("shop.product_labels", lines, "shop.readings", "shop.readings_1", orders))
    connection.execute(f"TRUNCATE {table} CASCADE")
    for _ in range(20):
        _insert(connection, dice, table)
