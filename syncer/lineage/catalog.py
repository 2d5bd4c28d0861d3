"""The catalog: asks Postgres what a query reads.

The query becomes a temporary view in a transaction that is rolled back. The catalogue then lists the columns of tables
that it depends on, also through views. ``pg_get_viewdef`` returns the *canonical* query, with every name qualified and
every star expanded. Names in the original are resolved by the role's search_path. The canonical query must call the
same functions and operators without a search_path, otherwise the query is refused. Only the canonical text is parsed
here, for what the catalogue does not record.

Guarantees: every column that the query reads is reported, or the query is refused. Where single columns cannot be
determined, all columns of the table are reported. A query whose result can change without a commit is refused.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

import psycopg
from psycopg import errors as pg, sql
from sqlglot import exp

from syncer.base.error_policy import explain_unqualified
from syncer.base.errors import DefinitionError
from syncer.base.postgres import RESOLVE_AS_PINNED, RESOLVE_AS_WRITTEN, Connection
from syncer.lineage import parser
from syncer.lineage.steady import require_no_clock_words, require_steady

_PREFIX = "CREATE TEMPORARY VIEW syncer_probe AS\n"
_COLUMNS = """
WITH RECURSIVE shown (number, name, type) AS (
    SELECT attnum, attname, atttypid FROM pg_attribute WHERE attrelid = 'pg_temp.syncer_probe'::regclass AND attnum > 0
    UNION ALL
    SELECT number, name, typbasetype FROM shown JOIN pg_type AS t ON t.oid = shown.type AND t.typtype = 'd'
)
SELECT name::text, format_type(type, -1) FROM shown JOIN pg_type AS t ON t.oid = type AND t.typtype <> 'd'
ORDER BY number
"""
# The query's own rewrite rule, and those of the views that it reads at any depth, with their canonical queries.
_STORED = """
WITH RECURSIVE rule AS (
    SELECT oid, ev_class FROM pg_rewrite WHERE ev_class = 'pg_temp.syncer_probe'::regclass
    UNION
    SELECT r.oid, r.ev_class
    FROM rule
    JOIN pg_depend AS d ON d.classid = 'pg_rewrite'::regclass AND d.objid = rule.oid
                       AND d.refclassid = 'pg_class'::regclass AND d.refobjid <> rule.ev_class
    JOIN pg_class AS c ON c.oid = d.refobjid AND c.relkind = 'v'
    JOIN pg_rewrite AS r ON r.ev_class = c.oid AND r.rulename = '_RETURN'
)
SELECT rule.oid, format('%I.%I', n.nspname, c.relname), n.nspname::text, c.relname::text,
       btrim(pg_get_viewdef(c.oid), '; ')
FROM rule JOIN pg_class AS c ON c.oid = rule.ev_class JOIN pg_namespace AS n ON n.oid = c.relnamespace
ORDER BY c.oid <> 'pg_temp.syncer_probe'::regclass, 2
"""
# A trigger sees no value of a virtual generated column and may not name it: the columns it is computed from stand in.
_VIRTUAL = """
SELECT a.attname, array_remove(array_agg(s.attname::text), NULL) AS sources
FROM pg_attribute AS a
JOIN pg_attrdef AS e ON e.adrelid = a.attrelid AND e.adnum = a.attnum
LEFT JOIN pg_depend AS d ON d.classid = 'pg_attrdef'::regclass AND d.objid = e.oid
                        AND d.refclassid = 'pg_class'::regclass AND d.refobjid = a.attrelid
LEFT JOIN pg_attribute AS s ON s.attrelid = a.attrelid AND s.attnum = d.refobjsubid AND s.attnum <> a.attnum
WHERE a.attrelid = c.oid AND a.attgenerated = 'v'
GROUP BY a.attname
"""
_READS = f"""
SELECT format('%I.%I', n.nspname, c.relname), n.nspname::text, c.relname::text,
       array_remove(array_agg(a.attname::text), NULL),
       ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped),
       (SELECT jsonb_object_agg(attname, sources) FROM ({_VIRTUAL}) AS v)
FROM pg_rewrite AS rule
JOIN pg_depend AS d ON d.classid = 'pg_rewrite'::regclass AND d.objid = rule.oid
                   AND d.refclassid = 'pg_class'::regclass AND d.refobjid <> rule.ev_class
