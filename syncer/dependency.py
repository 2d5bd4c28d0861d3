"""What a document depends on: tables, their watched and routing columns, and which documents a change touches.

Guarantee: a column that a document reads is watched, since `syncer.probe` reports every one. Which documents a
change touches is known for the *root*, the table whose unique column is ``_id``; for every other table the
definition says it, in ``affects/<table>.sql``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from psycopg import sql
from sqlglot import exp

from syncer import shape
from syncer.definition import Definition
from syncer.errors import DefinitionError
from syncer.postgres import Connection
from syncer.probe import Probe, Read, probe, table_name, tables, unnamed_column
from syncer.shape import Shape

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
        shapes: What the catalogue said of each relation and column that is named, when it was asked.
    """

    canonical_select: str
    id_type: str
    fields: tuple[str, ...]
    root: str | None
    root_key: str | None
    tables: dict[str, TableUse]
    shapes: dict[str, Shape]


def analyse(connection: Connection, definition: Definition) -> Dependencies:
    """Find out what a document depends on.

    Raises:
        DefinitionError: The SELECT is refused by Postgres, has no ``_id``, reads something whose changes
            cannot be captured, or needs an affects query that is not there.
    """
    file = f"{definition.folder}/select.sql"
    found = probe(connection, definition.select, file)
    _require_columns(file, found.columns)
    if not found.reads:
        raise DefinitionError(
            f"{file} reads no table", hint="A document is a row of some table, with what belongs to it."
        )
    id_type = found.columns["_id"]
    root, root_key = _find_root(connection, found)
    occurrences = Counter(table_name(table) for table in tables(found.tree))
    used = {}
    for read in found.reads:
        is_root_once = read.relation == root and occurrences[read.name] == 1
        key_column = root_key if is_root_once else None
        used[read.relation] = _table_use(connection, definition, read, key_column=key_column, id_type=id_type)
    _require_affects_used(definition, connection, used)
    return Dependencies(
        canonical_select=found.canonical,
        id_type=id_type,
        fields=tuple(name for name in found.columns if name != "_id"),
        root=root,
        root_key=root_key,
        tables=used,
        shapes=shape.read(connection, {one.relation: one.watched | one.routing for one in used.values()}),
    )


def _require_columns(file: str, columns: dict[str, str]) -> None:
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
        raise unnamed_column(file)


_UNIQUE_COLUMNS = """
SELECT a.attname::text
FROM pg_index AS i
JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = $1::regclass AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indnkeyatts = 1
"""


def _find_root(connection: Connection, found: Probe) -> tuple[str | None, str | None]:
    """The table and the column that ``_id`` is, if it is a unique column of a table in the outermost FROM."""
    tree = found.tree
    if not isinstance(tree, exp.Select) or _mixes_rows(tree):
        return None, None
    projection = next((one for one in tree.selects if one.alias_or_name == "_id"), None)
    column = projection.unalias() if projection is not None else None
    if not isinstance(column, exp.Column):
        return None, None
    outermost = [table for table in tables(tree) if table.parent_select is tree]
    table = next((one for one in outermost if column.table in ("", one.alias_or_name)), None)
    if table is None:
        return None, None
    relation = next(read.relation for read in found.reads if read.name == table_name(table))
    unique = {row[0] for row in connection.execute(_UNIQUE_COLUMNS, (relation,))}
    return (relation, column.name) if column.name in unique else (None, None)


def _mixes_rows(select: exp.Select) -> bool:
    """Whether one row of the result depends on other rows of the root."""
    return any(select.args.get(name) for name in ("group", "distinct", "limit", "offset")) or any(
        window.parent_select is select for window in select.find_all(exp.Window)
    )


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
    read: Read,
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
    over_table = probe(connection, query.replace(_ROWS, relation), file)
    if "_id" not in over_table.columns:
        raise DefinitionError(f"{file} has no column _id", hint="It must select the ids of documents, AS _id.")
    used = next((read.columns for read in over_table.reads if read.relation == relation), frozenset())
    rows = f"jsonb_populate_recordset(NULL::{relation}, {_ROWS_MARK})"
    over_rows = query.replace(_ROWS, rows)
    canonical = probe(connection, _ids(over_rows, id_type), file).canonical
    if _ROWS_MARK not in canonical:
        raise DefinitionError(f"{file}: %(rows)s must stand in a FROM clause", hint="As in: FROM %(rows)s AS changed")
    return canonical.replace(_ROWS_MARK, "$1::jsonb"), used


def _ids(query: str, id_type: str) -> str:
    # The query comes first, so that an error's place in it can be told.
    return f"WITH affected AS (\n{query}\n) SELECT DISTINCT affected._id::{id_type}::text FROM affected"  # noqa: S608


def _require_affects_used(definition: Definition, connection: Connection, tables: dict[str, TableUse]) -> None:
    for name in definition.affects:
        if _resolve(connection, name) not in tables:
            raise DefinitionError(
                f"{definition.folder}/affects/{name}.sql: the SELECT reads no table {name}",
                hint="Rename the file after a table of the SELECT, or remove it.",
            )
