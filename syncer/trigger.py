"""Trigger: the SQL of the functions and triggers that write the outbox.

Guarantees: a trigger never makes a write fail, whatever has become of its table since it was installed: columns
dropped or renamed, types changed, the table renamed. Where a column that says which documents a row belongs to
is gone, whole rows are written; where a watched column is gone, every UPDATE is.

An ordinary table has statement-level triggers, whose transition tables hold all rows of a statement. A
partitioned table has a row-level one, since only those are cloned by Postgres to every partition, present and
future, and fire for rows written straight into it. So has a table that a subscription fills, since the worker of
logical replication fires no others. Both write the same.

How a statement can name a column that may be gone: unqualified, in a subquery of its own. Where the table lacks the
name, it is found one level up, in a row of nulls of type ``syncer.gone``; and ``syncer.is_gone`` has two
forms, one of which is chosen, by type, when the statement is planned. So a check costs nothing when it runs, and
cannot be overtaken by a change of the table, as one that asks the catalogue could (its snapshot may be older).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from psycopg import sql

from syncer import doorbell

_IDENTIFIER_BYTES_MAX = 63
_PAIRS_MAX = 50

STATEMENT_TRIGGERS = ("syncer_delete", "syncer_insert", "syncer_truncate", "syncer_update")
"""The triggers of an ordinary table."""

# search_path is pinned, as for every SECURITY DEFINER. The rest is what the text of some types depends on
# (floats, intervals, ranges of dates): an image is read back in another session.
_FUNCTION = """
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp {settings}
AS {body}
"""
_SETTINGS = "SET DateStyle = 'ISO' SET IntervalStyle = 'iso_8601' SET extra_float_digits = 1"

# One statement a kind of change.
_STATEMENT_BODY = """
#variable_conflict use_column
<<trigger>>
DECLARE
    segment bigint := {segment};
BEGIN
    IF TG_OP = 'UPDATE' THEN
        INSERT INTO syncer.outbox (segment, relation, operation, old, new)
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
    {ring}
    RETURN NULL;
END
"""
_ONE_SIDED = """
SELECT trigger.segment, {relation}, {operation}::"char", c.image
FROM {gone}, LATERAL (SELECT {image} AS image FROM {rows}) AS c
"""
# A row without its counterpart has changed its key: a delete or an insert. Keys are compared as text, which every
# type has, and rows byte by byte (*<> on records): equality is not identity (1.0 and 1.00), and some types have none.
_TWO_SIDED = """
SELECT {segment}, {relation}, c.operation, c.old, c.new
FROM {gone}, LATERAL (
    SELECT CASE WHEN n.here IS NULL THEN 'D' WHEN o.here IS NULL THEN 'I' ELSE 'U' END::"char" AS operation,
           CASE WHEN o.here THEN {old_image} END AS old, CASE WHEN n.here THEN {new_image} END AS new
    FROM {old_rows} FULL JOIN {new_rows} ON {same_key}
    WHERE o.here IS NULL OR n.here IS NULL OR {is_gone}
       OR ROW({old_compared})::record OPERATOR(pg_catalog.*<>) ROW({new_compared})::record
) AS c
"""
# The alias is one that no column has.
_ROWS = '(SELECT true AS here, "syncer row" AS whole, {columns} FROM {table} AS "syncer row") AS {alias}'

# Here a column is looked up in the row as JSON: a plan that names a field of OLD or NEW keeps the type that it had
# when the session first ran it. An image that cannot be made leaves a change without images, which stands for the whole
# table. Where JSON does not tell all values apart (0 and -0, null and a JSON null), any difference counts.
_ROW_BODY = """
DECLARE
    old_row json;
    new_row json;
    old_image jsonb;
    new_image jsonb;
    operation "char" := left(TG_OP, 1);
    segment bigint := {segment};
