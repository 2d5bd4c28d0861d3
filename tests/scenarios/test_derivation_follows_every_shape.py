"""Each shape of SELECT is derived rightly, or refused with the place and the way out.

DERIVED and REFUSED are the table of cases. What is derived is held against the plain SELECT over random transactions:
see `tests.support.derivation`. Many cases are traps, for which a plausible rule is wrong.
"""

from __future__ import annotations

import re
from random import Random

import pytest

from syncer.base.errors import DefinitionError
from tests.support.derivation import Judge
from tests.support.random_tables import cleaning_up, transactions

ROUNDS = 4


def hold(judge: Judge, *, rounds: int = ROUNDS) -> None:
    """Hold what is active against the plain SELECT."""
    random = Random(1)
    for emptied in cleaning_up(judge.tables):
        with judge.undone():
            judge.require_nothing_missed(emptied, random)
    for _ in range(rounds):
        with judge.undone():
            judge.require_nothing_missed(transactions(random, judge.tables), random)


def shapes_of(text: str) -> dict[str, str]:
    """The SELECTs of a table, by their names; a line that is indented goes on."""
    rows = re.findall(r"^([^\s:][^:\n]*): (.*(?:\n    .*)*)", text, re.MULTILINE)
    return {name: re.sub(r"\n +", " ", select) for name, select in rows}


