"""Trigger: the SQL of the functions and triggers that write the outbox.

Guarantees: a trigger never makes a write fail. That holds for any row, and for a table altered since: columns dropped
or renamed, types changed, the table renamed. It runs with its owner's rights, but never runs code of other roles. Every
name in it has its schema, so the writer's search_path has no part in it. It uses a type's output function, never a
cast.

An image has the text of each column that decides which documents a row belongs to. If such a column is gone, or a value
is too long or cannot be printed, there is no image. The change then touches every document that reads the table. If a
watched column is gone, every UPDATE is a change.

Every table has the same two triggers: for each row, and for each TRUNCATE. Postgres clones the first to every present
and future partition, where it fires for direct writes too. The worker of logical replication fires both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from psycopg import sql

from syncer.base.model import watched_digest

Types = Mapping[str, str]
"""The columns of a table whose types are Postgres's own, each with its type as the catalogue names it."""

IMAGE_BYTES_MAX = 64 * 1024
"""A larger image is not carried. Code that handles many changes at once relies on this to bound its memory."""

_IDENTIFIER_BYTES_MAX = 63

# ALWAYS includes sessions with session_replication_role = replica: their rows are in our documents too.
ENABLE = "ALTER TABLE {} ENABLE ALWAYS TRIGGER {}"
# ONLY: the second trigger has no clones, but some versions of Postgres look for them.
_CREATE_TRIGGERS = """
CREATE TRIGGER {row} AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION {function}();
CREATE TRIGGER {truncate} AFTER TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {function}();
ALTER TABLE {table} ENABLE ALWAYS TRIGGER {row};
ALTER TABLE ONLY {table} ENABLE ALWAYS TRIGGER {truncate}
"""
_CREATE_FUNCTION = """
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS {body};
REVOKE EXECUTE ON FUNCTION {function}() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION {function}() TO {owner}
"""

