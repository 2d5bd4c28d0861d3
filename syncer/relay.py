"""Relay: outbox → topic, by one leader at a time.

The cursor is a ``pg_snapshot``, never an id or a time, since ids and times become visible out of order (as in
PgQ). New changes are those that the current snapshot sees and the saved one did not: no gap, and neither a
stall nor a rescan behind a transaction that stays open for hours.

Guarantees: a change that is committed is published at least once; the cursor is saved only after every record has
been acknowledged, so a relay that dies in between publishes again, which the version rule makes harmless.
One relay leads, by an advisory lock that belongs to the very connection that saves the cursor: a leader whose
connection is gone can save nothing. Published rows go away by TRUNCATE of whole segments.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import psycopg
import structlog
from psycopg import sql

from syncer import telemetry
from syncer.lifecycle import Stop, Stopping, persist
from syncer.postgres import AdvisoryLock, Connection, snapshot, stream
from syncer.topic import ChangeProducer

SEGMENTS = 8
STANDBY_SECONDS = 1.0
_BATCH_ROWS_MAX = 100_000

_LEAD = f"SELECT pg_try_advisory_lock({AdvisoryLock.RELAY:d})"

_SYSTEM = "SELECT system_identifier FROM pg_control_system()"
_CURSOR = "SELECT system_identifier, snapshot::text FROM syncer.relay_cursor"
_SAVE = """
INSERT INTO syncer.relay_cursor (system_identifier, snapshot) VALUES ($1, $2::pg_snapshot)
ON CONFLICT (only_row) DO UPDATE
SET system_identifier = excluded.system_identifier, snapshot = excluded.snapshot, saved_at = now()
"""
_CURRENT_SNAPSHOT = "SELECT pg_current_snapshot()::text"
_ADOPT = "UPDATE syncer.outbox SET xid = pg_current_xact_id()"
_BEFORE_NOW = "SELECT format('%1$s:%1$s:', pg_snapshot_xmin(pg_current_snapshot()))"

# By index: what had not begun when the cursor was taken, or was in progress then.
UNPUBLISHED = """
o.xid >= pg_snapshot_xmax({cursor}::pg_snapshot)
OR o.xid = ANY (array(SELECT pg_snapshot_xip({cursor}::pg_snapshot)))
"""
_NEW_CHANGES = (
    """
SELECT c.aggregate || ':' || coalesce(o.new ->> c.aggregate_column, o.old ->> c.aggregate_column, ''),
       json_build_object('id', o.id, 'changed_at', extract(epoch FROM o.changed_at), 'relation', o.relation,
                         'operation', o.operation, 'old', o.old, 'new', o.new)
FROM syncer.outbox AS o LEFT JOIN syncer.capture AS c USING (relation)
WHERE """
    + UNPUBLISHED
)

_CURRENT_SEGMENT = "SELECT last_value FROM syncer.outbox_segment"
_USE_SEGMENT = "SELECT setval('syncer.outbox_segment', $1)"
_IS_EMPTY = "SELECT NOT EXISTS (SELECT FROM {segment})"
_LOCK_SEGMENT = "LOCK TABLE {segment} IN ACCESS EXCLUSIVE MODE NOWAIT"
_IS_PUBLISHED = "SELECT NOT EXISTS (SELECT FROM {segment} AS o WHERE " + UNPUBLISHED + ")"  # noqa: S608 - constants of ours
_TRUNCATE = "TRUNCATE {segment}"


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
        if not _value(self._connection, _LEAD):
            if not self._stood_by:
                self._log.info(telemetry.RELAY_STOOD_BY)
            self._stood_by = True
            return None
        self._stood_by = False
        self._system_identifier = int(str(_value(self._connection, _SYSTEM)))
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
            cursor = str(_value(connection, _BEFORE_NOW))
            adopted = connection.execute(_ADOPT).rowcount
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
            seen = str(_value(connection, _CURRENT_SNAPSHOT))
            query = sql.SQL(_NEW_CHANGES).format(cursor=sql.Literal(self._cursor))
            for rows in stream(connection, query, page=self._fetch_rows):
                for aggregate, change in rows:
                    self._producer.produce((aggregate or "").encode(), change)
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

    # Trimming

    def trim(self) -> int:
        """Empty every segment that is published whole, and turn writers to an empty one.

        Never waits: a segment that a transaction still uses is left for the next time.

        Returns:
            How many segments were emptied.
        """
        connection = self._lead()
        if connection is None:
            return 0
        self._trimmed_at = time.monotonic()
        assert self._cursor is not None  # noqa: S101 - whoever leads has one
        current = int(str(_value(connection, _CURRENT_SEGMENT)))
        trimmed, empty = 0, []
        for number in range(SEGMENTS):
            if number == current:
                continue
            if self._is_empty(connection, number):
                empty.append(number)
            elif self._truncate_published(connection, number, self._cursor):
                trimmed += 1
                empty.append(number)
        if empty and not self._is_empty(connection, current):
            connection.execute(_USE_SEGMENT, (empty[0],))
        if trimmed:
            self._log.debug(telemetry.RELAY_TRIMMED, segments=trimmed)
        return trimmed

    def _is_empty(self, connection: Connection, number: int) -> bool:
        return bool(_value(connection, sql.SQL(_IS_EMPTY).format(segment=_segment(number))))

    def _truncate_published(self, connection: Connection, number: int, cursor: str) -> bool:
        segment = _segment(number)
        try:
            with connection.transaction():
                # Under this lock nobody is writing the segment: what is in it is committed or never will be.
                connection.execute(sql.SQL(_LOCK_SEGMENT).format(segment=segment))
                query = sql.SQL(_IS_PUBLISHED).format(segment=segment, cursor=sql.Literal(cursor))
                if not _value(connection, query):
                    return False
                connection.execute(sql.SQL(_TRUNCATE).format(segment=segment))
        except psycopg.errors.LockNotAvailable:
            return False
        return True


def _segment(number: int) -> sql.Identifier:
    return sql.Identifier("syncer", f"outbox_{number}")


def _value(connection: Connection, query: str | sql.Composed) -> object:
    row = connection.execute(query).fetchone()  # constants of ours
    assert row is not None  # noqa: S101 - each of these queries returns a row
    return row[0]