DERIVED = shapes_of(r"""
cross join and WHERE: SELECT x.id AS _id, y.v FROM r x CROSS JOIN a y WHERE y.r_id = x.id
using twice: SELECT id AS _id, y.v, z.v AS w FROM r LEFT JOIN (SELECT r_id AS id, v FROM a) y USING (id) LEFT JOIN
    (SELECT r_id AS id, v FROM b) z USING (id)
not exists: SELECT x.id AS _id FROM r x WHERE NOT EXISTS (SELECT FROM a y WHERE y.r_id = x.id)
any: SELECT x.id AS _id FROM r x WHERE x.id = ANY (SELECT y.r_id FROM a y)
in its array: SELECT y.id AS _id, (SELECT sum(x.v) FROM r x WHERE x.id = ANY (y.ids)) AS f FROM t y
in the arrays of others: SELECT x.id AS _id, (SELECT max(y.word) FROM t y WHERE x.k = ANY (y.ids)) AS f FROM r x
in an array, outer join: SELECT x.id AS _id, y.word FROM t y LEFT JOIN r x ON x.id::bigint = ANY (y.ids)
in an array of texts, one condition: SELECT z.id AS _id, (SELECT jsonb_agg(y.id ORDER BY y.id) FROM t y WHERE z.word =
    ANY (y.tags::varchar[]) AND y.n > 1) AS f FROM t z
in an array, in a view's place: SELECT x.id AS _id, s.n FROM r x JOIN (SELECT y.ids AS c, y.n FROM t y) s ON x.id = ANY
    (s.c)
cte of a cte: WITH w (c, d) AS (SELECT y.r_id, y.v FROM a y), u AS (SELECT w.d, w.c FROM w) SELECT x.id AS _id, u.d
    FROM r x JOIN u ON u.c = x.id
cte that looks out: SELECT x.id AS _id, (WITH w AS (SELECT y.id FROM a y WHERE y.r_id = x.id) SELECT count(*) FROM b z
    JOIN w ON w.id = z.a_id) AS f FROM r x
whole rows: SELECT x.id AS _id, (SELECT jsonb_agg(y ORDER BY y.id) FROM a y WHERE y.r_id = x.id) AS f FROM r x
distinct on: SELECT x.id AS _id, s.v FROM r x LEFT JOIN (SELECT DISTINCT ON (y.r_id) y.r_id, y.v FROM a y ORDER BY
    y.r_id, y.v) s ON s.r_id = x.id
function in FROM: SELECT x.id AS _id, u.u FROM r x CROSS JOIN LATERAL twice(x.k) AS u (u)
values: SELECT x.id AS _id, y.name FROM r x LEFT JOIN (VALUES (1, 'one'), (2, 'two')) y (id, name) ON y.id = x.k
filter and within group: SELECT x.id AS _id, (SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY y.v) FILTER (WHERE y.k
    > 0) FROM a y WHERE y.r_id = x.id) AS f FROM r x
row comparison: SELECT x.id AS _id, y.v FROM r x JOIN a y ON ROW(y.r_id, y.k) = ROW(x.id, x.k)
equal truths: SELECT x.id AS _id, y.v FROM r x JOIN a y ON y.r_id = x.id AND (y.k = 1) = (x.k = 1)
only: SELECT x.id AS _id, y.v FROM ONLY r x JOIN ONLY a y ON y.r_id = x.id
aliases like ours: SELECT x.id AS _id, n1.v, n0.k FROM r x JOIN a n1 ON n1.r_id = x.id JOIN a n0 ON n0.r_id = n1.id
operators: SELECT x.id AS _id, y.data #>> '{a,b}' AS f, y.data @> '{}' AS g, y.data ? 'r' AS h, y.data @? '$.r' AS i,
    y.tags[1:2] AS j, y.tags && ARRAY['x'] AS k, y.n BETWEEN SYMMETRIC 1 AND 2 AS l, y.word ~~* 'x' AS m, y.moment AT
    TIME ZONE 'UTC' AS n, substring(y.word FROM 1 FOR 2) AS o FROM r x JOIN t y ON y.r_id = x.id
fields of rows: SELECT x.id AS _id, (y).v AS f, y IS NULL AS g, (SELECT (z).v FROM a z WHERE z.id = y.id) AS h FROM r x
    LEFT JOIN a y ON y.r_id = x.id
kinds of CTE: WITH RECURSIVE w AS MATERIALIZED (SELECT r_id FROM a), u AS NOT MATERIALIZED (SELECT * FROM w) SELECT
    x.id AS _id, (SELECT count(*) FROM u WHERE u.r_id = x.id) AS n FROM r x
set operations nested: ((SELECT x.id AS _id FROM r x EXCEPT (SELECT y.id FROM a y INTERSECT SELECT z.a_id FROM l z))
    ORDER BY 1)
literals: SELECT x.id AS _id, U&'d\0061t' AS f, E'a\'b' AS g, $$it's$$ AS h, B'101' AS i FROM r x
IN under a left join's ON: SELECT x.id AS _id, y.v FROM r x JOIN a w ON w.v = x.v LEFT JOIN a y ON w.id IN (SELECT
    z.a_id FROM l z WHERE z.r_id = x.id) AND y.id = w.k
a call that the parser does not know: SELECT x.id AS _id, s.f FROM r x LEFT JOIN (SELECT y.r_id, JSON_ARRAY(y.k, y.v
    NULL ON NULL) AS f FROM t z JOIN a y ON y.id = z.id) s ON s.r_id = x.id
a table from json: SELECT x.id AS _id, j.n, y.word FROM r x JOIN t y ON y.r_id = x.id CROSS JOIN LATERAL
    JSON_TABLE(y.data, '$' COLUMNS (n int PATH '$.r')) j
inside a jsonb, as a number: SELECT x.id AS _id, y.word FROM r x JOIN t y ON (y.data ->> 'r')::int = x.id
inside a jsonb, itself a number: SELECT x.id AS _id, y.word FROM r x LEFT JOIN t y ON (y.data -> 'r')::bigint = x.id
elements numbered, in parentheses: SELECT y.id AS _id, (SELECT jsonb_agg(u.tag || z.v ORDER BY u.place, z.id) FROM
    unnest(y.tags) WITH ORDINALITY AS u (tag, place) JOIN a z ON z.r_id = y.id) AS f FROM t y
a branch with NULL, on which it is joined: SELECT x.id AS _id, s.c, w.v FROM r x JOIN (SELECT y.r_id AS c, y.k AS d
    FROM a y UNION ALL SELECT z.r_id, NULL FROM l z) s ON s.c = x.id LEFT JOIN b w ON w.a_id = s.d
a branch with a constant, on which it is joined: SELECT x.id AS _id, s.c, w.v FROM r x JOIN (SELECT y.r_id AS c, y.k AS
    d FROM a y UNION ALL SELECT z.r_id, 2 FROM l z WHERE z.v > 0) s ON s.c = x.id LEFT JOIN b w ON w.a_id = s.d
two branches with constants: SELECT x.id AS _id, s.c, w.v FROM r x JOIN (SELECT y.r_id AS c, 1 AS d FROM a y UNION ALL
    SELECT z.r_id, 2 FROM l z UNION SELECT u.r_id, NULL FROM l u) s ON s.c = x.id JOIN b w ON w.a_id = s.d
a constant of an outer join: SELECT x.id AS _id, s.c, w.v FROM r x LEFT JOIN (SELECT y.r_id AS c, y.k AS d FROM a y
    UNION ALL SELECT z.r_id, (-1) FROM l z) s ON s.c = x.id LEFT JOIN b w ON w.v = s.d
branches speak for one another: SELECT x.id AS _id, s.v FROM a y JOIN (SELECT w.r_id AS c, w.k AS d, w.v FROM a w UNION
    ALL SELECT z.r_id, z.a_id, z.v FROM l z) s ON s.d = y.id JOIN r x ON x.id = s.c
a subquery on a column of a branch: SELECT s.c AS _id, max((SELECT max(w.v) FROM b w WHERE w.a_id = s.d)) AS f FROM
    (SELECT y.r_id AS c, y.k AS d FROM a y UNION ALL SELECT z.r_id, NULL FROM l z) s GROUP BY s.c
outer joins up to the one that provides _id: SELECT z.id AS _id, min(x.v) AS f, count(*) AS n FROM r x LEFT JOIN l y ON
    y.r_id = x.id LEFT JOIN a z ON y.a_id = z.id JOIN b w ON w.a_id = z.id GROUP BY z.id
outer joins whose side is needed by another's: SELECT z.id AS _id, x.v FROM (r x LEFT JOIN l y ON y.r_id = x.id) LEFT
    JOIN a z ON z.id = y.a_id AND z.k = x.k
beyond the parser, rows from: SELECT x.id AS _id, u.u FROM r x, ROWS FROM (generate_series(1, 2), twice(x.k)) AS u (u,
    w)
left join whose nullable side provides _id: SELECT 'a-' || y.id AS _id, x.v FROM r x LEFT JOIN a y ON y.r_id = x.id
left join in a view, whose nullable side provides _id: SELECT k.d AS _id, k.c FROM kept k
full join, of its left side: SELECT x.id AS _id, y.v FROM r x FULL JOIN a y ON y.r_id = x.id
a key of another type: SELECT x.n AS _id, y.v FROM r x JOIN b y ON y.n = x.n
columns swapped by an alias: SELECT x.id AS _id, s.r_id FROM r x JOIN (SELECT y.r_id, y.v FROM a y) s (v, r_id) ON s.v
    = x.id
""") | {
    "parentheses": (
        f"SELECT x.id AS _id, {'(' * 60}y.v{')' * 60} AS f FROM (r x JOIN (a y JOIN l z ON "
        f"(((z.a_id) = (y.id)))) ON (y.r_id) = ((x.id)))"
    ),
    "deep nesting": (
        f"SELECT x.id AS _id, q.c FROM r x JOIN {'(SELECT q.c FROM ' * 30}(SELECT r_id AS c FROM a) q {') q ' * 30}"
        "ON q.c = x.id"
    ),
}


