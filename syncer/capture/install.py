"""Installs, checks and removes the triggers that write the outbox, and notices what no trigger sees.

Guarantees:

- Each row changed by INSERT, UPDATE, DELETE or TRUNCATE, from any client, leaves a row in the outbox that commits or
  rolls back with it. An UPDATE that changes no watched column leaves none.
- Installing and removing never make an application wait behind a transaction that we wait for. The lock is requested
  briefly, given up, and requested again.
- A change of a table that no trigger sees becomes a change in the outbox: see `note`.
- A relation whose rows can change without firing the triggers is refused: see `require_capturable`. `lost` finds
  those that become like that later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from syncer.base.error_policy import is_away
from syncer.base.errors import DefinitionError, SourceError
from syncer.base.postgres import Connection, lock_timeout, value, without_blocking
from syncer.capture import triggers
from syncer.capture.outbox import BACKLOG_CHANGES_MIN
from syncer.capture.triggers import Capture

# Relations, each with every table that may hold its rows: partitions of every level, or tables that inherit. Postgres
# expects a hundred times as many as there are, and would join them to the whole of pg_class, but for OFFSET 0.
_MEMBERS = """
WITH RECURSIVE member (top, oid) AS (
    SELECT oid, oid FROM unnest($1::oid[]) AS oid
    UNION
    SELECT m.top, i.inhrelid FROM member AS m JOIN pg_inherits AS i ON i.inhparent = m.oid
)
SELECT first_value(name) OVER (PARTITION BY top ORDER BY c.oid <> top), t.relkind = 'p', name,
       CASE WHEN n.nspname IN ('syncer', 'pg_catalog', 'information_schema') THEN n.nspname::text
            WHEN c.relkind IN ('m', 'f', 'S') THEN c.relkind::text ELSE c.relpersistence::text END,
       (SELECT e.extname FROM pg_depend AS d JOIN pg_extension AS e ON e.oid = d.refobjid
        WHERE d.classid = 'pg_namespace'::regclass AND d.objid = n.oid
          AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e')
FROM member CROSS JOIN LATERAL (SELECT * FROM pg_class WHERE oid = top OFFSET 0) AS t
CROSS JOIN LATERAL (SELECT * FROM pg_class WHERE oid = member.oid OFFSET 0) AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace CROSS JOIN format('%I.%I', n.nspname, c.relname) AS name
ORDER BY t.relkind <> 'v', 1, c.oid <> top, 3
"""
_CATALOGUE = "a system catalogue", "No trigger sees its rows change. Keep what you need of it in a table."
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
"""By the schema, kind or persistence of a relation: see `_MEMBERS`."""
_LOCK_SECONDS_MAX = 0.1
ROWS_MAX = BACKLOG_CHANGES_MIN
"""More rows of new partitions than this are not written as changes: every document that reads the table is refreshed.
So many take about a second, in one transaction."""

# A table and its partitions of every level, each with the transaction that attached it. Read from the catalogue: the
# function for it waits for the lock of each partition.
_TREE = """
WITH RECURSIVE tree (oid, attached_by) AS (
    SELECT top.oid, NULL::xid FROM pg_class AS top WHERE top.oid = to_regclass({relation})
    UNION ALL
    SELECT i.inhrelid, i.xmin FROM tree AS t JOIN pg_inherits AS i ON i.inhparent = t.oid WHERE NOT i.inhdetachpending
)
"""
# The attaching transaction shows that a partition was detached for a moment; TRUNCATE gives it a new file. So does an
# ALTER TABLE that rewrites a column, which then has another catalogue row; so has a trigger that was disabled for a
# while. All is read in one snapshot: no file is seen without the columns that were altered with it.
_FILES = f"""{_TREE}
SELECT array(SELECT format('%s %s %s', t.oid, t.attached_by, nullif(p.relfilenode, 0))
             FROM tree AS t JOIN pg_class AS p USING (oid) ORDER BY t.oid)
    || array(SELECT format('%s %s', g.oid, g.xmin)
             FROM tree AS t JOIN pg_trigger AS g ON g.tgrelid = t.oid JOIN pg_proc AS p ON p.oid = g.tgfoid
             WHERE p.pronamespace = 'syncer'::regnamespace ORDER BY g.oid)
    || (SELECT format('columns %s', jsonb_object_agg(a.attnum, a.xmin)) FROM pg_attribute AS a
        WHERE a.attrelid = to_regclass({{relation}}) AND a.attnum > 0 AND (a.attname = ANY ({{routing}})
              OR EXISTS (SELECT FROM jsonb_array_elements({{watched}}) AS names WHERE names ? a.attname::text)))
"""
# An ordinary table whose watched columns are as they were: its own trigger sees a TRUNCATE, and nothing else that gives
# it a file changes what a document reads. Of a partition, a TRUNCATE may be unseen.
_IS_AS_IT_WAS = """
SELECT FROM pg_class AS p
WHERE p.oid = e.oid AND p.oid = to_regclass(m.relation) AND p.relkind = 'r' AND e.is_file
  AND EXISTS (SELECT FROM unnest(m.before) AS entry WHERE entry LIKE 'columns %' AND entry = ANY (m.files))
"""
# A partition that has its first file, of no page, is as it was created, or its rows were deleted: if detached, maybe
# since then. But only VACUUM takes pages from a file. A partitioned one has no rows but those of its own partitions.
_IS_EMPTY = """
SELECT FROM pg_class AS p
WHERE p.oid = e.member AND (p.relkind = 'p' OR p.relkind = 'r' AND pg_relation_filenode(p.oid) = p.oid
                            AND pg_relation_size(p.oid) = 0 AND (p.reltuples < 0 OR e.entry = ANY (m.files)))
"""
_ROW, _TRUNCATE = 29, 32
"""``tgtype`` of a trigger after INSERT, UPDATE or DELETE of each row, and of one after TRUNCATE."""
# A partition whose trigger is as the transaction created it that created the table, too: no other has seen a row come
# or go without it. What that one left there may be unseen, as by CREATE TABLE, COPY and ATTACH. The catalogue row of a
# system column is never updated. A trigger that comes with a later transaction does not tell whether the partition
# was attached before, and detached while rows were deleted.
_IS_NEW = f"""
SELECT FROM pg_class AS p JOIN pg_attribute AS a ON a.attrelid = p.oid AND a.attname = 'ctid'
JOIN pg_trigger AS g ON g.tgrelid = p.oid AND g.xmin = a.xmin AND g.tgenabled = 'A' AND g.tgtype = {_ROW}
JOIN pg_proc AS f ON f.oid = g.tgfoid AND f.pronamespace = 'syncer'::regnamespace
JOIN pg_trigger AS top ON top.tgfoid = f.oid AND top.tgrelid = to_regclass(m.relation) AND top.tgtype = {_TRUNCATE}
WHERE p.oid = e.member AND p.relkind = 'r' AND pg_relation_filenode(p.oid) = p.oid
  AND NOT EXISTS (SELECT FROM unnest(m.before) AS entry WHERE split_part(entry, ' ', 1) = p.oid::text)
"""
# What differs of a partition that had no row changes no document, nor does a trigger that is gone: see `lost`.
# Everything seen here was committed before the change that reports it.
_MOVED = f"""
WITH present AS (
    SELECT c.relation, c.files AS before, ({_FILES}) AS files FROM syncer.capture AS c
), moved AS (
    UPDATE syncer.capture AS c SET files = n.files
    FROM present AS n WHERE n.relation = c.relation AND c.files <> n.files RETURNING n.*
)
SELECT m.relation, bool_and(EXISTS ({_IS_NEW})),
       array_agg(DISTINCT (SELECT format('%s.%I', p.relnamespace::regnamespace, p.relname)
                           FROM pg_class AS p WHERE p.oid = e.member))
FROM moved AS m CROSS JOIN LATERAL (
    SELECT entry, oid, is_file, CASE WHEN is_file THEN oid ELSE (SELECT tgrelid FROM pg_trigger AS g
                                                                 WHERE g.oid = d.oid) END AS member
    FROM (SELECT entry, split_part(entry, ' ', 1)::oid AS oid, entry LIKE '% % %' AS is_file
          FROM unnest(m.before || m.files) AS entry WHERE entry NOT LIKE 'columns %'
          GROUP BY 1 HAVING count(*) = 1) AS d
) AS e
WHERE e.member IS NOT NULL AND NOT EXISTS ({_IS_EMPTY}) AND NOT EXISTS ({_IS_AS_IT_WAS})
GROUP BY 1 ORDER BY 1
""".format(relation="c.relation", routing="c.routing", watched="c.watched")
_NOTE = """
INSERT INTO syncer.outbox (segment, relation, operation) SELECT last_value, $1, 'N' FROM syncer.outbox_segment
"""
# A partition without the trigger has lost it, and so has a table that inherits: it was not there at the installation. A
# crash empties an unlogged table, and the rows of a foreign partition change elsewhere: no trigger sees either. A
# function that was made for other columns than those recorded leaves out changes.
_LOST = f"""
SELECT a.relation
FROM unnest($1::text[], $2::text[]) AS a (relation, function)
WHERE NOT EXISTS (SELECT FROM pg_trigger
                  WHERE tgrelid = to_regclass(a.relation) AND tgfoid = to_regproc(a.function) AND tgenabled = 'A'
                    AND tgtype = {_TRUNCATE})
   OR NOT EXISTS (SELECT FROM pg_proc AS p JOIN syncer.capture AS c ON c.relation = a.relation
                  WHERE p.oid = to_regproc(a.function) AND strpos(p.prosrc, encode(sha256(convert_to(
                      to_jsonb(c.routing)::text || c.watched::text, 'UTF8')), 'hex')) > 0)
   OR EXISTS ({_TREE} SELECT FROM tree AS t JOIN pg_class AS c USING (oid)
              WHERE c.relpersistence <> 'p' OR c.relkind = 'f' OR NOT EXISTS (
                  SELECT FROM pg_trigger
                  WHERE tgrelid = t.oid AND tgfoid = to_regproc(a.function) AND tgenabled = 'A'
                    AND tgtype = {_ROW}))
ORDER BY 1
""".format(relation="a.relation")
# The table's owner creates its partitions, which have the trigger too. No other role needs the function.
_FORMER_OWNERS = """
SELECT a.grantee::regrole::text
FROM pg_proc AS f CROSS JOIN aclexplode(f.proacl) AS a
WHERE f.oid = to_regproc({}) AND a.grantee NOT IN (0, f.proowner)
  AND a.grantee <> (SELECT relowner FROM pg_class WHERE oid = to_regclass({}))
"""
_OUTDATED = f"""
SELECT o.relation FROM unnest($1::text[], $2::text[], $3::text[]) AS o (relation, function, body)
WHERE NOT EXISTS (SELECT FROM pg_proc AS p
                  WHERE p.oid = to_regproc(o.function) AND p.prosrc = o.body
                    AND NOT has_function_privilege('public', p.oid, 'EXECUTE')
                    AND NOT EXISTS (SELECT FROM pg_class AS c WHERE c.oid = to_regclass(o.relation)
                                    AND NOT has_function_privilege(c.relowner, p.oid, 'EXECUTE'))
                    AND NOT EXISTS (SELECT FROM ({_FORMER_OWNERS.format("o.function", "o.relation")}) AS former))
"""
_OWNER = "SELECT relowner::regrole::text FROM pg_class WHERE oid = to_regclass($1)"
# The table's triggers, also if it had another name when it got them; and the triggers that call its function, also if
# their table was renamed or has become a partition. Clones go with their original.
_TRIGGERS = """
SELECT t.tgrelid::regclass::text, t.tgname::text FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
WHERE t.tgparentid = 0
  AND (p.oid = to_regproc($2) OR t.tgrelid = to_regclass($1) AND p.pronamespace = 'syncer'::regnamespace)
ORDER BY 1, 2
"""
_EXISTING = "SELECT relation FROM unnest($1::text[]) AS relation WHERE to_regclass(relation) IS NOT NULL ORDER BY 1"
_COLUMNS = """
SELECT relation, a.attname::text, CASE t.typnamespace WHEN 'pg_catalog'::regnamespace THEN t.typname::text ELSE '' END
FROM unnest($1::text[]) AS relation JOIN pg_attribute AS a ON a.attrelid = to_regclass(relation)
JOIN pg_type AS t ON t.oid = a.atttypid
WHERE a.attnum > 0 AND NOT a.attisdropped
"""
_UNCAPTURED = """
SELECT relation FROM unnest({relations}::text[]) AS relation
WHERE NOT EXISTS (
    SELECT FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
    WHERE t.tgrelid = to_regclass(relation) AND t.tgenabled <> 'D' AND p.pronamespace = 'syncer'::regnamespace
)
"""
# What plain ENABLE TRIGGER leaves behind: rows that replication writes would not be captured.
_ENABLED_PLAINLY = """
SELECT t.tgrelid::regclass::text, t.tgname::text FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
WHERE p.pronamespace = 'syncer'::regnamespace AND t.tgenabled = 'O'
"""
_CAPTURED = "SELECT relation, routing, watched FROM syncer.capture ORDER BY relation"
# The remembered files are kept: documents that were not loaded since then may lack what is new.
_PUT = f"""
INSERT INTO syncer.capture AS c (relation, routing, watched, files) VALUES ($1, $2, $3, ({_FILES}))
ON CONFLICT (relation) DO UPDATE
SET routing = excluded.routing, watched = excluded.watched, files = coalesce(c.files, excluded.files)
""".format(relation="$1", routing="$2::text[]", watched="$3::jsonb")


def require_capturable(connection: Connection, oids: Collection[int], file: str) -> None:
    """Refuse a relation whose changes cannot be captured.

    Raises:
        DefinitionError: With the reason, and the action to take.
    """
    for relation, is_partitioned, name, kind, extension in connection.execute(_MEMBERS, (list(oids),)).fetchall():
        if kind in _REFUSED:
            obstacle, hint = _REFUSED[kind]
            is_partition = f"a partitioned table, and its partition {name} is " if name != relation else ""
            raise DefinitionError(f"{file} reads {relation}, which is {is_partition}{obstacle}", hint=hint.format(name))
        if name == relation or is_partitioned:
            continue
        if extension is not None:
            raise DefinitionError(
                f"{file} reads {relation}, whose rows the extension {extension} keeps in tables of its own",
                hint="It may move and drop them, which no trigger sees. Select from a table that it does not manage.",
            )
        raise DefinitionError(
            f"{file} reads {relation}, which is a table that others inherit from",
            hint=f"A table that inherits later has no trigger. Make {relation} a partitioned table; or part them:\n"
            f"ALTER TABLE {name} NO INHERIT {relation}",
        )


def existing(connection: Connection, relations: Collection[str]) -> list[str]:
    """The tables of these that there are."""
    return [relation for (relation,) in connection.execute(_EXISTING, (list(relations),))]


def captured(connection: Connection) -> dict[str, Capture]:
    """The captured tables, by relation."""
    return {
        relation: Capture(relation=relation, routing=frozenset(routing), watched=frozenset(map(frozenset, watched)))
        for relation, routing, watched in connection.execute(_CAPTURED)
    }


def lost(connection: Connection, relations: Iterable[str]) -> list[str]:
    """The tables of these that lack a trigger, or have a partition that does, or one that is not always enabled.

    And those of which it does not see every change: unlogged ones, those with a foreign or unlogged partition, and
    those whose function was made for other columns.
    """
    names = list(relations)
    functions = [triggers.function(relation).as_string() for relation in names]
    return [relation for (relation,) in connection.execute(_LOST, (names, functions))]


def arm(connection: Connection) -> dict[str, str]:
    """Make triggers that a user has enabled again fire always, unless the table is in use or of another role.

    Returns why it failed, by table: as with an event trigger that forbids DDL. Their documents are suspended meanwhile.
    """
    failures = {}
    for table, trigger in connection.execute(_ENABLED_PLAINLY).fetchall():
        enable = sql.SQL(triggers.ENABLE).format(sql.SQL(table), sql.Identifier(trigger))
        try:
            with connection.transaction():
                connection.execute(lock_timeout(_LOCK_SECONDS_MAX, local=True))
                connection.execute(enable)
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.LockNotAvailable):
            continue
        except psycopg.Error as error:
            if is_away(error):
                raise
            failures[table] = error.diag.message_primary or str(error)
    return failures


def note(connection: Connection) -> list[str]:
    """Have documents refreshed whose tables have other files, partitions or triggers than before.

    That is a partition that was attached or detached with rows, dropped, or truncated by itself; a table that was
    rewritten with a watched column altered, as by ALTER TABLE … TYPE … USING; and a trigger that was disabled for a
    while, or dropped and created. Of a partition, any new file counts: VACUUM FULL looks like a TRUNCATE. A restored
    dump has made all of it anew, and pg_upgrade the triggers: what happened to a table before does not show.

    Each becomes a change in the outbox, as if the table had been truncated. But of a partition that one transaction has
    created and attached, each row becomes a change, unless they are too many or cannot be read. If several daemons run,
    at most one records each. Returns the tables that it has noted as a whole.
    """
    noted = []
    with connection.transaction():
        for relation, is_new, partitions in connection.execute(_MOVED).fetchall():
            if not (is_new and _write_rows(connection, relation, partitions)):
                connection.execute(_NOTE, (relation,))
                noted.append(relation)
    return noted


def _write_rows(connection: Connection, relation: str, partitions: Iterable[str]) -> bool:
    """Write each row of these partitions as a change; False if they are too many, or one cannot be read."""
    capture, rows = captured(connection)[relation], 0
    types = _types(connection, [relation])[relation]
    try:
        with connection.transaction():
            connection.execute(lock_timeout(_LOCK_SECONDS_MAX, local=True))
            for partition in partitions:
                copy = triggers.copy_rows(capture, partition, types, rows_max=ROWS_MAX + 1 - rows)
                rows += connection.execute(copy).rowcount
            if rows > ROWS_MAX:
                raise psycopg.Rollback
    except psycopg.Error as error:  # the role may not read a partition that is new, or its owner alters it
        if is_away(error):
            raise
        return False
    return rows <= ROWS_MAX


def uncaptured_query(relations: Collection[str]) -> sql.Composed:
    """The query for the tables without a trigger of ours. A table that took another one's name has none."""
    return sql.SQL(_UNCAPTURED).format(relations=sql.Literal(sorted(relations)))


def outdated(connection: Connection, captures: Collection[Capture]) -> list[str]:
    """The tables of these whose function is not what this program would create for the table as it is now."""
    bodies = _bodies(connection, captures)
    functions = [triggers.function(relation).as_string() for relation in bodies]
    parameters = [*bodies], functions, [*bodies.values()]
    return [relation for (relation,) in connection.execute(_OUTDATED, parameters)]


def install(
    connection: Connection,
    capture: Capture,
    *,
    timeout_seconds: float = 60,
    waiting: Callable[[str], None] = lambda _: None,
) -> None:
    """Install or update the triggers of one table, as a role that owns it.

    They go on to watch what they watched before, for documents that still need it: see `narrow`. ``waiting`` is called
    with the holder of the lock after each failed request.

    Raises:
        SourceError: The lock was not available in time, or the table takes no triggers.
        psycopg.Error: A privilege is missing.
    """
    relation, function = capture.relation, triggers.function(capture.relation).as_string()
    installed = captured(connection).get(relation)
    if installed is not None:
        columns = {column for _, column, _ in connection.execute(_COLUMNS, ([relation],))}
        capture = replace(
            capture,
            routing=capture.routing | (installed.routing & columns),
            watched=capture.watched | {watched & columns for watched in installed.watched},
        )
    has_triggers = not lost(connection, [relation])
    sees_more = (
        installed is None or not capture.columns <= installed.columns or not capture.routing <= installed.routing
    )

    def change() -> None:
        if not has_triggers or sees_more:
            # A transaction that wrote under the previous function has ended, so loading sees what it left out. So it
            # does with partitions that are there by now: one that is attached later has the trigger, and is noted.
            connection.execute(sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(sql.SQL(relation)))
        _replace_function(connection, capture)
        if not has_triggers:
            for table, name in connection.execute(_TRIGGERS, (relation, function)).fetchall():
                connection.execute(sql.SQL("DROP TRIGGER {} ON {}").format(sql.Identifier(name), sql.SQL(table)))
            try:
                connection.execute(triggers.create_triggers(relation))
            except psycopg.errors.FeatureNotSupported as error:  # so does TimescaleDB for a hypertable
                raise SourceError(
                    f"{relation} takes no triggers: {error.diag.message_primary}",
                    hint="Does an extension manage it? Then syncer cannot capture it: take it out of the SELECT.",
                ) from error
        _record(connection, capture)

    without_blocking(connection, [relation], change, timeout_seconds, waiting)


def narrow(connection: Connection, capture: Capture) -> None:
    """Watch only what is wanted, once nothing needs the rest. Takes no lock on the table."""
    with connection.transaction():
        _replace_function(connection, capture)
        _record(connection, capture)


def _replace_function(connection: Connection, capture: Capture) -> None:
    owner = str(value(connection, _OWNER, (capture.relation,)))
    body = _bodies(connection, [capture])[capture.relation]
    connection.execute(triggers.create_function(body, capture.relation, owner))
    function = triggers.function(capture.relation)
    parameters = (function.as_string(), capture.relation)
    for (former,) in connection.execute(_FORMER_OWNERS.format("$1", "$2"), parameters).fetchall():
        revoke = sql.SQL("REVOKE EXECUTE ON FUNCTION {}() FROM {}").format(function, sql.SQL(former))
        connection.execute(revoke)


def _record(connection: Connection, capture: Capture) -> None:
    watched = Jsonb(sorted(map(sorted, capture.watched)))
    connection.execute(_PUT, (capture.relation, sorted(capture.routing), watched))


def _bodies(connection: Connection, captures: Collection[Capture]) -> dict[str, str]:
    """The body of each table's function."""
    types = _types(connection, [capture.relation for capture in captures])
    version = connection.info.server_version
    return {
        capture.relation: triggers.body(capture, types[capture.relation], server_version=version).as_string(connection)
        for capture in captures
    }


def _types(connection: Connection, relations: Iterable[str]) -> dict[str, dict[str, str]]:
    """The types of each table's columns, as `syncer.capture.triggers` needs them."""
    types: dict[str, dict[str, str]] = {relation: {} for relation in relations}
    for relation, column, type_ in connection.execute(_COLUMNS, ([*types],)):
        types[relation][column] = type_
    return types


def disable(connection: Connection, relation: str, *, timeout_seconds: float, waiting: Callable[[str], None]) -> None:
    """Disable the triggers of one table, if it has them; otherwise as `install`, which enables them again."""

    def change() -> None:
        function = triggers.function(relation).as_string()
        for table, name in connection.execute(_TRIGGERS, (relation, function)).fetchall():
            statement = sql.SQL("ALTER TABLE {} DISABLE TRIGGER {}")
            connection.execute(statement.format(sql.SQL(table), sql.Identifier(name)))

    without_blocking(connection, [relation], change, timeout_seconds, waiting)


def remove(
    connection: Connection,
    relation: str,
    *,
    timeout_seconds: float = 60,
    waiting: Callable[[str], None] = lambda _: None,
) -> None:
    """Remove the triggers of one table, if it has them; otherwise as `install`."""

    def change() -> None:
        connection.execute(sql.SQL("DROP FUNCTION IF EXISTS {} CASCADE").format(triggers.function(relation)))
        connection.execute("DELETE FROM syncer.capture WHERE relation = $1", (relation,))

    without_blocking(connection, [relation], change, timeout_seconds, waiting)
