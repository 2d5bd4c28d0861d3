"""Derivation: from a SELECT, which documents a changed row touches.

The SELECT is read as a graph. A node is one *reading* of a table: a CTE or a view that is read twice gives nodes for
each reading. An edge is an equality that must hold wherever a row takes part in a document. The documents that a
row touches are found along edges from its node to the columns that ``_id`` is made of, every table on the way as it
is now. All else is dropped on purpose: that can only name too many documents, never too few.

Why a path is enough, by induction on its length: take a row that took part in a document together with certain
rows on the path. If those are as they were, the path finds the document. If not, the changed one that is nearest to
``_id`` has an event of its own, whose old image finds it.

An edge leads from a node to another one only if a row at the first *never* matters without a row at the second
that satisfies the condition. Mattering includes pushing other rows out. Hence:

- ON of an outer join speaks for the rows of its nullable side only.
- A condition inside a subquery that names an outer row speaks for the rows inside.
- Two branches of a UNION, or two subqueries in expressions, never speak for one another.
- LIMIT, OFFSET, DISTINCT ON and windows make the rows of a query compete. A column of such a query leads out of it
  only if competitors share it: it is in every PARTITION BY and in DISTINCT ON.
- Both sides of a condition are strict: null if a column of theirs is. So WHERE rejects the rows that an outer
  join has filled with nulls.

What is not understood yields no edge, so the worst outcome is that no path is found, and the definition is asked.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from syncer.errors import DefinitionError
from syncer.probe import TableName, table_name, tables

_READINGS_MAX = 1000
# So much dearer than a hop along a key that the longest path of those comes first.
_HOP_WITHOUT_KEY = _READINGS_MAX

# Null if an argument is, and the same whenever it is asked.
_STRICT = (
    exp.Column, exp.Identifier, exp.Literal, exp.Paren, exp.Cast, exp.DataType, exp.DataTypeParam,
    exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Lower, exp.Upper,
    exp.JSONExtract, exp.JSONExtractScalar,
)  # fmt: skip


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


def read_graph(
    tree: exp.Expr, columns: Mapping[TableName, frozenset[str]], views: Mapping[TableName, exp.Expr]
) -> Graph:
    """Read a canonical SELECT.

    Every occurrence of a table is a node at least once; one in a place that is not understood has no edges.

    Args:
        tree: The SELECT.
        columns: The columns that it reads, by table.
        views: The canonical SELECT of each view that it reads.

    Raises:
        DefinitionError: Its tables are read more often than can be followed.
    """
    reading = _Reading(tree, columns, views)
    for name, alternatives in reading.query(tree, None, {}, ()):
        if name == "_id":
            reading.graph.ids += alternatives
    reading.place_the_rest()
    return reading.graph


_Columns = list[tuple[str, list[exp.Expr]]]
"""What a query's columns are in terms of nodes: one alternative for each UNION branch where that is known."""


def _named(columns: _Columns, name: str) -> list[exp.Expr]:
    found = [alternatives for one, alternatives in columns if one == name]
    return found[0] if len(found) == 1 else []


class _Scope:
    """The sources that names can refer to in one SELECT, and those around it."""

    def __init__(self, outer: _Scope | None) -> None:
        self.outer = outer
        self.sources: dict[str, Node | _Columns] = {}

    def resolve(self, reference: exp.Column) -> tuple[list[exp.Expr], bool]:
        """What a reference stands for, and whether it is a source of this very SELECT."""
        scope: _Scope | None = None if isinstance(reference.this, exp.Star) else self
        while scope is not None:
            source = scope.source(reference)
            if source is not None:
                if isinstance(source, Node):
                    return [_column(source, reference.name)], scope is self
                return _named(source, reference.name), scope is self
            scope = scope.outer
        return [], False

    def source(self, reference: exp.Column) -> Node | _Columns | None:
        """The source that a reference names, if it is one of this SELECT."""
        if reference.table:
            return self.sources.get(reference.table)
        # Postgres leaves the qualifier out only where there is one source.
        return next(iter(self.sources.values())) if len(self.sources) == 1 else None

    def meaning(self, expression: exp.Expr) -> list[tuple[exp.Expr, bool]]:
        """What a strict expression is in terms of nodes, and whether these are sources of this very SELECT."""
        expression = expression.unnest()
        if not all(_is_strict(part) for part in expression.walk()):
            return []
        if isinstance(expression, exp.Column):
            found, is_own = self.resolve(expression)
            return [(one, is_own) for one in found]
        columns = list(expression.find_all(exp.Column))
        if not columns:
            return []
        resolved = [self.resolve(one) for one in columns]
        if any(len(found) != 1 for found, _ in resolved) or len({is_own for _, is_own in resolved}) != 1:
            return []
        meant = expression.copy()
        for place, (found, _) in zip(list(meant.find_all(exp.Column)), resolved, strict=True):
            place.replace(exp.paren(found[0].copy()) if not isinstance(found[0], exp.Column) else found[0].copy())
        return [(meant, resolved[0][1])]


