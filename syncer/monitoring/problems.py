"""Problems: what in the status needs an operator, each in one sentence with one action that works.

`syncer status`, the status page, JSON and the metrics show these; all is well if there is none. What follows from
another problem is not listed beside it: while Postgres is down, nothing else is known; while Kafka is, no relay leads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from syncer.base.formatting import amount, elapsed, plain
from syncer.base.postgres import AdvisoryLock
from syncer.base.retry import CurrentTrouble
from syncer.jobs.model import Job, JobKind
from syncer.monitoring.daemons import Daemon
from syncer.monitoring.status import ELASTICSEARCH, POSTGRES, DocumentStatus, IndexFault, Status, Stored, at_work, late

_HOLDER = (
    "SELECT pid, usename, application_name FROM pg_locks JOIN pg_stat_activity USING (pid)\nWHERE locktype = 'advisory'"
    f" AND granted AND (classid, objid) = ({AdvisoryLock.RELAY >> 32}, {AdvisoryLock.RELAY & 0xFFFFFFFF});"
)
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


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem, in one sentence, and what to do about it, in several lines perhaps.

    ``runbook`` is its alert: see docs/operating.md. ``detail`` is the error as the client library words it, or where it
    was met. ``about`` is the document that it concerns, if not all.
    """

    message: str
    action: str
    runbook: str
    about: str | None = None
    detail: str = ""
    is_passing: bool = False


def problems(status: Status) -> tuple[Problem, ...]:
    """All problems, the most important first."""
    open_problems = [*_of_servers(status)]
    if status.stored is None or POSTGRES in status.silent:
        return tuple(open_problems)
    if (seconds := status.stored.standby_seconds) >= _SOON_SECONDS:
        message = f"Postgres has waited for a synchronous standby for {elapsed(seconds)}: commits wait."
        action = "Start the standby, or take it out of synchronous_standby_names. Nothing is lost meanwhile."
        open_problems.append(Problem(message, action, "SyncerComponentTroubled", is_passing=seconds < _BRIEF_SECONDS))
    open_problems += _of_daemons(status, status.stored)
    for document in status.documents:
        open_problems += _of_document(document, status, status.stored)
    return (*open_problems, *_of_jobs(status, status.stored))


def urgency(status: Status) -> Urgency:
    """The urgency of the status as a whole."""
    open_problems = problems(status)
    if any(not problem.is_passing for problem in open_problems):
        return Urgency.BAD
    return Urgency.BUSY if open_problems or status.lag_seconds >= _BEHIND_SECONDS else Urgency.WELL


def headline(status: Status) -> str:
    """One sentence that says whether all is well."""
    open_problems = problems(status)
    if open_problems:
        return open_problems[0].message if len(open_problems) == 1 else f"{len(open_problems)} problems."
    if not status.documents:
        return "All is well, but no document is active. Run: syncer apply"
    assert status.stored is not None  # else there is a problem
    phrases = []
    if status.stored.waiting:
        age = f", the oldest for {elapsed(status.lag_seconds)}" if status.lag_seconds >= _SOON_SECONDS else ""
        phrases.append(f"{amount(status.stored.waiting, 'change')} in flight{age}")
    if etas := [job.eta_seconds for job in status.stored.jobs if not job.is_paused]:
        known_etas = [seconds for seconds in etas if seconds is not None]
        until = f", done in {elapsed(max(known_etas))}" if len(known_etas) == len(etas) else ""
        phrases.append(f"{amount(len(etas), 'job')} running{until}")
    state = "Behind" if urgency(status) is Urgency.BUSY else "All is well"
    return f"{state}. {'; '.join(phrases) or 'Nothing is waiting'}."


def as_json(status: Status) -> dict[str, Any]:
    """The status as plain data: the output of `syncer status --json`, and the response of /api/status."""
    open_problems, fields = problems(status), plain(status)
    stored = fields.pop("stored") or dict.fromkeys(name for name in dir(Stored) if not name.startswith("_"))
    if status.stored is None:
        fields = dict.fromkeys(fields) | {"at": status.at, "servers": fields["servers"]}
    return {
        "is_well": not open_problems,
        "headline": headline(status),
        "status": urgency(status),
        "problems": plain(open_problems),
        **stored,
        **fields,
    }


