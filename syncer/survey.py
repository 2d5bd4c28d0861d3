"""Survey: asks the servers every few seconds how syncer is doing, for who watches it: metrics, status page, health.

One reading is a `Surveyed`; the last is kept, and of those of ten minutes a `Sample` each. Guarantees: it writes
nothing, holds no lock, and takes no more than a tenth of the time, or half a minute's rest; a server that is away,
hangs or refuses is noted as such, what the others say is shown all the same, and neither ends the daemon nor keeps it
from ending.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TypeVar

import elasticsearch
import structlog
from elasticsearch import Elasticsearch

from syncer import events, gauges, metrics, overview, schema
from syncer.asking import Question
from syncer.collectors import Values
from syncer.gauges import Known
from syncer.holdings import Holdings
from syncer.lifecycle import Stop, Stopping
from syncer.overview import Held, Overview, Queued, Rates
from syncer.policy import explain, kind
from syncer.postgres import Connection
from syncer.searchable import Searchable
from syncer.settings import MetricsSettings
from syncer.topic import Observer, PartitionLag
from syncer.verification import Verification

HISTORY_SECONDS = 600.0
"""How far back the history goes."""
_REST_PER_WORK = 10
_LOOKED_AT_SECONDS = 1.0
_WATCHED_SECONDS = 15.0
_SAMPLES_MAX = 1200
_REST_SECONDS_MAX = 30.0
_ENDS_MAX = 500
_STATEMENT_TIMEOUT = "SET statement_timeout = '10s'"
_Result = TypeVar("_Result")


class Server(StrEnum):
    """Who is asked."""

    POSTGRES = "postgres"
    KAFKA = "kafka"
    ELASTICSEARCH = "elasticsearch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What has come of asking one server.

    Args:
        server: Which.
        error: Why it has not answered; None if it has.
        seconds: How long it took.
    """

    server: Server
    error: str | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """One reading.

    Args:
        at: When, in Unix time.
        monotonic_at: When, by this process's monotonic clock.
        answers: What has come of asking each server.
        lag_seconds: How far documents may be behind: the age of the oldest change in the outbox, or for how long the
            oldest record has waited in the topic, as far back as was looked; None if that was not said.
        partitions: How far the workers are behind in each partition; empty if Kafka did not say.
        verifications: What the last `syncer verify` of each document has found.
        overview: The last one for which every server has answered; None if there was none yet.
        overview_at: When that was, in Unix time.
        rates: What has passed each place since the reading before, if every server has answered to both.
    """

    at: float
    monotonic_at: float
    answers: tuple[Answer, ...]
    lag_seconds: float | None
    partitions: tuple[PartitionLag, ...]
    verifications: tuple[Verification, ...]
    overview: Overview | None
    overview_at: float | None
    rates: Rates | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What a plot shows of one reading; None where a server did not answer, or there is nothing to compare with.

    Args:
        at: When, in Unix time.
        lag_seconds: As in `Surveyed`.
        outbox_waiting: Committed changes that are not published.
        topic_waiting: Published changes that no worker has done.
        published_per_second: Changes, since the reading before, by all daemons.
        handled_per_second: Likewise, by all workers.
        refreshed_per_second: Documents of jobs, over the last seconds, by all refreshers.
        captured_per_second: Changes that triggers have written to the outbox, since the reading before.
        written_per_second: Documents that Elasticsearch has written or deleted, for whomever, likewise.
    """

    at: float
    lag_seconds: float | None
    outbox_waiting: int | None
    topic_waiting: int | None
    published_per_second: float | None
    handled_per_second: float | None
    refreshed_per_second: float | None
    captured_per_second: float | None
    written_per_second: float | None


class Survey:
    """Asks, and keeps what was said. What it keeps is frozen, and safe to read from any thread.

    Args:
        connect: Opens a connection to Postgres.
        observe: Opens what asks Kafka.
        search: Opens Elasticsearch.
        settings: How often, and what lag is too much.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], Connection],
        observe: Callable[[], Observer],
        search: Callable[[], Elasticsearch],
        settings: MetricsSettings | None = None,
    ) -> None:
        self._connect = connect
        self._observe = observe
        self._search = search
        self._settings = settings or MetricsSettings()
        self.stages: tuple[str, ...] = ()
        """The names of this daemon's stages, whose beats are shown."""
        self.needs: frozenset[Server] = frozenset(Server)
        """The servers that they work with."""
        self._stop = Stop()
        self._woken = threading.Event()
        self._connection: Connection | None = None
        self._observer: Observer | None = None
        self._client: Elasticsearch | None = None
        self._ends = _Ends()
        self._latest: Surveyed | None = None
        self._watched_until = -math.inf
        # Turns may be shorter than a second only where somebody wants them to be.
        self._history: deque[Sample] = deque(maxlen=_SAMPLES_MAX)
        self._postgres = Question[Known](Server.POSTGRES)
        self._kafka = Question[Queued](Server.KAFKA)
        self._elasticsearch = Question[Held | None](Server.ELASTICSEARCH)
        self._failures: dict[Server, str] = {}
        self._lags_since: float | None = None
        self._log = structlog.get_logger()
        self.searchable = Searchable(seconds=self._settings.searchable_seconds, wake=self._woken.set)
        """To be offered what workers have written."""

    @property
    def latest(self) -> Surveyed | None:
        """The last reading; None before the first."""
        return self._latest

    @property
    def history(self) -> tuple[Sample, ...]:
        """The readings of the last ten minutes, the oldest first."""
        return tuple(self._history)

    def run(self, stop: Stop) -> None:
        """Ask until told to stop."""
        self._stop = stop
        stop.call(self._woken.set)
        try:
            while not stop.is_requested:
                began = time.monotonic()
                answers = self.run_once().answers
                work = sum(one.seconds for one in answers if one.error is None)
                self._rest(began, min(_REST_PER_WORK * work, _REST_SECONDS_MAX))
        except Stopping:
            pass
        finally:
            self.close()

    def run_once(self) -> Surveyed:
        """Ask each server once, and keep and show what was said.

        Raises:
            Stopping: It was told to stop while a server hangs.
        """
        answers: list[Answer] = []
        self._postgres.ask(self._ask_postgres)
        self._kafka.ask(self._ask_kafka)
        known = self._answered(Server.POSTGRES, self._postgres, answers)
        self._elasticsearch.ask(partial(self._ask_elasticsearch, known))
        queued = self._answered(Server.KAFKA, self._kafka, answers)
        held = _about(known, self._answered(Server.ELASTICSEARCH, self._elasticsearch, answers))
        if queued is not None:
            self._ends.note(queued.partitions)
        surveyed = self._surveyed(answers, known, queued, held)
        self._remember(_sample(surveyed, self._latest, known, queued))
        self._latest = surveyed
        metrics.SURVEYED.show(self._values(surveyed, known, queued, held))
        self._judge(surveyed.lag_seconds)
        return surveyed

    def watch(self) -> None:
        """Somebody looks: for a while the servers are asked every second."""
        was_watched = self._is_watched()
        self._watched_until = time.monotonic() + _WATCHED_SECONDS
        if not was_watched:
            self._woken.set()

    def close(self) -> None:
        """Let go of the servers; the next turn reaches them again. What hangs is left to itself."""
        if not self._postgres.is_open and self._connection is not None:
            self._connection.close()
        if not self._elasticsearch.is_open and self._client is not None:
            self._client.close()
        self._connection, self._observer, self._client = None, None, None
        for question in (self._postgres, self._kafka, self._elasticsearch):
            question.close()

    def _surveyed(
        self, answers: Sequence[Answer], known: Known | None, queued: Queued | None, held: Held | None
    ) -> Surveyed:
        before, at = self._latest, time.time()
        whole = self._whole(known, queued, held)
        return Surveyed(
            at=at,
            monotonic_at=time.monotonic(),
            answers=tuple(answers),
            lag_seconds=self._lag_seconds(known, queued),
            partitions=() if queued is None else queued.partitions,
            verifications=() if known is None else known.verifications,
            overview=whole or (before.overview if before else None),
            overview_at=at if whole else (before.overview_at if before else None),
            rates=overview.rates(before.overview, whole) if whole and before and before.overview else None,
        )

    # Asking

    def _answered(self, server: Server, question: Question[_Result], answers: list[Answer]) -> _Result | None:
        """What a server says; None if it does not answer, or something is not as it should be."""
        result, said = None, None
        try:
            result = question.answer(is_over=lambda: self._stop.is_requested)
            self._failures.pop(server, None)
        except Stopping:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is: the others are asked all the same
            said = self._failed(server, error)
            if not question.is_open:
                self._let_go(server)
        answers.append(Answer(server=server, error=said, seconds=question.seconds))
        return result

    def _failed(self, server: Server, error: Exception) -> str:
        """What to say of a failure; what the servers do to all, the other stages log."""
        expected = explain(error)
        what = kind(error)
        if expected is None and self._failures.get(server) != what:
            self._log.error(events.SURVEY_FAILED, server=server, error=repr(error), exc_info=error)
        self._failures[server] = what
        return expected.message if expected else repr(error)

    def _let_go(self, server: Server) -> None:
        """Begin anew with a server; Kafka's client does so by itself."""
        if server is Server.POSTGRES and self._connection is not None:
            self._connection.close()
            self._connection = None
        elif server is Server.ELASTICSEARCH and self._client is not None:
            self._client.close()
            self._client = None

    def _ask_postgres(self) -> Known:
        if self._connection is None:
            self._connection = self._connect()
            self._connection.execute(_STATEMENT_TIMEOUT)
        schema.require_current(self._connection)
        return gauges.ask_postgres(self._connection)

    def _ask_kafka(self) -> Queued:
        if self._observer is None:
            self._observer = self._observe()
        return overview.ask_kafka(self._observer)

    def _ask_elasticsearch(self, known: Known | None) -> Held | None:
        if self._client is None:
            self._client = self._search()
        if known is None:
            self._client.info()  # whether it answers, though nobody knows which indices there are
            return None
        return overview.ask_elasticsearch(Holdings(self._client), known.stored.in_force)

    def _whole(self, known: Known | None, queued: Queued | None, held: Held | None) -> Overview | None:
        """What they say together; None if one of them says nothing."""
        if known is None or queued is None or held is None:
            return None
        lag_seconds = self._ends.oldest_seconds(queued.partitions)
        return overview.put_together(known.stored, queued, held, topic_lag_seconds=lag_seconds)

    # Between two readings

    def _is_watched(self) -> bool:
        return time.monotonic() < self._watched_until

    def _remember(self, sample: Sample) -> None:
        self._history.append(sample)
        while self._history[0].at < sample.at - HISTORY_SECONDS:
            self._history.popleft()

    def _rest(self, began: float, least: float) -> None:
        """Wait for the next turn, at least so long after the last one; meanwhile look for what workers have written."""
        while not self._stop.is_requested:
            every = min(_LOOKED_AT_SECONDS, self._settings.seconds) if self._is_watched() else self._settings.seconds
            left = began + max(every, least) - time.monotonic()
            if left <= 0:
                return
            pause = self._look()
            self._woken.wait(min(left, self._settings.seconds) if pause is None else min(left, pause))
            self._woken.clear()

    def _look(self) -> float | None:
        if self._client is None:
            return None
        try:
            return self.searchable.look(self._client)
        except (elasticsearch.ApiError, elasticsearch.TransportError):
            self.searchable.give_up()  # the next turn finds out who is away
            return None

    # What it means

    def _lag_seconds(self, known: Known | None, queued: Queued | None) -> float | None:
        if known is None or queued is None:
            return None
        return max(known.stored.outbox_lag_seconds, self._ends.oldest_seconds(queued.partitions))

    def _judge(self, lag_seconds: float | None) -> None:
        """Say when documents begin to be too far behind, and when they no longer are."""
        most = self._settings.lag_seconds_max
        if lag_seconds is None:
            return
        now = time.monotonic()
        if lag_seconds > most and self._lags_since is None:
            self._lags_since = now
            self._log.warning(events.LAG_EXCEEDED, lag_seconds=round(lag_seconds, 3), lag_seconds_max=most)
        elif lag_seconds <= most and self._lags_since is not None:
            since, self._lags_since = self._lags_since, None
            self._log.info(events.LAG_RECOVERED, lag_seconds=round(lag_seconds, 3), seconds=round(now - since, 3))

    def _values(self, surveyed: Surveyed, known: Known | None, queued: Queued | None, held: Held | None) -> Values:
        beats: dict[tuple[str, ...], float] = {
            (name,): at for name in self.stages if (at := self._beat_at(name)) is not None
        }
        values: gauges.Values = {
            metrics.SURVEYED_AT: {(): surveyed.at},
            metrics.ANSWERED: {(one.server,): float(one.error is None) for one in surveyed.answers},
            metrics.ANSWER_SECONDS: {(one.server,): one.seconds for one in surveyed.answers},
            metrics.BEAT: beats,
        }
        if known is not None:
            values |= gauges.of_postgres(known) | gauges.of_jobs(known.stored)
            for one in known.stored.in_force:
                metrics.know(one.name)
        if queued is not None:
            values |= gauges.of_kafka(queued, lag_seconds=self._ends.oldest_seconds(queued.partitions))
        if known is not None and held is not None:
            values |= gauges.of_elasticsearch(known.stored, held)
        if surveyed.lag_seconds is not None:
            values[metrics.LAG] = {(): surveyed.lag_seconds}
        return values

    def _beat_at(self, stage: str) -> float | None:
        """When a stage was last seen to go on, in Unix time: now, if it is patient."""
        at = time.monotonic() if self._stop.waits_for(stage) else self._stop.beat_at(stage)
        return None if at is None else time.time() - (time.monotonic() - at)


