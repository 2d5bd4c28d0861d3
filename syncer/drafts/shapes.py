"""Shapes: the types of a SELECT's columns, and of the JSON that it builds, as Postgres knows them.

Postgres has analysed the SELECT once it is a view: the stored tree has the type of each argument of
``jsonb_build_object``, whatever subqueries, CTEs, views and COALESCE stand between. Its nodes are read by their fields,
since the names of nodes change between versions. What Postgres does not know is JSON that comes out of a column.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
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
_BOOLEAN, _RECORD = 16, 2249
"""The oids of types; they never change."""
_CONSTRUCTORS = {"1": "build_object", "2": "build_array", "6": "to_json"}
"""By what the stored tree has for JSON_OBJECT, JSON_ARRAY and JSON_SCALAR: the functions that do the same."""
_TYPE_FIELDS = frozenset(
    {
        *("vartype", "consttype", "paramtype", "aggtype", "wintype", "funcresulttype", "opresulttype", "resulttype"),
        *(
            "coalescetype",
            "casetype",
            "minmaxtype",
            "array_typeid",
            "row_typeid",
            "refrestype",
            "refelemtype",
            "typeId",
        ),
        *("seqtypid",),
    }
)
"""The fields of nodes that name the type of an expression."""
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
        return ColumnType(
            name=name,
            is_array=is_array,
            mapping=None if name == "json" else dict(mapping),
            relation=relation,
            labels=tuple(labels),
        )


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


def of_select(connection: Connection, select: str) -> dict[str, Shape]:
    """Return the shapes of a canonical SELECT's columns."""
    with connection.transaction(force_rollback=True):
        connection.execute(sql.SQL("CREATE TEMPORARY VIEW syncer_shape AS {}").format(sql.SQL(select)))
        [(oid,)] = connection.execute("SELECT 'pg_temp.syncer_shape'::regclass::oid")
        walk, shapes = _Walk(connection), dict[str, Shape]()
        for number, (name, type_, modifier) in enumerate(connection.execute(_ATTRIBUTES, (oid,)).fetchall(), 1):
            shapes[name] = walk.of_type(walk.types.of(type_, modifier))
            if shapes[name].type is None:
                # A later version may store other trees: then a sample has to tell, as of JSON in columns.
                with suppress(LookupError, TypeError, ValueError, RecursionError):
                    shapes[name] = walk.column(_Query(tree=walk.view(oid)), number)
        return shapes


