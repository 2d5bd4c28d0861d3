"""Fingerprints: what a document depends on in the catalogue, for each relation that it reads.

Recorded when a definition is analysed, and compared in the same snapshot whenever the document is read. So a document
is never built from columns other than those it was applied to.

Guarantees: the shape changes if a column is renamed, dropped or given another type, collation or generation expression;
if a relation is dropped or replaced by another kind; if a view is redefined. It does not change with anything the
document does not read, or with a value added to an enum. It contains no oids and does not depend on search_path, so a
restored dump has the same shape.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from psycopg import sql
from psycopg.types.json import Jsonb

from syncer.base.postgres import Connection

# Most types are Postgres' own: fixed oids below 10000, and one name under any search_path. The names of other types,
# and of collations other than the default, are looked up separately.
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
"""The ``kind`` of a `Shape` that describes a function."""
_VIEWS = frozenset({"a view", "a materialized view"})
_LOCKABLE = frozenset({"a table", "a partitioned table", "a view"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a document depends on in one relation.

    Args:
        kind: What it is, in words.
        columns: Type, collation and generation expression of each column that the document names.
        labels: The values of those that are an enum or an array of one.
        definition: Digest of the definition of a view or function.
        is_whole: Whether the document shows whole rows, so that every future column counts.
    """

    kind: str
    columns: dict[str, str] = field(default_factory=dict)
    labels: dict[str, list[str]] = field(default_factory=dict)
    definition: str | None = None
    is_whole: bool = False


Shapes = Mapping[str, Shape]
"""By relation, ``schema.table``, quoted where SQL needs it; or by function, with its argument types."""


def read(
    connection: Connection,
    columns: Mapping[str, Iterable[str]],
    *,
    whole: Collection[str] = (),
    functions: Collection[str] = (),
) -> dict[str, Shape]:
    """Return the shapes in the caller's snapshot.

    Args:
        connection: Postgres.
        columns: The columns that a document names, by relation. Missing ones are left out.
        whole: The relations of which it shows whole rows.
        functions: The functions that it calls, except Postgres' own.
    """
    asked = (Jsonb(_relied_on(columns, whole)),)
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
    for relation, column, expression in connection.execute(_EXPRESSIONS, asked).fetchall() if has_expressions else ():
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
        for name, definition in connection.execute(_FUNCTIONS, (list(functions),)).fetchall():
            shapes[name] = Shape(kind=FUNCTION, definition=definition)
    return shapes


# A digest is cheaper to compare than shapes, whose details serve only the message about a difference.
_FINGERPRINT = """
SELECT md5(string_agg(said, ' ' ORDER BY said COLLATE "C")) FROM ({parts}) AS part
"""


def fingerprint_query(shapes: Shapes) -> sql.Composed:
    """Return the query for a digest of all that `read_again` reads. Equal digests mean equal shapes.

    The spelling of expressions depends on the session's ``search_path``, which is pinned: see `syncer.base.postgres`.
    """
    relations = {name: shape for name, shape in shapes.items() if shape.kind != FUNCTION}
    named = {name: ["*"] if shape.is_whole else sorted(shape.columns) for name, shape in relations.items()}
    parts = [_said_by(_COLUMNS, sql.Literal(Jsonb(named)))]
    if any(_has_expressions(one) for one in relations.values()):
        parts.append(_said_by(_EXPRESSIONS, sql.Literal(Jsonb(named))))
    if functions := sorted(shapes.keys() - relations.keys()):
        parts.append(_said_by(_FUNCTIONS, sql.Literal(functions)))
    return sql.SQL(_FINGERPRINT).format(parts=sql.SQL(" UNION ALL ").join(parts))


def _has_expressions(shape: Shape) -> bool:
    """Whether it contains expressions. A relation that gains one changes its kind or a column's type."""
    return shape.kind in _VIEWS or any("GENERATED AS" in one for one in shape.columns.values())


def _said_by(query: str, asked: sql.Literal) -> sql.Composed:
    """Return a query for the rows of one of the queries above as text, with its parameter filled in."""
    before, *after = query.split("$1")
    loaded = sql.SQL(before) + sql.Composed([part for one in after for part in (asked, sql.SQL(one))])
    return sql.SQL("SELECT said::text AS said FROM ({query}) AS said").format(query=loaded)


def read_again(connection: Connection, shapes: Shapes) -> dict[str, Shape]:
    """Return the current shapes of what had these shapes."""
    relations = {name: shape for name, shape in shapes.items() if shape.kind != FUNCTION}
    return read(
        connection,
        {name: shape.columns for name, shape in relations.items()},
        whole={name for name, shape in relations.items() if shape.is_whole},
        functions=shapes.keys() - relations.keys(),
    )


def differences(before: Shapes, after: Shapes) -> list[str]:
    """Describe what has changed since a document was applied."""
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


def _relied_on(columns: Mapping[str, Iterable[str]], whole: Collection[str]) -> dict[str, list[str]]:
    return {relation: ["*"] if relation in whole else sorted(named) for relation, named in columns.items()}


def lockable(shapes: Shapes) -> list[str]:
    """Return the relations that LOCK TABLE accepts."""
    return sorted(relation for relation, shape in shapes.items() if shape.kind in _LOCKABLE)