def _about(known: Known | None, held: Held | None) -> Held | None:
    """What Elasticsearch has said, unless it was asked about other indices: an answer may be to an earlier turn."""
    if known is None or held is None:
        return None
    return held if held.counts.keys() == {one.index_name for one in known.stored.in_force} else None


def _sample(now: Surveyed, before: Surveyed | None, known: Known | None, queued: Queued | None) -> Sample:
    published = handled = None
    if before is not None and before.partitions and now.partitions:
        seconds = max(now.monotonic_at - before.monotonic_at, 0.001)
        published = _grown([one.end for one in before.partitions], [one.end for one in now.partitions], seconds)
        handled = _grown(
            [one.committed for one in before.partitions], [one.committed for one in now.partitions], seconds
        )
    rates = [] if known is None else [one.documents_per_second or 0.0 for one in known.stored.jobs]
    return Sample(
        at=now.at,
        lag_seconds=now.lag_seconds,
        outbox_waiting=None if known is None else known.stored.outbox_waiting,
        topic_waiting=None if queued is None else queued.waiting,
        published_per_second=published,
        handled_per_second=handled,
        refreshed_per_second=None if known is None else sum(rates),
        captured_per_second=None if now.rates is None else now.rates.captured,
        written_per_second=None if now.rates is None else now.rates.written,
    )


