"""Every document that a transaction changes is among those that its rows are said to touch.

Random SELECTs over random tables, random transactions, and the plain SELECT as the judge: `tests.support.derivation`.

The SELECTs are not evenly random. They lean to shapes in which a plausible rule is wrong, as do the cases REFUSED in
`test_derivation_follows_every_shape`; some are those of its table DERIVED. SYNCER_TEST_EXAMPLES is their number.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

from syncer.base.errors import DefinitionError
from tests.scenarios.test_derivation_follows_every_shape import DERIVED
from tests.support.derivation import Judge
from tests.support.random_tables import COLUMNS, transactions

EXAMPLES = int(os.environ.get("SYNCER_TEST_EXAMPLES", "100"))
ROUNDS = 5
"""So often a SELECT that is derived is tried, since to derive it is the dearer part."""

# What is usually compared with what; the rest comes by chance.
LINKS = {
    ("r", "a"): ("id", "r_id"), ("r", "b"): ("id", "r_id"), ("r", "l"): ("id", "r_id"), ("a", "b"): ("id", "a_id"),
    ("a", "l"): ("id", "a_id"), ("l", "b"): ("a_id", "a_id"), ("r", "m"): ("id", "of_id"), ("a", "m"): ("id", "of_id"),
}  # fmt: skip
VIEWS = ("joined", "kept", "first", "both_kinds")
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
# One trap alone: a query of any shape in its place, or an outer join between what leads out and what does not.
PLACES = (
    "SELECT x.id AS _id, s.d AS f FROM r AS x JOIN ({query}) AS s ON s.c = x.id",
    "SELECT x.id AS _id, s.d AS f FROM r AS x LEFT JOIN ({query}) AS s ON s.c = x.id",
    "SELECT x.id AS _id, (SELECT jsonb_agg(s.d ORDER BY s.d) FROM ({query}) AS s WHERE s.c = x.id) AS f FROM r AS x",
    "SELECT x.id AS _id, x.v AS f FROM r AS x WHERE x.id IN (SELECT s.c FROM ({query}) AS s)",
)
_COUNTED = (
    "SELECT x.id AS _id, (SELECT count(*) FROM {first} AS y {side} JOIN {second} AS z ON {on}{where}) AS f FROM r AS x"
)
JOINS = (
    _COUNTED.replace("{where}", " WHERE {this}.r_id = x.id"),
    _COUNTED.replace("{first}", "(SELECT * FROM {first} WHERE r_id = x.id)").replace("{where}", ""),
    _COUNTED.replace("{second}", "(SELECT * FROM {second} WHERE r_id = x.id)").replace("{where}", ""),
    "SELECT x.id AS _id, z.v AS f FROM {first} y JOIN r x ON true {side} JOIN {second} z ON {on} AND z.r_id = x.id",
    "SELECT x.id AS _id, z.v AS f FROM r x {side} JOIN {first} y ON y.r_id = x.id JOIN {second} z ON {loose} = z.r_id",
)
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Source:
    """An alias in sight, with its columns; of a table, if it is one."""

    alias: str
    columns: tuple[str, ...] = ("c", "d")
    table: str | None = None


class Author:
    """Writes SELECTs as its dice fall; a few are none that Postgres takes.

    A query sees the sources of its own FROM, `own`, and those around it, `outer`.
    """

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._numbers = count()

    def select(self) -> str:
        """A document's SELECT."""
        kind = self._pick(example=10, trap=27, root=40, union=5, pair=5, other=3, group=5, numeric=5)
        if kind == "example":
            return self._any(list(DERIVED.values()))
        if kind == "trap":
            return self._trap()
        sources, depth = list[Source](), self._any([1, 1, 1, 2])
        text, value = self._document(sources, depth)
        root, column = next(source for source in sources if source.table == "r"), self._column(self._any(sources))
        if kind == "union":
            return (
                f"SELECT 'r' || {root.alias}.id AS _id, ({value})::text AS f{text} UNION ALL "
                f"SELECT 's' || y.id, y.v::text FROM a AS y JOIN r AS z ON z.id = y.r_id"
            )
        if kind == "group":
            grouped = self._any([f"{root.alias}.id", f"{root.alias}.k", f"{root.alias}.n", column])
            return f"SELECT {grouped} AS _id, array_agg({column} ORDER BY {column}) AS f{text} GROUP BY {grouped}"
        ids = {
            "root": f"{root.alias}.id",
            "pair": f"{root.alias}.{self._any(['id', 'k'])} || '-' || {column}",
            "other": column,
            "numeric": f"{self._any([source.alias for source in sources if 'n' in source.columns])}.n",
        }
        return f"SELECT {ids[kind]} AS _id, {value} AS f{text}"

    def _trap(self) -> str:
        """A query of any shape in a place, or an outer join between what leads out and what does not."""
        first, second = self._any("abl"), self._any("abl")
        if self._often(50):
            shape = self._any([text for _, text in SHAPES.values() if "{c}" in text])
            d = self._any([name for name in COLUMNS[first] if name not in ("r_id", "n")])
            return self._any(PLACES).format(query=shape.format(c="y.r_id", d=f"y.{d}", text=f" FROM {first} AS y"))
        on = self._linked(Source("y", COLUMNS[first], first), Source("z", COLUMNS[second], second))
        side, loose = self._any(["", "LEFT", "RIGHT", "FULL"]), self._any(["coalesce(y.v, 1)", "y.v"])
        return self._any(JOINS).format(first=first, second=second, side=side, on=on, this=self._any("yz"), loose=loose)

    # Dice

    def _often(self, percent: int) -> bool:
        return self._dice.randint(0, 99) < percent

    def _any(self, items: Sequence[_Item]) -> _Item:
        return items[self._dice.randint(0, len(items) - 1)]

    def _pick(self, **weights: int) -> str:
        """One of them, each as often as its weight says."""
        return self._any([name for name, weight in weights.items() for _ in range(weight)])

    def _alias(self) -> str:
        return f"x{next(self._numbers)}"

    # Conditions

    def _column(self, source: Source) -> str:
        """A column; not n, since which of 1.0 and 1.00 an aggregate or a DISTINCT shows is not fixed."""
        return f"{source.alias}.{self._any([name for name in source.columns if name != 'n'])}"

    def _linked(self, first: Source, second: Source) -> str:
        """An equality of two sources: usually that which the tables are made for."""
        for left, right in ((first, second), (second, first)):
            link = LINKS.get((left.table or "", right.table or ""))
            if link and self._often(85):
                return f"{left.alias}.{link[0]} = {right.alias}.{link[1]}"
        if "n" in first.columns and "n" in second.columns and self._often(8):
            return f"{first.alias}.n = {second.alias}.n"
        mine, yours = (
            f"{source.alias}.c" if source.table is None and self._often(90) else self._column(source)
            for source in (first, second)
        )
        if second.table == "r" and self._often(60):
            yours = f"{second.alias}.id"
        kinds = {
            "equal": f"{mine} = {yours}",
            "coalesced": f"coalesce({mine}, 0) = {yours}",
            "counted": f"({mine} + 1) = {yours}",
            "cast": f"{mine}::text = {yours}::text",
            "loose": f"({mine} = {yours} OR {mine} = 1)",
        }
        return kinds[self._pick(equal=88, coalesced=4, counted=3, cast=3, loose=2)]

    def _condition(self, source: Source, among: Sequence[Source]) -> str:
        """What joins a source to others."""
        conditions = [self._linked(source, self._any(among)) for percent in (97, 15) if among and self._often(percent)]
        if among and self._often(15):
            conditions.append(f"{self._column(source)} {self._any(['<', '>=', 'IS DISTINCT FROM'])} 2")
        if source.table == "m" or self._often(20):
            conditions.append(self._constant(self._any([source, source, source, *among])))
        return " AND ".join(conditions) or "true"

    def _constant(self, source: Source) -> str:
        """A condition on one source alone: of what belongs to either, usually its kind."""
        if source.table == "m" and self._often(70):
            kind = f"{source.alias}.kind"
            return self._any([f"{kind} = 'r'", f"{kind} = 'a'", f"{kind} IN ('a', 'x')", f"{kind} <> 'r'"])
        column = f"{source.alias}.gone" if source.table == "m" else self._column(source)
        kinds = {
            "equal": f"{column} = 1",
            "listed": f"{column} IN (1, 2)",
            "less": f"{column} < 2",
            "null": f"{column} IS NULL",
            "present": f"{column} IS NOT NULL",
            "either": f"({column} IS NULL OR {column} = 1)",
            "negated": f"NOT ({column} = 2)",
        }
        return kinds[self._pick(equal=30, listed=10, less=10, null=30, present=8, either=6, negated=6)]

    def _test(self, sources: list[Source], outer: list[Source], depth: int) -> str:
        """A condition with a subquery."""
        source = self._any(sources or outer)
        query, mine, alias = self._query(outer + sources, depth), self._column(source), self._alias()
        item, inner = self._table()
        first = f"(SELECT {alias}.c FROM ({query}) AS {alias})"
        kinds = {
            "within": f"{mine} IN {first}",
            "table": f"{mine} IN (SELECT {self._column(inner)} FROM {item})",
            "pairs": f"({mine}, {self._column(source)}) IN ({query})",
            "loose": f"({mine} IN {first} OR {mine} = 3)",
            "without": f"{mine} NOT IN {first}",
            "exists": f"EXISTS ({query})",
            "lacks": f"NOT EXISTS ({query})",
        }
        return kinds[self._pick(within=15, table=15, pairs=20, loose=3, without=2, exists=20, lacks=20)]

    # FROM

    def _table(self) -> tuple[str, Source]:
        """A table as an item of FROM."""
        table = self._any("aabbllrmm")
        source = Source(self._alias(), tuple(name for name in COLUMNS[table] if name != "kind"), table)
        return f"{table} AS {source.alias}", source

    def _item(self, sources: list[Source], outer: list[Source], depth: int) -> tuple[str, list[Source]]:
        """An item of FROM, and what it brings into sight; a derived table sees what is around the SELECT only."""
        kind = self._pick(
            table=60, derived=30 if depth > 0 else 0, view=6, using=6, joined=8, handed=6 if sources else 0
        )
        (left, first), (right, second), source = self._table(), self._table(), Source(self._alias())
        side = self._any(["", "LEFT ", "RIGHT ", "FULL "])
        match kind:
            case "table":
                return left, [first]
            case "view":
                return f"{self._any(VIEWS)} AS {source.alias}", [source]
            case "derived":
                return f"({self._query(outer, depth - 1)}) AS {source.alias}", [source]
            case "using":
                name = self._any(sorted(set(first.columns) & set(second.columns) - {"n"}))
                return f"({left} {side}JOIN {right} USING ({name}))", [first, second]
            case "joined":
                return f"({left} {side}JOIN {right} ON {self._linked(first, second)})", [first, second]
        # A row of an earlier item, by a LATERAL inside a join that may not match it.
        handed = self._column(self._any(sources))
        lateral = f"(SELECT {handed} AS c, {handed} AS d) AS {source.alias}"
        rows, on = f"generate_series(1, 1) AS {self._alias()}", f"{source.alias}.c = {self._column(second)}"
        return f"({rows} JOIN LATERAL {lateral} ON true JOIN {right} ON {on})", [source, second]

    def _joins(self, sources: list[Source], outer: list[Source], depth: int, most: int) -> str:
        """Up to so many joins; what they bring is then in sight."""
        text = ""
        for _ in range(self._dice.randint(0, most)):
            side = self._any([*[""] * 8, *["LEFT "] * 5, "RIGHT ", "RIGHT ", "FULL "])
            if depth > 0 and self._often(22):
                source = Source(self._alias())
                query = self._query(outer + sources, depth - 1)
                on = "true" if self._often(70) else self._condition(source, sources)
                text += f" {self._any(['', 'LEFT '])}JOIN LATERAL ({query}) AS {source.alias} ON {on}"
                sources.append(source)
            else:
                item, brought = self._item(sources, outer, depth)
                text += f" {side}JOIN {item} ON {self._condition(self._any(brought), sources)}"
                sources += brought
        return text

    # Queries

    def _query(self, outer: list[Source], depth: int) -> str:
        """A query with columns c and d."""
        shape = self._pick(**{name: weight for name, (weight, _) in SHAPES.items()})
        first, second = self._alias(), self._alias()
        match shape:
            case "union":
                mode = self._any(["UNION ALL", "UNION", "EXCEPT", "INTERSECT", "EXCEPT ALL"])
                queries = f"({self._query(outer, depth - 1)}) {mode} ({self._query(outer, depth - 1)})"
                return f"{queries}{' ORDER BY 1, 2 LIMIT 1' if self._often(15) else ''}"
            case "cte":
                return (
                    f"WITH {first}w AS ({self._query(outer, depth - 1)}) SELECT {first}.c, {second}.d "
                    f"FROM {first}w AS {first} {self._any(['', '', 'LEFT '])}JOIN {first}w AS {second} "
                    f"ON {first}.{self._any('cd')} = {second}.{self._any('cd')}"
                )
            case "renamed":
                renamed = self._any(["(d, c)", "(c, d)", ""])
                return f"SELECT {first}.c, {first}.d FROM ({self._query(outer, depth - 1)}) AS {first}{renamed}"
        text, c, d = self._body(outer, depth)
        return SHAPES[shape][1].format(c=c, d=d, text=text, outer=self._column(self._any(outer)) if outer else c)

    def _body(self, outer: list[Source], depth: int) -> tuple[str, str, str]:
        """FROM and WHERE of a SELECT that is correlated with what is around it; two of its columns."""
        item, sources = self._item([], outer, depth)
        text = f" FROM {item}{self._joins(sources, outer, depth, 1)}"
        source = self._any(sources)
        conditions = [self._condition(source, outer)] if outer and self._often(95) else []
        if depth > 0 and self._often(12):
            conditions.append(self._test(sources, outer, depth - 1))
        if self._often(12):
            conditions.append(self._condition(self._any(sources), sources))
        if self._often(12):
            conditions.append(self._constant(self._any(sources)))
        first = self._column(self._any(sources))
        if source.table and self._often(60):
            first = f"{source.alias}.{'id' if source.table == 'r' else 'r_id'}"
        elif outer and self._often(4):
            first = self._column(self._any(outer))
        return text + (f" WHERE {' AND '.join(conditions)}" if conditions else ""), first, self._column(source)

    def _document(self, sources: list[Source], depth: int) -> tuple[str, str]:
        """FROM and WHERE of a document's SELECT, and a field's value."""
        root = Source(self._alias(), COLUMNS["r"], "r")
        sources.append(root)
        text, most = f" FROM r AS {root.alias}", 2
        if self._often(20):
            item, brought = self._item([], [], depth)
            on = self._condition(brought[0], [root])
            text, most = f" FROM {item} {self._any(['RIGHT ', 'LEFT ', ''])}JOIN r AS {root.alias} ON {on}", 1
            sources[:0] = brought
        text += self._joins(sources, [], depth, most)
        conditions = [self._test(sources, [], depth - 1)] if self._often(25) else []
        if self._often(20):
            conditions.append(self._condition(self._any(sources), sources))
        if self._often(30):
            conditions.append(self._constant(self._any(sources)))
        alias = self._alias()
        built = f"jsonb_build_array({alias}.c, {alias}.d) ORDER BY {alias}.c, {alias}.d"
        match self._pick(column=30, list=45, test=25):
            case "column":
                value = self._column(self._any(sources))
            case "test":
                value = f"({self._test(sources, [], depth)})"
            case _:
                value = f"(SELECT jsonb_agg({built}) FROM ({self._query(sources, depth)}) AS {alias})"
        return text + (f" WHERE {' AND '.join(conditions)}" if conditions else ""), value


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


