"""What a SELECT says of its columns: whether equal values are identical, and whether elements may come in any order."""

from __future__ import annotations

import pytest
import sqlglot
from sqlglot import exp

from syncer.lineage.scope import EXACT_TYPES, column, type_of
from syncer.lineage.unordered import unordered_columns

_NONE = frozenset[str]()


@pytest.mark.parametrize(
    ("value", "is_unordered"),
    [
        ("string_agg(y.v, ',')", True),
        ("jsonb_agg(y.v ORDER BY y.id)", False),
        ("jsonb_agg(DISTINCT y.v)", False),
        ("JSON_ARRAYAGG(y.v RETURNING json)", True),
        ("JSON_ARRAYAGG(y.v ORDER BY y.id RETURNING json)", False),
        ("ARRAY(SELECT z.v FROM public.a AS z)", True),
        ("ARRAY(SELECT z.v FROM public.a AS z ORDER BY z.v)", False),
        ("ARRAY[y.v, y.id]", False),
        ("(SELECT jsonb_agg(s.v) FROM (SELECT z.v FROM public.a AS z ORDER BY z.v) AS s)", False),
        ("(SELECT jsonb_agg(s.v) FROM (SELECT z.v FROM public.a AS z ORDER BY z.v) AS s JOIN b ON b.v = s.v)", True),
        ("jsonb_object_agg(y.id, y.v)", False),
        ("any_value(y.v)", True),
        ("any_value(y.v ORDER BY y.id)", False),
        ("count(*)", False),
    ],
)
def test_an_aggregate_without_an_order_is_found(value: str, *, is_unordered: bool) -> None:
    """In the order of a subquery, rows stay as they are; the keys of an object have none."""
    select = f"SELECT y.id AS _id, {value} AS f FROM public.a AS y GROUP BY y.id"
    assert unordered_columns(_NONE, select)[0] == ({"f"} if is_unordered else set())


def test_a_column_of_a_view_is_followed() -> None:
    """Through another view that renames it."""
    inner = "SELECT y.r AS id, string_agg(y.v, ',') AS names FROM public.a AS y GROUP BY y.r"
    outer = "SELECT i.id, i.names AS list FROM public.v1 AS i"
    select = "SELECT o.id AS _id, o.list AS f, o.id AS g FROM public.v2 AS o"
    assert unordered_columns(_NONE, select, inner, outer)[0] == {"f"}


@pytest.mark.parametrize(
    ("select", "fields"),
    [
        ("SELECT jsonb_agg(c.x ORDER BY c.y) AS a, array_agg(DISTINCT c.x) AS b FROM c", set()),
        ("SELECT coalesce(jsonb_agg(c.x), '[]') AS a, string_agg(c.x, ',') AS b, max(c.x) AS m FROM c", {"a", "b"}),
        ("SELECT (SELECT json_agg(c.x) FROM c) AS a, l.b FROM (SELECT array_agg(c.x) AS b FROM c) l", {"a", "b"}),
        ("WITH t AS (SELECT array_agg(x.v) AS v FROM x) SELECT t.v FROM p, t UNION ALL SELECT q.v FROM q", {"v"}),
        ("WITH RECURSIVE t AS (SELECT x.v FROM x UNION ALL SELECT t.v FROM t) SELECT t.v FROM t", set()),
    ],
)  # fmt: skip
def test_fields_in_any_order_follow_from_the_select(select: str, fields: set[str]) -> None:
    """An aggregate without ORDER BY or DISTINCT, also in a subquery, a CTE or a UNION."""
    assert unordered_columns(_NONE, select)[0] == fields


@pytest.mark.parametrize(
    ("select", "fields"),
    [
        ("SELECT sum(c.score) AS a, avg(c.score * 2) AS b, max(c.score) AS m, sum(c.n) AS n FROM c", {"a", "b"}),
        ("SELECT round(stddev(c.score)) AS a, sum(c.score::numeric) AS b, avg(c.n::float8) AS d FROM c", {"a", "d"}),
        ("SELECT sum(c.score ORDER BY c.id) AS a, corr(c.n, c.score) AS b, count(c.score) AS m FROM c", {"b"}),
        ("SELECT jsonb_build_object('s', s.x) AS a, s.n AS b FROM (SELECT sum(c.score) AS x, c.n FROM c) s", {"a"}),
        ("SELECT sum(s.h) AS a, sum(s.i) AS b FROM (SELECT c.score / 2 AS h, c.score::int AS i FROM c) s", {"a"}),
    ],
)
def test_a_sum_of_floating_point_numbers_is_rounded(select: str, fields: set[str]) -> None:
    """Its last digits depend on the order of its rows, unless it has one; a cast to another type is exact."""
    assert unordered_columns(frozenset({"score"}), select)[1] == fields


def test_a_cast_makes_a_sum_rounded_where_no_column_is_a_floating_point_number() -> None:
    """Also in a view that the SELECT reads."""
    views = ("SELECT c.n::real AS x FROM c", "SELECT c.n::double precision AS x FROM c")
    assert [unordered_columns(_NONE, "SELECT sum(v.x) AS a FROM v", view)[1] for view in views] == [{"a"}] * 2


# No server that tests run on has such a collation

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


@pytest.mark.parametrize(
    ("select", "fields"),
    [
        ("SELECT p.id AS _id, (SELECT c.x FROM c WHERE c.p = p.id LIMIT 1) AS a FROM p", {"a"}),
        ("SELECT p.id AS _id, (SELECT c.x FROM c WHERE c.p = p.id ORDER BY c.id LIMIT 1) AS a FROM p", set()),
        ("SELECT p.id AS _id, l.x AS a FROM p, LATERAL (SELECT c.x FROM c WHERE c.p = p.id OFFSET 2) l", {"a"}),
        ("SELECT DISTINCT ON (c.p) c.p AS _id, c.x AS a FROM c ORDER BY c.p", {"a"}),
        ("SELECT DISTINCT ON (c.p) c.p AS _id, c.x AS a FROM c ORDER BY c.p, c.id", set()),
        (
            "SELECT c.id AS _id, row_number() OVER (PARTITION BY c.p) AS a, rank() OVER (ORDER BY c.x) AS b FROM c",
            {"a"},
        ),
        ("SELECT p.id AS _id, EXISTS (SELECT 1 FROM c WHERE c.p = p.id LIMIT 1) AS a FROM p", set()),
        ("SELECT p.id AS _id, (SELECT max(c.x) FROM c WHERE c.p = p.id LIMIT 1) AS a FROM p", set()),
        ("SELECT p.id AS _id, (SELECT s.x FROM (SELECT c.x FROM c ORDER BY c.id) AS s LIMIT 1) AS a FROM p", set()),
    ],
)
def test_a_field_that_shows_any_row_of_several_is_found(select: str, fields: set[str]) -> None:
    """An UPDATE of a column that no document reads can move rows: without ORDER BY, another one comes first."""
    assert unordered_columns(_NONE, select)[2] == fields
