"""Fitting: does what Postgres gives of a column fit what Elasticsearch's mapping makes of it?

Said before the first document is written, from the types alone: a column whose values would be refused, silently
changed, or not found again is a *misfit*. Where only some values of a type do not fit, the misfit has a condition
that Postgres can be asked whether any row of today meets. What single types make of one another says
`syncer.plan.judging`; what is inside a ``jsonb`` no type tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from psycopg import sql

from syncer.plan.judging import judge
from syncer.plan.mappings import settled
from syncer.plan.verdict import FRACTIONS, OBJECTS, WORDS, ColumnType, Effect, Verdict, kind_of
from syncer.postgres import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """A field and a mapping that do not fit.

    Args:
        field: Its path in the document.
        type: As Postgres says it; empty for a field that the SELECT does not return.
        mapping: Elasticsearch's type, or how it treats a field that no mapping names.
        effect: What becomes of the values.
        what: The same in words.
        mend: What to do.
        condition: SQL over the SELECT as ``d``: which rows have such a value; None if every value is one.
        is_rare: Whether such values are so unusual that only one that is there is worth a word.
    """

    field: str
    type: str
    mapping: str
    effect: Effect
    what: str
    mend: str
    condition: str | None = None
    is_rare: bool = False


# Postgres' types

_PLAIN = (
    *("int2", "int4", "int8", "numeric", "float4", "float8", "bool", "uuid", "money", "date", "timestamp"),
    *("timestamptz", "time", "timetz", "interval", "bytea", "json", "bpchar", "inet", "cidr", "macaddr", "point"),
    *("tsvector", "vector"),
)
_KINDS = {
    **{name: name for name in _PLAIN},
    "jsonb": "json",
    **dict.fromkeys(("text", "varchar", "name", "citext", "char", "xml"), "text"),
    **dict.fromkeys(("lseg", "path", "box", "polygon", "line", "circle"), "shape"),
}
"""By the name in the catalogue. What is not here is not judged."""

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
    """What a type is, asked of the catalogue.

    Args:
        connection: To the database that has it.
        said: As ``format_type`` says it.
    """
    row = connection.execute(_TYPE, (said,)).fetchone()
    if row is None:  # an array that is not one, such as int2vector
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


# The walk over the fields of a document


def check(connection: Connection, fields: Mapping[str, str], index_body: Mapping[str, Any]) -> tuple[Misfit, ...]:
    """Hold the fields of a SELECT against a mapping.

    Args:
        connection: To the database whose types they are.
        fields: Each field's type, as ``format_type`` says it.
        index_body: ``settings`` and ``mappings``, as in index.json.
    """
    types = {name: column_type(connection, said) for name, said in fields.items()}
    return misfits(types, settled(index_body.get("mappings", {})))


def misfits(fields: Mapping[str, ColumnType], mappings: Mapping[str, Any]) -> tuple[Misfit, ...]:
    """The same of types that are known, and mappings that are settled; pure."""
    found = [misfit for name, type_ in fields.items() for misfit in _field(name, type_, mappings)]
    return (*found, *_unused(fields, mappings))


def _field(name: str, type_: ColumnType, mappings: Mapping[str, Any], row: str = "d") -> Iterator[Misfit]:
    """One field; ``row`` is what a condition finds its column in."""
    mapping = _lookup(name, mappings.get("properties", {}))
    if mapping is None:
        yield from unmapped(name, type_, mappings)
        return
    column = f"{row}.{sql.Identifier(name).as_string()}"
    for path, one in destinations(name, mapping, mappings):
        for verdict in judge(type_, one):
            yield place(path, type_, one, verdict, _of_value(verdict.when, column, type_))
        yield from _inside(path, type_, one, mappings.get("dynamic", "true"), column)


def _of_value(condition: str | None, column: str, type_: ColumnType) -> str | None:
    """A condition on a value, as one on a column or on any element of it."""
    if condition is None or not type_.is_array:
        return condition and condition.replace("{}", column)
    return f"EXISTS (SELECT FROM unnest({column}) AS e (v) WHERE {condition.replace('{}', 'e.v')})"


def _lookup(name: str, properties: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The mapping of a field; a dot in a name is a step into an object."""
    if name in properties:
        found: Mapping[str, Any] = properties[name]
        return found
    head, dot, rest = name.partition(".")
    if dot and head in properties:
        return _lookup(rest, properties[head].get("properties", {}))
    return None