@dataclass(frozen=True, slots=True)
class _Query:
    """A query within others."""

    tree: dict[str, Any]
    around: tuple[_Query, ...] = ()


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
        tree: dict[str, Any] = _parsed(text)[0]
        return tree

    def column(self, query: _Query, number: int) -> Shape:
        """Return the shape of a query's column."""
        if isinstance(query.tree["setOperations"], dict):
            branches = [entry["subquery"] for entry in query.tree["rtable"] if isinstance(entry.get("subquery"), dict)]
            return self._united(self.column(_Query(branch, (*query.around, query)), number) for branch in branches)
        return self.shape(query.tree["targetList"][number - 1]["expr"], query)

    def shape(self, node: Any, query: _Query) -> Shape:  # noqa: C901, PLR0911, PLR0912 - a branch for each kind of node
        """Return the shape of an expression in a query."""
        if not isinstance(node, dict):
            return _NOTHING
        if "varno" in node:
            return self._variable(node, query)
        if "subLinkType" in node and isinstance(node["subselect"], dict) and node["subLinkType"] in ("4", "6"):
            inner = self.column(_Query(node["subselect"], (*query.around, query)), 1)
            return replace(inner, is_array=True) if node["subLinkType"] == "6" else inner
        if "aggfnoid" in node:
            arguments = [target["expr"] for target in _items(node["args"]) if target["resjunk"] == "false"]
            return self._call(self.functions.get(node["aggfnoid"], ""), arguments, node, query)
        if "funcid" in node and node["funcid"] in self.functions:
            return self._call(self.functions[node["funcid"]], _items(node["args"]), node, query)
        if "opfuncid" in node and node["opfuncid"] in self.functions:
            return self._call(self.functions[node["opfuncid"]], node["args"], node, query)
        if "coalescetype" in node:
            return self._united(self.shape(argument, query) for argument in node["args"])
        if "casetype" in node:
            results = [*(when["result"] for when in node["args"]), node["defresult"]]
            return self._united(self.shape(argument, query) for argument in results)
        if "consttype" in node:
            return self._constant(node)
        if "returning" in node:  # JSON_OBJECT, JSON_ARRAYAGG and their like
            is_call = isinstance(node.get("func"), dict)
            name = _CONSTRUCTORS.get(node.get("type", ""), "")
            return (
                self.shape(node["func"], query) if is_call else self._call(name, _items(node.get("args")), node, query)
            )
        if "elements" in node:
            return replace(self._united(self.shape(argument, query) for argument in node["elements"]), is_array=True)
        if "row_typeid" in node and int(node["row_typeid"]) == _RECORD:
            names = [f"f{number + 1}" for number in range(len(node["args"]))]
            return Shape(
                fields={name: self.shape(argument, query) for name, argument in zip(names, node["args"], strict=True)}
            )
        if "arg" in node and "resulttype" in node and "fieldnum" not in node:
            inner = self.shape(node["arg"], query)
            if inner.type is None and self._typed(node).type is None:
                return inner  # json as jsonb
        return self._typed(node)

    def _typed(self, node: dict[str, Any]) -> Shape:
        named = next((name for name in node if name in _TYPE_FIELDS), None)
        modifier = next((int(node[name]) for name in node if name.endswith("typmod")), -1)
        # What tells no type is a condition, but for functions of the SQL standard on JSON.
        oid = int(node[named] if named else node["returning"]["typid"] if "returning" in node else _BOOLEAN)
        return self.of_type(self.types.of(oid, modifier))

    def of_type(self, type_: ColumnType) -> Shape:
        """Return the shape of a type."""
        if type_.mapping is not None:
            return Shape(type=type_, is_array=type_.is_array)
        if not type_.relation:
            return replace(_FREE, is_array=type_.is_array)
        return replace(self._row(type_.relation), is_array=type_.is_array)

    def _row(self, relation: int) -> Shape:
        rows = self.connection.execute(_ATTRIBUTES, (relation,)).fetchall()
        return Shape(fields={name: self.of_type(self.types.of(oid, modifier)) for name, oid, modifier in rows})

    def _variable(self, node: dict[str, Any], query: _Query) -> Shape:
        level = int(node["varlevelsup"])
        owner = query if level == 0 else query.around[-level]
        entry, number = owner.tree["rtable"][int(node["varno"]) - 1], int(node["varattno"])
        inner: _Query | None = None
        if isinstance(entry.get("subquery"), dict):
            inner = _Query(entry["subquery"], (*owner.around, owner))
        elif entry.get("relkind") == "v":
            inner = _Query(self.view(int(entry["relid"])))
        elif entry["rtekind"] == "6" and entry.get("self_reference") == "false":
            inner = _cte(entry, owner)
        if inner is not None:
            if number:
                return self.column(inner, number)
            shown = [target for target in inner.tree["targetList"] if target["resjunk"] == "false"]
            return Shape(fields={_name(target["resname"]): self.shape(target["expr"], inner) for target in shown})
        joined = entry.get("joinaliasvars") or entry.get("groupexprs")
        if isinstance(joined, list) and 0 < number <= len(joined):
            return self.shape(joined[number - 1], owner)
        if number == 0 and entry["rtekind"] == "0":
            return self._row(int(entry["relid"]))
        return self._typed(node)

    def _call(  # noqa: PLR0911 - a branch for each kind of function
        self, name: str, arguments: list[Any], node: dict[str, Any], query: _Query
    ) -> Shape:
        plain = name.removeprefix("jsonb_").removeprefix("json_").removesuffix("_strict").removesuffix("_unique")
        if plain == "build_object":
            if node.get("funcvariadic") == "true" or len(arguments) % 2 or any(map(_is_data, arguments[::2])):
                return _MAP
            pairs = zip(arguments[::2], arguments[1::2], strict=True)
            return Shape(fields={_text(key): self.shape(argument, query) for key, argument in pairs})
        if plain == "concat":  # a || b
            return self._merged(self.shape(argument, query) for argument in arguments)
        if plain == "object_field":  # a -> 'key'
            outer = self.shape(arguments[0], query)
            return _FREE if _is_data(arguments[1]) else (outer.fields or {}).get(_text(arguments[1]), _FREE)
        if plain.startswith("object"):  # of arrays, or aggregated
            return _MAP
        if plain in ("agg", "build_array", "array"):
            return replace(self._united(self.shape(argument, query) for argument in arguments), is_array=True)
        if plain in ("to_json", "to_jsonb", "row_to_json", "array_to_json", "strip_nulls"):
            return self.shape(arguments[0], query)
        return self._typed(node)

    def _united(self, shapes: Iterable[Shape]) -> Shape:
        """Return what takes the values of each: of alternatives, or of an array's elements."""
        different = list({repr(shape): shape for shape in shapes if not shape.is_nothing}.values())
        if not different:
            return _NOTHING
        is_array = any(shape.is_array for shape in different)
        if all(shape.fields is not None for shape in different):
            names = dict.fromkeys(name for shape in different for name in shape.fields or {})
            inside = {
                name: self._united((shape.fields or {}).get(name, _NOTHING) for shape in different) for name in names
            }
            return Shape(fields=inside, is_array=is_array)
        if any(shape.is_map for shape in different):
            return replace(_MAP, is_array=is_array)
        if all(shape.type is not None for shape in different):
            mappings = [shape.type.mapping for shape in different if shape.type]
            same = all(mapping == mappings[0] for mapping in mappings)
            type_ = different[0].type if same else ColumnType(name="", mapping=dict(KEYWORD))
            return Shape(type=type_, is_array=is_array)
        return replace(_FREE, is_array=is_array)

    def _merged(self, shapes: Iterable[Shape]) -> Shape:
        """Return the shape of ``a || b``: the fields of both objects, and the elements of both arrays."""
        shown = [shape for shape in shapes if not shape.is_nothing]
        if shown and all(shape.fields is not None and not shape.is_array for shape in shown):
            return Shape(fields={name: inner for shape in shown for name, inner in (shape.fields or {}).items()})
        return self._united(shown)

    def _constant(self, node: dict[str, Any]) -> Shape:
        typed = self._typed(node)
        if typed.type is None and node["constisnull"] == "false":  # '[]' or '{}': the rest is seldom written
            length = int(node["constvalue"][0]) if isinstance(node["constvalue"], list) else 0
            return _NOTHING if length <= _VARLENA_HEADER * 2 else typed
        return _NOTHING if node["constisnull"] == "true" else typed