CAME_WITH = {
    "a call that the parser does not know": 16,
    "a subquery inside a call that the parser does not know": 16,
    "a table from json": 17,
}
"""The version of Postgres that is the first to run it."""


def require_version(judge: Judge, case: str) -> None:
    """Skip a case that this version does not run."""
    if judge.connection.info.server_version < 10_000 * CAME_WITH.get(case, 0):
        pytest.skip(f"came with Postgres {CAME_WITH[case]}")


@pytest.mark.parametrize("case", DERIVED)
def test_a_shape_is_derived_and_right(judge: Judge, case: str) -> None:
    """Nothing is asked of the author of such a SELECT, and no document is missed."""
    require_version(judge, case)
    judge.derive(DERIVED[case])
    hold(judge)


REFUSED = shapes_of(r"""
what FULL JOIN USING merges, in a subquery: SELECT x.id AS _id, EXISTS (SELECT FROM a y FULL JOIN l z USING (v) WHERE v
    = y.k AND z.r_id = x.id) AS f FROM r x
operator in a schema: SELECT x.id AS _id, y.v FROM r x JOIN a y ON y.r_id OPERATOR("other.one".=) x.id
not distinct: SELECT x.id AS _id, y.v FROM r x JOIN a y ON y.r_id IS NOT DISTINCT FROM x.id
any of an array: SELECT x.id AS _id, y.v FROM r x JOIN a y ON y.r_id = ANY (ARRAY[x.id, x.k])
all: SELECT x.id AS _id, y.v FROM r x JOIN a y ON y.r_id = ALL (SELECT z.r_id FROM b z WHERE z.v = x.id)
case: SELECT x.id AS _id, y.v FROM r x JOIN a y ON CASE WHEN y.k = 1 THEN y.r_id ELSE y.v END = x.id
whole row as text: SELECT x.id AS _id, y.v FROM r x JOIN a y ON (y.*)::text = x.v::text
alias of a join: SELECT j.id AS _id, j.w FROM (r x JOIN (SELECT r_id, v AS w FROM a) q ON q.r_id = x.id) AS j
function's rows numbered: SELECT x.id AS _id, y.v FROM r x CROSS JOIN unnest(ARRAY[1, x.k]) WITH ORDINALITY u (u, o)
    JOIN a y ON y.r_id = u.u
search and cycle: WITH RECURSIVE w (c) AS (SELECT r_id FROM a UNION SELECT w.c + 1 FROM w WHERE w.c < 3) SEARCH DEPTH
    FIRST BY c SET o CYCLE c SET z USING p SELECT x.id AS _id, (SELECT count(*) FROM w WHERE w.c = x.id) AS n FROM r x
a subquery inside a call that the parser does not know: SELECT x.id AS _id, JSON_ARRAY((SELECT max(y.v) FROM a y WHERE
    y.r_id = x.id), x.v NULL ON NULL) AS f FROM r x
outer join in a subquery, beside the one that provides _id: SELECT z.id AS _id, (SELECT count(y.v) FROM r x LEFT JOIN a
    y ON y.r_id = x.id WHERE y.k = z.k) AS n FROM a z
a constant of an aggregate: SELECT x.id AS _id, w.v FROM r x JOIN (SELECT y.r_id AS c, y.k AS d FROM a y UNION ALL
    SELECT max(z.r_id), 2 FROM l z) s ON coalesce(s.c, 1) = x.id JOIN b w ON w.a_id = s.d
a constant of the first row: SELECT x.id AS _id, w.v FROM r x JOIN (SELECT y.r_id AS c, y.k AS d FROM a y UNION ALL
    (SELECT z.r_id, 2 FROM l z ORDER BY 1 LIMIT 1)) s ON s.c = x.id JOIN b w ON w.a_id = s.d
beyond the parser, alias of USING: SELECT u.id AS _id, q.w FROM r JOIN (SELECT r_id AS id, v AS w FROM a) q USING (id)
    AS u
id of a child, by its parent's key: SELECT x.id || '-' || y.id AS _id, x.v FROM r x JOIN a y ON y.r_id = x.id
limit of documents: SELECT x.id AS _id, x.v FROM r x ORDER BY x.v, x.id LIMIT 2
what a full join's ON does not reject: SELECT coalesce(x.id, y.id) AS _id, y.v FROM r x FULL JOIN (SELECT w.id, w.v
    FROM a w) y ON y.id = x.id
a full join beside a row that every row meets: SELECT x.id AS _id, z.v FROM a y JOIN r x ON true FULL JOIN b z ON y.id =
    z.a_id AND z.r_id = x.id
a branch hands an outer row on: SELECT x.id AS _id, (SELECT sum(y.v) FROM a y WHERE y.id = s.c) AS f FROM r x CROSS
    JOIN LATERAL (SELECT z.r_id AS c FROM l z WHERE z.a_id = x.id UNION ALL SELECT x.v) s
a left join with a function: SELECT x.id AS _id, y.v FROM r x CROSS JOIN a y LEFT JOIN generate_series(1, 1) u ON
    y.r_id = x.id
outer rows do not need the inner: SELECT x.id AS _id, EXISTS (SELECT FROM l z WHERE z.a_id = y.id AND z.r_id = x.id) AS
    f, y.v FROM a y CROSS JOIN r x
array and element under a left join: SELECT x.id AS _id, z.n FROM r x LEFT JOIN t y ON y.r_id = x.id JOIN t z ON
    length((y.word || '{x}'::text[])::text) - 7 = z.id
distinct of what is equal but not identical: SELECT DISTINCT x.n AS _id FROM r x
except of what is equal but not identical: SELECT x.n AS _id FROM r x EXCEPT ALL SELECT y.n FROM b y
branches of two types: SELECT x.id AS _id, s.c FROM t x JOIN (SELECT y.day AS c FROM t y UNION ALL SELECT '2020-01-03
    04:05'::timestamp) s ON s.c::text = x.word
USING after FULL JOIN USING: SELECT x.id AS _id, (SELECT sum(w.v) FROM (SELECT y.id FROM a y WHERE y.r_id = x.id) y
    FULL JOIN generate_series(0, 3) AS z (id) USING (id) JOIN (SELECT a_id AS id, v FROM b) w USING (id)) AS f FROM r x
a recursive CTE: WITH RECURSIVE w (c, d) AS (SELECT y.id, y.v FROM a y WHERE y.k IS NULL UNION ALL SELECT z.id, w.d +
    z.v FROM w JOIN a z ON z.k = w.c AND z.id > w.c) SELECT x.id AS _id, w.d FROM r x JOIN w ON w.c = x.id
""") | {"beyond the parser, very deep": f"SELECT x.id AS _id, {' + '.join(['x.v'] * 400)} AS f FROM r x"}


