"""Shapes: the types of a SELECT's columns, and of the JSON that it builds, as Postgres knows them.

Postgres has analysed the SELECT once it is a view: the stored tree has the type of each argument of
``jsonb_build_object``, whatever subqueries, CTEs, views and COALESCE stand between. Its nodes are read by their fields,
since the names of nodes change between versions. What Postgres does not know is JSON that comes out of a column.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from psycopg import sql

from syncer.base.postgres import Connection
from syncer.drafts.rules import KEYWORD, MAPPINGS, TEXT

# Domains are resolved to their base type, arrays to their element type. Composites become JSON, as do types with a
# cast to it, but for hstore.
_TYPE = """
WITH RECURSIVE base AS (
    SELECT t.oid, t.typname, t.typtype, t.typcategory, t.typbasetype, t.typelem, t.typrelid,
           coalesce(nullif($2::int, -1), t.typtypmod) AS modifier, false AS is_array
    FROM pg_type AS t WHERE t.oid = $1::oid
    UNION ALL
    SELECT t.oid, t.typname, t.typtype, t.typcategory, t.typbasetype, t.typelem, t.typrelid,
           coalesce(nullif(b.modifier, -1), t.typtypmod), b.is_array OR b.typtype <> 'd'
    FROM base AS b
    JOIN pg_type AS t ON t.oid = CASE WHEN b.typtype = 'd' THEN b.typbasetype
                                      WHEN b.typcategory = 'A' THEN b.typelem END
)
SELECT CASE WHEN typname <> 'hstore' AND (typtype IN ('c', 'p') OR typname = 'jsonb' OR EXISTS (
                SELECT FROM pg_cast
                WHERE castsource = base.oid AND casttarget = 'json'::regtype AND castmethod = 'f'))
            THEN 'json' ELSE typname END,
       is_array, modifier, typrelid, array(SELECT enumlabel::text FROM pg_enum WHERE enumtypid = base.oid)
FROM base WHERE typtype <> 'd' AND typcategory <> 'A'
"""
_ATTRIBUTES = """
SELECT attname::text, atttypid, atttypmod FROM pg_attribute
WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_TREE = "SELECT ev_action::text FROM pg_rewrite WHERE ev_class = $1::oid AND rulename = '_RETURN'"
_FUNCTIONS = """
SELECT oid, proname::text FROM pg_proc
WHERE pronamespace = 'pg_catalog'::regnamespace AND prorettype IN ('json'::regtype, 'jsonb'::regtype)
"""
_LONG_DIGITS_MAX = 18
_NUMERIC_HEADER, _SCALE_BITS = 4, 16
_BOOLEAN = "16"
"""Its oid, which never changes."""
_CONSTRUCTORS = {"1": "build_object", "2": "build_array", "6": "to_json"}
"""By what the stored tree has for JSON_OBJECT, JSON_ARRAY and JSON_SCALAR: the functions that do the same."""
_TYPE_FIELD = re.compile(
    "(var|const|param|agg|win|funcresult|opresult|result|coalesce|case|minmax|refres|refelem)type|(array_|row_|seq)typeid"
    "|seqtypid|typeId"
)
"""The fields of nodes that name the type of an expression."""
_TOKEN = re.compile(r"[(){}]|\[ (?:-?\d+ )*\]|(?:\\.|[^\s(){}\\])+", re.DOTALL)
_VARLENA_HEADER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnType:
    """A type: the name of its base type in the catalogue, ``json`` for any JSON or composite, and its mapping.

    The mapping is None for JSON, of which a type does not tell the content. A composite has a relation.
    """

    name: str
    is_array: bool = False
    mapping: dict[str, Any] | None = None
    relation: int = 0
    labels: tuple[str, ...] = ()


