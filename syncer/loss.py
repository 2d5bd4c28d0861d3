"""Loss: records that Kafka has lost are made up for by writing every document again.

What can be lost, and who notices: a *worker*, whenever partitions are assigned to him, and whenever Kafka says so, that
records which he has yet to handle are gone (retention has passed, they were deleted), or were written anew behind his
back (the end lies before his position, or the leader's epoch says so). The *relay*, whenever it begins to lead, every
few seconds and with every acknowledgement, that the end of a partition lies before what Kafka had acknowledged: a
broker that crashed, or another one that was elected, knew less. Whenever it begins, also that another record is in the
place of the last one: whoever led before has published into the gap, and died before he noticed. It leaves word of that
to the workers, whose offsets are then of a past that was written anew: see `syncer.rewrites`. Both, whenever they
begin, that the topic is missing, or is another one than it was: somebody has deleted it, or has turned to another
cluster.

Guarantee: nothing is skipped. In one transaction each document in force is given a job that writes all of it and looks
for what only Elasticsearch has; only after its commit a position moves, or another topic counts as known. Take a change
that is lost: it was committed before it was published, so before it was lost, so before that job was made; the job
lists its ids in a later snapshot, which shows it. Whoever dies in between leaves the loss to be noticed again. A
document that is halted is left out: what ends its halt writes all of it.

Not noticed, and not needed: that records are gone that were handled, or that no relay has saved as published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import structlog
from confluent_kafka import KafkaError, KafkaException

from syncer import events, jobs, metrics, outbox, records, rewrites, store, topic
from syncer.errors import TopicError
from syncer.job import Job, JobKind
from syncer.model import id_in
from syncer.postgres import Connection
from syncer.records import Span
from syncer.settings import KafkaSettings
from syncer.topic import OVERTAKEN, Extent, Loss, Observer

_LOOK_SECONDS = 10.0
"""How long the last records may take to come."""

_KNOWN = "SELECT name, id FROM syncer.topic"
_STANDING = f"""
SELECT t.id, coalesce(c.ends, '{{}}') FROM syncer.topic AS t LEFT JOIN {outbox.CURSOR} AS c ON c.topic = t.id
WHERE t.name = $1
"""  # noqa: S608 - a constant of ours
# The relay's connection waits for no disk, and what it publishes next would hide a loss that a crash lets be forgotten.
_NOT_LAZILY = "SET LOCAL synchronous_commit TO DEFAULT"
_LOCK = "LOCK TABLE syncer.topic IN SHARE ROW EXCLUSIVE MODE"
_PUT = """
INSERT INTO syncer.topic (name, id) VALUES ($1, $2)
ON CONFLICT (only_row) DO UPDATE SET name = excluded.name, id = excluded.id, known_at = now()
"""


def require_topic(connection: Connection, settings: KafkaSettings) -> None:
    """Refuse to begin without the topic, unless it was there before: then it is made again.

    Raises:
        TopicError: Kafka does not answer, or has no such topic and never had.
    """
    if not topic.exists(settings) and not _is_known(connection, settings):
        raise topic.missing(settings)


def examine(connection: Connection, settings: KafkaSettings, observer: Observer) -> str:
    """See to it that the topic is there, and is the one that it was; if not, that every document is written again.

    Returns:
        The topic's id.

    Raises:
        TopicError: It is missing, and never was there, or cannot be made again.
        KafkaException: Kafka does not answer.
    """
    id_ = observer.id()
    if id_ is None:
        if not _is_known(connection, settings):
            raise topic.missing(settings)
        _make_again(settings)
        id_ = observer.id()
        if id_ is None:  # the broker that was asked has not heard of it
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    if connection.execute(_KNOWN).fetchone() != (settings.topic, id_):
        _know(connection, settings, id_)
    return id_


def _is_known(connection: Connection, settings: KafkaSettings) -> bool:
    known = connection.execute(_KNOWN).fetchone()
    return known is not None and known[0] == settings.topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The topic as it is known: what another one before it has lost is made up for by jobs that are there.

    Args:
        id: The topic's id.
        ends: By partition, how far Kafka has acknowledged it; it falls back only once a loss is made up for.
    """

    id: str
    ends: dict[int, int]


def has_begun(connection: Connection) -> bool:
    """Whether any topic was ever known: if not, no relay has published anything."""
    return connection.execute(_KNOWN).fetchone() is not None


def known(connection: Connection, settings: KafkaSettings) -> Known | None:
    """The topic as it is known; None if it is not."""
    row = connection.execute(_STANDING, (settings.topic,)).fetchone()
    return None if row is None else Known(id=row[0], ends={int(one): end for one, end in row[1].items()})