@pytest.mark.parametrize("case", REFUSED)
def test_a_shape_is_refused_with_the_way_out(judge: Judge, case: str) -> None:
    """No crash, and no path that is not one."""
    require_version(judge, case)
    with pytest.raises(DefinitionError, match="which documents does a change of") as refused:
        judge.derive(REFUSED[case])
    assert "affects/" in str(refused.value.hint)


NAMED = {
    "but is CONCAT_WS(": "SELECT concat_ws('-', x.id, x.v) AS _id FROM r x",
    "in y.id = u.u, u.u is not made of known columns": "SELECT x.id AS _id, y.v FROM r x CROSS JOIN LATERAL "
    "unnest(ARRAY[x.v, x.k]) AS u (u) JOIN a y ON y.id = u.u",
    "in COALESCE(y.r_id, y.k) = x.id, COALESCE(y.r_id, y.k) is not": "SELECT x.id AS _id, y.v FROM r x JOIN a y "
    "ON coalesce(y.r_id, y.k) = x.id",
    "LIMIT, OFFSET, DISTINCT ON or a window": "SELECT x.id AS _id, y.v FROM r x LEFT JOIN "
    "(SELECT a.id, a.v FROM a ORDER BY a.v LIMIT 3) y ON y.id = x.k",
    "the CTE w reads itself": "WITH RECURSIVE w AS (SELECT y.id FROM a y WHERE y.k IS NULL UNION ALL SELECT z.id "
    "FROM w JOIN a z ON z.k = w.id) SELECT x.id AS _id, w.id AS w FROM r x JOIN w ON w.id = x.id",
}


@pytest.mark.parametrize(("words", "select"), NAMED.items())
def test_what_stands_in_the_way_is_named(judge: Judge, words: str, select: str) -> None:
    """The call, the condition or the clause, in the reader's own words."""
    with pytest.raises(DefinitionError, match=re.escape(words)):
        judge.derive(select)