def _of_servers(status: Status) -> Iterator[Problem]:
    waiting = ""
    if status.stored and status.stored.waiting and POSTGRES not in status.silent:
        number = status.stored.waiting
        waiting = f" {amount(number, 'change')} {'is' if number == 1 else 'are'} waiting."
    troubles = [trouble for daemon in (at_work(status.stored) if status.stored else ()) for trouble in daemon.troubles]
    for server in status.servers:
        if server.error is not None:
            ages = [trouble.seconds for trouble in troubles if trouble.server == server.server]
            silent = max([server.silent_seconds, *ages])
            # Without any earlier answer, it is unknown for how long there was none.
            is_late = server.error == late(server.server)
            is_known = server.age_seconds is not None or ages or is_late
            since = f"{'' if is_late else ','} for {elapsed(silent)}" if is_known and silent >= _SOON_SECONDS else ""
            is_passing = is_late and silent < _BRIEF_SECONDS  # one late answer says little
            message = f"{server.error}{since}.{waiting}"
            yield Problem(message, server.hint, "SyncerServerSilent", detail=server.detail, is_passing=is_passing)


def _of_daemons(status: Status, stored: Stored) -> Iterator[Problem]:
    if not at_work(stored):
        latest = min(stored.daemons, key=lambda daemon: daemon.silent_seconds, default=None)
        since = latest and f" The last one, {_name(latest)}, reported {elapsed(latest.silent_seconds)} ago."
        action = "Start one: syncer run. Nothing is lost meanwhile."
        yield Problem(f"No daemon is running.{since or ''}", action, "SyncerDown")
        return
    for daemon in stored.daemons:
        if daemon.is_silent:
            message = f"The daemon {_name(daemon)} has not reported for {elapsed(daemon.silent_seconds)}."
            action = "If its process hangs, restart it. If it was killed, this passes within a minute."
            yield Problem(message, action, "SyncerDaemonMissing", is_passing=True)
    # What no daemon does, unless one says what it waits for.
    is_waiting = any(daemon.troubles and not daemon.components for daemon in at_work(stored))
    if not status.silent and not is_waiting and not (stored.leader and stored.workers):
        begins = [stored.at - daemon.started_at.timestamp() < _BRIEF_SECONDS for daemon in stored.daemons]
        is_brief = any(begins) or len(at_work(stored)) < len(stored.daemons)
        if stored.leader is None:
            message = "No daemon leads: changes stay in the outbox."
            action = (
                "If no daemon runs a relay, start one: syncer run. Otherwise see which session holds its lock:\n"
                f"{_HOLDER}"
            )
            yield Problem(message, action, "SyncerWithoutLeader", is_passing=is_brief)
        else:
            message = "No worker is running: changes are not written."
            action = "Start a daemon with workers: syncer run, or syncer run --only workers"
            yield Problem(message, action, "SyncerWithoutWorkers", is_passing=is_brief)
    # Each kind of error once; not what follows from a server that does not answer.
    by_kind: dict[tuple[str, str], list[tuple[Daemon, CurrentTrouble]]] = {}
    for daemon in at_work(stored):
        for trouble in daemon.troubles:
            if trouble.server not in status.silent:
                by_kind.setdefault((trouble.server, trouble.kind), []).append((daemon, trouble))
    for affected in by_kind.values():
        _, longest = max(affected, key=lambda pair: pair[1].seconds)
        yield Problem(
            f"{longest.error}, for {elapsed(longest.seconds)}.",
            longest.hint or "It is tried again until it succeeds.",
            "SyncerComponentTroubled",
            detail="\n".join(f"{trouble.component} of {_name(daemon)}" for daemon, trouble in affected),
            is_passing=longest.seconds < _BRIEF_SECONDS,
        )


def _name(daemon: Daemon) -> str:
    return f"{daemon.host}, process {daemon.process}"


def _of_document(document: DocumentStatus, status: Status, stored: Stored) -> Iterator[Problem]:
    name, is_known = document.name, ELASTICSEARCH not in status.silent
    faults = document.faults if is_known else {}
    for index in document.targets:
        yield from _of_index(index, document, faults.get(index), stored)
    if is_known and document.searched is not None and not document.is_searched_alone and document.current not in faults:
        searched = " and ".join(document.searched) or "no index"
        message = f"Searches of {document.index} find {searched} instead of {document.current} alone."
        yield Problem(message, _alias_remedy(document), "SyncerAliasWrong", name)
    if document.drifted:
        message = f"{amount(document.drifted, 'document')} of {name} differed from the SELECT at the last verify."
        action = f"Why: syncer verify {name}\nTo write them again: syncer verify {name} --repair"
        yield Problem(message, action, "SyncerDrift", name)
    if document.dead_letters:
        message = f"{amount(document.dead_letters, 'document')} of {name} could not be written."
        action = f"Why, and what to do: syncer dead-letters list {name}"
        yield Problem(message, action, "SyncerDeadLetters", name)


