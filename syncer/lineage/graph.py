"""Graph: a SELECT as readings of tables and conditions between them, and the paths that lead to ``_id``.

`syncer.lineage.build` creates the graph. It defines nodes and edges, and explains why a path finds the affected
documents.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType

from sqlglot import exp

from syncer.lineage.catalog import TableName

# So high that any path along keys costs less than one hop without a key.
_HOP_WITHOUT_KEY = 1000

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

_CASTS = {"text": ("text", "varchar"), "integer": ("smallint", "int", "bigint"), "uuid": ("uuid",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One reading of a table.

    Args:
        number: Its columns are qualified with ``n`` and this number.
        table: The table.
        context: The enclosing subqueries in expressions and UNION branches, outermost first.
    """

    number: int
    table: TableName
    context: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A condition: a row at ``source`` never matters without a row at ``target`` that satisfies it."""

    source: int
    target: int
    condition: exp.EQ


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """A node on a path, and the conditions that join it to the nodes before it."""

    node: Node
    conditions: tuple[exp.EQ, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A path from a node to documents.

    Args:
        start: The first node.
        hops: The other nodes in order; each is joined to nodes before it.
        id: ``_id`` in columns of the last node.
    """

    start: Node
    hops: tuple[Hop, ...]
    id: exp.Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Withheld:
    """An edge from the preserved side of an outer join, which keeps rows without a match.

    Args:
        edge: The edge; its condition is strict, so a row without a match does not satisfy it.
        nullable: The nodes that are filled with nulls for a row without a match.
    """

    edge: Edge
    nullable: frozenset[int]


Keys = Mapping[TableName, Collection[frozenset[str]]]
"""The sets of unique columns, by table."""

Types = Mapping[TableName, Mapping[str, str]]
"""The type of each column, by table; empty if different texts count as equal."""


@dataclass(slots=True)
class Graph:
    """A SELECT as nodes and edges.

    Args:
        nodes: By number.
        edges: A condition that holds in both directions is two edges.
        ids: The expression for ``_id``, in columns of one node, in each UNION branch in which it is known.
        withheld: Edges that outer joins do not yield, unless the rows that they may lack are needed for ``_id``.
        forks: Edges from one node into all branches of a UNION: a row there matters only with a row in one of them.
        obstacles: By node, what in the SELECT relates it to others and yields no edge from it.
    """

    nodes: list[Node] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    ids: list[exp.Expr] = field(default_factory=list)
    withheld: list[Withheld] = field(default_factory=list)
    forks: list[tuple[Edge, ...]] = field(default_factory=list)
    obstacles: dict[int, list[str]] = field(default_factory=dict)

    def release(self, needed: Collection[int]) -> None:
        """Add each withheld edge without whose nullable side there is no document.

        Args:
            needed: The nodes without whose rows ``_id`` is null; a row whose ``_id`` is null is no document.
        """
        known = set(needed)
        left = self.withheld
        while found := [one for one in left if one.nullable & known]:
            self.edges += [one.edge for one in found]
            known |= {number for one in found for number in (one.edge.source, one.edge.target)}
            left = [one for one in left if one not in found]

    def paths(self, start: Node, keys: Keys) -> tuple[Path, ...]:
        """Return paths from a node that together lead to all its documents; hops along keys are preferred.

        There is one path, or one through each branch of a UNION. There is none if some documents cannot be reached.
        """
        direct = self._way(start, keys)
        if direct is not None:
            return (self._path(start, *direct),)
        cost, came = self._reach(start, keys)
        for fork in self.forks:
            source = fork[0].source
            if source in cost:
                way = _back(source, start.number, came)
                ways = [self._way(self.nodes[edge.target], keys, avoided=way) for edge in fork]
                branches = [(way + found[0], found[1]) for found in ways if found is not None]
                if len(branches) == len(fork):
                    return tuple(self._path(start, *branch) for branch in branches)
        return ()

    def _way(self, start: Node, keys: Keys, *, avoided: Collection[int] = ()) -> tuple[list[int], exp.Expr] | None:
        """Return the nodes of the cheapest path from a node, and the expression for ``_id`` at its end."""
        cost, came = self._reach(start, keys, avoided=avoided)
        ends = [(cost[number], id_) for id_ in self.ids for number in numbers(id_) & cost.keys()]
        if not ends:
            return None
        _, id_ = min(ends, key=lambda end: end[0])
        (end,) = numbers(id_)
        return _back(end, start.number, came), id_

    def _path(self, start: Node, way: Sequence[int], id_: exp.Expr) -> Path:
        hops = [
            Hop(node=self.nodes[number], conditions=self._conditions(number, way[:at]))
            for at, number in enumerate(way[1:], start=1)
        ]
        return Path(start=start, hops=tuple(hops), id=id_)

    def _reach(
        self, start: Node, keys: Keys, *, avoided: Collection[int] = ()
    ) -> tuple[dict[int, int], dict[int, int]]:
        """Return the cost of each reachable node, and the node before it."""
        cost = {start.number: 0}
        came: dict[int, int] = {}
        queue = [(0, start.number)]
        while queue:
            spent, here = heapq.heappop(queue)
            for there in {edge.target for edge in self.edges if edge.source == here}.difference(avoided):
                context = self.nodes[there].context
                total = spent + (1 if self._is_keyed(here, there, keys) else _HOP_WITHOUT_KEY)
                if context == start.context[: len(context)] and total < cost.get(there, total + 1):
                    cost[there], came[there] = total, here
                    heapq.heappush(queue, (total, there))
        return cost, came

    def _is_keyed(self, here: int, there: int, keys: Keys) -> bool:
        """Whether the conditions between two nodes cover a whole key of one of them."""
        for number in (here, there):
            bound = frozenset(
                name
                for condition in self._conditions(here, {there})
                for name in lookup_columns(condition, self.nodes[number])
            )
            if any(key <= bound for key in keys.get(self.nodes[number].table, ())):
                return True
        return False

    def _conditions(self, number: int, placed: Collection[int]) -> tuple[exp.EQ, ...]:
        """Return all conditions between a node and the placed ones; each holds for both, whatever its direction."""
        found = {
            edge.condition.sql(): edge.condition
            for edge in self.edges
            if (edge.source == number and edge.target in placed) or (edge.target == number and edge.source in placed)
        }
        return tuple(found.values())


