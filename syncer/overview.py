"""Overview: how syncer is doing, in one reading. What `syncer status`, `syncer top` and the status page show.

A reading has totals that only grow; from two of them follow the rates: see `rates`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import elasticsearch

from syncer import dead_letters, outbox, policy, records, store, unreadable
from syncer.errors import UnavailableError
from syncer.holdings import Holdings
from syncer.index import Index
from syncer.job import Job, unfinished
from syncer.model import Change, Role, Target
from syncer.postgres import AdvisoryLock, Connection, value
from syncer.records import Record
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
# What is rolled back has taken numbers too: a rate of it is a little high then.
_CAPTURED = """
SELECT extract(epoch FROM clock_timestamp())::float8, CASE WHEN is_called THEN last_value ELSE 0 END
FROM syncer.outbox_id_seq
"""
# Each daemon has one watch. Of other roles, Postgres shows no names to who may not see them.
_RUNNING = """
SELECT host(a.client_addr), count(*) FILTER (WHERE a.application_name = 'syncer watch'),
       count(*) FILTER (WHERE a.application_name = 'syncer relay'), bool_or(a.application_name ~ '^syncer worker-'),
       min(a.backend_start)
FROM pg_stat_activity AS a
WHERE a.datname = current_database() AND a.application_name ~ '^syncer (watch|relay|worker-[0-9]+)$'
GROUP BY 1 ORDER BY 1 NULLS FIRST
"""
_LOOK_SECONDS = 2
_UNAVAILABLE = 503


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
class Running:
    """The daemons of one machine, by their connections to Postgres.

    Args:
        address: Where they come from, as Postgres sees it; None on a local socket.
        daemons: How many they are.
        relays: How many relays they have.
        works: Whether they have workers.
        since: When the first of them connected; None if the role may not see it.
        leads: Whether the relay that leads is among them.
    """

    address: str | None
    daemons: int
    relays: int
    works: bool
    since: datetime | None
    leads: bool

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "since": self.since and self.since.isoformat()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What has passed each place, ever. They only grow, but for a server that is made anew.

    Args:
        captured: Changes that triggers have written to the outbox.
        published: Changes in the topic.
        handled: Changes that workers have done.
        written: Documents that Elasticsearch has written or deleted, by live changes and by jobs.
    """

    captured: int
    published: int
    handled: int
    written: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What passes each place in a second.

    Args:
        seconds: Over how long that was measured.
        captured: Changes that triggers write to the outbox.
        published: Changes that the relay brings into the topic.
        handled: Changes that workers do.
        written: Documents that Elasticsearch writes or deletes.
    """

    seconds: float
    captured: float
    published: float
    handled: float
    written: float


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
        unwell: Why an index takes no documents for now, and what to do; what changes waits in a job.
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
    unwell: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """How syncer is doing.

    Args:
        at: When it was read, by the database's clock, in seconds since the Unix epoch.
        leader: The relay that leads; None if none does.
        running: The daemons that can be seen, by where they run.
        outbox_waiting: Committed changes that are not published.
        outbox_lag_seconds: The age of the oldest of them.
        workers: How many workers are in the consumer group.
        topic_waiting: Published changes that no worker has done.
        topic_lag_seconds: The age of the oldest of them, or for how long it has waited at least.
        totals: What has passed each place.
        epoch: The epoch of versions.
        documents: Every document in force.
        jobs: The jobs that are not finished, oldest first.
        unreadable_records: How many records of the topic were no changes, and nobody has decided on.
    """

    at: float
    leader: Leader | None
    running: tuple[Running, ...]
    outbox_waiting: int
    outbox_lag_seconds: float
    workers: int
    topic_waiting: int
    topic_lag_seconds: float
    totals: Totals
    epoch: int
    documents: tuple[DocumentOverview, ...]
    jobs: tuple[Job, ...]
    unreadable_records: int

    @property
    def lag_seconds(self) -> float:
        """The age of the oldest committed change that is on its way; 0 if none is."""
        return max(self.outbox_lag_seconds, self.topic_lag_seconds)

    @property
    def is_well(self) -> bool:
        """Whether all goes on, and nothing is stale for good.

        A relay leads, workers work, every document is filled and has its index, which takes documents, none is parked,
        nothing that was read from the topic is left to be decided on, and no job that documents wait for is paused.
        """
        works = self.leader is not None and self.workers > 0
        waits = any(one.is_paused and one.kind.is_owed for one in self.jobs)
        return (
            works
            and not waits
            and not self.unreadable_records
            and all(
                one.is_filled
                and not one.dead_letters
                and not one.troubles
                and not one.unwell
                and None not in one.targets.values()
                for one in self.documents
            )
        )

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            **asdict(self),
            "running": [one.as_json() for one in self.running],
            "jobs": [one.as_json() for one in self.jobs],
            "lag_seconds": self.lag_seconds,
            "is_well": self.is_well,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What Postgres says of it.

    Args:
        at: As in `Overview`, like the following.
        leader: Likewise.
        running: Likewise.
        captured: As in `Totals`.
        outbox_waiting: As in `Overview`, like the following.
        outbox_lag_seconds: Likewise.
        epoch: Likewise.
        in_force: Every definition in force, of whatever index.
        dead_letters: How many documents are parked, by index.
        jobs: As in `Overview`.
        unreadable_records: Likewise.
    """

    at: float
    leader: Leader | None
    running: tuple[Running, ...]
    captured: int
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What Elasticsearch says of it.

    Args:
        counts: How many documents each index holds; None if it is gone or closed, or a shard of it is away.
        written: As in `Totals`.
    """

    counts: Mapping[str, int | None]
    written: int


def rates(before: Overview, after: Overview) -> Rates | None:
    """What has passed each place in a second between two readings; None if no time has passed."""
    seconds = after.at - before.at
    if seconds <= 0:
        return None
    then, now = asdict(before.totals), asdict(after.totals)
    return Rates(seconds=seconds, **{name: max(0, now[name] - then[name]) / seconds for name in now})


def read(connection: Connection, index: Index, kafka: KafkaSettings) -> Overview:
    """Ask all three servers.

    Raises:
        SyncerError, psycopg.Error, elasticsearch.ApiError: One of them does not answer.
    """
    stored, queued = ask_postgres(connection), ask_kafka(Observer(kafka))
    held = ask_elasticsearch(index.holdings, stored.in_force)
    waiting = records.first_waiting(kafka, queued.partitions, seconds=_LOOK_SECONDS)
    made = [one for record in waiting if (one := _made_at(record)) is not None]
    return put_together(stored, queued, held, topic_lag_seconds=max(0.0, stored.at - min(made, default=stored.at)))


def _made_at(record: Record) -> float | None:
    """When a change was made; None if the record is no change."""
    try:
        return Change.parse(record.value).changed_at
    except ValueError:
        return None


def ask_postgres(connection: Connection) -> Stored:
    """What Postgres says."""
    waiting, lag_seconds = outbox.waiting(connection, outbox.saved_cursor(connection))
    leading = leader(connection)
    at, captured = connection.execute(_CAPTURED).fetchall()[0]
    return Stored(
        at=at,
        leader=leading,
        running=tuple(_running(connection, leading)),
        captured=captured,
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


def ask_elasticsearch(holdings: Holdings, in_force: Sequence[Document]) -> Held:
    """What Elasticsearch says."""
    counts = {one.index_name: _count(holdings, one.target) for one in in_force}
    there = [one.target for one in in_force if counts[one.index_name] is not None]
    return Held(counts=counts, written=holdings.writes(there))


def put_together(stored: Stored, queued: Queued, held: Held, *, topic_lag_seconds: float) -> Overview:
    """What the three of them say, and for how long the oldest record waits in the topic."""
    return Overview(
        at=stored.at,
        leader=stored.leader,
        running=stored.running,
        outbox_waiting=stored.outbox_waiting,
        outbox_lag_seconds=stored.outbox_lag_seconds,
        workers=queued.workers,
        topic_waiting=queued.waiting,
        topic_lag_seconds=topic_lag_seconds,
        totals=Totals(
            captured=stored.captured,
            published=sum(one.end for one in queued.partitions),
            handled=sum(one.committed for one in queued.partitions),
            written=held.written,
        ),
        epoch=stored.epoch,
        documents=tuple(
            _document(document, [one for one in stored.in_force if one.name == document.name], held.counts, stored)
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
        dead_letters=stored.dead_letters_of(served.name),
        troubles={one.index_name: one.halted for one in rows if one is not served and one.halted is not None},
        unwell={one.index_name: one.unwell for one in rows if one.unwell is not None},
    )


def _count(holdings: Holdings, target: Target) -> int | None:
    """How many documents a target holds; None if it is gone or closed, or a shard of it is away."""
    try:
        return holdings.count(target)
    except (elasticsearch.NotFoundError, elasticsearch.BadRequestError, UnavailableError):
        return None
    except elasticsearch.ApiError as error:
        if error.status_code != _UNAVAILABLE or policy.is_by_another(error):
            raise
        return None


def leader(connection: Connection) -> Leader | None:
    """The relay that leads; None if none does."""
    row = connection.execute(_LEADER, (int(AdvisoryLock.RELAY),)).fetchone()
    if row is None:
        return None
    process, name, address, seconds = row
    return Leader(process=process, name=name, address=address, seconds=None if seconds is None else float(seconds))


def _running(connection: Connection, leading: Leader | None) -> Iterator[Running]:
    for address, daemons, relays, works, since in connection.execute(_RUNNING).fetchall():
        leads = leading is not None and leading.address == address and relays > 0
        yield Running(address=address, daemons=daemons, relays=relays, works=works, since=since, leads=leads)