def _alias_remedy(document: DocumentStatus) -> str:
    """Return how searches find the current index alone again; another index may have the alias, or its name."""
    alias, searched = document.index, document.searched or ()
    foreign = [index for index in searched if index not in document.targets]
    if not foreign:
        return "Run: syncer apply"
    actions: list[dict[str, Any]] = [
        {"remove_index": {"index": alias}} if index == alias else {"remove": {"index": index, "alias": alias}}
        for index in foreign
    ]
    if document.current not in searched:
        actions.append({"add": {"index": document.current, "alias": alias}})
    deletes = f"{alias} is an index now, not an alias. This deletes it" if alias in foreign else "Take it out"
    return f"{deletes}: POST /_aliases {json.dumps({'actions': actions})}"


_OPEN = {
    IndexFault.BLOCKED: "Set index.blocks.read of {} to false",
    IndexFault.SHARDS_AWAY: "Wait if a node was just started: it recovers them. "
    "Else see: GET /_cluster/allocation/explain",
    IndexFault.CLOSED: "Open it: POST /{}/_open. Its document then resumes by itself",
}


def _of_index(index: str, document: DocumentStatus, fault: IndexFault | None, stored: Stored) -> Iterator[Problem]:
    """The first problem of an index: it cannot be searched, is suspended, or is not loaded and nothing goes on."""
    name, role, is_current = document.name, document.roles[index], index == document.current
    suspended = document.suspended if is_current else document.troubles.get(index)
    give_up = f"syncer index abort {name}"
    jobs = [job for job in stored.jobs if job.index_name == index]
    # A lost index is the cause: why the document is suspended adds nothing.
    if fault is not None and (suspended is None or fault is not IndexFault.SHARDS_AWAY):
        remedy = "Run: syncer apply" if is_current else f"Give it up: {give_up}"
        message = f"The index {index} (of {name}{'' if is_current else f', {role}'}) {fault}."
        yield Problem(message, _OPEN.get(fault, remedy).format(index), "SyncerDocumentSuspended", name)
    elif suspended is not None:
        cause, _, hint = suspended.partition("\n")
        message = f"{name if is_current else f'{index} ({role})'} is suspended: {cause.rstrip('; .')}."
        action = hint or "Fix it, then run: syncer apply"
        action = action if is_current else f"{hint}\nTo give it up: {give_up}".strip()
        yield Problem(message, action, "SyncerDocumentSuspended", name)
    elif not is_current and not stored.is_rebuilt and not jobs:
        message = f"{index} is being built, but no command goes on with it. Searches use {document.current}."
        action = f"To go on: syncer index rebuild {name}\nTo give it up: {give_up}"
        yield Problem(message, action, "SyncerDocumentIncomplete", name)
    elif is_current and not document.is_loaded:
        load = next((job for job in jobs if job.completes_load and not job.is_paused), None)
        if load is None:
            message = f"{name} is not loaded: documents may be missing or stale."
            action = f"Run: syncer apply, or syncer backfill {name}"
        else:
            message = f"{name} is being loaded{_until(load)}."
            action = "Wait: until then some of its documents may be missing or stale."
        yield Problem(message, action, "SyncerDocumentIncomplete", name, is_passing=load is not None)


def _until(job: Job) -> str:
    return "" if job.eta_seconds is None else f", done in {elapsed(job.eta_seconds)}"


def _of_jobs(status: Status, stored: Stored) -> Iterator[Problem]:
    loaded = {document.current for document in status.documents if document.is_loaded}
    for job in stored.jobs:
        if job.is_paused and job.kind.is_pending:
            message = f"Job {job.id} is paused, and documents of {job.document} are stale until it is done."
            yield Problem(message, f"Run: syncer jobs resume {job.id}", "SyncerJobPaused", job.document)
        elif job.kind is JobKind.REFRESH and job.index_name in loaded:
            loaded.remove(job.index_name)  # a second refresh, which waits for this one, is the same problem
            because = f": {job.occasion}" if job.occasion else ""
            message = f"Every document of {job.document} is being refreshed{_until(job)}{because}."
            action = f"Wait: until then some may be stale. Its progress: syncer jobs list {job.id}"
            yield Problem(message, action, "SyncerLagging", job.document, is_passing=True)
