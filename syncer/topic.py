"""Topic: what Kafka says of the topic of changes: whether it is there, how much it has, who reads it and how far.

How changes get in and out: `syncer.producer`, `syncer.consumer`. What is in it: `syncer.records`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from syncer import telemetry
from syncer.errors import TopicError
from syncer.settings import KafkaSettings

ANSWER_SECONDS = 10
"""How long Kafka may take to answer a question."""
NO_SUCH_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_ID})  # noqa: SLF001
"""What Kafka, or its client, says of a topic that is not there; librdkafka's local codes are spelled so."""
OVERTAKEN = "records that were acknowledged are gone, and others are in their place"
"""A cause of a `Loss`, as the relay says it."""
_NEVER_SECONDS = 3600
"""As long as a question to Kafka may be on its way at all."""
_AS_IN_ADDRESSES = str.maketrans({"+": "-", "/": "_", "=": None})
_NOT_ANSWERED = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT})  # noqa: SLF001 - librdkafka's own
_COORDINATOR_SECONDS = 0.2
_NO_COORDINATOR = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)

_Result = TypeVar("_Result")


def common(settings: KafkaSettings) -> dict[str, Any]:
    """What every client of ours is set to."""
    return {
        "bootstrap.servers": settings.bootstrap_servers,
        "client.id": "syncer",
        # How soon partitions that were added are noticed; five minutes, if nobody says so.
        "topic.metadata.refresh.interval.ms": 10_000,
        # How soon a broker that is back is noticed; up to ten seconds, if nobody says so.
        "reconnect.backoff.max.ms": 1000,
        **settings.properties,
        **({"sasl.password": settings.sasl_password.get_secret_value()} if settings.sasl_password else {}),
    }


def ensure_topic(settings: KafkaSettings) -> bool:
    """Create the topic of changes if it is missing; True if it was.

    Raises:
        TopicError: Kafka does not answer.
        KafkaException: Kafka refuses.
    """
    return not exists(settings) and make(settings)


def make(settings: KafkaSettings) -> bool:
    """Create the topic of changes; False if it is there.

    Raises:
        KafkaException: Kafka does not answer, or refuses.
    """
    admin = _admin(settings)  # answers only as long as it lives
    new = NewTopic(settings.topic, num_partitions=settings.partitions, replication_factor=settings.replication_factor)
    try:
        answer(admin.create_topics([new], request_timeout=ANSWER_SECONDS)[settings.topic])
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        return False
    return True


def exists(settings: KafkaSettings) -> bool:
    """Whether the topic is there.

    Raises:
        TopicError: Kafka does not answer.
    """
    return settings.topic in _topics(_admin(settings))


def missing(settings: KafkaSettings) -> TopicError:
    """What to say of a topic that is not there, and never was."""
    return TopicError(f"Kafka has no topic {settings.topic}", hint="Run: syncer apply, which creates it.")


class _Admin(AdminClient):
    """A client for questions, which knows why it is not let in: an answer that does not come says only that."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.troubles: list[KafkaError] = []
        told: dict[str, Any] = {"error_cb": self.troubles.append}
        super().__init__({**common(settings), **told}, logger=telemetry.library_logger())

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Say of a question that is not answered if that is since the broker, or the client, does not trust the other.

        Raises:
            TopicError: That is why.
        """
        try:
            yield
        except KafkaException as error:
            self.poll(0)
            for trouble in self.troubles:
                if trouble.code() in _NOT_LET_IN:
                    raise TopicError(f"Kafka does not let syncer in: {trouble.str()}", hint=_LET_IN_HINT) from error
            raise


_NOT_LET_IN = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL})  # noqa: SLF001 - librdkafka's own are spelled so
_LET_IN_HINT = (
    "Check kafka.properties (security.protocol, sasl.mechanisms, sasl.username, ssl.ca.location) and\n"
    "kafka.sasl_password: see docs/security.md."
)


def _admin(settings: KafkaSettings) -> _Admin:
    return _Admin(settings)


