"""What a document's SELECT reads, asked of Postgres itself.

The SELECT is made a temporary view in a transaction that is rolled back. The catalogue then says which
columns of which tables it depends on, and ``pg_get_viewdef`` gives it back with every name qualified and
every star expanded: the *canonical* SELECT, whose meaning no search_path can change. Only that canonical text
is parsed here, for two things that the catalogue does not tell: which column ``_id`` is, and whether a row is
used as a whole.

Guarantee: a column that a document reads is watched. Where that cannot be known, all columns are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import sqlglot
from psycopg import sql
from sqlglot import exp
from sqlglot.errors import ParseError

from syncer.definition import Definition
from syncer.errors import DefinitionError
from syncer.postgres import Connection

_ROWS = "%(rows)s"
# Stands for the changed rows until the query is run; deparsing gives it back letter by letter.
_ROWS_MARK = "'\"syncer: the changed rows\"'::jsonb"

# Key types whose JSON form and whose text form are the same, so that an image's key is a document's id.
_PLAIN_KEY_TYPES = frozenset({"smallint", "integer", "bigint", "uuid", "text", "character varying"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUse:
    """How one document uses one table.

    Args:
        relation: ``schema.table``, quoted where SQL needs it.
        watched: The columns that the SELECT reads.
        routing: The columns that say which documents a row belongs to; the primary key among them.
        key_column: If the row's value of this column is the document's id: that column.
        affected: Otherwise: a query over the changed rows, ``$1::jsonb``, whose ``_id`` are the documents.
    """

    relation: str
    watched: frozenset[str]
    routing: frozenset[str]
    key_column: str | None
    affected: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """What a document's SELECT reads and returns.

    Args:
        canonical_select: The SELECT as Postgres understood it.
        id_type: The type of ``_id``.
        fields: Every other column, in order.
        root: The table whose row a document is; None if ``_id`` is not a plain column of one.
        root_key: The column of the root that ``_id`` is.
        tables: How each table is used, by relation.
    """

    canonical_select: str
    id_type: str
    fields: tuple[str, ...]
    root: str | None
    root_key: str | None
    tables: dict[str, TableUse]


def analyse(connection: Connection, definition: Definition) -> Dependencies:
    """Find out what a document depends on.

    Raises:
        DefinitionError: The SELECT is refused by Postgres, has no ``_id``, reads something whose changes
            cannot be captured, or needs an affects query that is not there.
    """
    with _probe(connection, definition.select, f"{definition.folder}/select.sql") as view:
        columns = view.columns()
        canonical = view.canonical()
        reads = view.reads()
    _require_columns(definition, columns)
    tree = _parse(canonical)
    root, root_key = _find_root(connection, tree, reads)
    occurrences = Counter(_name(table) for table in _tables(tree)) if tree is not None else Counter()
    tables = {
        read.relation: _table_use(
            connection,
            definition,
            read,
            key_column=root_key if read.relation == root and occurrences[read.name] == 1 else None,
            id_type=columns["_id"],
        )
        for read in reads
    }
    _require_affects_used(definition, connection, tables)
    return Dependencies(
        canonical_select=canonical,
        id_type=columns["_id"],
        fields=tuple(name for name in columns if name != "_id"),
        root=root,
        root_key=root_key,
        tables=tables,
    )


_Name = tuple[str, str]
"""Schema and table, as the catalogue spells them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """The columns that a query reads of one relation."""

    relation: str
    name: _Name
    columns: frozenset[str]


class _ProbeView:
    """A temporary view, while its transaction lasts."""

    _COLUMNS = """
    SELECT attname, format_type(atttypid, NULL) FROM pg_attribute
    WHERE attrelid = 'pg_temp.syncer_probe'::regclass AND attnum > 0 ORDER BY attnum
    """
    _CANONICAL = "SELECT pg_get_viewdef('pg_temp.syncer_probe'::regclass)"
    _READS = """
    SELECT c.oid, format('%I.%I', n.nspname, c.relname), n.nspname, c.relname, c.relkind::text,
           array_remove(array_agg(a.attname::text), NULL)
    FROM pg_rewrite AS r
    JOIN pg_depend AS d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
                       AND d.refclassid = 'pg_class'::regclass AND d.refobjid <> r.ev_class
    JOIN pg_class AS c ON c.oid = d.refobjid
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = d.refobjsubid AND d.refobjsubid > 0
    WHERE r.ev_class = 'pg_temp.syncer_probe'::regclass AND c.relkind <> 'S'
    GROUP BY c.oid, n.nspname, c.relname, c.relkind
    ORDER BY 2
    """
    _ALL_COLUMNS = """
    SELECT attname::text FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped
    """

    def __init__(self, connection: Connection, file: str) -> None:
        self._connection = connection
        self._file = file

    def columns(self) -> dict[str, str]:
        """Output columns in order, each with its type."""
        return dict(self._connection.execute(self._COLUMNS).fetchall())

    def canonical(self) -> str:
        """The query as Postgres understood it, every name qualified."""
        with self._connection.transaction():
            self._connection.execute("SET LOCAL search_path = pg_catalog")
            row = self._connection.execute(self._CANONICAL).fetchone()
        assert row is not None  # noqa: S101 - the view exists
        return str(row[0]).strip().removesuffix(";")

    def reads(self) -> list[_Read]:
        """What the query reads of each relation; all columns where a row is used as a whole.

        Raises:
            DefinitionError: It reads something whose changes cannot be captured.
        """
        whole = _whole_rows(_parse(self.canonical()))
        found = []
        for oid, relation, schema, name, kind, read in self._connection.execute(self._READS).fetchall():
            _require_capturable(relation, kind, self._file)
            columns = frozenset(read)
            if whole is None or (schema, name) in whole:
                columns = frozenset(row[0] for row in self._connection.execute(self._ALL_COLUMNS, (oid,)))
            found.append(_Read(relation=relation, name=(schema, name), columns=columns))
        return found


