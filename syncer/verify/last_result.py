"""The result of the last ``syncer verify`` of each index, for the status page and metrics.

Guarantees: one row per active index, of a comparison of all its documents.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import structlog

from syncer.base.formatting import amount
from syncer.base.postgres import Connection
from syncer.verify.compare import VerifyReport
from syncer.verify.diff import Cause

_NOTE = """
INSERT INTO syncer.verification (index_name, documents, drifted, repaired, is_complete)
SELECT d.index_name, $2, $3, $4, $5 FROM syncer.document AS d WHERE d.index_name = $1
ON CONFLICT (index_name) DO UPDATE
SET finished_at = excluded.finished_at, documents = excluded.documents, drifted = excluded.drifted,
    repaired = excluded.repaired, is_complete = excluded.is_complete
"""
LAST = """
SELECT d.name AS document, v.index_name, v.finished_at, v.documents, v.drifted, v.repaired, v.is_complete
FROM syncer.verification AS v JOIN syncer.document AS d USING (index_name)
WHERE d.role = 'current' ORDER BY d.name
"""
"""The query that returns the fields of each `Verification`, of the index that searches find."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The result of one verification.

    Args:
        drifted: How many were left different, for a reason that `syncer status` does not name otherwise.
        repaired: How many differed and are equal since they were written again.
        is_complete: False if counting stopped because there were too many.
    """

    document: str
    index_name: str
    finished_at: datetime
    documents: int
    drifted: int
    repaired: int
    is_complete: bool


_CONSEQUENCES = frozenset({Cause.DEAD_LETTERED, Cause.INCOMPLETE})
"""What `syncer status` names by itself, as long as it lasts."""


def note(connection: Connection, report: VerifyReport) -> None:
    """Record the result for an index, if it is still active."""
    drifted = sum(drift.cause not in _CONSEQUENCES for drift in report.drifts)
    repaired = len(report.repaired)
    connection.execute(_NOTE, (report.index_name, report.documents, drifted, repaired, report.is_complete))
    documents = amount(report.documents, "document")
    structlog.get_logger().info(
        "verify.finished",
        index=report.index_name,
        documents=report.documents,
        drifted=drifted,
        repaired=repaired,
        timeline=f"Verified {report.index_name}: {documents}, {drifted:,} drifted, {repaired:,} repaired.",
    )
