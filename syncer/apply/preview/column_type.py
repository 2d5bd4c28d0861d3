"""Column type: what a Postgres type looks like as JSON, read from the system catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from syncer.base.postgres import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnType:
    """A type as JSON shows it: domains are resolved to their base type, arrays to their element type.

    Args:
        kind: What its JSON looks like: see `_KINDS`; empty if unknown.
    """

    said: str
    kind: str
    is_array: bool
    attributes: Mapping[str, ColumnType]


_PLAIN = (
    *("int2", "int4", "int8", "numeric", "float4", "float8", "bool", "uuid", "money", "date", "timestamp"),
    *("timestamptz", "time", "timetz", "interval", "bytea", "json", "bpchar", "inet", "cidr", "macaddr", "point"),
    "tsvector",
)
_KINDS = {
    **{name: name for name in _PLAIN},
    "jsonb": "json",
    **dict.fromkeys(("text", "varchar", "name", "citext", "char", "xml"), "text"),
    **dict.fromkeys(("halfvec", "vector"), "vector"),
    **dict.fromkeys(("geography", "geometry"), "geometry"),
    **dict.fromkeys(("lseg", "path", "box", "polygon", "line", "circle"), "shape"),
}
"""By name in the system catalogue. Types that are missing here are not judged."""

_KINDS_BY_CLASS = {"c": "composite", "e": "enum", "r": "range", "m": "range"}

_TYPE = """
WITH RECURSIVE base AS (
    SELECT t.oid, t.typname, t.typtype, t.typcategory, t.typbasetype, t.typelem, t.typrelid, false AS is_array
    FROM pg_type AS t WHERE t.oid = $1::regtype
    UNION ALL
    SELECT t.oid, t.typname, t.typtype, t.typcategory, t.typbasetype, t.typelem, t.typrelid,
           b.is_array OR b.typtype <> 'd'
    FROM base AS b
    JOIN pg_type AS t ON t.oid = CASE WHEN b.typtype = 'd' THEN b.typbasetype
                                      WHEN b.typcategory = 'A' THEN b.typelem END
)
SELECT typname::text, typtype::text, is_array, typrelid,
       EXISTS (SELECT FROM pg_cast WHERE castsource = base.oid AND casttarget = 'json'::regtype AND castmethod = 'f')
FROM base WHERE typtype <> 'd' AND typcategory <> 'A'
"""
_ATTRIBUTES = """
SELECT attname::text, format_type(atttypid, -1) FROM pg_attribute
WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


def column_type(connection: Connection, said: str) -> ColumnType:
    """Return what a type is, by its name as ``format_type`` returns it."""
    row = connection.execute(_TYPE, (said,)).fetchone()
    if row is None:  # a type that only looks like an array, such as int2vector
        return ColumnType(said=said, kind="", is_array=False, attributes={})
    name, class_, is_array, relation, has_json_cast = row
    kind = _KINDS_BY_CLASS.get(class_) or _KINDS.get(name, "json" if has_json_cast else "")
    attributes: list[tuple[str, str]] = []
    if kind == "composite":
        attributes = connection.execute(_ATTRIBUTES, (relation,)).fetchall()
    return ColumnType(
        said="char(n)" if kind == "bpchar" else said,
        kind=kind,
        is_array=is_array,
        attributes={attribute: column_type(connection, one) for attribute, one in attributes},
    )
