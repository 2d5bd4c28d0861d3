"""API: the responses of the HTTP interface, the same as the commands' JSON, and the changes that a token allows.

The status is read at most once a second, however many ask. Other requests query the servers on connections of their
own, a few at a time: a server that hangs delays neither the status nor metrics and health.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import structlog
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
from syncer.monitoring.health import Health
from syncer.monitoring.status import Reader
from syncer.monitoring.web.access import Access, Need
from syncer.monitoring.web.app import Asked, WebRoute, as_json
from syncer.verify import explain
from syncer.verify.wait import Waiter

_JOB = f"/api/jobs/<int(max={2**63 - 1}):job_id>/<any(pause, resume, cancel):action>"
_CHANGES = {"pause": queue.pause, "resume": queue.resume, "cancel": queue.cancel}
_FINISHED_SHOWN_MAX = 3
_UNFINISHED_SHOWN_MAX = 200
_LETTERS_SHOWN_MAX = 1000
_EVENTS_SHOWN_MAX = 200
_DAY_SECONDS = 86_400
_CONNECTIONS_MAX = 3
_WAITS_MAX = 2
_WAIT_SECONDS_MAX = 25
"""The longest wait: proxies may cut a connection that is silent for longer."""
_PLACE_SECONDS = 1.0
_EXPLAIN_SECONDS = 3
_HIDDEN = "Shown only with the token."


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

    def routes(self) -> list[WebRoute]:
        """All routes."""
        return [
            WebRoute(path="/metrics", need=Need.NOTHING, answer=self.metrics),
            WebRoute(path="/healthz", need=Need.NOTHING, answer=self.alive),
            WebRoute(path="/readyz", need=Need.NOTHING, answer=self.ready),
            WebRoute(path="/api/status", need=Need.FACTS, answer=self.status),
            WebRoute(path="/api/events", need=Need.FACTS, answer=self.events),
            WebRoute(path="/api/jobs", need=Need.FACTS, answer=self.jobs),
            WebRoute(path="/api/wait", need=Need.FACTS, answer=self.wait),
            WebRoute(path="/api/dead-letters", need=Need.ROWS, answer=self.letters),
            WebRoute(path="/api/explain/<document>", need=Need.ROWS, answer=self.explain),
            WebRoute(path=_JOB, method="POST", need=Need.ACTIONS, answer=self.change),
            WebRoute(path="/api/dead-letters/retry", method="POST", need=Need.ACTIONS, answer=self.retry),
        ]

    # For monitoring

    def metrics(self, _: Asked) -> Response:
        """The metrics in Prometheus's format."""
        return Response(metrics.render(gauges.values(self._reader.read())), content_type=metrics.CONTENT_TYPE)

    def alive(self, _: Asked) -> Response:
        """Whether this process is alive."""
        found = health.alive(self._stop, self._reporter.components)
        return as_json(found, 200 if found.is_well else 503)

    def ready(self, asked: Asked) -> Response:
        """Whether this process is ready; the reasons may name hosts, so remote clients need the token to see them."""
        found = health.ready(self._stop, self._reporter.components, retry.troubles(), self._reader.read())
        if not (asked.has_token or self._access.is_own):
            checks = [check if check.is_well else replace(check, reason=_HIDDEN) for check in found.checks]
            found = Health(tuple(checks))
        return as_json(found, 200 if found.is_well else 503)

    # To read

    def status(self, asked: Asked) -> dict[str, Any]:
        """The status; the errors of jobs are shown only with the token."""
        status = self._reader.read()
        rights = {
            "can_act": asked.has_token,
            "takes_token": self._access.token is not None,
            "sees_rows": self._access.may(Need.ROWS, has_token=asked.has_token),
            "sees_values": asked.has_token,
        }
        return {
            **problems.as_json(status),
            "jobs": [_job(job, asked) for job in status.stored.jobs] if status.stored else None,
            "daemon": {"host": socket.gethostname(), "process": os.getpid(), "version": version("syncer-cdc")},
            "access": rights,
        }

    def events(self, asked: Asked) -> dict[str, Any]:
        """What happened in the last ``seconds``, oldest first, at most the latest 200."""
        seconds = asked.number("seconds", default=_DAY_SECONDS, most=timeline.DAYS_KEPT * _DAY_SECONDS)
        with self._connection() as connection:
            found = timeline.read(connection, seconds=seconds, limit=_EVENTS_SHOWN_MAX)
        return {"events": found}

    def jobs(self, asked: Asked) -> dict[str, Any]:
        """The unfinished jobs and the last finished ones; errors are shown as in `status`.

        Reads one job of each kind more than it shows, to tell whether there are more.
        """
        with self._connection() as connection:
            found = model.recent(
                connection, unfinished_max=_UNFINISHED_SHOWN_MAX + 1, finished_max=_FINISHED_SHOWN_MAX + 1
            )
        unfinished = [job for job in found if not job.state.is_finished]
        finished = [job for job in found if job.state.is_finished]
        shown = unfinished[:_UNFINISHED_SHOWN_MAX] + finished[:_FINISHED_SHOWN_MAX]
        return {"jobs": [_job(job, asked) for job in shown], "has_more": len(shown) < len(found)}

    def letters(self, asked: Asked) -> dict[str, Any]:
        """Dead letters by kind, and with ``limit`` one by one; their errors are shown only with the token."""
        document = asked.text("document") or None
        limit = asked.number("limit", default=0, most=_LETTERS_SHOWN_MAX)
        offset = asked.number("offset", default=0, most=10**9)
        with self._connection() as connection:
            kinds = dead_letters.kinds(connection, document)
            letters = dead_letters.page(connection, document=document, limit=limit, offset=offset) if limit else []
        return {
            "letters": sum(kind.letters for kind in kinds),
            "kinds": kinds,
            "shown": [letter if asked.has_token else replace(letter, error=_HIDDEN) for letter in letters],
        }

    def explain(self, asked: Asked, document: str) -> dict[str, Any]:
        """Explain the state of a document; the values of fields are shown only with the token.

        Raises:
            ForbiddenError, UnauthorizedError: Values are requested without it.
        """
        id_, values = asked.required("id"), asked.flag("values")
        if values:
            self._access.require(Need.ACTIONS, has_token=asked.has_token)
        with self._connection() as connection, elastic.connect(self._settings.elasticsearch) as client:
            index = Index(client)
            chosen = registry.named(connection, document)
            found = [explain.explain(connection, index, each, id_, seconds=_EXPLAIN_SECONDS) for each in chosen]
        answer = explain.as_json(found, id_, values=values)
        for row in answer["indices"]:
            if row["dead_letter"] is not None and not asked.has_token:  # errors quote values
                row["dead_letter"]["error"] = None
                row["says"], row["hint"] = "It could not be written.", _HIDDEN
        return answer

    def wait(self, asked: Asked) -> dict[str, Any]:
        """Wait for ``token``; optional are ``timeout`` in seconds and ``searchable``.

        Raises:
            TokenError, WaitTimeoutError: As `syncer.verify.wait.Waiter.wait`.
            UnavailableError: Too many clients are waiting already, or the daemon ends.
        """
        token, searchable = asked.required("token"), asked.flag("searchable")
        seconds = asked.number("timeout", default=_WAIT_SECONDS_MAX, most=_WAIT_SECONDS_MAX)
        if not self._waits.acquire(blocking=False):
            raise UnavailableError("Too many requests are waiting here", hint="Try again, or use another daemon.")
        try:
            waited = self._waiter.wait(token, timeout_seconds=seconds, searchable=searchable)
        except Stopping:
            raise UnavailableError("This daemon is stopping", hint="Try again, or use another daemon.") from None
        finally:
            self._waits.release()
        return {**plain(waited), **({} if asked.has_token else {"dead_lettered": len(waited.dead_lettered)})}

    # To change

    def change(self, asked: Asked, job_id: int, action: str) -> dict[str, Any]:
        """Pause, resume or cancel a job; ``note`` says so if documents that it did not write may be stale."""
        with self._connection() as connection:
            changed = _CHANGES[action](connection, job_id)
            note = reindex.hint_after(connection, changed) if action == "cancel" else ""
        _log(asked, action, job=job_id)
        return {**_job(changed, asked), "note": note}

    def retry(self, asked: Asked) -> dict[str, Any]:
        """Write the dead-lettered documents of a definition again, as jobs.

        Raises:
            SyncerError: The request names no active definition, or it is suspended.
        """
        document = asked.required("document")
        chunk = self._settings.worker.batch_documents_max
        with self._connection() as connection:
            rows = registry.named(connection, document)
            for row in rows:
                suspend.require_active(row)
            found = dead_letters.indices(connection, document=document)
            jobs = [
                listing.create_listed(connection, row, dead_letters.ids(connection, row.index_name), chunk=chunk)
                for row in rows
                if row.index_name in found
            ]
        made = [job for job in jobs if job is not None]
        done = {"jobs": [job.id for job in made], "letters": sum(job.documents_total or 0 for job in made)}
        _log(asked, "retry", document=document, **done)
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


def _job(job: Job, asked: Asked) -> dict[str, Any]:
    """A job as data; its error may contain values of rows."""
    data: dict[str, Any] = plain(job)
    return data if asked.has_token else data | {"error": data["error"] and _HIDDEN}


def _log(asked: Asked, action: str, **about: Any) -> None:
    structlog.get_logger().info("web.acted", action=action, address=asked.address, **about)
