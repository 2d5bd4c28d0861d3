"""Status: everything that `syncer status`, the status page and the metrics show.

An `Overview` puts together the last answer of each server. One that is silent is named in `Overview.servers`; what it
last said stays, and the others' answers are current. Totals only grow; two overviews give the rates: see `rates`.

The lag of a document is the age of the oldest committed change that its index does not show yet:

    in flight   a change that is not handled: see `syncer.capture.progress`; which documents it touches is known once a
                worker has handled it, so it counts for all of them
    held back   the oldest change of an unfinished fan-out or refresh of the current index; a document that was
                activated or suspended and is not loaded since, from that time on

Dead letters are reported by themselves. While a server is silent, what it last said to wait is
taken to wait still.
"""

from __future__ import annotations

import os
import re
import socket
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from importlib.metadata import version
from typing import Any

import elasticsearch

from syncer.base import error_policy, migrations
from syncer.base.errors import UnavailableError
from syncer.base.model import Role, Target
from syncer.base.postgres import Connection
from syncer.capture import leader, outbox
from syncer.capture.leader import Leader
from syncer.capture.outbox import Room
from syncer.capture.progress import CURSOR
from syncer.documents.registry import Catalogue, Document
from syncer.elasticsearch.reader import Holdings
from syncer.indexing import dead_letters
from syncer.jobs.model import Job, unfinished
from syncer.verify import last_result
from syncer.verify.last_result import Verification

# Rolled-back transactions consume numbers too, so rates are then a little high.
_SCALARS = """
SELECT extract(epoch FROM clock_timestamp())::float8 AS at,
       CASE WHEN o.is_called THEN o.last_value ELSE 0 END AS captured,
       i.epoch,
       (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(xact_start)), 0)::float8 FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend')
       AS open_seconds,
       (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(prepared)), 0)::float8 FROM pg_prepared_xacts
        WHERE database = current_database()) AS prepared_seconds
FROM syncer.outbox_id_seq AS o, syncer.cluster_identity AS i
"""
_PROGRESS = f"""
SELECT h.changes AS handled, coalesce((SELECT changes FROM {CURSOR} AS c), 0) AS published,
       extract(epoch FROM h.waiting_since)::float8 AS waiting_since
FROM syncer.handled AS h
"""  # noqa: S608 - a constant of ours
# By the names of `session_name`. Of other roles' sessions, addresses and times are visible only to pg_read_all_stats.
_RUNNING = """
SELECT name[4] AS host, name[3]::bigint AS process, max(name[2]) AS version, host(min(a.client_addr)) AS address,
       bool_or(name[1] = 'relay') AS has_relay,
       count(DISTINCT name[1]) FILTER (WHERE name[1] LIKE 'worker-%') AS worker_threads,
       bool_or(name[1] = 'job_worker') AS has_job_worker, min(a.backend_start) AS since, array_agg(a.pid) AS sessions
FROM pg_stat_activity AS a, regexp_match(
    a.application_name, '^syncer (watch|relay|job_worker|worker-[0-9]+)(?: ([^ @]+))? ([0-9]{1,18})@(.+)$'
) AS name
WHERE a.datname = current_database() AND name IS NOT NULL
GROUP BY 1, 2 ORDER BY 1, 2
"""
_HOST_CHARACTERS_MAX = 29
_VERSION_CHARACTERS_MAX = 12
"""Postgres cuts the name of a session to 63 characters."""
# `least` ignores what is null. The kinds that are left out make no document newer than it has to be.
_HELD_BACK = """
SELECT d.name, extract(epoch FROM least(d.stale_since, (
    SELECT min(j.changed_at) FROM syncer.job AS j
    WHERE j.index_name = d.index_name AND j.state NOT IN ('done', 'failed', 'cancelled')
      AND j.kind NOT IN ('backfill', 'partial')
)))::float8 AS since
FROM syncer.document AS d WHERE d.role = 'current'
"""
# Every daemon polls every few seconds, so this is one statement, whose rows are JSON.
_FACTS = f"""
SELECT 'migrations', to_jsonb(fact) FROM ({migrations.APPLIED}) AS fact
UNION ALL SELECT 'scalars', to_jsonb(fact) FROM ({_SCALARS}) AS fact
UNION ALL SELECT 'leader', to_jsonb(fact) FROM ({leader.LEADER}) AS fact
UNION ALL SELECT 'running', to_jsonb(fact) FROM ({_RUNNING}) AS fact
UNION ALL SELECT 'progress', to_jsonb(fact) FROM ({_PROGRESS}) AS fact
UNION ALL SELECT 'held_back', to_jsonb(fact) FROM ({_HELD_BACK}) AS fact
UNION ALL SELECT 'dead_letters', to_jsonb(fact) FROM ({dead_letters.COUNTS}) AS fact
UNION ALL SELECT 'verifications', to_jsonb(fact) FROM ({last_result.LAST}) AS fact
"""  # noqa: S608 - constants of ours
_UNAVAILABLE = 503


