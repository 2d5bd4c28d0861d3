"""Facts: the read-only responses of the API, the same as the commands' JSON.

The status comes from the last poll, so frequent requests cost the servers nothing more. Requests about one document,
jobs and dead letters query the servers, on connections of their own.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from typing import Any

from werkzeug.wrappers import Response

from syncer.base import metrics, migrations, timeline
from syncer.base.errors import DefinitionError, UnavailableError
from syncer.base.lifecycle import Stop
from syncer.base.postgres import Connection
from syncer.base.settings import Settings
from syncer.documents import registry
from syncer.elasticsearch import client as elastic
from syncer.elasticsearch.bulk import Index
from syncer.indexing import dead_letters
from syncer.jobs import model
from syncer.jobs.model import Job
from syncer.monitoring import health, problems
from syncer.monitoring.history import RECENT_SECONDS, SECONDS_MAX
from syncer.monitoring.poll import Polled, Poller
from syncer.monitoring.web import words
from syncer.monitoring.web.access import Access
from syncer.monitoring.web.app import Asked, as_json
from syncer.verify import explain
from syncer.verify.explain import State

_FINISHED_SHOWN_MAX = 3
_UNFINISHED_SHOWN_MAX = 200
_KINDS_SHOWN_MAX = 200
_LETTERS_SHOWN_MAX = 1000
_EVENTS_SHOWN_MAX = 200
_ASKED_AT_ONCE = 3
_PLACE_SECONDS = 1.0
_EXPLAIN_SECONDS = 3
_HIDDEN = "Shown only with the token."


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """The daemon that answers.

    Args:
        settings: All settings.
        poll: The daemon's poller, which knows the names of its components.
        stop: The `Stop` that they call.
    """

    settings: Settings
    poll: Poller
    stop: Stop
    _places: threading.BoundedSemaphore = field(
        init=False, repr=False, default_factory=lambda: threading.BoundedSemaphore(_ASKED_AT_ONCE)
    )

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection for one response, of a limited number: a hung server leaves threads for other requests.

        Raises:
            UnavailableError: All of them are in use.
        """
        if not self._places.acquire(timeout=_PLACE_SECONDS):
            raise UnavailableError("Too many requests are waiting for Postgres", hint="Try again in a few seconds.")
        try:
            with migrations.connected(self.settings.postgres, name="web") as connection:
                yield connection
        finally:
            self._places.release()


