"""Status: how syncer is doing. `Reader.read` asks the servers; a terminal, the page, JSON, metrics and health show it.

It takes two statements of Postgres and two requests of Elasticsearch, and at most two seconds. Kafka is not asked:
progress is in Postgres, and what ails Kafka is what daemons report to be retrying. If a server does not answer, its
last answer stays, with its age, and the others' are current.

The lag of a document is the age of the oldest committed change that its index does not show yet:

    in flight   a change that is not handled: see `syncer.capture.progress`; which documents it touches is known once a
                worker has handled it, so it counts for all of them
    held back   the oldest change of an unfinished fan-out or refresh of the current index; a document that was
                activated or suspended and is not loaded since, from that time on

While Postgres is silent, changes that waited at its last answer count as waiting. Dead letters are reported by
themselves.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, TypeVar

import msgspec
import psycopg
from elastic_transport import ConnectionTimeout
from elasticsearch import Elasticsearch

from syncer.base import migrations, postgres
from syncer.base.error_policy import explain, is_away
from syncer.base.model import Role
from syncer.base.postgres import AdvisoryLock, Connection, Link
from syncer.base.settings import Settings
from syncer.capture.outbox import ENDED_SINCE, LATER
from syncer.capture.progress import CURSOR, IS_VALID
from syncer.elasticsearch import client as elastic
from syncer.elasticsearch.reader import Holdings
from syncer.indexing import dead_letters
from syncer.jobs.model import Job, unfinished
from syncer.monitoring.daemons import DAEMONS, Daemon

POSTGRES, KAFKA, ELASTICSEARCH = "postgres", "kafka", "elasticsearch"
POSTGRES_SECONDS, ALL_SECONDS = 1.2, 1.9
"""How long to wait for Postgres, and for all servers."""
_AGAIN_SECONDS = 0.1
"""How much longer to wait for an answer that did not come in time."""
FRESH_SECONDS = 1.0
"""An answer that was read so recently is not asked for again."""
WAITING_MAX = 100_000
"""So many changes that wait in the outbox are counted: more would take longer than an answer may."""

# Rolled-back transactions consume numbers too, so the rate of captured changes is then a little high.
_SCALARS = f"""
SELECT extract(epoch FROM clock_timestamp())::float8 AS at,
       jsonb_build_object(
           'captured', CASE WHEN o.is_called THEN o.last_value ELSE 0 END,
           'published', l.published, 'handled', h.changes
       ) AS totals,
       greatest(0, l.published - h.changes) AS topic_waiting,
       (SELECT epoch FROM syncer.installation) AS epoch,
       extract(epoch FROM h.waiting_since)::float8 AS topic_since,
       w.outbox_waiting, w.outbox_since, r.outbox_bytes, r.outbox_segments,
       (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(xact_start)), 0)::float8 FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend')
       AS open_seconds,
       (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(prepared)), 0)::float8 FROM pg_prepared_xacts
        WHERE database = current_database()) AS prepared_seconds,
       (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(query_start)), 0)::float8 FROM pg_stat_activity
        WHERE datname = current_database() AND application_name LIKE 'syncer %' AND wait_event = 'SyncRep')
       AS standby_seconds,
       EXISTS (
           SELECT FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted
           AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
           AND (classid::bigint << 32 | objid::bigint) = {AdvisoryLock.REBUILD:d}
       ) AS is_rebuilt
