"""Overview: how syncer is doing, in one reading. What `syncer status` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import elasticsearch

from syncer import dead_letters, outbox, store, unreadable
from syncer.holdings import Holdings
from syncer.index import Index
from syncer.job import Job, unfinished
from syncer.model import Role, Target
from syncer.postgres import AdvisoryLock, Connection, value
from syncer.settings import KafkaSettings
from syncer.store import Document
from syncer.topic import Observer, PartitionLag

_LEADER = """
SELECT a.pid, a.application_name, host(a.client_addr), extract(epoch FROM now() - a.backend_start)
FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
  AND (l.classid::bigint << 32 | l.objid::bigint) = $1
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_EPOCH = "SELECT epoch FROM syncer.incarnation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """The relay that leads.

    Args:
        process: The process id of its connection in Postgres.
        name: As ``pg_stat_activity`` shows it.
        address: Where it comes from; None on a local socket.
        seconds: How long it has been connected.
    """

    process: int
    name: str
    address: str | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOverview:
    """One document.

    Args:
        name: Its name.
        index: The alias that searches use.
        generation: The generation in force.
        is_filled: Whether every document has been written once under it.
        halted: If it is halted: what happened, and what to do.
        targets: How many documents each physical index holds, as of its last refresh; None if it does not say.
        roles: What each physical index is for.
        dead_letters: How many documents are parked, but for those that only an index on standby lacks.
        troubles: Why an index that is being built, or on standby, is halted.
    """

    name: str
    index: str
    generation: int
    is_filled: bool
    halted: str | None
    targets: dict[str, int | None]
    roles: dict[str, Role]
    dead_letters: int
    troubles: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """How syncer is doing.

    Args:
        leader: The relay that leads; None if none does.
        outbox_waiting: Committed changes that are not published.
        outbox_lag_seconds: The age of the oldest of them.
        workers: How many workers are in the consumer group.
        topic_waiting: Published changes that no worker has done.
        epoch: The epoch of versions.
        documents: Every document in force.
        jobs: The jobs that are not finished, oldest first.
        unreadable_records: How many records of the topic were no changes, and nobody has decided on.
    """

    leader: Leader | None
    outbox_waiting: int
    outbox_lag_seconds: float
    workers: int
    topic_waiting: int
    epoch: int
    documents: tuple[DocumentOverview, ...]
    jobs: tuple[Job, ...]
    unreadable_records: int

    @property
    def is_well(self) -> bool:
        """Whether all goes on, and nothing is stale for good.

        A relay leads, workers work, every document is filled and has its index, none is parked, nothing that was read
        from the topic is left to be decided on, and no job that documents wait for is paused.
        """
        works = self.leader is not None and self.workers > 0
        waits = any(one.is_paused and one.kind.is_owed for one in self.jobs)
        return (
            works
            and not waits
            and not self.unreadable_records
            and all(
                one.is_filled and not one.dead_letters and not one.troubles and None not in one.targets.values()
                for one in self.documents
            )
        )

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "jobs": [one.as_json() for one in self.jobs], "is_well": self.is_well}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What Postgres says of it.

    Args:
        leader: As in `Overview`, like the following.
        outbox_waiting: Likewise.
        outbox_lag_seconds: Likewise.
        epoch: Likewise.
        in_force: Every definition in force, of whatever index.
        dead_letters: How many documents are parked, by index.
        jobs: As in `Overview`.
        unreadable_records: Likewise.
    """

    leader: Leader | None
    outbox_waiting: int
    outbox_lag_seconds: float
    epoch: int
    in_force: tuple[Document, ...]
    dead_letters: Mapping[str, int]
    jobs: tuple[Job, ...]
    unreadable_records: int

    def dead_letters_of(self, name: str) -> int:
        """How many documents of a definition are parked, but for those that only an index on standby lacks."""
        return sum(
            self.dead_letters.get(one.index_name, 0)
            for one in self.in_force
            if one.name == name and one.role is not Role.STANDBY
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """What Kafka says of it.

    Args:
        workers: As in `Overview`.
        partitions: How far the workers are behind in each.
    """

    workers: int
    partitions: tuple[PartitionLag, ...]

    @property
    def waiting(self) -> int:
        """How many published changes no worker has done."""
        return sum(one.records for one in self.partitions)


def read(connection: Connection, index: Index, kafka: KafkaSettings) -> Overview:
    """Ask all three servers.

    Raises:
        SyncerError, psycopg.Error, elasticsearch.ApiError: One of them does not answer.
    """
    stored, queued = ask_postgres(connection), ask_kafka(Observer(kafka))
    return put_together(stored, queued, ask_elasticsearch(index.holdings, stored.in_force))


def ask_postgres(connection: Connection) -> Stored:
    """What Postgres says."""
    waiting, lag_seconds = outbox.waiting(connection, outbox.saved_cursor(connection))
    return Stored(
        leader=leader(connection),
        outbox_waiting=waiting,
        outbox_lag_seconds=lag_seconds,
        epoch=int(str(value(connection, _EPOCH))),
        in_force=tuple(store.documents(connection)),
        dead_letters=dead_letters.counts(connection),
        jobs=tuple(unfinished(connection)),
        unreadable_records=unreadable.total(connection),
    )


def ask_kafka(observer: Observer) -> Queued:
    """What Kafka says."""
    partitions = tuple(observer.lag())
    return Queued(workers=observer.members(), partitions=partitions)


def ask_elasticsearch(holdings: Holdings, in_force: Sequence[Document]) -> dict[str, int | None]:
    """How many documents each index holds; None if it is gone or closed."""
    return {one.index_name: _count(holdings, one.target) for one in in_force}


def put_together(stored: Stored, queued: Queued, counts: Mapping[str, int | None]) -> Overview:
    """What the three of them say."""
    return Overview(
        leader=stored.leader,
        outbox_waiting=stored.outbox_waiting,
        outbox_lag_seconds=stored.outbox_lag_seconds,
        workers=queued.workers,
        topic_waiting=queued.waiting,
        epoch=stored.epoch,
        documents=tuple(
            _document(document, [one for one in stored.in_force if one.name == document.name], counts, stored)
            for document in stored.in_force
            if document.role is Role.SERVING
        ),
        jobs=stored.jobs,
        unreadable_records=stored.unreadable_records,
    )


def _document(
    served: Document, rows: Sequence[Document], counts: Mapping[str, int | None], stored: Stored
) -> DocumentOverview:
    return DocumentOverview(
        name=served.name,
        index=served.index,
        generation=served.generation,
        is_filled=served.is_filled,
        halted=served.halted,
        targets={one.index_name: counts.get(one.index_name) for one in rows},
        roles={one.index_name: one.role for one in rows},
        dead_letters=sum(stored.dead_letters.get(one.index_name, 0) for one in rows if one.role is not Role.STANDBY),
        troubles={one.index_name: one.halted for one in rows if one is not served and one.halted is not None},
    )


def _count(holdings: Holdings, target: Target) -> int | None:
    """How many documents a target holds; None if it is gone or closed."""
    try:
        return holdings.count(target)
    except (elasticsearch.NotFoundError, elasticsearch.BadRequestError):
        return None


def leader(connection: Connection) -> Leader | None:
    """The relay that leads; None if none does."""
    row = connection.execute(_LEADER, (int(AdvisoryLock.RELAY),)).fetchone()
    if row is None:
        return None
    process, name, address, seconds = row
    return Leader(process=process, name=name, address=address, seconds=float(seconds))
