"""Poller: polls the servers every few seconds, for metrics, the status page and health.

One reading is a `Polled`. The poller keeps the last one, and a `Sample` of each in its `History`.

Guarantees: it writes nothing and holds no lock. It takes at most a tenth of the time, or rests half a minute. A server
that is down, hangs or refuses is reported as such. Its last answer is kept, and the others' answers stay current. It
neither ends the daemon nor keeps it from ending.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import structlog
from elasticsearch import Elasticsearch

from syncer.base import events, metrics, migrations
from syncer.base.collectors import Values
from syncer.base.error_policy import explain, kind
from syncer.base.errors import UnavailableError
from syncer.base.lifecycle import Stop, Stopping
from syncer.base.model import Change
from syncer.base.postgres import Connection
from syncer.base.settings import KafkaSettings, MetricsSettings
from syncer.documents.registry import Catalogue
from syncer.elasticsearch.reader import Holdings
from syncer.kafka import records
from syncer.kafka.records import Record
from syncer.kafka.topic import Observer
from syncer.monitoring import background_query, gauges, outage, status
from syncer.monitoring.background_query import BackgroundQuery
from syncer.monitoring.history import History, Sample
from syncer.monitoring.outage import Addresses
from syncer.monitoring.status import Flow, Held, Overview, Queued, Server, ServerAnswer, Stored

_REST_PER_WORK = 10
_LOOKED_AT_SECONDS = 1.0
_WATCHED_SECONDS = 15.0
_REST_SECONDS_MAX = 30.0
_BRIEF_SECONDS = 2.0
_LOOK_SECONDS = 1.0
_OTHERS_SECONDS = 60.0
_DETAIL_CHARACTERS_MAX = 2000
_STATEMENT_TIMEOUT = "SET statement_timeout = '10s'"
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """One reading.

    Args:
        monotonic_at: Its time, by this process's monotonic clock.
        overview: What the servers said last.
        rates: The throughput at each place since the previous reading; None if a server was silent at either.
    """

    monotonic_at: float
    overview: Overview
    rates: Flow | None


class Poller:
    """Polls the servers and keeps the answers. What it keeps is frozen, and safe to read from any thread.

    Args:
        connect: Opens a connection to Postgres.
        observe: Opens an observer of Kafka.
        search: Opens a client of Elasticsearch.
        settings: The interval, and the lag that is too much.
        kafka: Reads single records of the topic; without it, their age is unknown.
        addresses: Where the servers listen, to say why one does not answer.
        patience_seconds: How long to wait for an answer; a later one is taken at the next turn.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], Connection],
        observe: Callable[[], Observer],
        search: Callable[[], Elasticsearch],
        settings: MetricsSettings | None = None,
        kafka: KafkaSettings | None = None,
        addresses: Addresses | None = None,
        patience_seconds: float | None = None,
    ) -> None:
        self._connect = connect
        self._observe = observe
        self._search = search
        self._settings = settings or MetricsSettings()
        self._addresses = addresses or {}
        self._patience_seconds = patience_seconds
        self._topic = _TopicReader(kafka)
        self.components: tuple[str, ...] = ()
        """The names of this daemon's components, whose heartbeats are shown."""
        self.needs: frozenset[Server] = frozenset(Server)
        """The servers that the components use."""
        self._stop = Stop()
        self._woken = threading.Event()
        self._connection: Connection | None = None
        self._catalogue = Catalogue()
        self._observer: Observer | None = None
        self._client: Elasticsearch | None = None
        self._stored: Stored | None = None
        self._queued: Queued | None = None
        self._held: Held | None = None
        self._answered_at: dict[Server, float] = {}
        self._clock_offset: float | None = None
        self._latest: Polled | None = None
        self._watched_until = -math.inf
        self._postgres = BackgroundQuery[Stored](Server.POSTGRES)
        self._kafka = BackgroundQuery[Queued](Server.KAFKA)
        self._elasticsearch = BackgroundQuery[Held | None](Server.ELASTICSEARCH)
        self._failures: dict[Server, str] = {}
        self._lags_since: float | None = None
        self._log = structlog.get_logger()
        self.history = History()

    @property
    def latest(self) -> Polled | None:
        """The last reading; None before the first."""
        return self._latest

    def run(self, stop: Stop) -> None:
        """Poll until told to stop."""
        self._stop = stop
        stop.call(self._woken.set)
        try:
            while not stop.is_requested:
                began = time.monotonic()
                servers = self.run_once().overview.servers
                work = sum(one.seconds for one in servers if one.error is None)
                self._rest(began, min(_REST_PER_WORK * work, _REST_SECONDS_MAX))
        except Stopping:
            pass
        finally:
            self.close()

    def run_once(self) -> Polled:
        """Poll each server once; keep the answers and export them as metrics.

        Raises:
            Stopping: It was told to stop while a server hung.
        """
        answers: list[ServerAnswer] = []
        self._postgres.ask(self._ask_postgres)
        self._kafka.ask(self._ask_kafka)
        known = self._answered(Server.POSTGRES, self._postgres, answers)
        self._stored = known or self._stored
        self._elasticsearch.ask(partial(self._ask_elasticsearch, self._stored))
        queued = self._answered(Server.KAFKA, self._kafka, answers)
        self._queued = queued or self._queued
        held = self._answered(Server.ELASTICSEARCH, self._elasticsearch, answers)
        self._held = _about(self._stored, held or self._held)
        overview = status.put_together(answers, self._stored, self._queued, self._held, at=self._now(known))
        before = self._latest
        polled = Polled(
            monotonic_at=time.monotonic(),
            overview=overview,
            rates=None if before is None else status.rates(before.overview, overview),
        )
        self.history.add(_sample(polled, before))
        self._latest = polled
        metrics.POLLED.show(self._values(overview, known, queued, _about(known, held)))
        self._judge(overview.lag_seconds)
        return polled

    def watch(self) -> None:
        """Poll every second for a while, since a client is watching."""
        was_watched = self._is_watched()
        self._watched_until = time.monotonic() + _WATCHED_SECONDS
        if not was_watched:
            self._woken.set()

    def close(self) -> None:
        """Close the connections; the next turn opens new ones. Queries that hang are abandoned."""
        if not self._postgres.is_open and self._connection is not None:
            self._connection.close()
        if not self._kafka.is_open and self._observer is not None:
            self._observer.close()
        if not self._elasticsearch.is_open and self._client is not None:
            self._client.close()
        self._connection, self._observer, self._client = None, None, None
        for question in (self._postgres, self._kafka, self._elasticsearch):
            question.close()

    def _now(self, known: Stored | None) -> float:
        """The time by Postgres's clock; while it is silent, as far as this process's clock has gone on since."""
        if known is not None:
            self._clock_offset = known.at - time.monotonic()
        return time.time() if self._clock_offset is None else time.monotonic() + self._clock_offset

    # Polling

    def _answered(
        self, server: Server, question: BackgroundQuery[_Result], answers: list[ServerAnswer]
    ) -> _Result | None:
        """A server's answer; None if it does not answer, or the query fails."""
        result, said, hint, detail = None, None, "", ""
        try:
            result = self._waited_for(server, question)
            self._failures.pop(server, None)
            self._answered_at[server] = time.monotonic()
        except Stopping:
            raise
        except Exception as error:  # noqa: BLE001 - one server's failure must not stop the others
            self._note_failure(server, error)
            said, hint = outage.describe(server, error, self._addresses)
            detail = f"{type(error).__name__}: {error}"[:_DETAIL_CHARACTERS_MAX]
            if not question.is_open:
                self._let_go(server)
        answers.append(
            ServerAnswer(
                server=server,
                error=said,
                hint=hint,
                detail=detail,
                seconds=question.seconds,
                age_seconds=time.monotonic() - at if (at := self._answered_at.get(server)) else None,
            )
        )
        return result

    def _waited_for(self, server: Server, question: BackgroundQuery[_Result]) -> _Result:
        """A server's answer; one that no connection opens to is waited for only briefly.

        Raises:
            UnavailableError: There is no answer in time.
            Stopping: It was told to stop.
            Exception: The error that the query raised.
        """
        patience = self._patience_seconds or background_query.PATIENCE_SECONDS
        try:
            return question.answer(is_over=lambda: self._stop.is_requested, seconds=min(_BRIEF_SECONDS, patience))
        except UnavailableError:
            if not question.is_open or outage.refusals(self._addresses.get(server, ())):
                raise
            return question.answer(is_over=lambda: self._stop.is_requested, seconds=patience)

    def _note_failure(self, server: Server, error: Exception) -> None:
        """Log a failure if it is unexpected: the other components log that a server is down."""
        what = kind(error)
        if explain(error) is None and self._failures.get(server) != what:
            self._log.error(events.POLL_FAILED, server=server, error=repr(error), exc_info=error)
        self._failures[server] = what

    def _let_go(self, server: Server) -> None:
        """Close the connection to a server, so that the next turn reconnects; Kafka's client does so by itself."""
        if server is Server.POSTGRES and self._connection is not None:
            self._connection.close()
            self._connection = None
        elif server is Server.ELASTICSEARCH and self._client is not None:
            self._client.close()
            self._client = None

    def _ask_postgres(self) -> Stored:
        if self._connection is None:
            self._connection = self._connect()
            self._catalogue.forget()  # it may be another database, or an earlier state of this one
            self._connection.execute(_STATEMENT_TIMEOUT)
            migrations.require_current(self._connection)
        return status.ask_postgres(self._connection, self._catalogue)

    def _ask_kafka(self) -> Queued:
        if self._observer is None:
            self._observer = self._observe()
        return self._topic.looked_into(status.ask_kafka(self._observer))

    def _ask_elasticsearch(self, known: Stored | None) -> Held | None:
        if self._client is None:
            self._client = self._search()
        if known is None:
            self._client.info()  # checks that it answers, though the indices are unknown
            return None
        return status.ask_elasticsearch(Holdings(self._client), known.active)

    # Between two readings

    def _is_watched(self) -> bool:
        return time.monotonic() < self._watched_until

    def _rest(self, began: float, least: float) -> None:
        """Wait for the next turn, at least `least` seconds."""
        while not self._stop.is_requested:
            every = min(_LOOKED_AT_SECONDS, self._settings.seconds) if self._is_watched() else self._settings.seconds
            left = began + max(every, least) - time.monotonic()
            if left <= 0:
                return
            self._woken.wait(min(left, self._settings.seconds))
            self._woken.clear()

    # Interpreting

    def _judge(self, lag_seconds: float) -> None:
        """Log when the lag begins to exceed the limit, and when it no longer does."""
        most = self._settings.lag_seconds_max
        now = time.monotonic()
        if lag_seconds > most and self._lags_since is None:
            self._lags_since = now
            self._log.warning(events.LAG_EXCEEDED, lag_seconds=round(lag_seconds, 3), lag_seconds_max=most)
        elif lag_seconds <= most and self._lags_since is not None:
            since, self._lags_since = self._lags_since, None
            self._log.info(events.LAG_RECOVERED, lag_seconds=round(lag_seconds, 3), seconds=round(now - since, 3))

    def _values(self, seen: Overview, known: Stored | None, queued: Queued | None, held: Held | None) -> Values:
        beats: dict[tuple[str, ...], float] = {
            (name,): at for name in self.components if (at := self._beat_at(name)) is not None
        }
        values = gauges.of_poll(seen) | {metrics.BEAT: beats}
        if known is not None:
            values |= gauges.of_postgres(known) | gauges.of_jobs(known)
            for one in known.active:
                metrics.know(one.name)
        if queued is not None:
            values |= gauges.of_kafka(queued, lag_seconds=seen.topic_lag_seconds)
        if known is not None and held is not None:
            values |= gauges.of_elasticsearch(known, held, seen.documents)
        return values

    def _beat_at(self, component: str) -> float | None:
        """The last heartbeat of a component, in Unix time: now, if it waits for a query that may take any time."""
        at = time.monotonic() if self._stop.waits_for(component) else self._stop.beat_at(component)
        return None if at is None else time.time() - (time.monotonic() - at)