class Types:
    """The types of a database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._types: dict[tuple[int, int], ColumnType] = {}

    def of(self, oid: int, modifier: int = -1) -> ColumnType:
        """Return what a type is."""
        if (oid, modifier) not in self._types:
            self._types[oid, modifier] = self._read(oid, modifier)
        return self._types[oid, modifier]

    def _read(self, oid: int, modifier: int) -> ColumnType:
        row = self._connection.execute(_TYPE, (oid, modifier)).fetchone()
        if row is None:  # a type that only looks like an array, such as int2vector
            return ColumnType(name="", mapping=dict(KEYWORD))
        name, is_array, modifier, relation, labels = row
        mapping = MAPPINGS.get(name, KEYWORD)
        digits, scale = divmod(modifier - _NUMERIC_HEADER, 1 << _SCALE_BITS)
        if name == "numeric" and modifier >= 0 and scale == 0 and digits <= _LONG_DIGITS_MAX:
            mapping = {"type": "long"}
        elif mapping is TEXT and is_array:
            mapping = KEYWORD
        shown = None if name == "json" else dict(mapping)
        return ColumnType(name=name, is_array=is_array, mapping=shown, relation=relation, labels=tuple(labels))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a value is like: of a type; an object with these fields; or an object whose keys are data (``is_map``).

    Without any of them, it is JSON that comes out of a column. If ``is_nothing``, it is only ever null or empty.
    """

    type: ColumnType | None = None
    fields: dict[str, Shape] | None = None
    is_map: bool = False
    is_array: bool = False
    is_nothing: bool = False


_FREE, _MAP, _NOTHING = Shape(), Shape(is_map=True), Shape(is_nothing=True)
_Node = Any
"""A node of a stored tree is a dict, a list of nodes is a list, and all else is text."""


def of_select(connection: Connection, select: str) -> dict[str, Shape]:
    """Return the shapes of a canonical SELECT's columns."""
    with connection.transaction(force_rollback=True):
        connection.execute(sql.SQL("CREATE TEMPORARY VIEW syncer_shape AS {}").format(sql.SQL(select)))
        [(oid,)] = connection.execute("SELECT 'pg_temp.syncer_shape'::regclass::oid")
        walk = _Walk(connection)
        shapes = walk.row(oid)
        for number, name in enumerate(shapes, 1):
            if shapes[name].type is None:
                # A later version may store other trees: then a sample has to tell, as of JSON in columns.
                with suppress(LookupError, TypeError, ValueError, RecursionError):
                    shapes[name] = walk.column(_Query(walk.view(oid)), number)
        return shapes


@dataclass(frozen=True, slots=True)
class _Query:
    """A query within others."""

    tree: dict[str, Any]
    outer: tuple[_Query, ...] = ()

    def inside(self, tree: _Node) -> _Query:
        """Return a query within this one."""
        return _Query(tree, (*self.outer, self))

    def at(self, level: str) -> _Query:
        """Return the query so many levels up."""
        return self.outer[-int(level)] if int(level) else self