def test_a_recursive_query_is_proposed_for_a_recursive_one(judge: Judge) -> None:
    """Not one of equalities, which reaches one level only; once its places are filled in, it misses nothing."""
    tree, _ = ADDED["a tree of documents, by the table as it is now"]
    with pytest.raises(DefinitionError, match="reads itself") as refused:
        judge.derive(tree)
    head, _, foot = str(refused.value.hint).partition("ids of these documents:\n")[2].partition("%(rows)s has the old")
    assert foot
    for place in ("id", "id", "k", "id", "a", "id"):
        head = head.replace("…", place, 1)
    judge.derive(tree, {"a": head})
    hold(judge, rounds=5 * ROUNDS)


def test_an_element_is_looked_up_as_a_gin_index_answers(judge: Judge) -> None:
    """Of the array's own type, it is contained; of another one, it is compared with each element."""
    for element, is_contained in (("x.id", True), ("x.id::bigint", False), ("x.n", False)):
        dependencies = judge.derive(f"SELECT y.id AS _id, x.v FROM t y JOIN r x ON {element} = ANY (y.ids)")
        [query] = dependencies.tables["public.r"].affected
        assert ("@>" in query) is is_contained


def test_equal_uses_of_a_table_are_one_query(judge: Judge) -> None:
    """The same way leads from both, so it is asked once."""
    used = "(SELECT {}(z.v) FROM b z JOIN a y ON y.id = z.a_id WHERE y.r_id = x.id)"
    dependencies = judge.derive(f"SELECT x.id AS _id, {used.format('max')} AS f, {used.format('min')} AS g FROM r x")
    assert len(dependencies.tables["public.b"].affected) == 1
    hold(judge)


# Each with a change that touches documents, and one that touches none although rows have such keys.
NARROW = {
    "a row belongs to one of two tables, by its kind": (
        (
            "SELECT y.id AS _id, x.v, z.v AS w FROM m y LEFT JOIN r x ON y.kind = 'r' AND x.id = y.of_id "
            "LEFT JOIN a z ON y.kind = 'a' AND z.id = y.of_id"
        ),
        "UPDATE r SET v = 9 WHERE id = 1",
        "UPDATE r SET k = 9 WHERE id = 1",
    ),
    "counted by kind, one of a list": (
        "SELECT x.id AS _id, (SELECT count(*) FROM m y WHERE y.kind IN ('r', 'x') AND y.of_id = x.id) AS n FROM r x",
        "UPDATE m SET of_id = 3 WHERE kind = 'r' AND id = 2",
        "UPDATE m SET of_id = 3 WHERE kind = 'a'",
    ),
    "what is gone is left out, beside one of two kinds": (
        (
            "SELECT x.id AS _id, (SELECT jsonb_agg(z.v ORDER BY y.id) FROM m y JOIN a z ON z.id = y.v WHERE y.gone IS "
            "NULL AND (y.kind = 'a' OR y.kind = 'x') AND y.of_id = x.id) AS f FROM r x"
        ),
        "UPDATE m SET gone = NULL WHERE id = 1",
        "UPDATE m SET of_id = 3 WHERE gone IS NOT NULL; UPDATE a SET v = 9 WHERE id = 2",
    ),
    "two readings of a table, each with a column of its own": (
        "SELECT y.id AS _id, p.v, q.k FROM a y LEFT JOIN r p ON p.id = y.r_id LEFT JOIN r q ON q.id = y.v",
        "UPDATE r SET v = 9 WHERE id = 1",
        "UPDATE r SET n = 9",
    ),
    "grouped, of one kind and not gone": (
        (
            "SELECT x.id AS _id, s.d FROM r x LEFT JOIN (SELECT y.of_id AS c, max(y.v) AS d FROM m y "
            "WHERE y.gone IS NULL AND y.kind = 'r' GROUP BY y.of_id) s ON s.c = x.id"
        ),
        "UPDATE m SET gone = 1 WHERE id = 0",
        "UPDATE m SET v = 9 WHERE kind = 'a' OR gone IS NOT NULL",
    ),
}


@pytest.mark.parametrize("case", NARROW)
def test_a_change_names_no_document_that_it_does_not_touch(judge: Judge, case: str) -> None:
    """Constants decide whether a path applies, and each reading watches its own columns; and nothing is missed."""
    select, touches, idle = NARROW[case]
    judge.derive(select)
    for statement, is_idle in ((touches, False), (idle, True)):
        with judge.undone():
            earlier, changes, later = judge.contents(), judge.run(statement.split("; ")), judge.contents()
            differing = {id_ for id_ in earlier.keys() | later.keys() if earlier.get(id_) != later.get(id_)}
            assert judge.named(changes) == differing
            assert bool(differing) != is_idle
    hold(judge, rounds=5 * ROUNDS)


