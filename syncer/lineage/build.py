"""Builds the graph of a SELECT, from which the documents that a changed row affects are derived.

A node is one *reading* of a table: a CTE or view that is read twice yields nodes for each reading. An edge is an
equality that must hold wherever a row takes part in a document. The affected documents are found along edges, from the
row's node to the columns that ``_id`` is made of. Every table on the way is read as it is now. All other conditions are
dropped on purpose: that can only find too many documents, never too few. (Rule: only-the-path-to-the-root.)

Why a path suffices, by induction on its length: take a row that took part in a document together with certain rows on
the path. If those rows are unchanged, the path finds the document. If not, the changed one nearest to ``_id`` has a
change of its own, whose old image finds the document.

An edge leads from one node to another only if a row at the first *never* matters without a row at the second that
satisfies the condition. Displacing other rows counts as mattering. Hence:

- ON of an outer join yields edges only from its nullable side; from both if ``_id`` is null for a row without a match,
  since such a row is no document.
- A condition inside a subquery that names an outer row yields edges only from the rows inside.
- Two branches of a UNION, or two subqueries in expressions, never yield edges between each other. A condition on a
  column of a UNION is a *fork*: it leads to documents only if every branch does in which the column is not always null.
- LIMIT, OFFSET, DISTINCT ON and windows make the rows of a query compete. A column of such a query leads out of it only
  if competitors share it: it is in every PARTITION BY and in DISTINCT ON.
- Both sides of a condition are strict: null if one of their columns is. So WHERE rejects rows that an outer join has
  filled with nulls.
- Where equal rows are merged, or compete, a column leads out only if equal values of its type are identical.
- What an image does not contain leads nowhere: an array's lower bound, or whether a jsonb is null or missing.
- ``_id`` must be known from one row. If it is made of two, one transaction may change both: then neither old row finds
  the other one as it was.

Anything not understood yields no edge. In the worst case no path is found, and the definition needs an affects query.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from syncer.base.errors import DefinitionError
from syncer.base.formatting import shortened
from syncer.lineage.catalog import TableName, table_name, tables
from syncer.lineage.graph import EXACT_TYPES, Edge, Graph, Node, Types, Withheld, is_carried, numbers, type_of
from syncer.lineage.scope import Branches, Columns, Scope, kept_in, renamed
from syncer.lineage.select_parts import column_aliases, conjuncts, is_cut, queries, shared_by_competitors, windows

_READINGS_MAX = 1000
_COMPETE = "LIMIT, OFFSET, DISTINCT ON or a window lets the rows of a query displace one another"

# Types that a UNION never converts to that of another branch.
_UNCONVERTED = {"text", "uuid"}


def read_graph(tree: exp.Expr, types: Types, views: Mapping[TableName, exp.Expr]) -> Graph:
    """Build the graph of a canonical SELECT.

    Every occurrence of a table is a node at least once. A table in a place that is not understood has no edges.

    Args:
        tree: The SELECT.
        types: The column types of its tables.
        views: The canonical SELECT of each view that it reads.

    Raises:
        DefinitionError: It reads its tables too often.
    """
    reading = _Reading(tree, types, views)
    for name, alternatives in reading.query(tree, None, {}, ()):
        if name == "_id":
            reading.graph.ids += [
                one for one in alternatives if len(numbers(one)) == 1 and is_carried(one, reading.graph.nodes, types)
            ]
    reading.place_the_rest()
    reading.graph.release({number for id_ in reading.graph.ids if reading.is_strict(id_) for number in numbers(id_)})
    return reading.graph


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cte:
    """A CTE with the names visible at its definition."""

    definition: exp.CTE
    scope: Scope | None
    ctes: _Ctes


_Ctes = dict[str, _Cte]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Condition:
    """A conjunct and the nodes from which it yields edges; None for all nodes of its SELECT.

    ``keeps`` has, for each side of an outer join that keeps rows without a match, its nodes and those of the other
    side.
    """

    expression: exp.Expr
    speaks_for: frozenset[int] | None
    keeps: tuple[tuple[frozenset[int], frozenset[int]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body:
    """One SELECT during the walk.

    Args:
        scope: What its names refer to.
        ctes: The CTEs that it can read.
        context: The enclosing subqueries in expressions and UNION branches.
        first: The first node that can be its own; nodes of enclosing SELECTs have smaller numbers.
        conditions: The conjuncts of its ON and WHERE clauses.
    """

    scope: Scope
    ctes: _Ctes
    context: tuple[int, ...]
    first: int
    conditions: list[_Condition] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arm:
    """One side of a join.

    ``merged`` has, for each column merged by a USING in it, the source of its value; None if that varies by row.
    """

    nodes: frozenset[int]
    aliases: tuple[str, ...]
    merged: Mapping[str, str | None]


class _Reading:
    """One walk over a SELECT."""

    def __init__(self, tree: exp.Expr, types: Types, views: Mapping[TableName, exp.Expr]) -> None:
        self.graph = Graph()
        self._types = types
        self._views = views
        self._contexts = 0
        self._unread = {id(table): table for table in tables(tree)}

    def place_the_rest(self) -> None:
        """Create nodes without edges for tables in places that are not understood."""
        for table in self._unread.values():
            self._lost(table)

    def _lost(self, table: exp.Table) -> None:
        view = self._views.get(table_name(table))
        if view is None:
            self._node(table, (-1,))
            return
        for one in tables(view):
            self._lost(one)

    def _node(self, table: exp.Table, context: tuple[int, ...]) -> Node:
        if len(self.graph.nodes) >= _READINGS_MAX:
            raise DefinitionError(
                f"The SELECT reads its tables more than {_READINGS_MAX} times, by way of CTEs and views",
                hint="Each reading of a CTE or a view counts. Flatten those that read one another twice.",
            )
        made = Node(number=len(self.graph.nodes), table=table_name(table), context=context)
        self.graph.nodes.append(made)
        return made

    def _inner(self, context: tuple[int, ...]) -> tuple[int, ...]:
        self._contexts += 1
        return (*context, self._contexts)

    # Queries

    def query(self, tree: exp.Expr, outer: Scope | None, ctes: _Ctes, context: tuple[int, ...]) -> Columns:
        """Read a query of any kind; return its columns."""
        ctes = _with(tree, outer, ctes)
        if isinstance(tree, exp.Subquery):
            found = self.query(tree.this, outer, ctes, context)
            return kept_in(found) if is_cut(tree) else found
        if isinstance(tree, exp.SetOperation):
            return self._union(tree, outer, ctes, context)
        if isinstance(tree, exp.Select):
            return self._select(tree, outer, ctes, context)
        return []

    def _union(self, tree: exp.SetOperation, outer: Scope | None, ctes: _Ctes, context: tuple[int, ...]) -> Columns:
        first = len(self.graph.nodes)
        left = self.query(tree.this, outer, ctes, self._inner(context))
        right = self.query(tree.expression, outer, ctes, self._inner(context))
        if len(left) != len(right):
            return []
        if is_cut(tree):
            return kept_in(left)
        compares = not isinstance(tree, exp.Union) or bool(tree.args.get("distinct"))
        # A branch may return a column of an outer row. The other branch sees the same row, but returns another value.
        constants = [_constants(branch, len(left)) for branch in (tree.this, tree.expression)]
        return [
            (name, _joined(first, (one, other), known) if self._is_alike(one, other, known, compares=compares) else [])
            for (name, one), (_, other), *known in zip(left, right, *constants, strict=True)
        ]

    def _is_alike(
        self,
        one: Sequence[exp.Expr],
        other: Sequence[exp.Expr],
        constants: Sequence[exp.Expr | None],
        *,
        compares: bool,
    ) -> bool:
        """Whether no branch's column is converted to another type or replaced by an equal value of another branch."""
        known = [
            expressions or ([constant] if constant is not None else [])
            for expressions, constant in zip((one, other), constants, strict=True)
        ]
        found = {self._type(expression) for expressions in known for expression in expressions}
        is_one_type = len(found) == 1 and "" not in found and (all(known) or found <= _UNCONVERTED)
        return is_one_type and (not compares or found <= EXACT_TYPES)

    def _type(self, expression: exp.Expr) -> str:
        return type_of(expression, self.graph.nodes, self._types)

    def _select(self, tree: exp.Select, outer: Scope | None, ctes: _Ctes, context: tuple[int, ...]) -> Columns:
        body = _Body(scope=Scope(outer, self._types), ctes=ctes, context=context, first=len(self.graph.nodes))
        source = tree.args.get("from_")
        if source is not None:
            self._from(source.this, body)
        for join in tree.args.get("joins") or []:  # items after a comma
            self._join(join, _Arm(nodes=frozenset(), aliases=(), merged={}), body)
        where = tree.args.get("where")
        if where is not None:
            body.conditions.extend(_Condition(expression=one, speaks_for=None) for one in conjuncts(where.this))
        for condition in body.conditions:
            self._condition(condition, body)
        for part in ("expressions", "group", "having", "order", "distinct", "windows", "limit", "offset", "fetch"):
            self._nested(tree.args.get(part), body)
        return self._leading_out(tree, body)

    def _leading_out(self, tree: exp.Select, body: _Body) -> Columns:
        shared = shared_by_competitors(tree)
        merges = bool(tree.args.get("group") or tree.args.get("distinct") or windows(tree))
        found: Columns = []
        for one in tree.expressions:
            meant = body.scope.meaning(one.unalias())
            if meant and not shared(one):
                self._note(range(body.first, len(self.graph.nodes)), _COMPETE)
                meant = []
            if merges and not all(self._type(meaning) in EXACT_TYPES for meaning in meant):
                meant = [meaning for meaning in meant if self._type(meaning) in EXACT_TYPES]
            found.append((one.alias_or_name, meant))
        return found

    # Sources

    def _from(self, item: exp.Expr, body: _Body) -> _Arm:
        """Read a FROM item with the joins attached to it."""
        first = len(self.graph.nodes)
        alias = item.alias_or_name
        if isinstance(item, exp.Table):
            body.scope.sources[alias] = self._table(item, body)
        elif isinstance(item, exp.Subquery) and isinstance(item.this, exp.Table | exp.Subquery) and not item.alias:
            return self._joined(item, self._from(item.this, body), body)  # parentheses around a join
        else:
            body.scope.sources[alias] = self._derived(item, body)
        nodes = frozenset(range(first, len(self.graph.nodes)))
        return self._joined(item, _Arm(nodes=nodes, aliases=(alias,), merged={}), body)

    def _joined(self, item: exp.Expr, arm: _Arm, body: _Body) -> _Arm:
        for join in item.args.get("joins") or []:
            arm = self._join(join, arm, body)
        return arm

    def _table(self, table: exp.Table, body: _Body) -> Node | Columns:
        if table.db:
            self._unread.pop(id(table), None)
            view = self._views.get(table_name(table))
            if view is None:
                node = self._node(table, body.context)
                return node if not column_aliases(table) else []
            self._unread |= {id(one): one for one in tables(view)}
            return renamed(self.query(view, None, {}, body.context), table)
        cte = body.ctes.get(table.name) if isinstance(table.this, exp.Identifier) else None
        if cte is not None:
            found = self.query(cte.definition.this, cte.scope, cte.ctes, body.context)
            return renamed(renamed(found, cte.definition), table)
        self._nested(table.this, body)
        return []

    def _derived(self, item: exp.Expr, body: _Body) -> Columns:
        is_lateral = isinstance(item, exp.Lateral)
        inner = item.this if is_lateral else item
        if isinstance(inner, exp.Query):
            outer = body.scope if is_lateral else body.scope.outer
            return renamed(self.query(inner, outer, body.ctes, body.context), item)
        self._nested(inner, body)
        return []

    def _join(self, join: exp.Join, left: _Arm, body: _Body) -> _Arm:
        right = self._from(join.this, body)
        side = (join.side or "").upper()
        on = join.args.get("on")
        equal = list(conjuncts(on)) if on is not None else []
        merged = {**left.merged, **right.merged}
        for name in (one.name for one in join.args.get("using") or []):
            owners = self._owner(name, left, body.scope), self._owner(name, right, body.scope)
            if owners[0] is not None and owners[1] is not None:
                one, other = (exp.column(name, table=owner) for owner in owners)
                equal.append(exp.EQ(this=one, expression=other))
            merged[name] = {"": owners[0], "LEFT": owners[0], "RIGHT": owners[1]}.get(side)
        speaks_for = {"": None, "LEFT": right.nodes, "RIGHT": left.nodes}.get(side, frozenset())
        keeps = {
            "LEFT": ((left.nodes, right.nodes),),
            "RIGHT": ((right.nodes, left.nodes),),
            "FULL": ((left.nodes, right.nodes), (right.nodes, left.nodes)),
        }.get(side, ())
        body.conditions.extend(_Condition(expression=one, speaks_for=speaks_for, keeps=keeps) for one in equal)
        return _Arm(nodes=left.nodes | right.nodes, aliases=left.aliases + right.aliases, merged=merged)

    def _owner(self, name: str, arm: _Arm, scope: Scope) -> str | None:
        """Return the source whose column USING compares, if it is unambiguous."""
        if name in arm.merged:
            return arm.merged[name]
        known = [self._names(scope.sources[alias]) for alias in arm.aliases]
        having = [alias for alias, names in zip(arm.aliases, known, strict=True) if name in names]
        return having[0] if len(having) == 1 else None

    def _names(self, source: Node | Columns) -> Collection[str]:
        """Return the columns of a source."""
        return self._types[source.table] if isinstance(source, Node) else {name for name, _ in source}

    # Conditions

    def _condition(self, condition: _Condition, body: _Body) -> None:
        expression = condition.expression
        if isinstance(expression, exp.EQ):
            first = len(self.graph.edges)
            sides = body.scope.meaning(expression.left), body.scope.meaning(expression.right)
            self._equal(expression.left, sides[1], condition, body)
            self._fork(sides, self.graph.edges[first:])
        if isinstance(expression, exp.In) and expression.args.get("query") is not None:
            self._in(expression, condition, body)
        else:
            self._nested(expression, body)
            if not isinstance(expression, exp.EQ):
                named = [number for one in expression.find_all(exp.Column) for number in body.scope.nodes_of(one)]
                self._note(named, f"{_text(expression)} is no equality")

    def _note(self, nodes: Iterable[int], obstacle: str) -> None:
        for one in nodes:
            self.graph.obstacles.setdefault(one, []).append(obstacle)

    def _equal(self, side: exp.Expr, others: Sequence[exp.Expr], condition: _Condition, body: _Body) -> None:
        for one in body.scope.meaning(side):
            for other in others:
                is_pair = len(numbers(one)) == len(numbers(other)) == 1 and numbers(one) != numbers(other)
                if is_pair and all(self.is_strict(part) and self._is_carried(part) for part in (one, other)):
                    equal = exp.EQ(this=one.copy(), expression=other.copy())
                    self._edge(one, other, equal, condition, body)
                    self._edge(other, one, equal, condition, body)

    def _fork(self, sides: Sequence[list[exp.Expr]], edges: Sequence[Edge]) -> None:
        """Add the edges from a single node into all branches of a UNION, if none is missing."""
        for side, other in (sides, sides[::-1]):
            if len(side) == 1 and isinstance(other, Branches) and len(numbers(side[0])) == 1:
                targets = {number for branch in other for number in numbers(branch)}
                fork = tuple(edge for edge in edges if {edge.source} == numbers(side[0]) and edge.target in targets)
                if fork and len(fork) == len(other):
                    self.graph.forks.append(fork)

    def is_strict(self, expression: exp.Expr) -> bool:
        """Whether an expression is null if a column of it is: ``||`` of texts is, that of arrays is not."""
        return all(self._type(part) == "text" for part in expression.find_all(exp.DPipe))

    def _is_carried(self, expression: exp.Expr) -> bool:
        return is_carried(expression, self.graph.nodes, self._types)

    def _in(self, expression: exp.In, condition: _Condition, body: _Body) -> None:
        """Treat ``x IN (SELECT …)`` as a join: its inner rows never matter without an outer one."""
        inner = len(self.graph.nodes)
        found = self.query(expression.args["query"], body.scope, body.ctes, body.context)
        speaks_for = condition.speaks_for
        if speaks_for is not None:
            speaks_for |= frozenset(range(inner, len(self.graph.nodes)))
        outside = expression.this.unnest()
        sides = outside.expressions if isinstance(outside, exp.Tuple) else [outside]
        if len(sides) == len(found):
            for side, (_, alternatives) in zip(sides, found, strict=True):
                self._equal(side, alternatives, replace(condition, speaks_for=speaks_for), body)
        self._nested(expression.this, body)

    def _edge(self, source: exp.Expr, target: exp.Expr, equal: exp.EQ, condition: _Condition, body: _Body) -> None:
        """Add an edge between two nodes, if the condition yields edges from the first."""
        (one,), (other,) = numbers(source), numbers(target)
        if one >= body.first and (condition.speaks_for is None or one in condition.speaks_for):
            self.graph.edges.append(Edge(source=one, target=other, condition=equal))
        elif one >= body.first:
            edge = Edge(source=one, target=other, condition=equal)
            self.graph.withheld += [
                Withheld(edge=edge, nullable=lacked) for kept, lacked in condition.keeps if one in kept
            ]
            self._note([one], f"the outer join on {_text(condition.expression)} keeps rows without a match")

    def _nested(self, part: object, body: _Body) -> None:
        """Read the queries inside an expression, each in a context of its own."""
        for one in part if isinstance(part, list) else [part]:
            for query in queries(one):
                self.query(query, body.scope, body.ctes, self._inner(body.context))


