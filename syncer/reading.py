"""Reading: a snapshot in which a document's relations are what its definition was applied to.

Guarantees, while it lasts: nobody alters one of those relations, and none was written anew behind the snapshot's
back, which would look empty; each has the shape that was recorded when the definition was applied. What fails
in it is the document's own fault, unless a server is away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from syncer import capture, shape
from syncer.errors import DocumentError
from syncer.policy import at_work_for
from syncer.postgres import LOCK_SECONDS_MAX, Connection, holding, snapshot
from syncer.store import Document

STAGE_LOCK_SECONDS = LOCK_SECONDS_MAX
"""How long a stage waits for a table that is being altered before it looks whether it is to stop, and tries again."""


@contextmanager
def locked(
    connection: Connection, document: Document, *, parks: bool = False, lock_seconds: float = 0
) -> Iterator[None]:
    """The snapshot, for who has yet to see in it whether the definition is still in force.

    Args:
        connection: Nothing else is done on it meanwhile.
        document: As it was last read.
        parks: Whether the caller finds out which row is at fault.
        lock_seconds: How long to wait while one of the relations is being altered; 0 for as long as it takes.

    Raises:
        DocumentError: The document is to halt, if this definition is in force.
        psycopg.errors.LockNotAvailable: The wait was too long.
    """
    with (
        at_work_for(document.name, document.generation, parks=parks),
        snapshot(connection, lock=shape.lockable(document.dependencies.shapes), lock_seconds=lock_seconds),
    ):
        yield


@contextmanager
def reading(
    connection: Connection, document: Document, *, parks: bool = False, lock_seconds: float = 0
) -> Iterator[None]:
    """The snapshot, compared with what the definition was applied to.

    Raises:
        DocumentError: The document is to halt.
        psycopg.errors.LockNotAvailable: The wait was too long.
    """
    with locked(connection, document, parks=parks, lock_seconds=lock_seconds):
        require_shape(connection, document)
        yield


@contextmanager
def following(
    connection: Connection, document: Document, *, parks: bool = False, lock_seconds: float
) -> Iterator[None]:
    """The same, for who follows changes: all of the tables are captured.

    Raises:
        DocumentError: The document is to halt.
        psycopg.errors.LockNotAvailable: The wait was too long.
    """
    with reading(connection, document, parks=parks, lock_seconds=lock_seconds):
        require_capture(connection, document)
        yield


@contextmanager
def noting(connection: Connection, document: Document, *, lock_seconds: float) -> Iterator[None]:
    """A transaction that may write down what the next statement reads: see `syncer.postgres.holding`.

    Raises:
        DocumentError: The document is to halt.
        psycopg.errors.LockNotAvailable: The wait was too long.
    """
    with (
        at_work_for(document.name, document.generation),
        holding(connection, lock=shape.lockable(document.dependencies.shapes), lock_seconds=lock_seconds),
    ):
        require_shape(connection, document)
        require_capture(connection, document)
        yield


def require_shape(connection: Connection, document: Document) -> None:
    """Refuse to read a document from other columns than those that it was applied to.

    Raises:
        DocumentError: With what has changed, in the caller's snapshot.
    """
    before = document.dependencies.shapes
    if said := shape.differences(before, shape.read_again(connection, before)):
        raise changed(document, said)


def require_capture(connection: Connection, document: Document) -> None:
    """Refuse to read tables whose changes nobody captures: one that was swapped in for a moment, say.

    Raises:
        DocumentError: With those tables, in the caller's snapshot.
    """
    if lost := capture.uncaptured(connection, document.dependencies.tables):
        raise uncaptured(document, lost)


def uncaptured(document: Document, lost: Sequence[str]) -> DocumentError:
    """The error for tables without triggers."""
    return DocumentError(
        f"{', '.join(lost)} of {document.name} has no triggers of syncer's, or they are disabled",
        hint="Was the table replaced by another one, or restored, or does a subscription fill it now? Changes are not\n"
        "captured until: syncer apply",
        document=document.name,
        generation=document.generation,
    )


def changed(document: Document, said: Sequence[str]) -> DocumentError:
    """The error for relations that are no longer what the definition was applied to."""
    return DocumentError(
        f"What {document.name} reads has changed since it was applied: {'; '.join(said)}",
        hint="Mend select.sql and index.json if they name it, or take the change back. Then run: syncer apply",
        document=document.name,
        generation=document.generation,
    )