def _grown(before: Sequence[int], now: Sequence[int], seconds: float) -> float:
    """By how much per second; partitions may have been added, and a topic may have been made again."""
    return max(0, sum(now) - sum(before)) / seconds


class _Ends:
    """Where partitions ended at earlier readings: so it is known for how long a record has waited."""

    def __init__(self) -> None:
        self._seen: dict[int, list[tuple[float, int]]] = {}

    def note(self, partitions: Collection[PartitionLag]) -> None:
        """Remember where they end now, and forget what no longer matters."""
        now = time.monotonic()
        noted = {}
        for one in partitions:
            waiting = [seen for seen in self._seen.get(one.partition, ()) if one.committed < seen[1] <= one.end]
            if one.records and (not waiting or waiting[-1][1] < one.end):
                waiting.append((now, one.end))
            # The first one says for how long the oldest has waited; of what lies behind it every second one will do.
            noted[one.partition] = waiting[::2] if len(waiting) > _ENDS_MAX else waiting
        self._seen = noted

    def oldest_seconds(self, partitions: Collection[PartitionLag]) -> float:
        """For how long the oldest record has waited, at least; 0 if none does."""
        waiting = [seen[0][0] for one in partitions if one.records and (seen := self._seen.get(one.partition))]
        return time.monotonic() - min(waiting) if waiting else 0.0
