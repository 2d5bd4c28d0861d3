"""Facts: what the API answers: the same as the commands, as JSON.

How syncer is doing is answered from what the survey last found, so that who asks often costs the servers nothing more.
What is asked of one document, of jobs and of dead letters is asked of the servers, on a connection of its own.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from typing import Any

from werkzeug.wrappers import Response

from syncer import concern, dead_letters, health, index as elastic, job, metrics, schema, store, unreadable
from syncer.concern import Concern, Mood
from syncer.dead_letters import Selection
from syncer.errors import DefinitionError, UnavailableError
from syncer.explain import explanation
from syncer.explain.events import Limits
from syncer.explain.verdict import Verdict
from syncer.index import Index
from syncer.job import Job
from syncer.lifecycle import Stop
from syncer.postgres import Connection
from syncer.settings import Settings
from syncer.survey import Answer, Server, Survey, Surveyed
from syncer.web import words
from syncer.web.access import Access
from syncer.web.app import Asked, as_json

_FINISHED_SHOWN_MAX = 3
_UNFINISHED_SHOWN_MAX = 200
_KINDS_SHOWN_MAX = 200
_LETTERS_SHOWN_MAX = 1000
_ASKED_AT_ONCE = 3
_EXPLAINED_AT_ONCE = 2
_PLACE_SECONDS = 1.0
_EXPLAIN = Limits(changes=20_000, done=5_000, seconds=3)
_NAMES = {Server.POSTGRES: "Postgres", Server.KAFKA: "Kafka", Server.ELASTICSEARCH: "Elasticsearch"}
_HIDDEN = "With the token it is said why."


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """The daemon that answers.

    Args:
        settings: All of them.
        survey: What asks the servers how syncer is doing.
        stop: Which its stages ask.
        stages: Their names.
    """

    settings: Settings
    survey: Survey
    stop: Stop
    stages: tuple[str, ...]
    _places: threading.BoundedSemaphore = field(
        init=False, repr=False, default_factory=lambda: threading.BoundedSemaphore(_ASKED_AT_ONCE)
    )

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection for one answer: of a few, so that a server that hangs leaves threads to answer the rest.

        Raises:
            UnavailableError: All of them are in use.
        """
        if not self._places.acquire(timeout=_PLACE_SECONDS):
            raise UnavailableError("Others are waiting for Postgres just now", hint="Ask again in a few seconds.")
        try:
            with schema.connected(self.settings.postgres, name="web") as connection:
                yield connection
        finally:
            self._places.release()


