"""Value types: the types of a SELECT's columns, and of the JSON that it builds, as Postgres knows them.

Postgres has analysed the SELECT once it is a view: the stored tree has the type of each argument of
``jsonb_build_object``, whatever subqueries, CTEs, views and COALESCE stand between. Its nodes are read by their fields,
since the names of nodes change between versions. What Postgres does not know is JSON that comes out of a column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from psycopg import sql

from syncer.base.postgres import Connection
from syncer.drafts.rules import KEYS_ARE_DATA, KEYWORD, MAPPINGS

# Domains are resolved to their base type, arrays to their element type. Composites become JSON, as do types with a
# cast to it, but for those that a draft shows in its own way.
_TYPE = """
WITH RECURSIVE base AS (
    SELECT t, coalesce(nullif($2::int, -1), t.typtypmod) AS modifier, false AS is_array
    FROM pg_type AS t WHERE t.oid = $1::oid
    UNION ALL
    SELECT inner_t, coalesce(nullif(b.modifier, -1), inner_t.typtypmod), b.is_array OR (b.t).typtype <> 'd'
    FROM base AS b JOIN pg_type AS inner_t ON inner_t.oid = CASE WHEN (b.t).typtype = 'd' THEN (b.t).typbasetype
                                                                 WHEN (b.t).typcategory = 'A' THEN (b.t).typelem END
)
SELECT CASE WHEN (t).typname NOT IN ('hstore', 'geometry')
             AND ((t).typtype IN ('c', 'p') OR (t).typname = 'jsonb' OR EXISTS (
                SELECT FROM pg_cast
                WHERE castsource = (t).oid AND casttarget = 'json'::regtype AND castmethod = 'f'))
            THEN 'json' ELSE (t).typname END,
       is_array, modifier, (t).typrelid, array(SELECT enumlabel::text FROM pg_enum WHERE enumtypid = (t).oid)
FROM base WHERE (t).typtype <> 'd' AND (t).typcategory <> 'A'
"""
_ATTRIBUTES = """
SELECT attname::text, atttypid, atttypmod FROM pg_attribute
WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_TREE = "SELECT ev_action::text FROM pg_rewrite WHERE ev_class = $1::oid AND rulename = '_RETURN'"
# Functions that make JSON of their arguments; jsonb_agg_strict, json_agg and array_agg are one: agg.
_FUNCTIONS = """
SELECT oid::text, regexp_replace(proname, '^(jsonb?|row|array)_|b?(_strict|_unique)*$', '', 'g') FROM pg_proc
WHERE pronamespace = 'pg_catalog'::regnamespace
  AND (prorettype IN ('json'::regtype, 'jsonb'::regtype) OR proname = 'array_agg')
"""
_LONG_DIGITS_MAX = 18
_NUMERIC_HEADER, _SCALE_BITS = 4, 16
_UNKNOWN_SRID, _WGS84_SRID = 0, 4326
_BOOLEAN = "16"
"""Its oid, which never changes."""
_TYPE_FIELD = re.compile(
    "(var|const|param|agg|win|funcresult|opresult|result|coalesce|case|minmax|refres|refelem)type|(array_|row_|seq)typeid"
    "|seqtypid|typeId"
)
"""The fields of nodes that name the type of an expression."""
_TOKEN = re.compile(r"[(){}]|\[ (?:-?\d+ )*\]|(?:\\.|[^\s(){}\\])+", re.DOTALL)
_BRACKETS = {"(": "[", ")": "],", "{": '{"node":[', "}": "]},"}
_VARLENA_HEADER = 4
"""How many bytes of a stored text or JSON come before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueType:
    """What a value is like, by its base type in the catalogue; arrays are like their elements.

    ``name`` is ``json`` for any JSON, for composites, and for what the SELECT builds. Of the two latter, the fields are
    known. It is ``projected`` for a geometry of PostGIS whose coordinates are no longitude and latitude. JSON without
    fields and without a mapping comes out of a column, or is ``NOTHING``: only ever null or empty.
    """

    name: str
    mapping: Mapping[str, Any] | None = None
    fields: Mapping[str, ValueType] | None = None
    labels: tuple[str, ...] = ()
    is_array: bool = False


_FREE, _MAP, _NOTHING = ValueType(name="json"), ValueType(name="json", mapping=KEYS_ARE_DATA), ValueType(name="nothing")


class Types:
    """The types of a database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.of = cache(self._type_of)
        """Returns what values of a type are like, by its oid and modifier."""

    def row(self, relation: int) -> dict[str, ValueType]:
        """Return what the columns of a relation are like."""
        columns = self._connection.execute(_ATTRIBUTES, (relation,)).fetchall()
        return {name: self.of(oid, modifier) for name, oid, modifier in columns}

    def _type_of(self, oid: int, modifier: int) -> ValueType:
        row = self._connection.execute(_TYPE, (oid, modifier)).fetchone()
        if row is None:  # a type that only looks like an array, such as int2vector
            return ValueType(name="", mapping=KEYWORD)
        name, is_array, modifier, relation, labels = row
        mapping: Mapping[str, Any] | None = None if name in ("json", "geometry") else MAPPINGS.get(name, KEYWORD)
        if name == "geometry" and modifier >= 0 and modifier >> 8 & 0xFFFFF not in (_UNKNOWN_SRID, _WGS84_SRID):
            name = "projected"
        digits, scale = divmod(modifier - _NUMERIC_HEADER, 1 << _SCALE_BITS)
        if name == "numeric" and modifier >= 0 and scale == 0 and digits <= _LONG_DIGITS_MAX:
            mapping = {"type": "long"}
        fields = self.row(relation) if relation else None
        return ValueType(name=name, mapping=mapping, fields=fields, labels=tuple(labels), is_array=is_array)