ADDED = {
    "a tree of documents, by the table as it is now": (
        (
            "SELECT x.id AS _id, (WITH RECURSIVE up AS (SELECT y.id, y.k, y.v FROM a y WHERE y.id = x.id UNION "
            "SELECT z.id, z.k, z.v FROM a z JOIN up ON z.id = up.k) SELECT sum(up.v) FROM up) AS f FROM a x"
        ),
        {
            "a": "WITH RECURSIVE below AS (SELECT changed.id FROM %(rows)s AS changed UNION "
            "SELECT z.id FROM a z JOIN below ON z.k = below.id) SELECT z.id AS _id FROM a z JOIN below USING (id)"
        },
    ),
    "a table of which one use follows from the SELECT": (
        (
            "SELECT x.id AS _id, y.v, (SELECT count(*) FROM a z WHERE z.k IS NOT DISTINCT FROM x.k) AS n "
            "FROM r x LEFT JOIN a y ON y.r_id = x.id"
        ),
        {"a": "SELECT x.id AS _id FROM r x JOIN %(rows)s AS changed ON x.k IS NOT DISTINCT FROM changed.k"},
    ),
    "a link table that is a document, and read once more": (
        "SELECT x.r_id || '-' || x.a_id AS _id, (SELECT sum(y.v) FROM l y WHERE y.a_id >= x.a_id) AS f FROM l x",
        {"l": "SELECT x.r_id || '-' || x.a_id AS _id FROM l x JOIN %(rows)s AS changed ON changed.a_id >= x.a_id"},
    ),
    "a rank among all documents": (
        "SELECT x.id AS _id, rank() OVER (ORDER BY x.v DESC) AS n FROM r x",
        {"r": "SELECT x.id AS _id FROM r x WHERE EXISTS (SELECT FROM %(rows)s AS changed)"},
    ),
    "the first documents": (
        "SELECT x.id AS _id, x.v FROM r x ORDER BY x.v, x.id LIMIT 2",
        {"r": "SELECT x.id AS _id FROM r x WHERE EXISTS (SELECT FROM %(rows)s AS changed)"},
    ),
    "the first of each kind": (
        "SELECT DISTINCT ON (x.r_id) x.id AS _id, x.v FROM a x ORDER BY x.r_id, x.v, x.id",
        {"a": "SELECT x.id AS _id FROM a x JOIN %(rows)s AS changed ON changed.r_id IS NOT DISTINCT FROM x.r_id"},
    ),
    "numbered in a CTE, and joined": (
        (
            "WITH w AS (SELECT y.id, y.r_id, row_number() OVER (PARTITION BY y.r_id ORDER BY y.v, y.id) AS n FROM a y) "
            "SELECT w.id AS _id, x.v FROM w LEFT JOIN r x ON x.id = w.r_id WHERE w.n = 1"
        ),
        {
            "a": "SELECT x.id AS _id FROM a x JOIN %(rows)s AS changed ON changed.r_id IS NOT DISTINCT FROM x.r_id",
            "r": "SELECT x.id AS _id FROM a x JOIN %(rows)s AS changed ON changed.id = x.r_id",
        },
    ),
}


@pytest.mark.parametrize("case", ADDED)
def test_an_affects_query_adds_to_what_is_derived(judge: Judge, case: str) -> None:
    """Rows that are deleted, or get another id, are found although the query reads the table without them."""
    select, affects = ADDED[case]
    with pytest.raises(DefinitionError, match="which documents does a change of") as refused:
        judge.derive(select)
    assert "adds to what follows from the" in str(refused.value.hint)
    judge.derive(select, affects)
    hold(judge, rounds=5 * ROUNDS)


def test_a_column_of_names_that_is_joined_and_not_read_is_not_refused(judge: Judge) -> None:
    """A join lists all columns of its tables; they are read only with the row of a join."""
    with judge.undone():
        judge.write("CREATE TABLE named (id int PRIMARY KEY, r_id int, what regclass, how regconfig[])")
        count = "SELECT count(y.id) FROM named y LEFT JOIN a USING (id) WHERE y.r_id = x.id"
        for value, joined in (("y.r_id", "JOIN named y USING (id)"), ("y.id", "LEFT JOIN named y ON y.id = x.id")):
            judge.derive(f"SELECT x.id AS _id, {value} AS f, ({count}) AS n FROM r x {joined}")
        for row, alias in (("to_jsonb(j)", "AS j"), ("y.what::text", ""), ("to_jsonb(y)", "")):
            with pytest.raises(DefinitionError, match="a value of type regclass"):
                judge.derive(f"SELECT 1 AS _id, {row} AS f FROM (named y JOIN r x USING (id)) {alias}")


@pytest.mark.parametrize("row", ["to_jsonb(j)", "j::text", "(SELECT md5(j::text) WHERE j IS NOT NULL)"])
def test_the_row_of_a_join_is_made_of_every_column_of_its_tables(judge: Judge, row: str) -> None:
    """The catalogue records no column for it. Of a table beside that join, only what is read is watched."""
    select = f"SELECT j.id AS _id, {row} AS f FROM (r x JOIN a y USING (id)) AS j JOIN b z ON z.r_id = j.id"
    affects = dict.fromkeys("ra", "SELECT changed.id AS _id FROM %(rows)s AS changed")
    dependencies = judge.derive(select, affects | {"b": affects["a"].replace(".id", ".r_id")})
    assert dependencies.tables["public.a"].watched == {"id", "r_id", "k", "v"}
    assert dependencies.tables["public.b"].watched == {"r_id"}
    hold(judge)


