"""Scratch index: tries an index.json on an empty index that no search sees.

Only Elasticsearch can tell whether a change can be made in place. So an empty copy of the live index is changed by the
same code that apply uses. What index.json no longer contains needs no new index: see `Indices.change`.

Guarantee: no scratch index outlives its trial; if a trial is killed, the next one removes its index. Trials on one
database run one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from syncer.base.model import Target
from syncer.base.postgres import AdvisoryLock, Connection
from syncer.documents.registry import Document
from syncer.elasticsearch.indices import Indices, refused

_LOCK = "SELECT pg_advisory_lock($1)"
_UNLOCK = "SELECT pg_advisory_unlock($1)"


@contextmanager
def fresh(connection: Connection, indices: Indices, document: Document) -> Iterator[Target]:
    """Create an empty index as index.json describes it.

    Raises:
        IndexingError: Elasticsearch refuses index.json.
    """
    with (
        _alone(connection),
        indices.scratch(document=document.name, alias=document.index, body=document.index_body) as target,
    ):
        # Settings that a scratch index overrides, such as the number of replicas, have not been tried yet.
        refusal = indices.try_change(target, document.index_body)
        if refusal is not None:
            raise refused(document.name, refusal)
        yield target


@contextmanager
def copy(connection: Connection, indices: Indices, document: Document, live: Target) -> Iterator[Target]:
    """Create an empty copy of an index."""
    with (
        _alone(connection),
        indices.scratch(document=document.name, alias=document.index, body=indices.body(live)) as target,
    ):
        yield target


@contextmanager
def changed(connection: Connection, indices: Indices, document: Document, live: Target) -> Iterator[Target]:
    """Create an empty copy of an index, changed in place to match index.json.

    Raises:
        IndexingError: It cannot be changed in place.
    """
    with copy(connection, indices, document, live) as target:
        indices.change(document=document.name, target=target, body=document.index_body)
        yield target


def obstacle(connection: Connection, indices: Indices, document: Document, live: Target) -> str | None:
    """Return why an index cannot be changed in place to match index.json; None if it can.

    Raises:
        IndexingError: Elasticsearch refuses index.json for any index.
    """
    with copy(connection, indices, document, live) as target:
        refusal = indices.try_change(target, document.index_body)
    if refusal is None:
        return None
    with fresh(connection, indices, document):
        return refusal.replace(target.index_name, live.index_name)


@contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """Keep other trials from removing this scratch index."""
    connection.execute(_LOCK, (int(AdvisoryLock.PLAN),))
    try:
        yield
    finally:
        connection.execute(_UNLOCK, (int(AdvisoryLock.PLAN),))
