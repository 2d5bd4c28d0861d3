"""What the types of columns say of an expression; none of the servers that tests run on has such a collation."""

from __future__ import annotations

import pytest
import sqlglot
from sqlglot import exp

from syncer.lineage.scope import EXACT_TYPES, column, type_of

COLUMNS = {"word": "text", "alike": "", "number": "numeric"}
"""The type is empty where different texts count as equal."""


@pytest.mark.parametrize(
    ("expression", "is_exact"),
    [
        ("word::text", True),
        ("number::text", True),
        ("alike", False),
        ("alike::text", False),
        ("lower(alike::text)", False),
        ("'a'::text || alike::text", False),
    ],
)
def test_a_cast_keeps_the_collation(expression: str, *, is_exact: bool) -> None:
    """Texts that a collation holds to be equal, and that a group makes one, are not identical for having been cast."""
    tree = sqlglot.parse_one(expression, read="postgres")
    tree = tree.transform(
        lambda node: column(0, node.name, COLUMNS[node.name]) if isinstance(node, exp.Column) else node
    )
    assert (type_of(tree) in EXACT_TYPES) is is_exact
