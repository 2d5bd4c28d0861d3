"""Lost records: every document is written again if Kafka has lost records, or if a record cannot be read.

How a loss is detected:

- A *worker* checks whenever partitions are assigned to it, and whenever Kafka reports an error. Records that it has yet
  to handle may be gone, through retention or deletion. Or they were overwritten: the end lies before its position, or
  the leader's epoch says so.
- A *worker* also counts a record as lost that it cannot read: a newer version of syncer published it, or it is corrupt.
- The *relay* checks when it becomes leader, every few seconds, and with every acknowledgement. The end of a partition
  may lie before what Kafka had acknowledged, after a broker crashed or a less complete replica was elected.
- Both check on start whether the topic is missing or is another one: it was deleted, or Kafka is another cluster.

Guarantee: nothing is skipped. One transaction creates a job for each active document that writes all of it and looks
for documents that only Elasticsearch has. Only after its commit does a position move, or another topic count as known.
A lost change was committed before it was published, so before it was lost, so before that job was created. The job
lists its ids in a later snapshot, which shows the change. If the process dies in between, the loss is detected again. A
suspended document is left out: resuming it writes all of it.

New changes do not take the offsets of lost ones. A worker may have handled the lost ones and continue behind them, so
after a loss the relay first fills these offsets with empty records, and as many beyond as it may have unacknowledged at
a time: workers may have handled records whose acknowledgement the relay did not receive. Until Kafka has accepted all
of them the relay publishes no change. If it tries again, it does not make up again for what it has made up for.

Not detected, and not needed: the loss of records that were handled, or that no relay has saved as published.

Limit: two faults at once. Kafka loses records; and the relay, which has published into the gap or not yet saved the
lost records as published, fails or dies before it has filled their offsets. The next relay then finds no loss, or
publishes them again in another order. A worker may pass over a change, unless Kafka's leader epochs tell it of the
loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import structlog
from confluent_kafka import KafkaError, KafkaException

from syncer.base import metrics
from syncer.base.errors import TopicError
from syncer.base.postgres import Connection
from syncer.base.settings import KafkaSettings
from syncer.capture import outbox
from syncer.documents import registry
from syncer.elasticsearch.bulk import Index
from syncer.indexing import failover
from syncer.jobs import queue
from syncer.jobs.model import Job, JobKind
from syncer.kafka import records, topic
from syncer.kafka.topic import Extent, Loss, Observer

_LOOK_SECONDS = 10.0
"""How long reading the last records may take."""

_KNOWN = "SELECT name, id FROM syncer.topic"
_STANDING = f"""
SELECT t.id, coalesce(c.ends, '{{}}') FROM syncer.topic AS t LEFT JOIN {outbox.CURSOR} AS c ON c.topic = t.id
WHERE t.name = $1
"""  # noqa: S608 - a constant of ours
# The relay's connection commits without waiting for the disk. Its next records would hide a loss that a crash forgot.
_WAIT_FOR_DISK = "SET LOCAL synchronous_commit TO DEFAULT"
_LOCK = "LOCK TABLE syncer.topic IN SHARE ROW EXCLUSIVE MODE"
_PUT = """
INSERT INTO syncer.topic (name, id) VALUES ($1, $2)
ON CONFLICT (only_row) DO UPDATE SET name = excluded.name, id = excluded.id, known_at = now()
"""


def require_own_topic(connection: Connection, settings: KafkaSettings, record: Index | None) -> None:
    """Refuse the topic of another database, which would lose changes to this one. Passes if there is no topic.

    Another database's records are looked for among the latest. Those missed here are refused by the worker that reads
    them. A role that may not read the topic passes: a relay only needs to write to it.

    A copy of a database has the same id, whether it was restored from a dump or copied as files. Elasticsearch
    distinguishes it from a failover and from a restore: in those cases it remembers the database's epoch.

    Args:
        connection: To Postgres.
        settings: The topic.
        record: Elasticsearch's record of epochs; None for a process that does not use Elasticsearch.

    Raises:
        TopicError: Kafka cannot be reached; another client writes to the topic; or this database has used the topic
            before, and Elasticsearch does not know it.
        KafkaException: Kafka does not answer.
    """
    if not topic.exists(settings):
        return
    if other := _other_writer(settings):
        raise topic.foreign(settings, other)
    if record is not None and known(connection, settings) is not None and failover.is_forgotten(connection, record):
        raise TopicError(
            f"The database has used topic {settings.topic} before, and Elasticsearch does not know it: is it a copy?",
            hint="If it is a copy, such as staging, set kafka.topic and kafka.group to names of its own:\n"
            "every document is then written again. If it is not, Elasticsearch is new or has lost syncer-state:\n"
            "syncer doctor prints the request that restores it. See docs/deploy.md.",
        )


def _other_writer(settings: KafkaSettings) -> str:
    try:
        with Observer(settings) as observer:
            return records.other_installation(settings, observer.extents(), seconds=_LOOK_SECONDS)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise
        return ""


def examine(connection: Connection, settings: KafkaSettings, observer: Observer) -> str:
    """Return the topic's id. If the topic is missing or replaced, it is created again and every document written again.

    Raises:
        TopicError: The topic never existed, or cannot be created again.
        KafkaException: Kafka does not answer.
    """
    id_ = observer.id()
    if id_ is None:
        if known(connection, settings) is None:
            raise topic.missing(settings)
        _make_again(settings)
        id_ = observer.id()
        if id_ is None:  # the broker that answered does not know it yet
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    if connection.execute(_KNOWN).fetchone() != (settings.topic, id_):
        _know(connection, settings, id_)
    return id_


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTopic:
    """The topic as recorded in Postgres; losses of topics before it are made up for by existing jobs.

    Args:
        ends: By partition, the end that Kafka has acknowledged.
    """

    id: str
    ends: dict[int, int]


def has_begun(connection: Connection) -> bool:
    """Whether any topic was ever recorded; if not, no relay has published anything."""
    return connection.execute(_KNOWN).fetchone() is not None


def known(connection: Connection, settings: KafkaSettings) -> KnownTopic | None:
    """Return the topic as recorded; None if it is not."""
    row = connection.execute(_STANDING, (settings.topic,)).fetchone()
    return None if row is None else KnownTopic(id=row[0], ends={int(one): end for one, end in row[1].items()})


def _make_again(settings: KafkaSettings) -> None:
    """Create the topic again.

    Raises:
        TopicError: Syncer is not allowed to.
        KafkaException: Kafka does not answer.
    """
    try:
        if topic.make(settings):
            structlog.get_logger().warning(
                "topic.made_again",
                topic=settings.topic,
                timeline=f"The topic {settings.topic} was missing and was created again.",
            )
    except KafkaException as error:
        if error.args[0].code() not in _NOT_ALLOWED:
            raise
        raise TopicError(
            f"Kafka's topic {settings.topic} is gone, and syncer is not allowed to create it: {error.args[0].str()}",
            hint=f"Create it with {settings.partitions} partitions, or grant syncer CREATE on it. Then run syncer\n"
            "again: it writes every document again, which makes up for what was in the topic.",
        ) from error


_NOT_ALLOWED = frozenset(
    {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.POLICY_VIOLATION}
)


def _know(connection: Connection, settings: KafkaSettings, id_: str) -> None:
    """Record a topic; if it replaces another one, every document is written again."""
    with connection.transaction():
        connection.execute(_LOCK)  # two processes that notice it create the jobs once
        known = connection.execute(_KNOWN).fetchone()
        made = [] if known in (None, (settings.topic, id_)) else _refresh_all(connection)
        connection.execute(_PUT, (settings.topic, id_))
    if known is not None and known != (settings.topic, id_):
        _log_loss(made, cause=f"topic {settings.topic} has been replaced by another one", topic=id_, before=known[1])


def make_up(connection: Connection, losses: Sequence[Loss]) -> list[Job]:
    """Have every document written again because records are gone; committed and on disk when this returns.

    New jobs whose listing has not begun are joined.
    """
    with connection.transaction():
        connection.execute(_WAIT_FOR_DISK)
        made = _refresh_all(connection)
    causes = "; ".join(sorted({one.cause for one in losses}))
    _log_loss(made, cause=causes, partitions=[asdict(one) for one in losses])
    return made


def fallen_back(ends: Mapping[int, int], extents: Mapping[int, Extent]) -> list[Loss]:
    """Return the partitions that end before what Kafka had acknowledged."""
    # Rule: an-end-that-falls-back-is-a-loss.
    return [
        Loss(
            partition=partition,
            cause="acknowledged records are gone",
            position=end,
            next_offset=extents[partition].end,
        )
        for partition, end in sorted(ends.items())
        if partition in extents and extents[partition].end < end
    ]


def _refresh_all(connection: Connection) -> list[Job]:
    unsuspended = [one for one in registry.documents(connection) if one.suspended is None]
    made = [queue.create(connection, one, JobKind.REFRESH) for one in unsuspended]
    return [one for one in made if one is not None]


def _log_loss(made: Sequence[Job], **what: object) -> None:
    metrics.LOSSES.inc()
    documents = sorted({job.document for job in made})
    structlog.get_logger().error(
        "topic.records_lost",
        **what,
        jobs=[job.id for job in made],
        documents=documents,
        timeline=f"Records were lost: {what['cause']}. Written again: {', '.join(documents)}",
    )
