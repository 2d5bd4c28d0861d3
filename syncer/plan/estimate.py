"""Estimate: what apply would do to a document's index, tried out on a scratch index with real documents.

A sample of documents is composed and written to an empty index that is as apply would leave the document's. That shows
those that would be refused, and how long a fill takes. That is measured as a fill does it: once all is warm, in a batch
of its size, and it waits for the slower of the two, since it composes while it writes.

Guarantee: nothing outlives a trial, neither in Postgres nor in Elasticsearch: see `syncer.trial`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum

import psycopg
from psycopg import errors as pg

from syncer import compose, trial
from syncer.compose import Row, clock
from syncer.errors import DocumentError
from syncer.index import Index, Rejection
from syncer.indices import Indices
from syncer.model import Composition, Target
from syncer.policy import is_of_data
from syncer.postgres import Connection, bounded
from syncer.steps import Change, Step
from syncer.store import Document

SAMPLE_DOCUMENTS = 200
"""How many documents are composed and written on trial."""
SECONDS_MAX = 10.0
"""How long a query may read the whole SELECT before something cheaper is done."""
_BATCH_DOCUMENTS = 1000
"""What a fill writes at once, where nobody has said otherwise."""


class Outcome(StrEnum):
    """What apply would do to a document's index."""

    NEW = "new"
    IN_PLACE = "in_place"
    REINDEX = "reindex"
    TRIGGERS = "triggers"
    FILL = "fill"
    NOTHING = "nothing"


_IN_A_NEW_INDEX = {
    Change.NEW: Outcome.NEW,
    Change.INDEX_GONE: Outcome.NEW,
    Change.REBUILD: Outcome.REINDEX,
}
_OUTCOMES = {
    **_IN_A_NEW_INDEX,
    Change.BUILDING: Outcome.REINDEX,
    Change.UNCHANGED: Outcome.NOTHING,
    Change.UNFILLED: Outcome.FILL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What was found by trying.

    Args:
        outcome: What apply would do.
        documents: How many documents there are; None if counting took too long, or failed.
        sample: The documents that were tried, by id.
        rejections: Those that Elasticsearch refused.
        fill_seconds: About how long writing all documents takes; None if nothing could be measured.
        failure: Why the sample could not be composed, or all not be counted: the SELECT fails on the data.
    """

    outcome: Outcome
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
    ids = _sample_ids(connection, document)
    count, failure = _count(connection, document)
    compose_seconds = 0.0
    try:
        sample = _compose(connection, document, ids)
        began = clock()
        _compose(connection, document, ids)  # the first time is slower than all that come after it
        compose_seconds = clock() - began
    except DocumentError as error:
        sample, failure = {}, _of_the_data(error)
    with _scratch(connection, indices, step) as target:
        write_seconds, rejections = _write(index, target, sample)
    return Trial(
        outcome=_outcome(step),
        documents=count,
        sample=sample,
        rejections=rejections,
        fill_seconds=max(compose_seconds / len(sample), write_seconds) * count if sample and count else None,
        failure=failure,
    )


def _compose(connection: Connection, document: Document, ids: list[str]) -> dict[str, Row]:
    sample = compose.current(connection, document, ids)
    compose.existing(connection, document, ids)  # as a fill asks of every id that the index holds
    return sample


def is_too_much(error: psycopg.Error) -> bool:
    """Whether a query over all documents has come to no end since it takes too long, or fails on one of them."""
    return isinstance(error, pg.QueryCanceled) or is_of_data(error)


def _sample_ids(connection: Connection, document: Document) -> list[str]:
    try:
        with bounded(connection, seconds=SECONDS_MAX):
            return compose.some_ids(connection, document, SAMPLE_DOCUMENTS)
    except psycopg.Error as error:
        if not is_too_much(error):
            raise
    # Too many to choose from; or a row on which the SELECT fails, and the first ones may be without it.
    return compose.first_ids(connection, document, SAMPLE_DOCUMENTS)


def _count(connection: Connection, document: Document) -> tuple[int | None, str | None]:
    """How many documents there are, if that is known; why it could not be counted, if the SELECT fails on the data."""
    try:
        with bounded(connection, seconds=SECONDS_MAX):
            return compose.count(connection, document), None
    except pg.QueryCanceled:
        return None, None
    except DocumentError as error:
        return None, _of_the_data(error)


def _of_the_data(error: DocumentError) -> str:
    """What Postgres says, if it is a row that the SELECT fails on; any other error goes on."""
    cause = error.__cause__
    if not is_of_data(cause):
        raise error
    return str(cause.diag.message_primary)


def _scratch(connection: Connection, indices: Indices, step: Step) -> AbstractContextManager[Target]:
    """An empty index such as apply would leave the document's."""
    document = step.document
    if step.change in _IN_A_NEW_INDEX:
        return trial.fresh(connection, indices, document)
    if step.is_new_generation:
        return trial.changed(connection, indices, document, document.target)
    return trial.copy(connection, indices, document, document.target)


def _outcome(step: Step) -> Outcome:
    if step.change in _OUTCOMES:
        return _OUTCOMES[step.change]
    before, after = step.before, step.document
    is_same = before is not None and (before.index_body, before.dependencies.canonical_select) == (
        after.index_body,
        after.dependencies.canonical_select,
    )
    return Outcome.TRIGGERS if is_same and step.change is not Change.HALTED else Outcome.IN_PLACE


def _write(index: Index, target: Target, sample: dict[str, Row]) -> tuple[float, tuple[Rejection, ...]]:
    """Write the sample, and once more so often that it is a batch of a fill.

    Returns:
        How long a document takes in such a batch, and what Elasticsearch refused.
    """
    rejections = index.write(target, _versioned(sample, 1)).rejections
    batch = [one for version in _versions(len(sample)) for one in _versioned(sample, version)]
    began = clock()
    index.write(target, batch)
    return (clock() - began) / max(1, len(batch)), tuple(rejections)


def _versions(number: int) -> range:
    """So many that each document of a sample, written with all of them, makes a batch."""
    return range(2, 2 + max(1, _BATCH_DOCUMENTS // max(1, number)))


def _versioned(sample: dict[str, Row], version: int) -> list[Composition]:
    return [Composition(id=id_, version=version, source=row.source, routing=row.routing) for id_, row in sample.items()]
