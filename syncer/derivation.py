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
- Where equal rows become one, or compete, a column leads out only if equal values of its type are identical.
- What an image does not tell of a row leads nowhere: where an array begins, whether a jsonb is null or missing.
- ``_id`` must be known from one row. Made of two, it is lost when one transaction changes both: neither old row finds
  the other one as it was.

What is not understood yields no edge, so the worst outcome is that no path is found, and the definition is asked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from syncer.clause import column_aliases, conjuncts, is_cut, queries, shared_by_competitors, windows
from syncer.errors import DefinitionError
from syncer.graph import EXACT_TYPES, Edge, Graph, Node, Types, is_carried, numbers, type_of
from syncer.probe import TableName, table_name, tables
from syncer.scope import Columns, Scope, kept_in, renamed

_READINGS_MAX = 1000

# Those that no other branch of a UNION converts to another type.
_UNCONVERTED = {"text", "uuid"}


def read_graph(tree: exp.Expr, types: Types, views: Mapping[TableName, exp.Expr]) -> Graph:
    """Read a canonical SELECT.

    Every occurrence of a table is a node at least once; one in a place that is not understood has no edges.

    Args:
        tree: The SELECT.
        types: What the tables that it reads are made of.
        views: The canonical SELECT of each view that it reads.

    Raises:
        DefinitionError: Its tables are read more often than can be followed.
    """
    reading = _Reading(tree, types, views)
    for name, alternatives in reading.query(tree, None, {}, ()):
        if name == "_id":
            reading.graph.ids += [one for one in alternatives if is_carried(one, reading.graph.nodes, types)]
    reading.place_the_rest()
    return reading.graph


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cte:
    """A CTE, with what is in sight where it stands."""

    definition: exp.CTE
    scope: Scope | None
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
        first: The first node that may be its own: those of what is around it have been made before.
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

    Args:
        nodes: What it brings.
        aliases: The sources in it.
        merged: For each column that a USING in it has merged, the source whose value that is; None if it depends.
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
        read = list(tables(tree))
        self._places = {id(table): place for place, table in enumerate(read)}
        self._view_place: int | None = None
        self._unread: dict[tuple[int, int], exp.Table] = {}
        self._contexts = 0
        for table in read:
            self._expect(table)

    def _place(self, table: exp.Table) -> int:
        """Where a table stands in the SELECT; one that a view reads, where that view is."""
        return self._places[id(table)] if self._view_place is None else self._view_place

    def _expect(self, table: exp.Table) -> None:
        self._unread[self._place(table), id(table)] = table

    def place_the_rest(self) -> None:
        """Make nodes without edges of the tables in places that are not understood."""
        for (place, _), table in self._unread.items():
            self._lost(table, place)

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

    def query(self, tree: exp.Expr, outer: Scope | None, ctes: _Ctes, context: tuple[int, ...]) -> Columns:
        """Read a query of any kind; what its columns are."""
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
        # A row of outside that a branch hands on is there for the other branch, too, which has another value.
        return [
            (name, _of(first, one + other) if self._is_alike(one, other, compares=compares) else [])
            for (name, one), (_, other) in zip(left, right, strict=True)
        ]

    def _is_alike(self, one: Sequence[exp.Expr], other: Sequence[exp.Expr], *, compares: bool) -> bool:
        """Whether no branch of a set operation is converted to another type, nor takes an equal value for its own."""
        found = {self._type(expression) for expression in (*one, *other)}
        is_one_type = len(found) == 1 and "" not in found and (bool(one and other) or found <= _UNCONVERTED)
        return is_one_type and (not compares or found <= EXACT_TYPES)

    def _type(self, expression: exp.Expr) -> str:
        return type_of(expression, self.graph.nodes, self._types)

    def _select(self, tree: exp.Select, outer: Scope | None, ctes: _Ctes, context: tuple[int, ...]) -> Columns:
        body = _Body(scope=Scope(outer, self._types), ctes=ctes, context=context, first=len(self.graph.nodes))
        source = tree.args.get("from_")
        if source is not None:
            self._from(source.this, body)
        for join in tree.args.get("joins") or []:  # behind a comma
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
            meant = body.scope.meaning(one.unalias()) if shared(one) else []
            if merges:
                meant = [meaning for meaning in meant if self._type(meaning) in EXACT_TYPES]
            found.append((one.alias_or_name, meant))
        return found

    # Sources

    def _from(self, item: exp.Expr, body: _Body) -> _Arm:
        """Read an item of FROM with the joins that hang on it."""
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
            self._unread.pop((self._place(table), id(table)), None)
            view = self._views.get(table_name(table))
            if view is None:
                node = self._node(table, body.context, self._place(table))
                return node if not column_aliases(table) else []
            return renamed(self._view(view, self._place(table), body.context), table)
        cte = body.ctes.get(table.name) if isinstance(table.this, exp.Identifier) else None
        if cte is not None:
            found = self.query(cte.definition.this, cte.scope, cte.ctes, body.context)
            return renamed(renamed(found, cte.definition), table)
        self._nested(table.this, body)
        return []

    def _view(self, view: exp.Expr, place: int, context: tuple[int, ...]) -> Columns:
        """Read a view in one of the places that it is read in."""
        around, self._view_place = self._view_place, place
        for table in tables(view):
            self._expect(table)
        found = self.query(view, None, {}, context)
        self._view_place = around
        return found

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
        speaks_for = {"": None, "LEFT": right.nodes, "RIGHT": left.nodes}.get(side, frozenset())
        on = join.args.get("on")
        equal = list(conjuncts(on)) if on is not None else []
        merged = {**left.merged, **right.merged}
        for name in (one.name for one in join.args.get("using") or []):
            owners = self._owner(name, left, body.scope), self._owner(name, right, body.scope)
            if owners[0] is not None and owners[1] is not None:
                one, other = (exp.column(name, table=owner) for owner in owners)
                equal.append(exp.EQ(this=one, expression=other))
            merged[name] = {"": owners[0], "LEFT": owners[0], "RIGHT": owners[1]}.get(side)
        body.conditions.extend(_Condition(expression=one, speaks_for=speaks_for) for one in equal)
        return _Arm(nodes=left.nodes | right.nodes, aliases=left.aliases + right.aliases, merged=merged)

    def _owner(self, name: str, arm: _Arm, scope: Scope) -> str | None:
        """The source whose column USING compares, if it is clear."""
        if name in arm.merged:
            return arm.merged[name]
        known = [self._names(scope.sources[alias]) for alias in arm.aliases]
        having = [alias for alias, names in zip(arm.aliases, known, strict=True) if name in names]
        return having[0] if len(having) == 1 else None

    def _names(self, source: Node | Columns) -> Collection[str]:
        """The columns of a source; none if they are not known."""
        return self._types[source.table] if isinstance(source, Node) else {name for name, _ in source}

    # Conditions

    def _condition(self, condition: _Condition, body: _Body) -> None:
        expression = condition.expression
        if isinstance(expression, exp.EQ):
            self._equal(expression.left, body.scope.meaning(expression.right), condition, body)
        if isinstance(expression, exp.In) and expression.args.get("query") is not None:
            self._in(expression, condition, body)
        else:
            self._nested(expression, body)

    def _equal(self, side: exp.Expr, others: Sequence[exp.Expr], condition: _Condition, body: _Body) -> None:
        for one in body.scope.meaning(side):
            for other in others:
                is_pair = len(numbers(one)) == len(numbers(other)) == 1 and numbers(one) != numbers(other)
                if is_pair and all(self._is_strict(part) and self._is_carried(part) for part in (one, other)):
                    equal = exp.EQ(this=one.copy(), expression=other.copy())
                    self._edge(one, other, equal, condition, body)
                    self._edge(other, one, equal, condition, body)

    def _is_strict(self, expression: exp.Expr) -> bool:
        """Whether an expression is null if a column of it is: ``||`` of texts is, that of arrays is not."""
        return all(self._type(part) == "text" for part in expression.find_all(exp.DPipe))

    def _is_carried(self, expression: exp.Expr) -> bool:
        return is_carried(expression, self.graph.nodes, self._types)

    def _in(self, expression: exp.In, condition: _Condition, body: _Body) -> None:
        """``x IN (SELECT …)`` is a join, whose inner rows never matter without an outer one."""
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
        """Let the condition be followed from one node to another, if it speaks for the first."""
        (one,), (other,) = numbers(source), numbers(target)
        if one >= body.first and (condition.speaks_for is None or one in condition.speaks_for):
            self.graph.edges.append(Edge(source=one, target=other, condition=equal))

    def _nested(self, part: object, body: _Body) -> None:
        """Read the queries inside an expression, each in a context of its own."""
        for one in part if isinstance(part, list) else [part]:
            for query in queries(one):
                self.query(query, body.scope, body.ctes, self._inner(body.context))


def _of(first: int, meanings: Sequence[exp.Expr]) -> list[exp.Expr]:
    """Those that are made of nodes from this one on."""
    return [one for one in meanings if min(numbers(one)) >= first]


def _with(tree: exp.Expr, outer: Scope | None, ctes: _Ctes) -> _Ctes:
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