def _topics(admin: _Admin) -> dict[str, Any]:
    try:
        with admin.asking():
            return dict(admin.list_topics(timeout=ANSWER_SECONDS).topics)
    except KafkaException as error:
        raise TopicError(
            f"Kafka cannot be reached: {error.args[0].str()}",
            hint="Check SYNCER_KAFKA_BOOTSTRAP_SERVERS, and that the broker is up.",
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """What a partition has.

    Args:
        begin: The oldest offset that is still there.
        end: The next offset to be written.
    """

    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question for the topic's id that is on its way.

    Args:
        client: Who was asked.
        answer: What is to come.
        until: When it is over, answered or not, by `time.monotonic`.
    """

    client: _Admin
    answer: Future[Any]
    until: float

    @property
    def is_over(self) -> bool:
        """Whether there is an answer, or none will come."""
        return self.answer.done() or time.monotonic() >= self.until


class Observer:
    """Asks Kafka about the topic, over connections that are kept while they answer. Safe to share between threads.

    A topic's *id* is given to it when it is made: another topic of the same name, or in another cluster, has
    another one. Brokers before Kafka 2.8 give the same to all.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._admin = _admin(settings)
        self._outsider: Consumer | None = None
        self._asking_group: _Admin | None = None

    def id(self) -> str | None:
        """The topic's id, as Kafka's own tools show it; None if there is no such topic.

        Raises:
            KafkaException: Kafka does not answer, or refuses.
        """
        with self._asking() as admin:
            return _id(self._described(admin))

    def soon_id(self) -> Question:
        """The same, for who does not wait: once it is over, `said` tells what has come of it."""
        asked = self._admin
        until = time.monotonic() + 2 * ANSWER_SECONDS
        return Question(client=asked, answer=self._described(asked), until=until)

    def said(self, question: Question) -> str | None:
        """The topic's id; None if there is no answer, or none that says it."""
        with suppress(KafkaException), self._asking(question.client):
            return _id(question.answer, seconds=0)
        return None

    def extents(self, partitions: Collection[int] | None = None) -> dict[int, Extent]:
        """What these partitions have, or all.

        Raises:
            KafkaException: Kafka does not answer, has no such topic, or refuses.
        """
        with self._asking() as admin:
            if partitions is None:
                partitions = [one.id for one in answer(self._described(admin)).partitions]
            if not partitions:
                return {}
            return _extents(admin, [TopicPartition(self._settings.topic, one) for one in sorted(partitions)])

    def ends(self) -> dict[int, int]:
        """By partition, the offset behind the last record that may be read.

        Raises:
            KafkaException: Kafka does not answer, has no such topic, or refuses.
        """
        with self._asking() as admin:
            places = [TopicPartition(self._settings.topic, one.id) for one in answer(self._described(admin)).partitions]
            asked = admin.list_offsets(dict.fromkeys(places, OffsetSpec.latest()), request_timeout=ANSWER_SECONDS)
            return {place.partition: answer(asked[place]).offset for place in places}

    def committed(self, id_: str, partitions: Collection[int]) -> dict[int, tuple[int, str]]:
        """How far the workers are in the topic of that id, by partition; what nobody has committed is left out.

        Returns:
            The offset, and with which mark it was committed: see `syncer.rewrites`.

        Raises:
            KafkaException: Kafka does not answer, or refuses.
        """
        places = [TopicPartition(self._settings.topic, one) for one in sorted(partitions)]
        found = self._offsets(places)
        said = [(place, *(place.metadata or "").partition(" ")) for place in found]
        return {place.partition: (place.offset, mark) for place, of, _, mark in said if of in ("", id_)}

    def lag(self) -> list[PartitionLag]:
        """How far the consumer group is behind, by partition.

        Raises:
            TopicError: Kafka does not answer, or has no such topic.
        """
        with self._asking() as admin:
            found = _topics(admin).get(self._settings.topic)
            if found is None:
                raise missing(self._settings)
            places = [TopicPartition(self._settings.topic, one) for one in sorted(found.partitions)]
            extents = _extents(admin, places)
        committed = {one.partition: one.offset for one in self._offsets(places)}
        return [
            PartitionLag(partition=one, begin=has.begin, committed=committed.get(one, has.begin), end=has.end)
            for one, has in sorted(extents.items())
        ]

    def group(self) -> Any:
        """What the consumer group is, as `confluent_kafka` has it: its members, and what may be done to it.

        Asked by a client of its own, which is let go of if it has no answer in time, and whose question does not end by
        itself: where one does that, and is answered later, or sent again, an AdminClient ends the process by a failed
        assertion (librdkafka's issue 4605, seen with 2.16).

        Raises:
            KafkaException: Kafka does not answer, or refuses.
            TopicError: It does not let syncer in.
        """
        name = self._settings.group
        asking = self._asking_group or _admin(self._settings)
        self._asking_group = None

        def ask() -> Any:
            asked = asking.describe_consumer_groups(
                [name], include_authorized_operations=True, request_timeout=_NEVER_SECONDS
            )
            return answer(asked[name], seconds=ANSWER_SECONDS)

        with asking.asking():
            found = _of_group(ask)
        self._asking_group = asking
        return found

    def members(self) -> int:
        """How many workers are in the consumer group.

        Raises:
            KafkaException: Kafka does not answer, or refuses.
            TopicError: It does not let syncer in.
        """
        return len(self.group().members)

    @contextmanager
    def _asking(self, client: _Admin | None = None) -> Iterator[_Admin]:
        """The client for questions, which is let go of if one has no answer: some, after an outage, never answer again.

        Seen with librdkafka 2.16: for two minutes, while others that were made meanwhile were answered at once.
        """
        asked = client or self._admin
        try:
            yield asked
        except (KafkaException, TopicError) as error:
            cause = error if isinstance(error, KafkaException) else error.__cause__
            is_silent = isinstance(cause, KafkaException) and cause.args[0].code() in _NOT_ANSWERED
            if is_silent and self._admin is asked:  # else another thread has another one already
                self._admin = _admin(self._settings)
            raise

    def _offsets(self, places: list[TopicPartition]) -> list[TopicPartition]:
        """What the group has committed of them, of those of which it has any.

        Asked by a consumer that does not join, and is let go of if it has no answer. An AdminClient's own question ends
        the process, by a fault of memory, if the broker answers that it is not the group's coordinator, or not yet
        (seen with librdkafka 2.16).
        """
        settings = {"group.id": self._settings.group, "enable.auto.commit": False, **common(self._settings)}
        asking = self._outsider or Consumer(settings, logger=telemetry.library_logger())
        self._outsider = None

        def ask() -> list[TopicPartition]:
            found = asking.committed(places, timeout=ANSWER_SECONDS)
            for place in found:
                if place.error is not None:
                    raise KafkaException(place.error)
            return [place for place in found if place.offset >= 0]

        found = _of_group(ask)
        self._outsider = asking
        return found

    def _described(self, admin: _Admin) -> Future[Any]:
        name = self._settings.topic
        asked: Future[Any] = admin.describe_topics(TopicCollection([name]), request_timeout=ANSWER_SECONDS)[name]
        return asked


def answer(asked: Future[Any], *, seconds: float = 2 * ANSWER_SECONDS) -> Any:
    """What an AdminClient was told; waits no longer than this, whatever has become of the question.

    Raises:
        KafkaException: Kafka does not answer, or refuses.
    """
    try:
        return asked.result(timeout=seconds)
    except TimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None  # noqa: SLF001 - spelled so


def _id(asked: Future[Any], *, seconds: float = 2 * ANSWER_SECONDS) -> str | None:
    try:
        return str(answer(asked, seconds=seconds).topic_id).translate(_AS_IN_ADDRESSES)
    except KafkaException as error:
        if error.args[0].code() in NO_SUCH_TOPIC:
            return None
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Records of one partition that are gone, though nobody may have handled them.

    Args:
        partition: Which.
        cause: What happened.
        position: The next offset that was to be handled, or written; None if it is not known.
        begin: The oldest offset that is still there.
        end: The next offset to be written.
    """

    partition: int
    cause: str
    position: int | None
    begin: int
    end: int

    @property
    def next_offset(self) -> int:
        """Where to go on: at the oldest record; behind the last one, if it is not known which were handled."""
        return self.end if self.position is not None and self.position > self.begin else self.begin


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """How far the workers are behind in one partition.

    Args:
        partition: Which.
        begin: The oldest offset that is still there.
        committed: The next offset to be handled.
        end: The next offset to be written.
    """

    partition: int
    begin: int
    committed: int
    end: int

    @property
    def records(self) -> int:
        """How many records wait."""
        return max(0, self.end - self.committed)


def lag(settings: KafkaSettings) -> list[PartitionLag]:
    """How far the consumer group is behind, by partition: as `Observer.lag`, asked once."""
    return Observer(settings).lag()


def members(settings: KafkaSettings) -> int:
    """How many workers are in the consumer group: as `Observer.members`, asked once."""
    return Observer(settings).members()


def _of_group(ask: Callable[[], _Result]) -> _Result:
    """Ask about the consumer group; one that was never joined has no coordinator until the broker has made one."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in _NO_COORDINATOR or time.monotonic() >= deadline:
                raise
        time.sleep(_COORDINATOR_SECONDS)


def _extents(admin: AdminClient, places: list[TopicPartition]) -> dict[int, Extent]:
    """What each of them has; both questions are asked at once.

    Raises:
        KafkaException: One of the leaders has not answered in time, or cannot say.
    """
    begins, ends = (
        admin.list_offsets(dict.fromkeys(places, spec), request_timeout=ANSWER_SECONDS)
        for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
    )
    return {place.partition: Extent(begin=_answered(begins[place]), end=_answered(ends[place])) for place in places}


def _answered(asked: Future[Any]) -> int:
    """An offset; of a leader that is silent, while others answer, librdkafka gives one that is none, and no error."""
    offset = int(answer(asked).offset)
    if offset < 0:
        raise KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE))
    return offset
