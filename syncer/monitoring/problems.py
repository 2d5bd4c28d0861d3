"""Problems: what in the status needs an operator, each in one sentence with one action that works.

`syncer status`, the status page, JSON and the metrics show these; all is well if there is none. What follows from
another problem is not listed beside it: while Postgres is down, nothing else is known; while Kafka is, no relay leads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from syncer.base.formatting import amount, duration, elapsed
from syncer.base.model import Role
from syncer.base.retry import CurrentTrouble
from syncer.jobs.model import Job, JobKind
from syncer.monitoring.daemons import Daemon
from syncer.monitoring.status import ELASTICSEARCH, POSTGRES, DocumentStatus, IndexFault, Status, Stored

_SOON_SECONDS = 1
_BEHIND_SECONDS = 10
_BRIEF_SECONDS = 10
"""What has lasted for less usually passes: a restart, a change of the leader."""


class Urgency(StrEnum):
    """The urgency of the status as a whole."""

    WELL = "well"
    """Nothing to do."""
    BUSY = "busy"
    """Nothing to do but wait."""
    BAD = "bad"
    """An operator must act."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem, in one sentence, and what to do about it, in several lines perhaps.

    ``runbook`` is its alert: see docs/operating.md. ``detail`` is the error as the client library words it, or where it
    was met. ``about`` is the document that it concerns, if not all.
    """

    message: str
    action: str
    runbook: str
    detail: str = ""
    about: str | None = None
    is_passing: bool = False


def problems(status: Status) -> tuple[Problem, ...]:
    """All problems, the most important first."""
    found = [*_of_servers(status)]
    if status.stored is None or POSTGRES in status.silent:
        return tuple(found)
    found += _of_daemons(status.stored, status.silent)
    found += (problem for document in status.documents for problem in _of_document(document, status))
    return (*found, *_of_jobs(status))


def headline(status: Status) -> str:
    """One sentence that says whether all is well."""
    found = problems(status)
    if found:
        return found[0].message if len(found) == 1 else f"{len(found)} problems."
    if not status.documents:
        return "All is well, but no document is active. Run: syncer apply"
    going = [phrase for phrase in (_in_flight(status), _running(status)) if phrase]
    state = "Behind" if urgency(status) is Urgency.BUSY else "All is well"
    return f"{state}. {'; '.join(going) or 'Nothing is waiting'}."


def _in_flight(status: Status) -> str:
    oldest = f", the oldest for {duration(status.lag_seconds)}" if status.lag_seconds >= _SOON_SECONDS else ""
    return f"{amount(_waiting(status), 'change')} in flight{oldest}" if _waiting(status) else ""


def _waiting(status: Status) -> int:
    return status.stored.outbox_waiting + status.stored.topic_waiting if status.stored else 0


def _jobs(status: Status) -> tuple[Job, ...]:
    return status.stored.jobs if status.stored else ()


def _running(status: Status) -> str:
    left = [job.eta_seconds for job in _jobs(status) if not job.is_paused]
    known = [seconds for seconds in left if seconds is not None]
    until = f", done in {duration(max(known))}" if left and len(known) == len(left) else ""
    return f"{amount(len(left), 'job')} running{until}" if left else ""


def urgency(status: Status) -> Urgency:
    """The urgency of the status as a whole."""
    found = problems(status)
    if any(not problem.is_passing for problem in found):
        return Urgency.BAD
    return Urgency.BUSY if found or status.lag_seconds >= _BEHIND_SECONDS else Urgency.WELL


def as_json(status: Status) -> dict[str, Any]:
    """The status as plain data: the output of `syncer status --json`, and the response of /api/status."""
    found, stored = problems(status), status.stored
    leader = stored and stored.leader
    return {
        "is_well": not found,
        "headline": headline(status),
        "status": urgency(status),
        "problems": [asdict(problem) for problem in found],
        "at": status.at,
        "servers": [asdict(server) for server in status.servers],
        "daemons": stored and [daemon.as_json() for daemon in stored.daemons],
        "leader": leader and {"host": leader.host, "process": leader.process},
        "workers": stored and stored.workers,
        "outbox_waiting": stored and stored.outbox_waiting,
        "outbox_lag_seconds": status.outbox_lag_seconds if stored else None,
        "topic_waiting": stored and stored.topic_waiting,
        "topic_lag_seconds": status.topic_lag_seconds if stored else None,
        "lag_seconds": status.lag_seconds if stored else None,
        "totals": stored and {name: getattr(stored, name) for name in ("captured", "published", "handled")},
        "written_per_second": stored and stored.written_per_second,
        "epoch": stored and stored.epoch,
        "documents": [asdict(document) for document in status.documents] if stored else None,
        "jobs": [job.as_json() for job in stored.jobs] if stored else None,
        "verifications": [verification.as_json() for verification in stored.verifications] if stored else None,
    }


def _of_servers(status: Status) -> Iterator[Problem]:
    number = _waiting(status)
    is_known = number and POSTGRES not in status.silent
    waiting = f" {amount(number, 'change')} {'is' if number == 1 else 'are'} waiting." if is_known else ""
    daemons = status.stored.at_work if status.stored else ()
    for server in status.servers:
        if server.error is not None:
            troubles = (trouble for daemon in daemons for trouble in daemon.troubles)
            ages = [trouble.seconds for trouble in troubles if trouble.server == server.server]
            silent = max([server.silent_seconds, *ages])
            since = f", for {elapsed(silent)}" if silent >= _SOON_SECONDS else ""
            yield Problem(
                message=f"{server.error}{since}.{waiting}",
                action=server.hint,
                runbook="SyncerServerSilent",
                detail=server.detail,
            )


def _of_daemons(stored: Stored, silent: Collection[str]) -> Iterator[Problem]:
    if not stored.at_work:
        last = min(stored.daemons, key=lambda daemon: daemon.silent_seconds, default=None)
        since = "" if last is None else f" The last one, {_name(last)}, reported {elapsed(last.silent_seconds)} ago."
        yield Problem(
            message=f"No daemon is running.{since}",
            action="Start one: syncer run. Nothing is lost meanwhile.",
            runbook="SyncerDown",
        )
        return
    for daemon in stored.daemons:
        if daemon.is_silent:
            yield Problem(
                message=f"The daemon {_name(daemon)} has not reported for {elapsed(daemon.silent_seconds)}.",
                action="If its process hangs, restart it. If it was killed, this passes within a minute.",
                runbook="SyncerDaemonMissing",
                is_passing=True,
            )
    if not silent:
        yield from _of_duties(stored)
    yield from _of_troubles(stored, silent)


def _of_duties(stored: Stored) -> Iterator[Problem]:
    """What no daemon does, though all servers answer."""
    if any(daemon.troubles and not daemon.components for daemon in stored.at_work):
        return  # it says what it waits for
    is_brief = any(
        daemon.is_silent or stored.at - daemon.started_at.timestamp() < _BRIEF_SECONDS for daemon in stored.daemons
    )
    if stored.leader is None:
        yield Problem(
            message="No daemon leads: changes stay in the outbox.",
            action="If no daemon runs a relay, start one: syncer run. Otherwise restart the daemons.",
            runbook="SyncerWithoutLeader",
            is_passing=is_brief,
        )
    elif not stored.workers:
        yield Problem(
            message="No worker is running: changes are not written.",
            action="Start a daemon with workers: syncer run, or syncer run --only workers",
            runbook="SyncerWithoutWorkers",
            is_passing=is_brief,
        )


def _of_troubles(stored: Stored, silent: Collection[str]) -> Iterator[Problem]:
    """What components are retrying, each kind of error once; not what follows from a server that does not answer."""
    by_kind: dict[tuple[str, str], list[tuple[Daemon, CurrentTrouble]]] = {}
    for daemon in stored.at_work:
        for trouble in daemon.troubles:
            if trouble.server not in silent:
                by_kind.setdefault((trouble.server, trouble.kind), []).append((daemon, trouble))
    for found in by_kind.values():
        _, longest = max(found, key=lambda pair: pair[1].seconds)
        yield Problem(
            message=f"{longest.error}, for {elapsed(longest.seconds)}.",
            action=longest.hint or "It is tried again until it succeeds.",
            runbook="SyncerComponentTroubled",
            detail="\n".join(f"{trouble.component} of {_name(daemon)}" for daemon, trouble in found),
            is_passing=longest.seconds < _BRIEF_SECONDS,
        )


def _name(daemon: Daemon) -> str:
    return f"{daemon.host}, process {daemon.process}"


def _of_document(document: DocumentStatus, status: Status) -> Iterator[Problem]:
    is_known = ELASTICSEARCH not in status.silent
    faults = document.faults if is_known else {}
    # A lost index is the cause: why the document is suspended adds nothing.
    lost = {name for name, fault in faults.items() if fault is not IndexFault.SHARDS_AWAY}
    suspended = {*document.troubles, *([document.current] if document.suspended is not None else [])}
    for index_name, fault in faults.items():
        if index_name in lost or index_name not in suspended:
            yield _of_index(document, index_name, fault)
    if document.current not in lost:
        yield from _of_state(document, status)
    yield from _of_indices(document, lost)
    if is_known and document.searched is not None and not document.is_searched_alone and document.current not in faults:
        found = " and ".join(document.searched) or "no index"
        yield Problem(
            message=f"Searches of {document.index} find {found} instead of {document.current} alone.",
            action="Run: syncer apply",
            runbook="SyncerAliasWrong",
            about=document.name,
        )
    if document.drifted:
        drifted = amount(document.drifted, "document")
        yield Problem(
            message=f"{drifted} of {document.name} differed from the SELECT at the last verify.",
            action=f"Run: syncer verify {document.name} --repair",
            runbook="SyncerDrift",
            about=document.name,
        )
    if document.dead_letters:
        yield Problem(
            message=f"{amount(document.dead_letters, 'document')} of {document.name} could not be written.",
            action=f"Why, and what to do: syncer dead-letters list {document.name}",
            runbook="SyncerDeadLetters",
            about=document.name,
        )


def _of_state(document: DocumentStatus, status: Status) -> Iterator[Problem]:
    if document.suspended is not None:
        what, _, hint = document.suspended.partition("\n")
        yield Problem(
            message=f"{document.name} is suspended: {what}.",
            action=hint or "Fix it, then run: syncer apply",
            runbook="SyncerDocumentSuspended",
            about=document.name,
        )
    elif not document.is_loaded:
        yield _incomplete(document, status)


def _of_indices(document: DocumentStatus, lost: Collection[str]) -> Iterator[Problem]:
    """The problems that the registry knows of indices, except those that are lost."""
    for index_name, reason in document.troubles.items():
        if index_name not in lost:
            what, _, hint = reason.partition("\n")
            yield Problem(
                message=f"{index_name} ({document.roles[index_name]}) is suspended: {what}.",
                action=_do_without(document, hint),
                runbook="SyncerDocumentSuspended",
                about=document.name,
            )


def _incomplete(document: DocumentStatus, status: Status) -> Problem:
    loads = (job for job in _jobs(status) if job.index_name == document.current and job.completes_load)
    load = next((job for job in loads if not job.is_paused), None)
    if load is not None:
        left = load.eta_seconds
        until = "" if left is None else f", done in {duration(left)}"
        return Problem(
            message=f"{document.name} is being loaded{until}.",
            action="Wait: until then some of its documents may be missing or stale.",
            runbook="SyncerDocumentIncomplete",
            about=document.name,
            is_passing=True,
        )
    return Problem(
        message=f"{document.name} is not loaded: documents may be missing or stale.",
        action=f"Run: syncer apply, or syncer backfill {document.name}",
        runbook="SyncerDocumentIncomplete",
        about=document.name,
    )


def _of_index(document: DocumentStatus, index_name: str, fault: IndexFault) -> Problem:
    """The problem of an index that cannot be searched."""
    role = document.roles[index_name]
    if fault is IndexFault.SHARDS_AWAY:
        action = "Wait if Elasticsearch was just started: it recovers them. Else see: GET /_cluster/allocation/explain"
    elif fault is IndexFault.CLOSED:
        action = f"Open it: POST /{index_name}/_open. Its document then resumes by itself"
    else:
        action = {
            Role.CURRENT: "Run: syncer apply",
            Role.BUILDING: f"Give it up: syncer index abort {document.name}",
        }[role]
    of = document.name if role is Role.CURRENT else f"{document.name}, {role}"
    return Problem(
        message=f"The index {index_name} (of {of}) {fault}.",
        action=action,
        runbook="SyncerDocumentSuspended",
        about=document.name,
    )


def _do_without(document: DocumentStatus, hint: str) -> str:
    """The action for a suspended index that is being built."""
    return f"{hint}\nTo give it up: syncer index abort {document.name}".strip()


def _of_jobs(status: Status) -> Iterator[Problem]:
    loaded = {document.current for document in status.documents if document.is_loaded}
    for job in _jobs(status):
        if job.is_paused and job.kind.is_pending:
            yield Problem(
                message=f"Job {job.id} is paused, and documents of {job.document} are stale until it is done.",
                action=f"Run: syncer jobs resume {job.id}",
                runbook="SyncerJobPaused",
                about=job.document,
            )
        elif job.kind is JobKind.REFRESH and job.index_name in loaded:
            loaded.remove(job.index_name)  # a second refresh, which waits for this one, is the same problem
            until = "" if job.eta_seconds is None else f", done in {duration(job.eta_seconds)}"
            yield Problem(
                message=f"Every document of {job.document} is being written again{until}.",
                action=f"Wait: until then some may be stale. Its progress: syncer jobs list {job.id}",
                runbook="SyncerLagging",
                about=job.document,
                is_passing=True,
            )
