"""Shape: what a document relies on in the catalogue, of each relation that it reads.

Recorded when a definition is analysed and compared whenever the document is read, in the same snapshot, so that a
document is never composed from columns that are no longer those it was applied to.

Guarantees: a column that is renamed, dropped or given another type, collation or generation expression, a relation
that is gone or of another kind, and a view that is redefined, make another shape. What nobody reads makes none, nor
does a value that is added to an enum. No oids and no search_path: a dump that is restored has the same shape.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg.types.json import Jsonb

from syncer.postgres import Connection, names_in_full

# Postgres's own types (their oids are fixed, below 10000) have one name under any search_path, and are most of all:
# what it takes to name another type, or another collation than the default, is looked up for those only.
_COLUMNS = """
SELECT asked.relation, c.relkind::text, a.attname::text,
       CASE WHEN a.atttypid < 10000 THEN format_type(a.atttypid, a.atttypmod)
            ELSE (SELECT format('%I.%I', n.nspname, t.typname)
                         || CASE WHEN a.atttypmod >= 0 THEN format(' (%s)', a.atttypmod) ELSE '' END
                         || coalesce((SELECT format(' of %s', string_agg(format('%I %s', f.attname,
                                                    CASE WHEN f.atttypid < 10000
                                                         THEN format_type(f.atttypid, f.atttypmod)
                                                         ELSE format('%I.%I', fn.nspname, ft.typname) END),
                                                    ', ' ORDER BY f.attnum))
                                      FROM pg_type AS e JOIN pg_attribute AS f ON f.attrelid = e.typrelid
                                      JOIN pg_type AS ft ON ft.oid = f.atttypid
                                      JOIN pg_namespace AS fn ON fn.oid = ft.typnamespace
                                      WHERE e.oid IN (t.oid, t.typelem) AND e.typtype = 'c'
                                        AND f.attnum > 0 AND NOT f.attisdropped HAVING count(*) > 0), '')
                  FROM pg_type AS t JOIN pg_namespace AS n ON n.oid = t.typnamespace WHERE t.oid = a.atttypid) END
       || CASE WHEN a.attcollation IN (0, 100) THEN ''
               ELSE (SELECT format(' COLLATE %I.%I', n.nspname, k.collname)
                     FROM pg_collation AS k JOIN pg_namespace AS n ON n.oid = k.collnamespace
                     WHERE k.oid = a.attcollation) END,
       a.attgenerated <> '',
       CASE WHEN a.atttypid >= 10000
            THEN (SELECT array_agg(l.enumlabel::text ORDER BY l.enumsortorder)
                  FROM pg_type AS t JOIN pg_enum AS l ON l.enumtypid IN (t.oid, t.typelem) WHERE t.oid = a.atttypid) END
FROM jsonb_each($1) AS asked (relation, columns)
JOIN pg_class AS c ON c.oid = to_regclass(asked.relation)
LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                           AND (asked.columns ? a.attname::text OR asked.columns ? '*')
"""
# How these are spelled depends on the search_path: it is set aside while they are read.
_FUNCTIONS = """
SELECT name, md5(pg_get_functiondef(to_regprocedure(name))) FROM unnest($1::text[]) AS name
WHERE to_regprocedure(name) IS NOT NULL
"""
_EXPRESSIONS = """
SELECT asked.relation, NULL, md5(pg_get_viewdef(c.oid))
FROM jsonb_each($1) AS asked (relation, columns)
JOIN pg_class AS c ON c.oid = to_regclass(asked.relation) AND c.relkind IN ('v', 'm')
UNION ALL
SELECT asked.relation, a.attname::text, pg_get_expr(d.adbin, d.adrelid)
FROM jsonb_each($1) AS asked (relation, columns)
JOIN pg_attribute AS a ON a.attrelid = to_regclass(asked.relation) AND a.attgenerated <> ''
                      AND (asked.columns ? a.attname::text OR asked.columns ? '*')
JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
"""

_KINDS = {
    "r": "a table",
    "p": "a partitioned table",
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
}
FUNCTION = "a function"
"""What kind of thing a `Shape` says a function is."""
_VIEWS = frozenset({"a view", "a materialized view"})
_LOCKABLE = frozenset({"a table", "a partitioned table", "a view"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a document relies on of one relation.

    Args:
        kind: What it is, in words.
        columns: The type, with collation and generation expression, of each column that the document names.
        labels: The values of each of them that is an enum, or an array of one.
        definition: If it is a view or a function: a digest of what it is defined as.
        is_whole: Whether the document shows whole rows, and so every column that there will be.
    """

    kind: str
    columns: dict[str, str] = field(default_factory=dict)
    labels: dict[str, list[str]] = field(default_factory=dict)
    definition: str | None = None
    is_whole: bool = False