def _text(expression: exp.Expr) -> str:
    return str(shortened(expression.unnest().sql(dialect="postgres")))


def _constants(branch: exp.Expr, columns: int) -> list[exp.Expr | None]:
    """Return the constants among the columns of a branch of a UNION. They lead to no row, but have a type."""
    select = branch.unnest()
    found = [one.unalias() for one in select.expressions] if isinstance(select, exp.Select) else []
    return [one if _is_constant(one) else None for one in found] if len(found) == columns else [None] * columns


def _is_constant(expression: exp.Expr) -> bool:
    kinds = (exp.Cast, exp.DataType, exp.DataTypeParam, exp.Literal, exp.Neg, exp.Null, exp.Paren)
    return all(isinstance(part, kinds) for part in expression.walk())


def _joined(first: int, branches: Sequence[list[exp.Expr]], constants: Sequence[exp.Expr | None]) -> list[exp.Expr]:
    """Return the alternatives of all branches that use only nodes from this number on."""
    found = [one for branch in branches for one in branch if min(numbers(one)) >= first]
    are_all = len(found) == sum(map(len, branches)) and all(
        isinstance(branch, Branches) or _is_null(constant) for branch, constant in zip(branches, constants, strict=True)
    )
    return Branches(found) if are_all else found


def _is_null(constant: exp.Expr | None) -> bool:
    return constant is not None and isinstance(constant.unnest(), exp.Null | exp.Cast) and bool(constant.find(exp.Null))


def _with(tree: exp.Expr, outer: Scope | None, ctes: _Ctes) -> _Ctes:
    clause = tree.args.get("with_")
    if clause is None:
        return ctes
    # WITH RECURSIVE hides all its names at once: a CTE in it may read itself or a later one.
    hidden = {cte.alias for cte in clause.expressions} if clause.args.get("recursive") else set()
    seen = {name: cte for name, cte in ctes.items() if name not in hidden}
    for cte in clause.expressions:
        if any(not table.db and table.name in hidden - seen.keys() for table in cte.this.find_all(exp.Table)):
            continue  # not read, so that its tables have no edges
        seen[cte.alias] = _Cte(definition=cte, scope=outer, ctes=dict(seen))
    return seen
