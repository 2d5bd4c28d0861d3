"""Relay: outbox → topic, by one leader at a time.

The cursor is a ``pg_snapshot``, never an id or a time, since ids and times become visible out of order (as in
PgQ). New changes are those that the current snapshot sees and the saved one did not. So there is no gap, and a
transaction that stays open for hours causes neither a stall nor a rescan.

The cursor is stored in the database that it refers to, and is restored together with it. After a failover or a restore
of files it belongs to a state that the database still has: a commit that it saw precedes it in the WAL. Ids that are
assigned anew to other transactions are all beyond its end.

Guarantees: every committed change is published at least once. The cursor is saved only after every record was
acknowledged. A relay that dies in between publishes again, which the version rule makes harmless.
Records that Kafka acknowledged but lost are detected and made up for: see `syncer.recovery.lost_records`.

One relay leads. It holds an advisory lock on the connection that saves the cursor, so a leader without its connection
cannot save anything. If a leader sends Postgres nothing for too long, as if its process were stopped, Postgres ends its
session: see `syncer.capture.leader`. If it stops while it reads many changes, that takes as long as the server waits
for a client to read an answer.

A relay asks for the lead only after Kafka has answered it. So while Kafka is down no relay leads, each reports that it
cannot reach Kafka, and the first one that can leads next.

While changes arrive one by one, the relay sleeps: a writer's notification wakes it, it looks once, publishes, saves the
cursor, and waits for the next one (`syncer.capture.wakeup`). It wakes up, so that writers do not notify, when writers
overlap and before anything that may take long. Then it polls until no changes have arrived for a moment. If it is not
allowed to sleep, it continues polling, less often.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import structlog
from psycopg.pq import TransactionStatus
from psycopg.types.json import Jsonb

from syncer.base import metrics
from syncer.base.formatting import amount
from syncer.base.lifecycle import Stop, Stopping
from syncer.base.model import id_in
from syncer.base.postgres import AdvisoryLock, Connection, value
from syncer.base.retry import Trouble, retry
from syncer.base.settings import RelaySettings
from syncer.capture import leader, outbox, wakeup
from syncer.capture.leader import LEASE_SECONDS, Leader
from syncer.kafka import topic
from syncer.kafka.producer import ChangeProducer
from syncer.kafka.topic import Loss
from syncer.recovery import lost_records
from syncer.relay.batch_delay import Gathering

STANDBY_SECONDS = 1.0
_PROVEN_SECONDS = 45.0
"""How long another leader must have led until this relay's own trouble counts as over: longer than Kafka may take to
fail the leader."""
_LOOK_SECONDS = 10.0
"""How often the topic is checked for records that Kafka has lost silently. A sleeping relay wakes up for the check, and
then checks again whether it may sleep."""
_BRIEF_SECONDS = 0.05
"""How long it waits for Kafka before it wakes up: until then writers notify, and so commit one after the other."""
_IDLE_PER_REST = 10
BUSY_POLL_SECONDS = 0.004
"""The pause between polls while the relay is awake."""
AWAKE_SECONDS = 0.01
"""After so long without changes, an awake relay sleeps, so that writers notify."""
POLL_SECONDS = 0.02
"""The longest pause if the relay cannot sleep: max_prepared_transactions is not 0, or a writer will not notify."""
SAFETY_POLL_SECONDS = 1.0
"""How long it sleeps at most, in case a notification is missed. Shorter than a leader's lease."""
FETCH_ROWS = 2000
"""Changes read at once; more are streamed."""
_SAVES_PER_STRETCH = 250
"""How many versions of the cursor's row are skipped at most: fewer cost more indexing, more cost more reading."""
_SOME = 1000

_Result = TypeVar("_Result")

_LEAD = f"SELECT pg_try_advisory_lock({AdvisoryLock.RELAY:d})"