BEGIN
    IF TG_LEVEL = 'ROW' THEN
        IF OLD OPERATOR(pg_catalog.*=) NEW THEN
            RETURN NULL;
        END IF;
        old_row := to_json(OLD);
        new_row := to_json(NEW);
        old_image := syncer.row_image(old_row);
        new_image := syncer.row_image(new_row);
        IF {is_exact} AND {old_compared} = {new_compared} AND new_image ?& {compared} THEN
            RETURN NULL;
        END IF;
        IF (old_row IS NULL) <> (old_image IS NULL) OR (new_row IS NULL) <> (new_image IS NULL) THEN
            old_image := NULL;
            new_image := NULL;
        ELSIF coalesce(new_image, old_image) ?& {routing} THEN
            old_image := CASE WHEN old_image IS NOT NULL THEN {old_routing} END;
            new_image := CASE WHEN new_image IS NOT NULL THEN {new_routing} END;
        END IF;
        IF operation = 'U' AND {old_key} <> {new_key} THEN
            INSERT INTO syncer.outbox (segment, relation, operation, old) VALUES (segment, {relation}, 'D', old_image);
            operation := 'I';
            old_image := NULL;
        END IF;
    END IF;
    INSERT INTO syncer.outbox (segment, relation, operation, old, new)
    VALUES (segment, {relation}, operation, old_image, new_image);
    {ring}
    RETURN NULL;
END
"""

# Null is a sequence that nobody has moved yet. Asked once a statement, and as a function: a table costs more to read.
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
        key: The columns that tell its rows apart.
        watched: An UPDATE that touches none of these leaves no change.
        routing: The columns that a change carries.
        aggregate: The table whose row a change belongs to; changes of one aggregate share a partition.
        aggregate_column: The routing column that holds that row's key.
    """

    relation: str
    key: tuple[str, ...]
    watched: frozenset[str]
    routing: frozenset[str]
    aggregate: str
    aggregate_column: str

    @property
    def compared(self) -> tuple[str, ...]:
        """The columns that make an UPDATE a change."""
        return tuple(sorted(self.watched | self.routing))


def function_name(relation: str) -> str:
    """The function of a table, in schema syncer."""
    name = f"capture_{relation}"  # with its dot, so that a.b_c and a_b.c differ
    if len(name.encode()) > _IDENTIFIER_BYTES_MAX or '"' in relation:
        name = f"capture_{_digest(relation)[:32]}"
    return name


def function(relation: str) -> sql.Identifier:
    """The same, as SQL names it."""
    return sql.Identifier("syncer", function_name(relation))


def row_trigger(relation: str) -> str:
    """The trigger that a partitioned table and all its partitions have, or a table that a subscription fills.

    Its name is the table's own: a partition may bring triggers from when it was captured as a table.
    """
    return f"syncer_row_{_digest(relation)[:8]}"


def truncate_trigger(relation: str) -> str:
    """The trigger for TRUNCATE of such a table, and of its partitions."""
    return f"syncer_truncate_{_digest(relation)[:8]}"


def _digest(relation: str) -> str:
    return hashlib.sha256(relation.encode()).hexdigest()


def statement_triggers(relation: str) -> Iterator[sql.Composed]:
    """What makes the triggers of an ordinary table."""
    table = sql.SQL(relation)  # quoted by Postgres itself, with format('%I.%I')
    for name, event in _STATEMENT_TRIGGER.items():
        yield from _trigger(relation, table, name, sql.SQL(event).format(table=table), "STATEMENT")


def row_triggers(relation: str) -> Iterator[sql.Composed]:
    """What makes the triggers of such a table, those of its partitions excepted that Postgres does not clone."""
    table = sql.SQL(relation)
    event = sql.SQL("AFTER INSERT OR UPDATE OR DELETE ON {}").format(table)
    yield from _trigger(relation, table, row_trigger(relation), event, "ROW")
    yield from truncate_triggers(relation, relation)


