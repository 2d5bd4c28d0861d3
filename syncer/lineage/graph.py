"""Graph: the readings of tables in a SELECT, the equalities between them, and the paths that lead to ``_id``.

`syncer.lineage.build` creates the graph, and says why a path finds the affected documents.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from syncer.lineage.scope import numbers

# So high that any path along keys costs less than one hop without a key.
_HOP_WITHOUT_KEY = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One reading of a table, whose columns are qualified with ``n`` and its number.

    The context is the enclosing subqueries in expressions and UNION branches, outermost first. The names are those that
    the query uses for columns of this reading, and perhaps for others.
    """

    number: int
    relation: str
    context: tuple[int, ...]
    names: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A condition: a row at ``source`` *never* matters without a row at ``target`` that satisfies it.

    Displacing other rows counts as mattering. The edge from the side of an outer join that keeps rows without a match
    holds only if one of the nodes in ``needs``, which are null for such a row, is needed for ``_id``. Other edges
    always hold: their ``needs`` is None.
    """

    source: int
    target: int
    condition: exp.Binary
    needs: frozenset[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """A condition on the row at ``target`` alone: a row at any of the sources never matters unless it holds."""

    sources: frozenset[int]
    target: int
    condition: exp.Expr


Hop = tuple[Node, tuple[exp.Binary, ...], tuple[exp.Expr, ...]]
"""A node on a path, the conditions that join it to the nodes before it, and its tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A path from a node to documents: its tests, its other nodes in order, and ``_id`` in columns of the last one."""

    tests: tuple[exp.Expr, ...]
    hops: tuple[Hop, ...]
    id: exp.Expr


Keys = Mapping[str, Collection[frozenset[str]]]
"""The sets of unique columns, by relation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A SELECT as nodes and edges.

    Args:
        edges: Those that hold; a condition that holds in both directions is two edges.
        ids: The expression for ``_id``, in columns of one node, in each UNION branch in which it is known.
        competes: Whether a row may displace rows of other documents than its paths lead to.
        forks: Edges from one node into all branches of a UNION: a row there matters only with a row in one of them.
        obstacles: By node, what in the SELECT relates it to others and yields no edge from it.
    """

    nodes: tuple[Node, ...] = ()
    edges: tuple[Edge, ...] = ()
    ids: tuple[exp.Expr, ...] = ()
    competes: bool = False
    forks: tuple[tuple[Edge, ...], ...] = ()
    tests: tuple[Test, ...] = ()
    obstacles: Mapping[int, Collection[str]] = field(default_factory=dict)

    def paths(self, start: Node, keys: Keys) -> tuple[Path, ...]:
        """Return paths from a node that together lead to all its documents; hops along keys are preferred.

        There is one path, or one through each branch of a UNION. There is none if some documents cannot be reached.
        """
        direct = self._cheapest(start, keys)
        if direct is not None:
            return (direct,)
        trails = self._trails(start, keys)
        for fork in self.forks:
            if fork[0].source in trails:
                _, approach = trails[fork[0].source]
                branches = [self._cheapest(self.nodes[edge.target], keys, approach=approach) for edge in fork]
                paths = tuple(branch for branch in branches if branch is not None)
                if len(paths) == len(fork):
                    return paths
        return ()

    def _cheapest(self, start: Node, keys: Keys, *, approach: tuple[int, ...] = ()) -> Path | None:
        """Return the cheapest path from a node to ``_id``, behind a way to that node."""
        trails = self._trails(start, keys, avoided=approach)
        ends = [(*trails[number], id_) for id_ in self.ids for number in numbers(id_) & trails.keys()]
        if not ends:
            return None
        _, trail, id_ = min(ends, key=lambda end: end[0])
        trail = approach + trail
        hops = [
            (self.nodes[number], self._conditions(number, trail[:position]), self._tests(number, trail))
            for position, number in enumerate(trail)
            if position
        ]
        return Path(tests=self._tests(trail[0], trail), hops=tuple(hops), id=id_)

    def _tests(self, number: int, trail: Collection[int]) -> tuple[exp.Expr, ...]:
        """Return what must hold for the row at a node if rows at all nodes of a way matter together."""
        tests = [test for test in self.tests if test.target == number and not test.sources.isdisjoint(trail)]
        return tuple(dict.fromkeys(test.condition for test in tests))

    def _trails(
        self, start: Node, keys: Keys, *, avoided: Collection[int] = ()
    ) -> dict[int, tuple[int, tuple[int, ...]]]:
        """Return, by node, the cost of the cheapest way to it and the nodes on that way."""
        trails: dict[int, tuple[int, tuple[int, ...]]] = {}
        queue: list[tuple[int, tuple[int, ...]]] = [(0, (start.number,))]
        while queue:
            cost, trail = heapq.heappop(queue)
            source = trail[-1]
            if source in trails:
                continue
            trails[source] = cost, trail
            for target in {edge.target for edge in self.edges if edge.source == source} - trails.keys() - set(avoided):
                # A subquery's rows lead out of it. No way leads into another one.
                context = self.nodes[target].context
                if context == start.context[: len(context)]:
                    hop = 1 if self._is_keyed(source, target, keys) else _HOP_WITHOUT_KEY
                    heapq.heappush(queue, (cost + hop, (*trail, target)))
        return trails

    def _is_keyed(self, source: int, target: int, keys: Keys) -> bool:
        """Whether the conditions between two nodes cover a whole key of one of them."""
        sides = [side for equal in self._conditions(source, {target}) for side in (equal.left, equal.right)]
        columns = {(side.table, side.name) for side in sides if isinstance(side, exp.Column)}
        return any(
            all((f"n{number}", name) in columns for name in key)
            for number in (source, target)
            for key in keys.get(self.nodes[number].relation, ())
        )

    def _conditions(self, number: int, placed: Collection[int]) -> tuple[exp.Binary, ...]:
        """Return all conditions between a node and the placed ones; each holds for both, whatever its direction."""
        conditions = (
            edge.condition
            for edge in self.edges
            if (edge.source == number and edge.target in placed) or (edge.target == number and edge.source in placed)
        )
        return tuple(dict.fromkeys(conditions))
