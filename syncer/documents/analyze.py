"""Analyses a definition: its tables, their watched and routing columns, and which documents a change affects.

Guarantee: every column that a document reads is watched, since `syncer.lineage.catalog` reports all of them. Each way
from a table to documents watches the columns of the readings that it starts from.

`syncer.lineage.build` derives the affected documents from the SELECT, for each use of a table by itself. If that is
impossible for a use, or a row may displace those of other documents, the definition is refused until
``affects/<table>.sql`` covers it. An affects query adds to what is derived: a row that is a document itself, for
example, is found by its old and its new id without one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psycopg
from psycopg import sql
from sqlglot import exp

from syncer.base.errors import DefinitionError
from syncer.base.formatting import shortened
from syncer.base.model import Lead
from syncer.base.postgres import Connection, names_as_written
from syncer.documents.definition import Definition
from syncer.documents.registry import Dependencies, TableUse
from syncer.lineage import fingerprint, routes
from syncer.lineage.build import COMPETE, MERGES, read_graph
from syncer.lineage.catalog import Probe, Read, probe, reads, require_id, unnamed_column
from syncer.lineage.fingerprint import Shape
from syncer.lineage.graph import Graph, Node, Path
from syncer.lineage.parser import UnreadableError
from syncer.lineage.routes import ROWS_MARK, changed_rows
from syncer.lineage.scope import PLAIN_TYPES, numbers

_ROWS = "%(rows)s"
# What stands for the changed rows in a deparsed query: see `_analyse_affects`.
_OVER_ROWS = re.compile(
    rf"\(\s*SELECT\b(?:(?!\(\s*SELECT\b).)*?WHERE \({re.escape(ROWS_MARK)} IS NOT NULL\)\)", re.DOTALL
)

# Columns that identify and place a document.
_NO_FIELDS = frozenset({"_id", "_routing"})
# Every name is qualified, because it runs under the search_path of the role.
_RELATION = """
SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass($1)
"""
_ID_IS_FOUND = """
SELECT d._id FROM (SELECT NULL::{type} AS _id) AS d WHERE d._id = ANY ('{{}}'::text[]::{type}[]) GROUP BY d._id
"""
_Affects = tuple[str, str]  # file and text
_JSON = frozenset({"json", "jsonb"})
_CUTS = ("distinct", "limit", "offset", "fetch", "order")
_FLOATS = frozenset({"real", "double precision"})


def analyse(connection: Connection, definition: Definition) -> Dependencies:
    """Analyse what a document depends on.

    Raises:
        DefinitionError: Postgres refuses the SELECT, it has no ``_id``, it reads something whose changes cannot be
            captured, or a required affects query is missing.
    """
    file = f"{definition.folder}/select.sql"
    probed = probe(connection, definition.select, file)
    _require_columns(file, probed.columns)
    _require_usable_id(connection, file, probed.columns["_id"])
    _require_routing(file, probed.columns, definition.index_body.get("mappings", {}))
    if not probed.reads:
        raise DefinitionError(
            f"{file} reads no table", hint="A document is a row of some table, with what belongs to it."
        )
    relations, id_type = [read.relation for read in probed.reads], probed.columns["_id"]
    affects = _affects(connection, definition, relations)
    keys, types = routes.keys_and_types(connection, relations)
    graph = read_graph(probed, types)
    root = root_key = None
    if len(graph.ids) == 1 and isinstance(id_ := graph.ids[0], exp.Column):
        (number,) = numbers(id_)
        if frozenset({id_.name}) in keys[graph.nodes[number].relation]:
            root, root_key = graph.nodes[number].relation, id_.name
    paths = {node.number: graph.paths(node, keys) for node in graph.nodes}
    _require_derivable(definition, probed, graph, paths, affects, root=root, root_key=root_key)
    if graph.competes:
        root = root_key = None  # ranges of its ids would each compute the whole SELECT
    used = {}
    placing = _placing(connection, probed)
    readings = [(node, path) for node in graph.nodes for path in paths[node.number]]
    derived_routes = list(zip(readings, routes.routes(connection, readings, id_type), strict=True))
    for read in probed.reads:
        nodes = [node for node in graph.nodes if node.relation == read.relation]
        watched = _watched(read, nodes)
        derived = [(route, watched[node.number]) for (node, _), route in derived_routes if node in nodes]
        # An affects query is for what does not follow: from readings without a path, or all.
        asked = frozenset().union(*(watched[node.number] for node in nodes if not paths[node.number])) or read.columns
        asked = read.columns if graph.competes else asked
        use = _table_use(connection, read, derived, affects.get(read.relation), asked=asked, id_type=id_type)
        used[read.relation] = use if placing is None else replace(use, places=placing.get(read.relation, frozenset()))
    return Dependencies(
        canonical_select=probed.canonical,
        id_type=id_type,
        fields=tuple(name for name in probed.columns if name not in _NO_FIELDS),
        has_routing="_routing" in probed.columns,
        root=root,
        root_key=root_key,
        tables=used,
        views=probed.view_names,
        shapes=_shapes(connection, probed, used),
    )


def _placing(connection: Connection, probed: Probe) -> dict[str, frozenset[str] | None] | None:
    """Return the columns that decide which documents there are, and where, by table; None for a table of which any may.

    They are those that the SELECT reads without its fields: without a change of them, no document moves to another
    shard. None if that is no such SELECT: fields may take part in what LIMIT or DISTINCT return, or repeat a row.
    """
    if "_routing" not in probed.columns:
        return {}
    placed = probed.tree.copy() if probed.tree else exp.Null()
    selects: list[exp.Expr] = [placed]
    while selects:
        select = selects.pop()
        if not isinstance(select, exp.Select | exp.Union) or any(map(select.args.get, _CUTS)):
            return None
        if isinstance(select, exp.Union):
            selects += [select.this, select.expression]
        else:
            shown = zip(probed.columns, select.expressions, strict=True)
            select.set("expressions", [item for name, item in shown if name in _NO_FIELDS])
    try:
        with connection.transaction():
            plan = connection.execute(sql.SQL("EXPLAIN " + probed.canonical)).fetchall()
        if any("ProjectSet" in line for (line,) in plan):
            return None
        placing = reads(connection, placed.sql(dialect="postgres"))
    except (UnreadableError, psycopg.ProgrammingError, psycopg.NotSupportedError, psycopg.DataError):
        return None
    return {read.relation: None if read.is_whole or read.virtual else read.columns or None for read in placing}


def _shapes(connection: Connection, probed: Probe, used: dict[str, TableUse]) -> dict[str, Shape]:
    """Return the fingerprints of what the SELECT reads, with the columns that syncer's queries name."""
    asked = {view: Shape(kind="a view") for view in probed.view_names}
    for read in probed.reads:
        named = used[read.relation].watched | used[read.relation].routing | read.virtual
        asked[read.relation] = Shape(kind="a table", parts=dict.fromkeys(named, ""), is_whole=read.is_whole)
    lists_values = any(function in probed.canonical for function in fingerprint.LISTS_VALUES)
    asked |= {name: Shape(kind="a function") for name in probed.functions}
    asked |= {f"type {name}": Shape(kind="a type", is_whole=lists_values) for name in probed.types}
    return fingerprint.read(connection, asked)