def truncate_triggers(relation: str, partition: str) -> Iterator[sql.Composed]:
    """What makes the trigger for TRUNCATE of one partition, or of the partitioned table itself."""
    event = sql.SQL("AFTER TRUNCATE ON {}").format(sql.SQL(partition))
    # The trigger has no clones, and some versions look for them.
    only = sql.SQL("ONLY ") + sql.SQL(partition)
    yield from _trigger(relation, only, truncate_trigger(relation), event, "STATEMENT")


def _trigger(
    relation: str, table: sql.Composable, name: str, event: sql.Composed, level: str
) -> Iterator[sql.Composed]:
    yield sql.SQL("CREATE TRIGGER {} {} FOR EACH {} EXECUTE FUNCTION {}()").format(
        sql.Identifier(name), event, sql.SQL(level), function(relation)
    )
    # Also for sessions with session_replication_role = replica: their rows are in our documents too.
    yield sql.SQL("ALTER TABLE {} ENABLE ALWAYS TRIGGER {}").format(table, sql.Identifier(name))


# Functions


def function_statement(body: str, relation: str, *, is_plain: bool) -> sql.Composed:
    """What makes a table's function.

    Args:
        body: From `statement_body` or `row_body`.
        relation: The table.
        is_plain: Whether the text of the values in an image depends on no setting.
    """
    return sql.SQL(_FUNCTION).format(
        function=function(relation), settings=sql.SQL("" if is_plain else _SETTINGS), body=sql.Literal(body)
    )


def statement_body(capture: Capture, *, has_json: bool) -> sql.Composed:
    """The body of the function of an ordinary table.

    Args:
        capture: How.
        has_json: Whether a routing column may hold JSON that jsonb does not take.
    """
    return sql.SQL(_STATEMENT_BODY).format(
        relation=sql.Literal(capture.relation),
        segment=sql.SQL(_SEGMENT),
        ring=sql.SQL(doorbell.RING_IN_TRIGGER),
        updated=_two_sided(
            capture, sql.SQL("trigger.segment"), sql.SQL("old_rows"), sql.SQL("new_rows"), has_json=has_json
        ),
        inserted=_one_sided(capture, "I", "new_rows", has_json=has_json),
        deleted=_one_sided(capture, "D", "old_rows", has_json=has_json),
    )


def check_statement(capture: Capture) -> sql.Composed:
    """The most demanding statement of an ordinary table's function, over the table itself."""
    table = sql.SQL(capture.relation)  # quoted by Postgres itself
    return sql.SQL("EXPLAIN ") + _two_sided(capture, sql.SQL("0"), table, table, has_json=False)


def row_body(capture: Capture, *, is_exact: bool) -> sql.Composed:
    """The body of the function of a table that has a trigger for each row.

    Args:
        capture: How.
        is_exact: Whether values of the compared columns that differ, differ in JSON too.
    """
    return sql.SQL(_ROW_BODY).format(
        relation=sql.Literal(capture.relation),
        segment=sql.SQL(_SEGMENT),
        ring=sql.SQL(doorbell.RING_IN_TRIGGER),
        is_exact=sql.SQL("true" if is_exact else "false"),
        compared=_array(capture.compared),
        routing=_array(capture.routing),
        old_compared=_looked_up("old_image", capture.compared),
        new_compared=_looked_up("new_image", capture.compared),
        old_key=_looked_up("old_image", capture.key),
        new_key=_looked_up("new_image", capture.key),
        old_routing=_looked_up_object("old_image", capture.routing),
        new_routing=_looked_up_object("new_image", capture.routing),
    )


def _one_sided(capture: Capture, operation: str, table: str, *, has_json: bool) -> sql.Composed:
    places = _places(capture)
    return sql.SQL(_ONE_SIDED).format(
        relation=sql.Literal(capture.relation),
        operation=sql.Literal(operation),
        gone=_gone(places),
        image=_image("r", capture, places, has_json=has_json),
        rows=_rows("r", places, sql.SQL(table)),
    )