JOIN pg_class AS c ON c.oid = d.refobjid AND c.relkind NOT IN ('c', 'v')
JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = d.refobjsubid AND d.refobjsubid > 0
WHERE rule.oid = ANY ($1)
GROUP BY c.oid, n.nspname
ORDER BY 1
"""
# The schemas other than pg_catalog whose `=` is strict and depends on its operands alone, as stored queries call it. An
# image holds the text of a value, so the text must be exact: it is for these extensions, but not for every type.
_EQUALITIES = r"""
SELECT 'equality', n.nspname || '.=', format('%I.=', n.nspname)
FROM pg_operator AS o JOIN pg_namespace AS n ON n.oid = o.oprnamespace JOIN pg_proc AS p ON p.oid = o.oprcode
WHERE o.oprname = '=' AND n.nspname <> 'pg_catalog' AND o.oid IN (
    SELECT match[1]::oid FROM pg_rewrite, regexp_matches(ev_action::text, ':opno (\d+)', 'g') AS match
    WHERE pg_rewrite.oid = ANY ($1))
GROUP BY n.nspname
HAVING bool_and(p.proisstrict AND p.provolatile = 'i' AND (
    SELECT bool_and(t.typnamespace = 'pg_catalog'::regnamespace OR EXISTS (
        SELECT FROM pg_depend AS d JOIN pg_extension AS e ON e.oid = d.refobjid
        WHERE d.classid = 'pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e' AND e.extname IN (
            'citext', 'cube', 'hstore', 'ip4r', 'isn', 'ltree', 'postgis', 'semver', 'vector')))
    FROM pg_type AS t WHERE t.oid IN (o.oprleft, o.oprright)))
"""
# The functions and operators that a stored query calls.
_CALLS = r"""
SELECT asked.name, (
    SELECT string_agg(call::text, ' ' ORDER BY call)
    FROM regexp_matches(ev_action::text, ':(opnos?|funcid|aggfnoid|winfnoid) (\(o [\d ]+\)|\d+)', 'g') AS call)
FROM unnest($1::text[]) AS asked (name) JOIN pg_rewrite ON ev_class = asked.name::regclass AND rulename = '_RETURN'
"""
_AGAIN = "CREATE TEMPORARY VIEW {} AS {}"
# User-defined functions and aggregates, whose definition may be replaced; also those that they call. The catalogue
# knows what a body in standard SQL calls. In another body each word counts that is the name of such a function: too
# many do no harm.
_OWN_FUNCTIONS = r"""
WITH RECURSIVE own AS (
    SELECT p.oid, p.proname, p.prosrc, p.prokind, p.pronamespace, p.proargtypes
    FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang JOIN pg_namespace AS n ON n.oid = p.pronamespace
    WHERE (l.lanname NOT IN ('internal', 'c') OR p.prokind = 'a')
      AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'syncer')
), reached AS (
    SELECT oid FROM own WHERE oid = ANY ($3::oid[])
    UNION
    SELECT callee.oid
    FROM reached JOIN own AS caller USING (oid) CROSS JOIN own AS callee
    WHERE strpos(lower(caller.prosrc), lower(callee.proname)) > 0
      AND lower(callee.proname) = ANY (regexp_split_to_array(lower(caller.prosrc), '[^[:alnum:]_$]+'))
       OR EXISTS (SELECT FROM pg_depend AS d
                  WHERE d.classid = 'pg_proc'::regclass AND d.objid = caller.oid
                    AND d.refclassid = 'pg_proc'::regclass AND d.refobjid = callee.oid)
       OR EXISTS (SELECT FROM pg_aggregate AS g
                  WHERE g.aggfnoid = caller.oid AND callee.oid IN (g.aggtransfn, g.aggfinalfn))
)
SELECT DISTINCT 'function', format('%I.%I(%s)', n.nspname, p.proname, oidvectortypes(p.proargtypes)), ''
FROM reached JOIN own AS p USING (oid) JOIN pg_namespace AS n ON n.oid = p.pronamespace
"""
# User-defined types of the columns that are read and of what the SELECT itself names, and what they are made of. Among
# them are the row types of relations, but of those that are read as whole rows, which have a shape themselves.
_OWN_TYPES = """
WITH RECURSIVE needed AS (
    SELECT d.refclassid, d.refobjid, d.refobjsubid FROM pg_depend AS d
    WHERE d.classid = 'pg_rewrite'::regclass AND d.objid = ANY ($1)
), reached (oid) AS (
    SELECT a.atttypid FROM pg_rewrite AS rule JOIN pg_attribute AS a ON a.attrelid = rule.ev_class AND a.attnum > 0
    WHERE rule.oid = ANY ($1)
    UNION
    SELECT d.refobjid FROM needed AS d WHERE d.refclassid = 'pg_type'::regclass
    UNION
    SELECT a.atttypid FROM needed AS d JOIN pg_attribute AS a ON a.attrelid = d.refobjid
    WHERE d.refclassid = 'pg_class'::regclass AND a.attnum > 0 AND NOT a.attisdropped
      AND (d.refobjsubid = a.attnum OR d.refobjid = ANY ($2::text[]::regclass[]))
    UNION
    SELECT unnest(p.prorettype || coalesce(p.proallargtypes, '{}'))
    FROM needed AS d JOIN pg_proc AS p ON p.oid = d.refobjid WHERE d.refclassid = 'pg_proc'::regclass
    UNION
    SELECT inner_type.oid
    FROM reached JOIN pg_type AS t USING (oid)
    CROSS JOIN LATERAL (
        SELECT t.typelem AS oid UNION ALL SELECT t.typbasetype
        UNION ALL SELECT a.atttypid FROM pg_attribute AS a
        WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL SELECT unnest(ARRAY[r.rngsubtype, r.rngtypid]) FROM pg_range AS r
        WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
    ) AS inner_type
)
SELECT DISTINCT 'type', format('%I.%I', n.nspname, t.typname), ''
FROM reached JOIN pg_type AS t USING (oid) JOIN pg_namespace AS n ON n.oid = t.typnamespace
LEFT JOIN pg_class AS c ON c.oid = t.typrelid
WHERE t.oid >= 16384 AND n.nspname !~ '^pg_'
  AND (t.typelem = 0 OR t.typsubscript <> 'array_subscript_handler'::regproc)
  AND (c.oid IS NULL OR c.oid <> ALL ($2::text[]::regclass[]))
