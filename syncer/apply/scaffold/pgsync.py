"""PGSync: converts a schema of PGSync into drafts, one for each index.

Carried over: the tree of tables, their columns, labels, relationships, through tables and foreign keys; the transforms
``rename`` and ``mapping``; ``setting``, ``mapping`` and ``routing``. Everything else is listed as a remark of the
draft: it is a line of SQL.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from syncer.apply.scaffold import catalogue, document, naming, tree
from syncer.apply.scaffold.catalogue import Table
from syncer.apply.scaffold.document import Draft
from syncer.apply.scaffold.mapping import EMPTY_BODY, united
from syncer.apply.scaffold.tree import Branch, Join, Shown
from syncer.base.errors import ConfigError
from syncer.base.postgres import Connection

_HINT = "It must be a list of indices, each with nodes, as PGSync 2 and newer read it."


class _Part(BaseModel):
    """A part of a schema; what it has besides is kept, to be listed."""

    model_config = ConfigDict(extra="allow")


class _Keys(_Part):
    parent: list[str]
    child: list[str]


class _Relationship(_Part):
    type: Literal["one_to_one", "one_to_many"] = "one_to_one"
    variant: Literal["object", "scalar"] = "object"
    through_tables: list[str] = []
    foreign_key: _Keys | None = None


class _Transform(_Part):
    rename: dict[str, str] = {}
    mapping: dict[str, Any] = {}


class _Node(_Part):
    table: str
    in_schema: str = Field("public", alias="schema")
    columns: list[str] = []
    label: str | None = None
    primary_key: list[str] = []
    relationship: _Relationship = _Relationship()
    transform: _Transform = _Transform()
    children: list[_Node] = []

    @property
    def name(self) -> str:
        """The field that shows it."""
        return self.label or self.table


class _Index(_Part):
    nodes: _Node
    database: str | None = None
    index: str | None = None
    setting: dict[str, Any] | None = None
    mapping: dict[str, Any] | None = None
    routing: str | None = None


def drafts(connection: Connection, file: Path) -> list[Draft]:
    """Convert a schema.json; a remark tells each thing that is not carried over.

    Raises:
        ConfigError: It is not a schema of PGSync.
        SourceError, DefinitionError: A table cannot be read or captured, lacks a column, or has no way to its parent.
    """
    try:
        read = json.loads(file.read_text("utf-8-sig"))
        indices = [_Index.model_validate(one) for one in (read if isinstance(read, list) else [read])]
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise ConfigError(f"{file} is not a schema of PGSync: {where}: {problem['msg']}", hint=_HINT) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", hint=_HINT) from error
    if not indices:
        raise ConfigError(f"{file} is not a schema of PGSync: it has no index", hint=_HINT)
    return [_draft(connection, one) for one in indices]


def _draft(connection: Connection, index: _Index) -> Draft:
    converting = _Converting(connection=connection, remarks=[])
    root = converting.branch(index.nodes)
    if index.routing is not None:
        root = converting.routed(root, index.routing)
    converting.leave(index, "")
    body = {
        "settings": {**EMPTY_BODY["settings"], **(index.setting or {})},
        "mappings": {**EMPTY_BODY["mappings"], "properties": united(_mapping(index.nodes), index.mapping or {})},
    }
    name = naming.document_name(index.index or index.database or index.nodes.table)
    return document.draft(connection, root, name=name, remarks=converting.remarks, body=body)


def _mapping(node: _Node) -> dict[str, Any]:
    """Return the mappings that the transforms of a node and those below it say."""
    found = dict(node.transform.mapping)
    for child in node.children:
        if inside := _mapping(child):
            kind = "nested" if child.relationship.type == "one_to_many" else "object"
            found[child.name] = {"type": kind, "properties": inside}
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Converting:
    """Converts the nodes of one index; ``remarks`` collects what it leaves."""

    connection: Connection
    remarks: list[str]

    def leave(self, part: _Part, path: str) -> None:
        self.remarks.extend(f"not carried over: {path}{one}" for one in sorted(part.model_extra or ()))

    def branch(self, node: _Node, parent: Table | None = None, path: str = "") -> Branch:
        table = catalogue.find(self.connection, f"{node.in_schema}.{node.table}")
        inside = f"{path}{node.name}." if parent else ""
        self.leave(node, inside)
        joins, is_unique = self._way(parent, table, node) if parent else ((), True)
        is_array = node.relationship.type == "one_to_many"
        if not is_array and not is_unique:
            is_array = True
            self.remarks.append(f"{path}{node.name} is an array: no key ensures that there is one row at most")
        return Branch(
            table=table,
            shown=self._shown(table, node, inside),
            children=tuple(self.branch(one, table, inside) for one in node.children),
            name=node.name if parent else "",
            joins=joins,
            is_array=is_array,
            is_scalar=node.relationship.variant == "scalar",
        )

    def routed(self, root: Branch, column: str) -> Branch:
        """Add the column that routes documents."""
        for one in root.shown:
            if one.name == column:
                return replace(root, shown=(*root.shown, replace(one, name="_routing")))
        self.remarks.append(f"not carried over: routing by {column}, which is no column of {root.table.relation}")
        return root

    def _way(self, parent: Table, table: Table, node: _Node) -> tuple[tuple[Join, ...], bool]:
        """Return the way from a parent's rows, and whether it leads to one row at most."""
        relationship = node.relationship
        if relationship.through_tables:
            name = relationship.through_tables[0]
            link = catalogue.find(self.connection, name if "." in name else f"{node.in_schema}.{name}")
            near, is_one = self._join(parent, link)
            far, is_other_one = self._join(link, table)
            return (near, far), is_one and is_other_one
        if keys := relationship.foreign_key:
            pairs = tuple(zip(keys.parent, keys.child, strict=False))
            return (Join(table=table, pairs=pairs),), set(keys.child) >= set(table.key)
        join, is_one = self._join(parent, table)
        return (join,), is_one

    def _join(self, one: Table, other: Table) -> tuple[Join, bool]:
        """Return the foreign key between two tables as a join to the other, and whether it leads to one row at most."""
        down = [key for key in one.referred if key.relation == other.relation]
        up = [key for key in one.refers if key.to == other.relation]
        if len(down) + len(up) > 1:
            taken = (down or up)[0]
            self.remarks.append(f"{one.relation} to {other.relation}: one of several foreign keys, {taken.name}")
        if down:
            return tree.down(down[0], other), down[0].is_unique
        if up:
            return tree.up(up[0], other), True
        raise ConfigError(
            f"There is no foreign key between {one.relation} and {other.relation}",
            hint='Name the columns in the schema: "foreign_key": {"parent": [...], "child": [...]}',
        )

    def _shown(self, table: Table, node: _Node, path: str) -> tuple[Shown, ...]:
        self.leave(node.transform, f"{path}transform.")
        paths = [one for one in node.columns if "->" in one or "#>" in one]
        self.remarks.extend(f"not carried over: {path}{one}, a path into JSON" for one in paths)
        plain = [one for one in node.columns if one not in paths] if node.columns else None
        shown = tree.shown_columns(table, plain, self.remarks, path=path, with_personal=True)
        return tuple(replace(one, name=node.transform.rename.get(one.name, one.name)) for one in shown)
