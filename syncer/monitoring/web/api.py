"""API: the responses of the HTTP interface, the same as the commands' JSON; values only with the token.

The status is read at most once a second, however many ask. Other requests query the servers on connections of their
own, a few at a time: a server that hangs delays neither the status nor metrics and health.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Annotated, Any

from pydantic import Field
from werkzeug.wrappers import Response

from syncer.base import metrics, migrations, retry, timeline
from syncer.base.errors import UnavailableError
from syncer.base.formatting import plain
from syncer.base.lifecycle import Component, Stop, Stopping
from syncer.base.postgres import Connection
from syncer.base.settings import Settings
from syncer.elasticsearch import client as elastic
from syncer.elasticsearch.bulk import Index
from syncer.indexing import dead_letters
from syncer.jobs import model
from syncer.jobs.model import Job
from syncer.monitoring import gauges, problems
from syncer.monitoring.daemons import Reporter
from syncer.monitoring.status import POSTGRES, Reader, Status, Stored
from syncer.monitoring.web.server import Access, App, Guard, WebServer, as_json, listen
from syncer.verify import explain, wait

_FINISHED_SHOWN_MAX = 3
_UNFINISHED_SHOWN_MAX = 200
_EVENTS_SHOWN_MAX = 200
_DAY_SECONDS = 86_400
_CONNECTIONS_MAX = 3
_WAITS_MAX = 2
_WAIT_MAX = 25
"""The longest wait: proxies may cut a connection that is silent for longer."""
_PLACE_SECONDS = 1.0
_EXPLAIN_SECONDS = 3
_ELSEWHERE = "Try again, or use another daemon."
_HIDDEN = "Shown only with the token."

KEPT_SECONDS = 3600.0
_READ_SECONDS = 5.0

Sample = dict[str, float | None]
"""The lag and the rates at one time; None while Postgres is silent, since changes may have been committed."""
_Text = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00]*$")]
_Seconds = Annotated[int, Field(ge=0, le=timeline.DAYS_KEPT * _DAY_SECONDS)]
_Timeout = Annotated[int, Field(ge=0, le=_WAIT_MAX)]


class History:
    """What the charts of the page show: a sample of each reading of the status, for an hour, in memory.

    Each daemon with a page keeps its own, and reads every few seconds, so the page shows what was before it was opened.
    Safe to share between threads.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._samples: deque[tuple[float, Sample]] = deque()
        self._stored: Stored | None = None

    def run(self, stop: Stop) -> None:
        """Read every few seconds until a stop is requested."""
        while not stop.wait(_READ_SECONDS):
            self.read(asks_elasticsearch=False)
        self._reader.close()

    def read(self, *, asks_elasticsearch: bool = True) -> Status:
        """Read the status, as `Reader.read` does."""
        status = self._reader.read(asks_elasticsearch=asks_elasticsearch)
        with self._lock:
            # At most one a second, as the reader asks no more often. They stay sorted when a clock is set back.
            if not self._samples or status.at > self._samples[-1][0]:
                self._samples.append((status.at, self._sample(status)))
            while self._samples[0][0] < self._samples[-1][0] - KEPT_SECONDS:
                self._samples.popleft()
        return status

    def since(self, at: float) -> list[Sample]:
        """The samples after this time, oldest first."""
        with self._lock:
            return [sample for sampled_at, sample in self._samples if sampled_at > at]

    def _sample(self, status: Status) -> Sample:
        previous, stored = self._stored, status.stored
        self._stored, lag, captured_rate, written_rate = stored, None, None, None
        if stored is not None and POSTGRES not in status.silent:
            lag, written_rate = status.lag_seconds, stored.written_per_second
            if previous is not None and stored.at > previous.at:
                changes = stored.totals["captured"] - previous.totals["captured"]
                captured_rate = max(0.0, changes / (stored.at - previous.at))
        rates = {"captured_per_second": captured_rate, "written_per_second": written_rate}
        return {"at": status.at, "lag_seconds": lag, **rates}