@pytest.mark.parametrize("row", ["jsonb_agg(j ORDER BY j.id)", "max(j::text)", "count(DISTINCT j)"])
def test_a_query_that_postgres_prints_wrongly_is_refused_with_what_to_write(judge: Judge, row: str) -> None:
    """Postgres 18 names tables that an alias of their join hides; what the hint shows is printed rightly."""
    if judge.connection.info.server_version < 180_000:
        pytest.skip("older versions print it rightly")
    select = (
        "SELECT x.id AS _id, {} AS f FROM r x JOIN (a y JOIN b z ON z.r_id = y.r_id) AS j (id, ref) ON j.ref = x.id"
    )
    affects = dict.fromkeys("rab", "SELECT 1 AS _id FROM %(rows)s AS changed")
    with pytest.raises(DefinitionError, match=r"printed by Postgres as a query .* entry for table \"y\"") as refused:
        judge.derive(f"{select} GROUP BY x.id".format(row), affects)
    advised = re.search(r"as in (\S+\(.*\))\.$", refused.value.hint)
    assert advised
    judge.derive(f"{select} GROUP BY x.id".format(advised[1]), affects)


def test_what_is_beyond_the_parser_goes_by_affects_alone(judge: Judge) -> None:
    """With an affects query for each table the parser is not asked, and every column is watched."""
    select = "SELECT u.id AS _id, q.w FROM r JOIN (SELECT r_id AS id, v AS w FROM a) q USING (id) AS u"
    affects = {
        "r": "SELECT changed.id AS _id FROM %(rows)s AS changed",
        "a": "SELECT changed.r_id AS _id FROM %(rows)s AS changed",
    }
    dependencies = judge.derive(select, affects)
    assert dependencies.tables["public.a"].watched == {"id", "r_id", "k", "v"}
    hold(judge)


FICKLE = [
    "now()", "CURRENT_DATE", "LOCALTIME", "clock_timestamp()", "age(y.moment)", "(SELECT max(now()) FROM a)",
    "random()", "gen_random_uuid()", "CURRENT_USER", "USER", "CURRENT_SCHEMA", 'pg_catalog."session_user"()',
    "current_setting('TimeZone', true)", "pg_backend_pid()", "version()", "has_table_privilege('r', 'select')",
    "to_regclass('r')::text", "pg_relation_size('r')", "table_to_xml('r', true, true, '')::text", "lastval()",
    "y.moment::time AT TIME ZONE 'Europe/Rome'", "timezone(y.word, timetz '12:00+02')", "mxid_age('5'::xid)",
    "(SELECT jsonb_agg('12:00'::time AT TIME ZONE 'Asia/Amman') FROM a)",
    "('r'::regclass)::text", "(x.id::oid)::regtype", "pg_typeof(x.id)::text", "format_type(x.id::oid, NULL)",
    "ARRAY[x.id::oid::regrole]::text[]", "row_to_json(ROW(x.id::oid::regnamespace))::text", "'simple'::regconfig",
    "x.ctid::text", "x.xmin::text", "x.tableoid", "(SELECT count(*) FROM a TABLESAMPLE SYSTEM (10))",
]  # fmt: skip
# Postgres makes such a word the day on which the SELECT is read, and that of the apply says nothing.
DAYS = [
    "y.day >= 'today'",
    "y.moment < timestamp 'now'",
    "y.day = ' Tomorrow '::date",
    "date_in(textout(y.word)) = y.day",
]


@pytest.mark.parametrize("value", FICKLE + DAYS)
def test_an_answer_that_changes_without_a_commit_is_refused(judge: Judge, value: str) -> None:
    """A clock, a dice, the session, the catalogue, where a row is stored: directly, and inside a view."""
    select = f"SELECT x.id AS _id, {value} AS f FROM r x CROSS JOIN t y"
    with pytest.raises(DefinitionError, match="changes without a commit"):
        judge.derive(select)
    if value not in DAYS:
        with judge.undone():
            judge.write(f"CREATE VIEW fickle AS {select}; CREATE VIEW above AS SELECT fickle._id FROM fickle")
            with pytest.raises(DefinitionError, match="changes without a commit"):
                judge.derive("SELECT z._id FROM above z")


