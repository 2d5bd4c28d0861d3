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

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

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
_COLUMNS = f"""
SELECT asked.relation, c.relkind::text, c.oid::bigint, a.attname::text, a.attnum::int,
       {_TYPE.format(type="a.atttypid", modifier="a.atttypmod")}
       || CASE WHEN a.attcollation IN (0, 100) THEN ''
               ELSE (SELECT format(' COLLATE %I.%I', n.nspname, k.collname)
                     FROM pg_collation AS k JOIN pg_namespace AS n ON n.oid = k.collnamespace
                     WHERE k.oid = a.attcollation) END,
       a.attgenerated <> ''
FROM jsonb_each($1) AS asked (relation, columns)
JOIN pg_class AS c ON c.oid = to_regclass(asked.relation)
LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                           AND (asked.columns ? a.attname::text OR asked.columns ? '*')
"""  # noqa: S608 - of constants
# A composite type by its attributes in order, an enum by its values, a domain or an array by what it is of. row_to_json
# uses a cast to json of a type that is not Postgres' own.
_TYPES = f"""
SELECT name, concat_ws(' ', t.typtype,
           CASE WHEN t.typbasetype <> 0 THEN {_TYPE.format(type="t.typbasetype", modifier="t.typtypmod")} END,
           (SELECT string_agg(format('%I %s', a.attname, {_TYPE.format(type="a.atttypid", modifier="a.atttypmod")}),
                              ', ' ORDER BY a.attnum)
            FROM pg_attribute AS a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped),
           (SELECT format('as json by %s %s', k.castfunc::regprocedure, md5(p.prosrc))
            FROM pg_cast AS k JOIN pg_proc AS p ON p.oid = k.castfunc
            WHERE k.castsource = t.oid AND k.casttarget = 'json'::regtype)),
       (SELECT array_agg(l.enumlabel::text ORDER BY l.enumsortorder) FROM pg_enum AS l WHERE l.enumtypid = t.oid)
FROM unnest($1::text[]) AS name JOIN pg_type AS t ON t.oid = to_regtype(name)
"""  # noqa: S608 - of constants
_FUNCTIONS = """
SELECT name, md5(CASE p.prokind WHEN 'a' THEN (SELECT a::text FROM pg_aggregate AS a WHERE a.aggfnoid = p.oid)
                 ELSE pg_get_functiondef(p.oid) END)
FROM unnest($1::text[]) AS name JOIN pg_proc AS p ON p.oid = to_regprocedure(name)
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
_TYPE_KIND = "a type"
_TYPE_PREFIX = "type "
"""Precedes the name of a type, since a relation and its row type have one name."""
_LISTS_VALUES = frozenset({"enum_first", "enum_last", "enum_range"})
_VIEWS = frozenset({"a view", "a materialized view"})
_LOCKABLE = frozenset({"a table", "a partitioned table", "a view"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a document depends on in one relation.

    Args:
        kind: What it is, in words.
        columns: Type, collation and generation expression of each column that the document names.
        oid: The relation's, for its numbers.
        numbers: The number of each of these columns in the relation.
        values: The values of an enum.
        lists_values: Whether the document shows the values of enums themselves, so that every future one counts.
        definition: Digest of the definition of a view or function, or what a type is made of.
        is_whole: Whether the document shows whole rows, so that every future column counts.
    """

    kind: str
    columns: dict[str, str] = field(default_factory=dict)
    oid: int = 0
    numbers: dict[str, int] = field(default_factory=dict)
    values: tuple[str, ...] = ()
    lists_values: bool = False
    definition: str | None = None
    is_whole: bool = False


Shapes = Mapping[str, Shape]
"""By relation, ``schema.table``, quoted where SQL needs it; by function, with its argument types; or by type."""