def _about(known: Stored | None, held: Held | None) -> Held | None:
    """Elasticsearch's answer, unless it is about other indices: it may belong to an earlier turn."""
    if known is None or held is None:
        return None
    return held if held.counts.keys() == {one.index_name for one in known.active} else None


def _sample(now: Polled, before: Polled | None) -> Sample:
    seen = now.overview
    stored = None if Server.POSTGRES in seen.silent else seen.stored
    queued = None if Server.KAFKA in seen.silent else seen.queued
    published = handled = None
    if before is not None and queued is not None and Server.KAFKA not in before.overview.silent:
        then = before.overview.queued.partitions if before.overview.queued else ()
        seconds = max(now.monotonic_at - before.monotonic_at, 0.001)
        published = _grown([one.end for one in then], [one.end for one in queued.partitions], seconds)
        handled = _grown([one.committed for one in then], [one.committed for one in queued.partitions], seconds)
    return Sample(
        at=time.time(),
        # Unknown while Postgres is silent: changes may have been committed since. Likewise before Kafka's first answer.
        lag_seconds=None if stored is None or seen.queued is None else seen.lag_seconds,
        outbox_waiting=None if stored is None else stored.outbox_waiting,
        topic_waiting=None if queued is None else queued.waiting,
        published_per_second=published,
        handled_per_second=handled,
        refreshed_per_second=None if stored is None else sum(one.documents_per_second or 0.0 for one in stored.jobs),
        captured_per_second=None if now.rates is None else now.rates.captured,
        written_per_second=None if now.rates is None else now.rates.written,
    )