def routed(select: str, dice: Random) -> str:
    """The same SELECT with a ``_routing``: a column of a root, which is r wherever it stands."""
    root = re.search(r"\br (?:AS )?(\w+)", select)
    value = f"{root[1] if root else 'r'}.{dice.choice(['id', 'k', 'v'])}"
    value = f"max({value})" if "array_agg(" in select.partition(" FROM ")[0] else value
    return select.replace(" AS _id", f" AS _id, {value}::text AS _routing", 1).replace(
        "'s' || y.id,", "'s' || y.id, 'x',"
    )


@pytest.mark.parametrize("judges_places", [False, True], ids=["contents", "places"])
def test_whatever_a_transaction_changes_is_named(judge: Judge, *, judges_places: bool) -> None:
    """For a SELECT that is not refused, no document that differs is left out, however late it is asked.

    Nor is one that moves to another shard, or is gone, by the changes that are said to move documents. Nor is that so
    because all are refused.
    """
    outcomes = Counter[str]()
    judge.judges_places = judges_places

    @settings(
        max_examples=EXAMPLES // (3 if judges_places else 1),
        print_blob=True,
        phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(select=st.randoms(use_true_random=False).map(lambda dice: Author(dice).select()), seed=st.integers(0, 2**32))
    def judged(select: str, seed: int) -> None:
        dice = Random(seed)
        outcomes[hold(judge, routed(select, dice) if judges_places else select, dice)] += 1

    judged()
    assert outcomes["derived"] > outcomes.total() / 3, outcomes
