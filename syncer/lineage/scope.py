"""Scopes and expressions: what a name in a SELECT means, in columns of nodes, and what is known of such an expression.

A node is one reading of a table: see the example of `syncer.lineage`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType

from sqlglot import exp

PLAIN_TYPES = {
    "smallint": "integer",
    "integer": "integer",
    "bigint": "integer",
    "uuid": "uuid",
    "text": "text",
    "character varying": "text",
}
"""Types of which equal values have equal texts, in JSON and SQL alike, with a common name for compatible ones."""

EXACT_TYPES = {
    *PLAIN_TYPES.values(), "boolean", "bytea", "date", "enum", "timestamp without time zone",
    "timestamp with time zone",
}  # fmt: skip
"""Types of which equal values are identical. Not numeric, for example: 1.0 equals 1.00."""

# Deterministic and strict expressions; ``||`` is strict for scalars.
_STEADY = (
    exp.Column, exp.Identifier, exp.Literal, exp.Paren, exp.Cast, exp.DataType, exp.DataTypeParam,
    exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Lower, exp.Upper, exp.Length, exp.DPipe,
    exp.JSONExtract, exp.JSONExtractScalar, exp.Extract, exp.AtTimeZone, exp.Var,
)  # fmt: skip
_CASTS = {"text": ("text", "varchar"), "integer": ("smallint", "int", "bigint"), "uuid": ("uuid",)}
_INSIDE: dict[str, type | UnionType] = {"jsonb": exp.JSONExtract | exp.JSONExtractScalar, "json": exp.JSONExtractScalar}


def column(number: int, name: str, type_: str) -> exp.Column:
    """Return a column of a node; its type is empty if different texts count as equal."""
    reference = exp.column(exp.to_identifier(name, quoted=True), table=exp.to_identifier(f"n{number}", quoted=True))
    reference.meta["type"], reference.meta["sql_type"] = PLAIN_TYPES.get(type_, type_), type_
    return reference


def numbers(expression: exp.Expr) -> set[int]:
    """Return the numbers of the nodes whose columns an expression contains, or whose rows all show it as a constant."""
    columns = {int(reference.table.removeprefix("n")) for reference in expression.find_all(exp.Column)}
    return columns | {inner.meta["node"] for inner in expression.walk() if "node" in inner.meta}


def is_strict(expression: exp.Expr) -> bool:
    """Whether a steady expression is null if a column of it is: ``||`` of texts is, that of arrays is not."""
    return all(type_of(concatenation) == "text" for concatenation in expression.find_all(exp.DPipe))


def is_carried(expression: exp.Expr) -> bool:
    """Whether an image contains the value of an expression.

    An image does not tell whether a jsonb is null or missing, nor the spelling of a json, but it does tell what is
    inside them. Of an array, it tells the elements.
    """
    return not any(map(is_array, expression.find_all(exp.Column))) and all(
        _is_inside(reference, _INSIDE[type_])
        for reference in expression.find_all(exp.Column)
        if (type_ := type_of(reference)) in _INSIDE
    )


def is_cut(query: exp.Expr) -> bool:
    """Whether a query returns only some of its rows."""
    return any(query.args.get(name) for name in ("limit", "offset", "fetch"))


def distinct_on(select: exp.Select) -> list[exp.Expr]:
    """Return the keys of DISTINCT ON."""
    distinct = select.args.get("distinct")
    on = distinct.args.get("on") if isinstance(distinct, exp.Distinct) else None
    return on.expressions if isinstance(on, exp.Tuple) else [] if on is None else [on]


def is_array(expression: exp.Expr) -> bool:
    """Whether an expression is a column with arrays, perhaps cast."""
    column = expression.unnest()
    while isinstance(column, exp.Cast):
        column = column.this.unnest()
    return isinstance(column, exp.Column) and type_of(column).endswith("[]")


def _is_inside(column: exp.Column, steps: type | UnionType) -> bool:
    """Whether one of these operators accesses the inside of a column."""
    around = column.parent
    while isinstance(around, exp.Paren | exp.JSONExtract) and not isinstance(around, steps):
        around = around.parent
    return isinstance(around, steps)


def type_of(expression: exp.Expr) -> str:
    """Return an expression's type under its common name; empty if unknown."""
    expression = expression.unnest()
    if isinstance(expression, exp.Column):
        return str(expression.meta.get("type", ""))
    if isinstance(expression, exp.DPipe):
        sides = {type_of(expression.left), type_of(expression.right)}
        return "text" if "text" in sides and sides <= EXACT_TYPES else ""
    if isinstance(expression, exp.Lower | exp.Upper):
        return "text" if type_of(expression.this) == "text" else ""
    if isinstance(expression, exp.Cast):
        # A cast keeps a non-deterministic collation.
        if not all(type_of(reference) for reference in expression.find_all(exp.Column)):
            return ""
        return next((name for name, kinds in _CASTS.items() if expression.is_type(*kinds)), "")
    return "text" if expression.is_string else "integer" if expression.is_int else ""


