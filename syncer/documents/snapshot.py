"""Snapshots in which a document's relations are still those that its definition was applied to.

Guarantees, while the snapshot lasts: none of those relations is altered. None was rewritten after the snapshot was
taken, which would make it look empty. Each has the shape that was recorded when the definition was applied, or accepted
since. An error in the snapshot is caused by the definition, unless a server is unavailable: a `DocumentError` says that
it has to be suspended. If a relation is being altered for longer than the caller waits, ``LockNotAvailable`` is raised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import psycopg

from syncer.base.error_policy import at_work_for
from syncer.base.errors import AlteredError, DocumentError
from syncer.base.lifecycle import clock
from syncer.base.postgres import LOCK_SECONDS_MAX, Connection, snapshot
from syncer.capture import install
from syncer.documents.registry import Document
from syncer.lineage import fingerprint

COMPONENT_LOCK_SECONDS = LOCK_SECONDS_MAX
"""How long a component waits for a table that is being altered before it checks whether to stop, and retries."""
_REVERT = (
    "If you revert the change, the document resumes by itself. Otherwise, fix select.sql and index.json if they name\n"
    "what has changed, and run: syncer apply"
)


class Tries:
    """Runs queries for so many seconds, in snapshots that end once one fails, or after as long, with what they lock."""

    def __init__(self, connection: Connection, *, seconds: float) -> None:
        self.connection = connection
        self._seconds = seconds
        self._snapshot = ExitStack()
        self._ends_at = 0.0

    def close(self) -> None:
        """End the snapshot; the next query takes another."""
        self._ends_at = 0.0
        self._snapshot.close()

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """Limit the time of each statement, in the snapshot of the queries before, if it can be."""
        if clock() >= self._ends_at:
            self.close()
            self._snapshot.enter_context(snapshot(self.connection, statement_seconds=self._seconds))
            self._ends_at = clock() + self._seconds
        try:
            yield
        except psycopg.Error:
            self.close()
            raise


@contextmanager
def reading(
    connection: Connection,
    document: Document,
    *,
    isolates: bool = False,
    in_time: bool = False,
    captured: bool = False,
    stores: bool = False,
    lock_seconds: float = 0,
    statement_seconds: float = 0,
) -> Iterator[None]:
    """Open the snapshot and compare it with what the definition was applied to; see `syncer.base.postgres.snapshot`.

    ``isolates`` and ``in_time`` are as in `at_work_for`. If tables are to be ``captured``, for a caller that follows
    changes, they must have triggers: one may have been swapped in without them.
    """
    lock = fingerprint.lockable(document.dependencies.shapes)
    with (
        at_work_for(document.name, document.revision, isolates=isolates, in_time=in_time),
        snapshot(connection, lock=lock, lock_seconds=lock_seconds, stores=stores, statement_seconds=statement_seconds),
    ):
        require_shape(connection, document, captured=captured)
        yield


def require_shape(connection: Connection, document: Document, *, captured: bool = False) -> None:
    """Check that the columns are those that the definition was applied to, and perhaps that tables have triggers.

    Raises:
        AlteredError: The columns are others; whether that matters is to be found out.
        DocumentError: Changes of a table are not captured, whatever the columns are.
    """
    differences = fingerprint.differences(document.shapes, fingerprint.read(connection, document.shapes))
    if differences or captured:
        lost = connection.execute(install.uncaptured_query(document.dependencies.tables)).fetchall()
        if lost:
            raise uncaptured(connection, document, [relation for (relation,) in lost])
    if differences:
        raise AlteredError(
            f"What {document.name} reads has changed since it was applied: {'; '.join(differences)}",
            hint=_REVERT,
            document=document.name,
            revision=document.revision,
            is_stale=True,
        )


def uncaptured(connection: Connection, document: Document, lost: Sequence[str]) -> DocumentError:
    """Return the error for tables of which triggers do not see every change, with all else that has changed."""
    recorded, current = document.shapes, fingerprint.read(connection, document.shapes)
    replaced = [table for table in lost if table in current and current[table].oid != recorded[table].oid]
    causes = [
        *fingerprint.differences(recorded, current),
        *(f"{relation} is another table than before" for relation in replaced),
    ]
    if unseen := [relation for relation in lost if relation in current and relation not in replaced]:
        causes.append(f"changes of {', '.join(unseen)} are not captured")
    return DocumentError(
        f"{document.name} cannot follow its tables: {'; '.join(causes)}",
        hint="If its triggers are disabled, enable them (ALTER TABLE … ENABLE ALWAYS TRIGGER …). If it\n"
        "or a partition is unlogged (ALTER TABLE … SET LOGGED) or foreign, change that. Then it resumes by itself.\n"
        "Did a tool drop its triggers, or put an earlier trigger function back? Was the table replaced by another\n"
        "one, or restored, or does a subscription load it now? Run: syncer apply"
        if unseen
        else _REVERT,
        document=document.name,
        revision=document.revision,
        is_stale=True,
    )
