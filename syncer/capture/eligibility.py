"""Eligibility: the relations of which triggers see every change.

Guarantee: a relation whose rows can change without firing the triggers of `syncer.capture.triggers` is refused, with
the action to take. `syncer.capture.install.lost` finds relations that become like that later.
"""

from __future__ import annotations

from syncer.base.errors import DefinitionError
from syncer.base.postgres import Connection, value

# A relation and every table that may hold its rows: partitions of every level, or tables that inherit.
_MEMBERS = """
WITH RECURSIVE member (oid) AS (
    SELECT $1::oid
    UNION
    SELECT i.inhrelid FROM member AS m JOIN pg_inherits AS i ON i.inhparent = m.oid
)
SELECT format('%I.%I', n.nspname, c.relname), n.nspname::text, c.relkind::text, c.relpersistence::text
FROM member AS m JOIN pg_class AS c USING (oid) JOIN pg_namespace AS n ON n.oid = c.relnamespace
ORDER BY c.oid <> $1, 1
"""
_NO_TRIGGER = "No trigger sees its rows change."
_SCHEMAS = {
    "syncer": ("syncer's own", "Select from tables of yours."),
    **dict.fromkeys(
        ("pg_catalog", "information_schema"),
        ("a system catalogue", f"{_NO_TRIGGER} Keep what you need of it in a table."),
    ),
}
_KINDS = {
    "m": ("a materialized view", f"{_NO_TRIGGER} Select from the tables that it is made of."),
    "f": ("a foreign table", f"Its rows change on another server. {_NO_TRIGGER} Copy them into a table of this one."),
    "S": ("a sequence", f"{_NO_TRIGGER} Select from the table that it numbers."),
}
_PERSISTENCES = {
    "t": ("a temporary table", "Only its own session sees its rows. Make it an ordinary table."),
    "u": (
        "an unlogged table",
        "A crash of Postgres empties it without a change. Make it a logged one: ALTER TABLE {} SET LOGGED",
    ),
}
# The primary key, or a substitute: a unique index of columns that are NOT NULL, neither partial nor deferrable. The
# replica identity comes before others, then the shortest.
_KEY = """
SELECT array(SELECT a.attname::text
             FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, place)
             JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.number
             WHERE k.place <= i.indnkeyatts ORDER BY k.place)
FROM pg_index AS i
WHERE i.indrelid = to_regclass($1)
  AND (i.indisprimary OR i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
                     AND NOT EXISTS (SELECT FROM pg_attribute AS a
                                     WHERE a.attrelid = i.indrelid AND NOT a.attnotnull
                                       AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])))
ORDER BY i.indisprimary DESC, i.indisreplident DESC, i.indnkeyatts, i.indexrelid
LIMIT 1
"""


def require_capturable(connection: Connection, oid: int, file: str) -> None:
    """Refuse a relation whose changes cannot be captured.

    Raises:
        DefinitionError: With the reason, and the action to take.
    """
    members = connection.execute(_MEMBERS, (oid,)).fetchall()
    relation, _, kind, _ = members[0]
    for name, schema, member_kind, persistence in members:
        reason = _SCHEMAS.get(schema) or _KINDS.get(member_kind) or _PERSISTENCES.get(persistence)
        if reason is not None:
            what, hint = reason
            if name != relation:
                what = f"a partitioned table, and its partition {name} is {what}"
            raise DefinitionError(f"{file} reads {relation}, which is {what}", hint=hint.format(name))
    if kind != "p" and len(members) > 1:
        raise DefinitionError(
            f"{file} reads {relation}, which is a table that others inherit from",
            hint=f"A table that inherits later has no trigger. Make {relation} a partitioned table; or part them:\n"
            f"ALTER TABLE {members[1][0]} NO INHERIT {relation}",
        )


def exists(connection: Connection, relation: str) -> bool:
    """Whether there is such a table."""
    return bool(value(connection, "SELECT to_regclass($1) IS NOT NULL", (relation,)))


def primary_key(connection: Connection, relation: str) -> tuple[str, ...]:
    """The primary key's columns, in its order; or those of a unique index that can replace it.

    Raises:
        DefinitionError: There is neither.
    """
    row = connection.execute(_KEY, (relation,)).fetchone()
    if row is None:
        raise DefinitionError(
            f"{relation} has no primary key",
            hint=f"Its changed rows cannot be told apart. Add one: ALTER TABLE {relation} ADD PRIMARY KEY (…)\n"
            "A unique index will do as well, if its columns are NOT NULL and it is neither partial nor deferrable.",
        )
    return tuple(row[0])