_CONSTANTS = (
    exp.Any, exp.Array, exp.Boolean, exp.Cast, exp.DataType, exp.DataTypeParam, exp.Dot, exp.Identifier, exp.Literal,
    exp.Neg, exp.Paren,
)  # fmt: skip
_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)


def is_test(expression: exp.Expr) -> bool:
    """Whether an expression compares columns with constants, by operators of pg_catalog that do not fail."""
    expression = expression.unnest()
    if isinstance(expression, exp.And | exp.Or):
        return is_test(expression.left) and is_test(expression.right)
    if isinstance(expression, exp.Not):
        return isinstance(expression.this.unnest(), exp.Column | exp.Is) and is_test(expression.this)
    if isinstance(expression, exp.Is):
        return isinstance(expression.this.unnest(), exp.Column) and isinstance(expression.expression, exp.Null)
    if isinstance(expression, _COMPARISONS):
        tested = expression.left.unnest()
        if isinstance(tested, exp.Cast) and tested.is_type(*_CASTS["text"]):
            tested = tested.this.unnest()
        constant = expression.expression
        return isinstance(tested, exp.Column) and all(isinstance(inner, _CONSTANTS) for inner in constant.walk())
    return isinstance(expression, exp.Column)


def accepts_null(test: exp.Expr) -> bool:
    """Whether such an expression may be true of a row of nulls."""
    for null_test in test.find_all(exp.Is):
        around = null_test.parent
        while isinstance(around, exp.Paren):
            around = around.parent
        if bool(null_test.args.get("negate")) == isinstance(around, exp.Not):  # IS NULL, and not IS NOT NULL
            return True
    return False


# Types that a UNION never converts to that of another branch.
_UNCONVERTED = {"text", "uuid"}


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a column or expression means.

    Args:
        alternatives: Expressions in columns of nodes: one, or one for each branch of a UNION in which it is known.
        is_complete: Whether it is a column, and null in every branch without an alternative.
        rivals: Such expressions, instead of alternatives, if rows of the query may displace rows in which it differs.
    """

    alternatives: tuple[exp.Expr, ...] = ()
    is_complete: bool = False
    rivals: tuple[exp.Expr, ...] = ()

    def exact(self) -> Meaning:
        """Return what is left of it if equal values are merged."""
        expressions = self.alternatives or self.rivals
        exact = tuple(expression for expression in expressions if type_of(expression) in EXACT_TYPES)
        if exact == expressions:
            return self
        return Meaning(rivals=exact) if self.rivals else Meaning(exact)


UNKNOWN = Meaning()

Columns = list[tuple[str, Meaning]]
"""The columns of a table or query; two may have the same name."""


def renamed(columns: Columns, item: exp.Expr) -> Columns:
    """Return the columns under the names of an alias, as in ``AS s(a, b)``."""
    names = item.alias_column_names
    return [(names[index] if index < len(names) else name, meaning) for index, (name, meaning) in enumerate(columns)]


@dataclass(frozen=True, slots=True)
class Cte:
    """A CTE, and the scope of its definition."""

    definition: exp.CTE
    scope: Scope | None


@dataclass(frozen=True, slots=True)
class Scope:
    """What names can refer to: the sources of one SELECT by alias, or the CTEs of one WITH; and the scope around it."""

    outer: Scope | None
    sources: dict[str, Columns] = field(default_factory=dict)
    ctes: Mapping[str, Cte | None] = field(default_factory=dict)

    def cte(self, name: str) -> Cte | None:
        """Return the CTE that a name refers to, if it is one that can be read."""
        scope: Scope | None = self
        while scope is not None and name not in scope.ctes:
            scope = scope.outer
        return None if scope is None else scope.ctes[name]

    def meaning(self, expression: exp.Expr) -> Meaning:
        """Return what an expression means; it is unknown unless it depends on columns alone."""
        expression = expression.unnest()
        if not all(isinstance(inner, _STEADY) for inner in expression.walk()):
            return UNKNOWN
        if isinstance(expression, exp.Column):
            return self._resolve(expression)
        resolved = [self._resolve(column).alternatives for column in expression.find_all(exp.Column)]
        if not resolved or any(len(alternatives) != 1 for alternatives in resolved):
            return UNKNOWN
        meant = expression.copy()
        for reference, (source,) in zip(list(meant.find_all(exp.Column)), resolved, strict=True):
            reference.replace(source.copy() if isinstance(source, exp.Column) else exp.paren(source.copy()))
        return Meaning((meant,))

    def test(self, expression: exp.Expr) -> exp.Expr | None:
        """Return a test as in `is_test` in columns of one node; None if it is none, or of several nodes."""
        if not is_test(expression):
            return None
        holder = exp.Paren(this=expression.unnest().copy())  # a column alone has no place to be replaced in
        for reference in list(holder.find_all(exp.Column)):
            meant = self._resolve(reference).alternatives
            if len(meant) != 1 or not isinstance(meant[0], exp.Column):
                return None
            reference.replace(meant[0].copy())
        return holder.this if len(numbers(holder)) == 1 else None

    def _resolve(self, reference: exp.Column) -> Meaning:
        scope: Scope | None = None if isinstance(reference.this, exp.Star) else self
        while scope is not None:
            if reference.table in scope.sources or not reference.table:
                # Postgres omits the qualifier if there is a single source, and for columns merged by FULL JOIN … USING.
                # In canonical SQL an unqualified name never refers to an outer SELECT.
                sources = [scope.sources[reference.table]] if reference.table else list(scope.sources.values())
                named = [meaning for name, meaning in sources[0] if name == reference.name] if len(sources) == 1 else []
                return named[0] if len(named) == 1 else UNKNOWN
            scope = scope.outer
        return UNKNOWN


def with_ctes(tree: exp.Expr, outer: Scope | None) -> Scope | None:
    """Return the scope of a query, within another one: it has the CTEs of the query's own WITH."""
    clause = tree.args.get("with_")
    if clause is None:
        return outer
    # WITH RECURSIVE hides all its names at once: a CTE in it may read itself or a later one.
    hidden = {cte.alias for cte in clause.expressions} if clause.args.get("recursive") else set()
    scope = Scope(outer, ctes=dict.fromkeys(hidden))
    for cte in clause.expressions:
        # A CTE that reads a hidden one stays hidden, so that its tables have no edges.
        if all(table.db or table.name not in hidden for table in cte.this.find_all(exp.Table)):
            scope = Scope(scope, ctes={cte.alias: Cte(cte, scope)})
            hidden.discard(cte.alias)
    return scope


