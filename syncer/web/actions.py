"""Actions: what who has the token may do: the same as the commands, each told to the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from syncer import dead_letters, events, jobs, listing, rebuild, trying
from syncer.errors import ConfigError
from syncer.job import Job, JobKind
from syncer.postgres import Connection
from syncer.web import words
from syncer.web.app import Asked
from syncer.web.facts import Daemon, selected

JOB_ID_MAX = 2**63 - 1


class Actions:
    """Does things.

    Args:
        daemon: Whose settings say where.
    """

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def pause(self, asked: Asked, job_id: int) -> dict[str, Any]:
        """Write no more pages of a job until it is resumed."""
        with self._daemon.connection() as connection:
            return _said(_changed(asked, connection, job_id, jobs.pause))

    def resume(self, asked: Asked, job_id: int) -> dict[str, Any]:
        """Go on with a job that is paused."""
        with self._daemon.connection() as connection:
            return _said(_changed(asked, connection, job_id, jobs.resume))

    def cancel(self, asked: Asked, job_id: int) -> dict[str, Any]:
        """End a job; ``note`` says so if what it leaves out may be stale."""
        with self._daemon.connection() as connection:
            done = _changed(asked, connection, job_id, jobs.cancel)
            unfilled = rebuild.unfilled_by(connection, done)
        note = "" if unfilled is None else f"What it left out may be stale. {rebuild.way_on(unfilled)}"
        return {**_said(done), "note": note}

    def retry(self, asked: Asked) -> dict[str, Any]:
        """Write documents again that could not be written, as jobs; those that only an index on standby lacks are left.

        Raises:
            SyncerError: It is not said which; or the document is halted, and nothing is tried.
        """
        _require_some(asked)
        page = self._daemon.settings.worker.batch_documents_max
        made: list[Job] = []
        with self._daemon.connection() as connection:
            selection = selected(connection, asked)
            lacking = trying.lacking(connection, selection)
            try:
                for one, _ in lacking:
                    query, parameters = dead_letters.ids_query(selection.of_index(one.index_name))
                    job = listing.create_selected(connection, one, JobKind.PART, query, parameters, page=page)
                    made += [] if job is None else [job]
            finally:  # whatever ends it: the jobs that are made are made
                done = {"jobs": [one.id for one in made], "letters": sum(one.documents_total or 0 for one in made)}
                _tell(asked, "retry", document=selection.document, **done)
        return done

    def discard(self, asked: Asked) -> dict[str, Any]:
        """Forget dead letters; their documents stay as they are until they change.

        Raises:
            SyncerError: It is not said which.
        """
        _require_some(asked)
        with self._daemon.connection() as connection:
            selection = selected(connection, asked)
            letters = dead_letters.discard(connection, selection)
        _tell(asked, "discard", document=selection.document, letters=letters)
        return {"letters": letters}


def _require_some(asked: Asked) -> None:
    """Refuse what would be about all of them because somebody forgot to say of which.

    Raises:
        ConfigError: It would.
    """
    words.required(asked.words, "document")
    if not words.whether(asked.words, "all") and not any(asked.words.get(one) for one in ("ids", "kind", "field")):
        raise ConfigError("Which of its dead letters?", hint='Say ids, kind or field; or "all": true.')


def _changed(asked: Asked, connection: Connection, job_id: int, change: Callable[[Connection, int], Job]) -> Job:
    done = change(connection, job_id)
    _tell(asked, change.__name__, job=job_id)
    return done


def _said(done: Job) -> dict[str, Any]:
    return {**done.as_json(), "reason": done.reason}


def _tell(asked: Asked, action: str, **about: Any) -> None:
    structlog.get_logger().info(events.WEB_ACTED, action=action, address=asked.address, **about)
