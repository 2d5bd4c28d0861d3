"""Shape: the fields of a SELECT, down into the JSON that it builds, each with its Postgres type.

Postgres itself names the type of every expression. If it is JSON, the expression says what is inside: subqueries,
aggregates and the functions that build JSON are followed, also through CTEs, derived tables and views. A value inside
is asked for in the place of the JSON around it, with LIMIT 0, so that nothing is read.

What is inside a JSON column, or comes from another function, is unknown: see `syncer.apply.scaffold.guess`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import psycopg
from sqlglot import exp

from syncer.apply.preview.column_type import ColumnType, column_type
from syncer.base.postgres import Connection, value
from syncer.lineage.catalog import Probe, TableName, table_name

_BUILDS_OBJECT = frozenset({"jsonb_build_object", "json_build_object"})
_BUILDS_ARRAY = frozenset({"jsonb_build_array", "json_build_array"})
_AGGREGATES = frozenset({"jsonb_agg", "json_agg_strict", "jsonb_agg_strict"})
_PASSES_ON = frozenset({"to_jsonb", "to_json", "row_to_json", "array_to_json", "jsonb_strip_nulls", "json_strip_nulls"})
_NOT_IN_FRAME = ("expressions", "order", "distinct", "limit", "offset", "group", "having")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What an expression returns.

    Args:
        type: Its type, if that says everything; None for an object or unknown JSON.
        properties: The fields of an object, or of the objects in an array; empty if unknown.
        is_array: Whether it is built as an array.
    """

    type: ColumnType | None = None
    properties: Mapping[str, Shape] = field(default_factory=dict)
    is_array: bool = False


UNKNOWN = Shape()


def read(connection: Connection, probe: Probe) -> dict[str, Shape]:
    """Return the shape of each field of a SELECT."""
    scopes = [_Scope(one) for one in _selects(probe.tree)]
    if any(len(one.select.selects) != len(probe.columns) for one in scopes):
        scopes = []
    reader = _Reader(connection, probe.views)
    found = {}
    for place, (name, type_) in enumerate(probe.columns.items()):
        if name not in ("_id", "_routing"):
            shapes = [reader.shape(one.select.selects[place], one) for one in scopes]
            found[name] = _merged(shapes) if scopes else _of_type(column_type(connection, type_))
    return found


@dataclass(frozen=True, slots=True)
class _Scope:
    """A SELECT in which an expression stands, and the one around it."""

    select: exp.Select
    outer: _Scope | None = None

    def __iter__(self) -> Iterator[_Scope]:
        """Yield this scope and those around it."""
        scope: _Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.outer

    def query(self, expression: exp.Expr) -> str:
        """Return a query for the value of an expression that stands in this scope."""
        expression = expression.copy()
        if isinstance(expression, exp.Column) and isinstance(expression.this, exp.Star):
            expression = exp.Coalesce(this=expression, expressions=[])  # a row, not its columns
        for scope in self:
            body = _frame(scope.select)
            body.set("expressions", [expression])
            expression = exp.Subquery(this=body)
        return f"SELECT {expression.sql(dialect='postgres')} LIMIT 0"


def _frame(select: exp.Select) -> exp.Select:
    """Copy the clauses that names refer to; without groups, so that a value inside an aggregate has a type."""
    frame = exp.Select()
    for name, clause in select.args.items():
        if name not in _NOT_IN_FRAME:
            parts = [one.copy() for one in clause] if isinstance(clause, list) else clause
            frame.set(name, parts.copy() if isinstance(parts, exp.Expr) else parts)
    return frame


