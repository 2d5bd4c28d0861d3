"""Dependencies: what a document's SELECT reads and returns, as `syncer.documents.analyze` found out.

Stored with the document in Postgres, so that the daemon need not parse SQL.
"""

from __future__ import annotations

from dataclasses import dataclass

from syncer.lineage.fingerprint import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUse:
    """How a document uses a table.

    Args:
        relation: ``schema.table``, quoted where SQL needs it.
        watched: The columns that the SELECT reads.
        routing: The columns that determine which documents a row belongs to, including the primary key.
        id_columns: Columns whose value is the id of an affected document.
        affected: Queries over the changed rows, ``$1::jsonb``, for the ids of other affected documents; may repeat ids.
    """

    relation: str
    watched: frozenset[str]
    routing: frozenset[str]
    id_columns: tuple[str, ...]
    affected: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """What a document's SELECT reads and returns.

    Args:
        canonical_select: The SELECT as deparsed by Postgres.
        id_type: The type of ``_id``.
        fields: Every column except ``_id`` and ``_routing``, in order.
        has_routing: Whether it has a column ``_routing``.
        root: The table whose rows are the documents; None if ``_id`` is not a unique column of a table.
        root_key: The column of the root that is ``_id``.
        tables: How each table is used, by relation.
        views: The views that it reads.
        shapes: The shape of each relation at the time of the analysis.
    """

    canonical_select: str
    id_type: str
    fields: tuple[str, ...]
    root: str | None
    root_key: str | None
    tables: dict[str, TableUse]
    views: tuple[str, ...]
    shapes: dict[str, Shape]
    has_routing: bool = False
