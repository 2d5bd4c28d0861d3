"""Wait: returns once everything that one transaction has committed is indexed, or searchable.

Available as ``syncer.wait``, ``syncer wait TOKEN`` and over HTTP. A token names the transaction: see
`syncer.capture.progress`. Postgres alone is asked: whether the transaction is visible in the snapshot up to which all
is handled, and then whether a job that it may have caused is open.

Guarantee: once the wait is over, reads by id show the transaction, and what it deleted is gone. If it was to be
searchable, searches show it too.

Reported, but not waited for: what was dead-lettered since in the indices concerned, suspended documents, and documents
with a job that was given up and may have been the transaction's. Neither waited for nor reported: indices being loaded;
changes that no trigger sees, as when a table is rewritten; and the refresh interval of an index that replaces another.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

from syncer.base import error_policy, migrations, postgres
from syncer.base.error_policy import Action
from syncer.base.errors import SyncerError, WaitTimeoutError
from syncer.base.formatting import amount
from syncer.base.model import Role
from syncer.base.postgres import Connection
from syncer.base.settings import Settings
from syncer.capture import outbox, progress
from syncer.capture.progress import Token
from syncer.documents.registry import Definitions, Document
from syncer.elasticsearch import client as elastic
from syncer.elasticsearch.reader import Holdings
from syncer.indexing import dead_letters
from syncer.indexing.dead_letters import DeadLetter
from syncer.jobs import model
from syncer.jobs.model import JobState

TIMEOUT_SECONDS = 30
"""The default timeout."""
_DEAD_LETTERED_MAX = 100
_PATIENCE_SECONDS = 2.0
"""How much longer than the timeout Elasticsearch may take to answer."""
_FIRST_PAUSE, _LONGEST_PAUSE, _SLOWER = 0.005, 0.25, 1.3
_GIVEN_UP = (JobState.CANCELLED, JobState.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """The outcome of waiting for a transaction.

    Args:
        is_searchable: Whether searches show it, and not only reads by id.
        is_captured: Whether it changed anything that a document reads, as far as that can still be told.
        seconds: How long it took.
        jobs: The ids of the jobs that its changes may have caused; they are finished.
        dead_lettered: Documents dead-lettered since, at most 100, in the indices concerned; not only its own.
        suspended: The definitions concerned that are suspended.
        incomplete: The definitions concerned that may lack it, since a job was given up and no other makes up for it.
    """

    xid: int
    is_searchable: bool
    is_captured: bool = True
    seconds: float = 0
    jobs: tuple[int, ...] = ()
    dead_lettered: tuple[DeadLetter, ...] = ()
    suspended: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether all its documents were written."""
        return not (self.dead_lettered or self.suspended or self.incomplete)


def wait(
    settings: Settings,
    token: str,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    searchable: bool = False,
    pause: Callable[[float], None] = time.sleep,
) -> Waited:
    """Return once everything that a transaction has committed is indexed: see `syncer.wait`.

    The token may also be the result of ``pg_current_xact_id()``. It may take some seconds longer than the timeout if
    Elasticsearch does not answer. If Postgres hangs, it takes as long; if its machine is gone, half a minute longer.
    An exception from ``pause`` ends the wait.
    """
    clock = _Clock(progress.parse_token(token), timeout_seconds, pause)
    while True:
        try:
            with closing(postgres.connect(settings.postgres, name="wait")) as connection:
                migrations.require_current(connection)
                outbox.prepare(connection)
                clock.token = progress.require_committed(connection, clock.token)
                return _wait(connection, settings, clock, searchable=searchable)
        except Exception as error:
            # Start over: another server may answer the next query, so earlier results do not count. Only the identity
            # of the database stays: after a failover, another transaction may get the same id.
            if error_policy.decide(error) is not Action.RETRY:
                raise
            explained = error_policy.explain(error) or SyncerError(repr(error))
            clock.pause_for("servers", explained.message, explained.hint)


