"""Graph: a SELECT as readings of tables and the conditions between them, and the paths that lead to ``_id``.

What a node and an edge are, and why a path finds the documents that a row touches, is said in `syncer.derivation`,
which makes the graph.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType

from sqlglot import exp

from syncer.probe import TableName

# So much dearer than a hop along a key that the longest path of those comes first.
_HOP_WITHOUT_KEY = 1000

PLAIN_TYPES = {
    "smallint": "integer",
    "integer": "integer",
    "bigint": "integer",
    "uuid": "uuid",
    "text": "text",
    "character varying": "text",
}
"""Types of which equal values have equal texts, the same in JSON as in SQL; and a name for those that share them."""

EXACT_TYPES = {
    *PLAIN_TYPES.values(), "boolean", "bytea", "date", "timestamp without time zone", "timestamp with time zone",
}  # fmt: skip
"""Types of which equal values are identical: numeric, say, is none, since 1.0 equals 1.00."""

_CASTS = {"text": ("text", "varchar"), "integer": ("smallint", "int", "bigint"), "uuid": ("uuid",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One reading of a table.

    Args:
        number: In conditions its columns are qualified with ``n`` and this number.
        table: Which table.
        context: The subqueries in expressions and UNION branches around it, outermost first.
        place: Which occurrence of a table in the SELECT this is, counted in the order of its text.
    """

    number: int
    table: TableName
    context: tuple[int, ...]
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A condition: a row at ``source`` never matters without a row at ``target`` that satisfies it."""

    source: int
    target: int
    condition: exp.EQ


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """A node on a path, and what joins it to the nodes before it."""

    node: Node
    conditions: tuple[exp.EQ, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """From a node to documents.

    Args:
        start: Where it begins.
        hops: The other nodes, in an order in which each is joined to those before it.
        id: What ``_id`` is, in columns of these nodes.
    """

    start: Node
    hops: tuple[Hop, ...]
    id: exp.Expr


Keys = Mapping[TableName, Collection[frozenset[str]]]
"""For each table, the sets of columns that are unique in it."""

Types = Mapping[TableName, Mapping[str, str]]
"""For each table, the type of each column; empty where different texts count as equal."""


@dataclass(slots=True)
class Graph:
    """A SELECT, as nodes and edges.

    Args:
        nodes: By number.
        edges: A condition that may be followed both ways is two of them.
        ids: What ``_id`` is made of: one expression for each UNION branch where that is known.
    """

    nodes: list[Node] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    ids: list[exp.Expr] = field(default_factory=list)

    def path(self, start: Node, keys: Keys) -> Path | None:
        """The best path from a node to documents: along keys, where there are some."""
        cost, came = self._reach(start, keys)
        ends = [(max(cost[number] for number in wanted), id_, wanted) for id_, wanted in self._ends(cost)]
        if not ends:
            return None
        _, id_, wanted = min(ends, key=lambda end: end[0])
        order = sorted(_on_the_way(wanted, came), key=lambda number: (cost[number], number))
        placed = {start.number}
        hops = []
        for number in order:
            if number not in placed:
                placed.add(number)
                hops.append(Hop(node=self.nodes[number], conditions=self._conditions(number, placed)))
        return Path(start=start, hops=tuple(hops), id=id_)

    def reached(self, start: Node) -> set[int]:
        """The nodes that take part wherever one does."""
        return set(self._reach(start, {})[0])

    def _reach(self, start: Node, keys: Keys) -> tuple[dict[int, int], dict[int, int]]:
        """What it costs to reach each node that takes part with the first, and from which one."""
        cost = {start.number: 0}
        came: dict[int, int] = {}
        queue = [(0, start.number)]
        while queue:
            spent, here = heapq.heappop(queue)
            for there in {edge.target for edge in self.edges if edge.source == here}:
                context = self.nodes[there].context
                total = spent + (1 if self._is_keyed(here, there, keys) else _HOP_WITHOUT_KEY)
                if context == start.context[: len(context)] and total < cost.get(there, total + 1):
                    cost[there], came[there] = total, here
                    heapq.heappush(queue, (total, there))
        return cost, came

    def _is_keyed(self, here: int, there: int, keys: Keys) -> bool:
        """Whether the conditions between two nodes hold a whole key of one of them."""
        for number in (here, there):
            bound = frozenset(
                name
                for condition in self._conditions(here, {there})
                for name in lookup_columns(condition, self.nodes[number])
            )
            if any(key <= bound for key in keys.get(self.nodes[number].table, ())):
                return True
        return False

    def _ends(self, reached: Mapping[int, int]) -> Iterator[tuple[exp.Expr, set[int]]]:
        for id_ in self.ids:
            wanted = numbers(id_)
            if wanted <= reached.keys():
                yield id_, wanted

    def _conditions(self, number: int, placed: Collection[int]) -> tuple[exp.EQ, ...]:
        """All that joins a node to others that take part with it: whichever way it speaks, it holds for them all."""
        found = {
            edge.condition.sql(): edge.condition
            for edge in self.edges
            if (edge.source == number and edge.target in placed) or (edge.target == number and edge.source in placed)
        }
        return tuple(found.values())


def _on_the_way(wanted: Collection[int], came: Mapping[int, int]) -> set[int]:
    found: set[int] = set()
    for number in wanted:
        here: int | None = number
        while here is not None and here not in found:
            found.add(here)
            here = came.get(here)
    return found


def numbers(expression: exp.Expr) -> set[int]:
    """The nodes whose columns an expression has."""
    return {int(one.table.removeprefix("n")) for one in expression.find_all(exp.Column)}


def lookup_columns(condition: exp.EQ, node: Node) -> list[str]:
    """The columns of a node that a condition compares as they are."""
    qualifier = f"n{node.number}"
    sides = (condition.left, condition.right)
    return [side.name for side in sides if isinstance(side, exp.Column) and side.table == qualifier]


def of_one_row(graph: Graph, types: Types) -> None:
    """Put each ``_id`` in columns of one node, by equalities that hold among its rows; drop it if there is no way."""
    graph.ids = [one for one in (_of_one_row(graph, types, id_) for id_ in graph.ids) if one is not None]


def _of_one_row(graph: Graph, types: Types, id_: exp.Expr) -> exp.Expr | None:
    wanted = numbers(id_)
    if len(wanted) == 1:
        return id_
    present: set[int] = set()
    for number in wanted:
        present |= graph.reached(graph.nodes[number])
    equal = [
        (edge.condition.left, edge.condition.right)
        for edge in graph.edges
        if {edge.source, edge.target} <= present and _is_same(edge.condition, graph, types)
    ]
    for number in sorted(present):
        columns = {column: _equal_column(column, number, equal) for column in set(id_.find_all(exp.Column))}
        if all(columns.values()):
            found: exp.Expr = id_.transform(lambda part, known=columns: known.get(part, part))
            return found
    return None


def _is_same(condition: exp.EQ, graph: Graph, types: Types) -> bool:
    """Whether a condition compares columns whose values are the same text if they are equal."""
    one, other = (type_of(side, graph.nodes, types) for side in (condition.left, condition.right))
    is_columns = isinstance(condition.left, exp.Column) and isinstance(condition.right, exp.Column)
    return is_columns and one == other and one in PLAIN_TYPES.values()


def _equal_column(column: exp.Expr, number: int, equal: Sequence[tuple[exp.Expr, exp.Expr]]) -> exp.Expr | None:
    """A column of one node that has the same value."""
    found, ahead = {column}, [column]
    while ahead:
        here = ahead.pop(0)
        if numbers(here) == {number}:
            return here
        beside = {other for pair in equal for one, other in (pair, pair[::-1]) if one == here} - found
        found |= beside
        ahead += sorted(beside, key=str)
    return None


def is_carried(expression: exp.Expr, nodes: Sequence[Node], types: Types) -> bool:
    """Whether an image tells the value of an expression.

    It does not tell whether a jsonb is null or missing, nor how a json is spelled; of what is in them it does.
    """
    return all(
        _is_inside(column, {"jsonb": exp.JSONExtract | exp.JSONExtractScalar, "json": exp.JSONExtractScalar}[type_])
        for column in expression.find_all(exp.Column)
        if (type_ := type_of(column, nodes, types)) in ("jsonb", "json")
    )


def _is_inside(column: exp.Column, steps: type | UnionType) -> bool:
    """Whether one of these steps leads into a column."""
    around = column.parent
    while isinstance(around, exp.Paren | exp.JSONExtract) and not isinstance(around, steps):
        around = around.parent
    return isinstance(around, steps)


def type_of(expression: exp.Expr, nodes: Sequence[Node], types: Types) -> str:
    """The type of an expression over nodes, those that share texts under one name; empty if it is not known."""
    expression = expression.unnest()
    if isinstance(expression, exp.Column):
        (number,) = numbers(expression)
        own = types[nodes[number].table].get(expression.name, "")
        return PLAIN_TYPES.get(own, own)
    if isinstance(expression, exp.DPipe):
        sides = {type_of(side, nodes, types) for side in (expression.left, expression.right)}
        return "text" if "text" in sides and sides <= EXACT_TYPES else ""
    if isinstance(expression, exp.Lower | exp.Upper):
        return "text" if type_of(expression.this, nodes, types) == "text" else ""
    if isinstance(expression, exp.Cast):
        # It keeps the collation, if there is one.
        if not all(type_of(column, nodes, types) for column in expression.find_all(exp.Column)):
            return ""
        return next((name for name, kinds in _CASTS.items() if expression.is_type(*kinds)), "")
    return "text" if expression.is_string else ""
