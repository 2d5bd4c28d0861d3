"""Watermark: whether everything committed before a moment is handled: published, and behind the workers' offsets.

Guarantee: once nothing is left, each document touched by a change committed before the moment is in one of these
states. It was written with a version assigned after the change was visible, or it has a greater version that shows the
change. Or it is dead-lettered, left to an existing job, or its definition is suspended. For the reasons see
`syncer.verify.progress`, which follows one transaction through the same components.

Comparing a document with its SELECT relies on this. If it differed before the moment, a change that it does not show
was committed before the moment. Once that change is handled, the document was written again and has another version. If
it still has the same version, and no job will write it, nothing is in flight to it: it has drifted, however slow the
workers are. Until then its state is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from confluent_kafka import KafkaException

from syncer.base.error_policy import explain
from syncer.base.errors import TopicError
from syncer.base.formatting import amount
from syncer.base.postgres import Connection
from syncer.base.settings import KafkaSettings
from syncer.capture import outbox
from syncer.kafka.topic import Observer
from syncer.recovery import lost_records


@dataclass(frozen=True, slots=True, kw_only=True)
class _Goal:
    """The offsets to wait for: by partition, the offset that must be committed.

    They are reached even if records are lost: the relay then publishes empty records beyond them, see
    `syncer.recovery.lost_records`. The jobs that make up for the loss exist before that.
    """

    topic_id: str
    ends: dict[int, int]


class Handling:
    """Tells whether the workers have handled everything that the topic had at the first call of `left`."""

    def __init__(self, connection: Connection, observer: Observer, kafka: KafkaSettings) -> None:
        self._connection = connection
        self._observer = observer
        self._kafka = kafka
        self._goal: _Goal | None = None

    def left(self) -> dict[int, int] | None:
        """Return how many records have yet to be handled, by partition; None if the topic is not recorded yet.

        Raises:
            KafkaException: Kafka does not answer, has no such topic, or refuses.
        """
        goal = self._goal = self._goal or self._begun()
        if goal is None:
            return None
        left = self._left(goal)
        if left and self._is_replaced(goal):
            self._goal = None
        return left

    def _begun(self) -> _Goal | None:
        """Set the goal to the end of the topic; None if the topic is not recorded yet."""
        ends, id_ = self._observer.ends(), self._observer.id()
        known = lost_records.known(self._connection, self._kafka)
        if known is None or known.id != id_:
            return None
        return _Goal(
            topic_id=known.id,
            ends={one: max(ends.get(one, 0), known.ends.get(one, 0)) for one in ends | known.ends},
        )

    def _left(self, goal: _Goal) -> dict[int, int]:
        at = self._observer.committed(goal.topic_id, goal.ends)
        return {one: end - at.get(one, 0) for one, end in goal.ends.items() if end > at.get(one, 0)}

    def _is_replaced(self, goal: _Goal) -> bool:
        """Whether another topic took the place of the goal's, so that its offsets are never reached."""
        known = lost_records.known(self._connection, self._kafka)
        return known is None or known.id != goal.topic_id


class Watermark:
    """Tells whether everything committed to some tables before a moment is handled, and whether that makes progress.

    Args:
        connection: To Postgres; used for nothing else meanwhile.
    """

    def __init__(self, connection: Connection, kafka: KafkaSettings, relations: Collection[str]) -> None:
        self._connection = connection
        self._kafka = kafka
        self._relations = relations
        self._observer: Observer | None = None
        self.begin()

    def begin(self) -> None:
        """Set the moment to now."""
        self.began_at = time.monotonic()
        self._moment = outbox.moment(self._connection)
        self._handling: Handling | None = None
        self._state: object = None
        self._moved_at = self.began_at
        self.says = ""
        """What was left at the last call of `is_through`, in words; empty if nothing was."""

    @property
    def still_seconds(self) -> float:
        """The time since anything last moved."""
        return time.monotonic() - self._moved_at

    def is_through(self) -> bool:
        """Whether nothing is left. If Kafka does not answer, that counts as no progress.

        Raises:
            psycopg.Error: Postgres does not answer.
        """
        try:
            self.says, state = self._look()
        except (KafkaException, TopicError) as error:
            explanation = explain(error)
            self.says = state = explanation.message if explanation else str(error)
        if state != self._state:
            self._state, self._moved_at = state, time.monotonic()
        return not self.says

    def _look(self) -> tuple[str, object]:
        """Return what is left, in words, and what changes as long as that makes progress."""
        observer = self._observer = self._observer or Observer(self._kafka)
        if self._handling is None:
            # Changes first: once they are published, the topic's end includes them.
            changes = outbox.unpublished(self._connection, self._moment, self._relations)
            if changes:
                return f"{amount(changes, 'change')} in the outbox", (changes, observer.ends())
            self._handling = Handling(self._connection, observer, self._kafka)
        if not lost_records.has_begun(self._connection):
            return "", None
        records = self._handling.left()
        if records is None:
            return "the topic has been replaced by another one", None
        return f"{amount(sum(records.values()), 'record')} in the topic" if records else "", records