def _cte(entry: dict[str, Any], owner: _Query) -> _Query | None:
    level = int(entry["ctelevelsup"])
    home = owner if level == 0 else owner.around[-level]
    for cte in home.tree["cteList"]:
        if cte["ctename"] == entry["ctename"]:
            return _Query(cte["ctequery"], (*home.around, home))
    return None


def _items(nodes: Any) -> list[Any]:
    return nodes if isinstance(nodes, list) else []


def _is_data(node: Any) -> bool:
    return not isinstance(node, dict) or "consttype" not in node or node["constisnull"] == "true"


def _text(node: dict[str, Any]) -> str:
    """Return a constant text."""
    value = bytes(int(byte) & 255 for byte in node["constvalue"][2:-1])
    # A text has a header; a literal whose type is yet unknown ends with a zero byte.
    return (value.rstrip(b"\0") if node["constlen"] == "-2" else value[_VARLENA_HEADER:]).decode()


_TOKEN = re.compile(r"[(){}]|\[ (?:-?\d+ )*\]|(?:\\.|[^\s(){}\\])+", re.DOTALL)


def _parsed(text: str) -> list[Any]:
    """Parse a stored tree: nodes become dicts, lists become lists, and all else stays text."""
    stack: list[list[Any]] = [[]]
    for token in _TOKEN.findall(text):
        if token in ("(", "{"):
            stack.append([token])
        elif token in (")", "}"):
            kind, *items = stack.pop()
            stack[-1].append(dict(_fields(items)) if kind == "{" else items)
        else:
            stack[-1].append(token)
    return stack[0][0] if isinstance(stack[0][0], list) else stack[0]


def _fields(items: list[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a node: a name after a colon, and what follows until the next name."""
    name, values = "", list[Any]()
    for item in [*items[1:], ":"]:
        if isinstance(item, str) and item.startswith(":"):
            if name:
                yield name, values[0] if len(values) == 1 else values
            name, values = item[1:], []
        elif isinstance(item, str) and item.startswith("[ "):
            values += item.split()
        else:
            values.append(item)


def _name(token: Any) -> str:
    return re.sub(r"\\(.)", r"\1", str(token), flags=re.DOTALL)
