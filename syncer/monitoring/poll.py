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
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import structlog
from elasticsearch import Elasticsearch

from syncer.base import metrics
from syncer.base.collectors import Values
from syncer.base.lifecycle import Stop, Stopping
from syncer.base.postgres import Connection
from syncer.base.settings import Settings
from syncer.documents.registry import Catalogue
from syncer.elasticsearch.reader import Holdings
from syncer.kafka.topic import Observer
from syncer.monitoring import gauges, outage, status
from syncer.monitoring.history import History, Sample
from syncer.monitoring.server_poll import ServerPoll
from syncer.monitoring.status import Flow, Held, Overview, Server, Stored

PATIENCE_SECONDS = 10.0
"""How long to wait for an answer; a later one is taken in the next turn."""
_REST_PER_WORK = 10
_REST_SECONDS_MAX = 30.0
_WATCHED_EVERY_SECONDS = 1.0
_WATCHED_SECONDS = 15.0
_STATEMENT_TIMEOUT = "SET statement_timeout = '10s'"


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
        settings: Where the servers are, the interval, and the lag that is too much.
        connect: Opens a connection to Postgres, in which the syncer schema is complete.
        observe: Opens an observer of Kafka, if it is used.
        search: Opens a client of Elasticsearch.
        patience_seconds: How long to wait for an answer.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        connect: Callable[[], Connection],
        observe: Callable[[], Observer],
        search: Callable[[], Elasticsearch],
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self.components: tuple[str, ...] = ()
        """The names of this daemon's components, whose heartbeats are shown."""
        self.needs: frozenset[Server] = frozenset(Server)
        """The servers that the components use."""
        self.patience_seconds = patience_seconds
        self.history = History()
        self.latest: Polled | None = None
        """The last reading; None before the first."""
        self._settings = settings.metrics
        self._connect = connect
        self._catalogue = Catalogue()
        places = outage.places(settings)
        self._postgres = ServerPoll[Connection, Stored](Server.POSTGRES, self._connected, places[Server.POSTGRES])
        self._kafka = (
            ServerPoll[Observer, bool](Server.KAFKA, observe, places[Server.KAFKA]) if settings.kafka.is_used else None
        )
        self._elasticsearch = ServerPoll[Elasticsearch, Held | None](
            Server.ELASTICSEARCH, search, places[Server.ELASTICSEARCH]
        )
        self._stored: Stored | None = None
        self._held: Held | None = None
        self._clock_offset: float | None = None
        self._lags_since: float | None = None
        self._stop = Stop()
        self._woken = threading.Event()
        self._watched_until = -math.inf
        self._log = structlog.get_logger()

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
        stop, patience = self._stop, self.patience_seconds
        self._postgres.ask(self._ask_postgres)
        if self._kafka is not None:
            self._kafka.ask(Observer.has_topic)
        answers = [self._postgres.take(stop, patience)]
        self._stored = self._postgres.answer or self._stored
        self._elasticsearch.ask(partial(_ask_elasticsearch, self._stored))
        if self._kafka is not None:
            answers.append(self._kafka.take(stop, patience))
        answers.append(self._elasticsearch.take(stop, patience))
        self._held = _about(self._stored, self._elasticsearch.answer or self._held)
        overview = status.put_together(answers, self._stored, self._held, at=self._now())
        before = self.latest
        rates = None if before is None else status.rates(before.overview, overview)
        self.latest = Polled(monotonic_at=time.monotonic(), overview=overview, rates=rates)
        self.history.add(_sample(self.latest))
        metrics.POLLED.show(self._values(overview))
        self._judge(overview.lag_seconds)
        return self.latest

    def watch(self) -> None:
        """Poll every second for a while, since a client is watching."""
        was_watched = self._is_watched()
        self._watched_until = time.monotonic() + _WATCHED_SECONDS
        if not was_watched:
            self._woken.set()

    def close(self) -> None:
        """Close the connections; the next turn opens new ones. Queries that hang are abandoned."""
        self._postgres.close()
        if self._kafka is not None:
            self._kafka.close()
        self._elasticsearch.close()

    def _now(self) -> float:
        """The time by Postgres's clock; while it is silent, as far as this process's clock has gone on since."""
        if self._postgres.answer is not None:
            self._clock_offset = self._postgres.answer.at - time.monotonic()
        return time.time() if self._clock_offset is None else time.monotonic() + self._clock_offset

    # Polling, in background threads

    def _connected(self) -> Connection:
        connection = self._connect()
        self._catalogue.forget()  # it may be another database, or an earlier state of this one
        connection.execute(_STATEMENT_TIMEOUT)
        return connection

    def _ask_postgres(self, connection: Connection) -> Stored:
        return status.ask_postgres(connection, self._catalogue)

    # Between two readings

    def _is_watched(self) -> bool:
        return time.monotonic() < self._watched_until

    def _rest(self, began: float, least: float) -> None:
        """Wait for the next turn, at least `least` seconds."""
        seconds = self._settings.seconds
        while not self._stop.is_requested:
            every = min(_WATCHED_EVERY_SECONDS, seconds) if self._is_watched() else seconds
            left = began + max(every, least) - time.monotonic()
            if left <= 0:
                return
            self._woken.wait(min(left, seconds))
            self._woken.clear()

    # Interpreting

    def _judge(self, lag_seconds: float) -> None:
        """Log when the lag begins to exceed the limit, and when it no longer does."""
        most = self._settings.lag_seconds_max
        now = time.monotonic()
        if lag_seconds > most and self._lags_since is None:
            self._lags_since = now
            self._log.warning("lag.exceeded", lag_seconds=round(lag_seconds, 3), lag_seconds_max=most)
        elif lag_seconds <= most and self._lags_since is not None:
            since, self._lags_since = self._lags_since, None
            self._log.info("lag.recovered", lag_seconds=round(lag_seconds, 3), seconds=round(now - since, 3))

    def _values(self, seen: Overview) -> Values:
        """The metrics of this turn: without those of a server that did not answer in it."""
        stored = self._postgres.answer
        held = _about(stored, self._elasticsearch.answer)
        beats: dict[tuple[str, ...], float] = {
            (name,): at for name in self.components if (at := self._beat_at(name)) is not None
        }
        values = gauges.of_poll(seen) | {metrics.BEAT: beats}
        if stored is not None:
            values |= gauges.of_postgres(stored, topic_lag_seconds=seen.topic_lag_seconds) | gauges.of_jobs(stored)
            for one in stored.active:
                metrics.know(one.name)
        if stored is not None and held is not None:
            values |= gauges.of_elasticsearch(stored, held, seen.documents)
        return values

    def _beat_at(self, component: str) -> float | None:
        """The last heartbeat of a component, in Unix time: now, if it waits for a query that may take any time."""
        at = time.monotonic() if self._stop.waits_for(component) else self._stop.beat_at(component)
        return None if at is None else time.time() - (time.monotonic() - at)


def _ask_elasticsearch(stored: Stored | None, client: Elasticsearch) -> Held | None:
    if stored is None:
        client.info()  # checks that it answers, though the indices are unknown
        return None
    return status.ask_elasticsearch(Holdings(client), stored.active)


def _about(known: Stored | None, held: Held | None) -> Held | None:
    """Elasticsearch's answer, unless it is about other indices: it may belong to an earlier turn."""
    if known is None or held is None:
        return None
    return held if held.counts.keys() == {one.index_name for one in known.active} else None


def _sample(polled: Polled) -> Sample:
    seen, rates = polled.overview, polled.rates
    # While Postgres is silent the lag is unknown: changes may have been committed since.
    is_known = seen.stored is not None and Server.POSTGRES not in seen.silent
    return Sample(
        at=time.time(),
        lag_seconds=seen.lag_seconds if is_known else None,
        captured_per_second=None if rates is None else rates.captured,
        written_per_second=None if rates is None else rates.written,
    )
