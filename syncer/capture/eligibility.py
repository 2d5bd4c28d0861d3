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
_CATALOGUE = "a system catalogue", "No trigger sees its rows change. Keep what you need of it in a table."
# By schema, kind or persistence, as the catalogue has them.
_REFUSED = {
    "syncer": ("syncer's own", "Select from tables of yours."),
    "pg_catalog": _CATALOGUE,
    "information_schema": _CATALOGUE,
    "m": ("a materialized view", "No trigger sees its rows change. Select from the tables that it is made of."),
    "f": ("a foreign table", "No trigger sees its rows change on another server. Copy them into a table of this one."),
    "S": ("a sequence", "No trigger sees it change. Select from the table that it numbers."),
    "t": ("a temporary table", "Only its own session sees its rows. Make it an ordinary table."),
    "u": (
        "an unlogged table",
        "A crash of Postgres empties it without a change. Make it a logged one: ALTER TABLE {} SET LOGGED",
    ),
}


def require_capturable(connection: Connection, oid: int, file: str) -> None:
    """Refuse a relation whose changes cannot be captured.

    Raises:
        DefinitionError: With the reason, and the action to take.
    """
    members = connection.execute(_MEMBERS, (oid,)).fetchall()
    relation, _, kind, _ = members[0]
    for name, *properties in members:
        for what, hint in (_REFUSED[each] for each in properties if each in _REFUSED):
            is_partition = f"a partitioned table, and its partition {name} is " if name != relation else ""
            raise DefinitionError(f"{file} reads {relation}, which is {is_partition}{what}", hint=hint.format(name))
    if kind != "p" and len(members) > 1:
        raise DefinitionError(
            f"{file} reads {relation}, which is a table that others inherit from",
            hint=f"A table that inherits later has no trigger. Make {relation} a partitioned table; or part them:\n"
            f"ALTER TABLE {members[1][0]} NO INHERIT {relation}",
        )


def exists(connection: Connection, relation: str) -> bool:
    """Whether there is such a table."""
    return bool(value(connection, "SELECT to_regclass($1) IS NOT NULL", (relation,)))
