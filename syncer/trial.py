"""Trial: what Elasticsearch makes of an index.json, found out on an empty index that no search sees.

Whether a change can be made in place is Elasticsearch's to say, so it is asked: an empty copy of the live index is
changed by the same code that apply uses. What index.json no longer says needs no new index: see `Indices.change`.

Guarantee: nothing outlives a trial; of one that was killed, the next one removes what it left. Trials on one database
come one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from syncer.errors import IndexingError
from syncer.indices import Indices
from syncer.model import Target
from syncer.postgres import AdvisoryLock, Connection
from syncer.store import Document

_LOCK = "SELECT pg_advisory_lock($1)"
_UNLOCK = "SELECT pg_advisory_unlock($1)"


@contextmanager
def fresh(connection: Connection, indices: Indices, document: Document) -> Iterator[Target]:
    """An empty index such as index.json describes.

    Raises:
        IndexingError: Elasticsearch refuses index.json as such.
    """
    with (
        _alone(connection),
        indices.scratch(document=document.name, alias=document.index, body=document.index_body) as target,
    ):
        # What a scratch index has of its own has not been asked yet, such as a number of replicas.
        refusal = indices.try_change(target, document.index_body)
        if refusal is not None:
            raise IndexingError(
                f"Elasticsearch refuses the index.json of {document.name}: {refusal}",
                hint="Settings and mappings are passed on as they stand in index.json.",
            )
        yield target


@contextmanager
def copy(connection: Connection, indices: Indices, document: Document, live: Target) -> Iterator[Target]:
    """An empty copy of an index."""
    with (
        _alone(connection),
        indices.scratch(document=document.name, alias=document.index, body=indices.body(live)) as target,
    ):
        yield target


@contextmanager
def changed(connection: Connection, indices: Indices, document: Document, live: Target) -> Iterator[Target]:
    """An empty copy of an index, changed in place to what index.json says.

    Raises:
        IndexingError: It cannot be.
    """
    with copy(connection, indices, document, live) as target:
        indices.change(document=document.name, target=target, body=document.index_body)
        yield target


def obstacle(connection: Connection, indices: Indices, document: Document, live: Target) -> str | None:
    """Why an index cannot be changed in place to what index.json says; None if it can.

    Raises:
        IndexingError: No index can be as index.json says.
    """
    with copy(connection, indices, document, live) as target:
        refusal = indices.try_change(target, document.index_body)
    if refusal is None:
        return None
    with fresh(connection, indices, document):
        return refusal.replace(target.index_name, live.index_name)


@contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """Let no other trial remove our scratch index."""
    connection.execute(_LOCK, (int(AdvisoryLock.PLAN),))
    try:
        yield
    finally:
        connection.execute(_UNLOCK, (int(AdvisoryLock.PLAN),))
