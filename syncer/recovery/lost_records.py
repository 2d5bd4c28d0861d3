"""Lost records: every document is written again if Kafka has lost records, or if a record cannot be read.

How a loss is detected: the records of a partition form a chain of numbers, and a worker meets a gap: see
`syncer.kafka.consumer`. A worker also counts a record as lost that it cannot read: a newer version of syncer published
it, or it is corrupt. If Kafka is no longer used, what was published and is not handled counts as lost, too.

Guarantee: nothing is skipped. One transaction creates a refresh of each active document, and counts all that was
published so far as handled. If the process dies in between, the loss is detected again.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from syncer.base import metrics
from syncer.base.errors import TopicError
from syncer.base.formatting import amount
from syncer.base.postgres import Connection
from syncer.base.settings import KafkaSettings
from syncer.capture import progress
from syncer.capture.progress import PartitionPlace
from syncer.elasticsearch.bulk import Index
from syncer.indexing import failover
from syncer.jobs import queue

_ONE_AFTER_ANOTHER = "LOCK TABLE syncer.partition IN SHARE ROW EXCLUSIVE MODE"


def make_up(connection: Connection, cause: str, *, lost: Mapping[int, int] | None = None) -> None:
    """Have every document written again; committed and on disk when this returns.

    If numbers of lost records are given, by partition, all that was published so far counts as handled from then on.
    """
    with connection.transaction():
        connection.execute(progress.WAIT_FOR_DISK)
        covered: dict[int, int] = {}
        if lost is not None:
            connection.execute(_ONE_AFTER_ANOTHER)
            if _are_handled(connection, lost):  # another process has made up for them: one loss makes one refresh
                return
            # All that is published by now was committed before the jobs are created, which list their ids later.
            published = progress.read(connection)
            covered = {} if published is None else dict(published.numbers)
            covered |= {partition: max(number, covered.get(partition, 0)) for partition, number in lost.items()}
        # Rule: a-loss-is-made-up-for-in-a-suspended-document.
        jobs = queue.refresh_all(connection, f"records were lost: {cause}")
        # Rule: the-refresh-is-committed-with-the-number.
        handled = {partition: PartitionPlace(next_offset=None, number=number) for partition, number in covered.items()}
        progress.advance(connection, handled)
    metrics.INCIDENTS.labels("records_lost").inc()
    documents = sorted({job.document for job in jobs})
    structlog.get_logger().error(
        "topic.records_lost",
        cause=cause,
        partitions=sorted(lost or ()),
        jobs=[job.id for job in jobs],
        documents=documents,
        timeline=f"Records were lost: {cause}. Written again: {', '.join(documents)}",
    )


def drop_partitions(connection: Connection, topic: str, partitions: int, saved: Mapping[int, int]) -> set[int]:
    """Make up for partitions that a topic no longer has, as the leader, and forget them; return them.

    ``partitions`` is how many it has. ``saved`` has the last number that was saved, by partition.
    """
    dropped = {partition: number for partition, number in saved.items() if partition >= partitions}
    if dropped and not _are_handled(connection, dropped):
        change = f"with {amount(partitions, 'partition')} instead of {max(dropped) + 1} or more"
        make_up(connection, f"topic {topic} was made again, {change}", lost=dropped)
    if dropped:
        progress.forget(connection, partitions)
    return set(dropped)


def _are_handled(connection: Connection, numbers: Mapping[int, int]) -> bool:
    handled = progress.places(connection)
    return all(partition in handled and handled[partition].number >= number for partition, number in numbers.items())


def require_original(connection: Connection, settings: KafkaSettings, index: Index) -> None:
    """Refuse to use the topic of another database, of which this one is a copy.

    Raises:
        TopicError: This database has used the topic before, and Elasticsearch has no record of it.
    """
    # A copy has the same id. After a failover or a restore, unlike for a copy, Elasticsearch remembers the epoch.
    if progress.newest(connection) and failover.is_forgotten(connection, index):
        raise TopicError(
            f"The database has used topic {settings.topic} before, and syncer-state has no record of it: is it a copy?",
            hint="If it is a copy, such as staging, set kafka.topic to a name of its own:\n"
            "every document is then written again. If it is not, the search server is new or has lost syncer-state:\n"
            "syncer doctor prints the request that restores it. See docs/deploy.md.",
        )
