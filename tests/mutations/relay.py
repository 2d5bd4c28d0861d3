"""Rules of the relay, taken out."""

from __future__ import annotations

from collections.abc import Callable

from syncer.base.lifecycle import Stop
from syncer.base.postgres import Connection
from syncer.kafka.producer import ChangeProducer
from syncer.relay.loop import Relay, _Batch
from tests.mutations import Instead


def saves_on_another_connection(
    original: Instead, self: Relay, connection: Connection, cursor: str, producer: ChangeProducer
) -> None:
    """The cursor is saved, though the connection that has the lock may be gone."""
    connection.close()
    another = self._connection = self._connect()
    original(self, another, cursor, producer)


def saves_before_acknowledgement(
    original: Instead, self: Relay, connection: Connection, cursor: str, producer: ChangeProducer, batch: _Batch
) -> tuple[int, str]:
    """The cursor is saved once the records are queued."""
    published, seen = original(self, connection, cursor, producer, batch)
    self._save(connection, seen, producer)
    return published, seen


def waits_without_a_look(original: Instead, self: Relay, published: int, stop: Stop) -> None:
    """A relay that has just taken the wake-up's lock waits at once."""
    was_asleep = self._is_asleep
    original(self, published, stop)
    if self._is_asleep and not was_asleep:
        original(self, published, stop)


def forgets_notifications(
    original: Instead, connection: Connection, *, seconds: float, is_over: Callable[[], bool]
) -> bool:
    """Notifications that arrived before the wait do not end it."""
    list(connection.notifies(timeout=0.5))
    waited: bool = original(connection, seconds=seconds, is_over=is_over)
    return waited


def only_says_that_it_lives(original: Instead, self: Relay) -> None:
    """A stop is not heeded."""
    self._stop.beat()
