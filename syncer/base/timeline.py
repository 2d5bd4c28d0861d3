"""The timeline: what happened to the deployment in the last days, for ``syncer events`` and the status page.

Owns ``syncer.event``. Log lines that have a sentence for the timeline are noted in memory. A daemon's reporter writes
them every second, a command at its end.

Guarantees: noting an event sends no statement, waits for nothing and raises nothing. Writing is best effort: it waits
for no lock, and what fails is tried again later. Memory and table are bounded; the oldest events go first. Times are by
the database's clock, also those of events that waited for the database.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import psycopg
import structlog
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from syncer.base.postgres import LOCK_SECONDS_MAX, Connection, lock_timeout

DAYS_KEPT: Final = 7
KEPT_MAX: Final = 10_000
"""How many events the table keeps at most."""
_WAITING_MAX: Final = 1000
_CHARACTERS_MAX: Final = 2000

_WRITE = """
INSERT INTO syncer.event (at, event, level, message, host, process)
SELECT clock_timestamp() - make_interval(secs => n.age_seconds), n.event, n.level, n.message, $2, $3
FROM jsonb_to_recordset($1) AS n (age_seconds float8, event text, level text, message text)
"""
_PRUNE = f"""
DELETE FROM syncer.event
WHERE at < now() - interval '{DAYS_KEPT} days' OR id <= (SELECT max(id) - {KEPT_MAX} FROM syncer.event)
"""
_SINCE = """
SELECT * FROM (
    SELECT id, at, event, level, message, host, process FROM syncer.event
    WHERE at >= clock_timestamp() - make_interval(secs => $1) ORDER BY at DESC, id DESC LIMIT $2
) AS latest ORDER BY at, id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEvent:
    """A log event that was kept, with the host and the process that noted it. Times are by the database's clock."""

    id: int
    at: datetime
    event: str
    level: str
    message: str
    host: str
    process: int


class Timeline:
    """Notes events, and writes them to Postgres. Safe to share between threads."""

    def __init__(self) -> None:
        self._notes: deque[tuple[float, dict[str, str]]] = deque(maxlen=_WAITING_MAX)
        """When each event happened, by the monotonic clock, and the event."""
        self._turn = threading.Lock()
        self._has_failed = False

    def note(self, event: str, level: str, message: str) -> None:
        """Note what a log line says, in one sentence."""
        line = " ".join(message.split())[:_CHARACTERS_MAX]
        # Postgres cannot store everything that an error may quote.
        storable = line.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
        self._notes.append((time.monotonic(), {"event": event, "level": level, "message": storable}))

    def write(self, connection: Connection, *, prunes: bool = False) -> None:
        """Write what was noted, if anything, outside of any transaction; with `prunes`, also remove old events."""
        if not self._notes:
            return
        with self._turn:
            notes = list(self._notes)
            try:
                with connection.transaction():
                    connection.execute(lock_timeout(LOCK_SECONDS_MAX, local=True))
                    now = time.monotonic()
                    rows = [{**note, "age_seconds": now - noted_at} for noted_at, note in notes]
                    connection.execute(_WRITE, (Jsonb(rows), socket.gethostname(), os.getpid()))
                    if prunes:
                        connection.execute(_PRUNE)
            except psycopg.Error as error:
                if not self._has_failed:
                    structlog.get_logger().warning("timeline.write_failed", error=repr(error))
                self._has_failed = True
                return
            self._has_failed = False
            for _ in notes:
                self._notes.popleft()


def read(connection: Connection, *, seconds: float, limit: int = KEPT_MAX) -> list[TimelineEvent]:
    """The latest events of so many last seconds, oldest first."""
    with connection.cursor(row_factory=class_row(TimelineEvent)) as cursor:
        return cursor.execute(_SINCE, (seconds, limit)).fetchall()


TIMELINE: Final = Timeline()
"""The timeline of this process."""
