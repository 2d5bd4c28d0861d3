"""Verification: what the last ``syncer verify`` of each index has found, for who watches and did not run it.

Guarantees: one row for an index in force, of a comparison of all its documents; a sample leaves none.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from syncer.postgres import Connection

_NOTE = """
INSERT INTO syncer.verification (index_name, documents, drifted, repaired, is_complete)
SELECT d.index_name, $2, $3, $4, $5 FROM syncer.document AS d WHERE d.index_name = $1
ON CONFLICT (index_name) DO UPDATE
SET finished_at = excluded.finished_at, documents = excluded.documents, drifted = excluded.drifted,
    repaired = excluded.repaired, is_complete = excluded.is_complete
"""
_LAST = """
SELECT d.name, v.index_name, v.finished_at, v.documents, v.drifted, v.repaired, v.is_complete
FROM syncer.verification AS v JOIN syncer.document AS d USING (index_name)
WHERE d.role = 'serving' ORDER BY d.name
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was found.

    Args:
        document: The document's name.
        index_name: Which of its indices was compared.
        finished_at: When.
        documents: How many documents were compared.
        drifted: How many were left different.
        repaired: How many differed, and are equal since they were written again.
        is_complete: False if it stopped counting, since there were too many.
    """

    document: str
    index_name: str
    finished_at: datetime
    documents: int
    drifted: int
    repaired: int
    is_complete: bool


def note(
    connection: Connection, index_name: str, *, documents: int, drifted: int, repaired: int, is_complete: bool
) -> None:
    """Remember what was found of an index, if it is still in force."""
    connection.execute(_NOTE, (index_name, documents, drifted, repaired, is_complete))


def last(connection: Connection) -> list[Verification]:
    """Of the index that searches find, of each document that was ever compared."""
    return [
        Verification(
            document=document,
            index_name=index_name,
            finished_at=finished_at,
            documents=documents,
            drifted=drifted,
            repaired=repaired,
            is_complete=is_complete,
        )
        for document, index_name, finished_at, documents, drifted, repaired, is_complete in connection.execute(_LAST)
    ]
