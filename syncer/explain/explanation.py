"""Explanation: all that `syncer explain` answers of one document, as data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from syncer import version
from syncer.drift import Kind
from syncer.errors import DefinitionError
from syncer.explain import events
from syncer.explain.events import Event, Flow, Limits
from syncer.explain.standing import Copy, Look, Standing, as_id, contents, look, standing
from syncer.explain.verdict import Answer, Verdict, judge
from syncer.index import Index
from syncer.model import ID_BYTES_MAX
from syncer.owing import pending
from syncer.postgres import Connection, value
from syncer.settings import KafkaSettings
from syncer.store import Document

EVENTS_SHOWN_MAX = 100
_ROUNDS = 3

_NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a document is as it is.

    Args:
        name: The document's name.
        id: Which instance.
        at: When it was looked at, by the database's clock, in seconds since the Unix epoch.
        standings: The document in each of its indices, the serving one first, with the verdict on it.
        flow: The changes that touch it.
    """

    name: str
    id: str
    at: float
    standings: tuple[tuple[Standing, Answer], ...]
    flow: Flow

    @property
    def is_equal(self) -> bool:
        """Whether the document equals its SELECT in each index that is to, as `Document.is_kept` has it."""
        counted = [answer for one, answer in self.standings if one.document.is_kept]
        return bool(counted) and all(one.verdict is Verdict.EQUAL for one in counted)

    def as_json(self, *, values: bool) -> dict[str, Any]:
        """Plain data, with or without the values of fields."""
        return {
            "document": self.name,
            "id": self.id,
            "at": _time(self.at),
            "is_equal": self.is_equal,
            "indices": [_standing_json(one, answer, values=values) for one, answer in self.standings],
            "coming": len(self.flow.coming),
            "done": len(self.flow.done),
            "events": [
                _event_json(one) for one in (*self.flow.done[-EVENTS_SHOWN_MAX:], *self.flow.coming[:EVENTS_SHOWN_MAX])
            ],
            "searched": [{"stage": one.stage, "looked": one.looked, "of": one.of} for one in self.flow.searched],
            "lost": self.flow.lost,
            "kafka": self.flow.trouble.message if self.flow.trouble else None,
        }


def read(
    connection: Connection,
    index: Index,
    kafka: KafkaSettings,
    documents: Sequence[Document],
    id_: str,
    *,
    limits: Limits,
) -> Explanation:
    """Look at everything that is known of one document.

    What differs is looked at once more after its changes were looked for: only what has stayed as it was, with
    nothing on its way, has drifted.

    Args:
        connection: Nothing else is done on it meanwhile.
        index: Elasticsearch.
        kafka: The topic.
        documents: The document's definitions in force, one for each index.
        id_: Which.
        limits: How far to look for changes.

    Raises:
        DefinitionError: It cannot be an id of this document, and Elasticsearch has none of it.
        psycopg.Error, elasticsearch.ApiError, elasticsearch.TransportError: A server does not answer; that Kafka does
            not is told in the explanation.
    """
    _require_possible(id_)
    for _ in range(_ROUNDS):
        before = [look(connection, index, one, id_) for one in documents]
        _require_id(connection, documents[0], id_, before)
        flow = events.find(connection, kafka, documents, id_, limits)
        # After the changes, which become jobs, and before the last look, since jobs become documents.
        jobs = [pending(connection, one, [id_], seconds=limits.seconds).get(id_, ()) for one in documents]
        after = [look(connection, index, one, id_) for one in documents]
        still = [one.drift is None or one.is_like(other) for other, one in zip(before, after, strict=True)]
        if all(still) or flow.coming:
            break
    at = float(str(value(connection, _NOW)))
    seen = [
        standing(connection, index, one, id_, seen=there, jobs=coming)
        for one, there, coming in zip(documents, after, jobs, strict=True)
    ]
    judged = [(one, judge(one, flow, at=at, is_still=calm)) for one, calm in zip(seen, still, strict=True)]
    return Explanation(name=documents[0].name, id=id_, at=at, standings=tuple(judged), flow=flow)


def _require_possible(id_: str) -> None:
    if not 1 <= len(id_.encode()) <= ID_BYTES_MAX:
        raise DefinitionError(f"An id has 1 to {ID_BYTES_MAX} bytes, not {len(id_.encode()):,}")


def _require_id(connection: Connection, document: Document, id_: str, seen: Iterable[Look]) -> None:
    """Refuse what cannot be an id of this document, unless somebody has written it into Elasticsearch all the same."""
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


_DOES = {Kind.MISSING: "write", Kind.DIFFERENT: "change", Kind.EXTRA: "delete", Kind.MISPLACED: "move", None: "nothing"}


def _standing_json(one: Standing, answer: Answer, *, values: bool) -> dict[str, Any]:
    document, seen = one.document, one.look
    parked = one.dead_letter
    return {
        "index": document.index_name,
        "role": document.role,
        "generation": document.generation,
        "is_filled": document.is_filled,
        "halted": document.halted,
        "verdict": answer.verdict,
        "jobs": [coming.job.id for coming in one.jobs],
        "says": answer.says,
        "hint": answer.hint,
        "postgres": _row_json(seen, values=values),
        "elasticsearch": [_copy_json(copy) for copy in one.copies],
        "unreadable": seen.unreadable.message if seen.unreadable else None,
        "refresh": {
            "does": _DOES[seen.drift.kind if seen.drift else None] if seen.is_sound else None,
            "fields": _fields_json(one) if values else list(one.fields),
        },
        "dead_letter": {"error": parked.error, "version": parked.version, "parked_at": parked.parked_at.isoformat()}
        if parked
        else None,
    }


def _row_json(seen: Look, *, values: bool) -> dict[str, Any]:
    row = seen.row
    said: dict[str, Any] = {
        "exists": None if seen.failure else row is not None,
        "routing": row.routing or None if row else None,
        "bytes": len(row.source) if row else None,
        "failure": seen.failure.message if seen.failure else None,
    }
    return {**said, "source": contents(row.source) if row else None} if values else said


def _fields_json(one: Standing) -> dict[str, Any]:
    return {name: {"postgres": ours, "elasticsearch": theirs} for name, (ours, theirs) in one.fields.items()}


def _copy_json(copy: Copy) -> dict[str, Any]:
    epoch, number = version.split(copy.version)
    return {
        "version": copy.version,
        "epoch": epoch,
        "number": number,
        "origin": copy.origin,
        "is_final": copy.is_final,
        "drawn_after": copy.drawn_after.isoformat() if copy.drawn_after else None,
        "drawn_before": copy.drawn_before.isoformat() if copy.drawn_before else None,
        "routing": copy.place.routing if copy.place.routing != copy.place.id else None,
    }


def _event_json(event: Event) -> dict[str, Any]:
    return {
        "change": event.id,
        "changed_at": _time(event.changed_at),
        "relation": event.relation,
        "operation": event.operation.name,
        "key": event.key,
        "stage": event.stage,
        "partition": event.partition,
        "offset": event.offset,
        "indices": list(event.indices),
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