def meaning_of_branches(first_number: int, branches: Sequence[Meaning], *, compares: bool) -> Meaning:
    """Return what a column of a UNION means, from what it means in each branch, by `with_constants`.

    It is unknown if a branch's value is converted to another type, or replaced by an equal one of another branch. A
    branch may return a column of an outer row. The other branch sees the same row, but returns another value: only
    nodes from ``first_number`` on count, those of the branches themselves.
    """
    expressions = [expression for meaning in branches for expression in meaning.alternatives]
    types = set(map(type_of, expressions))
    is_known = all(meaning.alternatives for meaning in branches)
    if len(types) != 1 or "" in types or not (is_known or types <= _UNCONVERTED):
        return UNKNOWN
    if compares and not types <= EXACT_TYPES:
        return UNKNOWN
    of_nodes = [expression for expression in expressions if numbers(expression)]
    alternatives = tuple(expression for expression in of_nodes if min(numbers(expression)) >= first_number)
    is_complete = len(alternatives) == len(of_nodes) and all(meaning.is_complete for meaning in branches)
    return Meaning(alternatives, is_complete=is_complete)


def with_constants(columns: Columns, branch: exp.Expr, nodes: Sequence[int]) -> Columns:
    """Return the columns of a branch of a UNION, constants included; ``nodes`` are all that the branch reads.

    If it returns a row for each row of one table, such as ``SELECT id, 2 FROM t``, a constant stands for that table's
    rows: what equals it matters only if there is one.
    """
    select = branch.unnest()
    outputs = [item.unalias().copy() for item in select.expressions] if isinstance(select, exp.Select) else []
    if len(outputs) != len(columns):
        return columns
    is_rows, complete = len(nodes) == 1 and _is_rows_of_a_table(select), list(columns)
    for position, output in enumerate(outputs):
        if _is_constant(output):
            is_null = _is_null(output)
            if is_rows and not is_null:
                output.meta["node"] = nodes[0]
            complete[position] = columns[position][0], Meaning((output,), is_complete=is_rows or is_null)
    return complete


def _is_constant(expression: exp.Expr) -> bool:
    kinds = (exp.Cast, exp.DataType, exp.DataTypeParam, exp.Literal, exp.Neg, exp.Null, exp.Paren)
    return all(isinstance(inner, kinds) for inner in expression.walk())


def _is_rows_of_a_table(select: exp.Expr) -> bool:
    """Whether a SELECT returns its table's rows, perhaps not all of them, with nothing but columns and constants."""
    source = select.args.get("from_")
    changes = ("joins", "group", "having", "distinct", "windows")
    return (
        source is not None
        and isinstance(source.this, exp.Table)
        and bool(source.this.db)
        and not source.this.args.get("joins")
        and not is_cut(select)
        and not any(select.args.get(name) for name in changes)
        and all(isinstance(item.unalias(), exp.Column) or _is_constant(item.unalias()) for item in select.expressions)
    )


def _is_null(constant: exp.Expr) -> bool:
    return isinstance(constant.unnest(), exp.Null | exp.Cast) and bool(constant.find(exp.Null))