"""
_OWN = f"({_EQUALITIES}) UNION ALL ({_OWN_FUNCTIONS}) UNION ALL ({_OWN_TYPES}) ORDER BY 1, 2"

# By the function that an error was raised in.
_EVENT_TRIGGERS = """
SELECT e.evtname::text FROM pg_event_trigger AS e JOIN pg_proc AS p ON p.oid = e.evtfoid
WHERE strpos($1, p.proname || '()') > 0
"""
_NAMESAKES = """
SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relname = $1 AND c.relkind IN ('r', 'p', 'v') ORDER BY 1
"""
_UNNAMEABLE = (
    "compares values with an operator of another schema than pg_catalog, where SQL cannot name one",
    """NULLIF, IS DISTINCT FROM, CASE … WHEN, JOIN … USING, NATURAL JOIN and comparisons of rows do so, on types of
extensions such as citext. Write each comparison out, as in a.email = b.email.""",
)
_PRINTED = """Postgres 18 does so with the row of a join that has an alias, within an aggregate, as in jsonb_agg(j).
Name the columns instead, as in jsonb_agg(jsonb_build_object('id', j.id))."""
_QUOTED = re.compile('"([^"]+)"')

TableName = tuple[str, str]
"""Schema and table name, unquoted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What a query reads of one table, ``schema.table``, quoted where SQL needs it; ``name`` is unquoted.

    Among its columns, a virtual generated column is replaced by those it is computed from. If it reads whole rows
    (``is_whole``), every future column counts.
    """

    relation: str
    name: TableName
    columns: frozenset[str]
    virtual: frozenset[str] = frozenset()
    is_whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What is known about a query.

    Args:
        canonical: The query as deparsed by Postgres.
        tree: The same, parsed; None if it, or a view that it reads, cannot be parsed at the place ``unread``.
        columns: Its columns in order, with their types, without type modifiers; the base type of a domain, whose checks
            would run as the role that casts.
        views: The canonical query of each view that it reads, parsed; ``view_names`` are quoted where SQL needs it.
        equalities: Operators ``=`` outside pg_catalog from which edges follow, as SQL names them, by the parser's name.
        functions: The user-defined functions that it calls, also from functions, with their argument types.
        types: The user-defined types that it reads, and those that they are made of.
    """

    canonical: str
    tree: exp.Query | None
    unread: str
    columns: dict[str, str]
    reads: tuple[Read, ...]
    views: dict[TableName, exp.Query]
    view_names: tuple[str, ...]
    equalities: dict[str, str]
    functions: tuple[str, ...]
    types: tuple[str, ...]


