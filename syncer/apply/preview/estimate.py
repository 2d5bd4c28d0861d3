"""Estimate: tries what apply would do to a document's index, on a scratch index with real documents.

A sample of documents is composed and written to an empty index, configured as apply would leave the document's index.
This shows which documents are rejected, which values are indexed differently, and how long a load takes. The load's
time is measured on a batch of its size, by the slower of composing and writing.

Guarantee: nothing is left behind in Postgres or Elasticsearch: see `syncer.apply.scratch_index`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import psycopg
from psycopg import errors as pg

from syncer.apply import scratch_index
from syncer.apply.plan import PlannedChange, Step
from syncer.apply.preview.sample import Altered, altered, compared_fields
from syncer.base.error_policy import is_of_data
from syncer.base.errors import DocumentError
from syncer.base.lifecycle import clock
from syncer.base.model import Composition, Target
from syncer.base.postgres import Connection, bounded
from syncer.documents import queries
from syncer.documents.queries import Row
from syncer.documents.registry import Document
from syncer.elasticsearch.bulk import Index, Rejection
from syncer.elasticsearch.indices import Indices

SAMPLE_DOCUMENTS = 200
"""How many documents are composed and written."""
SECONDS_MAX = 10.0
"""How long a query over all documents may run before a cheaper one replaces it."""
_BATCH_DOCUMENTS = 1000
"""How many documents a load writes at once by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """The result of trying a step.

    Args:
        documents: How many documents there are; None if counting took too long, or failed.
        sample: The documents that were tried, by id.
        altered: The values that it indexed differently, or not at all.
        initial_load_seconds: The estimated time to write all documents; None if nothing could be measured.
        failures: The documents of the sample that the SELECT fails on, by id, with Postgres' message.
        failure: If the SELECT fails on the data, so that documents could not be counted: the error.
    """

    documents: int | None
    sample: dict[str, Row]
    rejections: tuple[Rejection, ...]
    altered: tuple[Altered, ...]
    initial_load_seconds: float | None
    failures: dict[str, str]
    failure: str | None


def attempt(connection: Connection, index: Index, indices: Indices, step: Step) -> TrialResult:
    """Try what apply would do to one document's index.

    Raises:
        IndexingError: Elasticsearch refuses index.json.
    """
    document = step.document
    ids = _sample_ids(connection, document)
    count, failure = _count(connection, document)
    sample, failures = _compose(connection, document, ids, until=clock() + SECONDS_MAX)
    began = clock()
    _compose(connection, document, list(sample), until=began)  # measured on the second run: the first is slower
    compose_seconds = clock() - began
    with _scratch(connection, indices, step) as target:
        write_seconds, rejections = _write(index, target, sample)
        differences = _altered(indices, target, sample)
    return TrialResult(
        documents=count,
        sample=sample,
        rejections=rejections,
        altered=differences,
        initial_load_seconds=max(compose_seconds / len(sample), write_seconds) * count if sample and count else None,
        failures=failures,
        failure=failure,
    )


def _compose(
    connection: Connection, document: Document, ids: list[str], *, until: float
) -> tuple[dict[str, Row], dict[str, str]]:
    """Return documents, and why the SELECT fails on others. After a failure, bisects the ids for as long as it may."""
    try:
        sample = queries.current(connection, document, ids)
        queries.existing(connection, document, ids)  # a load asks this for every id that the index holds
    except DocumentError as error:
        middle = len(ids) // 2
        if not middle or clock() > until:
            return {}, dict.fromkeys(ids[:1], _of_the_data(error))
        sample, failures = _compose(connection, document, ids[:middle], until=until)
        more, other_failures = _compose(connection, document, ids[middle:], until=until)
        return sample | more, failures | other_failures
    return sample, {}


def is_too_much(error: psycopg.Error) -> bool:
    """Whether a query over all documents took too long, or fails on one of them."""
    return isinstance(error, pg.QueryCanceled) or is_of_data(error)


def _sample_ids(connection: Connection, document: Document) -> list[str]:
    try:
        with bounded(connection, seconds=SECONDS_MAX):
            return queries.some_ids(connection, document, SAMPLE_DOCUMENTS)
    except psycopg.Error as error:
        if not is_too_much(error):
            raise
    # There are too many to choose from, or the SELECT fails on a row, which the first rows may not include.
    return queries.first_ids(connection, document, SAMPLE_DOCUMENTS)


def _count(connection: Connection, document: Document) -> tuple[int | None, str | None]:
    """Return how many documents there are, if known; and the error, if the SELECT fails on the data."""
    try:
        with bounded(connection, seconds=SECONDS_MAX):
            return queries.count(connection, document), None
    except pg.QueryCanceled:
        return None, None
    except DocumentError as error:
        return None, _of_the_data(error)


def _of_the_data(error: DocumentError) -> str:
    """Return Postgres' message if the SELECT fails on a row; raise any other error again."""
    cause = error.__cause__
    if not is_of_data(cause):
        raise error
    return str(cause.diag.message_primary)


def _scratch(connection: Connection, indices: Indices, step: Step) -> AbstractContextManager[Target]:
    """Create an empty index configured as apply would leave the document's index."""
    document = step.document
    if step.change in (PlannedChange.NEW, PlannedChange.INDEX_GONE, PlannedChange.REBUILD):
        return scratch_index.fresh(connection, indices, document)
    if step.is_new_revision:
        return scratch_index.changed(connection, indices, document, document.target)
    return scratch_index.copy(connection, indices, document, document.target)


def _write(index: Index, target: Target, sample: dict[str, Row]) -> tuple[float, tuple[Rejection, ...]]:
    """Write the sample, and then again as often as fills a batch of a load.

    Returns:
        The time per document in such a batch, and what Elasticsearch rejected.
    """
    rejections = index.write(target, _versioned(sample, 1)).rejections
    times = max(1, _BATCH_DOCUMENTS // max(1, len(sample)))
    batch = [one for version in range(2, 2 + times) for one in _versioned(sample, version)]
    began = clock()
    index.write(target, batch)
    return (clock() - began) / max(1, len(batch)), tuple(rejections)


def _altered(indices: Indices, target: Target, sample: dict[str, Row]) -> tuple[Altered, ...]:
    mappings = indices.body(target)["mappings"]
    fields = list(compared_fields(mappings))
    sources = {id_: row.source for id_, row in sample.items()}
    return tuple(altered(sources, indices.indexed(target, fields), mappings)) if sample else ()


def _versioned(sample: dict[str, Row], version: int) -> list[Composition]:
    return [Composition(id=id_, version=version, source=row.source, routing=row.routing) for id_, row in sample.items()]
