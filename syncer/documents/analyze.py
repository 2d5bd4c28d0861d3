"""Analyses a definition: its tables, their watched and routing columns, and which documents a change affects.

Guarantee: every column that a document reads is watched, since `syncer.lineage.catalog` reports all of them.

`syncer.lineage.build` derives the affected documents from the SELECT, for each use of a table by itself. If that is
impossible for a use, the definition is refused until ``affects/<table>.sql`` covers it. An affects query adds to what
is derived: a row that is a document itself, for example, is found by its old and its new id without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from syncer.base.errors import DefinitionError
from syncer.base.postgres import Connection, names_as_written
from syncer.capture.eligibility import primary_key
from syncer.documents.definition import Definition
from syncer.lineage import fingerprint
from syncer.lineage.catalog import Probe, Read, TableName, probe, unnamed_column
from syncer.lineage.dependencies import Dependencies, Field, TableUse
from syncer.lineage.fingerprint import Shape
from syncer.lineage.graph import Node
from syncer.lineage.routes import ROWS_MARK, Routes, changed_rows

_ROWS = "%(rows)s"

# Columns that identify and place a document.
_NO_FIELDS = frozenset({"_id", "_routing"})
# Every name is qualified, because it runs under the search_path of the role.
_RELATION = """
SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass($1)
"""
_FLOATS = frozenset({"real", "double precision"})


def analyse(connection: Connection, definition: Definition) -> Dependencies:
    """Analyse what a document depends on.

    Raises:
        DefinitionError: Postgres refuses the SELECT, it has no ``_id``, it reads something whose changes cannot be
            captured, or a required affects query is missing.
    """
    file = f"{definition.folder}/select.sql"
    found = probe(connection, definition.select, file)
    _require_columns(file, found.columns)
    _require_routing(file, found.columns, definition.index_body.get("mappings", {}))
    if not found.reads:
        raise DefinitionError(
            f"{file} reads no table", hint="A document is a row of some table, with what belongs to it."
        )
    _require_affects_used(definition, connection, [read.relation for read in found.reads])
    analysis = _Analysis(connection, definition, found)
    analysis.require_derivable()
    used = {read.relation: analysis.table_use(read) for read in found.reads}
    root, root_key = analysis.routes.root()
    return Dependencies(
        canonical_select=found.canonical,
        id_type=found.columns["_id"],
        fields=tuple(Field(name=name, type=type_) for name, type_ in found.columns.items() if name not in _NO_FIELDS),
        has_routing="_routing" in found.columns,
        root=root,
        root_key=root_key,
        tables=used,
        views=found.view_names,
        shapes=_shapes(connection, found, used),
    )


def _shapes(connection: Connection, found: Probe, used: dict[str, TableUse]) -> dict[str, Shape]:
    """Return the fingerprints of the relations that the SELECT reads, with the columns that syncer's queries name."""
    named: dict[str, frozenset[str]] = {view: frozenset() for view in found.view_names}
    for read in found.reads:
        named[read.relation] = used[read.relation].watched | used[read.relation].routing | read.virtual
    whole = [read.relation for read in found.reads if read.is_whole]
    return fingerprint.read(
        connection,
        named,
        whole=whole,
        functions=found.functions,
        types=found.types,
        lists_values=fingerprint.lists_values(found.canonical),
    )


def _require_columns(file: str, columns: dict[str, str]) -> None:
    if "_id" not in columns:
        raise DefinitionError(
            f"{file} has no column _id",
            hint="Name the document's id so, as in: SELECT p.id AS _id, … FROM posts AS p",
        )
    if columns["_id"] in _FLOATS:
        raise DefinitionError(
            f"{file}: _id is of type {columns['_id']}, of which 0 and -0 are equal, but would be two documents",
            hint="Use a column of type integer, numeric or text. A cast in the SELECT does not help:\n"
            "a change identifies its row in JSON, which has no -0.",
        )
    reserved = [name for name in columns if name.startswith("_") and name not in _NO_FIELDS]
    if reserved:
        raise DefinitionError(
            f"{file}: {', '.join(reserved)} cannot be a field",
            hint="Names that begin with _ are Elasticsearch's own.",
        )
    if "?column?" in columns:
        raise unnamed_column(file)


def _require_routing(file: str, columns: dict[str, str], mappings: dict[str, Any]) -> None:
    """Refuse a mapping that requires a routing if the SELECT has no column for it."""
    if "_routing" in columns:
        return
    hint = "Select it, as in: SELECT 'c' || c.id AS _id, c.post_id AS _routing, … FROM comments AS c"
    routing = mappings.get("_routing")
    if isinstance(routing, dict) and str(routing.get("required")).lower() == "true":
        raise DefinitionError(f"{file} has no column _routing, and index.json requires a routing", hint=hint)
    join = _join_field(mappings)
    if join is not None:
        raise DefinitionError(
            f"{file} has no column _routing, and {join} in index.json is a join field",
            hint=f"A child must lie on its parent's shard: give both the same _routing.\n{hint}",
        )


def _join_field(mapping: dict[str, Any]) -> str | None:
    properties = mapping.get("properties")
    for name, field in properties.items() if isinstance(properties, dict) else ():
        if isinstance(field, dict):
            inner = _join_field(field)
            if field.get("type") == "join" or inner is not None:
                return name if inner is None else f"{name}.{inner}"
    return None


