"""Types: a Postgres type and the Elasticsearch mapping that takes its values.

Guarantee: the mapping takes every value of the type except NaN, Infinity and the date infinity.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from syncer.base.postgres import Connection

# Domains are resolved to their base type, arrays to their element type. Composites become JSON, as do types with a
# cast to it.
_TYPE = """
WITH RECURSIVE base AS (
    SELECT t.oid, t.typname, t.typtype, t.typcategory, t.typbasetype, t.typelem, false AS is_array
    FROM pg_type AS t WHERE t.oid = $1::regtype
    UNION ALL
    SELECT t.oid, t.typname, t.typtype, t.typcategory, t.typbasetype, t.typelem, b.is_array OR b.typtype <> 'd'
    FROM base AS b
    JOIN pg_type AS t ON t.oid = CASE WHEN b.typtype = 'd' THEN b.typbasetype
                                      WHEN b.typcategory = 'A' THEN b.typelem END
)
SELECT CASE WHEN typtype IN ('c', 'p') OR typname = 'jsonb'
                 OR EXISTS (SELECT FROM pg_cast
                            WHERE castsource = base.oid AND casttarget = 'json'::regtype AND castmethod = 'f')
            THEN 'json' ELSE typname END, is_array
FROM base WHERE typtype <> 'd' AND typcategory <> 'A'
"""
_LONG_DIGITS_MAX = 18
_WHOLE = re.compile(r"numeric\((\d+),0\)")
KEYWORD: dict[str, Any] = {"type": "keyword", "ignore_above": 8191}
TEXT: dict[str, Any] = {"type": "text", "fields": {"keyword": KEYWORD}}
DATE: dict[str, Any] = {"type": "date"}
STORED: dict[str, Any] = {"type": "object", "enabled": False}
"""Takes any JSON: it is kept and shown, but not searched."""
_MAPPINGS: dict[str, dict[str, Any]] = {
    "int2": {"type": "short"},
    "int4": {"type": "integer"},
    "int8": {"type": "long"},
    "float4": {"type": "float"},
    "float8": {"type": "double"},
    "numeric": {"type": "double"},
    "bool": {"type": "boolean"},
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "citext", "char", "xml"), TEXT),
    **dict.fromkeys(("date", "timestamp", "timestamptz"), DATE),
}
"""By name in the system catalogue. Other types are mapped as keyword, with the text that Postgres shows."""
CASTS = {"money": "numeric", "bpchar": "text", "vector": "real[]", "halfvec": "real[]"}
"""What a draft casts a column to."""
LEFT_OUT = {
    "bytea": "bytes are not searched: encode(column, 'base64') and the type binary would show them",
    "tsvector": "it is Postgres' own way to search: select the text that it is made of",
    **dict.fromkeys(("geometry", "geography"), "its text is not readable: select ST_AsGeoJSON(column)::jsonb"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnType:
    """A type: the name of its base type in the catalogue, ``json`` for any JSON or composite, and its mapping.

    Args:
        mapping: None for JSON, of which a type does not tell the content.
    """

    name: str
    is_array: bool
    mapping: dict[str, Any] | None

    @property
    def may_be_vector(self) -> bool:
        """Whether its values may be vectors, as arrays of equal length are."""
        return self.is_array and self.name == "float4"


def column_type(connection: Connection, declared: str) -> ColumnType:
    """Return what a type is, by its name as ``format_type`` returns it."""
    # There is no row for a type that only looks like an array, such as int2vector.
    name, is_array = connection.execute(_TYPE, (declared,)).fetchone() or ("", False)
    whole = _WHOLE.match(declared)
    mapping = _MAPPINGS.get(name, KEYWORD)
    if whole and int(whole[1]) <= _LONG_DIGITS_MAX:
        mapping = {"type": "long"}
    elif mapping is TEXT and is_array:
        mapping = KEYWORD
    return ColumnType(name=name, is_array=is_array, mapping=None if name == "json" else dict(mapping))
