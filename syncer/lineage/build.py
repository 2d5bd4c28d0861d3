"""Builds the graph of a SELECT, from which the documents that a changed row affects are derived.

A node is one *reading* of a table: a CTE or view that is read twice yields nodes for each reading. An edge is an
equality that must hold wherever a row takes part in a document. The affected documents are found along edges, from the
row's node to the columns that ``_id`` is made of. Every table on the way is read as it is now. Conditions on one row
alone are *tests*: ``n.kind = 'Issue'``, ``n.deleted_at IS NULL``. Those of rows on the path are kept: they decide
whether it applies, and partial indexes serve. All other conditions are dropped on purpose: that can only find too many
documents, never too few. (Rule: only-the-path-to-the-root.)

Why a path suffices, by induction on its length: take a row that took part in a document together with certain rows on
the path. If those rows are unchanged, the path finds the document. If not, the changed one nearest to ``_id`` has a
change of its own, whose old image finds the document. Unchanged means in the columns that its node reads, which are
those of its tests, too.

Anything not understood yields no edge. In the worst case no path is found, and the definition needs an affects query.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp
from sqlglot.helper import ensure_list

from syncer.base.errors import DefinitionError
from syncer.base.formatting import shortened
from syncer.lineage.catalog import Probe, table_name, tables
from syncer.lineage.graph import Edge, Graph, Node, Test
from syncer.lineage.scope import (
    UNKNOWN,
    Columns,
    Meaning,
    Scope,
    accepts_null,
    column,
    distinct_on,
    is_array,
    is_carried,
    is_cut,
    is_strict,
    meaning_of_branches,
    numbers,
    renamed,
    type_of,
    with_constants,
    with_ctes,
)

_READINGS_MAX = 1000
COMPETE = "LIMIT, OFFSET, DISTINCT ON or a window lets the rows of a query displace one another"
MERGES = (
    "may have equal values with different texts, which GROUP BY, DISTINCT or a window merges: use its text (::text)"
)

Types = Mapping[str, Mapping[str, str]]
"""The type of each column, by relation; empty if different texts count as equal."""


def read_graph(probed: Probe, types: Types) -> Graph:
    """Build the graph of a SELECT, from the column types of its tables; it is empty if the SELECT cannot be parsed.

    Every occurrence of a table is a node at least once. A table in a place that is not understood has no edges.
    """
    if probed.tree is None:
        return Graph()
    walk = _Walk(probed, probed.tree, types)
    columns = walk.query(probed.tree, None, ())
    walk.place_the_rest()
    meant = [meaning for name, meaning in columns if name == "_id"]
    # From one row: if it were made of two, one transaction could change both, and neither old row find the other.
    ids = [
        id_
        for meaning in meant
        for id_ in meaning.alternatives or meaning.rivals
        if len(numbers(id_)) == 1 and is_carried(id_)
    ]
    needed = {number for id_ in ids if is_strict(id_) for number in numbers(id_)}
    edges = _holding(walk.edges, needed)
    return Graph(
        nodes=tuple(walk.nodes),
        edges=edges,
        ids=tuple(ids),
        competes=any(meaning.rivals for meaning in meant),
        forks=tuple(walk.forks),
        tests=tuple(walk.tests),
        obstacles=walk.obstacles,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Condition:
    """A conjunct of ON or WHERE.

    The sides are the nodes from which it yields edges, each side of an outer join apart, with what their edges need.
    Rows at some nodes may be ``lacking``: an outer join fills them with nulls before the condition is evaluated.
    """

    expression: exp.Expr
    sides: tuple[tuple[Container[int], frozenset[int] | None], ...]
    lacking: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body:
    """One SELECT during the walk; the context is the enclosing subqueries in expressions and UNION branches."""

    scope: Scope
    context: tuple[int, ...]
    conditions: list[_Condition] = field(default_factory=list)
    tables: set[str] = field(default_factory=set)
    """The aliases of what is a table itself, and no subquery or view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arm:
    """One side of a join: its nodes and, by name of a column, the alias that has it; None if that is ambiguous."""

    nodes: frozenset[int]
    owners: dict[str, str | None]