READS = "CREATE FUNCTION reads(int, int) RETURNS int LANGUAGE sql STABLE AS 'SELECT count(*)::int + $1 FROM a'"
UNREAD = {  # what is made, and a value that reads more than its dependencies name
    "operator": ("CREATE OPERATOR === (FUNCTION = reads, LEFTARG = int, RIGHTARG = int)", "x.k === 1"),
    "aggregate": ("CREATE AGGREGATE counts(int) (SFUNC = reads, STYPE = int, INITCOND = 0)", "counts(x.k)"),
    "a clock that is called stable": (
        "CREATE FUNCTION sysdate() RETURNS timestamptz LANGUAGE internal STABLE AS 'now'", "sysdate()"
    ),
    "a setting that is called stable": (
        "CREATE FUNCTION setting(text) RETURNS text LANGUAGE internal STABLE AS 'show_config_by_name'", "setting('jit')"
    ),
    "extension": (
        "CREATE FUNCTION crosstab(text) RETURNS text LANGUAGE internal STABLE AS 'upper'", "crosstab('SELECT v FROM a')"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("made", "value"), UNREAD.values(), ids=UNREAD.keys())
def test_a_function_that_reads_is_found_behind_what_calls_it(judge: Judge, made: str, value: str) -> None:
    """The dependencies of an operator or an aggregate do not name its functions; a query may be an argument."""
    with judge.undone():
        judge.write(
            f"{READS}; {made}; CREATE VIEW asks AS SELECT x.id AS _id, {value} AS f FROM r x GROUP BY x.id, x.k"
        )
        with pytest.raises(DefinitionError, match=r"calls public\.\w+, and syncer cannot determine"):
            judge.derive("SELECT z._id, z.f FROM asks z")


LINKED = """
CREATE TABLE post (id {id_type} PRIMARY KEY);
CREATE TABLE comment (id int PRIMARY KEY, post_id {type});
CREATE TABLE mark (id int PRIMARY KEY, comment_id int);
INSERT INTO post VALUES ('1');
INSERT INTO comment VALUES (1, '1'), (2, '{other}');
"""
MARKED = """
SELECT p.id AS _id, (SELECT count(*) FROM public.mark AS m JOIN public.comment AS c ON c.id = m.comment_id
                     WHERE c.post_id = p.id) AS marks
FROM public.post AS p
"""


@pytest.mark.parametrize(
    ("id_type", "type_", "other"),
    [
        ("int", "bigint", "5000000000"),
        ("int", "numeric(20, 2)", "5000000000"),
        ("smallint", "int", "70000"),
        ("bigint", "smallint", "5"),
        ("varchar(2)", "text", "abcdef"),
    ],
)
def test_a_link_that_no_id_can_be_hides_no_document(judge: Judge, id_type: str, type_: str, other: str) -> None:
    """A row that leads to no document does not make the query fail by which others do; an id is the SELECT's own."""
    with judge.undone():
        judge.write(LINKED.format(id_type=id_type, type=type_, other=other))
        (query,) = judge.derive(MARKED).tables["public.mark"].affected
        rows = '[{"id": 1, "comment_id": 1}, {"id": 2, "comment_id": 2}]'
        ids = {row[0] for row in judge.connection.execute(query.encode(), (rows,))}
        assert judge.contents().keys() == {"1"}
        assert {"1"} <= ids <= {"1", other}


VIRTUAL = {
    "as the id": "SELECT x.key AS _id, sum(x.v) AS v FROM a x GROUP BY x.key",
    "as a link": "SELECT x.id AS _id, (SELECT max(y.v) FROM a y WHERE y.key = x.key) AS v FROM r x",
}


@pytest.mark.parametrize("select", VIRTUAL.values(), ids=VIRTUAL.keys())
def test_a_virtual_column_leads_nowhere(judge: Judge, select: str) -> None:
    """A changed row has no value for it, so what a change touches cannot be told by it."""
    if judge.connection.info.server_version < 180000:
        pytest.skip("virtual columns came with Postgres 18")
    with judge.undone():
        for table, column in (("a", "r_id"), ("r", "id")):
            judge.write(f"ALTER TABLE {table} ADD key int GENERATED ALWAYS AS ({column} * 2)")
        with pytest.raises(DefinitionError, match="It does not follow from the SELECT") as refused:
            judge.derive(select)
        assert ("key is a virtual column" in str(refused.value)) is ("y.key" in select)
        judge.derive("SELECT x.id AS _id, x.key AS shown FROM r x")


STEADY = [
    "(SELECT n.now FROM (SELECT 1 AS now) n)", 'x.k AS "random()"', "(SELECT now.k FROM r now WHERE now.id = x.id)",
    "'now()'", "$q$random()$q$", "E'\\now()'", "(SELECT q.ctid FROM (SELECT 1 AS ctid) q)",
    "(WITH random (c) AS (SELECT 1) SELECT c FROM random)", "to_char(y.moment, 'YYYY')", "age(y.moment, y.moment)",
    "concat(x.id, y.word)", "to_tsvector('english', y.word)::text", "row_to_json(y)::text",
    "to_tsvector('german'::regconfig, y.word)::text",
    "date '2020-01-01'", "y.word = 'today'", "'now'::text", "y.word::date", "(y.moment::text || 'now')::text",
    "timezone('UTC', y.moment)", "one_more(x.id)",
    "((y.day + time '12:00') AT TIME ZONE 'Europe/Rome')::text", "time '12:00' + interval '1 hour'",
    "(SELECT own_average(z.v) FROM a z WHERE z.r_id = x.id)::text",
]  # fmt: skip


@pytest.mark.parametrize("value", STEADY)
def test_what_only_looks_fickle_is_not_refused(judge: Judge, value: str) -> None:
    """Names, texts, and what depends on its arguments alone."""
    name = "" if " AS " in value and not value.startswith("(") else " AS f"
    judge.derive(f"SELECT x.id AS _id, {value}{name} FROM r x JOIN t y ON y.r_id = x.id")
