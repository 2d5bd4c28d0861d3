"""Explanation: the state of one document in each of its indices, as data.

Guarantee: a difference is called drift only if no job will write the document, and it keeps its version until earlier
changes are handled. These are all changes committed before the difference was seen. See `syncer.verify.watermark`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from syncer.base.errors import DefinitionError
from syncer.base.model import ID_BYTES_MAX
from syncer.base.postgres import Connection, value
from syncer.base.settings import KafkaSettings
from syncer.documents.registry import Document
from syncer.elasticsearch.bulk import Index
from syncer.indexing import version
from syncer.verify.diff import DriftKind
from syncer.verify.explain.standing import CopyState, DocumentInIndex, as_id, contents, look
from syncer.verify.explain.verdict import Conclusion, Verdict, judge
from syncer.verify.watermark import Watermark

_POLL_SECONDS = 0.05
_IDLE_SECONDS = 1.0
"""If nothing moves for that long, no worker is running: waiting longer would not help."""

_NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The state of one document, with a verdict for each index.

    Args:
        at: The database's time, in seconds since the Unix epoch.
        standings: The document in each index, the current one first, with the verdict.
        in_flight: Changes to its tables that are not handled yet, perhaps of other documents; empty if there are none.
    """

    name: str
    id: str
    at: float
    standings: tuple[tuple[DocumentInIndex, Conclusion], ...]
    in_flight: str

    @property
    def is_equal(self) -> bool:
        """Whether the document equals its SELECT in each index that must, according to `Document.is_kept`."""
        counted = [answer for one, answer in self.standings if one.document.is_kept]
        return bool(counted) and all(one.verdict is Verdict.EQUAL for one in counted)

    def as_json(self, *, values: bool) -> dict[str, Any]:
        """The explanation as plain data, with or without the values of fields."""
        return {
            "document": self.name,
            "id": self.id,
            "at": datetime.fromtimestamp(self.at, UTC).isoformat(),
            "is_equal": self.is_equal,
            "in_flight": self.in_flight or None,
            "indices": [_standing_json(one, answer, values=values) for one, answer in self.standings],
        }


def read(
    connection: Connection,
    index: Index,
    kafka: KafkaSettings,
    documents: Sequence[Document],
    id_: str,
    *,
    seconds: float,
) -> Explanation:
    """Explain one document.

    ``documents`` are its active definitions, one for each index. If the document differs, it waits up to ``seconds``
    for changes in flight. The connection is used for nothing else meanwhile.

    Raises:
        DefinitionError: The id is impossible for this definition, and Elasticsearch has no such document.
        psycopg.Error, elasticsearch.ApiError, elasticsearch.TransportError: A server does not answer. If it is Kafka,
            the explanation says so instead.
    """
    _require_possible(id_)
    before = seen = [look(connection, index, one, id_, seconds=seconds) for one in documents]
    _require_id(connection, documents[0], id_, seen)
    in_flight = ""
    if any(one.drift is not None for one in seen):
        # Changes become jobs, and jobs become documents: in this order, none is missed.
        in_flight = _in_flight(connection, kafka, documents, seconds)
        seen = [look(connection, index, one, id_, seconds=seconds) for one in documents]
    judged = tuple(
        (one, judge(one, in_flight=in_flight, is_still=one.is_like(earlier)))
        for one, earlier in zip(seen, before, strict=True)
    )
    at = float(str(value(connection, _NOW)))
    return Explanation(name=documents[0].name, id=id_, at=at, standings=judged, in_flight=in_flight)


def _in_flight(connection: Connection, kafka: KafkaSettings, documents: Sequence[Document], seconds: float) -> str:
    """Wait until all changes committed before now are handled; return what is left, in words, if nothing moves."""
    relations = sorted({relation for one in documents for relation in one.dependencies.tables})
    watermark = Watermark(connection, kafka, relations)
    deadline = time.monotonic() + seconds
    while not watermark.is_through() and time.monotonic() < deadline and watermark.still_seconds < _IDLE_SECONDS:
        time.sleep(_POLL_SECONDS)
    return watermark.says


def _require_possible(id_: str) -> None:
    if not 1 <= len(id_.encode()) <= ID_BYTES_MAX:
        raise DefinitionError(f"An id has 1 to {ID_BYTES_MAX} bytes, not {len(id_.encode()):,}")


def _require_id(connection: Connection, document: Document, id_: str, seen: Iterable[DocumentInIndex]) -> None:
    """Refuse an impossible id, unless Elasticsearch has a document with it nevertheless."""
    if any(one.copies for one in seen):
        return
    known, type_ = as_id(connection, document, id_), document.dependencies.id_type
    if known is None:
        raise DefinitionError(f"{id_!r} cannot be an id of {document.name}: its _id is of type {type_}")
    if known != id_:
        raise DefinitionError(
            f"No document of {document.name} has the id {id_!r}: as {type_} that is written {known}",
            hint=f"Run: syncer explain {document.name} {known}",
        )


# As JSON


_DOES = {
    DriftKind.MISSING: "write",
    DriftKind.DIFFERENT: "change",
    DriftKind.EXTRA: "delete",
    DriftKind.MISPLACED: "move",
    None: "nothing",
}


def _standing_json(one: DocumentInIndex, answer: Conclusion, *, values: bool) -> dict[str, Any]:
    document, dead_lettered = one.document, one.dead_letter
    return {
        "index": document.index_name,
        "role": document.role,
        "revision": document.revision,
        "is_loaded": document.is_loaded,
        "suspended": document.suspended,
        "reads": sorted(document.dependencies.tables),
        "verdict": answer.verdict,
        "says": answer.says,
        "hint": answer.hint,
        "jobs": [coming.job.id for coming in one.jobs],
        "postgres": _row_json(one, values=values),
        "elasticsearch": [_copy_json(copy) for copy in one.copies],
        "unreadable": one.unreadable.message if one.unreadable else None,
        "refresh": {
            "does": _DOES[one.drift.kind if one.drift else None] if one.is_sound else None,
            "fields": _fields_json(one) if values else list(one.fields),
        },
        "dead_letter": {
            "error": dead_lettered.error,
            "version": dead_lettered.version,
            "failed_at": dead_lettered.failed_at.isoformat(),
        }
        if dead_lettered
        else None,
    }


def _row_json(seen: DocumentInIndex, *, values: bool) -> dict[str, Any]:
    row = seen.row
    plain: dict[str, Any] = {
        "exists": None if seen.failure else row is not None,
        "routing": row.routing or None if row else None,
        "bytes": len(row.source) if row else None,
        "failure": seen.failure.message if seen.failure else None,
    }
    return {**plain, "source": contents(row.source) if row else None} if values else plain


def _fields_json(one: DocumentInIndex) -> dict[str, Any]:
    return {name: {"postgres": ours, "elasticsearch": theirs} for name, (ours, theirs) in one.fields.items()}


def _copy_json(copy: CopyState) -> dict[str, Any]:
    epoch, number = version.split(copy.version)
    return {
        "version": copy.version,
        "epoch": epoch,
        "number": number,
        "origin": copy.origin,
        "is_final": copy.is_final,
        "routing": copy.place.routing if copy.place.routing != copy.place.id else None,
    }
