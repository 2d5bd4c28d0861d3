"""Relay: outbox → topic, by one leader at a time.

The cursor is a ``pg_snapshot``, never an id or a time, since ids and times become visible out of order (as in
PgQ). New changes are those that the current snapshot sees and the saved one did not: no gap, and neither a
stall nor a rescan behind a transaction that stays open for hours.

It lies in the database that it speaks of, and goes back with it. After a failover or a restore of files it is one of a
time that the database still has: a commit that it saw is in the log before the cursor is, so that whoever has the one
has the other, and ids that are given anew to other transactions are all behind its end.

Guarantees: a change that is committed is published at least once; the cursor is saved only after every record has
been acknowledged, so a relay that dies in between publishes again, which the version rule makes harmless.
What Kafka has acknowledged and lost all the same is noticed and made up for: see `syncer.loss`.
One relay leads, by an advisory lock that belongs to the very connection that saves the cursor: a leader whose
connection is gone can save nothing. One that asks nothing of Postgres for long, as if its process were stopped, is
deposed by those who stand by: they end its connection. If it was stopped while Postgres answered, the server does that.

While changes come, and for a moment after, the relay looks for more by itself. Then it sleeps until a writer rings
(`syncer.doorbell`). Where it may not sleep, it goes on looking, less often.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import structlog
from confluent_kafka import KafkaError, KafkaException
from psycopg.types.json import Jsonb

from syncer import doorbell, events, loss, metrics, outbox, traces
from syncer.gathering import Gathering
from syncer.lifecycle import Stop, Stopping, Trouble, persist
from syncer.postgres import AdvisoryLock, Connection, value
from syncer.producer import ChangeProducer
from syncer.settings import RelaySettings
from syncer.topic import Loss
from syncer.traces import OFF, Headers, Trace

STANDBY_SECONDS = 1.0
_LOOK_SECONDS = 10.0
"""How often the topic is looked at: what Kafka has lost without a word is noticed then."""
LEASE_SECONDS = 60.0
"""How long a leader may ask nothing of Postgres; twice as long as it may have to wait for Kafka, or rests at once."""
_IDLE_PER_REST = 10
_SAVES_PER_STRETCH = 250
"""How many versions of the cursor's row are passed at most: fewer cost more indexing, and more cost more looking."""
_SOME = 1000

_Result = TypeVar("_Result")

_LEAD = f"SELECT pg_try_advisory_lock({AdvisoryLock.RELAY:d})"

_DEPOSE = f"""
SELECT pg_terminate_backend(a.pid)
FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
  AND (l.classid::bigint << 32 | l.objid::bigint) = {AdvisoryLock.RELAY:d}
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND a.state = 'idle' AND a.state_change < clock_timestamp() - make_interval(secs => $1)
  AND pg_has_role(a.usesysid, 'USAGE') -- of another role's we may see the state, and not end it
"""  # noqa: S608 - a constant of ours

_SYSTEM = "SELECT system_identifier FROM pg_control_system()"
_ENDS = f"SELECT ends, lasts FROM {outbox.CURSOR} AS c WHERE topic = $1"  # noqa: S608 - a constant of ours
# The ends are saved with the cursor: what it counts as published is never more than what they cover.
_SAVE = """
UPDATE syncer.relay_cursor
SET system_identifier = $1, snapshot = $2::pg_snapshot, topic = $3, ends = $4, lasts = $5, saved_at = now(),
    stretch = stretch + $6
WHERE stretch = (SELECT max(stretch) FROM syncer.relay_cursor)
"""
_SAVE_FIRST = """
INSERT INTO syncer.relay_cursor (system_identifier, snapshot, topic, ends, lasts)
VALUES ($1, $2::pg_snapshot, $3, $4, $5)
"""
# A save that a crash of the server takes back is one of a cursor that was true: what it had seen is published again. So
# it need not wait for the disk, and neither need the giving back of rows, which the cursor that allows it precedes.
_LAZILY = "SET synchronous_commit = off"
# Whoever waits for a transaction that has written some of these rows waits for this one: see `syncer.outbox`.
_ADOPTED = "UPDATE syncer.relay_cursor SET adopted_in = pg_current_xact_id()"
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


