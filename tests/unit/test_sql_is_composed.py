"""No statement is put together by hand: whoever reads the program finds values and identifiers composed by psycopg."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import REPOSITORY

MODULES = sorted((REPOSITORY / "syncer").rglob("*.py"))
STATEMENTS = frozenset({"execute", "executemany", "copy", "value", "copied", "SQL"})
"""What takes a statement, or a part of one, as its argument."""
SQL = re.compile(r"\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|TRUNCATE|CREATE|ALTER|DROP|GRANT|LOCK TABLE|SET LOCAL)\b")


FOR_A_REASON = {
    "f'({one.replace(_ROWS, rows)})'": "an affected query as Postgres has deparsed it",
    "f'DELETE FROM {table}'": "the demo's own tables",
    "f'WITH affected AS (\\n{query}": "affects/<table>.sql, which somebody writes as SQL",
    "f'SELECT pg_terminate_backend({pid});'": "a fix, for a person; a number of Postgres'",
    "f'SELECT pg_drop_replication_slot({name});'": "a fix, for a person; quoted by Postgres",
    "f'${number + ": "the number of a parameter",
    "f\"SET LOCAL lock_timeout = '{COMPONENT_LOCK_SECONDS": "a number of ours",
    "f'PREPARE {name}": "a name of ours, and what psycopg composes after it",
    "f'DEALLOCATE {plan.name}": "a name of ours",
    "f'SET TRANSACTION READ WRITE; {assign_version()}": "constants of a module",
    "f\"SELECT said::text AS said FROM ({query.replace('$1'": "a constant of ours, with a literal in it",
    "_PREFIX + query + '\\n'": "select.sql, which somebody writes as SQL",
    "f\"SELECT ({id_.sql(dialect='postgres')})": "a route, of expressions that Postgres has deparsed",
    "f\"SELECT {expression.sql(dialect='postgres')} LIMIT 0": "an expression that Postgres has deparsed",
    "'EXPLAIN ' + query": "a route, as above",
}
"""The beginning of each statement that is put together all the same, and why that is right."""


def is_constant(part: ast.expr) -> bool:
    """Whether it is a constant of a module, or an enum's member, which no input reaches; or put together of such."""
    match part:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.isupper()
        case ast.FormattedValue(value=value):
            return is_constant(value)
        case ast.JoinedStr(values=parts):
            return all(map(is_constant, parts))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return is_constant(left) and is_constant(right)
        case ast.Call(func=ast.Attribute(value=value, attr="format"), keywords=keywords, args=arguments):
            return all(map(is_constant, (value, *arguments, *(one.value for one in keywords))))
    return isinstance(part, ast.Constant)


def put_together(tree: ast.AST) -> Iterator[ast.expr]:
    """Statements that are made of anything but constants: by an f-string, by % or by +, or by str.format."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(one.value) for one in node.values if isinstance(one, ast.Constant))
            if SQL.search(text) and re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE|TRUNCATE|SET|WITH|LOCK|DROP)\b", text):
                yield node
        elif isinstance(node, ast.Call) and node.args:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            said = node.args[1] if name in ("value", "copied") and len(node.args) > 1 else node.args[0]
            if name in STATEMENTS and isinstance(said, ast.JoinedStr | ast.BinOp):
                yield said


def is_of_sql(node: ast.expr) -> bool:
    """Whether both sides of a + are composed by psycopg."""
    return isinstance(node, ast.BinOp) and "sql." in ast.unparse(node)


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_a_statement_is_a_constant_or_composed(module: Path) -> None:
    """What becomes SQL is a constant, of constants, or of psycopg's identifiers and literals."""
    found = [one for one in put_together(ast.parse(module.read_text())) if not is_constant(one) and not is_of_sql(one)]
    unknown = [one for one in found if not ast.unparse(one).startswith(tuple(FOR_A_REASON))]
    assert [f"line {one.lineno}: {ast.unparse(one)}" for one in unknown] == []


def test_what_is_put_together_by_hand_is_found() -> None:
    """The test above sees each way to do it."""
    for wrong in (
        'c.execute(f"SELECT {x}")',
        'c.execute("SELECT " + x)',
        'c.execute("SELECT %s" % x)',
        'sql.SQL(f"{x}")',
        'q = f"DELETE FROM {table}"',
        'postgres.value(connection, f"SELECT {x}")',
    ):
        assert [one for one in put_together(ast.parse(wrong)) if not is_constant(one)], wrong
    for right in ('c.execute(f"SELECT {LIMIT}")', "c.execute(_A + _B)", 'c.execute(f"SELECT {Lock.RELAY:d}")'):
        assert not [one for one in put_together(ast.parse(right)) if not is_constant(one)], right
