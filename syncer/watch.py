"""Watch: looks every few seconds whether what the documents rely on is still there, also when nothing is written.

Guarantee: a table that is replaced, renamed away or without its triggers, and a column or a view that changes, halts
the documents that read it within one turn, even if no change ever comes of it. A table that was
written anew, and partitions that come or go with their rows, become a change within one turn. Every daemon watches;
halting twice is halting once, and a table is noted by one. Each turn also notes the last version that was drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from syncer import capture, events, halting, store
from syncer.errors import DocumentError
from syncer.lifecycle import Stop, Stopping, Trouble, persist
from syncer.link import Link
from syncer.policy import at_work_for
from syncer.postgres import Connection
from syncer.reading import require_shape, uncaptured
from syncer.store import Document
from syncer.version import DrawLog


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchReport:
    """What one turn found.

    Args:
        documents: How many documents were looked after.
        halted: Those that this turn has halted.
        noted: The tables that were written anew, or have other partitions.
    """

    documents: int
    halted: tuple[str, ...]
    noted: tuple[str, ...]


class Watch:
    """Looks after the documents in force.

    Args:
        connect: Opens a connection to Postgres.
        seconds: How long to rest between two turns.
        name: For the log.
    """

    def __init__(self, *, connect: Callable[[], Connection], seconds: float = 5, name: str = "watch") -> None:
        self._link = Link(connect)
        self._seconds = seconds
        self._name = name
        self._draws = DrawLog()
        self._trouble = Trouble(name)

    def run(self, stop: Stop) -> None:
        """Look after the documents until told to stop."""
        try:
            while not stop.is_requested:
                persist(self.run_once, pause=stop.pause, stage=self._name, trouble=self._trouble)
                stop.wait(self._seconds)
        except Stopping:
            pass
        finally:
            self.close()

    def run_once(self) -> WatchReport:
        """Note partitions, and halt each document that goes on though what it relies on has changed."""
        with self._link.used() as connection:
            self._draws.note(connection)
            noted = capture.note_files(connection)
            if noted:
                structlog.get_logger().info(events.FILES_NOTED, relations=noted)
            going = [one for one in store.documents(connection) if one.halted is None]
            halted = [one.name for one in going if self._has_to_halt(connection, one)]
        return WatchReport(documents=len(going), halted=tuple(halted), noted=tuple(noted))

    def close(self) -> None:
        """Let go of the connection; the next turn opens another one."""
        self._link.close()

    def _has_to_halt(self, connection: Connection, document: Document) -> bool:
        try:
            with at_work_for(document.name, document.generation):
                require_shape(connection, document)
                _require_triggers(connection, document)
        except DocumentError as error:
            return halting.halt(connection, error)
        return False


def _require_triggers(connection: Connection, document: Document) -> None:
    """Refuse to go on with a table whose changes nobody captures.

    Raises:
        DocumentError: With those tables.
    """
    lost = [one for one in document.dependencies.tables if not capture.is_installed(connection, one)]
    if lost:
        raise uncaptured(document, lost)