FROM syncer.outbox_id_seq AS o, syncer.handled AS h, (
    SELECT coalesce((SELECT changes FROM {CURSOR} AS c), 0) AS published
) AS l, (
    SELECT count(u.changed_at) AS outbox_waiting, extract(epoch FROM min(u.changed_at))::float8 AS outbox_since
    FROM (
        SELECT coalesce(max(snapshot::text), '1:1:')::pg_snapshot AS seen FROM {CURSOR} AS c WHERE {IS_VALID}
    ) AS c LEFT JOIN LATERAL (
        (SELECT changed_at FROM syncer.outbox WHERE {LATER.format("c.seen")} ORDER BY xid, id LIMIT {WAITING_MAX})
        UNION ALL
        (SELECT changed_at FROM syncer.outbox WHERE {ENDED_SINCE.format("c.seen")} LIMIT {WAITING_MAX})
        LIMIT {WAITING_MAX}
    ) AS u ON true
) AS w, (
    SELECT coalesce(sum(pg_total_relation_size(inhrelid)), 0) AS outbox_bytes,
           count(*) FILTER (WHERE pg_relation_size(inhrelid) > 0) AS outbox_segments
    FROM pg_inherits WHERE inhparent = 'syncer.outbox'::regclass
) AS r
"""
_VERIFICATIONS = """
SELECT d.name AS document, v.index_name, v.finished_at, v.documents, v.drifted, v.repaired, v.is_complete
FROM syncer.verification AS v JOIN syncer.document AS d USING (index_name)
WHERE d.role = 'current' ORDER BY d.name
"""
"""The query that returns the fields of each `Verification`, of the index that searches find."""
# `least` ignores what is null. The kinds that are left out make no document newer than it has to be.
_DOCUMENTS = f"""
SELECT c.name, c.definition ->> 'index' AS index, c.revision, c.loaded_at IS NOT NULL AS is_loaded, c.suspended,
       extract(epoch FROM least(c.stale_since, (
           SELECT min(j.changed_at) FROM syncer.job AS j
           WHERE j.index_name = c.index_name AND j.state NOT IN ('done', 'failed', 'cancelled')
             AND j.kind NOT IN ('backfill', 'partial')
       )))::float8 AS held_back_since, i.*