@contextmanager
def _probe(connection: Connection, query: str, file: str) -> Iterator[_ProbeView]:
    """Make the query a temporary view, and unmake it.

    Raises:
        DefinitionError: Postgres refuses the query; says where.
    """
    prefix = "CREATE TEMPORARY VIEW syncer_probe AS\n"
    try:
        with connection.transaction(force_rollback=True):
            # Prepared, since the extended protocol refuses a second statement behind the first.
            connection.execute(prefix + query + "\n", prepare=True)
            yield _ProbeView(connection, file)
    except psycopg.errors.InsufficientPrivilege:
        raise
    except (psycopg.ProgrammingError, psycopg.NotSupportedError, psycopg.DataError) as error:
        raise DefinitionError(
            f"{file} is refused by Postgres: {error.diag.message_primary}{_place(error, prefix, query)}",
            hint=error.diag.message_hint or "It must be one SELECT that runs on this database as it is.",
        ) from error


def _place(error: psycopg.Error, prefix: str, query: str) -> str:
    if error.diag.statement_position is None:
        return ""
    offset = int(error.diag.statement_position) - 1 - len(prefix)
    if not 0 <= offset <= len(query):
        return ""
    before = query[:offset]
    line_number = before.count("\n") + 1
    column = offset - (before.rfind("\n") + 1)
    line = query.splitlines()[line_number - 1] if query else ""
    return f"\n  line {line_number}: {line}\n  {' ' * (len(f'line {line_number}: ') + column)}^"


def _parse(canonical: str) -> exp.Expr | None:
    try:
        return sqlglot.parse_one(canonical, read="postgres")
    except ParseError:
        return None


def _name(table: exp.Table) -> _Name:
    return table.db, table.name


def _tables(tree: exp.Expr) -> list[exp.Table]:
    return [table for table in tree.find_all(exp.Table) if table.db]


def _whole_rows(tree: exp.Expr | None) -> frozenset[_Name] | None:
    """Tables that are used as a whole row somewhere; None if that cannot be told.

    The catalogue records no column for a whole row. In a canonical query a star is nothing else.
    """
    if tree is None:
        return None
    aliases = {column.table for column in tree.find_all(exp.Column) if isinstance(column.this, exp.Star)}
    return frozenset(_name(table) for table in _tables(tree) if table.alias_or_name in aliases)


def _require_columns(definition: Definition, columns: dict[str, str]) -> None:
    file = definition.folder / "select.sql"
    if "_id" not in columns:
        raise DefinitionError(
            f"{file} has no column _id",
            hint="Name the document's id so, as in: SELECT p.id AS _id, … FROM posts AS p",
        )
    if "_routing" in columns:
        raise DefinitionError(f"{file}: _routing is not supported yet", hint="Leave the column out.")
    reserved = [name for name in columns if name.startswith("_") and name != "_id"]
    if reserved:
        raise DefinitionError(
            f"{file}: {', '.join(reserved)} cannot be a field",
            hint="Names that begin with _ are Elasticsearch's own.",
        )
    if "?column?" in columns:
        raise DefinitionError(f"{file}: a column has no name", hint="Give it one with AS: it becomes the field's name.")


_KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "p": "a partitioned table",
}


def _require_capturable(relation: str, kind: str, file: str) -> None:
    if relation.startswith(("pg_catalog.", "information_schema.")):
        raise DefinitionError(f"{file} reads {relation}, a system catalogue", hint="Its changes cannot be captured.")
    if kind != "r":
        raise DefinitionError(
            f"{file} reads {relation}, which is {_KINDS.get(kind, 'not an ordinary table')}",
            hint="syncer captures the changes of ordinary tables. Select from those directly.",
        )


_UNIQUE_COLUMNS = """
SELECT a.attname::text
FROM pg_index AS i
JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = $1::regclass AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indnkeyatts = 1
"""