class _Walk:
    """One walk over a SELECT, in the order in which Postgres evaluates its parts: FROM, WHERE, the columns."""

    def __init__(self, probed: Probe, tree: exp.Expr, types: Types) -> None:
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []
        self.forks: list[tuple[Edge, ...]] = []
        self.tests: list[Test] = []
        self.obstacles: dict[int, list[str]] = {}
        self._relations = {read.name: read.relation for read in probed.reads}
        self._types = types
        self._views = probed.views
        self._equalities = probed.equalities
        self._contexts = itertools.count(1)
        self._unread = {id(table): table for table in tables(tree)}
        self._lacking = frozenset[int]()
        self._names: dict[int, dict[str, set[str]]] = {}

    def place_the_rest(self) -> None:
        """Create nodes without edges for tables in places that are not understood."""
        unread = list(self._unread.values())
        while unread:
            table = unread.pop()
            view = self._views.get(table_name(table))
            if view is None:
                if (cte := table.find_ancestor(exp.CTE)) and cte.parent and cte.parent.args.get("recursive"):
                    self._note([len(self.nodes)], f"the CTE {cte.alias} reads itself, or one that does")
                self._add_reading(table, (-1,))
            else:
                unread += tables(view)

    def _add_reading(self, table: exp.Table, context: tuple[int, ...]) -> Columns:
        """Create a node for a reading of a table; return its columns."""
        number, relation = len(self.nodes), self._relations.get(table_name(table), "")
        if number >= _READINGS_MAX:
            raise DefinitionError(
                f"The SELECT reads its tables more than {_READINGS_MAX} times, by way of CTEs and views",
                hint="Each reading of a CTE or a view counts. Flatten those that read one another twice.",
            )
        self.nodes.append(Node(number=number, relation=relation, context=context, names=self._names_of(table)))
        types = self._types.get(relation, {})
        return [(key, Meaning((column(number, key, type_),), is_complete=True)) for key, type_ in types.items()]

    def _names_of(self, table: exp.Table) -> frozenset[str]:
        """Return the names of columns that stand behind a table's alias anywhere in its query, or without an alias."""
        root = table.root()
        names = self._names.get(id(root))
        if names is None:
            names = self._names[id(root)] = {"": set()}
            for use in root.find_all(exp.Column):
                names.setdefault(use.table, set()).add(use.name)
            for join in root.find_all(exp.Join):
                names[""] |= {using.name for using in join.args.get("using") or ()}
        return frozenset(names[""] | names.get(table.alias_or_name, set()))

    # Queries

    def query(self, tree: exp.Expr, outer: Scope | None, context: tuple[int, ...]) -> Columns:
        """Read a query of any kind; return its columns."""
        outer = with_ctes(tree, outer)
        if isinstance(tree, exp.Select):
            return self._select(tree, outer, context)
        if isinstance(tree, exp.SetOperation):
            columns = self._union(tree, outer, context)
        elif isinstance(tree, exp.Subquery):
            columns = self.query(tree.this, outer, context)
        else:
            return []
        return [(name, UNKNOWN) for name, _ in columns] if is_cut(tree) else columns

    def _union(self, tree: exp.SetOperation, outer: Scope | None, context: tuple[int, ...]) -> Columns:
        node_count, by_branch = len(self.nodes), list[Columns]()
        for branch in (tree.this, tree.expression):
            first_number = len(self.nodes)
            # Each branch has a context of its own: branches never yield edges between each other.
            columns = self.query(branch, outer, (*context, next(self._contexts)))
            by_branch.append(with_constants(columns, branch, range(first_number, len(self.nodes))))
        left, right = by_branch
        if len(left) != len(right):
            return []
        compares = not isinstance(tree, exp.Union) or bool(tree.args.get("distinct"))
        return [
            (name, meaning_of_branches(node_count, (in_first, in_second), compares=compares))
            for (name, in_first), (_, in_second) in zip(left, right, strict=True)
        ]

    def _select(self, tree: exp.Select, outer: Scope | None, context: tuple[int, ...]) -> Columns:
        node_count = len(self.nodes)
        body = _Body(scope=Scope(outer), context=context)
        source, where = tree.args.get("from_"), tree.args.get("where")
        for item in [source, *(tree.args.get("joins") or ())] if source is not None else ():  # separated by commas
            self._from(item.this, body)
        if where is not None:
            # Also of those that name an outer row: only the rows inside never matter without it.
            every = range(node_count, sys.maxsize), None
            body.conditions.extend(
                _Condition(expression=conjunct, sides=(every,), lacking=self._lacking)
                for conjunct in _conjuncts(where.this)
            )
        for condition in body.conditions:
            self._read_condition(condition, body)
        for clause in ("expressions", "group", "having", "order", "distinct", "windows", "limit", "offset", "fetch"):
            self._read_nested(tree.args.get(clause), body)
        shared = _shared_by_competitors(tree)
        merges = bool(tree.args.get("group") or tree.args.get("distinct") or _windows(tree))
        columns: Columns = []
        for output in tree.expressions:
            meaning = body.scope.meaning(output.unalias())
            # Equal rows are merged: a column leads out only if equal values of its type are identical.
            if merges and (meaning.exact() != meaning):
                self._note(range(node_count, len(self.nodes)), f"{_text(output.unalias())} {MERGES}")
                meaning = meaning.exact()
            # Rows compete: a column leads out only if competitors share it. If ``_id`` is another one, a row still
            # leads to the document that it is a part of, but not to those that it displaces: an affects query adds
            # these.
            if meaning.alternatives and not all(output.unalias().unnest() in names for names in shared):
                self._note(range(node_count, len(self.nodes)), COMPETE)
                meaning = Meaning(rivals=meaning.alternatives)
            columns.append((output.alias_or_name, meaning))
        return columns

    # Sources

    def _from(self, item: exp.Expr, body: _Body) -> _Arm:
        """Read a FROM item with the joins attached to it."""
        node_count, alias = len(self.nodes), item.alias_or_name
        if isinstance(item, exp.Subquery) and isinstance(item.this, exp.Table | exp.Subquery) and not item.alias:
            arm = self._from(item.this, body)  # parentheses around a join
        else:
            columns = self._table(item, body) if isinstance(item, exp.Table) else self._derived(item, body)
            body.scope.sources[alias] = columns
            arm = _Arm(nodes=frozenset(range(node_count, len(self.nodes))), owners={name: alias for name, _ in columns})
        for join in item.args.get("joins") or []:
            arm = self._join(join, arm, body)
        return arm

    def _table(self, table: exp.Table, body: _Body) -> Columns:
        if table.db:
            self._unread.pop(id(table), None)
            view = self._views.get(table_name(table))
            if view is None:
                columns = self._add_reading(table, body.context)
                body.tables.add(table.alias_or_name)
                return [] if table.alias_column_names else columns
            self._unread |= {id(inner): inner for inner in tables(view)}
            return renamed(self.query(view, None, body.context), table)
        cte = body.scope.cte(table.name) if isinstance(table.this, exp.Identifier) else None
        if cte is not None:
            return renamed(renamed(self.query(cte.definition.this, cte.scope, body.context), cte.definition), table)
        self._read_nested(table.this, body)
        return []

    def _derived(self, item: exp.Expr, body: _Body) -> Columns:
        is_lateral = isinstance(item, exp.Lateral)
        inner = item.this if is_lateral else item
        if isinstance(inner, exp.Query):
            outer = body.scope if is_lateral else body.scope.outer
            return renamed(self.query(inner, outer, body.context), item)
        self._read_nested(inner, body)
        return []

    def _join(self, join: exp.Join, left: _Arm, body: _Body) -> _Arm:
        """Read a join; the side that an outer join keeps yields edges only if the other side is needed."""
        right = self._from(join.this, body)
        on = join.args.get("on")
        side = (join.side or "").upper()
        conditions = list(_conjuncts(on)) if on is not None else []
        owners = left.owners | right.owners | dict.fromkeys(left.owners.keys() & right.owners.keys())
        for name in (using.name for using in join.args.get("using") or []):
            aliases = left.owners.get(name), right.owners.get(name)
            if None not in aliases:
                this, expression = (exp.column(name, table=alias) for alias in aliases)
                conditions.append(exp.EQ(this=this, expression=expression))
            owners[name] = {"": aliases[0], "LEFT": aliases[0], "RIGHT": aliases[1]}.get(side)  # FULL merges both
        # ON yields edges only from the rows that it joins: of an outer join, those of its nullable side. The other side
        # needs a match, if ``_id`` is null for a row without one.
        sides = (
            (left.nodes, None if side in ("", "RIGHT") else right.nodes),
            (right.nodes, None if side in ("", "LEFT") else left.nodes),
        )
        body.conditions.extend(
            _Condition(expression=condition, sides=sides, lacking=self._lacking) for condition in conditions
        )
        self._lacking = self._lacking.union(*(needs for _, needs in sides if needs is not None))
        return _Arm(nodes=left.nodes | right.nodes, owners=owners)

    # Conditions

    def _read_condition(self, condition: _Condition, body: _Body) -> None:
        expression = condition.expression
        query = expression.args.get("query")
        if self._operator(expression) and isinstance(expression.expression, exp.Any):  # so IN (SELECT …) is deparsed
            query = expression.expression.this
        if isinstance(query, exp.Query):
            self._read_in(expression.this.unnest(), query, condition, body)
            return
        if isinstance(expression, exp.EQ) and isinstance(expression.expression, exp.Any):
            self._read_element(expression, condition, body)
        self._read_nested(expression, body)
        self._read_test(condition, body)
        named = {
            number
            for reference in expression.find_all(exp.Column)
            for alternative in body.scope.meaning(reference).alternatives
            for number in numbers(alternative)
        }
        if isinstance(expression, exp.Binary) and (isinstance(expression, exp.EQ) or self._operator(expression)):
            left, right = body.scope.meaning(expression.left), body.scope.meaning(expression.right)
            self._equate(left, right, condition)
            for side, meaning in ((expression.left, left), (expression.right, right)):
                if meaning.rivals:
                    self._note(named, COMPETE)
                elif not meaning.alternatives and side.find(exp.Column):
                    self._note(named, f"in {_text(expression)}, {_text(side)} is not made of known columns")
        else:
            is_equality = isinstance(expression, exp.Operator) and expression.args["operator"].endswith(".=")
            why = "is not followed: if equal values have equal texts, compare those, as in a.x::text = b.x::text"
            self._note(named, f"{_text(expression)} {why if is_equality else 'is no equality'}")

    def _read_test(self, condition: _Condition, body: _Body) -> None:
        """Keep a condition on a single row, which rows must meet to matter.

        A row of nulls must not meet it: otherwise a row that does not meet it would matter by taking the place of such
        a row. That is excluded if the table is read right here, and no outer join may lack its rows.
        """
        test = body.scope.test(condition.expression)
        if test is None:
            return
        (target,) = numbers(test)
        aliases = {reference.table for reference in condition.expression.find_all(exp.Column)}
        if accepts_null(test) and (target in condition.lacking or not aliases <= body.tables):
            return
        sides = [nodes for nodes, needs in condition.sides if needs is None]
        sources = frozenset(node for node in range(len(self.nodes)) if any(node in nodes for nodes in sides))
        self.tests.append(Test(sources=sources, target=target, condition=test))

    def _read_in(self, outside: exp.Expr, query: exp.Query, condition: _Condition, body: _Body) -> None:
        """Treat ``x IN (SELECT …)`` as a join: its inner rows never matter without an outer one."""
        node_count = len(self.nodes)
        columns = self.query(query, body.scope, body.context)
        inner = range(node_count, len(self.nodes)), None
        sides = outside.expressions if isinstance(outside, exp.Tuple) else [outside]
        if len(sides) == len(columns):
            for side, (_, meaning) in zip(sides, columns, strict=True):
                self._equate(body.scope.meaning(side), meaning, replace(condition, sides=(*condition.sides, inner)))
        self._read_nested(outside, body)

    def _read_element(self, expression: exp.EQ, condition: _Condition, body: _Body) -> None:
        """Add the edges of ``x = ANY (t.ids)``: as it is, and as ``t.ids @> ARRAY[x]``, which a GIN index answers."""
        sides = expression.left, expression.expression.this
        for element, array in itertools.product(*(body.scope.meaning(side).alternatives for side in sides)):
            if is_array(array) and is_strict(element) and is_carried(element):
                equal = exp.EQ(this=element.copy(), expression=exp.Any(this=exp.paren(array)))
                self._add_edges((element, array), equal, condition)
                if f"{element.meta.get('sql_type')}[]" == type_of(array):
                    elements = exp.Array(expressions=[element.copy()])
                    contains = exp.ArrayContainsAll(this=array.copy(), expression=elements)
                    self._add_edges((element, array), contains, condition)

    def _equate(self, left: Meaning, right: Meaning, condition: _Condition) -> None:
        """Add the edges of an equality and, if one side is known from every branch of a UNION, the fork into them."""
        edge_count = len(self.edges)
        for pair in itertools.product(left.alternatives, right.alternatives):
            # Both are null if one of their columns is, so WHERE rejects rows that an outer join has filled with nulls.
            # And an image has them whole: not an array's lower bound, nor whether a jsonb is null or missing.
            if all(is_strict(operand) and is_carried(operand) for operand in pair):
                equal: exp.Binary = exp.EQ(this=pair[0].copy(), expression=pair[1].copy())
                if operator := self._operator(condition.expression):
                    equal = exp.Operator(this=equal.this, expression=equal.expression, operator=operator)
                self._add_edges(pair, equal, condition)
        added = [edge for edge in self.edges[edge_count:] if edge.needs is None]
        for side, other_side in ((left, right), (right, left)):
            if len(side.alternatives) == 1 and other_side.is_complete:
                targets = set[int]().union(*map(numbers, other_side.alternatives))
                source = numbers(side.alternatives[0])
                fork = tuple(edge for edge in added if {edge.source} == source and edge.target in targets)
                if fork and len(fork) == len(other_side.alternatives):
                    self.forks.append(fork)

    def _add_edges(self, pair: tuple[exp.Expr, exp.Expr], equal: exp.Binary, condition: _Condition) -> None:
        """Add edges between two expressions, if each is of one node, from where the condition yields any."""
        one, other = map(numbers, pair)
        if len(one) != 1 or len(other) != 1 or one == other:
            return
        for source, target in itertools.permutations((*one, *other)):
            needed = [needs for nodes, needs in condition.sides if source in nodes]
            for needs in [None] if None in needed else needed:
                self.edges.append(Edge(source=source, target=target, condition=equal, needs=needs))
                if needs is not None:
                    self._note([source], f"the outer join on {_text(condition.expression)} keeps rows without a match")

    def _operator(self, condition: exp.Expr) -> str | None:
        """Return the operator of an equality by an operator outside pg_catalog, quoted: the parser drops the quotes."""
        return self._equalities.get(condition.args["operator"]) if isinstance(condition, exp.Operator) else None

    def _note(self, nodes: Iterable[int], obstacle: str) -> None:
        for number in nodes:
            self.obstacles.setdefault(number, []).append(obstacle)

    def _read_nested(self, nested: exp.Expr | list[exp.Expr] | None, body: _Body) -> None:
        """Read the outermost queries inside of expressions, each in a context of its own."""
        for tree in ensure_list(nested):
            for expression in tree.dfs(prune=lambda inner: isinstance(inner, exp.Query)):
                if isinstance(expression, exp.Query):
                    self.query(expression, body.scope, (*body.context, next(self._contexts)))


