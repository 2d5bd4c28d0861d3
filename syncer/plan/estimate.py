"""Estimate: what apply would do to a document's index, tried out on a scratch index with real documents.

Whether a change can be made in place is Elasticsearch's to say, so it is asked: an empty copy of the live index is
changed by the same code that apply uses. A sample of documents is then composed and written there, which shows
those that would be refused, and how long a fill takes.

Guarantee: nothing outlives a trial, neither in Postgres nor in Elasticsearch; of a plan that was killed, the next
one removes what it left. Trials on one database come one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

import psycopg
from psycopg import errors as pg

from syncer import compose
from syncer.apply import Change, Step
from syncer.compose import Row, clock
from syncer.errors import DocumentError, IndexingError
from syncer.index import Index, Rejection
from syncer.indices import Indices
from syncer.model import Composition, Target
from syncer.policy import Action, decide
from syncer.postgres import AdvisoryLock, Connection, bounded
from syncer.store import Document

SAMPLE_DOCUMENTS = 200
"""How many documents are composed and written on trial."""
SECONDS_MAX = 10.0
"""How long a query may read the whole SELECT before something cheaper is done."""

_LOCK = "SELECT pg_advisory_lock($1)"
_UNLOCK = "SELECT pg_advisory_unlock($1)"


class Outcome(StrEnum):
    """What apply would do to a document's index."""

    NEW = "new"
    IN_PLACE = "in_place"
    REINDEX = "reindex"
    TRIGGERS = "triggers"
    FILL = "fill"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What was found by trying.

    Args:
        outcome: What apply would do.
        refusal: Why Elasticsearch does not do it in place.
        documents: How many documents there are; None if counting took too long.
        sample: The documents that were tried, by id.
        rejections: Those that Elasticsearch refused.
        fill_seconds: About how long writing all documents takes; None if nothing could be measured.
        failure: Why the sample could not be composed: the SELECT fails on the data.
    """

    outcome: Outcome
    refusal: IndexingError | None
    documents: int | None
    sample: dict[str, Row]
    rejections: tuple[Rejection, ...]
    fill_seconds: float | None
    failure: str | None


def attempt(connection: Connection, index: Index, indices: Indices, step: Step) -> Trial:
    """Try out what apply would do to one document's index.

    Raises:
        IndexingError: Elasticsearch refuses index.json as such.
    """
    document = step.document
    ids, count, failure = _sample_ids(connection, document), _count(connection, document), None
    began = clock()
    try:
        sample = compose.current(connection, document, ids)
        compose.existing(connection, document, ids)  # as a fill asks of every id that the index holds
    except DocumentError as error:
        sample, failure = {}, _of_the_data(error)
    compose_seconds = clock() - began
    with _alone(connection), _scratch(indices, step) as (target, outcome, refusal):
        write_seconds, rejections = _write(index, target, sample)
    return Trial(
        outcome=outcome,
        refusal=refusal,
        documents=count,
        sample=sample,
        rejections=rejections,
        fill_seconds=(compose_seconds + write_seconds) / len(sample) * count if sample and count else None,
        failure=failure,
    )


def _sample_ids(connection: Connection, document: Document) -> list[str]:
    try:
        with bounded(connection, seconds=SECONDS_MAX):
            return compose.some_ids(connection, document, SAMPLE_DOCUMENTS)
    except pg.QueryCanceled:
        return compose.first_ids(connection, document, SAMPLE_DOCUMENTS)


def _count(connection: Connection, document: Document) -> int | None:
    try:
        with bounded(connection, seconds=SECONDS_MAX):
            return compose.count(connection, document)
    except pg.QueryCanceled:
        return None
    except DocumentError as error:
        _of_the_data(error)
        return None


def _of_the_data(error: DocumentError) -> str:
    """What Postgres says, if it is a row that the SELECT fails on; any other error goes on."""
    cause = error.__cause__
    if not isinstance(cause, psycopg.Error) or decide(cause) is not Action.PARK:
        raise error
    return str(cause.diag.message_primary)


@contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """Let no other trial remove our scratch index."""
    connection.execute(_LOCK, (int(AdvisoryLock.PLAN),))
    try:
        yield
    finally:
        connection.execute(_UNLOCK, (int(AdvisoryLock.PLAN),))


@contextmanager
def _scratch(indices: Indices, step: Step) -> Iterator[tuple[Target, Outcome, IndexingError | None]]:
    """An empty index such as apply would leave the document's, and how it would come to that."""
    document = step.document
    if step.change in (Change.NEW, Change.INDEX_GONE):
        with indices.scratch(document=document.name, alias=document.index, body=document.index_body) as target:
            yield target, Outcome.NEW, None
        return
    live = document.target
    with indices.scratch(document=document.name, alias=document.index, body=indices.body(live)) as target:
        refusal = _refusal(indices, step, target, live)
        if refusal is None:
            yield target, _in_place(step), None
            return
    with indices.scratch(document=document.name, alias=document.index, body=document.index_body) as target:
        yield target, Outcome.REINDEX, refusal


def _refusal(indices: Indices, step: Step, target: Target, live: Target) -> IndexingError | None:
    """Why Elasticsearch does not make the change in place, as if it had been tried on the live index."""
    if step.change in (Change.CHANGED, Change.HALTED):
        try:
            indices.change(document=step.document.name, target=target, body=step.document.index_body)
        except IndexingError as error:
            return IndexingError(error.message.replace(target.index_name, live.index_name), hint=error.hint)
    return None


def _in_place(step: Step) -> Outcome:
    if step.change is Change.UNCHANGED:
        return Outcome.NOTHING
    if step.change is Change.UNFILLED:
        return Outcome.FILL
    before, after = step.before, step.document
    is_same = before is not None and (before.index_body, before.dependencies.canonical_select) == (
        after.index_body,
        after.dependencies.canonical_select,
    )
    return Outcome.TRIGGERS if is_same and step.change is not Change.HALTED else Outcome.IN_PLACE


def _write(index: Index, target: Target, sample: dict[str, Row]) -> tuple[float, tuple[Rejection, ...]]:
    """Write the sample twice, since the first time is slower than all that come after it.

    Returns:
        How long the second time took, and what Elasticsearch refused.
    """
    for version in (1, 2):
        began = clock()
        documents = [
            Composition(id=id_, version=version, source=row.source, routing=row.routing) for id_, row in sample.items()
        ]
        rejections = index.write(target, documents).rejections
    return clock() - began, tuple(rejections)