def page(settings: Settings, *, stop: Stop, reporter: Reporter) -> dict[str, Component]:
    """Bind the port, and return the components that keep samples and answer; none if there is no port."""
    token = settings.web.token
    guard = Guard(host=settings.web.host, token=None if token is None else token.get_secret_value())
    listening = listen(settings.web)
    if listening is None:
        return {}
    api = Api(settings, guard, stop=stop, reporter=reporter)
    return {"web": WebServer(listening, App(guard, api.routes())), "history": api.history}


class Api:
    """Handles the requests to one daemon."""

    def __init__(self, settings: Settings, guard: Guard, *, stop: Stop, reporter: Reporter) -> None:
        self._settings = settings
        self._guard = guard
        self._stop = stop
        self._reporter = reporter
        self.history = History(Reader(settings))
        self._connections = threading.BoundedSemaphore(_CONNECTIONS_MAX)
        self._waits = threading.BoundedSemaphore(_WAITS_MAX)

    def routes(self) -> dict[str, tuple[Callable[..., Any], Access]]:
        """All routes, with what a request needs for them."""
        return {
            "/metrics": (self.metrics, Access.HEALTH),
            "/healthz": (self.alive, Access.HEALTH),
            "/readyz": (self.ready, Access.HEALTH),
            "/api/status": (self.status, Access.FIGURES),
            "/api/history": (self.samples, Access.FIGURES),
            "/api/events": (self.events, Access.FIGURES),
            "/api/jobs": (self.jobs, Access.FIGURES),
            "/api/wait": (self.wait, Access.FIGURES),
            "/api/dead-letters": (self.letters, Access.FIGURES),
            "/api/explain/<document>": (self.explain, Access.FIGURES),
        }

    def metrics(self, _: Access) -> Response:
        """The metrics in Prometheus's format."""
        return Response(metrics.render(gauges.values(self.history.read())), content_type=metrics.CONTENT_TYPE)

    def alive(self, _: Access) -> Response:
        """Whether each component of this process makes progress, even if it only retries. If not, a restart helps.

        It does if its thread has called its `Stop` recently, or waits for a query that may take any time.
        """
        hanging = {trouble.component: trouble.error for trouble in self._reporter.hanging()}
        return _health({name: hanging.get(name, "") for name in self._reporter.components})

    def ready(self, access: Access) -> Response:
        """Whether this process can do its work: its components have started and retry nothing, and the servers answer.

        A process that is not ready recovers by itself. The reasons may name hosts: remote clients need the token.
        """
        components = self._reporter.components
        waiting = [name for name in components if not self._stop.has_started(name)]
        is_complete = components and not waiting
        reasons = {"components": "" if is_complete else f"not started: {', '.join(waiting) or 'any'}"}
        if self._stop.is_requested:
            reasons["daemon"] = "it is stopping"
        reasons |= {trouble.component: trouble.error for trouble in retry.troubles()}
        reasons |= {server.server: server.error or "" for server in self.history.read().servers}
        if access < Access.FIGURES:
            reasons = {name: reason and _HIDDEN for name, reason in reasons.items()}
        return _health(reasons)

    def status(self, access: Access) -> dict[str, Any]:
        """The status; the errors of jobs are shown only with the token."""
        status = self.history.read()
        return {
            **problems.as_json(status),
            "jobs": [_job(job, access) for job in status.stored.jobs] if status.stored else None,
            "daemon": {"host": socket.gethostname(), "process": os.getpid(), "version": version("syncer-cdc")},
            "access": {"takes_token": self._guard.token is not None, "sees_values": access >= Access.VALUES},
        }

    def samples(self, _: Access, after: float = 0.0) -> dict[str, Any]:
        """What the charts show of the past hour, after this time."""
        return {"samples": self.history.since(after)}

    def events(self, _: Access, seconds: _Seconds = _DAY_SECONDS) -> dict[str, Any]:
        """What happened in the last ``seconds``, oldest first, at most the latest 200."""
        with self._connection() as connection:
            return {"events": timeline.read(connection, seconds=seconds, limit=_EVENTS_SHOWN_MAX)}

    def jobs(self, access: Access) -> dict[str, Any]:
        """The unfinished jobs and the last finished ones; errors are shown as in `status`."""
        with self._connection() as connection:
            unfinished = model.unfinished(connection, limit=_UNFINISHED_SHOWN_MAX + 1)
            finished = model.finished(connection, limit=_FINISHED_SHOWN_MAX + 1)
        shown = unfinished[:_UNFINISHED_SHOWN_MAX] + finished[:_FINISHED_SHOWN_MAX]
        has_more = len(shown) < len(unfinished) + len(finished)
        return {"jobs": [_job(job, access) for job in shown], "has_more": has_more}

    def letters(self, _: Access) -> dict[str, Any]:
        """Dead letters by index and kind of error."""
        with self._connection() as connection:
            kinds = dead_letters.kinds(connection, None)
        return {"letters": sum(kind.letters for kind in kinds), "kinds": kinds}

    def explain(
        self, access: Access, document: _Text, id_: Annotated[_Text, Field(alias="id")], values: bool = False
    ) -> dict[str, Any]:
        """Explain the state of a document; the values of fields are shown only with the token."""
        if values:
            self._guard.require(Access.VALUES, access)
        with self._connection() as connection, elastic.connect(self._settings.elasticsearch) as elasticsearch:
            explained: dict[str, Any] = plain(
                explain.explain(
                    connection, Index(elasticsearch), document, id_, seconds=_EXPLAIN_SECONDS, values=values
                )
            )
        for row in explained["indices"]:
            if row["dead_letter"] is not None and access < Access.VALUES:  # errors quote values
                row["dead_letter"]["error"] = None
                row["says"], row["hint"] = "It could not be written.", _HIDDEN
        return explained

    def wait(self, access: Access, token: _Text, timeout: _Timeout = _WAIT_MAX, searchable: bool = False) -> Any:
        """Wait until the transaction of ``token`` is indexed, at most ``timeout`` seconds."""
        with _turn(self._waits, patience=0):
            try:
                waited = wait.wait(
                    self._settings, token, timeout_seconds=timeout, searchable=searchable, pause=self._stop.pause
                )
            except Stopping:
                raise UnavailableError("This daemon is stopping", hint=_ELSEWHERE) from None
        hidden = {} if access >= Access.VALUES else {"dead_lettered": len(waited.dead_lettered)}
        return {**plain(waited), **hidden}

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        with (
            _turn(self._connections, patience=_PLACE_SECONDS),
            migrations.connected(self._settings.postgres, name="web") as connection,
        ):
            yield connection


@contextmanager
def _turn(turns: threading.BoundedSemaphore, *, patience: float) -> Iterator[None]:
    """Take one of a limited number of places: a server that hangs leaves threads for other requests."""
    if not turns.acquire(timeout=patience):
        raise UnavailableError("Too many requests are waiting here", hint=_ELSEWHERE)
    try:
        yield
    finally:
        turns.release()


def _health(reasons: Mapping[str, str]) -> Response:
    """Respond with each check by its name, and why it fails, if it does."""
    checks = [{"name": name, "is_well": not reason, "reason": reason} for name, reason in reasons.items()]
    is_well = not any(reasons.values())
    return as_json({"is_well": is_well, "checks": checks}, 200 if is_well else 503)


def _job(job: Job, access: Access) -> dict[str, Any]:
    """A job as data; its error may contain values of rows."""
    fields: dict[str, Any] = plain(job)
    return fields if access >= Access.VALUES else fields | {"error": fields["error"] and _HIDDEN}
