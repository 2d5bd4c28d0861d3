"""Rules of questions to Kafka and of what it has lost, taken out."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from syncer.base.postgres import Connection
from syncer.base.settings import KafkaSettings
from syncer.kafka import topic
from syncer.recovery import lost_records
from tests.mutations import Instead


def any_offset(original: Instead, asked: Future[Any]) -> int:
    """No answer counts as an offset."""
    return int(topic.answer(asked).offset)


def ensures_the_topic(original: Instead, settings: KafkaSettings) -> None:
    """That Kafka does not answer ends the component."""
    topic.ensure_topic(settings)


def only_remembers(original: Instead, connection: Connection, settings: KafkaSettings, id_: str) -> None:
    """Another topic of the same name is taken for the one that it was."""
    connection.execute(lost_records._PUT, (settings.topic, id_))


@contextmanager
def leaves_what_fails_open(original: Instead, self: Any) -> Iterator[Any]:
    """A client that has not answered is left to the garbage collector."""
    client = self._take()
    yield client
    self._idle.append(client)