def _grown(before: Sequence[int], now: Sequence[int], seconds: float) -> float:
    """The growth per second. Negative growth counts as none: a topic may have been recreated."""
    return max(0, sum(now) - sum(before)) / seconds


class _TopicReader:
    """Reads single records of the topic: the oldest that waits in each partition, and those of another database.

    A record is read once, however long it waits.
    """

    def __init__(self, settings: KafkaSettings | None) -> None:
        self._settings = settings
        self._made: dict[tuple[int, int], float] = {}
        self._other = ""
        self._looked_at = -math.inf

    def looked_into(self, queued: Queued) -> Queued:
        """Kafka's answer, with the time of the oldest change that waits, and another installation if one is seen."""
        if self._settings is None:
            return queued
        extents = {one.partition: one.extent for one in queued.partitions}
        if time.monotonic() - self._looked_at >= _OTHERS_SECONDS:
            self._other = records.other_installation(self._settings, extents, seconds=_LOOK_SECONDS)
            self._looked_at = time.monotonic()
        first = {(one.partition, max(one.begin, one.committed)): one for one in queued.partitions if one.records}
        unread = [one for place, one in first.items() if place not in self._made]
        read = records.first_waiting(self._settings, unread, seconds=_LOOK_SECONDS) if unread else []
        made = {(one.partition, one.offset): at for one in read if (at := _made_at(one)) is not None}
        self._made = {place: at for place, at in (self._made | made).items() if place in first}
        return replace(queued, oldest_at=min(self._made.values(), default=None), other_installation=self._other)


def _made_at(record: Record) -> float | None:
    """The time of a change; None if the record is not a change."""
    try:
        return Change.parse(record.value).changed_at
    except ValueError:
        return None
