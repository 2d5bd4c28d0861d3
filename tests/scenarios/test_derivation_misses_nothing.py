"""Every document that a transaction changes is among those that its rows are said to touch.

Random SELECTs over random tables, random transactions, and the plain SELECT as the judge: `tests.support.derivation`.

What must hold: let a transaction T change a document D. Every change of T, and of every transaction after it, is
asked about once, at any time after it has been committed, each at a time of its own. Then one of them names D. So
whoever composes what is named, when it is named, ends with what the SELECT says: the change that names D is asked about
after T, and if D changes again later, the same holds of that.

The SELECTs are not evenly random. They lean to shapes in which a plausible rule is wrong, as do the cases REFUSED in
`test_derivation_follows_every_shape`; some are those of its table DERIVED. SYNCER_TEST_EXAMPLES is their number.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from hypothesis.strategies import DrawFn

from syncer.base.errors import DefinitionError
from tests.scenarios.test_derivation_follows_every_shape import DERIVED
from tests.support.derivation import Judge
from tests.support.random_tables import COLUMNS, transactions

EXAMPLES = int(os.environ.get("SYNCER_TEST_EXAMPLES", "100"))

# What is usually compared with what; the rest comes by chance.
LINKS = {
    ("r", "a"): ("id", "r_id"), ("r", "b"): ("id", "r_id"), ("r", "l"): ("id", "r_id"), ("a", "b"): ("id", "a_id"),
    ("a", "l"): ("id", "a_id"), ("l", "b"): ("a_id", "a_id"),
}  # fmt: skip
VIEWS = ("joined", "kept", "first", "both_kinds")


@dataclass
class Source:
    """An alias in sight, with its columns; of a table, if it is one."""

    alias: str
    columns: tuple[str, ...]
    table: str | None = None


@dataclass
class Names:
    """What is in sight, and the next free number."""

    own: list[Source] = field(default_factory=list)
    outer: list[Source] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(10_000)))

    def fresh(self) -> str:
        """An alias that is new."""
        return f"x{next(self.numbers)}"

    def inside(self) -> Names:
        """For a subquery that sees all of this."""
        return Names(outer=[*self.outer, *self.own], numbers=self.numbers)

    def apart(self) -> Names:
        """For a derived table, which sees what is around its SELECT only."""
        return Names(outer=list(self.outer), numbers=self.numbers)


def chance(assign: DrawFn, percent: int) -> bool:
    """Whether something comes to pass that does so often."""
    return assign(st.integers(0, 99)) < percent


def pick(assign: DrawFn, weighted: Sequence[tuple[int, str]]) -> str:
    """One of several, each as often as its weight says."""
    at = assign(st.integers(0, sum(weight for weight, _ in weighted) - 1))
    for weight, one in weighted:
        at -= weight
        if at < 0:
            return one
    raise AssertionError


def column(assign: DrawFn, source: Source) -> str:
    """A column; not n, since which of 1.0 and 1.00 an aggregate or a DISTINCT shows is not fixed."""
    return f"{source.alias}.{assign(st.sampled_from([one for one in source.columns if one != 'n']))}"


def linked(assign: DrawFn, one: Source, other: Source) -> str:
    """An equality of two sources: usually the one that the tables are made for."""
    if one.table and other.table and chance(assign, 85):
        for (left, right), (mine, yours) in LINKS.items():
            if (left, right) == (one.table, other.table):
                return f"{one.alias}.{mine} = {other.alias}.{yours}"
            if (right, left) == (one.table, other.table):
                return f"{one.alias}.{yours} = {other.alias}.{mine}"
    if "n" in one.columns and "n" in other.columns and chance(assign, 8):
        return f"{one.alias}.n = {other.alias}.n"
    mine = f"{one.alias}.c" if one.table is None and chance(assign, 90) else column(assign, one)
    yours = f"{other.alias}.c" if other.table is None and chance(assign, 90) else column(assign, other)
    if other.table == "r" and chance(assign, 60):
        yours = f"{other.alias}.id"
    kinds = [
        (88, f"{mine} = {yours}"),
        (4, f"coalesce({mine}, 0) = {yours}"),
        (3, f"({mine} + 1) = {yours}"),
        (3, f"{mine}::text = {yours}::text"),
        (2, f"({mine} = {yours} OR {mine} = 1)"),
    ]
    return pick(assign, kinds)


def condition(assign: DrawFn, source: Source, among: Sequence[Source]) -> str:
    """What joins a source to others."""
    found = [linked(assign, source, assign(st.sampled_from(among)))] if among and chance(assign, 97) else []
    if among and chance(assign, 15):
        found.append(linked(assign, source, assign(st.sampled_from(among))))
    if chance(assign, 15):
        found.append(f"{column(assign, source)} {assign(st.sampled_from(['<', '>=', 'IS DISTINCT FROM']))} 2")
    return " AND ".join(found) or "true"


def a_table(assign: DrawFn, names: Names) -> tuple[str, Source]:
    """A table as an item of FROM."""
    table = assign(st.sampled_from(["a", "a", "b", "b", "l", "l", "r"]))
    source = Source(names.fresh(), COLUMNS[table], table)
    return f"{table} AS {source.alias}", source


def an_item(assign: DrawFn, names: Names, depth: int) -> tuple[str, list[Source]]:
    """An item of FROM, and what it brings into sight."""
    kinds = [(60, "table"), (30 if depth > 0 else 0, "derived"), (6, "view"), (6, "using"), (8, "joined")]
    kind = pick(assign, [*kinds, (6 if names.own else 0, "handed on")])
    if kind == "table":
        item, source = a_table(assign, names)
        return item, [source]
    if kind == "view":
        source = Source(names.fresh(), ("c", "d"))
        return f"{assign(st.sampled_from(VIEWS))} AS {source.alias}", [source]
    if kind == "derived":
        source = Source(names.fresh(), ("c", "d"))
        query = a_query(assign, names.apart(), depth - 1)
        return f"({query}) AS {source.alias}", [source]
    if kind == "handed on":  # a row of an earlier item, by a LATERAL inside a join that may not match it
        (right, other), source = a_table(assign, names), Source(names.fresh(), ("c", "d"))
        outer = column(assign, assign(st.sampled_from(names.own)))
        lateral = f"(SELECT {outer} AS c, {outer} AS d) AS {source.alias}"
        on = f"{source.alias}.c = {column(assign, other)}"
        item = f"(generate_series(1, 1) AS {names.fresh()} JOIN LATERAL {lateral} ON true JOIN {right} ON {on})"
        return item, [source, other]
    (left, one), (right, other) = a_table(assign, names), a_table(assign, names)
    side = assign(st.sampled_from(["", "LEFT ", "RIGHT ", "FULL "]))
    if kind == "using":
        name = assign(st.sampled_from(sorted(set(one.columns) & set(other.columns) - {"n"})))
        return f"({left} {side}JOIN {right} USING ({name}))", [one, other]
    on = linked(assign, one, other)
    if side == "FULL " and (" OR " in on or "coalesce" in on):
        side = ""
    return f"({left} {side}JOIN {right} ON {on})", [one, other]


def joins(assign: DrawFn, names: Names, depth: int, most: int) -> str:
    """Some joins; what they bring is then in sight."""
    text = ""
    for _ in range(assign(st.integers(0, most))):
        kind = pick(assign, [(38, ""), (27, "LEFT "), (8, "RIGHT "), (5, "FULL "), (22, "LATERAL")])
        if kind == "LATERAL" and depth > 0:
            source = Source(names.fresh(), ("c", "d"))
            query = a_query(assign, names.inside(), depth - 1)
            side = assign(st.sampled_from(["", "LEFT "]))
            on = "true" if chance(assign, 70) else condition(assign, source, names.own)
            text += f" {side}JOIN LATERAL ({query}) AS {source.alias} ON {on}"
            names.own.append(source)
            continue
        item, brought = an_item(assign, names, depth)
        side = "" if kind == "LATERAL" else kind
        on = condition(assign, assign(st.sampled_from(brought)), names.own)
        if side == "FULL " and any(one in on for one in (" OR ", "coalesce", "<", ">", "IS", "true")):
            side = "LEFT "
        text += f" {side}JOIN {item} ON {on}"
        names.own += brought
    return text


def body(assign: DrawFn, names: Names, depth: int) -> tuple[str, str, str]:
    """FROM and WHERE of a SELECT that is correlated with what is around it; two of its columns."""
    item, brought = an_item(assign, names, depth)
    names.own += brought
    merged = chance(assign, 60) and re.fullmatch(r"\(\w+ AS \w+ FULL JOIN \w+ AS \w+ USING \((\w+)\)\)", item)
    text = f" FROM {item}" if merged else f" FROM {item}{joins(assign, names, depth, 1)}"
    source = assign(st.sampled_from(names.own))
    where = [condition(assign, source, names.outer)] if names.outer and chance(assign, 95) else []
    if depth > 0 and chance(assign, 12):
        where.append(a_test(assign, names, depth - 1))
    if chance(assign, 12):
        where.append(condition(assign, assign(st.sampled_from(names.own)), names.own))
    if merged:
        name = merged[1]
        if names.outer and chance(assign, 70):
            where = [f"{name} = {column(assign, assign(st.sampled_from(names.outer)))}"]
        return text + (f" WHERE {' AND '.join(where)}" if where else ""), name, column(assign, source)
    first = column(assign, assign(st.sampled_from(names.own)))
    if source.table and chance(assign, 60):
        first = f"{source.alias}.{ {'r': 'id', 'a': 'r_id', 'b': 'r_id', 'l': 'r_id'}[source.table] }"
    if names.outer and chance(assign, 4):
        first = column(assign, assign(st.sampled_from(names.outer)))
    return text + (f" WHERE {' AND '.join(where)}" if where else ""), first, column(assign, source)


_RANKED = "SELECT {c}, {d}, rank() OVER (PARTITION BY {c} ORDER BY {d}){text}"
# How often each comes, and what it is made of.
SHAPES = {
    "plain": (46, "SELECT {c} AS c, {d} AS d{text}"),
    "group": (6, "SELECT {c} AS c, max({d}) AS d{text} GROUP BY {c}"),
    "group by another": (2, "SELECT max({c}) AS c, {d} AS d{text} GROUP BY {d}"),
    "having": (3, "SELECT {c} AS c, max({d}) AS d{text} GROUP BY {c} HAVING count(*) > 1"),
    "aggregate": (5, "SELECT max({c}) AS c, count(*)::int AS d{text}"),
    "outer aggregate": (2, "SELECT {outer} AS c, count(*)::int AS d{text}"),
    "sets": (2, "SELECT {c} AS c, max({d}) AS d{text} GROUP BY GROUPING SETS (({c}), ())"),
    "rollup": (1, "SELECT {c} AS c, max({d}) AS d{text} GROUP BY ROLLUP ({c})"),
    "limit": (3, "SELECT {c} AS c, {d} AS d{text} ORDER BY 2, 1 LIMIT 1"),
    "offset": (1, "SELECT {c} AS c, {d} AS d{text} ORDER BY 2, 1 OFFSET 1"),
    "ties": (1, "SELECT {c} AS c, {d} AS d{text} ORDER BY {d} FETCH FIRST 1 ROW WITH TIES"),
    "distinct": (3, "SELECT DISTINCT {c} AS c, {d} AS d{text}"),
    "distinct on": (5, "SELECT DISTINCT ON ({c}) {c} AS c, {d} AS d{text} ORDER BY {c}, {d}"),
    "distinct on another": (2, "SELECT DISTINCT ON ({d}) {c} AS c, {d} AS d{text} ORDER BY {d}, {c}"),
    "window": (5, f"SELECT z.c, z.d FROM ({_RANKED}) AS z (c, d, n) WHERE z.n = 1"),
    "whole window": (2, "SELECT {c} AS c, (rank() OVER (ORDER BY {d}))::int AS d{text}"),
    "window by another": (2, "SELECT {c} AS c, (count(*) OVER (PARTITION BY {d}))::int AS d{text}"),
    "named window": (
        2, "SELECT {c} AS c, (rank() OVER w)::int AS d{text} WINDOW w AS (PARTITION BY {c} ORDER BY {d})"
    ),
    "constant": (4, "SELECT {c} AS c, 2 AS d{text}"),
    "coalesced": (2, "SELECT coalesce({c}, 0) AS c, {d} AS d{text}"),
    "union": (8, ""),
    "cte": (5, ""),
    "renamed": (5, ""),
}  # fmt: skip


def a_query(assign: DrawFn, names: Names, depth: int) -> str:
    """A query with columns c and d."""
    shape = pick(assign, [(weight, one) for one, (weight, _) in SHAPES.items()])
    if shape == "union":
        mode = assign(st.sampled_from(["UNION ALL", "UNION", "EXCEPT", "INTERSECT", "EXCEPT ALL"]))
        beside = Names(outer=names.outer, numbers=names.numbers)
        one, other = a_query(assign, names, depth - 1), a_query(assign, beside, depth - 1)
        cut = " ORDER BY 1, 2 LIMIT 1" if chance(assign, 15) else ""
        return f"({one}) {mode} ({other}){cut}"
    if shape == "cte":
        inner = a_query(assign, names, depth - 1)
        one, other = names.fresh(), names.fresh()
        side = assign(st.sampled_from(["", "", "LEFT "]))
        return (
            f"WITH {one}w AS ({inner}) SELECT {one}.c, {other}.d FROM {one}w AS {one} {side}JOIN {one}w AS {other} "
            f"ON {one}.{assign(st.sampled_from('cd'))} = {other}.{assign(st.sampled_from('cd'))}"
        )
    if shape == "renamed":
        alias = names.fresh()
        renamed = assign(st.sampled_from(["(d, c)", "(c, d)", ""]))
        return f"SELECT {alias}.c, {alias}.d FROM ({a_query(assign, names, depth - 1)}) AS {alias}{renamed}"
    around = list(names.outer)
    text, c, d = body(assign, names, depth)
    outer = column(assign, assign(st.sampled_from(around))) if around else c
    return SHAPES[shape][1].format(c=c, d=d, text=text, outer=outer)


def a_test(assign: DrawFn, names: Names, depth: int) -> str:
    """A condition with a subquery."""
    source = assign(st.sampled_from(names.own or names.outer))
    query = a_query(assign, names.inside(), depth)
    mine, alias = column(assign, source), names.fresh()
    item, inner = a_table(assign, names)
    some = f"(SELECT {alias}.c FROM ({query}) AS {alias})"
    kinds = [
        (15, f"{mine} IN {some}"),
        (15, f"{mine} IN (SELECT {column(assign, inner)} FROM {item})"),
        (20, f"({mine}, {column(assign, source)}) IN ({query})"),
        (3, f"({mine} IN {some} OR {mine} = 3)"),
        (2, f"{mine} NOT IN {some}"),
        (20, f"EXISTS ({query})"),
        (20, f"NOT EXISTS ({query})"),
    ]
    return pick(assign, kinds)


def a_value(assign: DrawFn, names: Names, depth: int) -> str:
    """A field's value."""
    kind = pick(assign, [(30, "column"), (45, "list"), (25, "test")])
    if kind == "column":
        return column(assign, assign(st.sampled_from(names.own)))
    if kind == "test":
        return f"({a_test(assign, names, depth)})"
    alias = names.fresh()
    query = a_query(assign, names.inside(), depth)
    built = f"jsonb_build_array({alias}.c, {alias}.d) ORDER BY {alias}.c, {alias}.d"
    return f"(SELECT jsonb_agg({built}) FROM ({query}) AS {alias})"