def _is_strict(part: exp.Expr) -> bool:
    """Whether a part of an expression gives null for null; so does ``||`` of texts, but not that of arrays."""
    return _is_text(part) if isinstance(part, exp.DPipe) else isinstance(part, _STRICT)


def _is_text(expression: exp.Expr) -> bool:
    expression = expression.unnest()
    if isinstance(expression, exp.DPipe):
        return _is_text(expression.left) or _is_text(expression.right)
    return expression.is_string or (isinstance(expression, exp.Cast) and expression.is_type("text", "varchar"))


def _column(node: Node, name: str) -> exp.Column:
    return exp.column(exp.to_identifier(name, quoted=True), table=exp.to_identifier(f"n{node.number}", quoted=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cte:
    """A CTE, with what is in sight where it stands."""

    definition: exp.CTE
    scope: _Scope | None
    ctes: _Ctes


_Ctes = dict[str, _Cte]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Condition:
    """A conjunct, with the nodes that it speaks for; None stands for all of its SELECT's own."""

    expression: exp.Expr
    speaks_for: frozenset[int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body:
    """One SELECT while it is read.

    Args:
        scope: What its names can refer to.
        ctes: The CTEs that it can read.
        context: The subqueries in expressions and UNION branches around it.
        conditions: The conjuncts of its ON and WHERE clauses.
    """

    scope: _Scope
    ctes: _Ctes
    context: tuple[int, ...]
    conditions: list[_Condition] = field(default_factory=list)


class _Reading:
    """One walk over a SELECT."""

    def __init__(
        self, tree: exp.Expr, columns: Mapping[TableName, frozenset[str]], views: Mapping[TableName, exp.Expr]
    ) -> None:
        self.graph = Graph()
        self._columns = columns
        self._views = views
        self._places: dict[int, int] = {}
        self._unread: dict[int, exp.Table] = {}
        self._contexts = 0
        for place, table in enumerate(tables(tree)):
            self._expect(table, place)

    def _expect(self, table: exp.Table, place: int) -> None:
        if id(table) not in self._places:
            self._places[id(table)] = place
            self._unread[id(table)] = table

    def place_the_rest(self) -> None:
        """Make nodes without edges of the tables in places that are not understood."""
        for table in self._unread.values():
            self._lost(table, self._places[id(table)])

    def _lost(self, table: exp.Table, place: int) -> None:
        view = self._views.get(table_name(table))
        if view is None:
            self._node(table, (-1,), place)
            return
        for one in tables(view):
            self._lost(one, place)

    def _node(self, table: exp.Table, context: tuple[int, ...], place: int) -> Node:
        if len(self.graph.nodes) >= _READINGS_MAX:
            raise DefinitionError(
                f"The SELECT reads its tables more than {_READINGS_MAX} times, by way of CTEs and views",
                hint="Each reading of a CTE or a view counts. Flatten those that read one another twice.",
            )
        made = Node(number=len(self.graph.nodes), table=table_name(table), context=context, place=place)
        self.graph.nodes.append(made)
        return made

    def _inner(self, context: tuple[int, ...]) -> tuple[int, ...]:
        self._contexts += 1
        return (*context, self._contexts)

    # Queries

    def query(self, tree: exp.Expr, outer: _Scope | None, ctes: _Ctes, context: tuple[int, ...]) -> _Columns:
        """Read a query of any kind; what its columns are."""
        ctes = _with(tree, outer, ctes)
        if isinstance(tree, exp.Subquery):
            found = self.query(tree.this, outer, ctes, context)
            return [] if _is_cut(tree) else found
        if isinstance(tree, exp.SetOperation):
            return self._union(tree, outer, ctes, context)
        if isinstance(tree, exp.Select):
            return self._select(tree, outer, ctes, context)
        return []

    def _union(self, tree: exp.SetOperation, outer: _Scope | None, ctes: _Ctes, context: tuple[int, ...]) -> _Columns:
        left = self.query(tree.this, outer, ctes, self._inner(context))
        right = self.query(tree.expression, outer, ctes, self._inner(context))
        if _is_cut(tree) or len(left) != len(right):
            return []
        return [(name, one + other) for (name, one), (_, other) in zip(left, right, strict=True)]

    def _select(self, tree: exp.Select, outer: _Scope | None, ctes: _Ctes, context: tuple[int, ...]) -> _Columns:
        body = _Body(scope=_Scope(outer), ctes=ctes, context=context)
        source = tree.args.get("from_")
        if source is not None:
            self._from(source.this, body)
        for join in tree.args.get("joins") or []:
            self._join(join, frozenset(), body)
        where = tree.args.get("where")
        if where is not None:
            body.conditions.extend(_Condition(expression=one, speaks_for=None) for one in _conjuncts(where.this))
        for condition in body.conditions:
            self._condition(condition, body)
        for part in ("expressions", "group", "having", "order", "distinct", "windows", "limit", "offset", "fetch"):
            self._nested(tree.args.get(part), body)
        shared = _shared_by_competitors(tree)
        return [
            (one.alias_or_name, [meant for meant, _ in body.scope.meaning(one.unalias())] if shared(one) else [])
            for one in tree.expressions
        ]

    # Sources

    def _from(self, item: exp.Expr, body: _Body) -> frozenset[int]:
        """Read an item of FROM with the joins that hang on it; the nodes that it brings."""
        first = len(self.graph.nodes)
        if isinstance(item, exp.Table):
            body.scope.sources[item.alias_or_name] = self._table(item, body)
        elif isinstance(item, exp.Subquery) and isinstance(item.this, exp.Table | exp.Subquery) and not item.alias:
            self._from(item.this, body)  # parentheses around a join
        else:
            body.scope.sources[item.alias_or_name] = self._derived(item, body)
        brought = frozenset(range(first, len(self.graph.nodes)))
        for join in item.args.get("joins") or []:
            brought = self._join(join, brought, body)
        return brought

    def _table(self, table: exp.Table, body: _Body) -> Node | _Columns:
        if table.db:
            place = self._places[id(table)]
            self._unread.pop(id(table), None)
            view = self._views.get(table_name(table))
            if view is None:
                node = self._node(table, body.context, place)
                return node if not _column_aliases(table) else []
            for one in tables(view):
                self._expect(one, place)
            return _renamed(self.query(view, None, {}, body.context), table)
        cte = body.ctes.get(table.name) if isinstance(table.this, exp.Identifier) else None
        if cte is not None:
            found = self.query(cte.definition.this, cte.scope, cte.ctes, body.context)
            return _renamed(_renamed(found, cte.definition), table)
        self._nested(table.this, body)
        return []

    def _derived(self, item: exp.Expr, body: _Body) -> _Columns:
        is_lateral = isinstance(item, exp.Lateral)
        inner = item.this if is_lateral else item
        if isinstance(inner, exp.Query):
            outer = body.scope if is_lateral else body.scope.outer
            return _renamed(self.query(inner, outer, body.ctes, body.context), item)
        self._nested(inner, body)
        return []

    def _join(self, join: exp.Join, left: frozenset[int], body: _Body) -> frozenset[int]:
        before = set(body.scope.sources)
        right = self._from(join.this, body)
        speaks_for = {"": None, "LEFT": right, "RIGHT": left}.get((join.side or "").upper(), frozenset())
        on = join.args.get("on")
        equal = list(_conjuncts(on)) if on is not None else []
        for name in join.args.get("using") or []:
            equal += self._using(name.name, before, body.scope)
        body.conditions.extend(_Condition(expression=one, speaks_for=speaks_for) for one in equal)
        return left | right

    def _using(self, name: str, before: set[str], scope: _Scope) -> list[exp.Expr]:
        """USING as an equality, where it is clear which two sources have the column."""
        having = [alias for alias, source in scope.sources.items() if self._has(source, name)]
        left = [alias for alias in having if alias in before]
        right = [alias for alias in having if alias not in before]
        if len(left) != 1 or len(right) != 1:
            return []
        one, other = (exp.column(name, table=alias) for alias in (*left, *right))
        return [exp.EQ(this=one, expression=other)]

    def _has(self, source: Node | _Columns, name: str) -> bool:
        if isinstance(source, Node):
            return name in self._columns.get(source.table, ())
        return any(one == name for one, _ in source)

    # Conditions

    def _condition(self, condition: _Condition, body: _Body) -> None:
        expression = condition.expression
        if isinstance(expression, exp.EQ):
            self._equal(expression.left, body.scope.meaning(expression.right), condition, body)
        if isinstance(expression, exp.In) and expression.args.get("query") is not None:
            self._in(expression, condition, body)
        else:
            self._nested(expression, body)

    def _equal(
        self, side: exp.Expr, others: Sequence[tuple[exp.Expr, bool]], condition: _Condition, body: _Body
    ) -> None:
        for one, one_is_own in body.scope.meaning(side):
            for other, other_is_own in others:
                if len(numbers(one)) == len(numbers(other)) == 1 and numbers(one) != numbers(other):
                    equal = exp.EQ(this=one.copy(), expression=other.copy())
                    if one_is_own:
                        self._edge(one, other, equal, condition)
                    if other_is_own:
                        self._edge(other, one, equal, condition)

    def _in(self, expression: exp.In, condition: _Condition, body: _Body) -> None:
        """``x IN (SELECT …)``: as a condition of all rows it is a join; elsewhere it is a subquery like any other."""
        is_join = condition.speaks_for is None
        context = body.context if is_join else self._inner(body.context)
        found = self.query(expression.args["query"], body.scope, body.ctes, context)
        outside = expression.this.unnest()
        sides = outside.expressions if isinstance(outside, exp.Tuple) else [outside]
        if is_join and len(sides) == len(found):
            for side, (_, alternatives) in zip(sides, found, strict=True):
                self._equal(side, [(one, True) for one in alternatives], condition, body)
        self._nested(expression.this, body)

    def _edge(self, source: exp.Expr, target: exp.Expr, equal: exp.EQ, condition: _Condition) -> None:
        """Let the condition be followed from one node to another, if it speaks for the first."""
        (one,), (other,) = numbers(source), numbers(target)
        if condition.speaks_for is None or one in condition.speaks_for:
            self.graph.edges.append(Edge(source=one, target=other, condition=equal))

    def _nested(self, part: object, body: _Body) -> None:
        """Read the queries inside an expression, each in a context of its own."""
        for one in part if isinstance(part, list) else [part]:
            for query in _queries(one):
                self.query(query, body.scope, body.ctes, self._inner(body.context))


def _with(tree: exp.Expr, outer: _Scope | None, ctes: _Ctes) -> _Ctes:
    clause = tree.args.get("with_")
    if clause is None:
        return ctes
    # A recursive clause hides all its names at once: a CTE in it may read itself, or one that comes later.
    hidden = {cte.alias for cte in clause.expressions} if clause.args.get("recursive") else set()
    seen = {name: cte for name, cte in ctes.items() if name not in hidden}
    for cte in clause.expressions:
        if any(not table.db and table.name in hidden - seen.keys() for table in cte.this.find_all(exp.Table)):
            continue  # left unread, so that its tables have no edges
        seen[cte.alias] = _Cte(definition=cte, scope=outer, ctes=dict(seen))
    return seen


def _conjuncts(expression: exp.Expr) -> Iterator[exp.Expr]:
    expression = expression.unnest()
    if isinstance(expression, exp.And):
        yield from _conjuncts(expression.left)
        yield from _conjuncts(expression.right)
    else:
        yield expression


def _queries(part: object) -> Iterator[exp.Expr]:
    """The outermost queries inside an expression."""
    if isinstance(part, exp.Query):
        yield part
    elif isinstance(part, exp.Expr):
        for child in part.iter_expressions():
            yield from _queries(child)


def _is_cut(query: exp.Expr) -> bool:
    return any(query.args.get(name) for name in ("limit", "offset", "fetch"))


def _shared_by_competitors(select: exp.Select) -> Callable[[exp.Expr], bool]:
    """Whether all rows that can push one another out, or change one another, have the same value in a column."""
    group = select.args.get("group")
    if _is_cut(select) or (group and group.find(exp.GroupingSets, exp.Cube, exp.Rollup)):
        return lambda _: False
    named = {window.name: window for window in select.args.get("windows") or []}
    shared = [
        {one.unnest().sql() for one in named.get(window.alias, window).args.get("partition_by") or []}
        for window in select.find_all(exp.Window)
        if window.parent_select is select
    ]
    distinct = select.args.get("distinct")
    on = distinct.args.get("on") if isinstance(distinct, exp.Distinct) else None
    if on is not None:
        shared.append({one.unnest().sql() for one in (on.expressions if isinstance(on, exp.Tuple) else [on])})
    return lambda column: all(column.unalias().unnest().sql() in names for names in shared)


def _column_aliases(item: exp.Expr) -> list[str]:
    alias = item.args.get("alias")
    return [one.name for one in alias.args.get("columns") or []] if isinstance(alias, exp.TableAlias) else []


def _renamed(columns: _Columns, item: exp.Expr) -> _Columns:
    """Columns under the names that an alias gives them, as in ``AS s(a, b)``."""
    names = _column_aliases(item)
    return [(names[at] if at < len(names) else name, alternatives) for at, (name, alternatives) in enumerate(columns)]
