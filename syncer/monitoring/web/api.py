"""API: the responses of the HTTP interface, the same as the commands' JSON; values only with the token.

The status is read at most once a second, however many ask. Other requests query the servers on connections of their
own, a few at a time: a server that hangs delays neither the status nor metrics and health.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from typing import Annotated, Any

from pydantic import Field
from werkzeug.routing import Rule
from werkzeug.wrappers import Response

from syncer.base import metrics, migrations, retry, timeline
from syncer.base.errors import UnavailableError
from syncer.base.formatting import plain
from syncer.base.lifecycle import Stop, Stopping
from syncer.base.postgres import Connection
from syncer.base.settings import Settings
from syncer.elasticsearch import client as elastic
from syncer.elasticsearch.bulk import Index
from syncer.indexing import dead_letters
from syncer.jobs import model
from syncer.jobs.model import Job
from syncer.monitoring import gauges, health, problems
from syncer.monitoring.daemons import Reporter
from syncer.monitoring.health import HealthCheck
from syncer.monitoring.status import Reader
from syncer.monitoring.web.app import Access, App, as_json, route
from syncer.monitoring.web.server import WebServer, listen
from syncer.verify import explain
from syncer.verify.wait import Waiter

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
_HIDDEN = "Shown only with the token."

_Text = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00]*$")]
_Seconds = Annotated[int, Field(ge=0, le=timeline.DAYS_KEPT * _DAY_SECONDS)]
_Timeout = Annotated[int, Field(ge=0, le=_WAIT_MAX)]


def page(settings: Settings, *, stop: Stop, reporter: Reporter) -> WebServer | None:
    """Bind the port, and return the component that answers; None if there is no port for it.

    Raises:
        ConfigError: The port is not available, or the token's file cannot be read.
    """
    access = Access(host=settings.web.host, token=settings.web.secret())
    listening = listen(settings.web)
    if listening is None:
        return None
    return WebServer(listening, App(access, Api(settings, access, stop=stop, reporter=reporter).routes()))


class Api:
    """Handles the requests to one daemon."""

    def __init__(self, settings: Settings, access: Access, *, stop: Stop, reporter: Reporter) -> None:
        self._settings = settings
        self._access = access
        self._stop = stop
        self._reporter = reporter
        self._reader = Reader(settings)
        self._waiter = Waiter(settings, pause=stop.pause)
        self._connections = threading.BoundedSemaphore(_CONNECTIONS_MAX)
        self._waits = threading.BoundedSemaphore(_WAITS_MAX)

    def routes(self) -> list[Rule]:
        """All routes."""
        return [
            route("/metrics", self.metrics, is_public=True),
            route("/healthz", self.alive, is_public=True),
            route("/readyz", self.ready, is_public=True),
            route("/api/status", self.status),
            route("/api/events", self.events),
            route("/api/jobs", self.jobs),
            route("/api/wait", self.wait),
            route("/api/dead-letters", self.letters),
            route("/api/explain/<document>", self.explain),
        ]

    # For monitoring

    def metrics(self, _: bool) -> Response:
        """The metrics in Prometheus's format."""
        return Response(metrics.render(gauges.values(self._reader.read())), content_type=metrics.CONTENT_TYPE)

    def alive(self, _: bool) -> Response:
        """Whether this process is alive."""
        return _health(health.alive(self._stop, self._reporter.components))

    def ready(self, has_token: bool) -> Response:
        """Whether this process is ready; the reasons may name hosts, so remote clients need the token to see them."""
        checks = health.ready(self._stop, self._reporter.components, retry.troubles(), self._reader.read())
        if not (has_token or self._access.is_own):
            checks = [check if check.is_well else replace(check, reason=_HIDDEN) for check in checks]
        return _health(checks)

    # To read

    def status(self, has_token: bool) -> dict[str, Any]:
        """The status; the errors of jobs are shown only with the token."""
        status = self._reader.read()
        return {
            **problems.as_json(status),
            "jobs": [_job(job, has_token=has_token) for job in status.stored.jobs] if status.stored else None,
            "daemon": {"host": socket.gethostname(), "process": os.getpid(), "version": version("syncer-cdc")},
            "access": {"takes_token": self._access.token is not None, "sees_values": has_token},
        }

    def events(self, _: bool, seconds: _Seconds = _DAY_SECONDS) -> dict[str, Any]:
        """What happened in the last ``seconds``, oldest first, at most the latest 200."""
        with self._connection() as connection:
            return {"events": timeline.read(connection, seconds=seconds, limit=_EVENTS_SHOWN_MAX)}

    def jobs(self, has_token: bool) -> dict[str, Any]:
        """The unfinished jobs and the last finished ones; errors are shown as in `status`."""
        with self._connection() as connection:
            unfinished = model.unfinished(connection, limit=_UNFINISHED_SHOWN_MAX + 1)
            finished = model.finished(connection, limit=_FINISHED_SHOWN_MAX + 1)
        shown = unfinished[:_UNFINISHED_SHOWN_MAX] + finished[:_FINISHED_SHOWN_MAX]
        has_more = len(shown) < len(unfinished) + len(finished)
        return {"jobs": [_job(job, has_token=has_token) for job in shown], "has_more": has_more}

    def letters(self, _: bool) -> dict[str, Any]:
        """Dead letters by index and kind of error."""
        with self._connection() as connection:
            kinds = dead_letters.kinds(connection, None)
        return {"letters": sum(kind.letters for kind in kinds), "kinds": kinds}

    def explain(
        self,
        has_token: bool,
        document: _Text,
        id_: Annotated[_Text, Field(alias="id")],
        values: bool = False,
    ) -> dict[str, Any]:
        """Explain the state of a document; the values of fields are shown only with the token.

        Raises:
            ForbiddenError, UnauthorizedError: Values are requested without it.
        """
        if values:
            self._access.require(has_token=has_token, for_values=True)
        with self._connection() as connection, elastic.connect(self._settings.elasticsearch) as elasticsearch:
            answer: dict[str, Any] = plain(
                explain.explain(
                    connection, Index(elasticsearch), document, id_, seconds=_EXPLAIN_SECONDS, values=values
                )
            )
        for row in answer["indices"]:
            if row["dead_letter"] is not None and not has_token:  # errors quote values
                row["dead_letter"]["error"] = None
                row["says"], row["hint"] = "It could not be written.", _HIDDEN
        return answer

    def wait(self, has_token: bool, token: _Text, timeout: _Timeout = _WAIT_MAX, searchable: bool = False) -> Any:
        """Wait until the transaction of ``token`` is indexed, at most ``timeout`` seconds.

        Raises:
            TokenError, WaitTimeoutError: As `syncer.verify.wait.Waiter.wait`.
            UnavailableError: Too many clients are waiting already, or the daemon ends.
        """
        if not self._waits.acquire(blocking=False):
            raise UnavailableError("Too many requests are waiting here", hint="Try again, or use another daemon.")
        try:
            waited = self._waiter.wait(token, timeout_seconds=timeout, searchable=searchable)
        except Stopping:
            raise UnavailableError("This daemon is stopping", hint="Try again, or use another daemon.") from None
        finally:
            self._waits.release()
        return {**plain(waited), **({} if has_token else {"dead_lettered": len(waited.dead_lettered)})}

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        """A connection for one response, of a limited number: a hung server leaves threads for other requests.

        Raises:
            UnavailableError: All of them are in use.
        """
        if not self._connections.acquire(timeout=_PLACE_SECONDS):
            raise UnavailableError("Too many requests are waiting for Postgres", hint="Try again in a few seconds.")
        try:
            with migrations.connected(self._settings.postgres, name="web") as connection:
                yield connection
        finally:
            self._connections.release()


def _health(checks: Sequence[HealthCheck]) -> Response:
    is_well = all(check.is_well for check in checks)
    return as_json({"is_well": is_well, "checks": checks}, 200 if is_well else 503)


def _job(job: Job, *, has_token: bool) -> dict[str, Any]:
    """A job as data; its error may contain values of rows."""
    data: dict[str, Any] = plain(job)
    return data if has_token else data | {"error": data["error"] and _HIDDEN}