@dataclass
class _Walk:
    """From expressions in the tree that Postgres stores to shapes."""

    connection: Connection
    types: Types = field(init=False)
    functions: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.types = Types(self.connection)
        self.functions = {str(oid): name for oid, name in self.connection.execute(_FUNCTIONS)}

    def view(self, oid: int) -> dict[str, Any]:
        """Return the tree of a view's query."""
        [(text,)] = self.connection.execute(_TREE, (oid,))
        tree: dict[str, Any] = _parsed(text)[0][0]
        return tree

    def row(self, relation: int) -> dict[str, Shape]:
        """Return the shapes of a relation's columns, by their types."""
        columns = self.connection.execute(_ATTRIBUTES, (relation,)).fetchall()
        return {name: self.of_type(oid, modifier) for name, oid, modifier in columns}

    def of_type(self, oid: int, modifier: int = -1) -> Shape:
        """Return the shape of a type."""
        type_ = self.types.of(oid, modifier)
        if type_.mapping is not None:
            return Shape(type=type_, is_array=type_.is_array)
        return Shape(fields=self.row(type_.relation) if type_.relation else None, is_array=type_.is_array)

    def column(self, query: _Query, number: int) -> Shape:
        """Return the shape of a query's column."""
        if isinstance(query.tree["setOperations"], dict):
            branches = [entry["subquery"] for entry in query.tree["rtable"] if isinstance(entry.get("subquery"), dict)]
            return _united(self.column(query.inside(branch), number) for branch in branches)
        return self.shape(query.tree["targetList"][number - 1]["expr"], query)

    def shape(self, node: _Node, query: _Query) -> Shape:  # noqa: C901, PLR0911 - a branch for each kind of node
        """Return the shape of an expression in a query."""
        if not isinstance(node, dict):
            return _NOTHING
        if "varno" in node:
            return self._variable(node, query)
        if "consttype" in node:
            return self._constant(node)
        arguments = [inner.get("expr", inner) for inner in _items(node.get("args")) if inner.get("resjunk") != "true"]
        function = next((node[name] for name in ("aggfnoid", "funcid", "opfuncid") if name in node), "")
        if function in self.functions or ("returning" in node and "func" in node):
            if isinstance(node.get("func"), dict):  # of JSON_OBJECT, JSON_ARRAYAGG and their like
                return self.shape(node["func"], query)
            name = self.functions.get(function) or _CONSTRUCTORS.get(node["type"], "")
            return self._call(name, arguments, node, query)
        if node.get("subLinkType") in ("4", "6"):  # a value, or ARRAY of a SELECT
            inner = self.column(query.inside(node["subselect"]), 1)
            return replace(inner, is_array=inner.is_array or node["subLinkType"] == "6")
        if "casetype" in node:
            return _united(self.shape(one, query) for one in [*(w["result"] for w in node["args"]), node["defresult"]])
        if "coalescetype" in node:
            return _united(self.shape(argument, query) for argument in arguments)
        if "elements" in node:
            return replace(_united(self.shape(element, query) for element in node["elements"]), is_array=True)
        typed = self._typed(node)
        if typed == _FREE and "arg" in node and "fieldnum" not in node:  # json as jsonb
            inner = self.shape(node["arg"], query)
            return inner if inner.type is None else typed
        return typed

    def _typed(self, node: _Node) -> Shape:
        type_field = next((name for name in node if _TYPE_FIELD.fullmatch(name)), None)
        modifier = next((int(node[name]) for name in node if name.endswith("typmod")), -1)
        # What tells no type is a condition, but for functions of the SQL standard on JSON.
        oid = node[type_field] if type_field else node["returning"]["typid"] if "returning" in node else _BOOLEAN
        return self.of_type(int(oid), modifier)

    def _variable(self, node: _Node, query: _Query) -> Shape:
        owner, number = query.at(node["varlevelsup"]), int(node["varattno"])
        entry = owner.tree["rtable"][int(node["varno"]) - 1]
        inner: _Query | None = None
        if isinstance(entry.get("subquery"), dict):
            inner = owner.inside(entry["subquery"])
        elif entry.get("relkind") == "v":
            inner = _Query(self.view(int(entry["relid"])))
        elif entry["rtekind"] == "6" and entry.get("self_reference") == "false":
            home = owner.at(entry["ctelevelsup"])
            tree = next(cte["ctequery"] for cte in home.tree["cteList"] if cte["ctename"] == entry["ctename"])
            inner = home.inside(tree)
        if inner is not None:
            if number:
                return self.column(inner, number)
            shown = [target for target in inner.tree["targetList"] if target["resjunk"] == "false"]
            return Shape(fields={_name(target["resname"]): self.shape(target["expr"], inner) for target in shown})
        joined = _items(entry.get("joinaliasvars") or entry.get("groupexprs"))
        if 0 < number <= len(joined):
            return self.shape(joined[number - 1], owner)
        if number == 0 and entry["rtekind"] == "0":
            return Shape(fields=self.row(int(entry["relid"])))
        return self._typed(node)

    def _call(self, name: str, arguments: list[_Node], node: _Node, query: _Query) -> Shape:  # noqa: PLR0911 - a branch for each kind of function
        plain = name.removeprefix("jsonb_").removeprefix("json_").removesuffix("_strict").removesuffix("_unique")
        if plain == "build_object":
            if node.get("funcvariadic") == "true" or len(arguments) % 2 or any(map(_is_data, arguments[::2])):
                return _MAP
            pairs = zip(arguments[::2], arguments[1::2], strict=True)
            return Shape(fields={_text(key): self.shape(argument, query) for key, argument in pairs})
        if plain == "object_field":  # a -> 'key'
            outer = self.shape(arguments[0], query)
            return _FREE if _is_data(arguments[1]) else (outer.fields or {}).get(_text(arguments[1]), _FREE)
        if plain.startswith("object"):  # of arrays, or aggregated
            return _MAP
        if plain in ("to_json", "to_jsonb", "row_to_json", "array_to_json", "strip_nulls"):
            return self.shape(arguments[0], query)
        if plain == "concat":  # a || b has the fields of both objects
            shapes = [shape for argument in arguments if not (shape := self.shape(argument, query)).is_nothing]
            if all(shape.fields is not None and not shape.is_array for shape in shapes):
                return Shape(fields={name: inner for shape in shapes for name, inner in (shape.fields or {}).items()})
            return _united(shapes)
        if plain in ("agg", "build_array", "array"):
            return replace(_united(self.shape(argument, query) for argument in arguments), is_array=True)
        return self._typed(node)

    def _constant(self, node: _Node) -> Shape:
        typed = self._typed(node)
        if typed.type is None and node["constisnull"] == "false":  # '[]' or '{}': the rest is seldom written
            return _NOTHING if int(node["constvalue"][0]) <= _VARLENA_HEADER * 2 else typed
        return _NOTHING if node["constisnull"] == "true" else typed