def a_document(assign: DrawFn, names: Names, depth: int) -> tuple[str, str]:
    """FROM and WHERE of a document's SELECT, and a field's value."""
    root = Source(names.fresh(), COLUMNS["r"], "r")
    names.own.append(root)
    text = f" FROM r AS {root.alias}"
    most = 2
    if chance(assign, 20):
        item, brought = an_item(assign, names, depth)
        side = assign(st.sampled_from(["RIGHT ", "LEFT ", ""]))
        text = f" FROM {item} {side}JOIN r AS {root.alias} ON {condition(assign, brought[0], [root])}"
        names.own = [*brought, root]
        most = 1
    text += joins(assign, names, depth, most)
    where = []
    if chance(assign, 25):
        where.append(a_test(assign, names, depth - 1))
    if chance(assign, 20):
        where.append(condition(assign, assign(st.sampled_from(names.own)), names.own))
    value = a_value(assign, names, depth)
    return text + (f" WHERE {' AND '.join(where)}" if where else ""), value


PLACES = (
    "SELECT x.id AS _id, s.d AS f FROM r AS x JOIN ({query}) AS s ON s.c = x.id",
    "SELECT x.id AS _id, s.d AS f FROM r AS x LEFT JOIN ({query}) AS s ON s.c = x.id",
    "SELECT x.id AS _id, (SELECT jsonb_agg(s.d ORDER BY s.d) FROM ({query}) AS s WHERE s.c = x.id) AS f FROM r AS x",
    "SELECT x.id AS _id, x.v AS f FROM r AS x WHERE x.id IN (SELECT s.c FROM ({query}) AS s)",
)
_COUNTED = (
    "SELECT x.id AS _id, (SELECT count(*) FROM {one} AS y {side} JOIN {other} AS z ON {on}{where}) AS f FROM r AS x"
)
JOINS = (
    _COUNTED.replace("{where}", " WHERE {this}.r_id = x.id"),
    _COUNTED.replace("{one}", "(SELECT * FROM {one} WHERE r_id = x.id)").replace("{where}", ""),
    _COUNTED.replace("{other}", "(SELECT * FROM {other} WHERE r_id = x.id)").replace("{where}", ""),
    "SELECT x.id AS _id, z.v AS f FROM {one} y JOIN r x ON true {side} JOIN {other} z ON {on} AND z.r_id = x.id",
    "SELECT x.id AS _id, z.v AS f FROM r x {side} JOIN {one} y ON y.r_id = x.id JOIN {other} z ON {loose} = z.r_id",
)