def _find_root(connection: Connection, tree: exp.Expr | None, reads: list[_Read]) -> tuple[str | None, str | None]:
    """The table and the column that ``_id`` is, if it is a unique column of a table in the outermost FROM."""
    if not isinstance(tree, exp.Select) or tree.args.get("group") or tree.args.get("distinct"):
        return None, None
    projection = next((one for one in tree.selects if one.alias_or_name == "_id"), None)
    column = projection.unalias() if projection is not None else None
    if not isinstance(column, exp.Column):
        return None, None
    from_clause = tree.find(exp.From)
    sources = [from_clause.this] if from_clause else []
    sources += [join.this for join in tree.args.get("joins") or []]
    named = [source for source in sources if isinstance(source, exp.Table)]
    table = next((one for one in named if column.table in ("", one.alias_or_name)), None)
    relation = next((read.relation for read in reads if table is not None and read.name == _name(table)), None)
    if relation is None:
        return None, None
    unique = {row[0] for row in connection.execute(_UNIQUE_COLUMNS, (relation,))}
    return (relation, column.name) if column.name in unique else (None, None)


_PRIMARY_KEY = """
SELECT array_agg(a.attname::text ORDER BY array_position(i.indkey::int[], a.attnum::int))
FROM pg_index AS i
JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
WHERE i.indrelid = $1::regclass AND i.indisprimary
"""


def primary_key(connection: Connection, relation: str) -> tuple[str, ...]:
    """The primary key's columns, in its order.

    Raises:
        DefinitionError: There is none.
    """
    row = connection.execute(_PRIMARY_KEY, (relation,)).fetchone()
    if row is None or row[0] is None:
        raise DefinitionError(
            f"{relation} has no primary key",
            hint=f"Its changed rows cannot be told apart. Add one: ALTER TABLE {relation} ADD PRIMARY KEY (…)",
        )
    return tuple(row[0])


def _table_use(
    connection: Connection,
    definition: Definition,
    read: _Read,
    *,
    key_column: str | None,
    id_type: str,
) -> TableUse:
    relation = read.relation
    routing = frozenset(primary_key(connection, relation))
    file, query = _affects(connection, definition, relation)
    if query is None and key_column is None:
        raise _missing_affects(definition, relation)
    affected = None
    if query is None and id_type not in _PLAIN_KEY_TYPES:
        file = f"{definition.folder}/select.sql"
        query = (
            sql.SQL("SELECT changed.{} AS _id FROM %(rows)s AS changed")
            .format(sql.Identifier(key_column or ""))
            .as_string()
        )
    if query is not None:
        affected, used = _analyse_affects(connection, file, query, relation, id_type)
        routing |= used
        key_column = None
    elif key_column is not None:
        routing |= {key_column}
    return TableUse(relation=relation, watched=read.columns, routing=routing, key_column=key_column, affected=affected)


def _affects(connection: Connection, definition: Definition, relation: str) -> tuple[str, str | None]:
    for name, query in definition.affects.items():
        if _resolve(connection, name) == relation:
            return f"{definition.folder}/affects/{name}.sql", query
    return "", None


def _resolve(connection: Connection, name: str) -> str | None:
    row = connection.execute(
        "SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class AS c "
        "JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1)",
        (name,),
    ).fetchone()
    return row[0] if row else None


def _missing_affects(definition: Definition, relation: str) -> DefinitionError:
    table = relation.removeprefix("public.")
    return DefinitionError(
        f"{definition.name}: which documents does a change of {relation} touch?",
        hint=f"Say it in {definition.folder}/affects/{table}.sql, a query over the changed rows that selects\n"
        "the documents' ids AS _id: … FROM posts AS p JOIN %(rows)s AS changed ON p.… = changed.…\n"
        "Only the root needs none: the table whose unique column is _id, read once in the SELECT.",
    )


def _analyse_affects(
    connection: Connection, file: str, query: str, relation: str, id_type: str
) -> tuple[str, frozenset[str]]:
    """The affects query as it will be run, and the columns of the changed rows that it reads."""
    with _probe(connection, query.replace(_ROWS, relation), file) as view:
        used = next((read.columns for read in view.reads() if read.relation == relation), frozenset())
        if "_id" not in view.columns():
            raise DefinitionError(f"{file} has no column _id", hint="It must select the ids of documents, AS _id.")
    rows = f"jsonb_populate_recordset(NULL::{relation}, {_ROWS_MARK})"
    with _probe(connection, query.replace(_ROWS, rows), file) as view:
        canonical = view.canonical()
    if _ROWS_MARK not in canonical:
        raise DefinitionError(f"{file}: %(rows)s must stand in a FROM clause", hint="As in: FROM %(rows)s AS changed")
    runnable = canonical.replace(_ROWS_MARK, "$1::jsonb")
    # Postgres wrote both parts.
    return f"SELECT DISTINCT affected._id::{id_type}::text FROM ({runnable}) AS affected", used  # noqa: S608


def _require_affects_used(definition: Definition, connection: Connection, tables: dict[str, TableUse]) -> None:
    for name in definition.affects:
        if _resolve(connection, name) not in tables:
            raise DefinitionError(
                f"{definition.folder}/affects/{name}.sql: the SELECT reads no table {name}",
                hint="Rename the file after a table of the SELECT, or remove it.",
            )
