"""Watermark: whether everything committed before a moment is handled: read from the outbox, and done.

Guarantee: once nothing is left, each document touched by a change committed before the moment is in one of these
states. It was written with a version assigned after the change was visible, or it has a greater version that shows the
change. Or it is dead-lettered, left to an existing job, or its definition is suspended. For the reasons see
`syncer.capture.progress`.

Comparing a document with its SELECT relies on this. If it differed before the moment, a change that it does not show
was committed before the moment. Once that change is handled, the document was written again and has another version. If
it still has the same version, and no job will write it, nothing is in flight to it: it has drifted, however slow the
workers are. Until then its state is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from syncer.base.formatting import amount
from syncer.base.postgres import Connection
from syncer.capture import outbox, progress


class Watermark:
    """Tells whether everything committed to some tables before a moment is handled, and whether that makes progress.

    Args:
        connection: To Postgres; used for nothing else meanwhile.
        relations: The tables.
    """

    def __init__(self, connection: Connection, relations: Collection[str]) -> None:
        self._connection = connection
        self._relations = relations
        self.begin()

    def begin(self) -> None:
        """Set the moment to now."""
        self.began_at = self._moved_at = time.monotonic()
        self._moment = outbox.moment(self._connection)
        self._cursor_id: int | None = None
        self._state: object = None
        self.says = ""
        """What was left at the last call of `is_through`, in words; empty if nothing was."""

    @property
    def still_seconds(self) -> float:
        """The time since anything last moved."""
        return time.monotonic() - self._moved_at

    def is_through(self) -> bool:
        """Whether nothing is left.

        Raises:
            psycopg.Error: Postgres does not answer.
        """
        self.says, state = self._look()
        if state != self._state:
            self._state, self._moved_at = state, time.monotonic()
        return not self.says

    def _look(self) -> tuple[str, object]:
        """Return what is left, in words, and what changes as long as that makes progress."""
        if self._cursor_id is None:
            if changes := outbox.unpublished(self._connection, self._moment, self._relations):
                return f"{amount(changes, 'change')} in the outbox", (changes, progress.newest(self._connection))
            # Every change before the moment belongs to this cursor, or one before.
            self._cursor_id = progress.newest(self._connection)
        handled = progress.handled(self._connection)
        if handled.id >= self._cursor_id:
            return "", None
        return f"{amount(handled.waiting, 'change')} in the topic", handled
