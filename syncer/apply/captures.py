"""Captures: what the triggers of each table write, for all documents together, and to which partition it goes.

A change goes to the partition of the root row that it belongs to, such as a comment's post: so a document's changes
stay together, as far as a foreign key says so.
"""

from __future__ import annotations

from collections.abc import Iterable

from syncer.base.postgres import Connection
from syncer.capture import eligibility
from syncer.capture.triggers import Capture
from syncer.documents.registry import Document
from syncer.lineage.dependencies import Dependencies

_FOREIGN_KEYS = """
SELECT a.attname::text, format('%I.%I', n.nspname, c.relname), f.attname::text
FROM pg_constraint AS k
JOIN pg_attribute AS a ON a.attrelid = k.conrelid AND a.attnum = k.conkey[1]
JOIN pg_class AS c ON c.oid = k.confrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_attribute AS f ON f.attrelid = k.confrelid AND f.attnum = k.confkey[1]
WHERE k.conrelid = $1::regclass AND k.contype = 'f' AND cardinality(k.conkey) = 1
ORDER BY 1
"""


def captures(connection: Connection, documents: Iterable[Document]) -> Iterable[Capture]:
    """Yield how each table is captured for all documents together; not the tables that no longer exist."""
    readers: dict[str, list[Dependencies]] = {}
    for document in documents:
        for relation in document.dependencies.tables:
            # Rule: every-table-is-captured.
            readers.setdefault(relation, []).append(document.dependencies)
    for relation, found in sorted(readers.items()):
        if not eligibility.exists(connection, relation):
            continue  # only documents to be withdrawn, or suspended ones, still read it
        uses = [dependencies.tables[relation] for dependencies in found]
        aggregate, column = _aggregate(connection, relation, found)
        yield Capture(
            relation=relation,
            watched=frozenset().union(*(use.watched for use in uses)),
            routing=frozenset().union(*(use.routing for use in uses), {column}),
            together=frozenset(use.watched | use.routing for use in uses),
            aggregate=aggregate,
            aggregate_column=column,
        )


def _aggregate(connection: Connection, relation: str, readers: list[Dependencies]) -> tuple[str, str]:
    """Return the root row that a row of this table belongs to by a foreign key; otherwise the row itself."""
    roots = {(reader.root, reader.root_key) for reader in readers if reader.root not in (None, relation)}
    for column, referenced, referenced_column in connection.execute(_FOREIGN_KEYS, (relation,)).fetchall():
        if (referenced, referenced_column) in roots:
            return referenced, column
    return relation, eligibility.primary_key(connection, relation)[0]
