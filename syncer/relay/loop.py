"""Relay: outbox → topic, by one leader at a time. Needed by those only who set ``kafka.bootstrap_servers``.

    read a page of changes        `syncer.capture.reader`
    publish it                    `syncer.kafka.producer`, numbered
    save the cursor, with the numbers that Kafka has acknowledged

Guarantees: every committed change is published at least once. The cursor is saved only after every record was
acknowledged. A relay that dies in between publishes again, which the version rule makes harmless. Records that Kafka
acknowledged but lost are noticed by workers, from the numbers: see `syncer.capture.progress`.

A relay asks for the lead only after Kafka has answered it. So while Kafka is down no relay leads, each reports that it
cannot reach Kafka, and the first one that can leads next.

The relay looks every `poll_seconds`, and at once again while it is behind, so that changes share a batch: a batch costs
the same however few they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from confluent_kafka import KafkaError, KafkaException

from syncer.base import log, metrics
from syncer.base.errors import ConfigError
from syncer.base.formatting import amount
from syncer.base.lifecycle import Stop, Stopping
from syncer.base.model import id_in
from syncer.base.postgres import Connection
from syncer.base.retry import failed, give_up, repeat
from syncer.base.settings import KafkaSettings, RelaySettings
from syncer.capture import progress
from syncer.capture.outbox import Page
from syncer.kafka import topic
from syncer.kafka.producer import ChangeProducer
from syncer.recovery import backlog, lost_records

STANDBY_SECONDS = 1.0
_PARTITIONS = "relay partitions"
"""In the log and the status: that the topic has fewer than it should keeps nothing from being published."""
_SILENT_SECONDS = 2.0
"""When Kafka counts as silent: long before a record that was sent fails."""
PAGE_ROWS = 5000
"""Changes published together at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayReport:
    """The result of one turn; ``is_behind`` says that more changes are known to wait."""

    is_leader: bool
    published: int = 0
    is_behind: bool = False


class Relay:
    """Publishes committed changes as the leader, or stands by."""

    def __init__(
        self, *, connect: Callable[[], Connection], kafka: KafkaSettings, settings: RelaySettings | None = None
    ) -> None:
        self._settings = settings or RelaySettings()
        self._kafka = kafka
        self._reader = backlog.reader(connect, bytes_max=self._settings.outbox_bytes_max)
        self._producer: ChangeProducer | None = None
        self._has_answered = False
        self._stop = Stop()
        self._log = structlog.get_logger()

    def run(self, stop: Stop) -> None:
        """Run until told to stop."""
        self._stop = stop
        try:
            repeat(self._turn, reset=self.close, stop=stop, component="relay")
        finally:
            self.close()

    def run_once(self) -> RelayReport:
        """Publish new changes and save the cursor, if this relay leads.

        Raises:
            psycopg.Error, KafkaException: Nothing was saved. Call it again after `close`.
            TopicError: Kafka refuses syncer.
        """
        if not self._has_answered:
            topic.ensure_topic(self._kafka)  # a relay that Kafka does not answer must not lead
            self._has_answered = True
        if not self._reader.lead():
            return RelayReport(is_leader=False)
        if self._producer is None:
            # By partition, the last number that was saved; after a time without Kafka, what workers had handled then.
            # Rule: a-new-leader-names-what-was-saved.
            partition_places = progress.places(self._reader.connection)
            handled = {partition: position.number for partition, position in partition_places.items()}
            self._producer = ChangeProducer(
                self._kafka,
                term=progress.begin_term(self._reader.connection),
                saved={**handled, **self._reader.numbers},
                while_waiting=self._wait_for_kafka,
            )
        self._compare_partitions(self._producer)
        began = time.monotonic()
        page = self._reader.read(rows_max=PAGE_ROWS)
        self._producer.produce(page.rows)
        if self._producer.produce_empty() or page.rows:
            # Rule: save-after-acknowledgement.
            self._producer.flush()
        self._reader.save(page, self._producer.numbers)
        if page.rows:
            self._log_published(page, seconds=time.monotonic() - began)
        self._reader.trim_if_due()
        return RelayReport(is_leader=True, published=len(page.rows), is_behind=not page.is_last)

    def trim(self) -> int:
        """Remove published rows; return how many segments were emptied."""
        return self._reader.trim() if self._reader.lead() else 0

    def close(self) -> None:
        """Give up the lead and close all connections; the next turn starts anew."""
        give_up(_PARTITIONS)
        self._reader.close()
        if self._producer is not None:
            self._producer.close()
        self._producer = None
        self._has_answered = False

    def _compare_partitions(self, producer: ChangeProducer) -> None:
        """Make up for partitions that are gone, and tell if the topic has fewer than it should."""
        partitions, configured = producer.look_up_partitions(), self._kafka.partitions
        for partition in lost_records.drop_partitions(
            self._reader.connection, self._kafka.topic, partitions, producer.numbers
        ):
            del producer.numbers[partition]
        if partitions >= configured:
            give_up(_PARTITIONS)
            return
        fewer = ConfigError(
            f"Topic {self._kafka.topic} has {amount(partitions, 'partition')} instead of {configured}",
            hint=f"So only {partitions} of the workers can be busy at a time. To add partitions:\n"
            f"kafka-topics.sh --bootstrap-server … --alter --topic {self._kafka.topic} --partitions {configured}\n"
            f"If so few are meant, set kafka.partitions to {partitions}.",
        )
        failed(_PARTITIONS, fewer)

    def _turn(self) -> float:
        report = self.run_once()
        if not report.is_leader:
            return STANDBY_SECONDS
        return 0 if report.is_behind else self._settings.poll_seconds

    def _wait_for_kafka(self, seconds: float) -> None:
        """Name Kafka as troubled if it has not acknowledged records for so long.

        Raises:
            Stopping: A requested stop is overdue. What is not saved is published again later.
            NotReadyError: The changes that wait take too much of the disk.
        """
        self._reader.require_room()
        if self._stop.is_overdue:
            raise Stopping
        if seconds >= _SILENT_SECONDS:
            silent = KafkaError(KafkaError._TIMED_OUT, "records are not acknowledged")  # noqa: SLF001 - its own code
            failed("relay", KafkaException(silent), seconds=seconds)

    def _log_published(self, page: Page, *, seconds: float) -> None:
        ids = [id_in(row.value) for row in page.rows]
        self._log.log(
            log.batch_level(seconds),
            "relay.batch_published",
            changes=len(page.rows),
            seconds=round(seconds, 4),
            cursor=page.cursor,
            ids=[min(ids), max(ids)],
        )
        metrics.BATCH.labels("publish").observe(seconds)
