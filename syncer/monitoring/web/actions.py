"""Actions: the changes that a request with the token may make. Each equals a command, and is logged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from syncer.apply import reindex
from syncer.base.errors import ConfigError
from syncer.base.postgres import Connection
from syncer.indexing import dead_letters
from syncer.jobs import listing, queue
from syncer.jobs.model import Job
from syncer.monitoring.web import words
from syncer.monitoring.web.app import Asked
from syncer.monitoring.web.facts import Daemon, selected

JOB_ID_MAX = 2**63 - 1


class Actions:
    """Executes actions.

    Args:
        daemon: The daemon whose settings apply.
    """

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def pause(self, asked: Asked, job_id: int) -> dict[str, Any]:
        """Stop writing chunks of a job until it is resumed."""
        with self._daemon.connection() as connection:
            return _said(_changed(asked, connection, job_id, queue.pause))

    def resume(self, asked: Asked, job_id: int) -> dict[str, Any]:
        """Resume a paused job."""
        with self._daemon.connection() as connection:
            return _said(_changed(asked, connection, job_id, queue.resume))

    def cancel(self, asked: Asked, job_id: int) -> dict[str, Any]:
        """Cancel a job; ``note`` says so if documents that it did not write may be stale."""
        with self._daemon.connection() as connection:
            done = _changed(asked, connection, job_id, queue.cancel)
            incomplete = reindex.incomplete_by(connection, done)
        note = "" if incomplete is None else f"What it left out may be stale. {reindex.way_on(incomplete)}"
        return {**_said(done), "note": note}

    def retry(self, asked: Asked) -> dict[str, Any]:
        """Write dead-lettered documents again, as jobs.

        Raises:
            SyncerError: The request does not say which; or the definition is suspended, and nothing is tried.
        """
        _require_some(asked)
        page = self._daemon.settings.worker.batch_documents_max
        made: list[Job] = []
        with self._daemon.connection() as connection:
            selection = selected(connection, asked)
            lacking = dead_letters.to_retry(connection, selection)
            try:
                for one, _ in lacking:
                    ids = dead_letters.ids(connection, selection.of_index(one.index_name))
                    job = listing.create_listed(connection, one, ids, chunk=page)
                    made += [] if job is None else [job]
            finally:  # also after an error: jobs created so far remain
                done = {"jobs": [one.id for one in made], "letters": sum(one.documents_total or 0 for one in made)}
                _tell(asked, "retry", document=selection.document, **done)
        return done

    def discard(self, asked: Asked) -> dict[str, Any]:
        """Delete dead letters; their documents stay as they are until they change.

        Raises:
            SyncerError: The request does not say which.
        """
        _require_some(asked)
        with self._daemon.connection() as connection:
            selection = selected(connection, asked)
            letters = dead_letters.discard(connection, selection)
        _tell(asked, "discard", document=selection.document, letters=letters)
        return {"letters": letters}


def _require_some(asked: Asked) -> None:
    """Refuse a request that would concern all dead letters only because it lacks a filter.

    Raises:
        ConfigError: It does.
    """
    words.required(asked.words, "document")
    if not words.whether(asked.words, "all") and not any(asked.words.get(one) for one in ("ids", "kind", "field")):
        raise ConfigError("Missing parameter: ids, kind, field or all", hint='Add one of them, such as "all": true.')


def _changed(asked: Asked, connection: Connection, job_id: int, change: Callable[[Connection, int], Job]) -> Job:
    done = change(connection, job_id)
    _tell(asked, change.__name__, job=job_id)
    return done


def _said(done: Job) -> dict[str, Any]:
    return {**done.as_json(), "reason": done.reason}


def _tell(asked: Asked, action: str, **about: Any) -> None:
    structlog.get_logger().info("web.acted", action=action, address=asked.address, **about)
