"""Trigger: the SQL of the functions and triggers that write the outbox.

Guarantees: a trigger never makes a write fail. That holds for any row, and for a table altered since: columns dropped
or renamed, types changed, the table renamed. It runs with its owner's rights, but never runs code of other roles: it
uses a type's output function, never a cast.

An image has the text of each column that decides which documents a row belongs to. If such a column is gone, or a value
is too long or cannot be printed, there is no image. The change then touches every document that reads the table. If a
watched column is gone, every UPDATE is a change.

An ordinary table has statement-level triggers, whose transition tables hold all rows of a statement. A partitioned
table has a row-level one: Postgres clones only those to every present and future partition, where they fire for direct
writes too. So has a table that a subscription loads, since the worker of logical replication fires no others. Both
kinds write the same rows.

A statement can name a column that may be gone: unqualified, in a subquery of its own. If the table lacks the name, it
resolves one level up, in a row of nulls of type ``syncer.gone``. ``syncer.is_gone`` has two forms, and the planner
chooses one by type. So the check costs nothing at run time. Nor can a change of the table overtake it, as it could a
check of the catalogue, whose snapshot may be older.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from psycopg import sql

from syncer.base.model import watched_digest

Types = Mapping[str, str]
"""The columns of a table whose types are Postgres's own, each with its type as the catalogue names it."""

IMAGE_BYTES_MAX = 64 * 1024
"""A larger image is not carried. Code that handles many changes at once relies on this to bound its memory."""

_IDENTIFIER_BYTES_MAX = 63

STATEMENT_TRIGGERS = ("syncer_delete", "syncer_insert", "syncer_truncate", "syncer_update")
"""The triggers of an ordinary table."""

# ALWAYS includes sessions with session_replication_role = replica: their rows are in our documents too.
ENABLE = "ALTER TABLE {} ENABLE ALWAYS TRIGGER {}"
_FUNCTION = """
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS {body}
"""
_FOR_NOBODY = "REVOKE EXECUTE ON FUNCTION {}() FROM PUBLIC"
_FOR_OWNER = "GRANT EXECUTE ON FUNCTION {}() TO {}"

# One statement per kind of change.
_STATEMENT_BODY = """
#variable_conflict use_column
<<trigger>>
DECLARE
    segment bigint := {segment};
BEGIN
    IF TG_OP = 'UPDATE' THEN
        INSERT INTO syncer.outbox (segment, relation, operation, old, new, untouched)
        {updated};
    ELSIF TG_OP = 'INSERT' THEN
        INSERT INTO syncer.outbox (segment, relation, operation, new)
        {inserted};
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO syncer.outbox (segment, relation, operation, old)
        {deleted};
    ELSE
        INSERT INTO syncer.outbox (segment, relation, operation)
        VALUES (trigger.segment, {relation}, 'T');
    END IF;
    RETURN NULL;
END
"""
_ONE_SIDED = """
SELECT trigger.segment, {relation}, {operation}::"char", {image}
FROM {gone}, LATERAL (SELECT {texts} AS texts FROM {rows} OFFSET 0) AS c
"""
# A row without its counterpart has a changed key: a delete or an insert. Keys are compared as text, which every type
# has, and rows byte by byte (*<> on records): equality is not identity (1.0 and 1.00), and some types have none.
_TWO_SIDED = """
SELECT {segment}, {relation}, c.operation, {old_image}, {new_image}, c.untouched
FROM {gone}, LATERAL (
    SELECT CASE WHEN n.here IS NULL THEN 'D' WHEN o.here IS NULL THEN 'I' ELSE 'U' END::"char" AS operation,
           CASE WHEN o.here THEN {old_texts} END AS old, CASE WHEN n.here THEN {new_texts} END AS new,
           {untouched} AS untouched
    FROM {old_rows} FULL JOIN {new_rows} ON {same_key}
    WHERE o.here IS NULL OR n.here IS NULL OR {is_gone}
       OR ROW({old_compared})::record OPERATOR(pg_catalog.*<>) ROW({new_compared})::record
    OFFSET 0
) AS c
"""
# OFFSET 0, above: the texts are computed once. No column has this alias.
_ROWS = '(SELECT true AS here, {columns} FROM {table} AS "syncer row") AS {alias}'