def _united(shapes: Iterable[Shape]) -> Shape:
    """Return what takes the values of each: of alternatives, or of an array's elements."""
    different = [shape for shape in shapes if not shape.is_nothing]
    if not different:
        return _NOTHING
    is_array = any(shape.is_array for shape in different)
    if all(shape.fields is not None for shape in different):
        names = dict.fromkeys(name for shape in different for name in shape.fields or {})
        inside = {name: _united((shape.fields or {}).get(name, _NOTHING) for shape in different) for name in names}
        return Shape(fields=inside, is_array=is_array)
    if any(shape.is_map for shape in different):
        return replace(_MAP, is_array=is_array)
    types = [shape.type for shape in different if shape.type]
    if len(types) < len(different):
        return replace(_FREE, is_array=is_array)
    is_same = all(type_.mapping == types[0].mapping for type_ in types)
    return Shape(type=types[0] if is_same else ColumnType(name="", mapping=dict(KEYWORD)), is_array=is_array)


def _items(nodes: _Node) -> list[_Node]:
    return nodes if isinstance(nodes, list) else []


def _is_data(node: _Node) -> bool:
    return not isinstance(node, dict) or node.get("constisnull") != "false"


def _text(node: _Node) -> str:
    """Return a constant text."""
    value = bytes(int(byte) & 255 for byte in node["constvalue"][1].split()[1:-1])
    # A text has a header; a literal whose type is yet unknown ends with a zero byte.
    return (value.rstrip(b"\0") if node["constlen"] == "-2" else value[_VARLENA_HEADER:]).decode()


def _parsed(text: str) -> list[_Node]:
    """Parse a stored tree: each name after a colon is a field, of what follows until the next name."""
    root: list[_Node] = []
    nodes, values = list[dict[str, Any]](), [root]
    for word in _TOKEN.findall(text):
        if word in ("(", "{"):
            inner: _Node = [] if word == "(" else {}
            values[-1].append(inner)
            values.append(inner if word == "(" else [])
            nodes += [inner] if word == "{" else []
        elif word in (")", "}"):
            values.pop()
            if word == "}":
                node = nodes.pop()
                node.update((name, items[0]) for name, items in node.items() if len(items) == 1)
        elif word.startswith(":"):
            values[-1] = nodes[-1][word[1:]] = []
        else:
            values[-1].append(word)
    return root


def _name(token: str) -> str:
    return re.sub(r"\\(.)", r"\1", token, flags=re.DOTALL)