FROM syncer.document AS c, LATERAL (
    SELECT jsonb_object_agg(d.index_name, d.role) AS roles,
           coalesce(jsonb_object_agg(d.index_name, d.suspended)
                    FILTER (WHERE d.role <> 'current' AND d.suspended IS NOT NULL), '{{}}') AS troubles,
           coalesce(sum(l.count), 0) AS dead_letters, coalesce(sum(v.drifted), 0) AS drifted
    FROM syncer.document AS d LEFT JOIN ({dead_letters.COUNTS}) AS l USING (index_name)
    LEFT JOIN ({_VERIFICATIONS}) AS v USING (index_name)
    WHERE d.name = c.name
) AS i
WHERE c.role = 'current' ORDER BY c.name
"""
_STORED = f"""
SELECT to_jsonb(s) || jsonb_build_object(
    'daemons', ARRAY(SELECT to_jsonb(d) FROM ({DAEMONS}) AS d),
    'documents', ARRAY(SELECT to_jsonb(d) FROM ({_DOCUMENTS}) AS d),
    'verifications', ARRAY(SELECT to_jsonb(v) FROM ({_VERIFICATIONS}) AS v)
)
FROM ({_SCALARS}) AS s
"""
# A segment that was never analysed looks smaller than it is: only the index tells what waits in it.
_SESSION = "SET enable_seqscan = off; SET statement_timeout = '30s'"
_ADDRESS = re.compile(r"""(?:at |host=)["']([^"']+)["'].*?port[ =](\d+).*Connection refused""")
"""Where a client library was refused, in its words: a line for each of several hosts."""
_RETRIED = "Running daemons try again by themselves."
_SETTINGS = {POSTGRES: "SYNCER_POSTGRES_DSN", ELASTICSEARCH: "SYNCER_ELASTICSEARCH_URL"}
_LATE = (
    "It may be busy, or hang. If this lasts, look at its load, its log and its disks, and at the network. "
    "Nothing is lost: syncer continues by itself."
)

_Answer = TypeVar("_Answer")


class IndexFault(StrEnum):
    """Why an index cannot be searched."""

    GONE = "is gone"
    CLOSED = "is closed"
    BLOCKED = "is blocked for searches"
    SHARDS_AWAY = "has shards that are not available"


_FAULTS = {404: IndexFault.GONE, 400: IndexFault.CLOSED, 503: IndexFault.SHARDS_AWAY, 403: IndexFault.BLOCKED}
"""By the status of a search."""
_KINDS = {IndexFault.CLOSED: "index_closed_exception", IndexFault.BLOCKED: "cluster_block_exception"}
"""The kinds of errors of faults whose status a refused request or privilege has, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Whether a server answers; if not, why, as a sentence without a full stop, and for how long it has not.

    ``age_seconds`` is the age of its last answer; None if it never answered.
    """

    server: str
    error: str | None
    hint: str = ""
    detail: str = ""
    silent_seconds: float = 0.0
    age_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentStatus:
    """The status of one definition, and by physical index its numbers, roles and faults.

    ``suspended`` and ``troubles`` say what happened, and what to do: of the current index, and of one being built.
    ``held_back_since`` is when the oldest change was made that an unfinished job, or a suspension, keeps from it.
    ``targets`` and ``searched`` are None where Elasticsearch's answer is unknown.
    """

    name: str
    index: str
    revision: int
    is_loaded: bool
    suspended: str | None
    held_back_since: float | None
    roles: dict[str, Role]
    troubles: dict[str, str]
    dead_letters: int
    drifted: int
    lag_seconds: float = 0.0
    targets: dict[str, int | None] = field(default_factory=dict)
    faults: dict[str, IndexFault] = field(default_factory=dict)
    searched: tuple[str, ...] | None = None

    @property
    def is_searched_alone(self) -> bool:
        """Whether searches find the current index only; otherwise they find documents twice, or old ones."""
        return self.searched == (self.current,)

    @property
    def current(self) -> str:
        """The physical index that searches should find."""
        return next(name for name, role in self.roles.items() if role is Role.CURRENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The last result of an index.

    Args:
        drifted: How many were left different, for a reason that `syncer status` does not name otherwise, and other
            than the rounding of a sum.
        repaired: How many differed and are equal since they were written again.
        is_complete: False if so many differed that the comparison ended early.
    """

    document: str
    index_name: str
    finished_at: datetime
    documents: int
    drifted: int
    repaired: int
    is_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Postgres's answer. Times are Unix times by the database's clock.

    ``totals`` are numbers of changes: captured in the outbox, published (read by the leader), and handled.
    ``topic_waiting`` changes were read and are not handled. ``outbox_waiting`` were not read: `WAITING_MAX` stands for
    so many or more. ``topic_since`` and ``outbox_since`` are when the oldest was made, None if there is none.
    ``standby_seconds`` is for how long a commit of syncer's has waited for a synchronous standby. ``is_rebuilt`` says
    whether a command is at work on a new index.
    """

    at: float
    totals: Mapping[str, int]
    epoch: int
    topic_waiting: int
    topic_since: float | None
    outbox_waiting: int
    outbox_since: float | None
    outbox_bytes: int
    outbox_segments: int
    open_seconds: float
    prepared_seconds: float
    standby_seconds: float
    is_rebuilt: bool
    daemons: tuple[Daemon, ...]
    documents: tuple[DocumentStatus, ...]
    verifications: tuple[Verification, ...]
    jobs: tuple[Job, ...] = ()

    @property
    def waiting(self) -> int:
        """How many changes are not handled."""
        return self.outbox_waiting + self.topic_waiting

    @property
    def leader(self) -> Daemon | None:
        """The daemon that reads the outbox."""
        return next((daemon for daemon in at_work(self) if daemon.leads), None)

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return sum(daemon.workers for daemon in at_work(self))

    @property
    def written_per_second(self) -> float:
        """How many documents all daemons write or delete."""
        return sum(daemon.written_per_second for daemon in at_work(self))


def at_work(stored: Stored) -> tuple[Daemon, ...]:
    """Return the daemons that report."""
    return tuple(daemon for daemon in stored.daemons if not daemon.is_silent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Elasticsearch's answer: documents by index, as of its last refresh; faults by index; what each alias leads to."""

    counts: Mapping[str, int] = field(default_factory=dict)
    faults: Mapping[str, IndexFault] = field(default_factory=dict)
    searched: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How syncer is doing.

    ``servers`` are those that were asked, and Kafka, if it is used, as daemons report it. ``stored`` is None if
    Postgres has never answered.
    """

    at: float
    servers: tuple[Server, ...]
    stored: Stored | None
    documents: tuple[DocumentStatus, ...]

    @property
    def silent(self) -> frozenset[str]:
        """The servers that do not answer; their figures are old, or unknown."""
        return frozenset(server.server for server in self.servers if server.error is not None)

    @property
    def outbox_lag_seconds(self) -> float:
        """The age of the oldest committed change that the leader has not read; 0 if there is none."""
        return self._age(None if self.stored is None else self.stored.outbox_since)

    @property
    def topic_lag_seconds(self) -> float:
        """The age of the oldest change that was read and is not handled; 0 if there is none."""
        return self._age(None if self.stored is None else self.stored.topic_since)

    @property
    def lag_seconds(self) -> float:
        """The greatest lag of a document, or of a change in flight."""
        documents = (document.lag_seconds for document in self.documents)
        return max(self.outbox_lag_seconds, self.topic_lag_seconds, *documents)

    def _age(self, since: float | None) -> float:
        return 0.0 if since is None else max(0.0, self.at - since)


class Reader:
    """Reads the status, again and again. Safe to share between threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._turn = threading.Lock()
        self._postgres = _Asked[Stored](POSTGRES)
        self._elasticsearch = _Asked[Held](ELASTICSEARCH)
        self._link = Link(self._connect)
        self._client: Elasticsearch | None = None
        self._last: tuple[float, Status] | None = None

    def read(self, *, asks_elasticsearch: bool = True) -> Status:
        """Ask the servers; a reading of the last second is returned again.

        Without ``asks_elasticsearch`` its last answer stays. An index that is searched all the time refreshes all the
        time, so nothing should search it that no one waits for.
        """
        with self._turn:
            if self._last is None or time.monotonic() - self._last[0] >= FRESH_SECONDS:
                status = self._read(asks_elasticsearch=asks_elasticsearch)
                if not asks_elasticsearch:
                    return status
                self._last = time.monotonic(), status
            return self._last[1]

    def close(self) -> None:
        """Close the connections that no question is using."""
        if not self._postgres.is_pending:
            self._link.close()
        if not self._elasticsearch.is_pending and self._client is not None:
            self._client.close()

    def _read(self, *, asks_elasticsearch: bool) -> Status:
        """Ask Postgres, then perhaps Elasticsearch, and combine their last answers, as of now."""
        began = time.monotonic()
        servers = [self._postgres.ask(self._ask_postgres, POSTGRES_SECONDS)]
        stored = self._postgres.last_answer
        # By the database's clock, also while it does not answer.
        as_of = stored.at + (servers[0].age_seconds or 0.0) if stored else time.time()
        documents = stored.documents if stored else ()
        seconds_left = ALL_SECONDS - (time.monotonic() - began)
        if asks_elasticsearch:
            servers.append(self._elasticsearch.ask(lambda: self._ask_elasticsearch(documents), seconds_left))
        if self._settings.kafka.is_used:
            servers.insert(1, _kafka(stored if servers[0].error is None else None))
        holdings = self._elasticsearch.last_answer or Held()
        status = Status(at=as_of, servers=tuple(servers), stored=stored, documents=())
        combined = [_combined(document, as_of, status.lag_seconds, holdings) for document in documents]
        return replace(status, documents=tuple(combined))

    # In a thread of the question

    def _ask_postgres(self) -> Stored:
        try:
            with self._link.used() as connection:
                return ask_postgres(connection)
        except psycopg.OperationalError as error:
            # Postgres may have been away since the last question: only a new connection shows whether it is now.
            if not is_away(error):
                raise
            with self._link.used() as connection:
                return ask_postgres(connection)

    def _connect(self) -> Connection:
        connection = postgres.connect(self._settings.postgres, name="status")
        with postgres.closed_on_error(connection):
            connection.execute(_SESSION)
            migrations.require_current(connection)
        return connection

    def _ask_elasticsearch(self, documents: Sequence[DocumentStatus]) -> Held:
        if self._client is None:
            # A request that hangs ends soon after it is given up, so that the next one can be sent.
            self._client = elastic.connect(self._settings.elasticsearch, timeout_seconds=ALL_SECONDS)
        return ask_elasticsearch(self._client, documents)