class Facts:
    """Handles read-only requests.

    Args:
        daemon: The daemon that answers.
        access: Checks what requests may do.
    """

    def __init__(self, daemon: Daemon, access: Access) -> None:
        self._daemon = daemon
        self._access = access

    def status(self, asked: Asked) -> dict[str, Any]:
        """The status; the conditions and errors of jobs are shown only with the token.

        Raises:
            UnavailableError: The servers have not been polled yet.
        """
        polled = self._polled()
        stored = polled.overview.stored
        return {
            **problems.as_json(polled.overview, polled.rates),
            "jobs": [_job(one, asked) for one in stored.jobs] if stored else None,
            "verifications": [one.as_json() for one in stored.verifications] if stored else None,
            "age_seconds": time.monotonic() - polled.monotonic_at,
            "daemon": {"host": socket.gethostname(), "process": os.getpid(), "version": version("syncer-cdc")},
            "access": self._rights(asked),
        }

    def _polled(self) -> Polled:
        self._daemon.poll.watch()
        polled = self._daemon.poll.latest
        if polled is None:
            raise UnavailableError("The servers have not been polled yet", hint="Try again in a few seconds.")
        return polled

    def _rights(self, asked: Asked) -> dict[str, bool]:
        return {
            "can_act": asked.has_token,
            "takes_token": self._access.token is not None,
            "sees_rows": asked.has_token or (self._access.token is None and self._access.is_own),
            "sees_values": asked.has_token,
        }

    def history(self, asked: Asked) -> dict[str, Any]:
        """The samples of the last ``seconds``; with ``since``, only later ones."""
        seconds = words.number(asked.words, "seconds", default=int(RECENT_SECONDS), most=SECONDS_MAX)
        since = words.real(asked.words, "since", default=0.0)
        return {"samples": [asdict(one) for one in self._daemon.poll.history.last(seconds) if one.at > since]}

    def events(self, asked: Asked) -> dict[str, Any]:
        """What happened in the last ``seconds``, oldest first, at most the latest 200."""
        seconds = words.number(asked.words, "seconds", default=SECONDS_MAX, most=timeline.DAYS_KEPT * SECONDS_MAX)
        with self._daemon.connection() as connection:
            found = timeline.read(connection, seconds=seconds, limit=_EVENTS_SHOWN_MAX)
        return {"events": [one.as_json() for one in found]}

    def jobs(self, asked: Asked) -> dict[str, Any]:
        """The unfinished jobs and the last finished ones; conditions and errors are shown as in `status`.

        Reads one job of each kind more than it shows, to tell whether there are more.
        """
        with self._daemon.connection() as connection:
            found = model.recent(
                connection, unfinished_max=_UNFINISHED_SHOWN_MAX + 1, finished_max=_FINISHED_SHOWN_MAX + 1
            )
        unfinished = [one for one in found if not one.state.is_finished]
        finished = [one for one in found if one.state.is_finished]
        shown = unfinished[:_UNFINISHED_SHOWN_MAX] + finished[:_FINISHED_SHOWN_MAX]
        return {
            "jobs": [{**_job(one, asked), "reason": one.reason} for one in shown],
            "has_more": len(shown) < len(found),
        }

    def letters(self, asked: Asked) -> dict[str, Any]:
        """Dead letters by kind, and with ``limit`` one by one; their errors are shown only with the token."""
        limit = words.number(asked.words, "limit", default=0, most=_LETTERS_SHOWN_MAX)
        offset = words.number(asked.words, "offset", default=0, most=10**9)
        with self._daemon.connection() as connection:
            document = words.text(asked.words, "document")
            kinds = dead_letters.kinds(connection, document)
            letters = dead_letters.page(connection, document=document, limit=limit, offset=offset) if limit else []
        return {
            "letters": sum(one.letters for one in kinds),
            "kinds": [one.as_json() for one in kinds[:_KINDS_SHOWN_MAX]],
            "shown": [one.as_json() if asked.has_token else replace(one, error=_HIDDEN).as_json() for one in letters],
        }

    def explain(self, asked: Asked, document: str) -> dict[str, Any]:
        """Explain the state of a document; the values of fields are shown only with the token.

        Raises:
            ForbiddenError, UnauthorizedError: Values are requested without it.
        """
        id_ = words.required(asked.words, "id")
        values = words.whether(asked.words, "values")
        if values:
            self._access.require_token(has_token=asked.has_token)
        settings = self._daemon.settings
        with self._daemon.connection() as connection:
            chosen = [one for one in registry.documents(connection) if one.name == document]
            if not chosen:
                known = ", ".join(registry.current(connection)) or "none; run: syncer apply"
                raise DefinitionError(f"No document {document[:100]} is active", hint=f"Active documents: {known}")
            with elastic.connect(settings.elasticsearch) as client:
                index = Index(client, bulk_bytes_max=settings.worker.bulk_bytes_max)
                seen = explain.explain(connection, index, chosen, id_, seconds=_EXPLAIN_SECONDS)
        told = explain.as_json(seen, id_, values=values)
        return told if asked.has_token else _without_values(told)

    # For monitoring

    def metrics(self, _: Asked) -> Response:
        """The metrics in Prometheus's format."""
        return Response(metrics.render(), content_type=metrics.CONTENT_TYPE)

    def alive(self, _: Asked) -> Response:
        """Whether this process is alive."""
        return _health(health.alive(self._daemon.stop, self._daemon.poll.components))

    def ready(self, asked: Asked) -> Response:
        """Whether this process is ready; the reasons may name hosts, so remote clients need the token to see them."""
        one = self._daemon
        seen = health.ready(one.stop, one.poll.components, one.poll.latest, needs=one.poll.needs)
        if asked.has_token or self._access.is_own:
            return _health(seen)
        checks = (each if each.is_well else replace(each, reason=_HIDDEN) for each in seen.checks)
        return _health(health.Health(checks=tuple(checks)))


def _job(one: Job, asked: Asked) -> dict[str, Any]:
    """A job as data; its condition and its error contain values of rows."""
    said = one.as_json()
    return said if asked.has_token else said | {name: said[name] and _HIDDEN for name in ("where", "error")}


def _health(seen: health.Health) -> Response:
    return as_json(seen.as_json(), 200 if seen.is_well else 503)


def _without_values(told: dict[str, Any]) -> dict[str, Any]:
    """An explanation without the values that errors quote."""
    for index in told["indices"]:
        if index["dead_letter"] is not None or index["state"] == State.UNKNOWN:
            index["says"], index["hint"] = "It could not be written or read.", _HIDDEN
        if index["dead_letter"] is not None:
            index["dead_letter"]["error"] = None
    return told
