"""Source: where a worker receives changes from, and saves which are handled. One of two, with the same rules.

    OutboxSource    the outbox itself, without Kafka: of all daemons, one leads
    TopicSource     the topic: any number of workers share its partitions

Guarantees, of both: after `close`, or the death of the process, everything that was not saved is received again, by
this worker or another. What was saved is in Postgres: see `syncer.capture.progress`. A batch is resolved while the
session lives that saves it, or received again: after a failover, the database may lack the jobs that cover it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import psycopg
import structlog

from syncer.base.errors import LossError
from syncer.base.model import Change, WriteReport, id_in
from syncer.base.postgres import Connection, Link, value
from syncer.base.settings import KafkaSettings, RelaySettings
from syncer.capture import progress
from syncer.capture.outbox import Page
from syncer.capture.progress import PartitionPlace
from syncer.kafka.consumer import ChangeConsumer, Received
from syncer.recovery import backlog, lost_records

_KEEP_ALIVE_SECONDS = 5.0
_SAVE_SECONDS = 0.1
"""How often the progress in the topic is saved at most."""
_STANDBY_SECONDS = 1.0
_NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"
SILENT_SECONDS = 30.0
"""How long to wait in vain for what Kafka has acknowledged: three times as long as a partition has no record.

Only waiting counts. A worker with much in hand does not ask for records for as long.
"""


@dataclass(slots=True, kw_only=True, eq=False)
class ChangeBatch:
    """Changes that were received together, and the documents that they touch.

    Args:
        records: How many records they came in, those without a change included.
        mark: What the source needs to save that they are handled.
        begun_at: The time of receipt, by the monotonic clock.
        passed_over: How many of the records are of another history, so that another primary may be in use.
        writes: The documents that are being written, and their index.
    """

    changes: list[Change]
    records: int
    mark: Any
    passed_over: int = 0
    begun_at: float = field(default_factory=time.monotonic)
    number: int = 0
    writes: list[tuple[str, Future[WriteReport]]] = field(default_factory=list)


class Source(Protocol):
    """Where changes come from. Not for sharing between threads."""

    def receive(self, *, records_max: int, wait_seconds: float) -> ChangeBatch | None:
        """Return the changes that are new; None if none have arrived within this time."""

    def save(self, batch: ChangeBatch) -> None:
        """Save that these changes are handled, and all that were received before them."""

    def keep_alive(self) -> None:
        """Call it every second or so while changes are handled: otherwise another process takes over.

        Raises:
            psycopg.OperationalError, NotReadyError: What is in hand cannot be saved any more: call `close`.
        """

    def close(self) -> None:
        """Give up what was received and is not saved; the next `receive` starts over."""


class OutboxSource:
    """The outbox, for the process that leads."""

    def __init__(
        self, *, connect: Callable[[], Connection], settings: RelaySettings, pause: Callable[[float], None]
    ) -> None:
        self._reader = backlog.reader(connect, bytes_max=settings.outbox_bytes_max)
        self._poll_seconds = settings.poll_seconds
        self._pause = pause
        self._look_at = 0.0
        self._is_behind = self._has_empty_batch = False

    def receive(self, *, records_max: int, wait_seconds: float) -> ChangeBatch | None:
        """Return the changes that are new; None if there are none, or another process leads."""
        rest_seconds = self._look_at - time.monotonic()
        if rest_seconds > wait_seconds:
            self._pause(wait_seconds)
            return None
        self._pause(max(0.0, rest_seconds))
        if not self._reader.lead():
            self._look_at = time.monotonic() + _STANDBY_SECONDS
            return None
        if self._reader.numbers:  # a relay has led before
            connection = self._reader.connection
            # Rule: off-refreshes-what-is-not-handled.
            if progress.handled(connection) < progress.newest(connection):
                lost_records.make_up(connection, "Kafka was turned off before everything in the topic was handled")
            self._reader.forget_numbers()
        was_behind = self._is_behind
        page = self._reader.read(rows_max=records_max)
        self._is_behind = not page.is_last
        self._look_at = 0.0 if self._is_behind else time.monotonic() + self._poll_seconds
        self._reader.trim_if_due()
        if not page.rows and not was_behind:
            # One in hand will do: while a server is away, no batch is saved, and rows are left.
            if self._has_empty_batch or not self._reader.has_left_rows:
                return None
            self._has_empty_batch = True
        return ChangeBatch(changes=[Change.parse(row.value) for row in page.rows], records=len(page.rows), mark=page)

    def save(self, batch: ChangeBatch) -> None:
        """Save the cursor, if it moves with these changes."""
        page: Page = batch.mark
        self._reader.save(page, {})
        self._has_empty_batch = self._has_empty_batch and bool(page.rows)

    def keep_alive(self) -> None:
        """Check that the changes that wait have room; the leader's session renews itself.

        Raises:
            NotReadyError: They do not: call `close`.
        """
        self._reader.require_room()

    def close(self) -> None:
        """Give up the lead."""
        self._reader.close()
        self._look_at, self._is_behind, self._has_empty_batch = 0.0, False, False


class TopicSource:
    """The topic, for a member of the workers' group.

    ``link`` is the worker's, which resolves changes on it. The worker closes it after each `close` of the source.
    """

    def __init__(self, *, link: Link, settings: KafkaSettings, name: str) -> None:
        self._link = link
        self._session: Connection | None = None
        """The session of the link, from the first `receive` until `close`."""
        self._settings = settings
        self._name = name
        self._consumer: ChangeConsumer | None = None
        self._unsaved: dict[int, PartitionPlace] = {}
        self._acknowledged: dict[int, int] = {}
        self._received: dict[int, int] = {}
        """By partition, the last number that Kafka had acknowledged, and that had arrived, when they were compared."""
        self._kept_at = self._saved_at = 0.0
        self._assigned_at = 0.0
        """The time of the last assignment, by the clock of Postgres."""
        self._waited = 0.0
        """How long it has waited for records in vain, since they were compared."""
        self._log = structlog.get_logger().bind(worker=name)

    def receive(self, *, records_max: int, wait_seconds: float) -> ChangeBatch | None:
        """Return the changes that have arrived.

        If records are lost, or cannot be read, everything that they may have touched is due to be written again first.

        Raises:
            KafkaException: Kafka does not answer: call `close`.
        """
        self._save_if_due()
        try:
            if self._session is None:
                self._session = self._link.connection
            if self._consumer is None:
                has_term = partial(progress.has_term, self._session)
                begin = self._handled_positions
                self._consumer = ChangeConsumer(self._settings, begin=begin, has_term=has_term, name=self._name)
            if self._unsaved:
                wait_seconds = min(wait_seconds, _SAVE_SECONDS)
            received = self._consumer.receive(records_max=records_max, wait_seconds=wait_seconds)
        except LossError as error:
            lost_records.make_up(self._alive, error.message, lost={error.partition: error.number})
            self._leave()
            return None
        if received is None:
            self._waited += wait_seconds
            self._renew_if_silent()
            return None
        changes, records = self._parse(received), len(received.values)
        return ChangeBatch(changes=changes, records=records, mark=received, passed_over=received.passed_over)

    def save(self, batch: ChangeBatch) -> None:
        """Save how far partitions are handled, at once or a moment later."""
        received: Received = batch.mark
        self._unsaved |= received.reached
        self._save_if_due()

    def keep_alive(self) -> None:
        """Stay in the group; a psycopg.OperationalError if the session has ended."""
        _ = self._alive
        now = time.monotonic()
        if self._consumer is not None and now - self._kept_at > _KEEP_ALIVE_SECONDS:
            self._consumer.keep_alive()
            self._kept_at = now

    def close(self) -> None:
        """Leave the group; save what is handled, if the session answers."""
        session, unsaved = self._session, self._unsaved
        self._session, self._unsaved = None, {}
        self._leave()
        if unsaved and session is not None:
            progress.advance(session, unsaved)

    @property
    def _alive(self) -> Connection:
        """The session that changes in hand were resolved on.

        Raises:
            psycopg.OperationalError: It has ended.
        """
        # Rules: what-is-resolved-on-a-session-is-saved-on-it, a-new-session-begins-where-the-database-is.
        if self._session is None or self._session.closed:
            raise psycopg.OperationalError("the session has ended on which the changes in hand were resolved")
        return self._session

    def _leave(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None
        self._acknowledged, self._received = {}, {}

    def _renew_if_silent(self) -> None:
        """Leave the group, to join it anew, if what Kafka has acknowledged does not arrive.

        After a topic was deleted and created again, it has happened that the client fetched nothing more.
        """
        if self._consumer is None or self._waited < SILENT_SECONDS:
            return
        self._waited = 0.0
        received = dict(self._consumer.numbers)
        silent = [
            partition
            for partition, number in received.items()
            if number == self._received.get(partition) and number < self._acknowledged.get(partition, 0)
        ]
        if silent:
            self._log.warning("worker.consumer_renewed", partitions=silent)
            self._leave()
            return
        saved = progress.read(self._alive)
        self._acknowledged, self._received = {} if saved is None else saved.numbers, received

    def _handled_positions(self) -> dict[int, PartitionPlace]:
        # No other worker has received a change that is made later.
        self._assigned_at = float(str(value(self._alive, _NOW)))
        return progress.places(self._alive)

    def _save_if_due(self) -> None:
        if not self._unsaved or time.monotonic() - self._saved_at < _SAVE_SECONDS:
            return
        progress.advance(self._alive, self._unsaved)
        if self._consumer is not None:
            self._consumer.commit(self._unsaved)
        self._saved_at = time.monotonic()
        self._unsaved = {}

    def _parse(self, received: Received) -> list[Change]:
        """The changes among these records; one that cannot be read is made up for. Empty records have none."""
        changes: list[Change] = []
        unreadable = ""
        for record, (partition, offset) in zip(received.values, received.positions, strict=True):
            if not record:
                continue
            try:
                change = Change.parse(record)
                # Rule: what-is-received-again-deletes-elsewhere. In the outbox, a move comes later than what was read
                # before it, and is received again, too.
                is_early = change.changed_at < self._assigned_at
                changes.append(replace(change, may_be_repeated=True) if is_early else change)
            except ValueError as error:
                unreadable = f"the record at offset {offset} of partition {partition} is {error}"
                if id_in(record):
                    unreadable += "; a newer version of syncer than this daemon's may have published it"
        if unreadable:
            lost_records.make_up(self._alive, unreadable)
        return changes