class _Analysis:
    """The analysis of one definition."""

    def __init__(self, connection: Connection, definition: Definition, found: Probe) -> None:
        self._connection = connection
        self._definition = definition
        self._id_type = found.columns["_id"]
        self._relations = {read.name: read.relation for read in found.reads}
        self._unread = found.unread
        self.routes = Routes(connection, found, f"{definition.folder}/select.sql")

    def require_derivable(self) -> None:
        """Refuse uses of tables from which no path leads to ``_id``, unless an affects query exists for the table.

        Raises:
            DefinitionError: Names all of them.
        """
        nodes = self.routes.graph.nodes
        asked = [one for one in nodes if self._affects(one.table)[1] is None and not self.routes.paths(one)]
        read = {node.table for node in nodes}
        lost = [name for name in self._relations if name not in read and self._affects(name)[1] is None]
        if not asked and not lost:
            return
        relations = list(dict.fromkeys(self._relations[name] for name in (*lost, *(node.table for node in asked))))
        folder = self._definition.folder / "affects"
        files = ", ".join(f"{folder}/{relation.removeprefix('public.')}.sql" for relation in relations)
        reason = self._reason(asked)
        if lost:
            reason = f"syncer cannot read {self._unread}" if self._unread else "a call that syncer cannot read has them"
        raise DefinitionError(
            f"{self._definition.folder}/select.sql: which documents does a change of {', '.join(relations)} touch? "
            f"It does not follow from the SELECT: {reason}",
            hint=f"Add {files}, a query that returns the ids of these documents:\n"
            f"{self._template()}\n"
            "%(rows)s has the old and the new version of each changed row. The query adds to what follows from the\n"
            "SELECT, so it need not cover other uses of the table. It may return too many ids, never too few.",
        )

    def _template(self) -> str:
        """Return an affects query to start from, with the names of this SELECT."""
        root, key = self.routes.root()
        return f"SELECT d.{key or '…'} AS _id FROM {root or '…'} AS d JOIN %(rows)s AS changed ON d.… = changed.…"  # noqa: S608

    def _reason(self, asked: Sequence[Node]) -> str:
        graph = self.routes.graph
        if graph.ids:
            obstacles = dict.fromkeys(text for node in asked for text in graph.obstacles.get(node.number, ()))
            return "; ".join(["no equality of WHERE or ON that must hold leads from there to _id", *obstacles])
        return (
            "_id must be made of columns of one table (a link table has the keys of both sides), by ||, casts and "
            "arithmetic, and whether a document exists must not depend on others (LIMIT, OFFSET, DISTINCT ON, a window)"
        )

    def _affects(self, name: TableName) -> tuple[str, str | None]:
        return _affects(self._connection, self._definition, self._relations[name])

    def table_use(self, read: Read) -> TableUse:
        """Return how the definition uses one table."""
        key = frozenset(primary_key(self._connection, read.relation))
        nodes = [node for node in self.routes.graph.nodes if node.table == read.name]
        routes = [route for node in nodes for route in self.routes.routes(node)]
        queries = [route.query for route in routes if route.id_column is None]
        routing = key.union(*(route.columns for route in routes))
        file, query = _affects(self._connection, self._definition, read.relation)
        if query is not None:
            affected, used = _analyse_affects(self._connection, file, query, read.relation, self._id_type)
            queries.append(affected)
            routing |= used
        return TableUse(
            relation=read.relation,
            watched=read.columns,
            routing=routing,
            id_columns=tuple(sorted({route.id_column for route in routes if route.id_column is not None})),
            affected=tuple(dict.fromkeys(queries)),
        )


def _affects(connection: Connection, definition: Definition, relation: str) -> tuple[str, str | None]:
    """Return file and text of the affects query for a table; None as its text if there is none."""
    for name, query in definition.affects.items():
        if _resolve(connection, name) == relation:
            return f"{definition.folder}/affects/{name}.sql", query
    return "", None


def _resolve(connection: Connection, name: str) -> str | None:
    with names_as_written(connection):
        row = connection.execute(_RELATION, (name,)).fetchone()
    return row[0] if row else None


def _analyse_affects(
    connection: Connection, file: str, query: str, relation: str, id_type: str
) -> tuple[str, frozenset[str]]:
    """Return the affects query in executable form, and the columns of the changed rows that it reads."""
    over_table = probe(connection, query.replace(_ROWS, relation), file)
    if "_id" not in over_table.columns:
        raise DefinitionError(f"{file} has no column _id", hint="It must select the ids of documents, AS _id.")
    read = next((one for one in over_table.reads if one.relation == relation), None)
    if read is not None and read.virtual:
        raise DefinitionError(
            f"{file} reads {', '.join(sorted(read.virtual))}, and a changed row has no value for a virtual column",
            hint="Write what it is computed from instead, or make the column STORED.",
        )
    used = read.columns if read else frozenset()
    over_rows = query.replace(_ROWS, changed_rows(connection, relation))
    canonical = probe(connection, _ids(over_rows, id_type), file).canonical
    if ROWS_MARK not in canonical:
        raise DefinitionError(f"{file}: %(rows)s must stand in a FROM clause", hint="As in: FROM %(rows)s AS changed")
    return canonical.replace(ROWS_MARK, "$1::jsonb"), used


def _ids(query: str, id_type: str) -> str:
    # The query comes first, so that an error's position refers to its file.
    return f"WITH affected AS (\n{query}\n) SELECT affected._id::{id_type}::text FROM affected"  # noqa: S608


def _require_affects_used(definition: Definition, connection: Connection, relations: Sequence[str]) -> None:
    names = ", ".join(one.removeprefix("public.") for one in relations)
    for name in definition.affects:
        if _resolve(connection, name) not in relations:
            raise DefinitionError(
                f"{definition.folder}/affects/{name}.sql: the SELECT reads no table {name}",
                hint=f"Rename the file after a table of the SELECT, quoted as in SQL, or remove it. It reads: {names}",
            )
