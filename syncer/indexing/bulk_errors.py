"""Bulk errors: applies `syncer.base.error_policy` to refused items, and decides when to stop retrying an index.

A writer of an index that is being built writes the current one too. So it does not wait
indefinitely for an index that no search needs: that definition is suspended and the current index continues. Nor does
it wait for a current index that Elasticsearch itself reports as unavailable: its definition is suspended until that is
over, see `syncer.jobs.resume`. Nor does it wait for a document for which Elasticsearch fails while nothing else is
wrong: it is dead-lettered, and the documents behind it continue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import elasticsearch

from syncer.base.error_policy import CLUSTER_BLOCK, Action, decide_item, explain_refusal, fault_of
from syncer.base.errors import DocumentError, Fault, UnavailableError
from syncer.base.model import Role
from syncer.base.retry import Outages
from syncer.documents.registry import Document
from syncer.elasticsearch.bulk import Rejection
from syncer.elasticsearch.reader import Holdings

PATIENCE_SECONDS = 60.0
"""How long to retry before giving up.

It applies to an index before its definition is suspended; to one that no search needs only if the current one is
available. And it applies to a document for which Elasticsearch fails while nothing else is wrong, before it is
dead-lettered.
"""

_ERROR_WITHIN = 500
_QUOTED = frozenset({CLUSTER_BLOCK, "circuit_breaking_exception"})
"""Kinds whose reason is about the cluster alone; others may quote the request, and with it a document's values."""
_ADVICE = {
    CLUSTER_BLOCK: "Free disk space, or add a node: Elasticsearch lifts the block by itself, and then it goes on.",
    "unavailable_shards_exception": "A shard has no primary: GET _cluster/allocation/explain says why.",
}
_UNAVAILABLE_ADVICE = "Its health says why: GET _cluster/health, GET _cluster/allocation/explain."


def is_needed(document: Document) -> bool:
    """Return whether searches need the definition's index; others are not waited for indefinitely."""
    return document.role is Role.CURRENT


def sorted_out(
    document: Document, rejections: Iterable[Rejection], hopeless: Collection[str]
) -> tuple[dict[str, Rejection], dict[str, Rejection]]:
    """Return the rejections to retry and those to dead-letter, by id.

    Raises:
        DocumentError: The index takes no documents.
    """
    again: dict[str, Rejection] = {}
    dead_lettered: dict[str, Rejection] = {}
    for rejection in rejections:
        match decide_item(rejection.status, rejection.kind, rejection.reason):
            case Action.RETRY if rejection.composition.id in hopeless:
                dead_lettered[rejection.composition.id] = rejection
            case Action.RETRY:
                again[rejection.composition.id] = rejection
            case Action.DEAD_LETTER:
                dead_lettered[rejection.composition.id] = rejection
            case Action.SUSPEND:
                raise _refused(document, rejection)
    return again, dead_lettered


def for_now(index_name: str, refused: Sequence[Rejection]) -> UnavailableError:
    """Return the error for documents that Elasticsearch has refused for now."""
    worst = refused[0]
    return UnavailableError(
        f"Elasticsearch does not write {len(refused)} documents of {index_name} as yet: {said(worst)}",
        hint=_ADVICE.get(worst.kind, ""),
        kind=f"{worst.status} {worst.kind}",
    )


@dataclass(slots=True)
class Failing:
    """Since when Elasticsearch has failed for which documents, as when a document triggers a defect of it."""

    _since: dict[str, float] = field(default_factory=dict)

    def hopeless(self) -> set[str]:
        """Return the ids for which it has failed for so long that the others do not wait for them."""
        now = time.monotonic()
        return {id_ for id_, since in self._since.items() if now - since > PATIENCE_SECONDS}

    def note(self, refused: Iterable[Rejection], holdings: Holdings, index_name: str) -> None:
        """Remember these documents and forget the others.

        An unavailable index fails for every document, so none is remembered then.
        """
        failing = {one.composition.id for one in refused if one.status == _ERROR_WITHIN}
        is_well = bool(failing) and holdings.is_well(index_name)
        now = time.monotonic()
        self._since = {id_: self._since.get(id_, now) for id_ in failing} if is_well else {}


class Patience:
    """How long indices have been unavailable, shared by all writing threads so that none starts counting anew.

    Args:
        holdings: Tells whether the current index is available.
        clock: The time in seconds.
    """

    def __init__(self, holdings: Holdings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._holdings = holdings
        self._outages = Outages(clock=clock)

    def require_needed(self, document: Document, reason: str, *, is_blocked: bool) -> None:
        """Return if it is worth retrying.

        Raises:
            DocumentError: It has been unavailable for too long, or no search needs it and it takes nothing.
        """
        is_over = self._outages.failed(_counted(document)) > PATIENCE_SECONDS
        if is_needed(document):
            # Only if Elasticsearch reports what `syncer.jobs.resume` polls: otherwise it would be resumed at once.
            if is_over and self._is_unavailable(document.index_name):
                raise DocumentError(
                    f"{document.index_name} takes no documents: {reason}",
                    hint=_ADVICE.get(reason.partition(":")[0], _UNAVAILABLE_ADVICE),
                    document=document.name,
                    revision=document.revision,
                    fault=Fault.UNAVAILABLE,
                )
        elif is_blocked or (is_over and self._holdings.is_well(document.index)):
            raise _unavailable(document, reason)

    def _is_unavailable(self, index_name: str) -> bool:
        """Return whether Elasticsearch reports the index as unavailable; False if it cannot tell."""
        with suppress(elasticsearch.ApiError, elasticsearch.TransportError):
            return not self._holdings.takes_documents(index_name)
        return False

    def end(self, document: Document) -> None:
        """Record that the index takes documents again; the next outage starts counting anew."""
        self._outages.over(_counted(document))


def _counted(document: Document) -> tuple[str, int]:
    """Return the key to count by: after a suspension, the next revision starts anew."""
    return document.index_name, document.revision


def said(rejection: Rejection) -> str:
    """Return what may be quoted of a rejection."""
    return f"{rejection.kind}: {rejection.reason}" if rejection.kind in _QUOTED else rejection.kind


def _unavailable(document: Document, reason: str) -> DocumentError:
    return DocumentError(
        f"{document.index_name} ({document.role}) takes no documents: {reason}",
        hint="Is its disk full, or a node away? What is searched is not concerned.",
        document=document.name,
        revision=document.revision,
    )


def _refused(document: Document, rejection: Rejection) -> DocumentError:
    said = explain_refusal(document.name, f"{rejection.kind}: {rejection.reason}")
    fault = fault_of(rejection.kind)
    return DocumentError(said.message, hint=said.hint, document=document.name, revision=document.revision, fault=fault)