class Server(StrEnum):
    """The servers that are polled."""

    POSTGRES = "postgres"
    KAFKA = "kafka"
    ELASTICSEARCH = "elasticsearch"


class IndexFault(StrEnum):
    """Why an index cannot be searched."""

    GONE = "is gone"
    CLOSED = "is closed"
    SHARDS_AWAY = "has shards that are not available"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAnswer:
    """The outcome of polling one server.

    Args:
        server: The server.
        error: Why it has not answered, as a sentence without a full stop; None if it has.
        hint: What to do about that.
        detail: The error as the client library words it.
        seconds: How long it took.
        age_seconds: The age of its last answer; None if it never answered.
    """

    server: Server
    error: str | None
    hint: str = ""
    detail: str = ""
    seconds: float
    age_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """One daemon, by its connections to Postgres.

    Args:
        host: Its machine; of a long name, the end.
        process: Its process there.
        version: Its version; None while it reconnects.
        address: The address that it connects from, as Postgres sees it; None on a local socket, or if `since` is None.
        has_relay: Whether it runs a relay.
        worker_threads: How many of its workers are connected.
        has_job_worker: Whether it runs a job worker.
        since: When its oldest connection was opened; None if the role may not see it.
        leads: Whether its relay is the leader.
    """

    host: str
    process: int
    version: str | None
    address: str | None
    has_relay: bool
    worker_threads: int
    has_job_worker: bool
    since: datetime | None
    leads: bool

    def as_json(self) -> dict[str, Any]:
        """The daemon as plain data."""
        return {**asdict(self), "since": self.since and self.since.isoformat()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Totals at each place, or rates per second. Totals only grow, unless a server is recreated.

    Args:
        captured: Changes that triggers have written to the outbox.
        published: Changes that the leader has read, and published if there is a topic.
        handled: Changes that workers have done.
        written: Documents that Elasticsearch has written or deleted, by live changes and by jobs.
    """

    captured: float
    published: float
    handled: float
    written: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Postgres's answer.

    Args:
        at: The time of the reading, by the database's clock, in Unix time.
        leader: The leading relay; None if none leads.
        running: The visible daemons.
        captured: As in `Flow`, in total.
        outbox_waiting: Committed changes that the leader has not read.
        outbox_lag_seconds: The age of the oldest of them.
        published: As in `Flow`, in total.
        handled: As in `Flow`, in total.
        waiting_since: When the oldest change was made that was read and is not handled, in Unix time; None if all is.
        epoch: The epoch of versions.
        active: Every active definition, of each index.
        held_back: Since when a document is held back, in Unix time; without documents that are not.
        dead_letters: How many documents are dead-lettered, by index.
        jobs: The unfinished jobs, oldest first.
        room: The outbox's disk usage.
        open_seconds: The age of the oldest open transaction; 0 if there is none.
        prepared_seconds: The age of the oldest prepared one; 0 if there is none.
        verifications: The result of the last `syncer verify` of each document.
    """

    at: float
    leader: Leader | None
    running: tuple[Running, ...]
    captured: int
    outbox_waiting: int
    outbox_lag_seconds: float
    published: int
    handled: int
    waiting_since: float | None
    epoch: int
    active: tuple[Document, ...]
    held_back: Mapping[str, float]
    dead_letters: Mapping[str, int]
    jobs: tuple[Job, ...]
    room: Room
    open_seconds: float
    prepared_seconds: float
    verifications: tuple[Verification, ...]

    @property
    def topic_waiting(self) -> int:
        """How many changes were read and are not handled."""
        return max(0, self.published - self.handled)

    @property
    def workers(self) -> int:
        """How many workers are connected."""
        return sum(one.worker_threads for one in self.running)

    def dead_letters_of(self, name: str) -> int:
        """How many documents of a definition are dead-lettered."""
        return sum(self.dead_letters.get(one.index_name, 0) for one in self.active if one.name == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Elasticsearch's answer.

    Args:
        counts: How many documents each index holds, as of its last refresh; None if it is at fault.
        faults: What is wrong with an index.
        searched: The physical indices that a search through each alias finds.
        written: As in `Flow`, in total.
    """

    counts: Mapping[str, int | None]
    faults: Mapping[str, IndexFault]
    searched: Mapping[str, Sequence[str]]
    written: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOverview:
    """The status of one definition.

    Args:
        name: Its name.
        index: The alias that searches use.
        revision: The active revision.
        is_loaded: Whether every document has been written once under it.
        suspended: If it is suspended: what happened, and what to do.
        lag_seconds: The age of the oldest committed change that its index does not show yet; 0 if there is none.
        targets: How many documents each physical index holds, as of its last refresh; None if unknown.
        roles: The role of each physical index.
        faults: What is wrong with a physical index.
        dead_letters: How many documents are dead-lettered.
        drifted: How many documents differed from their SELECT after the last `syncer verify`.
        troubles: Why an index that is being built is suspended.
        searched: The physical indices that a search through the alias finds; None if unknown.
    """

    name: str
    index: str
    revision: int
    is_loaded: bool
    suspended: str | None
    lag_seconds: float
    targets: dict[str, int | None]
    roles: dict[str, Role]
    faults: dict[str, IndexFault]
    dead_letters: int
    drifted: int
    troubles: dict[str, str]
    searched: tuple[str, ...] | None

    @property
    def is_searched_alone(self) -> bool:
        """Whether searches find the current index only; otherwise they find documents twice, or old ones."""
        return self.searched == (self.current,)

    @property
    def current(self) -> str:
        """The physical index that searches should find."""
        return next(name for name, role in self.roles.items() if role is Role.CURRENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The last answer of each server, put together.

    Args:
        at: The time of the reading, in Unix time; by the database's clock, if that is known.
        servers: The outcome of the last poll of each server.
        stored: Postgres's last answer; None if there was none yet.
        documents: Every active definition.
        written: As in `Flow`, in total; None if unknown.
    """

    at: float
    servers: tuple[ServerAnswer, ...]
    stored: Stored | None
    documents: tuple[DocumentOverview, ...]
    written: int | None

    @property
    def silent(self) -> frozenset[Server]:
        """The servers that have not answered; their figures are old, or unknown."""
        return frozenset(one.server for one in self.servers if one.error is not None)

    @property
    def outbox_lag_seconds(self) -> float:
        """The age of the oldest committed change that is not published; 0 if there is none, or it is unknown."""
        if self.stored is None or not self.stored.outbox_waiting:
            return 0.0
        return self.stored.outbox_lag_seconds + self.at - self.stored.at

    @property
    def topic_lag_seconds(self) -> float:
        """The age of the oldest change that was read and is not handled; 0 if there is none, or it is unknown."""
        if self.stored is None or self.stored.waiting_since is None:
            return 0.0
        return max(0.0, self.at - self.stored.waiting_since)

    @property
    def lag_seconds(self) -> float:
        """The greatest lag of a document, or of a change in flight."""
        return max(self.outbox_lag_seconds, self.topic_lag_seconds, *(one.lag_seconds for one in self.documents))

    @property
    def totals(self) -> Flow | None:
        """The totals at each place; None if a server has not answered."""
        if self.stored is None or self.written is None or self.silent - {Server.KAFKA}:
            return None
        return Flow(
            captured=self.stored.captured,
            published=self.stored.published,
            handled=self.stored.handled,
            written=self.written,
        )

    def as_json(self) -> dict[str, Any]:
        """The status as plain data; None where a server has never answered."""
        stored, totals = self.stored, self.totals
        return {
            "at": self.at,
            "servers": [asdict(one) for one in self.servers],
            "lag_seconds": self.lag_seconds,
            "leader": stored and stored.leader and asdict(stored.leader),
            "running": [one.as_json() for one in stored.running] if stored else None,
            "outbox_waiting": stored and stored.outbox_waiting,
            "outbox_lag_seconds": self.outbox_lag_seconds if stored else None,
            "epoch": stored and stored.epoch,
            "jobs": [one.as_json() for one in stored.jobs] if stored else None,
            "workers": stored and stored.workers,
            "topic_waiting": stored and stored.topic_waiting,
            "topic_lag_seconds": self.topic_lag_seconds if stored else None,
            "totals": totals and asdict(totals),
            "documents": [asdict(one) for one in self.documents] if stored else None,
        }


def rates(before: Overview, after: Overview) -> Flow | None:
    """The throughput per second between two readings; None if no time has passed, or a server has not answered."""
    seconds = after.at - before.at
    if seconds <= 0 or before.totals is None or after.totals is None:
        return None
    then, now = asdict(before.totals), asdict(after.totals)
    return Flow(**{name: max(0, now[name] - then[name]) / seconds for name in now})


def ask_postgres(connection: Connection, catalogue: Catalogue) -> Stored:
    """Query Postgres.

    Args:
        connection: Postgres.
        catalogue: The definitions as they were last read.

    Raises:
        SourceError: Another version of syncer has migrated the database.
    """
    facts: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for name, fact in connection.execute(_FACTS).fetchall():
        facts[name].append(fact)
    migrations.require_ours({one["name"]: one["checksum"] for one in facts["migrations"]})
    leading = next((Leader(**one) for one in facts["leader"]), None)
    waiting, lag_seconds = outbox.waiting(connection, outbox.saved_cursor(connection))
    return Stored(
        leader=leading,
        running=tuple(_running(one, leading) for one in facts["running"]),
        outbox_waiting=waiting,
        outbox_lag_seconds=lag_seconds,
        active=tuple(catalogue.refresh(connection)),
        held_back={one["name"]: one["since"] for one in facts["held_back"] if one["since"] is not None},
        dead_letters={one["index_name"]: one["count"] for one in facts["dead_letters"]},
        jobs=tuple(unfinished(connection)),
        room=outbox.room(connection),
        verifications=tuple(Verification.of(one) for one in facts["verifications"]),
        **facts["scalars"][0],
        **facts["progress"][0],
    )


def ask_elasticsearch(holdings: Holdings, active: Sequence[Document]) -> Held:
    """Query Elasticsearch."""
    counts: dict[str, int | None] = {}
    faults: dict[str, IndexFault] = {}
    for one in active:
        held = _count(holdings, one.target)
        counts[one.index_name] = None if isinstance(held, IndexFault) else held
        if isinstance(held, IndexFault):
            faults[one.index_name] = held
    there = [one.target for one in active if one.index_name not in faults]
    searched = holdings.searched(sorted({one.index for one in active}))
    return Held(counts=counts, faults=faults, searched=searched, written=holdings.writes(there))


def put_together(servers: Sequence[ServerAnswer], stored: Stored | None, held: Held | None, *, at: float) -> Overview:
    """Combine the last answers of the servers, as of now."""
    seen = Overview(
        at=at,
        servers=tuple(servers),
        stored=stored,
        documents=(),
        written=None if held is None else held.written,
    )
    if stored is None:
        return seen
    in_flight = seen.lag_seconds
    return replace(
        seen,
        documents=tuple(
            _document(one, stored, held, lag_seconds=max(in_flight, at - stored.held_back.get(one.name, at)))
            for one in stored.active
            if one.role is Role.CURRENT
        ),
    )


def _document(served: Document, stored: Stored, held: Held | None, *, lag_seconds: float) -> DocumentOverview:
    rows = [one for one in stored.active if one.name == served.name]
    counts, faults, searched = (held.counts, held.faults, held.searched) if held else ({}, {}, {})
    names = [one.index_name for one in rows]
    return DocumentOverview(
        name=served.name,
        index=served.index,
        revision=served.revision,
        is_loaded=served.is_loaded,
        suspended=served.suspended,
        lag_seconds=lag_seconds,
        targets={name: counts.get(name) for name in names},
        roles={one.index_name: one.role for one in rows},
        faults={name: faults[name] for name in names if name in faults},
        dead_letters=stored.dead_letters_of(served.name),
        drifted=sum(one.drifted for one in stored.verifications if one.document == served.name),
        troubles={one.index_name: one.suspended for one in rows if one is not served and one.suspended is not None},
        searched=tuple(searched[served.index]) if served.index in searched else None,
    )


def _count(holdings: Holdings, target: Target) -> int | IndexFault:
    """How many documents a target holds, or what is wrong with it."""
    try:
        return holdings.count(target)
    except elasticsearch.NotFoundError:
        return IndexFault.GONE
    except elasticsearch.BadRequestError:
        return IndexFault.CLOSED
    except UnavailableError:
        return IndexFault.SHARDS_AWAY
    except elasticsearch.ApiError as error:
        if error.status_code != _UNAVAILABLE or error_policy.is_by_another(error):
            raise
        return IndexFault.SHARDS_AWAY


def _running(fact: dict[str, Any], leading: Leader | None) -> Running:
    since = fact["since"] and datetime.fromisoformat(fact["since"])
    leads = leading is not None and leading.process in fact["sessions"]
    del fact["sessions"]
    return Running(**{**fact, "since": since}, leads=leads)


def session_name(component: str) -> str:
    """The name of a component's connection to Postgres, from which `Running` is read."""
    host = re.sub(r"[^\w.-]", "?", socket.gethostname(), flags=re.ASCII)[-_HOST_CHARACTERS_MAX:]
    # Each daemon has one watch.
    release = f" {version('syncer-cdc')[:_VERSION_CHARACTERS_MAX]}" if component == "watch" else ""
    return f"{component}{release} {os.getpid()}@{host}"
