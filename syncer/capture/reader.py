"""Reader: reads the changes in the outbox, as the one process that leads, and saves the cursor.

The leader holds an advisory lock on the connection that saves the cursor, so a leader without its connection cannot
save anything. If a leader sends Postgres nothing for too long, as if its process were stopped, Postgres ends its
session: see `syncer.capture.leader`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import structlog

from syncer.base.formatting import amount
from syncer.base.postgres import AdvisoryLock, Connection, value
from syncer.capture import outbox, progress
from syncer.capture.leader import LEADS, LEASE_SECONDS, Lease
from syncer.capture.outbox import Page

TRIM_SECONDS = 10.0
"""How often rows that are done are removed."""
_LEAD = f"SELECT pg_try_advisory_lock({AdvisoryLock.RELAY:d})"
# If a crash takes back a save, the previous cursor is still true: changes are read again. So a save need not wait for
# the disk. Neither need the trimming of rows, since the cursor that allows it precedes it.
_LAZILY = "SET synchronous_commit = off"


class OutboxReader:
    """Reads the outbox as the leader, or stands by. Not for sharing between threads; after an error, `close` it.

    Args:
        connect: Opens a connection to Postgres.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._connection: Connection | None = None
        self._cursor: str | None = None
        self._saved = ""
        self._pages: Iterator[Page] | None = None
        self._changes = 0
        self._changed_at: float | None = None
        self._is_in_backlog = False
        self._lease: Lease | None = None
        self._trimmed_at = 0.0
        self._logged = ""
        self.numbers: dict[int, int] = {}
        """By partition, the last number that was saved."""
        self._log = structlog.get_logger()

    @property
    def connection(self) -> Connection:
        """The leader's connection."""
        assert self._connection is not None  # only a leader asks
        return self._connection

    def lead(self) -> bool:
        """Lead, or go on leading; return False if another process leads."""
        if self._cursor is not None:
            return True
        if self._connection is None:
            self._connection = self._connect()
        connection = self._connection
        if not value(connection, _LEAD):
            self._log_once("relay.stood_by")
            return False
        self._lease = Lease(connection, seconds=LEASE_SECONDS)
        connection.execute(_LAZILY)
        outbox.prepare(connection)
        self._cursor = self._saved = self._begin(connection)
        self._trimmed_at = time.monotonic()
        self._log_once("relay.led", cursor=self._cursor, timeline="This daemon became the leader.")
        LEADS.set()
        return True

    def read(self, *, rows_max: int) -> Page:
        """Return the changes that are new; at most so many, and then more follow."""
        assert self._cursor is not None  # only a leader reads
        if self._pages is None:
            self._pages = outbox.pages(self.connection, self._cursor, rows_max=rows_max)
        page = next(self._pages)
        if page.is_last:
            self._cursor, self._pages = page.cursor, None
        return page

    def save(self, page: Page, numbers: Mapping[int, int]) -> None:
        """Save that a page, and all before it, is done.

        ``numbers`` are those of the last records that Kafka has acknowledged, by partition; empty without Kafka.
        """
        self._changes += len(page.rows)
        made = [row.changed_at for row in page.rows]
        self._changed_at = min(made if self._changed_at is None else [self._changed_at, *made], default=None)
        # The last page of a backlog has no rows, but its cursor sees what those before it could not.
        has_news = self._changed_at is not None or numbers != self.numbers or self._is_in_backlog
        self._is_in_backlog = not page.is_last
        if page.cursor is None or not has_news:
            return
        progress.save(self.connection, page.cursor, changed_at=self._changed_at, changes=self._changes, numbers=numbers)
        self._saved, self._changed_at, self.numbers = page.cursor, None, dict(numbers)

    def forget_numbers(self) -> None:
        """Save the cursor without numbers, since Kafka is no longer used: everything before it counts as handled."""
        progress.save(self.connection, self._saved, changed_at=None, changes=self._changes, numbers={})
        self.numbers = {}

    def trim_if_due(self) -> None:
        """Remove the rows that the saved cursor has seen, if that was not done for a while."""
        if self._cursor is not None and time.monotonic() - self._trimmed_at >= TRIM_SECONDS:
            self.trim()

    def trim(self) -> int:
        """Remove the rows that the saved cursor has seen; return how many segments were emptied."""
        self._trimmed_at = time.monotonic()
        trimmed = outbox.trim(self.connection, self._saved)
        progress.prune(self.connection)
        if trimmed:
            self._log.debug("relay.outbox_trimmed", segments=trimmed)
        return trimmed

    def close(self) -> None:
        """Give up the lead; the next `lead` begins at the saved cursor."""
        if self._lease is not None:
            self._lease.end()
        if self._connection is not None:
            self._connection.close()
        self._connection = self._lease = self._cursor = self._pages = self._changed_at = None
        LEADS.clear()
        self._is_in_backlog = False

    def _begin(self, connection: Connection) -> str:
        """Return the saved cursor, if it is valid in this database."""
        saved = progress.read(connection)
        if saved is None or not saved.is_valid:
            adopted = progress.adopt(connection)
            if saved is not None:
                self._log.warning(
                    "relay.outbox_adopted",
                    changes=adopted,
                    timeline=f"The outbox is read again: {amount(adopted, 'change')}.",
                )
            saved = progress.read(connection)
            assert saved is not None  # it was just saved
        self._changes, self.numbers = saved.changes, saved.numbers
        return saved.snapshot

    def _log_once(self, event: str, **details: str) -> None:
        if self._logged != event:
            self._log.info(event, **details)
        self._logged = event
