"""Table files: notices that a table has other files, partitions or triggers than before, which no trigger sees.

That is a partition that was attached or detached with its rows, dropped, or truncated by itself; and a table of any
kind that was rewritten, possibly with other values, as by ALTER TABLE … TYPE … USING. VACUUM FULL, CLUSTER and TRUNCATE
look the same. And it is a trigger that was disabled for a while, or dropped and created: its catalogue row is another
one. `syncer.recovery.schema_watch` looks every few seconds.
"""

from __future__ import annotations

from syncer.base.postgres import Connection, value

# A table and its partitions of every level, each with the transaction that attached it. Read from the catalogue: the
# function for it waits for the lock of each partition.
TREE = """
WITH RECURSIVE tree (oid, attached_by) AS (
    SELECT to_regclass($1)::oid, NULL::xid
    UNION ALL
    SELECT i.inhrelid, i.xmin FROM tree AS t JOIN pg_inherits AS i ON i.inhparent = t.oid WHERE NOT i.inhdetachpending
)
"""
# The attaching transaction shows that a partition was detached for a moment; TRUNCATE gives it a new file. So does an
# ALTER TABLE that rewrites a column. Null if there is no such table.
_PRESENT = f"""{TREE}
SELECT CASE WHEN EXISTS (SELECT FROM pg_class WHERE oid = to_regclass($1) AND relkind IN ('p', 'r'))
            THEN array_agg(format('%s %s %s', oid, attached_by, pg_relation_filenode(oid)) ORDER BY oid) END
FROM tree
"""
TRIGGERS = f"""{TREE}
SELECT array_agg(format('%s %s', g.oid, g.xmin) ORDER BY g.oid)
FROM tree AS t JOIN pg_trigger AS g ON g.tgrelid = t.oid JOIN pg_proc AS p ON p.oid = g.tgfoid
WHERE p.pronamespace = 'syncer'::regnamespace
"""
"""The query for what identifies the triggers of a table, ``$1``, and of its partitions."""
_MOVED = """
SELECT c.relation FROM syncer.capture AS c
WHERE c.files <> ({present}) OR c.triggers IS DISTINCT FROM ({triggers})
ORDER BY 1
"""
_LOCKED = f"""
SELECT c.files, c.triggers, ({_PRESENT}), ({TRIGGERS}) FROM syncer.capture AS c WHERE relation = $1 FOR UPDATE
"""
_REMEMBER = "UPDATE syncer.capture SET files = $2, triggers = $3 WHERE relation = $1"
_WRITE_TRUNCATED = """
INSERT INTO syncer.outbox (segment, relation, operation) SELECT last_value, $1, 'T' FROM syncer.outbox_segment
"""


def present(connection: Connection, relation: str) -> object:
    """Return what identifies the files and partitions of a table now; None if there is no such table."""
    return value(connection, _PRESENT, (relation,))


def note(connection: Connection) -> list[str]:
    """Have documents refreshed whose tables have other files, partitions or triggers than before.

    Each detection becomes a change in the outbox, as if the table had been truncated; relay and workers do the rest.
    Needs to read the catalogue and to write the syncer schema. If several daemons run, at most one records each
    detection.

    Returns:
        The tables that it has noted.
    """
    present, triggers = (query.replace("$1", "c.relation") for query in (_PRESENT, TRIGGERS))
    moved = connection.execute(_MOVED.format(present=present, triggers=triggers)).fetchall()
    return [relation for (relation,) in moved if _note(connection, relation)]


def _note(connection: Connection, relation: str) -> bool:
    with connection.transaction():
        # Everything seen here was committed before the change that reports it.
        locked = connection.execute(_LOCKED, (relation,)).fetchone()
        if locked is None:
            return False
        *known, files, triggers = locked
        if files is None or triggers is None or known == [files, triggers]:
            return False
        connection.execute(_REMEMBER, (relation, files, triggers))
        connection.execute(_WRITE_TRUNCATED, (relation,))
    return True