def _make_again(settings: KafkaSettings) -> None:
    """Make the topic.

    Raises:
        TopicError: Syncer may not.
        KafkaException: Kafka does not answer, after all.
    """
    try:
        if topic.make(settings):
            structlog.get_logger().warning(events.TOPIC_MADE, topic=settings.topic)
    except KafkaException as error:
        if error.args[0].code() not in _NOT_ALLOWED:
            raise
        raise TopicError(
            f"Kafka's topic {settings.topic} is gone, and syncer may not make it again: {error.args[0].str()}",
            hint=f"Make it, with {settings.partitions} partitions, or let syncer CREATE it. Then run syncer again: it\n"
            "writes every document anew, which makes up for what was in the topic.",
        ) from error


_NOT_ALLOWED = frozenset(
    {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.POLICY_VIOLATION}
)


def _know(connection: Connection, settings: KafkaSettings, id_: str) -> None:
    """Remember a topic; if it takes the place of another one, every document is written again."""
    with connection.transaction():
        connection.execute(_LOCK)  # two who notice it make no two jobs of it
        known = connection.execute(_KNOWN).fetchone()
        made = [] if known in (None, (settings.topic, id_)) else _refresh_all(connection)
        connection.execute(_PUT, (settings.topic, id_))
    if known is not None and known != (settings.topic, id_):
        _tell(made, cause=f"topic {settings.topic} is another one than it was", topic=id_, before=known[1])


def make_up(
    connection: Connection, losses: Sequence[Loss], *, rewritten: str = "", begins: Mapping[int, int] | None = None
) -> list[Job]:
    """Have every document written again, since records are gone; committed, and on disk, when this returns.

    A job that nobody has begun to list is joined.

    Args:
        connection: To Postgres.
        losses: What is gone.
        rewritten: The topic's id, if Kafka has taken back what it had acknowledged: then the workers are told.
        begins: By partition, before which offset there is nothing new; where the loss ends, if nobody says.
    """
    with connection.transaction():
        connection.execute(_NOT_LAZILY)
        made = _refresh_all(connection)
        if rewritten:
            # Of one that fell back twice, the lowest place counts.
            ends = {one.partition: one.end for one in sorted(losses, key=lambda one: -one.end)}
            rewrites.add(connection, rewritten, begins or ends)
    causes = "; ".join(sorted({one.cause for one in losses}))
    _tell(made, cause=causes, partitions=[asdict(one) for one in losses])
    return made


def fallen_back(ends: Mapping[int, int], extents: Mapping[int, Extent]) -> list[Loss]:
    """The partitions that end before what was acknowledged."""
    return [
        Loss(
            partition=partition,
            cause="records that were acknowledged are gone",
            position=end,
            begin=extents[partition].begin,
            end=extents[partition].end,
        )
        for partition, end in sorted(ends.items())
        if partition in extents and extents[partition].end < end
    ]


def overtaken(
    settings: KafkaSettings, ends: Mapping[int, int], lasts: Mapping[int, int], extents: Mapping[int, Extent]
) -> list[Loss]:
    """The partitions in which another record is in the place of the last one that was acknowledged.

    None, if the relay may not read the topic, which it does not need for anything else.

    Raises:
        KafkaException: Kafka does not say.
    """
    there = {one: ends[one] - 1 for one in lasts if one in ends and _has(extents.get(one), ends[one] - 1)}
    spans = [Span(partition=partition, begin=last, end=last + 1) for partition, last in sorted(there.items())]
    try:
        found = [one for page in records.look(settings, spans, seconds=_LOOK_SECONDS) for one in page]
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise
        return []
    return [
        Loss(
            partition=one.partition,
            cause=OVERTAKEN,
            position=ends[one.partition],
            begin=extents[one.partition].begin,
            end=extents[one.partition].end,
        )
        for one in found
        if id_in(one.value) != lasts[one.partition]
    ]


def _has(extent: Extent | None, offset: int) -> bool:
    return extent is not None and extent.begin <= offset < extent.end


def _refresh_all(connection: Connection) -> list[Job]:
    going = [one for one in store.documents(connection) if one.halted is None]
    made = [jobs.create(connection, one, JobKind.REFRESH) for one in going]
    return [one for one in made if one is not None]


def _tell(made: Sequence[Job], **what: object) -> None:
    metrics.lost()
    structlog.get_logger().error(
        events.TOPIC_LOST, **what, jobs=[one.id for one in made], documents=sorted({one.document for one in made})
    )