def destinations(
    name: str, mapping: Mapping[str, Any], mappings: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Everywhere that a field's value goes: the field, its multi-fields, and what it is copied to."""
    yield name, dict(mapping)
    for sub, one in mapping.get("fields", {}).items():
        yield f"{name}.{sub}", dict(one)
    for copy in mapping.get("copy_to", []):
        target = _lookup(copy, mappings.get("properties", {}))
        if target is not None and kind_of(target) not in WORDS:
            yield copy, dict(target)


def _inside(path: str, type_: ColumnType, mapping: Mapping[str, Any], dynamic: object, column: str) -> Iterator[Misfit]:
    """The attributes of a composite type, each a field of an object."""
    if kind_of(mapping) not in OBJECTS or mapping.get("enabled") is False:
        return
    inner = {"dynamic": mapping.get("dynamic", dynamic), "properties": mapping.get("properties", {})}
    for name, attribute in type_.attributes.items():
        for misfit in _field(name, attribute, inner, row="e" if type_.is_array else f"({column})"):
            condition = misfit.condition
            if condition is not None and type_.is_array:
                condition = f"EXISTS (SELECT FROM unnest({column}) AS e WHERE {condition})"
            yield replace(misfit, field=f"{path}.{misfit.field}", condition=condition)


def unmapped(name: str, type_: ColumnType, mappings: Mapping[str, Any]) -> Iterator[Misfit]:
    """What becomes of a field that no mapping names."""
    dynamic = str(mappings.get("dynamic", "true")).lower()
    if dynamic == "strict":
        yield Misfit(
            field=name,
            type=type_.said,
            mapping="no mapping, dynamic: strict",
            effect=Effect.REFUSED,
            what="index.json has no such field and forbids others, so that every document is refused",
            mend=f"Add {name} to the mapping, or leave it out of the SELECT.",
        )
    elif dynamic == "false":
        yield Misfit(
            field=name,
            type=type_.said,
            mapping="no mapping, dynamic: false",
            effect=Effect.UNSEARCHABLE,
            what="it is kept and shown, but no search finds it",
            mend=f"Add {name} to the mapping if it is to be searched.",
        )
    elif type_.kind in FRACTIONS and dynamic == "true" and not mappings.get("dynamic_templates"):
        yield Misfit(
            field=name,
            type=type_.said,
            mapping="no mapping",
            effect=Effect.CHANGED,
            what="the first document decides: after a 12, which makes it long, a 12.34 is searched as 12",
            mend=f"Map {name} as double, or as scaled_float for money.",
        )


def _unused(fields: Mapping[str, ColumnType], mappings: Mapping[str, Any]) -> Iterator[Misfit]:
    properties = mappings.get("properties", {})
    copied = {copy for one in properties.values() for copy in one.get("copy_to", [])}
    heads = {name.partition(".")[0] for name in fields}
    for name, mapping in properties.items():
        is_filled = name in fields or name.partition(".")[0] in heads or name in copied
        if not is_filled and mapping.get("type") != "alias":
            yield Misfit(
                field=name,
                type="",
                mapping=kind_of(mapping),
                effect=Effect.UNUSED,
                what="index.json maps it, and the SELECT returns no such column",
                mend=f'Is it spelled as in the SELECT? An unquoted name is lower case there: AS "{name}".',
            )


def place(path: str, type_: ColumnType, mapping: Mapping[str, Any], verdict: Verdict, condition: str | None) -> Misfit:
    """A verdict at its place."""
    effect, what = verdict.effect, verdict.what
    if effect is Effect.REFUSED and mapping.get("ignore_malformed") and kind_of(mapping) not in OBJECTS:
        effect, what = Effect.UNSEARCHABLE, f"{what}; ignore_malformed leaves the value out of the index"
    return Misfit(
        field=path,
        type=type_.said,
        mapping=kind_of(mapping),
        effect=effect,
        what=what,
        mend=verdict.mend,
        condition=condition,
        is_rare=verdict.is_rare,
    )