def a_small_select(assign: DrawFn) -> str:
    """One trap alone: a query of any shape in its place, or an outer join between what leads out and what does not."""
    one, other = assign(st.sampled_from(["a", "b", "l"])), assign(st.sampled_from(["a", "b", "l"]))
    if chance(assign, 50):
        shape = assign(st.sampled_from([text for _, text in SHAPES.values() if "{c}" in text]))
        d = assign(st.sampled_from([name for name in COLUMNS[one] if name not in ("r_id", "n")]))
        query = shape.format(c="y.r_id", d=f"y.{d}", text=f" FROM {one} AS y")
        return str(assign(st.sampled_from(PLACES))).format(query=query)
    on = linked(assign, Source("y", COLUMNS[one], one), Source("z", COLUMNS[other], other))
    side = "LEFT" if "coalesce" in on or " OR " in on else assign(st.sampled_from(["", "LEFT", "RIGHT", "FULL"]))
    join = str(assign(st.sampled_from(JOINS if side != "FULL" else JOINS[:3])))
    loose = assign(st.sampled_from(["coalesce(y.v, 1)", "y.v"]))
    return join.format(one=one, other=other, side=side, on=on, this=assign(st.sampled_from("yz")), loose=loose)


@st.composite
def selects(assign: DrawFn) -> str:
    """A document's SELECT."""
    if chance(assign, 10):
        return str(assign(st.sampled_from(list(DERIVED.values()))))
    if chance(assign, 30):
        return a_small_select(assign)
    names = Names()
    depth = assign(st.sampled_from([1, 1, 1, 2]))
    kind = pick(
        assign, [(58, "root"), (8, "union"), (8, "pair"), (4, "other"), (8, "group"), (4, "numeric"), (10, "with")]
    )
    if kind == "union":
        text, value = a_document(assign, names, depth)
        return (
            f"SELECT 'r' || x0.id AS _id, ({value})::text AS f{text} UNION ALL "
            f"SELECT 's' || y.id, y.v::text FROM a AS y JOIN r AS z ON z.id = y.r_id"
        )
    if kind == "with":
        inner = a_query(assign, names, depth - 1)
        outer = Names(numbers=names.numbers)
        source = Source(outer.fresh(), ("c", "d"))
        root = Source("x", COLUMNS["r"], "r")
        outer.own += [root, source]
        side = assign(st.sampled_from(["", "LEFT "]))
        on = condition(assign, source, [root])
        value = f"(SELECT array_agg(w.d ORDER BY w.d) FROM w WHERE w.{assign(st.sampled_from('cd'))} = x.id)"
        return (
            f"WITH w AS ({inner}) SELECT x.id AS _id, {source.alias}.d AS f, {value} AS g "
            f"FROM r AS x {side}JOIN w AS {source.alias} ON {on}"
        )
    text, value = a_document(assign, names, depth)
    root = next(one for one in names.own if one.table == "r")
    other = column(assign, assign(st.sampled_from(names.own)))
    if kind == "group":
        grouped = assign(st.sampled_from([f"{root.alias}.id", f"{root.alias}.k", f"{root.alias}.n", other]))
        return f"SELECT {grouped} AS _id, array_agg({other} ORDER BY {other}) AS f{text} GROUP BY {grouped}"
    ids = {
        "root": f"{root.alias}.id",
        "pair": f"{root.alias}.{assign(st.sampled_from(['id', 'k']))} || '-' || {other}",
        "other": other,
        "numeric": f"{assign(st.sampled_from([one.alias for one in names.own if 'n' in one.columns]))}.n",
    }
    return f"SELECT {ids[kind]} AS _id, {value} AS f{text}"


ROUNDS = 5
"""So often a SELECT that is derived is tried, since to derive it is the dearer part."""


def hold(judge: Judge, select: str, random: Random) -> str:
    """One example; what became of it."""
    try:
        judge.derive(select)
    except DefinitionError as error:
        return "refused" if "does a change of" in error.message else "not a query"
    for _ in range(ROUNDS):
        with judge.undone():
            judge.require_nothing_missed(transactions(random, judge.tables), random)
    return "derived"


def test_whatever_a_transaction_changes_is_named(judge: Judge) -> None:
    """For a SELECT that is not refused, no document that differs is left out, however late it is asked.

    Nor is that so because all are refused.
    """
    outcomes = Counter[str]()

    @settings(
        max_examples=EXAMPLES,
        print_blob=True,
        phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(select=selects(), seed=st.integers(0, 2**32))
    def judged(select: str, seed: int) -> None:
        outcomes[hold(judge, select, Random(seed))] += 1

    judged()
    assert outcomes["derived"] > outcomes.total() / 3, outcomes
