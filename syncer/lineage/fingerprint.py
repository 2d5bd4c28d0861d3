"""Fingerprints: what a document depends on in the catalogue, for each relation, function and type that it reads.

Recorded when a definition is analysed, and compared in the same snapshot whenever the document is read. So a document
is never built from columns other than those it was applied to. A difference is a question, which
`syncer.documents.reconsider` answers: `rebased` tells what was recorded in the words of today.

Guarantees: the shape changes if a column is renamed, dropped or given another type, collation or generation expression,
or if another column gets its name; if a relation is dropped or replaced by another kind; if a view, a function or an
aggregate is redefined, also one that only another function calls; if a type changes that is an element, an attribute or
a base of what a column has, at any depth, or gets another cast to json; if a label of an enum gets another name.

It does not change with anything the document does not read; nor with the length or precision of a type, since a change
of a value rewrites the table, which is noted: see `syncer.capture.install`; nor with a label more, unless the SELECT
lists the labels. Numbers of columns and labels are compared within one relation or type: a restored dump has the same
shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from syncer.base.postgres import Connection, value

# Relations with their columns, functions, and types with the labels of enums. The rule of a view has the numbers of
# columns, so that a rename of what it reads leaves it as it is; the names of its own columns are added. A composite
# type is described by its attributes in order, a domain or an array by what it is of. row_to_json uses a cast to json
# of a type that is not Postgres' own.
_RELATIONS = """
SELECT asked.name, c.relkind::text, c.oid::bigint,
       CASE WHEN c.relkind = 'v' THEN pg_get_viewdef(c.oid) END,
       (SELECT md5(concat(r.ev_action, array(SELECT v.attname FROM pg_attribute AS v
                                             WHERE v.attrelid = c.oid AND v.attnum > 0 ORDER BY v.attnum)))
        FROM pg_rewrite AS r WHERE r.ev_class = c.oid AND r.rulename = '_RETURN'),
       a.attname::text, a.attnum::int,
       format_type(a.atttypid, NULL)
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
                           AND (asked.columns -> 'names' ?| ARRAY[a.attname::text, '*']
                                OR asked.columns -> 'numbers' @> to_jsonb(a.attnum))
"""
_SHAPES = f"""{_RELATIONS}
UNION ALL
SELECT asked.name, 'function', 0,
       md5(CASE p.prokind WHEN 'a' THEN (SELECT a::text FROM pg_aggregate AS a WHERE a.aggfnoid = p.oid)
           ELSE pg_get_functiondef(p.oid) END), NULL, NULL, 0, NULL
