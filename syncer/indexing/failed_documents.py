"""Failed documents: each is isolated as a dead letter while its siblings continue; fixed ones are cleared.

A refusal concerns a document as it was when it was built. Another writer may have written it meanwhile, and looked for
dead letters before this one was recorded. So after dead-lettering, the writer checks in a later snapshot whether the
document is still the one that failed. A writer of a change after that snapshot finds the dead letter.

A document that cannot be dead-lettered does not count as done. The failure is reported, and retried with growing
pauses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import psycopg
import structlog

from syncer.base import metrics
from syncer.base.error_policy import Action, decide, kind
from syncer.base.errors import DeadLetteringError
from syncer.base.log_limit import Repeated
from syncer.documents.registry import Document
from syncer.elasticsearch.bulk import Rejection
from syncer.indexing import compose, dead_letters, fault
from syncer.indexing.compose import Batch, Findings
from syncer.indexing.connections import Session
from syncer.indexing.fault import Fault

_ISOLATING_SECONDS = 2.0
"""How long to look for documents at fault before those found so far are dead-lettered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolated:
    """The result of isolating documents for which the SELECT raises.

    Args:
        rest: The other documents, in groups that have to be written.
        dead_lettered: How many were dead-lettered and are still at fault.
        is_fruitless: Whether none was found: the one at fault has changed just now, or none of them is.
    """

    rest: list[list[str]]
    dead_lettered: int = 0
    is_fruitless: bool = False


class FailedDocuments:
    """Dead-letters documents at fault, and logs it. Not safe to share between threads.

    Args:
        session: The writer's connections.
        pause: Waits; may raise `Stopping`.
        log: Logs dead-lettered documents, grouped.
    """

    def __init__(self, session: Session, *, pause: Callable[[float], None], log: Failures) -> None:
        self._session = session
        self._pause = pause
        self._log = log

    def dead_letter_refused(self, document: Document, version: int, refused: Mapping[str, Rejection]) -> None:
        """Dead-letter what Elasticsearch has refused for good."""
        faults = {id_: fault.of_index(one.kind, one.reason, one.composition.source) for id_, one in refused.items()}
        self._dead_letter(document, version, faults)

    def dead_letter_too_large(self, document: Document, version: int, sizes: Mapping[str, int]) -> list[str]:
        """Dead-letter documents that are too large to fetch; return the ids of those that no longer are."""
        said = f"larger than the {compose.DOCUMENT_BYTES_MAX} bytes that a document may have"
        faults = {id_: Fault(kind="document_too_large", error=f"{size} bytes: {said}") for id_, size in sizes.items()}
        self._dead_letter(document, version, faults)
        now = self._session.composer.compose(document.index_name, list(sizes), bytes_max=1)
        return [one for one in sizes if now.too_large.get(one, 0) <= compose.DOCUMENT_BYTES_MAX]

    def changed_since(self, document: Document, refused: Mapping[str, Rejection]) -> list[str]:
        """Return the ids of documents that have changed since they were refused, and have to be written again."""
        try:
            now = self._session.composer.compose(document.index_name, list(refused))
        except psycopg.Error as error:
            if decide(error) is not Action.DEAD_LETTER:
                raise
            return list(refused)
        before = {id_: (one.composition.source, one.composition.routing) for id_, one in refused.items()}
        return [one.id for one in now.compositions if (one.source, one.routing) != before[one.id]]

    def clear(self, document: Document, batch: Batch, *, left: Collection[str]) -> None:
        """Remove the dead letters of documents that were written, except those in `left`."""
        written = [one.id for one in batch.compositions if one.id not in left]
        dead_letters.clear(self._session.connection, document.index_name, written, batch.version)

    def isolate(self, index_name: str, ids: Sequence[str]) -> Isolated:
        """Dead-letter those of a group for which the SELECT raises. It is safe to retry as a whole."""
        found = self._faults(index_name, ids)
        if found.document is None:
            return Isolated(rest=[])
        self._dead_letter(found.document, found.version, found.faults)
        fixed = self._fixed_since(index_name, list(found.faults))
        rest = [one for one in ids if one not in found.faults or one in fixed]
        dead_lettered = len(found.faults) - len(fixed)
        if found.untried:
            self._pause(0)  # a component that is told to stop leaves the rest to the next process
        if found.faults or not rest:
            return Isolated(rest=[rest] if rest else [], dead_lettered=dead_lettered)
        middle = len(rest) // 2
        return Isolated(rest=[half for half in (rest[:middle], rest[middle:]) if half], is_fruitless=True)

    def _fixed_since(self, index_name: str, dead_lettered: list[str]) -> set[str]:
        """Return the ids for which the SELECT no longer raises."""
        if not dead_lettered:
            return set()
        still = self._faults(index_name, dead_lettered)
        return set(dead_lettered) - still.faults.keys() - set(still.untried)

    def _faults(self, index_name: str, ids: Sequence[str]) -> Findings:
        return self._session.composer.faults(index_name, ids, seconds=_ISOLATING_SECONDS)

    def _dead_letter(self, document: Document, version: int, faults: Mapping[str, Fault]) -> None:
        """Dead-letter documents and log it: only the name of the error, since a server's message quotes values.

        Raises:
            DeadLetteringError: They cannot be recorded, although Postgres is available.
        """
        try:
            dead_letters.dead_letter(self._session.connection, document.index_name, version, faults)
        except psycopg.Error as error:
            if decide(error) is not Action.DEAD_LETTER:
                raise
            raise DeadLetteringError(
                f"Documents of {document.index_name} cannot be dead-lettered: {kind(error)}",
                hint="Has somebody changed the table syncer.dead_letter? If not, please report it.",
                kind=kind(error),
            ) from error
        metrics.DEAD_LETTERED.labels(document.name).inc(len(faults))
        by_kind: dict[str, list[str]] = {}
        for id_, one in faults.items():
            by_kind.setdefault(one.kind, []).append(id_)
        for name, ids in by_kind.items():
            self._log.note((document.index_name, name), (ids[0], faults[ids[0]].field), len(ids))


Failures = Repeated[tuple[str, str], tuple[str, str | None]]
"""Logs which documents were dead-lettered, by index and kind of error, with an id and a field as an example."""


def failures() -> Failures:
    """Return a log to be shared by all writers of a component."""
    return Repeated(_tell)


def _tell(what: tuple[str, str], number: int, sample: tuple[str, str | None]) -> None:
    index_name, kind = what
    id_, field = sample
    structlog.get_logger().error(
        "document.dead_lettered", index=index_name, kind=kind, documents=number, sample_id=id_, field=field
    )