def probe(connection: Connection, query: str, file: str) -> Probe:
    """Analyse a SELECT with Postgres, without changing anything; ``file`` is for errors.

    Raises:
        DefinitionError: Postgres refuses the query, or it reads something whose changes cannot be captured.
    """
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(RESOLVE_AS_WRITTEN)
            # In binary, since the extended protocol refuses a second statement.
            connection.execute(_PREFIX + query + "\n", binary=True)
            connection.execute(RESOLVE_AS_PINNED)
            return _probe(connection, query, file)
    except pg.InsufficientPrivilege:
        raise
    except pg.ReadOnlySqlTransaction as error:
        if "SELECT FOR" not in str(error):  # a standby, say
            raise
        raise DefinitionError(
            f"{file} takes locks (FOR UPDATE or its like)", hint="A document is read, not locked. Leave that out."
        ) from error
    except (psycopg.ProgrammingError, psycopg.NotSupportedError, psycopg.DataError) as error:
        raise refused(connection, error, query, file) from error


def _probe(connection: Connection, query: str, file: str) -> Probe:
    columns: dict[str, str] = dict(connection.execute(_COLUMNS).fetchall())
    stored = connection.execute(_STORED).fetchall()
    rules = [rule for rule, *_ in stored]
    (*_, canonical), *views = stored
    _require_same_calls(connection, {"pg_temp.syncer_probe": canonical, **{view[1]: view[4] for view in views}}, file)
    unread, trees = "", list[exp.Query]()
    try:
        trees = [parser.parsed(text) for *_, text in stored]
    except parser.UnreadableError as error:
        unread = str(error)
    called = require_steady(connection, rules, trees, file)
    require_no_clock_words(query, canonical, file)
    reads = tuple(_reads(connection, rules, trees))
    whole = [read.relation for read in reads if read.is_whole]
    own: dict[str, dict[str, str]] = {"function": {}, "type": {}, "equality": {}}
    for kind, name, qualified in connection.execute(_OWN, (rules, whole, called)):
        own[kind][name] = qualified
    # FOR UPDATE is refused here.
    connection.execute("SET LOCAL transaction_read_only = on; SELECT FROM pg_temp.syncer_probe LIMIT 0", prepare=False)
    return Probe(
        canonical=canonical,
        tree=trees[0] if trees else None,
        unread=unread,
        columns=columns,
        reads=reads,
        views={(schema, name): tree for (_, _, schema, name, _), tree in zip(views, trees[1:], strict=False)},
        view_names=tuple(relation for _, relation, *_ in views),
        equalities=own["equality"],
        functions=tuple(own["function"]),
        types=tuple(own["type"]),
    )


def reads(connection: Connection, canonical: str) -> tuple[Read, ...]:
    """Return what a query reads that names all as a canonical one does; it is not judged, as `probe` does.

    Raises:
        UnreadableError: It, or a view that it reads, cannot be parsed.
    """
    with connection.transaction(force_rollback=True):
        connection.execute(sql.SQL(_AGAIN).format(sql.Identifier("syncer_probe"), sql.SQL(canonical)))
        stored = connection.execute(_STORED).fetchall()
        trees = [parser.parsed(text) for *_, text in stored]
        return tuple(_reads(connection, [rule for rule, *_ in stored], trees))


def _require_same_calls(connection: Connection, views: Mapping[str, str], file: str) -> None:
    """Refuse views, the first of which is the file's, whose canonical queries call other functions or operators.

    The transaction has to be rolled back.
    """
    again = {view: f"syncer_again_{number}" for number, view in enumerate(views)}
    differing: str | None = None
    problem, hint = _UNNAMEABLE
    try:
        for differing, canonical in views.items():  # deparsed by Postgres
            connection.execute(sql.SQL(_AGAIN).format(sql.Identifier(again[differing]), sql.SQL(canonical)))
        calls: dict[str, str | None] = dict(connection.execute(_CALLS, ([*views, *again.values()],)).fetchall())
        differing = next((view for view in views if calls[view] != calls[again[view]]), None)
    except psycopg.ProgrammingError as error:
        if not isinstance(error, pg.UndefinedFunction):
            problem, hint = f"is printed by Postgres as a query that it refuses: {error.diag.message_primary}", _PRINTED
    if differing is not None:
        subject = file if differing == next(iter(views)) else f"{file}: the view {differing}"
        raise DefinitionError(f"{subject} {problem}", hint=hint)