def _require_columns(file: str, columns: dict[str, str]) -> None:
    require_id(file, columns)
    if columns["_id"] in _FLOATS:
        raise DefinitionError(
            f"{file}: _id is of type {columns['_id']}, of which 0 and -0 are equal, but would be two documents",
            hint="Use a column of type integer, numeric or text. A cast in the SELECT does not help:\n"
            "a change identifies its row in JSON, which has no -0.",
        )
    if columns["_id"] in _JSON or columns["_id"].endswith("[]"):
        raise DefinitionError(
            f"{file}: _id is of type {columns['_id']}, which a changed row does not carry as it is",
            hint="Select a column that is a scalar, or a value inside it, as in: (p.data ->> 'id') AS _id",
        )
    reserved = [name for name in columns if name.startswith("_") and name not in _NO_FIELDS]
    if reserved:
        raise DefinitionError(
            f"{file}: {', '.join(reserved)} cannot be a field", hint="Names that begin with _ are reserved."
        )
    if "?column?" in columns:
        raise unnamed_column(file)


def _require_usable_id(connection: Connection, file: str, type_: str) -> None:
    """Refuse an ``_id`` of a type whose values syncer could not look up, since pg_catalog has no operator for it."""
    if type_ in PLAIN_TYPES:
        return
    try:
        with connection.transaction():
            connection.execute(sql.SQL(_ID_IS_FOUND).format(type=sql.SQL(type_)))  # named by Postgres
    except psycopg.ProgrammingError as error:
        raise DefinitionError(
            f"{file}: _id is of type {type_}, which has no operator = in pg_catalog to find a document with",
            hint="Select its text, as in: p.path::text AS _id",
        ) from error


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
    for name, field in mapping.get("properties", {}).items():  # objects, as `syncer.documents.definition` has checked
        inner = _join_field(field)
        if field.get("type") == "join" or inner is not None:
            return name if inner is None else f"{name}.{inner}"
    return None