def _two_sided(
    capture: Capture,
    segment: sql.Composable,
    old_table: sql.Composable,
    new_table: sql.Composable,
    *,
    has_json: bool,
) -> sql.Composed:
    places = _places(capture)
    return sql.SQL(_TWO_SIDED).format(
        segment=segment,
        relation=sql.Literal(capture.relation),
        gone=_gone(places),
        old_image=_image("o", capture, places, has_json=has_json),
        new_image=_image("n", capture, places, has_json=has_json),
        old_rows=_rows("o", places, old_table),
        new_rows=_rows("n", places, new_table),
        same_key=sql.SQL(" AND ").join(
            sql.SQL('{}::text COLLATE "C" = {}::text COLLATE "C"').format(
                sql.Identifier("o", places[one]), sql.Identifier("n", places[one])
            )
            for one in capture.key
        ),
        is_gone=_is_gone("n", places.values()),
        old_compared=_comma(sql.Identifier("o", one) for one in places.values()),
        new_compared=_comma(sql.Identifier("n", one) for one in places.values()),
    )


def _places(capture: Capture) -> dict[str, str]:
    """The name of each column inside of a statement; no name of a table's own is in scope there."""
    return {one: str(place) for place, one in enumerate(capture.compared)}


def _gone(places: dict[str, str]) -> sql.Composed:
    """Where the name of a column is found that the table has no more."""
    nulls = (sql.SQL("NULL::syncer.gone AS {}").format(sql.Identifier(one)) for one in places)
    return sql.SQL("(SELECT {}) AS gone").format(_comma(nulls))


def _rows(alias: str, places: dict[str, str], table: sql.Composable) -> sql.Composed:
    # Not qualified, on purpose.
    columns = (sql.SQL("{} AS {}").format(sql.Identifier(one), sql.Identifier(place)) for one, place in places.items())
    return sql.SQL(_ROWS).format(columns=_comma(columns), table=table, alias=sql.Identifier(alias))


def _is_gone(alias: str, places: Iterable[str]) -> sql.Composed:
    return sql.SQL(" OR ").join(sql.SQL("syncer.is_gone({})").format(sql.Identifier(alias, one)) for one in places)


def _image(alias: str, capture: Capture, places: dict[str, str], *, has_json: bool) -> sql.Composed:
    routing = sorted(capture.routing)
    return sql.SQL("CASE WHEN {} THEN syncer.row_image(to_json({})) ELSE {} END").format(
        _is_gone(alias, (places[one] for one in routing)),
        sql.Identifier(alias, "whole"),
        _object(((one, sql.Identifier(alias, places[one])) for one in routing), has_json=has_json),
    )


def _looked_up(image: str, columns: Iterable[str]) -> sql.Composed:
    values = (sql.SQL("{} ->> {}").format(sql.SQL(image), sql.Literal(one)) for one in columns)
    return sql.SQL("ARRAY[{}]").format(_comma(values))


def _looked_up_object(image: str, columns: Iterable[str]) -> sql.Composed:
    return _object((one, sql.SQL("{} -> {}").format(sql.SQL(image), sql.Literal(one))) for one in sorted(columns))


def _object(pairs: Iterable[tuple[str, sql.Composable]], *, has_json: bool = False) -> sql.Composed:
    """A JSON object, in parts: a function takes a hundred arguments."""
    built = sql.SQL("syncer.row_image(json_build_object({}))" if has_json else "jsonb_build_object({})")
    arguments = [sql.SQL("{}, {}").format(sql.Literal(name), value) for name, value in pairs]
    parts = [arguments[start : start + _PAIRS_MAX] for start in range(0, len(arguments), _PAIRS_MAX)]
    return sql.SQL(" || ").join(built.format(_comma(part)) for part in parts)


def _array(columns: Iterable[str]) -> sql.Composed:
    return sql.SQL("ARRAY[{}]").format(_comma(sql.Literal(one) for one in sorted(columns)))


def _comma(parts: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)
