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
SELECT format('%I.%I', n.nspname, c.relname), n.nspname::text, c.relkind::text, c.relpersistence::text,
       c.relispartition, (SELECT format('%I.%I', pn.nspname, p.relname)
                          FROM pg_class AS p JOIN pg_namespace AS pn ON pn.oid = p.relnamespace
                          WHERE p.oid = CASE WHEN c.relispartition THEN pg_partition_root(c.oid) ELSE i.inhparent END)
FROM member AS m JOIN pg_class AS c USING (oid) JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid
ORDER BY c.oid <> $1, 1
"""

_OF_THE_SYSTEM = frozenset({"pg_catalog", "information_schema"})
_NO_TRIGGER = "No trigger sees its rows change."
_KINDS = {
    "m": ("a materialized view", f"{_NO_TRIGGER} Select from the tables that it is made of."),
    "f": ("a foreign table", f"Its rows change on another server. {_NO_TRIGGER} Copy them into a table of this one."),
    "S": ("a sequence", f"{_NO_TRIGGER} Select from the table that it numbers."),
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
    (relation, schema, kind, persistence, is_partition, parent), *members = connection.execute(
        _MEMBERS, (oid,)
    ).fetchall()
    reason = _of_itself(relation, schema, kind, persistence)
    if reason is None and is_partition:
        reason = (
            f"a partition of {parent}",
            f"Partitions come and go, and rows move between them. Select from {parent}, with a condition.",
        )
    if reason is None and (parent or (members and kind != "p")):
        above, below = (parent, relation) if parent else (relation, members[0][0])
        reason = (
            "a table that shares its rows by inheritance",
            (
                f"Rows are written through {above} and through {below}, and triggers see only one of them.\n"
                f"Make {above} a partitioned table; or part them: ALTER TABLE {below} NO INHERIT {above}"
            ),
        )
    for name, member_schema, member_kind, member_persistence, *_ in members if reason is None else ():
        found = _of_itself(name, member_schema, member_kind, member_persistence)
        if found is not None:
            raise _refused(file, relation, f"a partitioned table, and its partition {name} is {found[0]}", found[1])
    if reason is not None:
        raise _refused(file, relation, *reason)


def _of_itself(relation: str, schema: str, kind: str, persistence: str) -> tuple[str, str] | None:
    """What the relation is and the action to take, if it cannot be captured; its members are not considered."""
    if schema == "syncer":
        return "syncer's own", "Select from tables of yours."
    if schema in _OF_THE_SYSTEM:
        return "a system catalogue", f"{_NO_TRIGGER} Keep what you need of it in a table."
    if kind in _KINDS:
        return _KINDS[kind]
    if persistence == "t":
        return "a temporary table", "Only its own session sees its rows. Make it an ordinary table."
    if persistence == "u":
        return "an unlogged table", (
            f"A crash of Postgres empties it without a change. Make it a logged one: ALTER TABLE {relation} SET LOGGED"
        )
    return None


def _refused(file: str, relation: str, what: str, hint: str) -> DefinitionError:
    return DefinitionError(f"{file} reads {relation}, which is {what}", hint=hint)


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
