"""Membership in the consumer group: receives changes, stays in the group, leaves, and rejoins.

Guarantees:

- If a record cannot be read, everything that it may have touched is due to be written again before `receive` returns,
  so before its offset is committed: see `syncer.recovery.lost_records`.
- After lost records, consumption resumes only once the same holds for them.
- If the topic is replaced, the worker is told, and reads the new one from its beginning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import structlog

from syncer.base.errors import LossError
from syncer.base.link import Link
from syncer.base.model import Change, id_in
from syncer.base.retry import retry
from syncer.kafka import topic
from syncer.kafka.consumer import ChangeConsumer, Received
from syncer.kafka.topic import Loss
from syncer.recovery import lost_records
from syncer.recovery.lost_records import KnownTopic

Consume = Callable[[Callable[[str, list[int]], None]], ChangeConsumer]
"""Joins the group; its argument is called when partitions are assigned or revoked."""

_KEEP_ALIVE_SECONDS = 5
_LOOK_SECONDS = 10.0
"""How often to check whether the topic was replaced."""


class Membership:
    """A member of the group, or about to become one. Not for sharing between threads.

    Args:
        consume: Joins the group.
        link: The worker's connection to Postgres.
        pause: Waits before a retry; may raise `Stopping`.
        name: The worker, for the log.
    """

    def __init__(self, *, consume: Consume, link: Link, pause: Callable[[float], None], name: str) -> None:
        self._consume = consume
        self._link = link
        self._pause = pause
        self._name = name
        self._consumer: ChangeConsumer | None = None
        self._topic_id = ""
        self._kept_at = self._looked_at = 0.0
        self._log = structlog.get_logger().bind(worker=name)

    def receive(self, *, records_max: int, wait_seconds: float) -> tuple[Received, list[Change]] | None:
        """The records that have arrived, and the changes among them; None if there are none.

        Raises:
            LossError: Records are lost: call `go_on_behind`.
            KafkaException: The topic was replaced, or Kafka does not answer: call `leave`.
        """
        self._look_after_topic()
        received = self._joined().receive(records_max=records_max, wait_seconds=wait_seconds)
        return None if received is None else (received, self._parse(received))

    def commit(self, received: Received) -> None:
        """Commit the offsets of these records: no member receives them, or earlier ones, again."""
        self._joined().commit(received)

    def keep_alive(self) -> None:
        """Stay in the group during a long operation."""
        now = time.monotonic()
        if self._consumer is not None and now - self._kept_at > _KEEP_ALIVE_SECONDS:
            self._consumer.keep_alive()
            self._kept_at = now

    def pause(self, seconds: float) -> None:
        """Wait before a retry, and stay in the group meanwhile.

        Raises:
            Stopping: The component is to end.
        """
        self.keep_alive()
        self._pause(seconds)

    def leave(self) -> None:
        """Leave the group, if in it; the next `receive` rejoins."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None

    def go_on_behind(self, error: LossError) -> None:
        """Have lost records made up for; only once that is certain, move the group's offsets behind them."""
        self._make_up(error.losses)
        try:
            self._joined().move(error.losses)
        finally:
            self.leave()

    def _joined(self) -> ChangeConsumer:
        if self._consumer is None:
            self._consumer = self._consume(self._partitions_changed)
            self._topic_id = lost_records.examine(
                self._link.connection, self._consumer.settings, self._consumer.observer
            )
            self._looked_at = time.monotonic()
        return self._consumer

    def _look_after_topic(self) -> None:
        """Check from time to time whether the topic was replaced, as the relay notices and records.

        Until then the worker's offsets do no harm: they do not count for the new topic.

        Raises:
            KafkaException: It was.
        """
        if self._consumer is None or time.monotonic() - self._looked_at < _LOOK_SECONDS:
            return
        known = retry(self._known_topic, pause=self.pause, component=self._name)
        if known is None or known.id != self._topic_id:
            raise topic.replaced()
        self._looked_at = time.monotonic()

    def _known_topic(self) -> KnownTopic | None:
        assert self._consumer is not None  # noqa: S101 - the caller has one
        with self._link.used() as connection:
            return lost_records.known(connection, self._consumer.settings)

    def _parse(self, received: Received) -> list[Change]:
        """The changes among these records; what cannot be read is made up for before any later offset is committed."""
        try:
            return [Change.parse(value) for value in received.values]
        except ValueError:
            changes, losses = _sorted_out(received)
        if losses:
            self._make_up(losses)
        return changes

    def _make_up(self, losses: Sequence[Loss]) -> None:
        """Have everything written again that these records may have touched."""

        def make_up() -> None:
            with self._link.used() as connection:
                lost_records.make_up(connection, losses)

        retry(make_up, pause=self.pause, component=self._name)

    def _partitions_changed(self, event: str, partitions: list[int]) -> None:
        if partitions:  # a member that joins a full group is assigned none, and is notified of that
            self._log.info(event, partitions=sorted(partitions))


def _sorted_out(received: Received) -> tuple[list[Change], list[Loss]]:
    """The changes among these records, and the first record of each partition that cannot be read.

    Empty records fill the offsets of lost ones: see `syncer.recovery.lost_records`.
    """
    changes: list[Change] = []
    losses: dict[int, Loss] = {}
    for value, (partition, offset) in zip(received.values, received.places, strict=True):
        try:
            changes.append(Change.parse(value))
        except ValueError as error:
            if value:
                cause = f"a record is {error}"
                if id_in(value):
                    cause += "; a newer version of syncer than this daemon's may have published it"
                lost = Loss(partition=partition, cause=cause, position=offset, next_offset=offset + 1)
                losses.setdefault(partition, lost)
    return changes, list(losses.values())