_Node = Any
"""A node of a stored tree is a dict, a list of nodes is a list, and all else is text."""
_Scope = tuple[dict[str, Any], ...]
"""The trees of a query and of those around it, the outermost first."""


def of_select(connection: Connection, select: str) -> dict[str, ValueType]:
    """Return the value types of a canonical SELECT's columns."""
    with connection.transaction(force_rollback=True):
        connection.execute(sql.SQL("CREATE TEMPORARY VIEW syncer_shape AS {}").format(sql.SQL(select)))
        [(oid,)] = connection.execute("SELECT 'pg_temp.syncer_shape'::regclass::oid")
        walk = _Walk(connection)
        value_types = walk.types.row(oid)
        for number, name in enumerate(value_types, 1):
            if value_types[name].mapping is None:
                # A later version may store other trees: then a sample has to tell, as of JSON in columns.
                with suppress(LookupError, TypeError, ValueError, AttributeError, RecursionError):
                    value_types[name] = walk.column((walk.view(oid),), number)
        return value_types


class _Walk:
    """From expressions in the tree that Postgres stores to value types."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.types = Types(connection)
        self._functions: dict[str, str] = dict(connection.execute(_FUNCTIONS).fetchall())

    def view(self, oid: int) -> dict[str, Any]:
        """Return the tree of a view's query."""
        [(text,)] = self._connection.execute(_TREE, (oid,))
        tree: dict[str, Any] = _parsed(text)[0]
        return tree

    def column(self, scope: _Scope, number: int) -> ValueType:
        """Return the value type of a query's column."""
        tree = scope[-1]
        if isinstance(tree["setOperations"], dict):
            branches = [entry["subquery"] for entry in tree["rtable"] if isinstance(entry.get("subquery"), dict)]
            return _united(self.column((*scope, branch), number) for branch in branches)
        return self._type(tree["targetList"][number - 1]["expr"], scope)

    def _type(self, node: _Node, scope: _Scope) -> ValueType:  # noqa: C901, PLR0911 - a branch for each kind of node
        """Return the value type of an expression in a query: by its type, or if that is JSON, by how it is made."""
        if node.get("subLinkType") in ("4", "6"):  # a value, or ARRAY of a SELECT
            inner = self.column((*scope, node["subselect"]), 1)
            return replace(inner, is_array=inner.is_array or node["subLinkType"] == "6")
        typed = self._typed(node)
        if typed.mapping is not None:
            return typed
        if "varno" in node:
            return self._variable(node, scope) or typed
        if "consttype" in node:  # '[]' or '{}': the rest is seldom written
            is_empty = node["constisnull"] == "true" or int(node["constvalue"][0]) <= _VARLENA_HEADER * 2
            return _NOTHING if is_empty else typed
        if "casetype" in node:
            return self._any((*(case["result"] for case in node["args"]), node["defresult"]), scope)
        if "elements" in node:
            return replace(self._any(node["elements"], scope), is_array=True)
        if "arg" in node and "fieldnum" not in node:  # json as jsonb; a text as jsonb may hold anything
            return self._any([node["arg"]], scope) if self._is_json(node["arg"]) else typed
        items = node["args"] if isinstance(node.get("args"), list) else []
        arguments = [inner.get("expr", inner) for inner in items if inner.get("resjunk") != "true"]
        function = next((node[name] for name in ("aggfnoid", "funcid", "opfuncid") if name in node), "")
        match "concat" if "coalescetype" in node else self._functions.get(function):
            case "build_object" if node.get("funcvariadic") == "false" and all(map(_is_constant, arguments[::2])):
                pairs = zip(arguments[::2], arguments[1::2], strict=True)
                return ValueType(
                    name="json", fields={_text(key): self._type(argument, scope) for key, argument in pairs}
                )
            case "build_object" | "object" | "object_agg":
                return _MAP
            case "agg" | "build_array":
                return replace(self._any(arguments, scope), is_array=True)
            case "to_json" | "strip_nulls":  # the other arguments are options
                return self._any(arguments[:1], scope)
            case "concat":  # a || b has the fields of both objects
                return self._any(arguments, scope)
        return typed

    def _any(self, nodes: Iterable[_Node], scope: _Scope) -> ValueType:
        """Return a value type that takes the values of each expression."""
        return _united(self._type(node, scope) for node in nodes)

    def _is_json(self, node: _Node) -> bool:
        if node.get("subLinkType") == "4":
            return self._is_json(node["subselect"]["targetList"][0]["expr"])
        return self._typed(node).mapping is None

    def _typed(self, node: _Node) -> ValueType:
        type_field = next((name for name in node if _TYPE_FIELD.fullmatch(name)), None)
        modifier = next((int(node[name]) for name in node if name.endswith("typmod")), -1)
        # What tells no type is a condition, but for functions of the SQL standard on JSON.
        oid = node[type_field] if type_field else node["returning"]["typid"] if "returning" in node else _BOOLEAN
        return self.types.of(int(oid), modifier)

    def _variable(self, node: _Node, scope: _Scope) -> ValueType | None:
        """Return the value type of a column or a whole row of a subquery, view or CTE; None if it is none of them."""
        owner, number = scope[: len(scope) - int(node["varlevelsup"])], int(node["varattno"])
        entry = owner[-1]["rtable"][int(node["varno"]) - 1]
        if isinstance(entry.get("subquery"), dict):
            inner = (*owner, entry["subquery"])
        elif entry.get("relkind") == "v":
            inner = (self.view(int(entry["relid"])),)
        elif entry["rtekind"] == "6" and entry.get("self_reference") == "false":
            home = owner[: len(owner) - int(entry["ctelevelsup"])]
            tree = next(cte["ctequery"] for cte in home[-1]["cteList"] if cte["ctename"] == entry["ctename"])
            inner = (*home, tree)
        else:
            return None
        if number:
            return self.column(inner, number)
        shown = [target for target in inner[-1]["targetList"] if target["resjunk"] == "false"]
        return ValueType(name="json", fields={target["resname"]: self._type(target["expr"], inner) for target in shown})