# Expressions over OLD and NEW are cheap only without FROM, and then cannot tell that a column is gone. Postgres raises
# an error for that, and for a column whose type has changed since the session's first change. Then nothing is known of
# the row, until `syncer apply` creates the function anew. The subtransactions write nothing, so they never get an xid.
_ROW_BODY = """
<<trigger>>
DECLARE
    texts text[];
    old_image jsonb;
    new_image jsonb;
    is_changed boolean := true;
    has_same_key boolean := true;
    operation "char" := left(TG_OP, 1);
    untouched bigint[];
    segment bigint := {segment};
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF OLD OPERATOR(pg_catalog.*=) NEW THEN
            RETURN NULL;
        END IF;
        BEGIN
            is_changed := ROW({old_compared})::record OPERATOR(pg_catalog.*<>) ROW({new_compared})::record;
        EXCEPTION WHEN OTHERS THEN
            NULL;
        END;
        IF NOT is_changed THEN
            RETURN NULL;
        END IF;
    END IF;
    BEGIN
        IF TG_OP = 'UPDATE' THEN
            has_same_key := ROW({old_key})::record OPERATOR(pg_catalog.*=) ROW({new_key})::record;
            untouched := {untouched};
        END IF;
        IF TG_OP IN ('UPDATE', 'DELETE') THEN
            texts := {old_texts};
            old_image := {image};
        END IF;
        IF TG_OP IN ('UPDATE', 'INSERT') THEN
            texts := {new_texts};
            new_image := {image};
        END IF;
    EXCEPTION WHEN OTHERS THEN
        old_image := NULL;
        new_image := NULL;
        untouched := NULL;
    END;
    IF NOT has_same_key THEN
        INSERT INTO syncer.outbox (segment, relation, operation, old)
        VALUES (trigger.segment, {relation}, 'D', trigger.old_image);
        operation := 'I';
        old_image := NULL;
        untouched := NULL;
    END IF;
    INSERT INTO syncer.outbox (segment, relation, operation, old, new, untouched)
    VALUES (trigger.segment, {relation}, trigger.operation, trigger.old_image, trigger.new_image, trigger.untouched);
    RETURN NULL;
END
"""

# The output of a type, not of a cast: a type's owner may define casts. The types here print little, or no more than
# their size, and the same in every session; dates do so in JSON. A small jsonb may print much, since 1e130000 takes 16
# bytes, but not more than Postgres can handle. A column of another type, or whose type has changed since its function
# was created, has the general form. None fetches or produces much more than an image may hold.
_PRINTED = "concat({value})"
_CUT = f"left(concat({{value}}), {IMAGE_BYTES_MAX})"
_DATED = "to_json({value}) #>> '{{}}'"
_GENERAL = f"syncer.text_of({{value}}, {IMAGE_BYTES_MAX})"
_PRINTING = {
    **dict.fromkeys(("bool", "int2", "int4", "int8", "name", "numeric", "oid", "time", "timetz", "uuid"), _PRINTED),
    **dict.fromkeys(
        ("bpchar", "json", "text", "varchar"),
        f"CASE WHEN pg_column_size({{value}}) <= {IMAGE_BYTES_MAX} THEN {_CUT} ELSE repeat('?', {IMAGE_BYTES_MAX}) END",
    ),
    **dict.fromkeys(("date", "timestamp", "timestamptz"), _DATED),
    "jsonb": "CASE WHEN pg_column_size({value}) <= 4096 AND pg_column_compression({value}) IS NULL "
    f"THEN {_CUT} ELSE {_GENERAL} END",
}
_KNOWN = (
    "CASE WHEN {{value}} IS NOT DISTINCT FROM NULL THEN NULL "
    "WHEN pg_typeof({{value}}) = '{type}'::regtype THEN {printed} ELSE {general} END"
)
_TEXTS = "CASE WHEN NOT ({is_gone}) THEN ARRAY[{texts}] END"
# Which sets of columns an update has left as they were; only where documents watch different ones.
_UNTOUCHED = "array_remove(ARRAY[{sets}]::bigint[], NULL)"
_IS_UNTOUCHED = "CASE WHEN ROW({old})::record OPERATOR(pg_catalog.*=) ROW({new})::record THEN {digest} END"
_UNKNOWN = "NULL::bigint[]"
_IMAGE = f"CASE WHEN pg_column_size({{texts}}) < {IMAGE_BYTES_MAX} THEN jsonb_object({{names}}, {{texts}}) END"

