"""Detach: stops the capture of changes, and removes everything that syncer has created.

`stop_capturing` is for a disk that is nearly full, or an application that is to run without syncer for a while: the
index stays as it is, and `syncer apply` goes on with a refresh of every document. `uninstall` removes all of it.

Guarantees: a writer waits for a lock as briefly as with `syncer apply`. After a crash in between, the same call does
what is left. No change is forgotten silently: a document is suspended, and due for a refresh, before its changes go.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from syncer.apply import activate
from syncer.base.errors import DocumentError
from syncer.base.model import Role
from syncer.base.postgres import Connection, without_blocking
from syncer.capture import install
from syncer.documents import registry, suspend
from syncer.elasticsearch.bulk import Index
from syncer.elasticsearch.indices import Indices
from syncer.recovery import orphan_indices

_LOCK_SECONDS = 60.0
"""How long to try for a lock, a moment at a time."""


def stop_capturing(connection: Connection, *, report: Callable[[str], None] = lambda _: None) -> None:
    """Disable the triggers of every table, suspend every document and empty the outbox.

    Raises:
        SourceError: A lock was not available in time. Tables before it are no longer captured; run it again.
    """
    with activate.alone(connection):
        for relation in sorted(install.captured(connection)):
            install.disable(connection, relation, timeout_seconds=_LOCK_SECONDS, waiting=report)
            report(f"changes of {relation} are no longer captured")
        for document in registry.documents(connection):
            error = DocumentError(
                "Capturing was stopped by `syncer detach`",
                hint="To go on, run: syncer apply",
                document=document.name,
                revision=document.revision,
                is_stale=True,
            )
            suspend.suspend(connection, error)
        truncate = partial(connection.execute, "TRUNCATE syncer.outbox")
        without_blocking(connection, ["syncer.outbox"], truncate, _LOCK_SECONDS, report)
        report("the outbox is empty; every document is suspended until: syncer apply")


def uninstall(
    connection: Connection, index: Index, indices: Indices, *, report: Callable[[str], None] = lambda _: None
) -> None:
    """Remove the documents with their indices, the triggers, the record in Elasticsearch and the schema.

    Raises:
        IndexingError: An index has an alias that is not syncer's; it and what comes after it are still there.
        SourceError: A lock was not available in time; run it again.
    """
    with activate.alone(connection):
        for document in sorted(registry.documents(connection), key=lambda document: document.role is Role.CURRENT):
            activate.withdraw(connection, indices, document)
            report(f"index {document.index_name} of {document.name} is dropped")
        for target in orphan_indices.find(connection):
            orphan_indices.drop(connection, indices, target)
        for relation in sorted(install.captured(connection)):
            install.remove(connection, relation, timeout_seconds=_LOCK_SECONDS, waiting=report)
            report(f"triggers of {relation} are removed")
        index.record.forget(registry.installation(connection))
        drop = partial(connection.execute, "DROP SCHEMA syncer CASCADE")
        without_blocking(connection, ["syncer.outbox"], drop, _LOCK_SECONDS, report)
        report("the schema syncer is dropped")
