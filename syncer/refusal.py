"""Refusal: what it means that Elasticsearch does not write something: to wait, park a document, halt or leave an index.

Whoever writes an index that is being built, or on standby, writes the one that serves too. So an index that no search
needs is not waited for as long as it takes: it halts, and the other goes on. Nor is one that serves, if Elasticsearch
itself says that it is unwell: others go on, and it follows later, see `syncer.unwell`. Nor is a document at which
Elasticsearch fails, with nothing else wrong: it is parked, and those behind it go on.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

import elasticsearch

from syncer.errors import DocumentError, UnavailableError, UnwellError
from syncer.holdings import Holdings
from syncer.index import Rejection
from syncer.model import Role
from syncer.policy import CLUSTER_BLOCK, Action, decide_item, explain_refusal
from syncer.store import Document

PATIENCE_SECONDS = 60.0
"""How long an index that no search needs may be unwell before it halts, while the one that serves is well; for how long
one that serves, before the others go on without it; and for how long Elasticsearch may fail at a document, with nothing
else wrong, before that is parked."""

_ERROR_WITHIN = 500
_QUOTED = frozenset({CLUSTER_BLOCK, "circuit_breaking_exception"})
"""Kinds whose sentence is of the cluster alone; others may quote the request, and with it a document's values."""
_ADVICE = {
    CLUSTER_BLOCK: "Free disk space, or add a node: Elasticsearch lifts the block by itself, and then it goes on.",
    "unavailable_shards_exception": "A shard has no primary: GET _cluster/allocation/explain says why.",
}
_UNWELL_ADVICE = "Its health says why: GET _cluster/health, GET _cluster/allocation/explain."


def sorted_out(
    document: Document, rejections: Iterable[Rejection], hopeless: Collection[str]
) -> tuple[dict[str, Rejection], dict[str, Rejection]]:
    """What is to be tried again, and what is to be parked, by id.

    Raises:
        DocumentError: The index takes no documents.
    """
    again: dict[str, Rejection] = {}
    parked: dict[str, Rejection] = {}
    for rejection in rejections:
        match decide_item(rejection.status, rejection.kind):
            case Action.RETRY if rejection.composition.id in hopeless:
                parked[rejection.composition.id] = rejection
            case Action.RETRY:
                again[rejection.composition.id] = rejection
            case Action.PARK:
                parked[rejection.composition.id] = rejection
            case Action.HALT_DOCUMENT:
                raise _refused(document, rejection)
    return again, parked


def for_now(index_name: str, refused: Sequence[Rejection]) -> UnavailableError:
    """What to say of documents that Elasticsearch asks to try again."""
    worst = refused[0]
    return UnavailableError(
        f"Elasticsearch does not write {len(refused)} documents of {index_name} as yet: {_said(worst)}",
        hint=_ADVICE.get(worst.kind, ""),
        kind=f"{worst.status} {worst.kind}",
    )


class Failing:
    """Since when Elasticsearch has failed at which documents, as it does at one that a defect of it is met by."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def hopeless(self) -> set[str]:
        """Those at which it has failed for so long that the others are not to wait for them."""
        now = time.monotonic()
        return {id_ for id_, since in self._since.items() if now - since > PATIENCE_SECONDS}

    def note(self, refused: Iterable[Rejection], holdings: Holdings, index_name: str) -> None:
        """Remember these, and forget the others. An index that is unwell fails at every document: then none counts."""
        failing = {one.composition.id for one in refused if one.status == _ERROR_WITHIN}
        is_well = bool(failing) and holdings.is_well(index_name)
        now = time.monotonic()
        self._since = {id_: self._since.get(id_, now) for id_ in failing} if is_well else {}


class Patience:
    """How long indices have been unwell. May be used by several threads, each for what it has to write.

    Args:
        holdings: Tells whether the index that serves is well.
    """

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._unwell_since: dict[tuple[str, int], float] = {}
        """By index and generation: what has halted for it begins anew with the next one."""

    def require_needed(self, document: Document, reason: str, *, is_blocked: bool) -> None:
        """Go on trying only as long as it may be worth it.

        Raises:
            DocumentError: No search needs the index, and it is unwell for too long, or takes nothing.
            UnwellError: It serves, and is unwell for too long.
        """
        now = time.monotonic()
        since = self._unwell_since.setdefault((document.index_name, document.generation), now)
        is_over = now - since > PATIENCE_SECONDS
        if document.role is Role.SERVING:
            # It is left if Elasticsearch says what `syncer.unwell` asks: else nobody would know when it is well again.
            if is_over and self._is_unwell(document.index_name):
                raise UnwellError(
                    f"{document.index_name} takes no documents: {reason}",
                    hint=_ADVICE.get(reason.partition(":")[0], _UNWELL_ADVICE),
                    index_name=document.index_name,
                )
        elif is_blocked or (is_over and self._holdings.is_well(document.index)):
            raise _unwell(document, reason)

    def _is_unwell(self, index_name: str) -> bool:
        """Whether Elasticsearch says so; not if it cannot say, or the index is gone, which the next attempt meets."""
        with suppress(elasticsearch.ApiError, elasticsearch.TransportError):
            return not self._holdings.takes_documents(index_name)
        return False

    def require_all_needed(self, document: Document, again: Sequence[Rejection]) -> None:
        """The same, of documents that are to be tried again; the index is well if there are none.

        Raises:
            DocumentError, UnwellError: As above.
        """
        if not again:
            self._unwell_since.pop((document.index_name, document.generation), None)
            return
        worst = again[0]
        self.require_needed(document, _said(worst), is_blocked=worst.kind == CLUSTER_BLOCK)


def _said(rejection: Rejection) -> str:
    return f"{rejection.kind}: {rejection.reason}" if rejection.kind in _QUOTED else rejection.kind


def _unwell(document: Document, reason: str) -> DocumentError:
    return DocumentError(
        f"{document.index_name} ({document.role}) takes no documents: {reason}",
        hint="Is its disk full, or a node away? What is searched is not concerned.",
        document=document.name,
        generation=document.generation,
    )


def _refused(document: Document, rejection: Rejection) -> DocumentError:
    said = explain_refusal(document.name, f"{rejection.kind}: {rejection.reason}")
    return DocumentError(said.message, hint=said.hint, document=document.name, generation=document.generation)