def _affects(connection: Connection, definition: Definition, relations: Collection[str]) -> dict[str, _Affects]:
    affects: dict[str, _Affects] = {}
    for name, query in definition.affects.items():
        file = f"{definition.folder}/affects/{name}.sql"
        row = None
        # to_regclass refuses some texts, as "a.b.c" and, before Postgres 16, "my table".
        with suppress(psycopg.ProgrammingError, psycopg.NotSupportedError), names_as_written(connection):
            row = connection.execute(_RELATION, (name,)).fetchone()
        if row is None or row[0] not in relations:
            names = ", ".join(relation.removeprefix("public.") for relation in relations)
            raise DefinitionError(
                f"{file}: the SELECT reads no table {name}",
                hint=f"Rename the file after a table of the SELECT, quoted as in SQL, or remove it. It reads: {names}",
            )
        affects.setdefault(row[0], (file, query))
    return affects


def _require_derivable(
    definition: Definition,
    probed: Probe,
    graph: Graph,
    paths: Mapping[int, Sequence[Path]],
    affects: Container[str],
    *,
    root: str | None,
    root_key: str | None,
) -> None:
    """Refuse uses of tables from which no path leads to ``_id``, unless an affects query exists for the table."""
    asked = [read.relation for read in probed.reads if read.relation not in affects]
    nodes = [node for node in graph.nodes if node.relation in asked and (graph.competes or not paths[node.number])]
    lost = [relation for relation in asked if relation not in {node.relation for node in graph.nodes}]
    if not nodes and not lost:
        return
    obstacles = [text for node in nodes for text in graph.obstacles.get(node.number, ())]
    if lost:
        reason = f"syncer cannot read {probed.unread}" if probed.unread else "a call that syncer cannot read has them"
        obstacles = []
    elif graph.ids:
        reason = COMPETE if graph.competes else "no equality of WHERE or ON that must hold leads from there to _id"
        equalities = probed.tree.find_all(exp.EQ) if probed.tree else ()
        compared = {column.name for equality in equalities for column in equality.find_all(exp.Column)}
        obstacles += [
            f"{read.relation}.{column} is a virtual column, of which a changed row has no value: make it STORED"
            for read in probed.reads
            for column in sorted(read.virtual & compared)
        ]
    else:
        columns = probed.tree.selects if probed.tree else []
        selected = next((column.unalias() for column in columns if column.alias_or_name == "_id"), None)
        reason = (
            "_id must be made of columns of one table (a link table has the keys of both sides), by ||, casts and "
            "arithmetic, and not of a whole json, array or composite value, but is "
            f"{shortened(selected.sql('postgres')) if selected else 'another'}"
        )
        obstacles = [text for text in obstacles if MERGES in text]
    reason = "; ".join(dict.fromkeys([reason, *obstacles]))
    relations = dict.fromkeys([*lost, *(node.relation for node in nodes)])
    files = ", ".join(f"{definition.folder}/affects/{relation.removeprefix('public.')}.sql" for relation in relations)
    # What was deleted is in no table any more; if the id is derived, so are deletes of its own table.
    union = "" if graph.ids else "UNION SELECT changed.… AS _id FROM %(rows)s AS changed  -- rows that are gone\n"
    query = f"SELECT d.{root_key or '…'} AS _id FROM {root or '…'} AS d JOIN %(rows)s AS changed ON d.… = changed.…\n"
    query += union
    if "reads itself" in reason:
        query = (
            "WITH RECURSIVE touched AS (SELECT changed.… AS id FROM %(rows)s AS changed\n"
            f"UNION SELECT t.… FROM {next(iter(relations))} AS t JOIN touched ON t.… = touched.id)\n"
            "SELECT d.… AS _id FROM … AS d JOIN touched ON d.… = touched.id\n" + union
        )
    raise DefinitionError(
        f"{definition.folder}/select.sql: which documents does a change of {', '.join(relations)} touch? "
        f"It does not follow from the SELECT: {reason}",
        hint=f"Add {files}, {'each ' if len(relations) > 1 else ''}a query that returns the ids of these documents:\n"
        f"{query}%(rows)s has the old and the new version of each changed row. "
        + (
            "The query adds to what follows from the\nSELECT, so it need not cover other uses of the table. "
            if graph.ids
            else "Nothing follows from this SELECT,\nso the query must cover deletes and changes of the id, too. "
        )
        + "It may return too many ids, never too few.",
    )