class _Reader:
    """Finds the shapes of expressions."""

    def __init__(self, connection: Connection, views: Mapping[TableName, exp.Expr]) -> None:
        self._connection = connection
        self._views = views

    def shape(self, expression: exp.Expr, scope: _Scope) -> Shape:
        expression = expression.unalias().unnest()
        if _is_empty(expression):
            return UNKNOWN
        type_ = self._type(expression, scope)
        if type_ is None or type_.kind == "json" or type_.said.startswith("record"):
            return self._inside(expression, scope)
        return _of_type(type_)

    def _type(self, expression: exp.Expr, scope: _Scope) -> ColumnType | None:
        try:
            with self._connection.transaction():
                cursor = self._connection.execute(scope.query(expression))
        except (psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError):
            return None  # an expression that cannot stand alone
        assert cursor.pgresult is not None  # noqa: S101 - a SELECT always has a result
        type_, modifier = cursor.pgresult.ftype(0), cursor.pgresult.fmod(0)
        said = str(value(self._connection, "SELECT format_type($1::oid, $2)", (type_, modifier)))
        found = column_type(self._connection, said)
        if isinstance(expression, exp.Cast) and (found.kind, found.is_array) == ("float4", True):
            vector = self._type(expression.this, scope)
            if vector is not None and vector.kind == "vector":  # whose dimensions the cast forgets
                return replace(vector, is_array=True)
        return found

    def _inside(self, expression: exp.Expr, scope: _Scope) -> Shape:
        """Follow an expression that returns JSON or rows."""
        made = UNKNOWN
        match expression:
            case exp.Subquery() | exp.Query():
                made = _merged([self.shape(one.selects[0], _Scope(one, scope)) for one in _selects(expression)])
            case exp.DPipe():
                sides = [self.shape(one, scope) for one in (expression.left, expression.right)]
                made = _merged(sides) if all(one.properties for one in sides) else UNKNOWN
            case exp.Array():
                made = replace(self._any(expression.expressions, scope), is_array=True)
            case exp.Column():
                made = self._column(expression, scope)
            case exp.Cast() | exp.Coalesce() | exp.Case() | exp.Filter() | exp.Window():
                made = self._any(_alternatives(expression), scope)
            case exp.Func():
                made = self._call(expression, scope)
        return made

    def _call(self, call: exp.Func, scope: _Scope) -> Shape:
        name = call.name.lower() if isinstance(call, exp.Anonymous) else ""
        arguments = call.expressions or [call.this]
        if name in _BUILDS_OBJECT:
            return self._object(list(zip(arguments[::2], arguments[1::2], strict=False)), scope)
        if name in _BUILDS_ARRAY:
            return replace(self._any(arguments, scope), is_array=True)
        if name in _AGGREGATES or isinstance(call, exp.ArrayAgg | exp.JSONArrayAgg):
            argument = arguments[0]
            while isinstance(argument, exp.Order | exp.Distinct):
                argument = argument.this or argument.expressions[0]
            return replace(self.shape(argument, scope), is_array=True)
        return self.shape(arguments[0], scope) if name in _PASSES_ON else UNKNOWN

    def _object(self, pairs: Iterable[tuple[exp.Expr, exp.Expr]], scope: _Scope) -> Shape:
        named = [(_literal(key), one) for key, one in pairs]
        return Shape(properties={name: self.shape(one, scope) for name, one in named if name is not None})

    def _any(self, expressions: Iterable[exp.Expr], scope: _Scope) -> Shape:
        return _merged([self.shape(one, scope) for one in expressions])

    def _column(self, column: exp.Column, scope: _Scope) -> Shape:
        """Follow a column, or a whole row, of a CTE, derived table or view."""
        for outer in scope:
            sources = list(_sources(outer.select))
            for source in sources:
                if source.alias_or_name == column.table or (not column.table and len(sources) == 1):
                    around = [one.select for one in scope]  # a recursive CTE is among them
                    found = [one for one in self._queries(source, outer) if one.select not in around]
                    return _merged([self._of_source(column, source, one) for one in found])
        return UNKNOWN

    def _of_source(self, column: exp.Column, source: exp.Expr, scope: _Scope) -> Shape:
        fields = scope.select.selects
        shapes = dict(zip(source.alias_column_names or [one.alias_or_name for one in fields], fields, strict=False))
        if isinstance(column.this, exp.Star):
            return Shape(properties={name: self.shape(one, scope) for name, one in shapes.items()})
        return self.shape(shapes[column.name], scope) if column.name in shapes else UNKNOWN

    def _queries(self, source: exp.Expr, scope: _Scope) -> list[_Scope]:
        """Return the SELECTs that a FROM item names."""
        query: exp.Expr | None = source.this
        outer: _Scope | None = scope
        if isinstance(source, exp.Table):
            known = (self._views.get(table_name(source)), None)
            query, outer = known if source.db else next(_ctes(source.name, scope), (None, None))
        return [_Scope(one, outer) for one in _selects(query)]


def _of_type(type_: ColumnType) -> Shape:
    if type_.kind == "composite":
        properties = {name: _of_type(one) for name, one in type_.attributes.items()}
        return Shape(properties=properties, is_array=type_.is_array)
    return UNKNOWN if type_.kind == "json" else Shape(type=type_)


def _alternatives(expression: exp.Expr) -> list[exp.Expr]:
    """Return the expressions of which one is the value of this one."""
    match expression:
        case exp.Cast():
            return [expression.this] if expression.is_type("json", "jsonb") else []
        case exp.Case():
            return [one.args["true"] for one in expression.args["ifs"]] + [expression.args.get("default") or exp.null()]
    return [expression.this, *(expression.expressions if isinstance(expression, exp.Coalesce) else ())]


def _selects(query: exp.Expr | None) -> list[exp.Select]:
    """Return the SELECTs of a query: several of a UNION, and none of what is no query."""
    query = query.unnest() if query is not None else None
    if not isinstance(query, exp.SetOperation):
        return [query] if isinstance(query, exp.Select) else []
    found = [one.copy() for side in (query.this, query.expression) for one in _selects(side)]
    for one in found:
        one.set("with_", one.args.get("with_") or query.args.get("with_"))
    return found


def _ctes(name: str, scope: _Scope) -> Iterator[tuple[exp.Expr, _Scope]]:
    """Yield the query of each CTE of that name, the innermost first, with the SELECT that it belongs to."""
    for outer in scope:
        clause = outer.select.args.get("with_")
        for one in clause.expressions if clause else ():
            if one.alias == name:
                yield one.this, outer


def _sources(select: exp.Select) -> Iterator[exp.Expr]:
    """Yield the FROM items of a SELECT, also those in parentheses."""
    clause = select.args.get("from_")
    items = [clause.this] if clause else []
    items += [join.this for join in select.args.get("joins") or ()]
    while items:
        item = items.pop()
        items += [join.this for join in item.args.get("joins") or ()]
        if isinstance(item, exp.Subquery) and not item.alias:
            items.append(item.this)
        else:
            yield item


def _literal(expression: exp.Expr) -> str | None:
    """Return a text literal, cast or not."""
    expression = expression.unnest()
    while isinstance(expression, exp.Cast):
        expression = expression.this.unnest()
    return expression.name if isinstance(expression, exp.Literal) and expression.is_string else None


def _is_empty(expression: exp.Expr) -> bool:
    """Whether an expression is a constant that says nothing of other rows: NULL, or the JSON of an empty array."""
    return isinstance(expression, exp.Null) or _literal(expression) in ("[]", "{}")


def _merged(shapes: Iterable[Shape]) -> Shape:
    """Combine what alternatives say."""
    known = [one for one in shapes if one != UNKNOWN]
    properties = {name: shape for one in reversed(known) for name, shape in one.properties.items()}
    if properties:
        return Shape(properties=properties, is_array=any(one.is_array for one in known))
    return known[0] if known else UNKNOWN