def table_name(table: exp.Table) -> TableName:
    """Return the unquoted name of a table in a canonical query."""
    return table.db, table.name


def tables(tree: exp.Expr) -> list[exp.Table]:
    """Return the tables and views named in a canonical query. References to CTEs are left out."""
    return [table for table in tree.find_all(exp.Table) if table.db]


def refused(
    connection: Connection, error: psycopg.Error, query: str, file: str, *, prefix: str = _PREFIX
) -> DefinitionError:
    """Return the error for a query that Postgres refuses, with the place; it was executed after this prefix."""
    message = error.diag.message_primary or str(error)
    if "multiple commands" in message:
        return DefinitionError(f"{file} has more than one statement", hint="Write one SELECT into it.")
    if '"?column?"' in message:
        return unnamed_column(file)
    if unqualified := explain_unqualified(error, file):
        return DefinitionError(unqualified.message, hint=unqualified.hint)
    for (trigger,) in connection.execute(_EVENT_TRIGGERS, (error.diag.context or "",)).fetchall():
        return DefinitionError(
            f"The event trigger {trigger} refuses the temporary view by which syncer reads {file}: {message}",
            hint="Let it pass the role of postgres.dsn, or temporary objects: the view is rolled back at once.",
        )
    offset = int(error.diag.statement_position or 0) - 1 - len(prefix)
    if offset >= 0:  # show the line, with a caret below the position
        preceding = query[:offset]
        line = preceding.count("\n")
        label = f"line {line + 1}: "
        column = len(preceding) - preceding.rfind("\n") - 1  # an error at the end has a position beyond it
        message += f"\n  {label}{query.splitlines()[line]}\n  {' ' * (len(label) + column)}^"
    hint = error.diag.message_hint or "It must be one SELECT that runs on this database as it is."
    if isinstance(error, pg.UndefinedTable) and (missing := _QUOTED.search(message)):
        namesakes = ", ".join(name for (name,) in connection.execute(_NAMESAKES, (missing[1],)))
        hint = f"There is {namesakes}. Write its schema, too." if namesakes else hint
    return DefinitionError(f"{file} is refused by Postgres: {message}", hint=hint)


def require_id(file: str, columns: Container[str]) -> None:
    """Refuse a SELECT without a column that identifies a document."""
    if "_id" not in columns:
        hint = "Name the document's id so, as in: SELECT p.id AS _id, … FROM posts AS p"
        raise DefinitionError(f"{file} has no column _id", hint=hint)


def unnamed_column(file: str) -> DefinitionError:
    """Return the error for a column without a name."""
    return DefinitionError(f"{file}: a column has no name", hint="Give it one with AS: it becomes the field's name.")


def _reads(connection: Connection, rules: list[int], trees: list[exp.Query]) -> Iterator[Read]:
    # The catalogue records no column for a whole row. In a canonical query, a star always means one: of a table, or of
    # a join with an alias. An alias that names columns binds them by their places, which all columns have a part in.
    whole: set[TableName] = set()
    for tree in trees:
        aliases = {column.table for column in tree.find_all(exp.Column) if isinstance(column.this, exp.Star)}
        joins = [item for item in tree.find_all(exp.Subquery) if isinstance(item.this, exp.Table | exp.Subquery)]
        for item in (*tables(tree), *joins):
            if item.alias_or_name in aliases or (tree is trees[0] and item.alias_column_names):
                whole |= set(map(table_name, [item] if isinstance(item, exp.Table) else tables(item.this)))
    for relation, schema, name, columns_read, all_columns, made_of in connection.execute(_READS, (rules,)):
        is_whole = not trees or (schema, name) in whole
        columns = frozenset(all_columns if is_whole else columns_read)
        virtual = {name: sources for name, sources in (made_of or {}).items() if name in columns}
        columns = columns.difference(virtual).union(*virtual.values())
        yield Read(
            relation=relation, name=(schema, name), columns=columns, virtual=frozenset(virtual), is_whole=is_whole
        )