def _united(value_types: Iterable[ValueType]) -> ValueType:
    """Return what takes the values of each: of alternatives, or of an array's elements."""
    different = [value_type for value_type in value_types if value_type.name != _NOTHING.name]
    is_array = any(value_type.is_array for value_type in different)
    fields = [value_type.fields for value_type in different if value_type.fields is not None]
    mappings = [value_type.mapping for value_type in different]
    if not different:
        return _NOTHING
    if len(fields) == len(different):
        names = dict.fromkeys(name for inside in fields for name in inside)
        inner = {name: _united(inside[name] for inside in fields if name in inside) for name in names}
        return ValueType(name="json", fields=inner, is_array=is_array)
    if _MAP.mapping in mappings or None in mappings:
        return replace(_MAP if _MAP.mapping in mappings else _FREE, is_array=is_array)
    is_same = all(mapping == mappings[0] for mapping in mappings)
    return replace(different[0] if is_same else ValueType(name="", mapping=KEYWORD), is_array=is_array)


def _is_constant(node: _Node) -> bool:
    return "constvalue" in node and node["constisnull"] == "false"


def _text(node: _Node) -> str:
    value = bytes(int(byte) & 255 for byte in node["constvalue"][1].split()[1:-1])
    # A literal whose type is yet unknown has no header, and ends with a zero byte.
    return (value.rstrip(b"\0") if node["constlen"] == "-2" else value[_VARLENA_HEADER:]).decode()


def _parsed(text: str) -> list[_Node]:
    """Parse a stored tree, as JSON: each name after a colon is a field, of what follows until the next name."""

    def as_json(token: re.Match[str]) -> str:
        word = token[0]
        text = json.dumps(re.sub(r"^:|\\(.)", r"\1", word, flags=re.DOTALL)).replace(",", r"\u002c")
        return _BRACKETS.get(word) or (f"],{text}:[" if word.startswith(":") else f"{text},")

    def unwrapped(node: dict[str, list[_Node]]) -> dict[str, _Node]:
        return {name: items[0] if len(items) == 1 else items for name, items in node.items()}

    trees: list[_Node] = json.loads(
        re.sub(r",\s*(?=[\]}])|,\s*$", "", _TOKEN.sub(as_json, text)), object_hook=unwrapped
    )
    return trees
