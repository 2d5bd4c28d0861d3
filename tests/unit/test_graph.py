"""What the types of columns say of an expression; none of the servers that tests run on has such a collation."""

from __future__ import annotations

import pytest
import sqlglot

from syncer.lineage.graph import EXACT_TYPES, Node, type_of

TABLE = ("public", "posts")
TYPES = {TABLE: {"word": "text", "alike": "", "number": "numeric"}}
"""As `syncer.lineage.routes` has them: empty where different texts count as equal."""
NODES = [Node(number=0, table=TABLE, context=())]


@pytest.mark.parametrize(
    ("expression", "is_exact"),
    [
        ("n0.word::text", True),
        ("n0.number::text", True),
        ("n0.alike", False),
        ("n0.alike::text", False),
        ("lower(n0.alike::text)", False),
        ("'a'::text || n0.alike::text", False),
    ],
)
def test_a_cast_keeps_the_collation(expression: str, *, is_exact: bool) -> None:
    """Texts that a collation holds to be equal, and that a group makes one, are not identical for having been cast."""
    tree = sqlglot.parse_one(expression, read="postgres")
    assert (type_of(tree, NODES, TYPES) in EXACT_TYPES) is is_exact
