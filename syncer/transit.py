"""Transit: whether what was committed before a moment is handled: published, and behind the workers' offsets.

Guarantee: of a change that was committed before the moment, once nothing is left, every document that it touches has
been written with a version drawn after the change was visible, or has a greater one that shows it, or is parked; or it
is left to a job that is there; or its definition is halted. Why: see `syncer.passage`, which follows one transaction by
the same stages.

Whoever compares a document with its SELECT rests on that. Say it differed before the moment. Then a change that it does
not show was committed before the moment. Once that is handled it was written again, and has another version. If it has
the same one still, and no job comes to it, nothing is on its way to it: it has drifted, however slow the workers are.
Until then nobody knows.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field

from confluent_kafka import KafkaException

from syncer import loss, outbox, rewrites
from syncer.errors import TopicError
from syncer.policy import explain
from syncer.postgres import Connection
from syncer.settings import KafkaSettings
from syncer.topic import Observer
from syncer.wording import amount


@dataclass(frozen=True, slots=True, kw_only=True)
class _Goal:
    """Which offsets are waited for.

    Args:
        topic_id: Of this topic.
        ends: By partition, the offset that is to be committed, or a greater one.
        saved: The ends that the relay had saved then.
    """

    topic_id: str
    ends: dict[int, int]
    saved: dict[int, int]


class Handling:
    """Asks again and again whether the workers have handled all that the topic had when it was asked first.

    Args:
        connection: To Postgres.
        observer: Asks Kafka.
        kafka: Where the changes go.
    """

    def __init__(self, connection: Connection, observer: Observer, kafka: KafkaSettings) -> None:
        self._connection = connection
        self._observer = observer
        self._kafka = kafka
        self._goal: _Goal | None = None

    def left(self) -> dict[int, int] | None:
        """How many records have yet to be handled, by partition; None if the topic is one that is not known as yet.

        Raises:
            KafkaException: Kafka does not answer, has no such topic, or refuses.
        """
        goal = self._goal = self._goal or self._begun()
        if goal is None:
            return None
        left = self._left(goal)
        if left and self._is_overtaken(goal):
            self._goal = None
        return left

    def _begun(self) -> _Goal | None:
        """Behind what the topic has; None if it is one that is not known as yet."""
        ends, id_ = self._observer.ends(), self._observer.id()
        known = loss.known(self._connection, self._kafka)
        if known is None or known.id != id_:
            return None
        return _Goal(
            topic_id=known.id,
            ends={one: max(ends.get(one, 0), known.ends.get(one, 0)) for one in ends | known.ends},
            saved=known.ends,
        )

    def _left(self, goal: _Goal) -> dict[int, int]:
        committed = self._observer.committed(goal.topic_id, goal.ends)
        heeded = rewrites.read(self._connection, goal.topic_id)
        at = {one: heeded.true_until(one, offset, mark) for one, (offset, mark) in committed.items()}
        return {one: end - at.get(one, 0) for one, end in goal.ends.items() if end > at.get(one, 0)}

    def _is_overtaken(self, goal: _Goal) -> bool:
        """Whether a loss was made up for since, so that there may be no such offsets any more."""
        known = loss.known(self._connection, self._kafka)
        if known is None or known.id != goal.topic_id:
            return True
        return any(known.ends.get(partition, 0) < end for partition, end in goal.saved.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Left:
    """What is left of what was committed before the moment.

    Args:
        changes: How many are not published.
        records: How many records have yet to be handled, of these and others, by partition.
        ends: If some are not published: how far Kafka has the topic, which moves while they are being published.
        trouble: Why it cannot be said.
    """

    changes: int = 0
    records: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    trouble: str = ""

    @property
    def is_nothing(self) -> bool:
        return not (self.changes or self.records or self.trouble)

    @property
    def says(self) -> str:
        if self.trouble:
            return self.trouble
        if self.changes:
            return f"{amount(self.changes, 'change')} in the outbox"
        return f"{amount(sum(self.records.values()), 'record')} in the topic" if self.records else ""


class Transit:
    """Asks whether all that was committed to some tables before a moment is handled, and whether that moves on.

    Args:
        connection: Nothing else is done on it meanwhile.
        kafka: Where the changes go.
        relations: Which tables.
    """

    def __init__(self, connection: Connection, kafka: KafkaSettings, relations: Collection[str]) -> None:
        self._connection = connection
        self._kafka = kafka
        self._relations = relations
        self._observer: Observer | None = None
        self.begin()

    def begin(self) -> None:
        """Now is the moment."""
        self.began_at = time.monotonic()
        self._moment = outbox.moment(self._connection)
        self._handling: Handling | None = None
        self._left = _Left()
        self._moved_at = self.began_at

    @property
    def still_seconds(self) -> float:
        """For how long nothing has moved on."""
        return time.monotonic() - self._moved_at

    @property
    def says(self) -> str:
        """What was left when it was asked last; empty if nothing was."""
        return self._left.says

    def is_through(self) -> bool:
        """Whether nothing is left.

        Raises:
            psycopg.Error: Postgres does not answer. That Kafka does not counts as if nothing moved.
        """
        try:
            left = self._look()
        except (KafkaException, TopicError) as error:
            said = explain(error)
            left = _Left(trouble=said.message if said else str(error))
        if left != self._left:
            self._moved_at = time.monotonic()
        self._left = left
        return left.is_nothing

    def _look(self) -> _Left:
        observer = self._observer = self._observer or Observer(self._kafka)
        if self._handling is None:
            # Published first: only then what the topic has includes them.
            changes = outbox.unpublished(self._connection, self._moment, self._relations)
            if changes:
                return _Left(changes=changes, ends=observer.ends())
            self._handling = Handling(self._connection, observer, self._kafka)
        if not loss.has_begun(self._connection):
            return _Left()
        records = self._handling.left()
        return _Left(trouble="the topic is another one than it was") if records is None else _Left(records=records)