def _back(here: int, start: int, came: Mapping[int, int]) -> list[int]:
    """Return the nodes from a start to a reached node."""
    way = [here]
    while here != start:
        here = came[here]
        way.append(here)
    return way[::-1]


def numbers(expression: exp.Expr) -> set[int]:
    """Return the numbers of the nodes whose columns an expression contains."""
    return {int(one.table.removeprefix("n")) for one in expression.find_all(exp.Column)}


def lookup_columns(condition: exp.EQ, node: Node) -> list[str]:
    """Return the columns of a node that a condition compares directly."""
    qualifier = f"n{node.number}"
    sides = (condition.left, condition.right)
    return [side.name for side in sides if isinstance(side, exp.Column) and side.table == qualifier]


def is_carried(expression: exp.Expr, nodes: Sequence[Node], types: Types) -> bool:
    """Whether an image contains the value of an expression.

    An image does not tell whether a jsonb is null or missing, nor the spelling of a json, but it does tell what is
    inside them.
    """
    return all(
        _is_inside(column, {"jsonb": exp.JSONExtract | exp.JSONExtractScalar, "json": exp.JSONExtractScalar}[type_])
        for column in expression.find_all(exp.Column)
        if (type_ := type_of(column, nodes, types)) in ("jsonb", "json")
    )


def _is_inside(column: exp.Column, steps: type | UnionType) -> bool:
    """Whether one of these operators accesses the inside of a column."""
    around = column.parent
    while isinstance(around, exp.Paren | exp.JSONExtract) and not isinstance(around, steps):
        around = around.parent
    return isinstance(around, steps)


def type_of(expression: exp.Expr, nodes: Sequence[Node], types: Types) -> str:
    """Return an expression's type under its common name; empty if unknown."""
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
        # A cast keeps a non-deterministic collation.
        if not all(type_of(column, nodes, types) for column in expression.find_all(exp.Column)):
            return ""
        return next((name for name, kinds in _CASTS.items() if expression.is_type(*kinds)), "")
    return "text" if expression.is_string else "integer" if expression.is_int else ""
