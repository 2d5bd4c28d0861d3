"""Uses: what a document's SELECT reads and returns, as `syncer.dependency` found it out when it was applied.

Kept with the document in Postgres, so that whoever follows it need not read SQL.
"""

from __future__ import annotations

from dataclasses import dataclass

from syncer.shape import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """An equality by which composing, or finding what a change touches, reaches into a table.

    Args:
        relation: Which table.
        columns: What is compared, each a column or an expression as SQL has it. An index should lead with them.
    """

    relation: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A column of the SELECT that becomes a field of the document."""

    name: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUse:
    """How one document uses one table.

    Args:
        relation: ``schema.table``, quoted where SQL needs it.
        watched: The columns that the SELECT reads.
        routing: The columns that say which documents a row belongs to; the key among them.
        id_columns: Columns whose value is the id of a document that the row touches.
        affected: Queries over the changed rows, ``$1::jsonb``, that return the ids of the others, maybe several times.
        is_derived: Whether that was derived from the SELECT, rather than said by the definition.
    """

    relation: str
    watched: frozenset[str]
    routing: frozenset[str]
    id_columns: tuple[str, ...]
    affected: tuple[str, ...]
    is_derived: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """What a document's SELECT reads and returns.

    Args:
        canonical_select: The SELECT as Postgres understood it.
        id_type: The type of ``_id``.
        fields: Every column but ``_id`` and ``_routing``, in order.
        has_routing: Whether there is a column ``_routing``.
        root: The table whose row a document is; None if ``_id`` is not a unique column of one.
        root_key: The column of the root that ``_id`` is.
        tables: How each table is used, by relation.
        views: The views that are read, by way of which some of the tables are.
        lookups: What should be indexed.
        shapes: What the catalogue said of each relation and column that is named, when it was asked.
    """

    canonical_select: str
    id_type: str
    fields: tuple[Field, ...]
    root: str | None
    root_key: str | None
    tables: dict[str, TableUse]
    views: tuple[str, ...]
    lookups: tuple[Lookup, ...]
    shapes: dict[str, Shape]
    has_routing: bool = False
