"""Relay: outbox → topic, by one leader at a time.

The cursor is a ``pg_snapshot``, never an id or a time, since ids and times become visible out of order (as in
PgQ). New changes are those that the current snapshot sees and the saved one did not: no gap, and neither a
stall nor a rescan behind a transaction that stays open for hours.

Guarantees: a change that is committed is published at least once; the cursor is saved only after every record has
been acknowledged, so a relay that dies in between publishes again, which the version rule makes harmless.
One relay leads, by an advisory lock that belongs to the very connection that saves the cursor: a leader whose
connection is gone can save nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from syncer import outbox, telemetry
from syncer.lifecycle import Stop, Stopping, persist
from syncer.postgres import AdvisoryLock, Connection, snapshot, value
from syncer.topic import ChangeProducer

STANDBY_SECONDS = 1.0

_LEAD = f"SELECT pg_try_advisory_lock({AdvisoryLock.RELAY:d})"

_SYSTEM = "SELECT system_identifier FROM pg_control_system()"
_CURSOR = "SELECT system_identifier, snapshot::text FROM syncer.relay_cursor"
_SAVE = """
INSERT INTO syncer.relay_cursor (system_identifier, snapshot) VALUES ($1, $2::pg_snapshot)
ON CONFLICT (only_row) DO UPDATE
SET system_identifier = excluded.system_identifier, snapshot = excluded.snapshot, saved_at = now()
"""
_CURRENT_SNAPSHOT = "SELECT pg_current_snapshot()::text"
_BEFORE_NOW = "SELECT format('%1$s:%1$s:', pg_snapshot_xmin(pg_current_snapshot()))"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayReport:
    """What one turn of the relay did.

    Args:
        is_leader: Whether this relay leads.
        published: How many changes were published.
        cursor: The snapshot up to which everything is published.
        seconds: How long it took.
    """

    is_leader: bool
    published: int = 0
    cursor: str = ""
    seconds: float = 0


class Relay:
    """Publishes committed changes, or stands by.

    Args:
        connect: Opens a connection to Postgres.
        produce: Opens a producer.
        fetch_rows: How many rows are in memory at once.
        poll_seconds: How long to rest when there was nothing.
        trim_seconds: How often to give published rows back.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], Connection],
        produce: Callable[[], ChangeProducer],
        fetch_rows: int = 2000,
        poll_seconds: float = 0.02,
        trim_seconds: float = 10,
    ) -> None:
        self._connect = connect
        self._produce = produce
        self._fetch_rows = fetch_rows
        self._poll_seconds = poll_seconds
        self._trim_seconds = trim_seconds
        self._connection: Connection | None = None
        self._producer: ChangeProducer | None = None
        self._system_identifier = 0
        self._cursor: str | None = None
        self._stood_by = False
        self._trimmed_at = time.monotonic()
        self._log = structlog.get_logger()

    def run(self, stop: Stop) -> None:
        """Relay until told to stop."""
        try:
            while not stop.is_requested:
                report = persist(self._attempt, pause=stop.pause, stage="relay")
                if not report.is_leader:
                    stop.wait(STANDBY_SECONDS)
                elif not report.published:
                    stop.wait(self._poll_seconds)
        except Stopping:
            pass
        finally:
            self.close()

    def run_once(self) -> RelayReport:
        """Publish what is new and save the cursor, if this relay leads.

        Raises:
            psycopg.Error, KafkaException: Nothing was saved; after `close`, it may be done again.
        """
        connection = self._lead()
        if connection is None:
            return RelayReport(is_leader=False)
        report = self._publish(connection)
        if time.monotonic() - self._trimmed_at >= self._trim_seconds:
            self.trim()
        return report

    def close(self) -> None:
        """Give up the lead and let go of the servers; the next turn begins afresh."""
        if self._connection is not None:
            self._connection.close()
        if self._producer is not None:
            self._producer.close()
        self._connection = self._producer = self._cursor = None

    def _attempt(self) -> RelayReport:
        try:
            return self.run_once()
        except Exception:
            self.close()
            raise

    # Leading

    def _lead(self) -> Connection | None:
        if self._connection is None:
            self._connection = self._connect()
        if self._cursor is not None:
            return self._connection
        if not value(self._connection, _LEAD):
            if not self._stood_by:
                self._log.info(telemetry.RELAY_STOOD_BY)
            self._stood_by = True
            return None
        self._stood_by = False
        self._system_identifier = int(str(value(self._connection, _SYSTEM)))
        self._cursor = self._begin(self._connection)
        self._log.info(telemetry.RELAY_LED, cursor=self._cursor)
        return self._connection

    def _begin(self, connection: Connection) -> str:
        """The saved cursor, if it is this cluster's own."""
        saved = connection.execute(_CURSOR).fetchone()
        if saved is not None and saved[0] == self._system_identifier:
            return str(saved[1])
        adopted, cursor = self._adopt(connection)
        if saved is not None:
            self._log.warning(telemetry.RELAY_ADOPTED, changes=adopted)
        return cursor

    def _adopt(self, connection: Connection) -> tuple[int, str]:
        """Begin where no cursor can be trusted: every row in the outbox becomes a new change.

        Transaction ids of another cluster mean nothing here, neither in a cursor nor in the rows.
        """
        with connection.transaction():
            cursor = str(value(connection, _BEFORE_NOW))
            adopted = outbox.renew(connection)
            connection.execute(_SAVE, (self._system_identifier, cursor))
        return adopted, cursor

    # Publishing

    def _publish(self, connection: Connection) -> RelayReport:
        began = time.monotonic()
        if self._producer is None:
            self._producer = self._produce()
        assert self._cursor is not None  # noqa: S101 - whoever leads has one
        published = 0
        with snapshot(connection):
            seen = str(value(connection, _CURRENT_SNAPSHOT))
            for rows in outbox.changes(connection, self._cursor, page=self._fetch_rows):
                for key, change in rows:
                    self._producer.produce((key or "").encode(), change)
                published += len(rows)
        if published:
            self._producer.flush()
            self._save(connection, seen)
        self._cursor = seen  # unsaved if nothing was new: then there is nothing between the two
        report = RelayReport(is_leader=True, published=published, cursor=seen, seconds=time.monotonic() - began)
        if published:
            self._log.info(telemetry.RELAY_PUBLISHED, changes=published, seconds=round(report.seconds, 4), cursor=seen)
        return report

    def _save(self, connection: Connection, cursor: str) -> None:
        connection.execute(_SAVE, (self._system_identifier, cursor))

    def trim(self) -> int:
        """Give published rows back; how many segments were emptied."""
        connection = self._lead()
        if connection is None:
            return 0
        self._trimmed_at = time.monotonic()
        assert self._cursor is not None  # noqa: S101 - whoever leads has one
        trimmed = outbox.trim(connection, self._cursor)
        if trimmed:
            self._log.debug(telemetry.RELAY_TRIMMED, segments=trimmed)
        return trimmed
