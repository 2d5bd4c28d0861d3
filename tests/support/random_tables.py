"""A few small tables whose rows meet often, and random transactions over them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from random import Random

# r is what documents are usually made of; b has a key of two columns; l links r and a; m belongs to r or a, by kind.
SCHEMA = """
CREATE TABLE r (id int PRIMARY KEY, k int, v int, n numeric);
CREATE TABLE a (id int PRIMARY KEY, r_id int, k int, v int);
CREATE TABLE b (p int, q int, r_id int, a_id int, v int, n numeric, PRIMARY KEY (p, q));
CREATE TABLE l (r_id int, a_id int, v int, PRIMARY KEY (r_id, a_id));
CREATE TABLE m (id int PRIMARY KEY, kind varchar(5), of_id int, v int, gone int);
CREATE VIEW joined AS SELECT a.r_id AS c, b.v AS d FROM a JOIN b ON b.a_id = a.id;
CREATE VIEW kept AS SELECT joined.c, l.v AS d FROM joined LEFT JOIN l ON l.r_id = joined.c;
CREATE VIEW first AS SELECT DISTINCT ON (b.r_id) b.r_id AS c, b.v AS d FROM b ORDER BY b.r_id, b.v;
CREATE VIEW both_kinds (c, d) AS SELECT a.r_id, a.v FROM a UNION ALL SELECT first.c, first.d FROM first;
INSERT INTO r SELECT i, i % 3, (i + 1) % 4, (ARRAY[1, 1.0, 2, 2.0])[i + 1] FROM generate_series(0, 3) AS i;
INSERT INTO a SELECT i, (i * 3 + 1) % 4, nullif(i % 3, 2), (i * 2) % 4 FROM generate_series(0, 3) AS i;
INSERT INTO b SELECT i % 3, i / 3, i % 4, (i + 1) % 4, nullif(i % 3, 0), (ARRAY[1, 1.00, 2])[i % 3 + 1]
              FROM generate_series(0, 5) AS i;
INSERT INTO l SELECT i, (i + 1) % 4, i % 2 FROM generate_series(0, 3) AS i;
INSERT INTO l SELECT i, i, 1 FROM generate_series(0, 2) AS i;
INSERT INTO m SELECT i, (ARRAY['r', 'a'])[i % 2 + 1], i / 2, i % 3, nullif(i % 3, 0) FROM generate_series(0, 5) AS i;
-- Names that need quotes, and types that equal values do not make identical, or that are not atoms.
CREATE SCHEMA "other.one";
CREATE TABLE "other.one"."Or""der ü" ("select" int, "the.Key" int, r_id int, PRIMARY KEY ("select", "the.Key"));
CREATE TABLE t (
    id int PRIMARY KEY, r_id int, tags text[], data jsonb, word text, n numeric, day date, moment timestamp, ids int[]
);
INSERT INTO "other.one"."Or""der ü" SELECT i % 2, i / 2, (i + 1) % 4 FROM generate_series(0, 3) AS i;
INSERT INTO t SELECT i, (i + 1) % 4, (ARRAY['{x}', '{y,x}', NULL])[i % 3 + 1]::text[],
                     jsonb_build_object('r', i % 2, 's', 'x'), (ARRAY['1', '2020-01-01 00:00:00', 'x'])[i % 3 + 1],
                     (ARRAY[1.0, 1.00, 2])[i % 3 + 1], '2020-01-01'::date + i % 2, '2020-01-01'::timestamp, ARRAY[i, 2]
              FROM generate_series(0, 3) AS i;
"""
COLUMNS: dict[str, tuple[str, ...]] = {
    "r": ("id", "k", "v", "n"),
    "a": ("id", "r_id", "k", "v"),
    "b": ("p", "q", "r_id", "a_id", "v", "n"),
    "l": ("r_id", "a_id", "v"),
    "m": ("id", "of_id", "v", "gone", "kind"),
    '"other.one"."Or""der ü"': ('"select"', '"the.Key"', "r_id"),
    "t": ("id", "r_id", "tags", "data", "word", "n", "day", "moment", "ids"),
}
_KEYS = {"r": 1, "a": 1, "b": 2, "l": 2, "m": 1, '"other.one"."Or""der ü"': 2, "t": 1}
"""How many of its first columns are a table's key."""
_VALUES = {
    "kind": ["NULL", "'r'", "'r'", "'a'", "'a'", "'x'"],
    "gone": ["NULL", "NULL", "1"],
    "n": ["NULL", "1", "1.0", "1.00", "2", "2.0"],
    "tags": ["NULL", "'{x}'", "'{y,x}'", "'{x,x}'"],
    "ids": ["NULL", "'{}'", "'{1}'", "'{3,NULL,2}'", "'[0:1]={1,0}'"],
    "data": ["NULL", """'{"r": 1}'""", """'{"r": 2, "s": "x"}'"""],
    "word": ["NULL", "'1'", "'2'", "'x'", "'2020-01-01 00:00:00'"],
    "day": ["NULL", "'2020-01-01'", "'2020-01-02'"],
    "moment": ["NULL", "'2020-01-01'", "'2020-01-02'", "'2020-01-02 03:04'"],
}
_NUMBERS = ["NULL", "0", "1", "1", "2", "2", "3"]


def transactions(random: Random, tables: Collection[str]) -> list[list[str]]:
    """A few transactions of a few changes of some of the tables."""
    names = sorted(tables)
    return [[_statement(random, names) for _ in range(random.randint(1, 4))] for _ in range(random.randint(1, 4))]


def cleaning_up(tables: Collection[str]) -> Iterator[list[list[str]]]:
    """What empties tables: each alone, all in one transaction, one after the other, and by TRUNCATE."""
    deletes = [f"DELETE FROM {table}" for table in sorted(tables)]
    for delete in deletes:
        yield [[delete]]
    yield [deletes]
    yield [[delete] for delete in deletes]
    yield [[delete] for delete in reversed(deletes)]
    for table in sorted(tables):
        yield [[f"TRUNCATE {table}"]]


def _statement(random: Random, tables: list[str]) -> str:
    table = random.choice(tables)
    columns = COLUMNS[table]
    keys = columns[: _KEYS[table]]
    name = random.choice(columns)
    numbers = [column for column in columns if column not in _VALUES]
    condition = f"{random.choice(numbers if random.random() < 0.4 else keys)} = {random.randrange(4)}"

    def value(column: str) -> str:
        return str(random.randrange(5)) if column in keys else random.choice(_VALUES.get(column, _NUMBERS))

    match random.choices(["delete", "insert", "update", "truncate"], [28, 20, 51, 1])[0]:
        case "delete":
            return f"DELETE FROM {table} WHERE {condition}"
        case "insert":
            values = ", ".join(map(value, columns))
            return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values}) ON CONFLICT DO NOTHING"
        case "truncate":
            return f"TRUNCATE {table}"
    return f"UPDATE {table} SET {name} = {value(name)} WHERE {condition}"
