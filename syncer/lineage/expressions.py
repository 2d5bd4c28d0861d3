"""Expressions in columns of nodes: which nodes they read, their type, and what may be concluded from their equality.

A node is one reading of a table: see `syncer.lineage.graph`. In the example of `syncer.lineage`, the posts are node 0
and the users node 1, so ``u.id`` becomes ``n1.id``, a column that carries its type.
"""

from __future__ import annotations

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
    *PLAIN_TYPES.values(), "boolean", "bytea", "date", "timestamp without time zone", "timestamp with time zone",
}  # fmt: skip
"""Types of which equal values are identical. Not numeric, for example: 1.0 equals 1.00."""

# Deterministic and strict expressions; ``||`` is strict for scalars.
_STEADY = (
    exp.Column, exp.Identifier, exp.Literal, exp.Paren, exp.Cast, exp.DataType, exp.DataTypeParam,
    exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Lower, exp.Upper, exp.Length, exp.DPipe,
    exp.JSONExtract, exp.JSONExtractScalar,
)  # fmt: skip
_CASTS = {"text": ("text", "varchar"), "integer": ("smallint", "int", "bigint"), "uuid": ("uuid",)}
_INSIDE: dict[str, type | UnionType] = {
    "jsonb": exp.JSONExtract | exp.JSONExtractScalar,
    "json": exp.JSONExtractScalar,
}


def column(number: int, name: str, type_: str) -> exp.Column:
    """Return a column of a node; its type is empty if different texts count as equal."""
    made = exp.column(exp.to_identifier(name, quoted=True), table=exp.to_identifier(f"n{number}", quoted=True))
    made.meta["type"] = PLAIN_TYPES.get(type_, type_)
    return made


def numbers(expression: exp.Expr) -> set[int]:
    """Return the numbers of the nodes whose columns an expression contains."""
    return {int(part.table.removeprefix("n")) for part in expression.find_all(exp.Column)}


def is_steady(expression: exp.Expr) -> bool:
    """Whether an expression depends on its columns alone."""
    return all(isinstance(part, _STEADY) for part in expression.walk())


def is_strict(expression: exp.Expr) -> bool:
    """Whether a steady expression is null if a column of it is: ``||`` of texts is, that of arrays is not."""
    return all(type_of(part) == "text" for part in expression.find_all(exp.DPipe))


def is_carried(expression: exp.Expr) -> bool:
    """Whether an image contains the value of an expression.

    An image does not tell whether a jsonb is null or missing, nor the spelling of a json, but it does tell what is
    inside them.
    """
    return all(
        _is_inside(part, _INSIDE[type_])
        for part in expression.find_all(exp.Column)
        if (type_ := type_of(part)) in _INSIDE
    )


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
        if not all(type_of(part) for part in expression.find_all(exp.Column)):
            return ""
        return next((name for name, kinds in _CASTS.items() if expression.is_type(*kinds)), "")
    return "text" if expression.is_string else "integer" if expression.is_int else ""