def _holding(edges: Sequence[Edge], needed: Collection[int]) -> tuple[Edge, ...]:
    """Return the edges that hold if the rows at some nodes are needed for ``_id``: without them, it is null.

    A row whose ``_id`` is null is no document. So an outer join that lacks such a row does not keep the others either.
    Unless the join is full, such a row has a match, which is needed with it.
    """
    holding = [edge for edge in edges if edge.needs is None]
    withheld = [edge for edge in edges if edge.needs is not None]
    full = {(edge.target, edge.source) for edge in withheld}  # of a full join, edges in both directions are withheld
    needed_nodes = set(needed)
    while fulfilled := [edge for edge in withheld if not needed_nodes.isdisjoint(edge.needs or ())]:
        holding += fulfilled
        matched = [edge for edge in fulfilled if (edge.source, edge.target) not in full]
        needed_nodes |= {number for edge in matched for number in (edge.source, edge.target)}
        withheld = [edge for edge in withheld if edge not in fulfilled]
    return tuple(holding)


def _conjuncts(expression: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the conditions that must all hold: an expression split at its ANDs."""
    expression = expression.unnest()
    if isinstance(expression, exp.And):
        yield from _conjuncts(expression.left)
        yield from _conjuncts(expression.right)
    else:
        yield expression


def _windows(select: exp.Select) -> list[exp.Window]:
    """Return a SELECT's own windows, without those of nested queries."""
    return [window for window in select.find_all(exp.Window) if window.parent_select is select]


def _shared_by_competitors(select: exp.Select) -> list[set[exp.Expr]]:
    """Return, for each clause that lets rows displace or change one another, what such rows have in common."""
    if is_cut(select):
        return [set()]
    named = {window.name: window for window in select.args.get("windows") or []}
    shared = [
        {partitioned_by.unnest() for partitioned_by in named.get(window.alias, window).args.get("partition_by") or []}
        for window in _windows(select)
    ]
    if keys := distinct_on(select):
        shared.append({key.unnest() for key in keys})
    return shared


def _text(expression: exp.Expr) -> str:
    return str(shortened(expression.unnest().sql(dialect="postgres")))
