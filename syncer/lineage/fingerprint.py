"""Fingerprints: what a document depends on in the catalogue, for each relation that it reads.

Recorded when a definition is analysed, and compared in the same snapshot whenever the document is read. So a document
is never built from columns other than those it was applied to.

Guarantees: the shape changes if a column is renamed, dropped or given another type, collation or generation expression,
or if another column gets its name; if a relation is dropped or replaced by another kind; if a view, a function or an
aggregate is redefined, also one that only another function calls; if a type changes that is an element, an attribute or
a base of what a column has, at any depth, or gets another cast to json. It does not change with anything the document
does not read, or with a value added to an enum, unless the SELECT lists the values of enums. It does not depend on
search_path. It has the numbers of columns, which a dump does not keep, together with the oid of their relation: numbers
are compared only within the same relation. So a restored dump has the same shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from psycopg import sql
from psycopg.types.json import Jsonb

from syncer.base.postgres import Connection

# Most types are Postgres' own: fixed oids below 10000, and one name under any search_path. The names of other types,
# and of collations other than the default, are looked up separately.
_TYPE = """
CASE WHEN {type} < 10000 THEN format_type({type}, {modifier})
     ELSE (SELECT format('%I.%I', n.nspname, t.typname)
                  || CASE WHEN {modifier} >= 0 THEN format(' (%s)', {modifier}) ELSE '' END
           FROM pg_type AS t JOIN pg_namespace AS n ON n.oid = t.typnamespace WHERE t.oid = {type}) END
"""
# Relations with their columns, functions, and types with the values of enums. A composite type is described by its
# attributes in order, a domain or an array by what it is of. row_to_json uses a cast to json of a type that is not
# Postgres' own.
_SHAPES = f"""
SELECT asked.name, c.relkind::text, c.oid::bigint,
       CASE WHEN c.relkind IN ('v', 'm') THEN md5(pg_get_viewdef(c.oid)) END,
       a.attname::text, a.attnum::int,
       {_TYPE.format(type="a.atttypid", modifier="a.atttypmod")}
       || CASE WHEN a.attcollation IN (0, 100) THEN ''
               ELSE (SELECT format(' COLLATE %I.%I', n.nspname, k.collname)
                     FROM pg_collation AS k JOIN pg_namespace AS n ON n.oid = k.collnamespace
                     WHERE k.oid = a.attcollation) END
       || CASE WHEN a.attgenerated = '' THEN ''
               ELSE (SELECT format(' GENERATED AS (%s)', pg_get_expr(d.adbin, d.adrelid))
                     FROM pg_attrdef AS d WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum) END
FROM jsonb_each($1 -> 'relations') AS asked (name, columns)
JOIN pg_class AS c ON c.oid = to_regclass(asked.name)
LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                           AND (asked.columns ? a.attname::text OR asked.columns ? '*')
UNION ALL
SELECT asked.name, 'function', 0,
       md5(CASE p.prokind WHEN 'a' THEN (SELECT a::text FROM pg_aggregate AS a WHERE a.aggfnoid = p.oid)
           ELSE pg_get_functiondef(p.oid) END), NULL, 0, NULL
FROM jsonb_array_elements_text($1 -> 'functions') AS asked (name)
JOIN pg_proc AS p ON p.oid = to_regprocedure(asked.name)
UNION ALL
SELECT 'type ' || asked.name, 'type', 0, concat_ws(' ', t.typtype,
           CASE WHEN t.typbasetype <> 0 THEN {_TYPE.format(type="t.typbasetype", modifier="t.typtypmod")} END,
           (SELECT string_agg(format('%I %s', a.attname, {_TYPE.format(type="a.atttypid", modifier="a.atttypmod")}),
                              ', ' ORDER BY a.attnum)
            FROM pg_attribute AS a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped),
           (SELECT format('as json by %s %s', k.castfunc::regprocedure, md5(p.prosrc))
            FROM pg_cast AS k JOIN pg_proc AS p ON p.oid = k.castfunc
            WHERE k.castsource = t.oid AND k.casttarget = 'json'::regtype)),
       l.enumlabel::text, 0, ''