@dataclass(slots=True, kw_only=True)
class _Batch:
    """What is told of a batch.

    Args:
        began: When it was asked for, by the monotonic clock.
        trace: Who is told how its parts go.
        least: The least of the ids that its changes have in the outbox.
        greatest: The greatest.
    """

    began: float
    trace: Trace = OFF
    least: int | None = None
    greatest: int | None = None

    def begin(self) -> Headers | None:
        """There is something in it; what its records are to carry."""
        self.trace = traces.begin("relay.batch", began=self.began)
        return self.trace.headers

    def noted(
        self, rows: Iterable[outbox.Row], *, on_some: Callable[[], object] = lambda: None
    ) -> Iterator[outbox.Row]:
        """The same rows, looked at on their way; of many, so often as to show that it goes on."""
        ids: list[int] = []
        for row in rows:
            ids.append(outbox.id_of(row))
            if len(ids) >= _SOME:
                self._note(ids)
                on_some()
            yield row
        self._note(ids)

    def _note(self, ids: list[int]) -> None:
        if ids:
            self.least = min(ids) if self.least is None else min(self.least, *ids)
            self.greatest = max(ids) if self.greatest is None else max(self.greatest, *ids)
            ids.clear()


class Relay:
    """Publishes committed changes, or stands by.

    Args:
        connect: Opens a connection to Postgres.
        produce: Opens a producer.
        settings: How often it looks, and how much it takes at once.
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
        self._stood_by = self._has_led = False
        self._stop = Stop()
        self._trouble = Trouble("relay")
        self._gathering = Gathering(
            least_seconds=self._settings.gather_seconds, most_seconds=self._settings.gather_seconds_max
        )
        self._looked_at = self._trimmed_at = self._changed_at = time.monotonic()
        self._log = structlog.get_logger()

    def run(self, stop: Stop) -> None:
        """Relay until told to stop."""
        self._stop = stop
        try:
            while not stop.is_requested:
                report = self._persist(self.run_once, stop)
                if not report.is_leader:
                    stop.wait(STANDBY_SECONDS)
                elif not report.published:
                    self._persist(lambda: self._rest(stop), stop)
                elif report.published < self._settings.fetch_rows:
                    stop.wait(self._gathering.note(report.published))
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
        report = self._publish(connection, self._looked_after(connection))
        now = time.monotonic()
        if report.published:
            self._changed_at = now
        if now - self._trimmed_at >= self._settings.trim_seconds:
            self.trim()
        return report

    def close(self) -> None:
        """Give up the lead and let go of the servers; the next turn begins afresh."""
        if self._connection is not None:
            self._connection.close()
        if self._producer is not None:
            self._producer.close()
        self._connection = self._producer = self._cursor = None
        metrics.leads(is_leader=False)

    def _persist(self, action: Callable[[], _Result], stop: Stop) -> _Result:
        def attempt() -> _Result:
            try:
                return action()
            except Exception:
                self.close()
                raise

        return persist(attempt, pause=stop.pause, stage="relay", trouble=self._trouble)

    # Resting

    def _rest(self, stop: Stop) -> None:
        """Rest, having found nothing: until it rings, or for a moment, which is the longer the longer nothing came."""
        idle = time.monotonic() - self._changed_at
        if idle < self._settings.awake_seconds or not self._sleep(stop):
            longest = min(self._settings.poll_seconds, LEASE_SECONDS / 2)
            stop.wait(min(max(self._settings.busy_poll_seconds, idle / _IDLE_PER_REST), longest))

    def _sleep(self, stop: Stop) -> bool:
        """Sleep until it rings, or for as long as that is safe; False if there is somebody who would not ring."""
        connection = self._lead()
        if connection is None or not doorbell.lie_down(connection):
            return False
        # Whoever wrote before we lay down has not rung.
        if not self.run_once().published:
            longest = min(self._settings.safety_poll_seconds, LEASE_SECONDS / 2)
            doorbell.wait(connection, seconds=longest, is_over=lambda: stop.is_requested)
        doorbell.get_up(connection)
        return True

    # Leading

    def _lead(self) -> Connection | None:
        if self._connection is None:
            self._connection = self._connect()
        if self._cursor is not None:
            return self._connection
        if not value(self._connection, _LEAD):
            if not self._stood_by:
                self._log.info(events.RELAY_STOOD_BY)
            self._stood_by = True
            metrics.leads(is_leader=False)
            if self._connection.execute(_DEPOSE, (LEASE_SECONDS,)).fetchall():
                self._log.warning(events.RELAY_DEPOSED, idle_seconds=LEASE_SECONDS)
            return None
        connection = self._connection
        connection.execute(_LAZILY)
        outbox.prepare(connection)
        doorbell.listen(connection)
        self._system_identifier = int(str(value(connection, _SYSTEM)))
        self._cursor = self._begin(connection)
        if self._stood_by or not self._has_led:  # else it tries again, which is said once
            self._log.info(events.RELAY_LED, cursor=self._cursor)
        self._stood_by, self._has_led = False, True
        metrics.leads(is_leader=True)
        return connection

    def _begin(self, connection: Connection) -> str:
        """The saved cursor, if it is true here."""
        saved = outbox.read_cursor(connection)
        if saved is not None and saved[1]:
            return saved[0]
        adopted, cursor = self._adopt(connection)
        if saved is not None:
            self._log.warning(events.RELAY_ADOPTED, changes=adopted)
        return cursor

    def _adopt(self, connection: Connection) -> tuple[int, str]:
        """Begin where no cursor can be trusted: every row in the outbox becomes a new change.

        Transaction ids of another cluster mean nothing here, neither in a cursor nor in the rows.
        """
        with connection.transaction():
            cursor = str(value(connection, _BEFORE_NOW))
            adopted = outbox.renew(connection)
            self._put(connection, cursor, None, {}, {})
            connection.execute(_ADOPTED)
        return adopted, cursor

    # Looking after the topic

    def _looked_after(self, connection: Connection) -> ChangeProducer:
        """A producer for the topic as it is; what is found to be lost is made up for, before anything is saved."""
        now = time.monotonic()
        if self._producer is None:
            self._producer, self._topic_id = self._produce(), ""
        elif now - self._looked_at < _LOOK_SECONDS:
            return self._producer
        self._looked_at = now
        producer = self._producer
        id_ = loss.examine(connection, producer.settings, producer.observer)
        if id_ == self._topic_id:
            extents = producer.observer.extents(producer.ends)
        else:
            if self._topic_id:
                raise _another_topic()
            producer.ends, producer.lasts = self._saved_ends(connection, id_)
            extents = producer.observer.extents(producer.ends)
            # Whoever led before may have published into a gap, and died before he said so.
            overtaken = loss.overtaken(producer.settings, producer.ends, producer.lasts, extents)
            begins = {one.partition: one.begin for one in overtaken}
            self._heed(connection, producer, overtaken, topic_id=id_, begins=begins)
            self._topic_id = id_
        self._heed(connection, producer, loss.fallen_back(producer.ends, extents), topic_id=id_)
        return producer

    def _heed(
        self,
        connection: Connection,
        producer: ChangeProducer,
        losses: Sequence[Loss],
        *,
        topic_id: str,
        begins: Mapping[int, int] | None = None,
    ) -> None:
        """Make up for what is lost; only then what was acknowledged before counts no more."""
        if not losses:
            return
        loss.make_up(connection, losses, rewritten=topic_id, begins=begins)
        for one in losses:
            producer.ends[one.partition] = one.end
            producer.lasts.pop(one.partition, None)
        assert self._cursor is not None  # noqa: S101 - whoever leads has one
        self._put(connection, self._cursor, topic_id, producer.ends, producer.lasts)

    def _saved_ends(self, connection: Connection, topic_id: str) -> tuple[dict[int, int], dict[int, int]]:
        """By partition, the end that was acknowledged, and the id of the change before it."""
        row = connection.execute(_ENDS, (topic_id,)).fetchone() or ({}, {})
        ends, lasts = ({int(partition): one for partition, one in some.items()} for some in row)
        return ends, lasts

    def _make_up(self, connection: Connection, producer: ChangeProducer) -> None:
        """Make up for what later acknowledgements have shown to be gone."""
        if loss.examine(connection, producer.settings, producer.observer) != self._topic_id:
            raise _another_topic()
        loss.make_up(connection, producer.losses, rewritten=self._topic_id)
        producer.losses = []

    # Publishing

    def _publish(self, connection: Connection, producer: ChangeProducer) -> RelayReport:
        batch = _Batch(began=time.monotonic())
        assert self._cursor is not None  # noqa: S101 - whoever leads has one
        producer.sent = {}
        published, seen = self._produce_new(connection, self._cursor, producer, batch)
        if published:
            with batch.trace.stage("publish"):
                producer.flush()
            if producer.losses:
                self._make_up(connection, producer)
            with batch.trace.stage("save"):
                self._save(connection, seen, producer)
        self._cursor = seen  # unsaved if nothing was new: then there is nothing between the two
        report = RelayReport(is_leader=True, published=published, cursor=seen, seconds=time.monotonic() - batch.began)
        if published:
            batch.trace.end(changes=published)
            self._tell(report, batch, producer)
        return report

    def _tell(self, report: RelayReport, batch: _Batch, producer: ChangeProducer) -> None:
        self._log.info(
            events.RELAY_PUBLISHED,
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
        few = outbox.new(connection, cursor, rows_max=self._settings.fetch_rows)
        if few is not None:
            seen, rows = few
            if not rows:
                return 0, seen
            headers = batch.begin()
            with batch.trace.stage("produce"):
                return producer.produce(batch.noted(rows), headers=headers), seen
        headers = batch.begin()
        with batch.trace.stage("produce"), outbox.all_new(connection, cursor) as (seen, many):
            return producer.produce(batch.noted(many, on_some=self._heed_stop), headers=headers), seen

    def _heed_stop(self) -> None:
        """Give up what is published and not saved, if it takes too long: it will be published again.

        Raises:
            Stopping: It does.
        """
        if self._stop.is_overdue:
            raise Stopping

    def _save(self, connection: Connection, cursor: str, producer: ChangeProducer) -> None:
        self._put(connection, cursor, self._topic_id, producer.ends, producer.lasts)

    def _put(
        self, connection: Connection, cursor: str, topic_id: str | None, ends: dict[int, int], lasts: dict[int, int]
    ) -> None:
        row = self._system_identifier, cursor, topic_id, Jsonb(ends), Jsonb(lasts)
        self._saves += 1
        grows = int(self._saves % _SAVES_PER_STRETCH == 0)
        if not connection.execute(_SAVE, (*row, grows), prepare=True).rowcount:
            connection.execute(_SAVE_FIRST, row)

    def trim(self) -> int:
        """Give published rows back; how many segments were emptied."""
        connection = self._lead()
        if connection is None:
            return 0
        self._trimmed_at = time.monotonic()
        assert self._cursor is not None  # noqa: S101 - whoever leads has one
        trimmed = outbox.trim(connection, self._cursor)
        if trimmed:
            self._log.debug(events.RELAY_TRIMMED, segments=trimmed)
        return trimmed


def _another_topic() -> KafkaException:
    """What was published into the other one is made up for; what is not saved is published again, once all is new."""
    return KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_ID))
