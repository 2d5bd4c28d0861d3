"""PGSync: converts a schema of PGSync into drafts, one for each index.

Carried over: the tree of tables, their columns, labels, relationships, through tables and foreign keys; JSON paths in
columns; the transforms ``rename``, ``replace``, ``concat`` and ``mapping``; ``setting``, ``mapping`` and ``routing``.
Everything else is listed as a remark of the draft.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from syncer.apply.scaffold import catalogue, document, naming, tree
from syncer.apply.scaffold.catalogue import Table
from syncer.apply.scaffold.document import Draft
from syncer.apply.scaffold.mapping import EMPTY_BODY
from syncer.apply.scaffold.tree import Branch, Join, Shown
from syncer.base.errors import ConfigError
from syncer.base.postgres import Connection

_HINT = "It must be a list of indices, each with nodes, as PGSync 2 and newer read it."
_STEP = re.compile(r"(->>|->|#>>|#>)")
_PLACEHOLDER = re.compile(r"(?<!\{)\{(\d+)\}(?!\})")


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
    rename: dict[str, Any] = {}
    replace: dict[str, Any] = {}
    concat: Any = None
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
        "mappings": {**EMPTY_BODY["mappings"], "properties": _united(_mapping(index.nodes), index.mapping or {})},
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
        table = self._table(f"{node.in_schema}.{node.table}")
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

    # Tables

    def _table(self, name: str) -> Table:
        return catalogue.find(self.connection, name)

    def _way(self, parent: Table, table: Table, node: _Node) -> tuple[tuple[Join, ...], bool]:
        """Return the way from a parent's rows, and whether it leads to one row at most."""
        relationship = node.relationship
        if relationship.through_tables:
            name = relationship.through_tables[0]
            link = self._table(name if "." in name else f"{node.in_schema}.{name}")
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

    # Columns and transforms

    def _shown(self, table: Table, node: _Node, path: str) -> tuple[Shown, ...]:
        transform = node.transform
        self.leave(transform, f"{path}transform.")
        plain = [one for one in node.columns if not _STEP.search(one)] if node.columns else None
        own = tree.shown_columns(table, plain, self.remarks, path=path, with_personal=True)
        shown = {one.name: one for one in (*own, *(_json_path(one) for one in node.columns if _STEP.search(one)))}
        for name, pairs in transform.replace.items():
            if name in shown and _is_text(table, shown[name]) and isinstance(pairs, dict):
                shown[name] = _replaced(shown[name], pairs)
            else:
                self.remarks.append(f"not carried over: {path}transform.replace of {name}")
        for name, new in transform.rename.items():
            if name in shown and isinstance(new, str):
                shown[name] = replace(shown[name], name=new)
            else:
                self.remarks.append(f"not carried over: {path}transform.rename of {name}")
        fields = {one.name: one for one in shown.values()}
        for one in _objects(transform.concat):
            fields[one["destination"]] = _concatenated(fields, one)
        return tuple(fields.values())


def _json_path(said: str) -> Shown:
    """Convert a column such as ``doc->a->0`` or ``doc#>{a,b}``."""
    column, *steps = (one.strip() for one in _STEP.split(said))
    operators, keys = steps[::2], steps[1::2]
    template = "{0}" + "".join(
        f" {operator} {key if key.isdigit() else _text(key)}" for operator, key in zip(operators, keys, strict=True)
    )
    name = "_".join(one.replace("{", "").replace("}", "") for one in (column, *keys))
    return Shown(name=name, columns=(column,), template=template)


def _is_text(table: Table, shown: Shown) -> bool:
    """Whether PGSync replaces in it: in texts alone."""
    type_ = table.column(shown.columns[0]).type
    return "->>" in shown.template or (not shown.template and type_.kind in ("text", "bpchar") and not type_.is_array)


def _replaced(shown: Shown, pairs: Mapping[str, object]) -> Shown:
    template = shown.template or "{0}"
    for old, new in pairs.items():
        template = f"replace({template}, {_text(old)}, {_text(str(new))})"
    return replace(shown, template=template)


def _concatenated(fields: Mapping[str, Shown], said: Mapping[str, Any]) -> Shown:
    """Convert a concat: like PGSync, an unknown column stands for its name, and an empty text is left out."""
    columns: list[str] = []
    values = []
    for name in said["columns"]:
        if name in fields:
            value = _renumbered(fields[name].template or "{0}", len(columns))
            columns += fields[name].columns
            values.append(f"nullif(({value})::text, '')")
        else:
            values.append(_text(str(name)))
    template = f"concat_ws({', '.join([_text(str(said.get('delimiter') or '')), *values])})"
    return Shown(name=str(said["destination"]), columns=tuple(columns), template=template)


def _renumbered(template: str, first: int) -> str:
    return _PLACEHOLDER.sub(lambda found: f"{{{int(found[1]) + first}}}", template)


def _text(text: str) -> str:
    """Return a literal for a template, whose braces are doubled."""
    quoted = "'" + text.replace("'", "''") + "'"
    return quoted.replace("{", "{{").replace("}", "}}")


def _objects(said: object) -> list[Mapping[str, Any]]:
    found = said if isinstance(said, list) else [said]
    return [one for one in found if isinstance(one, dict) and {"columns", "destination"} <= one.keys()]


def _united(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Unite two mappings, object by object; the second one counts."""
    united = {**one, **other}
    for name in one.keys() & other.keys():
        if isinstance(one[name], Mapping) and isinstance(other[name], Mapping):
            united[name] = _united(one[name], other[name])
    return united