def _wait(connection: Connection, settings: Settings, clock: _Clock, *, searchable: bool) -> Waited:
    """Wait for the changes, then for the jobs, then for a refresh."""
    xid, definitions = clock.token.xid, Definitions()
    relations = outbox.relations_of(connection, xid)

    def concerned() -> list[Document]:
        current = [document for document in definitions.refresh(connection) if document.role is Role.CURRENT]
        return [
            document for document in current if relations is None or relations & document.dependencies.tables.keys()
        ]

    if not _wait_for_changes(connection, clock):
        return Waited(xid=xid, is_searchable=searchable, is_captured=False, seconds=clock.seconds)
    jobs = _wait_for_jobs(connection, [document.name for document in concerned()], clock)
    refreshed: set[str] = set()
    while searchable:
        unrefreshed = [
            document for document in concerned() if document.suspended is None and document.index_name not in refreshed
        ]
        if not unrefreshed:  # none has replaced another meanwhile
            break
        patience = min(max(0.0, clock.seconds_left) + _PATIENCE_SECONDS, elastic.TIMEOUT_SECONDS)
        with elastic.connect(settings.elasticsearch, timeout_seconds=patience) as client:
            for document in unrefreshed:
                Holdings(client).refresh(document.target)  # makes searchable what was written before it was requested
                refreshed.add(document.index_name)
    documents = concerned()
    stale = model.incomplete(connection) if documents else set()
    active = [document for document in documents if document.suspended is None]
    names = [document.index_name for document in documents]
    return Waited(
        xid=xid,
        is_searchable=searchable,
        seconds=clock.seconds,
        jobs=tuple(sorted(jobs)),
        dead_lettered=tuple(dead_letters.since(connection, names, xid, limit=_DEAD_LETTERED_MAX)),
        suspended=tuple(document.name for document in documents if document.suspended is not None),
        incomplete=tuple(document.name for document in active if document.index_name in stale),
    )


@dataclass(slots=True)
class _Clock:
    """A deadline, and growing pauses between polls; and the transaction that is waited for."""

    token: Token
    timeout_seconds: float
    pause: Callable[[float], None]
    began: float = field(default_factory=time.monotonic)
    next_seconds: float = _FIRST_PAUSE

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self.began, 6)

    @property
    def seconds_left(self) -> float:
        return self.timeout_seconds - self.seconds

    def pause_for(self, component: str, waits_for: str, hint: str = "", jobs: tuple[int, ...] = ()) -> None:
        """Pause, each time a little longer.

        Raises:
            WaitTimeoutError: The deadline has passed; it says what was waited for.
        """
        seconds_left = self.seconds_left
        if seconds_left <= 0:
            message = f"Transaction {self.token.xid} is not known to be indexed after {self.timeout_seconds:g} s"
            raise WaitTimeoutError(f"{message}: {waits_for}", hint=hint, component=component, jobs=jobs)
        self.pause(min(self.next_seconds, seconds_left))
        self.next_seconds = min(self.next_seconds * _SLOWER, _LONGEST_PAUSE)


def _wait_for_changes(connection: Connection, clock: _Clock) -> bool:
    """Return once the changes of the transaction are handled; False if it has none."""
    while True:
        # If no saved cursor sees it and the outbox has no row of it, it has no changes: rows are deleted only after a
        # saved cursor has seen them. A cursor counts as handled only once each document that its changes touch is
        # written, skipped for a newer version, dead-lettered, left to a job that exists, or suspended.
        state = progress.transaction(connection, clock.token.xid)
        if state.is_handled or not state.is_captured:
            return state.is_captured
        reader, waits_for = "relay", "no daemon has read it"
        if state.is_read:
            reader, waits_for = "workers", "the workers have not handled it"
        clock.pause_for(reader, waits_for, "See: syncer status. If none runs: syncer run")


def _wait_for_jobs(connection: Connection, documents: list[str], clock: _Clock) -> set[int]:
    """Return the jobs that the transaction may have caused, once they are finished."""
    job_ids: set[int] = set()
    # All of them exist by now. Each records before which transaction id its causes were committed.
    while new := {job.id for job in model.caused_by(connection, clock.token.xid, documents)} - job_ids:
        job_ids |= new
        while True:
            jobs = model.some(connection, sorted(new))
            open_jobs = [job for job in jobs if not (job.state.is_finished or job.is_suspended)]
            if not open_jobs:
                break
            job, others_number = open_jobs[0], len(open_jobs) - 1
            state, hint = ("paused", "resume") if job.is_paused else (job.state, "list")
            waits_for = f"job {job.id} ({job.reason}) is {state}"
            waits_for += f", and {amount(others_number, 'other')}" if others_number else ""
            clock.pause_for("jobs", waits_for, f"Run: syncer jobs {hint} {job.id}", tuple(job.id for job in open_jobs))
        if len(jobs) == len(new) and not any(job.state in _GIVEN_UP for job in jobs):
            break  # otherwise another job may have replaced one that was given up, or is gone
    return job_ids