def _combined(document: DocumentStatus, as_of: float, in_flight_seconds: float, holdings: Held) -> DocumentStatus:
    """Return the document with its lag, and with what Elasticsearch holds; its current index first."""
    held_back_seconds = 0.0 if document.held_back_since is None else as_of - document.held_back_since
    return replace(
        document,
        lag_seconds=max(in_flight_seconds, held_back_seconds),
        targets={index: holdings.counts.get(index) for index in sorted(document.roles, key=document.current.__ne__)},
        faults={index: holdings.faults[index] for index in document.roles if index in holdings.faults},
        searched=holdings.searched.get(document.index),
    )


class _Asked(Generic[_Answer]):
    """Asks one server, in threads of their own, one at a time: one that hangs is not waited for any longer."""

    def __init__(self, server: str) -> None:
        self.last_answer: _Answer | None = None
        self._server = server
        self._answered_at: float | None = None
        self._silent_since: float | None = None
        self._pending: Future[_Answer] | None = None

    @property
    def is_pending(self) -> bool:
        """Whether a question has no answer yet."""
        return self._pending is not None and not self._pending.done()

    def ask(self, question: Callable[[], _Answer], seconds: float) -> Server:
        """Ask, and wait so long for the answer; one that comes later is dropped, and asked for again."""
        began, message, hint, detail = time.monotonic(), None, "", ""
        if self._pending is not None and not self._pending.done():
            seconds = _AGAIN_SECONDS
        else:
            self._pending = Future()
            # Not a thread of an executor: the process would wait for it when it ends.
            threading.Thread(target=_run, args=(question, self._pending), name="status", daemon=True).start()
        try:
            self.last_answer = self._pending.result(seconds)
            self._answered_at, self._silent_since = time.monotonic(), None
        except Exception as error:  # noqa: BLE001 - a server's failure must not hide what the other answers
            self._silent_since = self._silent_since or began
            message, hint = describe(self._server, error)
            detail = "" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"[:2000]
        now = time.monotonic()
        return Server(
            server=self._server,
            error=message,
            hint=hint,
            detail=detail,
            silent_seconds=0.0 if self._silent_since is None else now - self._silent_since,
            age_seconds=None if self._answered_at is None else now - self._answered_at,
        )