# Null means that the sequence has not been used yet. Read once per statement, and by a function: reading a table costs
# more.
_SEGMENT = "coalesce(pg_sequence_last_value('syncer.outbox_segment'), 0)"

_STATEMENT_TRIGGER = {
    "syncer_insert": "AFTER INSERT ON {table} REFERENCING NEW TABLE AS new_rows",
    "syncer_update": "AFTER UPDATE ON {table} REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows",
    "syncer_delete": "AFTER DELETE ON {table} REFERENCING OLD TABLE AS old_rows",
    "syncer_truncate": "AFTER TRUNCATE ON {table}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """How one table is captured, for all documents that read it.

    Args:
        relation: ``schema.table``, quoted where SQL needs it.
        key: The columns that identify its rows.
        watched: An UPDATE that touches none of these leaves no change.
        routing: The columns that a change carries.
        together: The columns that each document watches, images included, if not all watch the same.
        aggregate: The table whose row a change belongs to; changes of one aggregate share a partition.
        aggregate_column: The routing column that holds that row's key.
    """

    relation: str
    key: tuple[str, ...]
    watched: frozenset[str]
    routing: frozenset[str]
    aggregate: str
    aggregate_column: str
    together: frozenset[frozenset[str]] = frozenset()

    @property
    def compared(self) -> tuple[str, ...]:
        """The columns that make an UPDATE a change."""
        return tuple(sorted(self.watched | self.routing))


def function_name(relation: str) -> str:
    """The name of a table's function, in schema syncer."""
    name = f"capture_{relation}"  # with its dot, so that a.b_c and a_b.c differ
    if len(name.encode()) > _IDENTIFIER_BYTES_MAX or '"' in relation:
        name = f"capture_{_digest(relation)[:32]}"
    return name


def function(relation: str) -> sql.Identifier:
    """The same as an SQL identifier."""
    return sql.Identifier("syncer", function_name(relation))


def row_trigger(relation: str) -> str:
    """The name of the row-level trigger of a partitioned table and its partitions, or of a subscription's table.

    It is specific to the table: a partition may bring triggers from when it was captured as a table.
    """
    return f"syncer_row_{_digest(relation)[:8]}"


def truncate_trigger(relation: str) -> str:
    """The name of the TRUNCATE trigger of a table that has a row-level trigger, and of its partitions."""
    return f"syncer_truncate_{_digest(relation)[:8]}"


def _digest(relation: str) -> str:
    return hashlib.sha256(relation.encode()).hexdigest()


def statement_triggers(relation: str) -> Iterator[sql.Composed]:
    """The statements that create the triggers of an ordinary table."""
    table = sql.SQL(relation)  # quoted by Postgres itself, with format('%I.%I')
    for name, event in _STATEMENT_TRIGGER.items():
        yield from _trigger(relation, table, name, sql.SQL(event).format(table=table), "STATEMENT")


def row_triggers(relation: str) -> Iterator[sql.Composed]:
    """The statements that create the triggers of a table captured by row, but not its partitions' TRUNCATE triggers."""
    table = sql.SQL(relation)
    event = sql.SQL("AFTER INSERT OR UPDATE OR DELETE ON {}").format(table)
    yield from _trigger(relation, table, row_trigger(relation), event, "ROW")
    yield from truncate_triggers(relation, relation)


def truncate_triggers(relation: str, partition: str) -> Iterator[sql.Composed]:
    """The statements that create the TRUNCATE trigger of one partition, or of the partitioned table itself."""
    event = sql.SQL("AFTER TRUNCATE ON {}").format(sql.SQL(partition))
    # ONLY: the trigger has no clones, but some versions of Postgres look for them.
    only = sql.SQL("ONLY ") + sql.SQL(partition)
    yield from _trigger(relation, only, truncate_trigger(relation), event, "STATEMENT")


def _trigger(
    relation: str, table: sql.Composable, name: str, event: sql.Composed, level: str
) -> Iterator[sql.Composed]:
    yield sql.SQL("CREATE TRIGGER {} {} FOR EACH {} EXECUTE FUNCTION {}()").format(
        sql.Identifier(name), event, sql.SQL(level), function(relation)
    )
    yield sql.SQL(ENABLE).format(table, sql.Identifier(name))


# Functions


def function_statements(body: str, relation: str, owner: str) -> Iterator[sql.Composed]:
    """The statements that create a table's function; no other role can use it in a trigger of another table.

    Args:
        body: From `statement_body` or `row_body`.
        relation: The table.
        owner: The role that owns the table, quoted by Postgres. It creates partitions, and must be allowed to create
            their triggers.
    """
    yield sql.SQL(_FUNCTION).format(function=function(relation), body=sql.Literal(body))
    yield sql.SQL(_FOR_NOBODY).format(function(relation))
    yield sql.SQL(_FOR_OWNER).format(function(relation), sql.SQL(owner))


def statement_body(capture: Capture, types: Types) -> sql.Composed:
    """The body of the function of an ordinary table, whose columns have these types."""
    return sql.SQL(_STATEMENT_BODY).format(
        relation=sql.Literal(capture.relation),
        segment=sql.SQL(_SEGMENT),
        updated=_two_sided(capture, sql.SQL("trigger.segment"), sql.SQL("old_rows"), sql.SQL("new_rows"), types),
        inserted=_one_sided(capture, "I", "new_rows", types),
        deleted=_one_sided(capture, "D", "old_rows", types),
    )


def check_statement(capture: Capture) -> sql.Composed:
    """The most demanding statement of an ordinary table's function, applied to the table itself."""
    table = sql.SQL(capture.relation)  # quoted by Postgres itself
    return sql.SQL("EXPLAIN ") + _two_sided(capture, sql.SQL("0"), table, table, {})


def row_body(capture: Capture, types: Types) -> sql.Composed:
    """The body of the function of a table captured by row, whose columns have these types."""

    def fields(row: str, columns: Iterable[str]) -> sql.Composed:
        return _comma(sql.Identifier(row, one) for one in columns)

    def texts(row: str) -> sql.Composed:
        values = (_text(sql.Identifier(row, one), types.get(one)) for one in sorted(capture.routing))
        return sql.SQL("ARRAY[{}]").format(_comma(values))

    return sql.SQL(_ROW_BODY).format(
        relation=sql.Literal(capture.relation),
        segment=sql.SQL(_SEGMENT),
        old_compared=fields("old", capture.compared),
        new_compared=fields("new", capture.compared),
        old_key=fields("old", capture.key),
        new_key=fields("new", capture.key),
        old_texts=texts("old"),
        new_texts=texts("new"),
        untouched=_untouched(capture, lambda columns: fields("old", columns), lambda columns: fields("new", columns)),
        image=_image(capture, sql.SQL("texts")),
    )


def _one_sided(capture: Capture, operation: str, table: str, types: Types) -> sql.Composed:
    places = _places(capture)
    return sql.SQL(_ONE_SIDED).format(
        relation=sql.Literal(capture.relation),
        operation=sql.Literal(operation),
        gone=_gone(places),
        image=_image(capture, sql.Identifier("c", "texts")),
        texts=_texts("r", capture, places, types),
        rows=_rows("r", places, sql.SQL(table)),
    )


def _two_sided(
    capture: Capture, segment: sql.Composable, old_table: sql.Composable, new_table: sql.Composable, types: Types
) -> sql.Composed:
    places = _places(capture)
    return sql.SQL(_TWO_SIDED).format(
        segment=segment,
        relation=sql.Literal(capture.relation),
        gone=_gone(places),
        old_image=_image(capture, sql.Identifier("c", "old")),
        new_image=_image(capture, sql.Identifier("c", "new")),
        old_texts=_texts("o", capture, places, types),
        new_texts=_texts("n", capture, places, types),
        old_rows=_rows("o", places, old_table),
        new_rows=_rows("n", places, new_table),
        same_key=sql.SQL(" AND ").join(
            sql.SQL('{} = {} COLLATE "C"').format(
                *(_text(sql.Identifier(alias, places[one]), types.get(one), as_key=True) for alias in ("o", "n"))
            )
            for one in capture.key
        ),
        is_gone=_is_gone("n", places.values()),
        untouched=_untouched_of_rows(capture, places),
        old_compared=_comma(sql.Identifier("o", one) for one in places.values()),
        new_compared=_comma(sql.Identifier("n", one) for one in places.values()),
    )


def _untouched(
    capture: Capture, old: Callable[[Iterable[str]], sql.Composed], new: Callable[[Iterable[str]], sql.Composed]
) -> sql.Composable:
    """The digests of the sets of columns that are the same in an old and a new row; null if all documents watch one."""
    if len(capture.together) < 2:  # noqa: PLR2004 - then every update that leaves a change touches it
        return sql.SQL(_UNKNOWN)
    sets = [
        sql.SQL(_IS_UNTOUCHED).format(
            old=old(sorted(columns)), new=new(sorted(columns)), digest=sql.Literal(watched_digest(columns))
        )
        for columns in sorted(capture.together, key=sorted)
    ]
    return sql.SQL(_UNTOUCHED).format(sets=_comma(sets))


def _untouched_of_rows(capture: Capture, places: dict[str, str]) -> sql.Composable:
    def fields(alias: str, columns: Iterable[str]) -> sql.Composed:
        return _comma(sql.Identifier(alias, places[one]) for one in columns)

    found = _untouched(capture, lambda columns: fields("o", columns), lambda columns: fields("n", columns))
    is_known = sql.SQL("o.here AND n.here AND NOT ({})").format(_is_gone("n", places.values()))
    return sql.SQL("CASE WHEN {} THEN {} END").format(is_known, found)


def _places(capture: Capture) -> dict[str, str]:
    """The alias of each column inside a statement; no name of the table itself is in scope there."""
    return {one: str(place) for place, one in enumerate(capture.compared)}


def _gone(places: dict[str, str]) -> sql.Composed:
    """The subquery where the name of a dropped column resolves."""
    nulls = (sql.SQL("NULL::syncer.gone AS {}").format(sql.Identifier(one)) for one in places)
    return sql.SQL("(SELECT {}) AS gone").format(_comma(nulls))


def _rows(alias: str, places: dict[str, str], table: sql.Composable) -> sql.Composed:
    columns = (sql.SQL("{} AS {}").format(_found(one), sql.Identifier(place)) for one, place in places.items())
    return sql.SQL(_ROWS).format(columns=_comma(columns), table=table, alias=sql.Identifier(alias))


def _found(column: str) -> sql.Identifier:
    """A column of the table; not qualified, so that a dropped one resolves to `_gone`."""
    return sql.Identifier(column)


def _is_gone(alias: str, places: Iterable[str]) -> sql.Composed:
    return sql.SQL(" OR ").join(sql.SQL("syncer.is_gone({})").format(sql.Identifier(alias, one)) for one in places)


def _text(value: sql.Identifier, type_: str | None, *, as_key: bool = False) -> sql.Composed:
    """The text of a value in an image; correct for any type, faster if it is of this one.

    Args:
        value: The value.
        type_: The type that it had when its function was created, if that is one of Postgres's own.
        as_key: Whether it is only compared within the same session.
    """
    printed = _PRINTING.get(type_ or "")
    if printed == _DATED and as_key:
        printed = _PRINTED
    text = _GENERAL if printed is None else _KNOWN.format(type=type_, printed=printed, general=_GENERAL)
    return sql.SQL(text).format(value=value)


def _texts(alias: str, capture: Capture, places: dict[str, str], types: Types) -> sql.Composed:
    routing = sorted(capture.routing)
    values = (_text(sql.Identifier(alias, places[one]), types.get(one)) for one in routing)
    is_gone = _is_gone(alias, (places[one] for one in routing))
    return sql.SQL(_TEXTS).format(is_gone=is_gone, texts=_comma(values))


def _image(capture: Capture, texts: sql.Composable) -> sql.Composed:
    return sql.SQL(_IMAGE).format(names=sql.Literal(sorted(capture.routing)), texts=texts)


def _comma(parts: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)
