"""Actions: the changes that a request with the token may make. Each equals a command, and is logged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from syncer.apply import reindex
from syncer.base.errors import DefinitionError
from syncer.base.postgres import Connection
from syncer.documents import registry, suspend
from syncer.indexing import dead_letters
from syncer.jobs import listing, queue
from syncer.jobs.model import Job
from syncer.monitoring.web import words
from syncer.monitoring.web.app import Asked
from syncer.monitoring.web.facts import Daemon

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
        """Write the dead-lettered documents of a definition again, as jobs.

        Raises:
            SyncerError: The request names no active definition; or it is suspended, and nothing is tried.
        """
        name = words.required(asked.words, "document")
        page = self._daemon.settings.worker.batch_documents_max
        made: list[Job] = []
        with self._daemon.connection() as connection:
            found = registry.by_role(connection, name)
            if not found:
                raise DefinitionError(f"No document {name[:100]} is active", hint="To see which are: /api/status")
            for document in found.values():
                suspend.require_active(document)
            for index_name in dead_letters.indices(connection, document=name):
                document = next(each for each in found.values() if each.index_name == index_name)
                ids = dead_letters.ids(connection, index_name)
                job = listing.create_listed(connection, document, ids, chunk=page)
                made += [] if job is None else [job]
        done = {"jobs": [each.id for each in made], "letters": sum(each.documents_total or 0 for each in made)}
        _tell(asked, "retry", document=name, **done)
        return done


def _changed(asked: Asked, connection: Connection, job_id: int, change: Callable[[Connection, int], Job]) -> Job:
    done = change(connection, job_id)
    _tell(asked, change.__name__, job=job_id)
    return done


def _said(done: Job) -> dict[str, Any]:
    return {**done.as_json(), "reason": done.reason}


def _tell(asked: Asked, action: str, **about: Any) -> None:
    structlog.get_logger().info("web.acted", action=action, address=asked.address, **about)