_SYSTEM = "SELECT system_identifier FROM pg_control_system()"
_ENDS = f"SELECT ends FROM {outbox.CURSOR} AS c WHERE topic = $1"  # noqa: S608 - only constants
# The ends are saved with the cursor: they cover everything that it counts as published.
_SAVE = """
UPDATE syncer.relay_cursor
SET system_identifier = $1, snapshot = $2::pg_snapshot, topic = $3, ends = $4, saved_at = now(),
    number = number + $5
WHERE number = (SELECT max(number) FROM syncer.relay_cursor)
"""
_SAVE_FIRST = """
INSERT INTO syncer.relay_cursor (system_identifier, snapshot, topic, ends)
VALUES ($1, $2::pg_snapshot, $3, $4)
"""
# If a crash takes back a save, the previous cursor is still true: changes are published again. So a save need not wait
# for the disk. Neither need the trimming of rows, since the cursor that allows it precedes it.
_LAZILY = "SET synchronous_commit = off"
# A transaction that waits for one that has written some of these rows waits for this one: see `syncer.capture.outbox`.
_ADOPTED = "UPDATE syncer.relay_cursor SET adopted_in = pg_current_xact_id()"
_BEFORE_NOW = "SELECT format('%1$s:%1$s:', pg_snapshot_xmin(pg_current_snapshot()))"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayReport:
    """The result of one turn of the relay.

    Args:
        is_leader: Whether this relay leads.
        published: The number of changes that were published.
        cursor: The snapshot up to which everything is published.
        seconds: How long it took.
    """

    is_leader: bool
    published: int = 0
    cursor: str = ""
    seconds: float = 0


@dataclass(slots=True, kw_only=True)
class _Batch:
    """A batch, for logging.

    Args:
        began: When it was queried, by the monotonic clock.
        least: The least outbox id of its changes.
        greatest: The greatest outbox id of its changes.
    """

    began: float
    least: int | None = None
    greatest: int | None = None

    def noted(
        self, rows: Iterable[outbox.Row], *, on_some: Callable[[], object] = lambda: None
    ) -> Iterator[outbox.Row]:
        """Yield the same rows and note their ids; in large batches, call `on_some` regularly."""
        for number, row in enumerate(rows, start=1):
            id_ = id_in(row[1])
            self.least = id_ if self.least is None else min(self.least, id_)
            self.greatest = id_ if self.greatest is None else max(self.greatest, id_)
            if number % _SOME == 0:
                on_some()
            yield row