def _run(question: Callable[[], _Answer], pending: Future[_Answer]) -> None:
    try:
        pending.set_result(question())
    except BaseException as error:  # noqa: BLE001 - it is raised where the answer is waited for
        pending.set_exception(error)


def late(server: str) -> str:
    """Return the sentence for a server that has not answered in time, which may mean anything."""
    return f"{server.title()} has not answered"


def describe(server: str, error: Exception) -> tuple[str, str]:
    """Say why a server does not answer, as a sentence without a full stop, and what to do."""
    name = server.title()
    if isinstance(error, TimeoutError | ConnectionTimeout):
        return late(server), _LATE
    if refused := _ADDRESS.search(f"{error} {getattr(error, 'message', '')}"):
        hint = f"Start it, or correct {_SETTINGS.get(server, 'its address')} if it is elsewhere. {_RETRIED}"
        return f"{name} refuses connections at {refused[1]}:{refused[2]}", hint
    explained = explain(error)
    message = " ".join((explained.message if explained else repr(error)).split())
    return f"{name} is not usable: {message}", (explained and explained.hint) or _RETRIED


def ask_postgres(connection: Connection) -> Stored:
    """Query Postgres."""
    ((stored,),) = connection.execute(_STORED, prepare=True).fetchall()
    return replace(msgspec.convert(stored, Stored), jobs=tuple(unfinished(connection)))


def ask_elasticsearch(client: Elasticsearch, documents: Sequence[DocumentStatus]) -> Held:
    """Query Elasticsearch about the indices of these documents."""
    names = [name for document in documents for name in document.roles]
    if not names:
        client.info()  # it answers, though the indices are unknown
        return Held()
    searches: list[dict[str, Any]] = []
    for name in names:
        searches += [{"index": name}, {"size": 0, "track_total_hits": True, **elastic.product(client).search_options}]
    counts: dict[str, int] = {}
    faults: dict[str, IndexFault] = {}
    for name, response in zip(names, client.msearch(searches=searches).body["responses"], strict=True):
        fault = _FAULTS.get(response.get("status"))
        if fault and _KINDS.get(fault) in (None, response["error"]["type"]):
            faults[name] = fault
        elif "hits" not in response:
            continue
        # OpenSearch does not call a shard failed that has no copy.
        elif response["_shards"]["successful"] < response["_shards"]["total"]:
            faults[name] = IndexFault.SHARDS_AWAY
        else:
            counts[name] = response["hits"]["total"]["value"]
    searched = Holdings(client).searched(sorted({document.index for document in documents}))
    return Held(counts=counts, faults=faults, searched={alias: tuple(names) for alias, names in searched.items()})


def _kafka(stored: Stored | None) -> Server:
    """Kafka, as daemons report it."""
    troubles = [trouble for daemon in (at_work(stored) if stored else ()) for trouble in daemon.troubles]
    of_kafka = [trouble for trouble in troubles if trouble.server == KAFKA]
    if not of_kafka:
        return Server(server=KAFKA, error=None, age_seconds=0.0)
    longest = max(of_kafka, key=lambda trouble: trouble.seconds)
    silent = longest.seconds
    return Server(server=KAFKA, error=longest.error, hint=longest.hint, silent_seconds=silent, age_seconds=silent)