def read(
    connection: Connection,
    columns: Mapping[str, Iterable[str]],
    *,
    whole: Collection[str] = (),
    functions: Collection[str] = (),
    types: Collection[str] = (),
    lists_values: bool = False,
) -> dict[str, Shape]:
    """Return the shapes in the caller's snapshot.

    Args:
        connection: Postgres.
        columns: The columns that a document names, by relation. Missing ones are left out.
        whole: The relations of which it shows whole rows.
        functions: The functions that it calls, except Postgres' own.
        types: The types that it reads, except Postgres' own.
        lists_values: Whether it shows all values of enums.
    """
    asked = (Jsonb(_relied_on(columns, whole)),)
    kinds: dict[str, tuple[str, int]] = {}
    found: dict[str, dict[str, str]] = {}
    numbers: dict[str, dict[str, int]] = {}
    has_expressions = False
    for relation, kind, oid, column, number, type_, is_generated in connection.execute(_COLUMNS, asked, prepare=True):
        kinds[relation] = (_KINDS.get(kind, f"a relation of kind {kind}"), oid)
        if column is not None:
            found.setdefault(relation, {})[column] = type_
            numbers.setdefault(relation, {})[column] = number
        has_expressions = has_expressions or is_generated or kinds[relation][0] in _VIEWS
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
            oid=oid,
            numbers=numbers.get(relation, {}),
            definition=definitions.get(relation),
            is_whole=relation in whole,
        )
        for relation, (kind, oid) in kinds.items()
    }
    for name, definition in connection.execute(_FUNCTIONS, (list(functions),)).fetchall() if functions else ():
        shapes[name] = Shape(kind=FUNCTION, definition=definition)
    for name, definition, values in connection.execute(_TYPES, (list(types),)).fetchall() if types else ():
        shapes[f"{_TYPE_PREFIX}{name}"] = Shape(
            kind=_TYPE_KIND, definition=definition, values=tuple(values or ()), lists_values=lists_values
        )
    return shapes


# A digest is cheaper to compare than shapes, whose details serve only the message about a difference.
_FINGERPRINT = """
SELECT md5(string_agg(said, ' ' ORDER BY said COLLATE "C")) FROM ({parts}) AS part
"""


def fingerprint_query(shapes: Shapes) -> sql.Composed:
    """Return the query for a digest of all that `read_again` reads. Equal digests mean equal shapes.

    The spelling of expressions depends on the session's ``search_path``, which is pinned: see `syncer.base.postgres`.
    """
    relations, functions, types = _parted(shapes)
    named = {name: ["*"] if shape.is_whole else sorted(shape.columns) for name, shape in relations.items()}
    parts = [_said_by(_COLUMNS, sql.Literal(Jsonb(named)))]
    if any(_has_expressions(one) for one in relations.values()):
        parts.append(_said_by(_EXPRESSIONS, sql.Literal(Jsonb(named))))
    if functions:
        parts.append(_said_by(_FUNCTIONS, sql.Literal(functions)))
    if types:
        parts.append(_said_by(_TYPES, sql.Literal(types)))
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
    relations, functions, types = _parted(shapes)
    return read(
        connection,
        {name: shape.columns for name, shape in relations.items()},
        whole={name for name, shape in relations.items() if shape.is_whole},
        functions=functions,
        types=types,
        lists_values=any(shape.lists_values for shape in shapes.values()),
    )


def _parted(shapes: Shapes) -> tuple[dict[str, Shape], list[str], list[str]]:
    """Return the relations among shapes, and the names of the functions and of the types."""
    relations = {name: shape for name, shape in shapes.items() if shape.kind not in (FUNCTION, _TYPE_KIND)}
    functions = sorted(name for name, shape in shapes.items() if shape.kind == FUNCTION)
    types = sorted(name.removeprefix(_TYPE_PREFIX) for name, shape in shapes.items() if shape.kind == _TYPE_KIND)
    return relations, functions, types


def lists_values(query: str) -> bool:
    """Return whether a query may show all values of an enum, so that a new one changes its result."""
    return any(name in query for name in _LISTS_VALUES)


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
        yield f"the {before.kind.removeprefix('a ')} {relation.removeprefix(_TYPE_PREFIX)} is defined anew"
    if before.is_whole:
        yield from (f"{relation}.{column} is new" for column in after.columns if column not in before.columns)
    yield from _different_columns(relation, before, after)
    if lost := [label for label in before.values if label not in after.values]:
        yield f"{relation} no longer has the value {', '.join(lost)}"
    elif before.lists_values and before.values != after.values:
        yield f"{relation} has other values"


def _different_columns(relation: str, before: Shape, after: Shape) -> Iterator[str]:
    for column, type_ in before.columns.items():
        if column not in after.columns:
            yield f"{relation}.{column} is gone"
        elif type_ != after.columns[column]:
            yield f"{relation}.{column} was {type_} and is {after.columns[column]}"
        elif before.oid == after.oid and before.numbers.get(column) != after.numbers.get(column):
            yield f"{relation}.{column} is another column than before"


def _relied_on(columns: Mapping[str, Iterable[str]], whole: Collection[str]) -> dict[str, list[str]]:
    return {relation: ["*"] if relation in whole else sorted(named) for relation, named in columns.items()}


def lockable(shapes: Shapes) -> list[str]:
    """Return the relations that LOCK TABLE accepts."""
    return sorted(relation for relation, shape in shapes.items() if shape.kind in _LOCKABLE)