Shapes = Mapping[str, Shape]
"""By relation, ``schema.table``, quoted where SQL needs it; or by function, with the types of its arguments."""


def read(
    connection: Connection,
    columns: Mapping[str, Iterable[str]],
    *,
    whole: Collection[str] = (),
    functions: Collection[str] = (),
) -> dict[str, Shape]:
    """The shape as it is, in the caller's snapshot.

    Args:
        connection: Where to ask.
        columns: The columns of each relation that a document names. What is not there is left out.
        whole: Those of which it shows whole rows.
        functions: What it calls, beside Postgres' own functions.
    """
    asked = (Jsonb({relation: ["*"] if relation in whole else sorted(named) for relation, named in columns.items()}),)
    kinds: dict[str, str] = {}
    found: dict[str, dict[str, str]] = {}
    labels: dict[str, dict[str, list[str]]] = {}
    has_expressions = False
    for relation, kind, column, type_, is_generated, values in connection.execute(_COLUMNS, asked, prepare=True):
        kinds[relation] = _KINDS.get(kind, f"a relation of kind {kind}")
        if column is not None:
            found.setdefault(relation, {})[column] = type_
        if values is not None:
            labels.setdefault(relation, {})[column] = values
        has_expressions = has_expressions or is_generated or kinds[relation] in _VIEWS
    definitions: dict[str, str] = {}
    for relation, column, expression in _spelled(connection, _EXPRESSIONS, asked) if has_expressions else ():
        if column is None:
            definitions[relation] = expression
        else:
            found[relation][column] += f" GENERATED AS ({expression})"
    shapes = {
        relation: Shape(
            kind=kind,
            columns=found.get(relation, {}),
            labels=labels.get(relation, {}),
            definition=definitions.get(relation),
            is_whole=relation in whole,
        )
        for relation, kind in kinds.items()
    }
    if functions:
        for name, definition in _spelled(connection, _FUNCTIONS, (list(functions),)):
            shapes[name] = Shape(kind=FUNCTION, definition=definition)
    return shapes


def _spelled(connection: Connection, query: str, asked: Sequence[object]) -> list[tuple[Any, ...]]:
    with names_in_full(connection):
        return connection.execute(query, asked).fetchall()


def read_again(connection: Connection, shapes: Shapes) -> dict[str, Shape]:
    """The shape as it is now of what had this shape."""
    relations = {name: shape for name, shape in shapes.items() if shape.kind != FUNCTION}
    return read(
        connection,
        {name: shape.columns for name, shape in relations.items()},
        whole={name for name, shape in relations.items() if shape.is_whole},
        functions=shapes.keys() - relations.keys(),
    )


def differences(before: Shapes, after: Shapes) -> list[str]:
    """What has changed since a document was applied, in words."""
    return [said for relation in before for said in _different(relation, before[relation], after.get(relation))]


def _different(relation: str, before: Shape, after: Shape | None) -> Iterator[str]:
    if after is None:
        yield f"{relation} is gone"
        return
    if before.kind != after.kind:
        yield f"{relation} was {before.kind} and is {after.kind}"
    elif before.definition != after.definition:
        yield f"the {before.kind.removeprefix('a ')} {relation} is defined anew"
    if before.is_whole:
        yield from (f"{relation}.{column} is new" for column in after.columns if column not in before.columns)
    for column, type_ in before.columns.items():
        if column not in after.columns:
            yield f"{relation}.{column} is gone"
        elif type_ != after.columns[column]:
            yield f"{relation}.{column} was {type_} and is {after.columns[column]}"
    for column, values in before.labels.items():
        if lost := [one for one in values if one not in after.labels.get(column, values)]:
            yield f"{relation}.{column} no longer has the value {', '.join(lost)}"


def lockable(shapes: Shapes) -> list[str]:
    """The relations that LOCK TABLE takes."""
    return sorted(relation for relation, shape in shapes.items() if shape.kind in _LOCKABLE)