FROM jsonb_array_elements_text($1 -> 'types') AS asked (name)
JOIN pg_type AS t ON t.oid = to_regtype(asked.name)
LEFT JOIN pg_enum AS l ON l.enumtypid = t.oid
"""
# A digest is cheaper to compare than shapes, whose details serve only the message about a difference.
_DIGEST = "SELECT md5(string_agg(shape::text, ' ' ORDER BY shape::text COLLATE \"C\")) FROM ({shapes}) AS shape"

_KINDS = {
    "r": "a table",
    "p": "a partitioned table",
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "function": "a function",
    "type": "a type",
}
_LISTS_VALUES = frozenset({"enum_first", "enum_last", "enum_range"})
_LOCKABLE = frozenset({"a table", "a partitioned table", "a view"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a document depends on in one relation, function or type.

    Args:
        kind: What it is, in words.
        definition: Digest of the definition of a view or function, or what a type is made of.
        oid: A relation's, for the numbers of its columns.
        parts: The columns that the document names, each with its type, collation and generation expression; or the
            values of an enum.
        numbers: The number of each of these columns in the relation.
        is_whole: Whether the document shows whole rows, or lists the values, so that every future part counts.
    """

    kind: str
    definition: str | None = None
    oid: int = 0
    parts: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    is_whole: bool = False


Shapes = Mapping[str, Shape]
"""By relation, ``schema.table``, quoted where SQL needs it; by function, with its argument types; or by type.

``type`` precedes the name of a type, since a relation and its row type have one name.
"""


def read(connection: Connection, shapes: Shapes) -> dict[str, Shape]:
    """Return the shapes in the caller's snapshot of what these name, with the parts that they name or, if whole, all.

    What is gone is left out.
    """
    found: dict[str, Shape] = {}
    rows = connection.execute(_SHAPES, (Jsonb(_asked(shapes)),), prepare=True).fetchall()
    for name, kind, oid, definition, part, number, description in rows:
        words = _KINDS.get(kind, f"a relation of kind {kind}")
        shape = Shape(kind=words, definition=definition, oid=oid, is_whole=shapes[name].is_whole)
        shape = found.setdefault(name, shape)
        if part is not None:
            shape.parts[part] = description
            shape.numbers[part] = number
    return found


def _asked(shapes: Shapes) -> dict[str, Any]:
    """Return the parameter of the query for shapes: relations with their columns, functions and types."""
    functions = [name for name, shape in shapes.items() if shape.kind == "a function"]
    types = [name for name, shape in shapes.items() if shape.kind == "a type"]
    return {
        "relations": {
            name: ["*"] if shape.is_whole else sorted(shape.parts)
            for name, shape in shapes.items()
            if name not in {*functions, *types}
        },
        "functions": sorted(functions),
        "types": sorted(name.removeprefix("type ") for name in types),
    }


def fingerprint_query(shapes: Shapes) -> sql.Composed:
    """Return the query for a digest of all that `read` reads. Equal digests mean equal shapes.

    The spelling of expressions depends on the session's ``search_path``, which is pinned: see `syncer.base.postgres`.
    """
    asked = sql.Literal(Jsonb(_asked(shapes)))
    return sql.SQL(_DIGEST).format(shapes=sql.SQL(_SHAPES.replace("$1", "{asked}")).format(asked=asked))


def lists_values(query: str) -> bool:
    """Return whether a query may show all values of an enum, so that a new one changes its result."""
    return any(name in query for name in _LISTS_VALUES)


def differences(before: Shapes, after: Shapes) -> list[str]:
    """Describe what has changed since a document was applied."""
    return [text for name in before for text in _differences(name, before[name], after.get(name))]


def _differences(name: str, before: Shape, after: Shape | None) -> Iterator[str]:
    if after is None:
        yield f"{name} is gone"
        return
    if before.kind != after.kind:
        yield f"{name} was {before.kind} and is {after.kind}"
    elif before.definition != after.definition:
        what = f"the {before.kind.removeprefix('a ')} {name.removeprefix('type ')}"
        yield f"{what}{', or its cast to json,' if before.kind == 'a type' else ''} is defined anew"
    if before.is_whole:
        yield from (f"{name}.{part} is new" for part in after.parts if part not in before.parts)
    for part, description in before.parts.items():
        if part not in after.parts:
            yield f"{name}.{part} is gone"
        elif description != after.parts[part]:
            yield f"{name}.{part} was {description} and is {after.parts[part]}"
        elif before.oid == after.oid and before.numbers[part] != after.numbers[part]:
            yield f"{name}.{part} is another column than before"


def lockable(shapes: Shapes) -> list[str]:
    """Return the relations that LOCK TABLE accepts."""
    return sorted(relation for relation, shape in shapes.items() if shape.kind in _LOCKABLE)
