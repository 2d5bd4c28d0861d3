"""Random rows for any tables: NULLs where they may be, long texts, dates before 1900, and JSON with ever new keys."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from random import Random
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

_COLUMNS = """
SELECT c.oid::regclass::text, a.attname::text, t.typname::text, a.attnotnull, a.atttypmod,
       array(SELECT enumlabel::text FROM pg_enum WHERE enumtypid = t.oid), a.attnum = ANY (p.conkey)
FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
JOIN pg_type AS t ON t.oid = a.atttypid LEFT JOIN pg_constraint AS p ON p.conrelid = c.oid AND p.contype = 'p'
WHERE c.relkind = 'r' AND c.relnamespace::regnamespace::text !~ '^pg_|^information_schema|^syncer'
ORDER BY c.oid, a.attnum
"""
_REFERENCES = """
SELECT conrelid::regclass::text, confrelid::regclass::text,
       array(SELECT attname::text FROM unnest(conkey) WITH ORDINALITY AS k (n, at)
             JOIN pg_attribute ON attrelid = conrelid AND attnum = n ORDER BY at),
       array(SELECT attname::text FROM unnest(confkey) WITH ORDINALITY AS k (n, at)
             JOIN pg_attribute ON attrelid = confrelid AND attnum = n ORDER BY at)
FROM pg_constraint WHERE contype = 'f' AND connamespace::regnamespace::text !~ '^syncer'
ORDER BY cardinality(conkey), oid
"""
_DATES = ("1812-06-24", "1899-12-31", "2000-02-29", "2026-11-28")
_TEXTS = ("published", "beginner", "a b", "Ünï — “x”", "word " * 3000, "x" * 40_000)


class Rows:
    """Inserts, updates and deletes rows of all tables of a database."""

    def __init__(self, dsn: str, random: Random) -> None:
        self._random = random
        self._number = 0
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._columns: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        for table, *column in self._connection.execute(_COLUMNS):
            self._columns[table].append(tuple(column))
        self._references = self._connection.execute(_REFERENCES).fetchall()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def write(self, rounds: int) -> None:
        """Write to each table, those that are referred to first; what a constraint refuses is left out."""
        for _ in range(rounds):
            for table in self._columns:
                self._insert(table)
            changed = self._random.choice(list(self._columns))
            column = self._random.choice(self._columns[changed])
            if not column[5] and not any(column[0] in own for table, _, own, _ in self._references if table == changed):
                self._try(changed, "UPDATE {} SET {} = %s WHERE ctid IN (SELECT ctid FROM {} LIMIT 2)", column)
            if self._random.random() < 0.3:
                self._try(changed, "DELETE FROM {} WHERE ctid = (SELECT max(ctid) FROM {})", None)

    def _insert(self, table: str) -> None:
        referring = dict(self._referring(table))
        row = {
            name: referring[name] if name in referring else self._value(type_, modifier, labels, is_key=is_key)
            for name, type_, is_required, modifier, labels, is_key in self._columns[table]
            if is_required or self._random.random() < 0.7
        }
        if not row:
            return
        names = sql.SQL(", ").join(map(sql.Identifier, row))
        marks = sql.SQL(", ").join(sql.Placeholder() * len(row))
        self._execute(sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(sql.SQL(table), names, marks), [*row.values()])

    def _referring(self, table: str) -> Iterator[tuple[str, Any]]:
        for referencing, to, columns, referenced in self._references:
            if referencing == table:
                names = sql.SQL(", ").join(map(sql.Identifier, referenced))
                query = sql.SQL("SELECT {} FROM {} ORDER BY random() LIMIT 1").format(names, sql.SQL(to))
                yield from zip(
                    columns, self._connection.execute(query).fetchone() or [None] * len(columns), strict=True
                )

    def _try(self, table: str, statement: str, column: tuple[Any, ...] | None) -> None:
        name, values = sql.SQL(table), []
        if column is None:
            query = sql.SQL(statement).format(name, name)
        else:
            query = sql.SQL(statement).format(name, sql.Identifier(column[0]), name)
            values = [self._value(column[1], column[3], column[4], is_key=False)]
        self._execute(query, values)

    def _execute(self, statement: sql.Composed, values: list[Any]) -> None:
        try:
            self._connection.execute(statement, values)
        except (psycopg.IntegrityError, psycopg.DataError):
            return

    def _value(self, type_: str, modifier: int, labels: list[str], *, is_key: bool) -> Any:  # noqa: C901, PLR0911
        self._number += 1
        if labels:
            return self._random.choice(labels)
        if type_.startswith("_"):
            return [self._value(type_[1:], -1, [], is_key=False) for _ in range(self._random.randint(0, 3))]
        if type_ in ("int2", "int4", "int8", "float4", "float8", "numeric"):
            return self._number if is_key else self._random.choice([0, 1, -7, self._random.randint(0, 80)])
        if type_ == "bool":
            return self._random.random() < 0.5
        if type_ in ("json", "jsonb"):
            return Jsonb({f"key {self._number}": self._random.choice([1, "x", None, [1, "y"], {"a": {"b": True}}])})
        if type_ in ("date", "timestamp", "timestamptz"):
            return None if self._random.random() < 0.3 else self._random.choice(_DATES)
        if type_ == "daterange":
            return f"[{_DATES[self._random.randint(0, 2)]},{self._random.choice((_DATES[3], 'infinity', ''))})"
        if type_ == "interval":
            return "90 minutes"
        if type_ == "uuid":
            return f"00000000-0000-4000-8000-{self._number:012}"
        if type_ in ("hstore", "ltree"):
            return f'"key {self._number}"=>"x", b=>NULL' if type_ == "hstore" else f"a.b{self._number}"
        if type_ == "bytea":
            return b"\0\xff"
        text = f"k{self._number}" if is_key else self._random.choice(_TEXTS)
        return text[: modifier - 4] if modifier > 0 else text