def _watched(read: Read, nodes: Sequence[Node]) -> dict[int, frozenset[str]]:
    """Return, by reading of a table, the columns that a query reads there: too many rather than too few.

    A column that is read, and by no reading that is known, may be read by any. So may what a virtual column is made of.
    """
    if read.is_whole or read.virtual:
        return {node.number: read.columns for node in nodes}
    unplaced = read.columns.difference(*(node.names for node in nodes))
    return {node.number: read.columns & node.names | unplaced for node in nodes}


def _table_use(
    connection: Connection,
    read: Read,
    derived: Sequence[tuple[Lead, frozenset[str]]],
    affects: _Affects | None,
    *,
    asked: frozenset[str],
    id_type: str,
) -> TableUse:
    """Return how the definition uses one table; the affects query is for a change of the columns that are ``asked``."""
    leads: dict[str, Lead] = {}
    routing = frozenset[str]()
    for lead, watched in derived:
        # Equal queries are one, for what any of them watches.
        same = leads.get(lead.id_column + lead.query, lead)
        leads[lead.id_column + lead.query] = replace(same, watched=same.watched | lead.watched | watched)
        routing |= lead.watched
    canonical = None
    if affects is not None:
        canonical, query, columns = _analyse_affects(connection, *affects, read.relation, id_type)
        leads[""] = Lead(watched=asked | columns, query=query)
        routing |= columns
    ordered = sorted(leads.values(), key=lambda lead: lead.id_column)
    return TableUse(
        relation=read.relation, watched=read.columns, routing=routing, leads=tuple(ordered), affects=canonical
    )


def _analyse_affects(
    connection: Connection, file: str, query: str, relation: str, id_type: str
) -> tuple[str, str, frozenset[str]]:
    """Return the affects query as deparsed by Postgres, in executable form, and the columns that it reads of the rows.

    The columns are found with the table in the place of the rows. Then the query is deparsed with these alone, so that
    it names no other one.
    """
    over_table = probe(connection, query.replace(_ROWS, relation), file)
    if "_id" not in over_table.columns:
        raise DefinitionError(f"{file} has no column _id", hint="It must select the ids of documents, AS _id.")
    read = next((read for read in over_table.reads if read.relation == relation), None)
    if read is not None and read.virtual:
        raise DefinitionError(
            f"{file} reads {', '.join(sorted(read.virtual))}, and a changed row has no value for a virtual column",
            hint="Write what it is computed from instead, or make the column STORED.",
        )
    columns = read.columns if read else frozenset()
    names = sql.SQL(", ").join(map(sql.Identifier, sorted(columns))).as_string(connection)
    over_rows = f"(SELECT {names} FROM {relation} WHERE {ROWS_MARK} IS NOT NULL)"
    over = query.replace(_ROWS, over_rows)
    canonical, places = _OVER_ROWS.subn(_ROWS, probe(connection, over, file).canonical)
    if not places:
        raise DefinitionError(f"{file}: %(rows)s must stand in a FROM clause", hint="As in: FROM %(rows)s AS changed")
    # The query comes first, so that an error's position refers to its file.
    probe(connection, f"WITH affected AS (\n{over}\n) SELECT affected._id::{id_type}::text FROM affected", file)
    [rows] = changed_rows(connection, (relation, columns))
    rows = rows.replace(ROWS_MARK, "$1::jsonb")
    ids = f"SELECT affected._id::{id_type}::text FROM (\n{canonical.replace(_ROWS, rows)}\n) AS affected"
    return canonical, ids, columns
