"""Reader: reads the changes in the outbox, as the one process that leads, and saves the cursor.

The leader holds an advisory lock on the connection that saves the cursor, so a leader without its connection cannot
save anything. Postgres ends the session of a leader that sends no statement for `LEASE_SECONDS`, as if its process were
stopped: its lock is free then. A thread of the leader sends one every few seconds, however long its work takes; it
stands still with its process.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

import psycopg
import structlog

from syncer.base.errors import NotReadyError
from syncer.base.formatting import amount
from syncer.base.postgres import AdvisoryLock, Connection, value
from syncer.capture import outbox, progress
from syncer.capture.outbox import Page
from syncer.capture.progress import Cursor

TRIM_SECONDS = 10.0
"""How often rows that are done are removed, and the size of the outbox is checked."""
LEASE_SECONDS = 15.0
"""How long a leader may send nothing to Postgres. Then another process leads."""
_GIVE_UP_TIMES = 3
"""How often a backlog is given up in a row, if the outbox is still too large."""
LEADS = threading.Event()
"""Whether this process leads; the daemon reports it."""
_LEAD = f"SELECT pg_try_advisory_lock({AdvisoryLock.RELAY:d})"
# If a crash takes back a save, the previous cursor is still true: changes are read again. So a save need not wait for
# the disk. Neither need the trimming of rows, since the cursor that allows it precedes it. The lease is not
# idle_in_transaction_session_timeout: while Kafka keeps a leader from reading what the server has sent, it can send
# nothing either.
_BEGIN = "SELECT set_config('synchronous_commit', 'off', false), set_config('idle_session_timeout', $1, false)"


class OutboxReader:
    """Reads the outbox as the leader, or stands by. Not for sharing between threads; after an error, `close` it.

    Args:
        bytes_max: A larger backlog is given up.
        refresh_all: Creates a refresh of every document, in the caller's transaction, given the time of the oldest
            change that it makes good.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        *,
        bytes_max: int,
        refresh_all: Callable[[Connection, float | None], None],
    ) -> None:
        self._connect = connect
        self._bytes_max = bytes_max
        self._refresh_all = refresh_all
        self._measured_at = 0.0
        self._connection: Connection | None = None
        self._lease_is_over = threading.Event()
        self._read_to: str | None = None
        """The cursor that the next page follows; None while another process leads."""
        self._saved = Cursor(snapshot="", numbers={}, changes=0, is_valid=False)
        self._pages: Iterator[Page] | None = None
        self._changes = 0
        self._changed_at: float | None = None
        self._is_in_backlog = False
        self._trimmed_at = 0.0
        self.has_left_rows = False
        """Whether the last trim left rows, as those of an open transaction. Then a cursor is saved although nothing was
        read. Soon it knows of the transaction, and nothing that reads from it passes those rows."""
        self._was_leading: bool | None = None
        """What was logged last."""
        self._log = structlog.get_logger()

    @property
    def connection(self) -> Connection:
        """The leader's connection."""
        assert self._connection is not None  # only a leader asks
        return self._connection

    @property
    def numbers(self) -> Mapping[int, int]:
        """By partition, the last number that was saved."""
        return self._saved.numbers

    def lead(self) -> bool:
        """Lead, or go on leading; return False if another process leads."""
        if self._read_to is not None:
            return True
        if self._connection is None:
            self._connection = self._connect()
        connection = self._connection
        if not value(connection, _LEAD):
            if self._was_leading is not False:
                self._log.info("relay.stood_by")
            self._was_leading = False
            return False
        connection.execute(_BEGIN, (f"{LEASE_SECONDS * 1000:.0f}ms",))
        self._lease_is_over = threading.Event()
        threading.Thread(target=_renew, args=(connection, self._lease_is_over), name="lease", daemon=True).start()
        outbox.prepare(connection)
        saved = progress.read(connection)
        if saved is None or not saved.is_valid:
            adopted = progress.adopt(connection)
            if saved is not None:
                sentence = f"The outbox is read again: {amount(adopted, 'change')}."
                self._log.warning("relay.outbox_adopted", changes=adopted, timeline=sentence)
            saved = progress.read(connection)
            assert saved is not None  # it was just saved
        self._saved, self._read_to, self._changes = saved, saved.snapshot, saved.changes
        self._trimmed_at = self._measured_at = time.monotonic()
        if outbox.exceeds(connection, self._read_to, bytes_max=self._bytes_max):
            self._give_up_backlog()
        if not self._was_leading:
            name = f"{socket.gethostname()}, process {os.getpid()}"
            self._log.info("relay.led", cursor=self._read_to, timeline=f"The daemon {name}, became the leader.")
        self._was_leading = True
        LEADS.set()
        return True

    def exceeds(self) -> bool:
        """Whether the backlog takes too much of the disk, whichever process leads."""
        if self._connection is None:
            self._connection = self._connect()
        saved = progress.read(self._connection)
        cursor = saved.snapshot if saved is not None and saved.is_valid else outbox.NOTHING_READ
        return outbox.exceeds(self._connection, cursor, bytes_max=self._bytes_max)

    def require_room(self) -> None:
        """Check now and then, as the leader, that the backlog does not take too much of the disk.

        Raises:
            NotReadyError: It does. Drop what is in hand, `close`, and lead anew, which gives the backlog up.
        """
        if self._read_to is None or time.monotonic() - self._measured_at < TRIM_SECONDS:
            return
        self._measured_at = time.monotonic()
        if outbox.exceeds(self.connection, self._saved.snapshot, bytes_max=self._bytes_max):
            raise NotReadyError(
                "The outbox exceeds relay.outbox_bytes_max: its changes are given up, and every document is refreshed",
                hint="Nothing is lost. If the disk has room for more, raise relay.outbox_bytes_max.",
            )

    def _give_up_backlog(self) -> None:
        """Save a cursor that has seen every change, and have every document refreshed instead.

        A writer beside it may leave a change in a segment that could be emptied otherwise. Writers are directed to
        another one by then, so the next time empties it.
        """
        connection = self.connection
        for _ in range(_GIVE_UP_TIMES):
            cursor = self._saved.snapshot
            # Rule: the-refresh-is-committed-with-the-cursor.
            with connection.transaction():
                connection.execute(progress.WAIT_FOR_DISK)
                # Before the jobs: what they make good was committed by then, as `wait` relies on.
                snapshot = progress.moment(connection)
                self._refresh_all(connection, outbox.oldest_changed_at(connection, cursor))
                self._saved = replace(self._saved, snapshot=snapshot, changes=self._changes, is_valid=True)
                progress.save(connection, self._saved, changed_at=None)
            self._read_to = snapshot
            self.trim()
            if not outbox.exceeds(connection, snapshot, bytes_max=self._bytes_max, changes_min=0):
                return

    def read(self, *, rows_max: int) -> Page:
        """Return the changes that are new; at most so many, and then more follow.

        Raises:
            NotReadyError: As `require_room`.
        """
        assert self._read_to is not None  # only a leader reads
        self.require_room()
        if self._pages is None:
            self._pages = outbox.pages(self.connection, self._read_to, rows_max=rows_max)
        page = next(self._pages)
        if page.is_last:
            self._read_to, self._pages = page.cursor, None
        return page

    def save(self, page: Page, numbers: Mapping[int, int]) -> None:
        """Save that a page, and all before it, is done.

        ``numbers`` are those of the last records that Kafka has acknowledged, by partition; empty without Kafka.
        """
        self._changes += len(page.rows)
        changed_at = [row.changed_at for row in page.rows]
        self._changed_at = min(
            changed_at if self._changed_at is None else [self._changed_at, *changed_at], default=None
        )
        # The last page of a backlog has no rows, but its cursor sees what those before could not.
        has_news = self._changed_at is not None or numbers != self.numbers or self._is_in_backlog or self.has_left_rows
        self._is_in_backlog = not page.is_last
        if page.cursor is not None and has_news:
            self._saved = Cursor(snapshot=page.cursor, numbers=dict(numbers), changes=self._changes, is_valid=True)
            progress.save(self.connection, self._saved, changed_at=self._changed_at)
            self._changed_at, self.has_left_rows = None, False

    def forget_numbers(self) -> None:
        """Save the cursor without numbers, since Kafka is no longer used: everything before it counts as handled."""
        self.save(Page(rows=[], cursor=self._saved.snapshot, is_last=True), {})

    def trim_if_due(self) -> None:
        """Remove the rows that the saved cursor has seen, if that was not done for a while."""
        if self._read_to is not None and time.monotonic() - self._trimmed_at >= TRIM_SECONDS:
            self.trim()

    def trim(self) -> int:
        """Remove the rows that the saved cursor has seen; return how many segments were emptied."""
        self._trimmed_at = time.monotonic()
        trimmed, self.has_left_rows = outbox.trim(self.connection, self._saved.snapshot)
        progress.prune(self.connection)
        if trimmed:
            self._log.debug("relay.outbox_trimmed", segments=trimmed)
        return trimmed

    def close(self) -> None:
        """Give up the lead; the next `lead` begins at the saved cursor."""
        self._lease_is_over.set()
        if self._read_to is not None:  # else another reader of this process may lead
            LEADS.clear()
        if self._connection is not None:
            self._connection.close()
        self._connection = self._read_to = self._pages = self._changed_at = None
        self._is_in_backlog = False


def _renew(connection: Connection, is_over: threading.Event) -> None:
    """Keep the leader's session alive, between the statements of its owner."""
    while not is_over.wait(LEASE_SECONDS / 6):
        with suppress(psycopg.Error):  # its owner meets it too
            connection.execute("SELECT")