# The first line says which columns the function was made for. A tool may put an earlier one back, which leaves out what
# documents read since then. A function that another version of this program made for the same columns is complete.
#
# Rows are compared byte by byte (*= on records): equality is not identity (1.0 and 1.00), and some types have none.
# Postgres raises an error if a column is gone, or has another type than at the session's first change. Then the row is
# a change, and has images if they can still be built. The subtransactions write nothing, so they never get an xid.
#
# No subtransaction protects the INSERT. So what it needs is locked and checked before, once in a transaction, and no
# session alters it until that ends; only a snapshot of REPEATABLE READ may be older than an alteration. If it was
# altered, a subtransaction protects the INSERT, and `syncer.base.migrations` calls the schema broken: for good, if a
# change is lost. A session that drops the outbox may also wait for this table: the first deadlock is survived here, and
# the next ends that session.
_BODY = """
-- {watches}
DECLARE
    old_image pg_catalog.jsonb;
    new_image pg_catalog.jsonb;
    untouched bigint[];
    segment bigint;
    may_fail boolean := false;
BEGIN
    BEGIN
        IF TG_OP OPERATOR(pg_catalog.=) 'UPDATE' THEN
            IF {is_same} THEN
                RETURN NULL;
            END IF;
            untouched := {untouched};
        END IF;
        IF TG_LEVEL OPERATOR(pg_catalog.=) 'ROW' THEN
            {images}
        END IF;
        {lock}
        segment := {segment};
    EXCEPTION WHEN OTHERS THEN
        untouched := NULL;
        BEGIN
            {images}
        EXCEPTION WHEN OTHERS THEN
            old_image := NULL;
            new_image := NULL;
        END;
        BEGIN
            {lock}
        EXCEPTION WHEN {outage} THEN
            RAISE;
        WHEN OTHERS THEN
            may_fail := true;
            PERFORM pg_catalog.set_config('syncer.is_locked', 'no', true);
        END;
        segment := 0;
    END;
    IF may_fail THEN
        BEGIN
            {insert}
        EXCEPTION WHEN {outage} THEN
            RAISE;
        WHEN OTHERS THEN
            BEGIN
                PERFORM pg_catalog.nextval('syncer.lost');
            EXCEPTION WHEN OTHERS THEN
                NULL;
            END;
        END;
    ELSE
        {insert}
    END IF;
    RETURN NULL;
END
"""
_INSERT = """
INSERT INTO syncer.outbox (segment, relation, operation, old, new, untouched)
VALUES (segment, {relation}, pg_catalog.left(TG_OP, 1), {old_image}, {new_image}, untouched);
"""
# What may happen to an application's own statement as well.
_OUTAGE = (
    "transaction_rollback OR insufficient_resources OR lock_not_available OR operator_intervention OR system_error"
)
# Null means that the sequence has not been used yet. A function, because reading a table costs more.
_SEGMENT = "coalesce(pg_catalog.pg_sequence_last_value('syncer.outbox_segment'), 0)"
# A local setting ends with the locks: with the transaction, or the savepoint that is rolled back. The INSERT of nothing
# needs no more privileges than the one that follows, and gets no xid. The sequence of ids, whose value is of no use, is
# locked before its table: as in a DROP SCHEMA, and not in a DROP TABLE.
_LOCK = """
IF pg_catalog.current_setting('syncer.is_locked', true) OPERATOR(pg_catalog.=) 'yes' THEN
    NULL;
ELSIF pg_catalog.current_setting('syncer.is_locked', true) OPERATOR(pg_catalog.=) 'no' THEN
    may_fail := true;
ELSE
    segment := pg_catalog.pg_sequence_last_value('syncer.outbox_id_seq');
    INSERT INTO syncer.outbox (segment, relation, operation, old, new, untouched)
    SELECT 0, '', 'I', old_image, new_image, untouched
    WHERE NOT coalesce(syncer.is_intact(), syncer.require_outbox());
    PERFORM pg_catalog.set_config('syncer.is_locked', 'yes', true);
END IF;
"""
_IMAGES = """
            old_image := CASE WHEN TG_OP OPERATOR(pg_catalog.<>) 'INSERT' THEN {old} END;
            new_image := CASE WHEN TG_OP OPERATOR(pg_catalog.<>) 'DELETE' THEN {new} END;
"""
_IMAGE = "pg_catalog.jsonb_object({names}, ARRAY[{texts}]::pg_catalog.text[])"
_SMALL = f"CASE WHEN pg_catalog.pg_column_size({{0}}) OPERATOR(pg_catalog.<) {IMAGE_BYTES_MAX} THEN {{0}} END"
_COPY = f"""
INSERT INTO syncer.outbox (segment, relation, operation, new)
SELECT {_SEGMENT}, {{relation}}, 'I', {_SMALL.format("r.image")}
FROM (SELECT {{image}} AS image FROM ONLY {{table}} AS "new" LIMIT {{rows_max}}) AS r
"""
_IS_SAME = "ROW({old})::pg_catalog.record OPERATOR(pg_catalog.*=) ROW({new})::pg_catalog.record"
# To compare values that are stored apart is to fetch them. An UPDATE that does not set one leaves it where it is. In
# parentheses: to PL/pgSQL, the first THEN outside of them ends a condition.
_IS_SAME_WIDE = f"""
(CASE WHEN pg_catalog.pg_column_toast_chunk_id({{old}})
           OPERATOR(pg_catalog.=) pg_catalog.pg_column_toast_chunk_id({{new}}) THEN true ELSE {_IS_SAME} END)
"""
TELLS_CHUNKS = 170_000
"""The version of Postgres from which on it tells where a value is stored."""
_NARROW = {
    *("bool", "int2", "int4", "int8", "float4", "float8", "oid", "name", "uuid", "date", "time", "timetz"),
    *("timestamp", "timestamptz", "interval"),
}
"""Types whose values are never stored apart."""
# Which sets of columns an update has left as they were; only where documents watch different ones.
_UNTOUCHED = "pg_catalog.array_remove(ARRAY[{}]::bigint[], NULL)"
_UNTOUCHED_SET = "CASE WHEN {is_same} THEN {digest}::bigint END"
# The output of a type, not of a cast: a type's owner may define casts. The types here print little, or no more than
# their size, and the same in every session. A column of another type, or whose type has changed since its function was
# created, has the general form. None fetches or produces much more than an image may hold.
_GENERAL = sql.SQL(f"syncer.text_of({{value}}, {IMAGE_BYTES_MAX})")
_PRINTED = f"pg_catalog.left(pg_catalog.concat({{value}}), {IMAGE_BYTES_MAX})"
_IS_SMALL = f"pg_catalog.pg_column_size({{value}}) OPERATOR(pg_catalog.<=) {IMAGE_BYTES_MAX}"
_FAST = {
    **dict.fromkeys(("bool", "int2", "int4", "int8", "name", "numeric", "oid", "time", "timetz", "uuid"), "true"),
    **dict.fromkeys(("bpchar", "text", "varchar"), _IS_SMALL),
}
# IS NOT DISTINCT FROM NULL looks for no operator. Unlike IS NULL, it is false for a row of nulls.
_TEXT = sql.SQL("""
CASE WHEN {value} IS NOT DISTINCT FROM NULL THEN NULL
     WHEN pg_catalog.pg_typeof({value}) OPERATOR(pg_catalog.=) {type}::pg_catalog.regtype AND {condition}
     THEN {printed} ELSE {general} END
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """How one table is captured, for all documents that read it.

    Args:
        relation: ``schema.table``, quoted where SQL needs it.
        routing: The columns that a change carries.
        watched: The set of columns that each document watches, its routing included. An UPDATE that touches none of
            any set leaves no change.
    """

    relation: str
    routing: frozenset[str]
    watched: frozenset[frozenset[str]]

    @property
    def columns(self) -> frozenset[str]:
        """The columns of which a change is noticed."""
        return self.routing.union(*self.watched)

    @property
    def digest(self) -> str:
        """Of all columns, as Postgres computes it from what is recorded: see ``_LOST`` in `syncer.capture.install`."""
        recorded = sorted(self.routing), sorted(map(sorted, self.watched))
        return _digest("".join(json.dumps(part, ensure_ascii=False) for part in recorded))


def function(relation: str) -> sql.Identifier:
    """A table's function, in schema syncer."""
    name = f"capture_{relation}"  # with its dot, so that a.b_c and a_b.c differ
    if len(name.encode()) > _IDENTIFIER_BYTES_MAX or '"' in relation:
        name = f"capture_{_digest(relation)[:32]}"
    return sql.Identifier("syncer", name)


def _digest(relation: str) -> str:
    return hashlib.sha256(relation.encode()).hexdigest()


def create_triggers(relation: str) -> sql.Composed:
    """The statements that create the triggers of a table.

    Their names are specific to the table: a partition may bring triggers from when it was captured itself.
    """
    return sql.SQL(_CREATE_TRIGGERS).format(
        row=sql.Identifier(f"syncer_row_{_digest(relation)[:8]}"),
        truncate=sql.Identifier(f"syncer_truncate_{_digest(relation)[:8]}"),
        table=sql.SQL(relation),  # quoted by Postgres itself, with format('%I.%I')
        function=function(relation),
    )


def create_function(body: str, relation: str, owner: str) -> sql.Composed:
    """The statements that create a table's function.

    The ``owner`` of the table creates its partitions, and so their triggers. No other role can use the function in a
    trigger of another table.
    """
    return sql.SQL(_CREATE_FUNCTION).format(function=function(relation), body=sql.Literal(body), owner=sql.SQL(owner))


def body(capture: Capture, types: Types, *, server_version: int) -> sql.Composed:
    """The body of the function of a table whose columns have these types."""
    is_wide = server_version >= TELLS_CHUNKS
    wide = frozenset(name for name in capture.columns if is_wide and types.get(name) not in _NARROW)
    sets = [
        sql.SQL(_UNTOUCHED_SET).format(
            is_same=_is_same(watched, wide), digest=sql.Literal(str(watched_digest(watched)))
        )
        for watched in sorted(capture.watched, key=sorted)
    ]
    untouched = sql.SQL(_UNTOUCHED).format(_comma(sets)) if len(sets) > 1 else sql.SQL("NULL")
    insert = sql.SQL(_INSERT).format(
        relation=sql.Literal(capture.relation),
        old_image=sql.SQL(_SMALL).format(sql.SQL("old_image")),
        new_image=sql.SQL(_SMALL).format(sql.SQL("new_image")),
    )
    return sql.SQL(_BODY).format(
        watches=sql.SQL(capture.digest),
        insert=insert,
        outage=sql.SQL(_OUTAGE),
        lock=sql.SQL(_LOCK),
        segment=sql.SQL(_SEGMENT),
        is_same=_is_same(capture.columns, wide),
        untouched=untouched,
        images=sql.SQL(_IMAGES).format(old=_image("old", capture, types), new=_image("new", capture, types)),
    )


def copy_rows(capture: Capture, table: str, types: Types, *, rows_max: int) -> sql.Composed:
    """The statement that writes the rows of a partition of a captured table as changes; at most so many."""
    return sql.SQL(_COPY).format(
        relation=sql.Literal(capture.relation),
        image=_image("new", capture, types),
        table=sql.SQL(table),  # quoted by Postgres itself
        rows_max=sql.Literal(rows_max),
    )


def _image(row: str, capture: Capture, types: Types) -> sql.Composed:
    routing = sorted(capture.routing)
    texts = _comma(_text(sql.Identifier(row, column), types.get(column, "")) for column in routing)
    return sql.SQL(_IMAGE).format(names=sql.Literal(routing), texts=texts)


def _is_same(columns: frozenset[str], wide: frozenset[str]) -> sql.Composed:
    """Whether the old and the new row have the same values in these columns, of which some may be stored apart."""
    rows = [(_IS_SAME, columns - wide), *((_IS_SAME_WIDE, {name}) for name in sorted(columns & wide))]
    return sql.SQL(" AND ").join(
        sql.SQL(template).format(
            **{row: _comma(sql.Identifier(row, name) for name in sorted(names)) for row in ("old", "new")}
        )
        for template, names in rows
        if names or template is _IS_SAME
    )


def _text(value: sql.Identifier, type_: str) -> sql.Composed:
    """The text of a value in an image; correct for any type, faster if it is of this one."""
    general = _GENERAL.format(value=value)
    if type_ not in _FAST:
        return general
    condition, printed = (sql.SQL(part).format(value=value) for part in (_FAST[type_], _PRINTED))
    typed = sql.Literal(f"pg_catalog.{type_}")
    return _TEXT.format(value=value, type=typed, condition=condition, printed=printed, general=general)


def _comma(parts: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)
