"""Overview: how syncer is doing, in one reading. What `syncer status` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import elasticsearch

from syncer import dead_letters, outbox, store, topic, unreadable
from syncer.index import Index
from syncer.job import Job, unfinished
from syncer.model import Role, Target
from syncer.postgres import AdvisoryLock, Connection, value
from syncer.settings import KafkaSettings
from syncer.store import Document

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
        seconds: How long it has been connected; None if this role may not see that.
    """

    process: int
    name: str
    address: str | None
    seconds: float | None


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


def read(connection: Connection, index: Index, kafka: KafkaSettings) -> Overview:
    """Ask all three servers.

    Raises:
        SyncerError, psycopg.Error, elasticsearch.ApiError: One of them does not answer.
    """
    waiting, lag_seconds = outbox.waiting(connection, outbox.saved_cursor(connection))
    parked = dead_letters.counts(connection)
    in_force = store.documents(connection)
    return Overview(
        leader=leader(connection),
        outbox_waiting=waiting,
        outbox_lag_seconds=lag_seconds,
        workers=topic.members(kafka),
        topic_waiting=sum(one.records for one in topic.lag(kafka)),
        epoch=int(str(value(connection, _EPOCH))),
        documents=tuple(
            _document(document, [one for one in in_force if one.name == document.name], index, parked)
            for document in in_force
            if document.role is Role.SERVING
        ),
        jobs=tuple(unfinished(connection)),
        unreadable_records=unreadable.total(connection),
    )


def _document(served: Document, rows: Sequence[Document], index: Index, parked: Mapping[str, int]) -> DocumentOverview:
    return DocumentOverview(
        name=served.name,
        index=served.index,
        generation=served.generation,
        is_filled=served.is_filled,
        halted=served.halted,
        targets={one.index_name: _count(index, one.target) for one in rows},
        roles={one.index_name: one.role for one in rows},
        dead_letters=sum(parked.get(one.index_name, 0) for one in rows if one.role is not Role.STANDBY),
        troubles={one.index_name: one.halted for one in rows if one is not served and one.halted is not None},
    )


def _count(index: Index, target: Target) -> int | None:
    """How many documents a target holds; None if it is gone or closed."""
    try:
        return index.holdings.count(target)
    except (elasticsearch.NotFoundError, elasticsearch.BadRequestError):
        return None


def leader(connection: Connection) -> Leader | None:
    """The relay that leads; None if none does."""
    row = connection.execute(_LEADER, (int(AdvisoryLock.RELAY),)).fetchone()
    if row is None:
        return None
    process, name, address, seconds = row
    return Leader(process=process, name=name, address=address, seconds=None if seconds is None else float(seconds))
