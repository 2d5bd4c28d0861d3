"""API: the responses of the HTTP interface, the same as the commands' JSON, and the changes that a token allows.

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

import structlog
from pydantic import Field
from werkzeug.routing import Rule
from werkzeug.wrappers import Response

from syncer.apply import reindex
from syncer.base import metrics, migrations, retry, timeline
from syncer.base.errors import UnavailableError
from syncer.base.formatting import plain
from syncer.base.lifecycle import Stop, Stopping
from syncer.base.postgres import Connection
from syncer.base.settings import Settings
from syncer.documents import registry, suspend
from syncer.elasticsearch import client as elastic
from syncer.elasticsearch.bulk import Index
from syncer.indexing import dead_letters
from syncer.jobs import listing, model, queue
from syncer.jobs.model import Job
from syncer.monitoring import gauges, health, problems
from syncer.monitoring.daemons import Reporter
from syncer.monitoring.health import HealthCheck
from syncer.monitoring.status import Reader
from syncer.monitoring.web.access import Access, Need
from syncer.monitoring.web.app import Caller, as_json, route
from syncer.verify import explain
from syncer.verify.wait import Waiter

_JOB = f"/api/jobs/<int(max={2**63 - 1}):job_id>/<any(pause, resume, cancel):action>"
_CHANGES = {"pause": queue.pause, "resume": queue.resume, "cancel": queue.cancel}
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
            route("/metrics", Need.NOTHING, self.metrics),
            route("/healthz", Need.NOTHING, self.alive),
            route("/readyz", Need.NOTHING, self.ready),
            route("/api/status", Need.FACTS, self.status),
            route("/api/events", Need.FACTS, self.events),
            route("/api/jobs", Need.FACTS, self.jobs),
            route("/api/wait", Need.FACTS, self.wait),
            route("/api/dead-letters", Need.ROWS, self.letters),
            route("/api/explain/<document>", Need.ROWS, self.explain),
            route(_JOB, Need.ACTIONS, self.change, method="POST"),
            route("/api/dead-letters/retry", Need.ACTIONS, self.retry, method="POST"),
        ]

    # For monitoring

    def metrics(self, _: Caller) -> Response:
        """The metrics in Prometheus's format."""
        return Response(metrics.render(gauges.values(self._reader.read())), content_type=metrics.CONTENT_TYPE)

    def alive(self, _: Caller) -> Response:
        """Whether this process is alive."""
        return _health(health.alive(self._stop, self._reporter.components))

    def ready(self, caller: Caller) -> Response:
        """Whether this process is ready; the reasons may name hosts, so remote clients need the token to see them."""
        checks = health.ready(self._stop, self._reporter.components, retry.troubles(), self._reader.read())
        if not (caller.has_token or self._access.is_own):
            checks = [check if check.is_well else replace(check, reason=_HIDDEN) for check in checks]
        return _health(checks)

    # To read

    def status(self, caller: Caller) -> dict[str, Any]:
        """The status; the errors of jobs are shown only with the token."""
        status = self._reader.read()
        return {
            **problems.as_json(status),
            "jobs": [_job(job, caller) for job in status.stored.jobs] if status.stored else None,
            "daemon": {"host": socket.gethostname(), "process": os.getpid(), "version": version("syncer-cdc")},
            "access": {
                "can_act": caller.has_token,
                "takes_token": self._access.token is not None,
                "sees_rows": self._access.may(Need.ROWS, has_token=caller.has_token),
            },
        }

    def events(self, _: Caller, seconds: _Seconds = _DAY_SECONDS) -> dict[str, Any]:
        """What happened in the last ``seconds``, oldest first, at most the latest 200."""
        with self._connection() as connection:
            return {"events": timeline.read(connection, seconds=seconds, limit=_EVENTS_SHOWN_MAX)}

    def jobs(self, caller: Caller) -> dict[str, Any]:
        """The unfinished jobs and the last finished ones; errors are shown as in `status`."""
        with self._connection() as connection:
            found = model.recent(
                connection, unfinished_max=_UNFINISHED_SHOWN_MAX + 1, finished_max=_FINISHED_SHOWN_MAX + 1
            )
        unfinished = [job for job in found if not job.state.is_finished]
        finished = [job for job in found if job.state.is_finished]
        shown = unfinished[:_UNFINISHED_SHOWN_MAX] + finished[:_FINISHED_SHOWN_MAX]
        return {"jobs": [_job(job, caller) for job in shown], "has_more": len(shown) < len(found)}

    def letters(self, _: Caller) -> dict[str, Any]:
        """Dead letters by index and kind of error."""
        with self._connection() as connection:
            kinds = dead_letters.kinds(connection, None)
        return {"letters": sum(kind.letters for kind in kinds), "kinds": kinds}

    def explain(
        self,
        caller: Caller,
        document: _Text,
        id_: Annotated[_Text, Field(alias="id")],
        values: bool = False,
    ) -> dict[str, Any]:
        """Explain the state of a document; the values of fields are shown only with the token.

        Raises:
            ForbiddenError, UnauthorizedError: Values are requested without it.
        """
        if values:
            self._access.require(Need.ACTIONS, has_token=caller.has_token)
        with self._connection() as connection, elastic.connect(self._settings.elasticsearch) as elasticsearch:
            answer: dict[str, Any] = plain(
                explain.explain(
                    connection, Index(elasticsearch), document, id_, seconds=_EXPLAIN_SECONDS, values=values
                )
            )
        for row in answer["indices"]:
            if row["dead_letter"] is not None and not caller.has_token:  # errors quote values
                row["dead_letter"]["error"] = None
                row["says"], row["hint"] = "It could not be written.", _HIDDEN
        return answer

    def wait(self, caller: Caller, token: _Text, timeout: _Timeout = _WAIT_MAX, searchable: bool = False) -> Any:
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
        return {**plain(waited), **({} if caller.has_token else {"dead_lettered": len(waited.dead_lettered)})}

    # To change

    def change(self, caller: Caller, job_id: int, action: str) -> dict[str, Any]:
        """Pause, resume or cancel a job; ``note`` says so if documents that it did not write may be stale."""
        with self._connection() as connection:
            changed = _CHANGES[action](connection, job_id)
            note = reindex.hint_after(connection, changed) if action == "cancel" else ""
        _log(caller, action, job=job_id)
        return {**_job(changed, caller), "note": note}

    def retry(self, caller: Caller, document: _Text) -> dict[str, Any]:
        """Write the dead-lettered documents of a definition again, as jobs.

        Raises:
            SyncerError: The request names no active definition, or it is suspended.
        """
        chunk = self._settings.worker.batch_documents_max
        with self._connection() as connection:
            rows = registry.named(connection, document)
            for row in rows:
                suspend.require_active(row)
            found = dead_letters.indices(connection, document=document)
            made = [
                job
                for row in rows
                if row.index_name in found
                and (ids := dead_letters.ids(connection, row.index_name))
                and (job := listing.create_listed(connection, row, ids, chunk=chunk))
            ]
        done = {"jobs": [job.id for job in made], "letters": sum(job.documents_total or 0 for job in made)}
        _log(caller, "retry", document=document, **done)
        return done

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


def _job(job: Job, caller: Caller) -> dict[str, Any]:
    """A job as data; its error may contain values of rows."""
    data: dict[str, Any] = plain(job)
    return data if caller.has_token else data | {"error": data["error"] and _HIDDEN}


def _log(caller: Caller, action: str, **about: Any) -> None:
    structlog.get_logger().info("web.acted", action=action, address=caller.address, **about)