class Relay:
    """Publishes committed changes as the leader, or stands by.

    Args:
        connect: Opens a connection to Postgres.
        produce: Opens a producer.
        settings: How long to collect changes, and how often to trim.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], Connection],
        produce: Callable[[], ChangeProducer],
        settings: RelaySettings | None = None,
    ) -> None:
        self._connect = connect
        self._produce = produce
        self._settings = settings or RelaySettings()
        self._connection: Connection | None = None
        self._producer: ChangeProducer | None = None
        self._system_identifier = 0
        self._cursor: str | None = None
        self._saves = 0
        self._topic_id = ""
        self._made_up: set[tuple[str, int, int | None]] = set()
        """By topic, partition and position, the losses that were made up for since this relay last saved."""
        self._stood_by = self._has_led = self._is_asleep = False
        self._led_from: str | None = None
        """What to log once this relay leads."""
        self._seen: Leader | None = None
        self._seen_since = 0.0
        self._stop = Stop()
        self._trouble = Trouble("relay")
        self._gathering = Gathering(most_seconds=self._settings.gather_seconds_max)
        self._looked_at = self._trimmed_at = self._changed_at = time.monotonic()
        self._log = structlog.get_logger()

    def run(self, stop: Stop) -> None:
        """Run until told to stop."""
        self._stop = stop
        try:
            while not stop.is_requested:
                report = self._retry(self._turn, stop)
                if not report.is_leader:
                    stop.wait(STANDBY_SECONDS)
                elif report.published < FETCH_ROWS:
                    self._retry(partial(self._rest, report.published, stop), stop)
        except Stopping:
            pass
        finally:
            self.close()

    def run_once(self) -> RelayReport:
        """Publish new changes and save the cursor, if this relay leads.

        Raises:
            psycopg.Error, KafkaException: Nothing was saved. Call it again after `close`.
        """
        connection = self._lead()
        if connection is None:
            return RelayReport(is_leader=False)
        producer = self._looked_after(connection)
        if not self._trouble.lasts:
            self._announce()
        report = self._publish(connection, producer)
        now = time.monotonic()
        if report.published:
            self._changed_at = now
        if now - self._trimmed_at >= self._settings.trim_seconds:
            self.trim()
        return report

    def close(self) -> None:
        """Give up the lead and close all connections; the next turn starts anew."""
        if self._connection is not None:
            self._connection.close()
        if self._producer is not None:
            self._producer.close()
        self._connection = self._producer = self._cursor = None
        self._is_asleep, self._led_from = False, None
        metrics.LEADS.set(0)

    def _turn(self) -> RelayReport:
        """Take a turn; a relay in trouble is over it once it has published, or another relay proves to lead."""
        while True:
            report = self.run_once()
            if report.is_leader or not self._trouble.lasts or time.monotonic() - self._seen_since > _PROVEN_SECONDS:
                return report
            self._stop.pause(STANDBY_SECONDS)

    def _retry(self, action: Callable[[], _Result], stop: Stop) -> _Result:
        def attempt() -> _Result:
            try:
                return action()
            except Exception:
                self.close()
                raise

        return retry(attempt, pause=stop.pause, component="relay", trouble=self._trouble)

    # Resting

    def _rest(self, published: int, stop: Stop) -> None:
        """Wait until the next look: for a notification while asleep, for a moment while awake."""
        connection = self._lead()
        if connection is None:
            return
        idle = time.monotonic() - self._changed_at
        delay = self._gathering.note(published) if published else 0.0
        if self._is_asleep:
            stop.wait(delay)
            wakeup.wait(connection, seconds=SAFETY_POLL_SECONDS, is_over=lambda: stop.is_requested)
        elif idle >= AWAKE_SECONDS and wakeup.sleep(connection):
            # Rule: look-once-asleep. The loop looks before it comes here to wait.
            self._is_asleep = True
        else:
            stop.wait(max(delay, min(max(BUSY_POLL_SECONDS, idle / _IDLE_PER_REST), POLL_SECONDS)))

    def _get_up(self, connection: Connection) -> None:
        """Stop writers from notifying; the relay polls from now on."""
        if self._is_asleep:
            wakeup.wake(connection)
            self._is_asleep = False

    # Leading

    def _lead(self) -> Connection | None:
        if self._connection is None:
            self._connection = self._connect()
        if self._cursor is not None:
            return self._connection
        connection = self._connection
        self._open_producer()
        if not value(connection, _LEAD):
            self._stand_by(connection)
            return None
        leader.hold(connection, seconds=LEASE_SECONDS)
        connection.execute(_LAZILY)
        outbox.prepare(connection)
        # Rule: listen-before-sleeping.
        wakeup.listen(connection)
        self._system_identifier = int(str(value(connection, _SYSTEM)))
        self._cursor = self._led_from = self._begin(connection)
        return connection

    def _open_producer(self) -> None:
        """Open a producer, unless there is one, and require that Kafka answers."""
        if self._producer is None:
            self._producer, self._topic_id = self._produce(), ""
            self._producer.heartbeat = self._send_heartbeat
            _require_answer(self._producer)

    def _stand_by(self, connection: Connection) -> None:
        if not self._stood_by:
            self._log.info("relay.stood_by")
        self._stood_by = True
        metrics.LEADS.set(0)
        before, self._seen = self._seen, leader.find(connection)
        if self._seen is None or before is None or before.process != self._seen.process:
            self._seen_since = time.monotonic()

    def _announce(self) -> None:
        """Log that this relay leads, once it does; after an error only if another one may have led meanwhile."""
        if self._led_from is not None and (self._stood_by or not self._has_led):
            self._log.info("relay.led", cursor=self._led_from, timeline="This daemon's relay became the leader.")
        self._led_from = None
        self._stood_by, self._has_led = False, True
        metrics.LEADS.set(1)

    def _send_heartbeat(self) -> None:
        """Tell Postgres that this leader lives, unless a statement is under way.

        Raises:
            Stopping: A requested stop is overdue.
        """
        self._heed_stop()
        connection = self._connection
        if connection is not None and connection.info.transaction_status is TransactionStatus.IDLE:
            connection.execute("SELECT")

    def _begin(self, connection: Connection) -> str:
        """Return the saved cursor, if it is valid in this database."""
        saved = outbox.read_cursor(connection)
        if saved is not None and saved[1]:
            return saved[0]
        adopted, cursor = self._adopt(connection)
        if saved is not None:
            self._log.warning(
                "relay.outbox_adopted",
                changes=adopted,
                timeline=f"The outbox is published again: {amount(adopted, 'change')}.",
            )
        return cursor

    def _adopt(self, connection: Connection) -> tuple[int, str]:
        """Start without a valid cursor: every row in the outbox becomes a new change.

        Transaction ids of another cluster mean nothing here, neither in the cursor nor in the rows.
        """
        with connection.transaction():
            cursor = str(value(connection, _BEFORE_NOW))
            adopted = outbox.renew(connection)
            self._put(connection, cursor, None, {})
            connection.execute(_ADOPTED)
        return adopted, cursor

    # Checking the topic

    def _looked_after(self, connection: Connection) -> ChangeProducer:
        """Return a producer for the current topic; lost records are made up for before anything is saved."""
        now = time.monotonic()
        producer = self._producer
        assert producer is not None  # noqa: S101 - a leader has one
        if self._topic_id and now - self._looked_at < _LOOK_SECONDS:
            return producer
        self._looked_at = now
        self._get_up(connection)
        id_ = lost_records.examine(connection, producer.settings, producer.observer)
        is_new = id_ != self._topic_id
        if is_new:
            if self._topic_id:
                raise topic.replaced()
            producer.ends = self._saved_ends(connection, id_)
            self._topic_id = id_
        self._send_heartbeat()
        extents = producer.observer.extents()
        self._send_heartbeat()
        losses = lost_records.fallen_back(producer.ends, extents)
        if is_new:
            # Rule: what-is-there-counts-as-acknowledged. Workers may have handled what no relay has saved.
            for partition, extent in extents.items():
                producer.ends[partition] = max(extent.end, producer.ends.get(partition, 0))
        self._heed(connection, producer, losses)
        return producer

    def _heed(self, connection: Connection, producer: ChangeProducer, losses: Sequence[Loss]) -> None:
        """Make up for lost records; only then fill their offsets, which hides the loss from the next look.

        If Kafka does not accept what fills them, the next attempt finds the same losses. It does not make up for them
        again: no change is published before the offsets are filled, so no other change can be lost.
        """
        while losses:
            # Rules: make-up-before-saving, made-up-for-by-position.
            if new := [one for one in losses if not self._is_made_up(one)]:
                lost_records.make_up(connection, new)
            self._made_up |= {(self._topic_id, one.partition, one.position) for one in new}
            producer.losses = []
            producer.fill_up(losses)
            losses = producer.losses
            assert self._cursor is not None  # noqa: S101 - a leader has one
            self._save(connection, self._cursor, producer)

    def _is_made_up(self, loss: Loss) -> bool:
        return (self._topic_id, loss.partition, loss.position) in self._made_up

    def _saved_ends(self, connection: Connection, topic_id: str) -> dict[int, int]:
        """Return the acknowledged end of each partition."""
        (ends,) = connection.execute(_ENDS, (topic_id,)).fetchone() or ({},)
        return {int(partition): end for partition, end in ends.items()}

    def _make_up(self, connection: Connection, producer: ChangeProducer) -> None:
        """Make up for records that later acknowledgements have shown to be lost."""
        if lost_records.examine(connection, producer.settings, producer.observer) != self._topic_id:
            raise topic.replaced()
        self._heed(connection, producer, producer.losses)

    # Publishing

    def _publish(self, connection: Connection, producer: ChangeProducer) -> RelayReport:
        batch = _Batch(began=time.monotonic())
        assert self._cursor is not None  # noqa: S101 - a leader has one
        producer.sent = {}
        published, seen = self._produce_new(connection, self._cursor, producer, batch)
        if published:
            if self._is_asleep and (
                outbox.are_writers_busy(self._cursor, seen) or not producer.is_flushed(_BRIEF_SECONDS)
            ):
                self._get_up(connection)
            # Rule: save-after-acknowledgement.
            producer.flush()
            if producer.losses:
                self._make_up(connection, producer)
            self._save(connection, seen, producer)
        self._announce()
        self._cursor = seen  # not saved if nothing is new: then there is nothing between the two cursors
        report = RelayReport(is_leader=True, published=published, cursor=seen, seconds=time.monotonic() - batch.began)
        if published:
            self._tell(report, batch, producer)
        return report

    def _tell(self, report: RelayReport, batch: _Batch, producer: ChangeProducer) -> None:
        self._log.info(
            "relay.batch_published",
            changes=report.published,
            seconds=round(report.seconds, 4),
            cursor=report.cursor,
            ids=[batch.least, batch.greatest],
            offsets=producer.sent,
        )
        metrics.published(report.published, seconds=report.seconds)

    def _produce_new(
        self, connection: Connection, cursor: str, producer: ChangeProducer, batch: _Batch
    ) -> tuple[int, str]:
        few = outbox.new(connection, cursor, rows_max=FETCH_ROWS)
        if few is not None:
            seen, rows = few
            if not rows:
                return 0, seen
            return producer.produce(batch.noted(rows)), seen
        self._get_up(connection)
        with outbox.all_new(connection, cursor) as (seen, many):
            return producer.produce(batch.noted(many, on_some=self._heed_stop)), seen

    def _heed_stop(self) -> None:
        """Abort what takes long if a requested stop is overdue; unsaved changes are published again later.

        Raises:
            Stopping: The stop is overdue.
        """
        if self._stop.is_overdue:
            raise Stopping

    def _save(self, connection: Connection, cursor: str, producer: ChangeProducer) -> None:
        self._put(connection, cursor, self._topic_id, producer.ends)
        self._made_up.clear()

    def _put(self, connection: Connection, cursor: str, topic_id: str | None, ends: dict[int, int]) -> None:
        row = self._system_identifier, cursor, topic_id, Jsonb(ends)
        self._saves += 1
        grows = int(self._saves % _SAVES_PER_STRETCH == 0)
        if not connection.execute(_SAVE, (*row, grows), prepare=True).rowcount:
            connection.execute(_SAVE_FIRST, row)

    def trim(self) -> int:
        """Remove published rows; return how many segments were emptied."""
        connection = self._lead()
        if connection is None:
            return 0
        self._trimmed_at = time.monotonic()
        assert self._cursor is not None  # noqa: S101 - a leader has one
        trimmed = outbox.trim(connection, self._cursor)
        if trimmed:
            self._log.debug("relay.outbox_trimmed", segments=trimmed)
        return trimmed


def _require_answer(producer: ChangeProducer) -> None:
    """Ask Kafka for the topic; a relay that it does not answer must not lead.

    Raises:
        KafkaException: Kafka does not answer.
    """
    producer.observer.id()