class Facts:
    """Answers questions.

    Args:
        daemon: Whose facts.
        access: Who may have them.
    """

    def __init__(self, daemon: Daemon, access: Access) -> None:
        self._daemon = daemon
        self._access = access
        self._explaining = threading.BoundedSemaphore(_EXPLAINED_AT_ONCE)
        self._index: Callable[[], Index] = _once(lambda: _open_index(daemon.settings))

    def status(self, asked: Asked) -> dict[str, Any]:
        """How syncer is doing; what a job was asked for and why one failed only to who has the token.

        Raises:
            UnavailableError: Nobody knows yet.
        """
        surveyed = self._surveyed()
        overview = surveyed.overview
        if overview is None:
            silent = [one for one in surveyed.answers if one.error is not None]
            raise UnavailableError(
                silent[0].error or "" if silent else "The servers have not been asked yet",
                hint="It is tried again and again: ask again in a few seconds.",
            )
        said = concern.as_json(overview, surveyed.rates)
        said["jobs"] = [_job(one, asked) for one in overview.jobs]
        silent_ones = [_silence(one) for one in surveyed.answers if one.error is not None]
        if silent_ones:
            said["concerns"] = [asdict(one) for one in silent_ones] + said["concerns"]
            said["headline"] = silent_ones[0].says
            said |= {"is_well": False, "mood": Mood.BAD}
        return {
            **said,
            "age_seconds": time.time() - (surveyed.overview_at or 0.0),
            "answers": [asdict(one) for one in surveyed.answers],
            "verifications": [asdict(one) for one in surveyed.verifications],
            "daemon": {"host": socket.gethostname(), "process": os.getpid(), "version": version("syncer")},
            "access": self._rights(asked),
        }

    def _surveyed(self) -> Surveyed:
        self._daemon.survey.watch()
        surveyed = self._daemon.survey.latest
        if surveyed is None:
            raise UnavailableError("The servers have not been asked yet", hint="Ask again in a few seconds.")
        return surveyed

    def _rights(self, asked: Asked) -> dict[str, bool]:
        return {
            "can_act": asked.has_token,
            "takes_token": self._access.token is not None,
            "sees_rows": asked.has_token or (self._access.token is None and self._access.is_own),
            "sees_values": asked.has_token,
        }

    def history(self, asked: Asked) -> dict[str, Any]:
        """The samples of the last ten minutes; with ``since``, those that are later than that."""
        since = words.real(asked.words, "since", default=0.0)
        return {"samples": [asdict(one) for one in self._daemon.survey.history if one.at > since]}

    def jobs(self, asked: Asked) -> dict[str, Any]:
        """Jobs that are not finished, and the last that are; their conditions, and why one failed, as in `status`.

        No more than are shown are read, and one of either, which says that there are more.
        """
        with self._daemon.connection() as connection:
            found = job.recent(
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
        """Dead letters by kind, and with ``limit`` one by one; what was said of them only to who has the token."""
        limit = words.number(asked.words, "limit", default=0, most=_LETTERS_SHOWN_MAX)
        offset = words.number(asked.words, "offset", default=0, most=10**9)
        with self._daemon.connection() as connection:
            selection = selected(connection, asked)
            kinds = dead_letters.kinds(connection, selection)
            letters = dead_letters.page(connection, selection, limit=limit, offset=offset) if limit else []
            records = unreadable.total(connection)
        return {
            "letters": sum(one.letters for one in kinds),
            "kinds": [one.as_json() for one in kinds[:_KINDS_SHOWN_MAX]],
            "shown": [one.as_json() if asked.has_token else replace(one, error=_HIDDEN).as_json() for one in letters],
            "records": records,
        }

    def explain(self, asked: Asked, document: str) -> dict[str, Any]:
        """Why a document is as it is; what its fields hold only to who has the token.

        Raises:
            ForbiddenError, UnauthorizedError: Values are asked for without it.
            UnavailableError: Others ask the same just now.
        """
        id_ = words.required(asked.words, "id")
        values = words.whether(asked.words, "values")
        if values:
            self._access.require_token(has_token=asked.has_token)
        if not self._explaining.acquire(timeout=_PLACE_SECONDS):
            raise UnavailableError("Other documents are being explained just now", hint="Ask again in a few seconds.")
        try:
            with self._daemon.connection() as connection:
                chosen = [one for one in store.documents(connection) if one.name == document]
                if not chosen:
                    known = ", ".join(store.served(connection)) or "none; run: syncer apply"
                    raise DefinitionError(f"No document {document[:100]} is in force", hint=f"In force: {known}")
                kafka = self._daemon.settings.kafka
                seen = explanation.read(connection, self._index(), kafka, chosen, id_, limits=_EXPLAIN)
        finally:
            self._explaining.release()
        said = seen.as_json(values=values)
        return said if asked.has_token else _without_values(said)

    # For monitoring

    def metrics(self, _: Asked) -> Response:
        """As Prometheus reads it."""
        return Response(metrics.render(), content_type=metrics.CONTENT_TYPE)

    def alive(self, _: Asked) -> Response:
        """Whether this process goes on."""
        return _health(health.alive(self._daemon.stop, self._daemon.stages))

    def ready(self, asked: Asked) -> Response:
        """Whether this process can do its work; what a server has said, which may name hosts, is not for everybody."""
        one = self._daemon
        seen = health.ready(one.stop, one.stages, one.survey.latest, needs=one.survey.needs)
        if asked.has_token or self._access.is_own:
            return _health(seen)
        checks = (each if each.is_well else replace(each, reason=_HIDDEN) for each in seen.checks)
        return _health(health.Health(checks=tuple(checks)))


def selected(connection: Connection, asked: Asked) -> Selection:
    """Which dead letters a request is about.

    Raises:
        ConfigError: It says it in a way that nobody understands.
        DefinitionError: There is no such document.
    """
    name = words.text(asked.words, "document")
    if name is not None and name not in store.served(connection):
        raise DefinitionError(f"No document {name[:100]} is in force", hint="To see which are: /api/status")
    return Selection(
        document=name,
        index_name=words.text(asked.words, "index_name"),
        kind=words.text(asked.words, "kind"),
        field=words.text(asked.words, "field"),
        value_type=words.text(asked.words, "value_type"),
        ids=words.ids(asked.words),
    )


def _job(one: Job, asked: Asked) -> dict[str, Any]:
    """A job as data; its condition and its error have values of rows."""
    said = one.as_json()
    return said if asked.has_token else said | {name: said[name] and _HIDDEN for name in ("where", "error")}


def _silence(answer: Answer) -> Concern:
    return Concern(
        says=f"{_NAMES[answer.server]} does not answer: {answer.error}.",
        do="See to it. Nothing is lost: what it keeps waiting goes on by itself. The numbers are those of before.",
    )


def _health(seen: health.Health) -> Response:
    return as_json(seen.as_json(), 200 if seen.is_well else 503)


def _open_index(settings: Settings) -> Index:
    return Index(elastic.connect(settings.elasticsearch), bulk_bytes_max=settings.worker.bulk_bytes_max)


def _once(make: Callable[[], Index]) -> Callable[[], Index]:
    """The same one each time, made when it is first needed."""
    lock = threading.Lock()
    made: list[Index] = []

    def get() -> Index:
        with lock:
            if not made:
                made.append(make())
            return made[0]

    return get


def _without_values(said: dict[str, Any]) -> dict[str, Any]:
    """An explanation without what errors quote: the values that they are about."""
    for one in said["indices"]:
        if one["verdict"] in (Verdict.PARKED, Verdict.FAILING):
            one["says"] = "Parked." if one["verdict"] is Verdict.PARKED else "Its SELECT fails."
            one["hint"] = _HIDDEN
        if one["dead_letter"] is not None:
            one["dead_letter"]["error"] = None
        one["postgres"]["failure"] = _HIDDEN if one["postgres"]["failure"] else None
    return said