FROM jsonb_array_elements_text($1 -> 'functions') AS asked (name)
JOIN pg_proc AS p ON p.oid = to_regprocedure(asked.name)
UNION ALL
SELECT 'type ' || asked.name, 'type', t.oid::bigint, concat_ws(' ', t.typtype,
           CASE WHEN t.typbasetype <> 0 THEN format_type(t.typbasetype, NULL) END,
           (SELECT string_agg(format('%I %s', a.attname, format_type(a.atttypid, NULL)), ', ' ORDER BY a.attnum)
            FROM pg_attribute AS a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped),
           (SELECT format('as json by %s %s', k.castfunc::regprocedure, md5(p.prosrc))
            FROM pg_cast AS k JOIN pg_proc AS p ON p.oid = k.castfunc
            WHERE k.castsource = t.oid AND k.casttarget = 'json'::regtype)),
       NULL, l.enumlabel::text, l.oid::bigint, (row_number() OVER (PARTITION BY t.oid ORDER BY l.enumsortorder))::text
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
_AGAIN = "CREATE TEMPORARY VIEW syncer_again AS {}"
"""A view of a query as Postgres has deparsed it, to see how Postgres reads and deparses that."""
LISTS_VALUES = frozenset({"enum_first", "enum_last", "enum_range"})
"""The functions by which a query may show all values of an enum, so that a new one changes its result."""
_LOCKABLE = frozenset({"a table", "a partitioned table", "a view"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a document depends on in one relation, function or type.

    Args:
        kind: What it is, in words.
        definition: A view as Postgres deparses it, the digest of a function, or what a type is made of.
        rule: Digest of a view as Postgres stores it.
        oid: A relation's or a type's, for the numbers of its columns or labels.
        parts: The columns that the document names, each with its type, collation and generation expression; or the
            labels of an enum, each with its place.
        numbers: What stays if one of these is renamed: the number of a column in its relation, the oid of a label.
        is_whole: Whether the document shows whole rows, or lists the values, so that every future part counts.
    """

    kind: str
    definition: str | None = None
    rule: str | None = None
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

    What is gone is left out. A column that was renamed is there under its new name.
    """
    shapes_now: dict[str, Shape] = {}
    asked = _asked(shapes)
    query = _SHAPES if asked["functions"] or asked["types"] else _RELATIONS  # it takes longer to plan than to run
    rows = connection.execute(query, (Jsonb(asked),), prepare=True).fetchall()
    for name, kind, oid, definition, rule, member, number, description in rows:
        words = _KINDS.get(kind, f"a relation of kind {kind}")
        shape = Shape(kind=words, definition=definition, rule=rule, oid=oid, is_whole=shapes[name].is_whole)
        shape = shapes_now.setdefault(name, shape)
        if member is not None:
            shape.parts[member] = description
            shape.numbers[member] = number
    return shapes_now


def _asked(shapes: Shapes) -> dict[str, Any]:
    """Return the parameter of the query for shapes: relations with their columns, functions and types."""
    functions = [name for name, shape in shapes.items() if shape.kind == "a function"]
    types = [name for name, shape in shapes.items() if shape.kind == "a type"]
    return {
        "relations": {
            name: {"names": ["*"] if shape.is_whole else [*shape.parts], "numbers": [*shape.numbers.values()]}
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


def differences(recorded: Shapes, current: Shapes) -> list[str]:
    """Describe what has changed since a document was applied."""
    return [text for name in recorded for text in _differences(name, recorded[name], current.get(name))]


def _differences(name: str, recorded: Shape, current: Shape | None) -> Iterator[str]:
    if current is None:
        yield f"{name} is gone"
        return
    is_same = recorded.oid == current.oid
    if recorded.kind != current.kind:
        yield f"{name} was {recorded.kind} and is {current.kind}"
    elif recorded.definition != current.definition and (
        not is_same or recorded.rule is None or recorded.rule != current.rule
    ):
        subject = f"the {recorded.kind.removeprefix('a ')} {name.removeprefix('type ')}"
        yield f"{subject}{', or its cast to json,' if recorded.kind == 'a type' else ''} is defined anew"
    is_type = recorded.kind == "a type"
    if is_type and not is_same:
        # A label that is gone does not count: a column of another type has been written anew, which is noted.
        both = recorded.parts.keys() & current.parts.keys()
        in_order = sorted(both, key=lambda label: int(recorded.parts[label]))
        if in_order != sorted(both, key=lambda label: int(current.parts[label])):
            yield f"{name.removeprefix('type ')} has its labels in another order"
    if is_same or not is_type or recorded.is_whole:
        subject = f"the label {{}} of {name.removeprefix('type ')}" if is_type else f"{name}.{{}}"
        yield from (
            subject.replace("{}", member) + difference for member, difference in _differing_members(recorded, current)
        )


def _differing_members(recorded: Shape, current: Shape) -> Iterator[tuple[str, str]]:
    """Yield the columns or labels that differ, each with how."""
    is_same, is_type = recorded.oid == current.oid, recorded.kind == "a type"
    if recorded.is_whole:
        yield from ((member, " is new") for member in current.parts if member not in recorded.parts)
    names = {number: member for member, number in current.numbers.items()} if is_same else {}
    for member, description in recorded.parts.items():
        new_name = names.get(recorded.numbers.get(member, 0))
        if member not in current.parts:
            yield member, f" is now called {new_name}" if new_name else " is gone"
        elif description != current.parts[member] and not is_type:
            yield member, f" was {description} and is {current.parts[member]}"
        elif is_same and new_name != member:
            replacement = f" is another {'label' if is_type else 'column'} than before"
            yield member, f"{replacement}: that one is now called {new_name}" if new_name else replacement


def rebased(connection: Connection, recorded: Shapes, analysed: Shapes, applied: Shapes) -> dict[str, Shape]:
    """Return what was recorded as Postgres would tell it today, given what a new analysis has found.

    Columns have the names that they have now. A ``character varying`` is a text. Views are as this version of Postgres
    prints them, if they are as they were ``applied``: nothing else is executed.
    """
    told = dict(recorded)
    for name, shape in recorded.items():
        today = analysed.get(name)
        if today is None or shape.is_whole or shape.kind in ("a type", "a function"):
            continue
        definition = shape.definition
        if definition is not None and name in applied and definition == applied[name].definition != today.definition:
            with suppress(psycopg.ProgrammingError), connection.transaction(force_rollback=True):
                connection.execute(sql.SQL(_AGAIN).format(sql.SQL(definition)))  # deparsed by Postgres
                definition = str(value(connection, "SELECT pg_get_viewdef('pg_temp.syncer_again'::regclass)"))
        names = {number: member for member, number in today.numbers.items()} if shape.oid == today.oid else {}
        members, numbers = {}, {}
        for member, description in shape.parts.items():
            renamed = member if member in today.parts else names.get(shape.numbers[member], member)
            described = today.parts.get(renamed, "")
            is_alike = as_text(description) == as_text(described)
            members[renamed], numbers[renamed] = described if is_alike else description, shape.numbers[member]
        told[name] = replace(shape, definition=definition, parts=members, numbers=numbers)
    return told


def as_text(words: str) -> str:
    """Return types or SQL without the difference between two types of which all values and operators are the same."""
    return words.replace("character varying", "text")


def lockable(shapes: Shapes) -> list[str]:
    """Return the relations that LOCK TABLE accepts."""
    return sorted(relation for relation, shape in shapes.items() if shape.kind in _LOCKABLE)
