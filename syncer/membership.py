"""Membership: a worker's part in the consumer group: what it is given to handle, and how it stays, leaves, joins anew.

Guarantees: what is no change is kept as such before `receive` returns, hence before anything behind it is committed
(`syncer.unreadable`); nobody goes on behind records that are lost before all that they may have told of is to be
written again (`syncer.loss`); who has read what Kafka then took back is told, and begins where that does
(`syncer.rewrites`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import structlog

from syncer import events, loss, metrics, rewrites, unreadable
from syncer.consumer import ChangeConsumer, Received
from syncer.errors import LossError
from syncer.lifecycle import persist
from syncer.link import Link
from syncer.model import Change
from syncer.repeated import Repeated
from syncer.rewrites import Rewrites
from syncer.unreadable import Record

Consume = Callable[[Callable[[str, list[int]], None]], ChangeConsumer]
"""Joins the group; is given whom to tell of partitions that come and go."""

_KEEP_ALIVE_SECONDS = 5
_LOOK_SECONDS = 10.0
"""How often to look whether Kafka has taken something back."""


class RewrittenError(Exception):
    """What Kafka had acknowledged is taken back: who joins anew begins where that does."""


class Membership:
    """A member of the group, or about to be one. Not for sharing between threads.

    Args:
        consume: Joins the group.
        link: The worker's connection to Postgres.
        pause: How to wait before trying again; may raise `Stopping`.
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
        self._unread: Repeated[bool, Record] = Repeated(self._tell_unread)
        self._log = structlog.get_logger().bind(worker=name)

    def receive(self, *, records_max: int, wait_seconds: float) -> tuple[Received, list[Change]] | None:
        """The records that have come, and the changes among them; None if none have.

        Raises:
            LossError: Records are gone: see `go_on_behind`.
            RewrittenError: What was read is no longer true: leave.
        """
        self._look_for_rewrites()
        received = self._joined().receive(records_max=records_max, wait_seconds=wait_seconds)
        self._unread.tell()
        return None if received is None else (received, self._parse(received))

    def commit(self, received: Received) -> None:
        """Let nobody receive these again, nor those before them."""
        self._joined().commit(received)

    def keep_alive(self) -> None:
        """Stay in the group while something takes long."""
        now = time.monotonic()
        if self._consumer is not None and now - self._kept_at > _KEEP_ALIVE_SECONDS:
            self._consumer.keep_alive()
            self._kept_at = now

    def pause(self, seconds: float) -> None:
        """Wait, before something is tried again, and stay in the group meanwhile.

        Raises:
            Stopping: The stage is to end.
        """
        self.keep_alive()
        self._pause(seconds)

    def leave(self) -> None:
        """Leave the group, if in it; whoever receives next joins anew."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None

    def flush(self) -> None:
        """Say what is not said yet."""
        self._unread.flush()

    def go_on_behind(self, error: LossError, *, made_up: Callable[[], None]) -> None:
        """Have what is lost written again; only once that is certain does anybody go on behind it.

        Args:
            error: What is lost.
            made_up: Called once it is certain.
        """

        def make_up() -> None:
            try:
                loss.make_up(self._link.connection, error.losses)
            except Exception:
                self._link.close()
                raise

        persist(make_up, pause=self.pause, stage=self._name)
        made_up()
        try:
            self._joined().move(error.losses)
        finally:
            self.leave()

    def _joined(self) -> ChangeConsumer:
        if self._consumer is None:
            self._consumer = self._consume(self._partitions_changed)
            self._topic_id = loss.examine(self._link.connection, self._consumer.settings, self._consumer.observer)
            self._consumer.rewrites = self._known_rewrites()
        return self._consumer

    def _known_rewrites(self) -> Rewrites:
        self._looked_at = time.monotonic()
        with self._link.used() as connection:
            return rewrites.read(connection, self._topic_id)

    def _look_for_rewrites(self) -> None:
        """See from time to time whether what was read is written anew, and what was committed is no longer true.

        Raises:
            RewrittenError: It is.
        """
        if self._consumer is None or time.monotonic() - self._looked_at < _LOOK_SECONDS:
            return
        found = persist(self._known_rewrites, pause=self.pause, stage=self._name)
        if found != self._consumer.rewrites:
            raise RewrittenError

    def _parse(self, received: Received) -> list[Change]:
        """The changes among these records; what is none is kept, before anything that is behind it is committed."""
        try:
            return [Change.parse(value) for value in received.values]
        except ValueError:
            changes, records = _sorted_out(received)
        only_counted = persist(partial(self._keep_unread, records), pause=self.pause, stage=self._name)
        for number, is_kept in ((len(records) - only_counted, True), (only_counted, False)):
            if number:
                self._unread.note(is_kept, records[-1], number)
        return changes

    def _keep_unread(self, records: list[Record]) -> int:
        """Keep records that are no changes; how many are only counted."""
        with self._link.used() as connection:
            return unreadable.park(connection, self._joined().topic, records)

    # Saying so

    def _partitions_changed(self, event: str, partitions: list[int]) -> None:
        if partitions:  # one that joins a full group is given none, and is told that
            self._log.info(event, partitions=sorted(partitions))

    def _tell_unread(self, is_kept: bool, number: int, last: Record) -> None:
        metrics.unreadable(number)
        self._log.error(
            events.RECORDS_PARKED, records=number, are_kept=is_kept, partition=last.partition, offset=last.offset
        )


def _sorted_out(received: Received) -> tuple[list[Change], list[Record]]:
    """The changes among these records, and the others."""
    changes: list[Change] = []
    records: list[Record] = []
    for value, key, (partition, offset) in zip(received.values, received.keys, received.places, strict=True):
        try:
            changes.append(Change.parse(value))
        except ValueError as error:
            records.append(Record(partition=partition, offset=offset, key=key, value=value, error=str(error)))
    return changes, records
