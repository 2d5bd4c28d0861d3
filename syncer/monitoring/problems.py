"""Problems: what in the status needs an operator, each in one sentence with one action that works.

`syncer status`, the status page and the metric ``syncer_status_problems`` show these; all is well if
there is none. What follows from another problem is not listed beside it: while Kafka is down, a missing worker is not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from syncer.base.formatting import amount, duration, elapsed
from syncer.base.model import Role
from syncer.jobs.model import Job, JobKind
from syncer.monitoring.status import DocumentOverview, Flow, IndexFault, Overview, Server

_SOON_SECONDS = 1
_BEHIND_SECONDS = 10


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
    """One problem.

    Args:
        message: The problem in one sentence.
        action: What to do about it; may have several lines.
        runbook: Its entry in docs/runbook.md.
        detail: The error as the server or its client library words it; may be empty.
        about: The document that it concerns; None if it concerns all.
        is_passing: Whether it goes away by itself.
    """

    message: str
    action: str
    runbook: str
    detail: str = ""
    about: str | None = None
    is_passing: bool = False


def problems(seen: Overview) -> tuple[Problem, ...]:
    """All problems, the most important first."""
    found = [
        *_of_servers(seen),
        *_of_flow(seen),
        *(one for document in seen.documents for one in _of_document(document, seen)),
    ]
    return (*found, *_of_jobs(seen))


def headline(seen: Overview) -> str:
    """One sentence that says whether all is well."""
    found = problems(seen)
    if found:
        return found[0].message if len(found) == 1 else f"{len(found)} problems."
    if not seen.documents:
        return "All is well, but no document is active. Run: syncer apply"
    going = [said for said in (_in_flight(seen), _running(seen)) if said]
    state = "Behind" if urgency(seen) is Urgency.BUSY else "All is well"
    return f"{state}. {'; '.join(going) or 'Nothing is waiting'}."


def _in_flight(seen: Overview) -> str:
    oldest = f", the oldest for {duration(seen.lag_seconds)}" if seen.lag_seconds >= _SOON_SECONDS else ""
    return f"{amount(_waiting(seen), 'change')} in flight{oldest}" if _waiting(seen) else ""


def _waiting(seen: Overview) -> int:
    return seen.stored.outbox_waiting + seen.stored.topic_waiting if seen.stored else 0


def _jobs(seen: Overview) -> tuple[Job, ...]:
    return seen.stored.jobs if seen.stored else ()


def _running(seen: Overview) -> str:
    left = [one.eta_seconds for one in _jobs(seen) if not one.is_paused]
    known = [one for one in left if one is not None]
    until = f", done in {duration(max(known))}" if left and len(known) == len(left) else ""
    return f"{amount(len(left), 'job')} running{until}" if left else ""


def urgency(seen: Overview) -> Urgency:
    """The urgency of the status as a whole."""
    found = problems(seen)
    if any(not one.is_passing for one in found):
        return Urgency.BAD
    return Urgency.BUSY if found or seen.lag_seconds >= _BEHIND_SECONDS else Urgency.WELL


def as_json(seen: Overview, rates: Flow | None) -> dict[str, Any]:
    """The status as plain data: the output of `syncer status --json`, and the response of /api/status."""
    found = problems(seen)
    return {
        **seen.as_json(),
        "rates": rates and asdict(rates),
        "is_well": not found,
        "headline": headline(seen),
        "status": urgency(seen),
        "problems": [asdict(one) for one in found],
    }


def _of_servers(seen: Overview) -> Iterator[Problem]:
    number = _waiting(seen)
    is_known = number and Server.POSTGRES not in seen.silent
    waiting = f" {amount(number, 'change')} {'is' if number == 1 else 'are'} waiting." if is_known else ""
    for one in seen.servers:
        if one.error is not None:
            since = f", for {elapsed(one.age_seconds)}" if one.age_seconds is not None else ""
            yield Problem(
                message=f"{one.error}{since}.{waiting}",
                action=one.hint,
                runbook="SyncerServerSilent",
                detail=one.detail,
            )


def _of_flow(seen: Overview) -> Iterator[Problem]:
    if seen.stored is None or Server.POSTGRES in seen.silent:
        return
    leader, has_workers = seen.stored.leader, seen.stored.workers > 0
    if leader is None and not has_workers:
        yield Problem(
            message="No daemon is running.",
            action="Start one: syncer run. Nothing is lost meanwhile.",
            runbook="SyncerDown",
        )
    elif Server.KAFKA in seen.silent:
        return
    elif leader is None:
        yield Problem(
            message="No daemon leads: changes stay in the outbox.",
            action="Start one: syncer run. If one runs, it hangs or is stopped: restart it.",
            runbook="SyncerWithoutLeader",
        )
    elif not has_workers:
        yield Problem(
            message="No worker is running: changes are not written.",
            action="Start a daemon with workers: syncer run, or syncer run --only workers",
            runbook="SyncerWithoutWorkers",
        )


def _of_document(one: DocumentOverview, seen: Overview) -> Iterator[Problem]:
    is_known = Server.ELASTICSEARCH not in seen.silent
    faults = one.faults if is_known else {}
    # A lost index is the cause: why the document is suspended adds nothing.
    lost = {name for name, fault in faults.items() if fault is not IndexFault.SHARDS_AWAY}
    suspended = {*one.troubles, *([one.current] if one.suspended is not None else [])}
    for index_name, fault in faults.items():
        if index_name in lost or index_name not in suspended:
            yield _of_index(one, index_name, fault)
    if one.current not in lost:
        yield from _of_state(one, seen)
    yield from _of_indices(one, lost)
    if is_known and one.searched is not None and not one.is_searched_alone and one.current not in faults:
        found = " and ".join(one.searched) or "no index"
        yield Problem(
            message=f"Searches of {one.index} find {found} instead of {one.current} alone.",
            action="Run: syncer apply",
            runbook="SyncerAliasWrong",
            about=one.name,
        )
    if one.drifted:
        yield Problem(
            message=f"{amount(one.drifted, 'document')} of {one.name} differed from the SELECT at the last verify.",
            action=f"Run: syncer verify {one.name} --repair",
            runbook="SyncerDrift",
            about=one.name,
        )
    if one.dead_letters:
        yield Problem(
            message=f"{amount(one.dead_letters, 'document')} of {one.name} could not be written.",
            action=f"Why, and what to do: syncer dead-letters list --document {one.name}",
            runbook="SyncerDeadLetters",
            about=one.name,
        )


def _of_state(one: DocumentOverview, seen: Overview) -> Iterator[Problem]:
    if one.suspended is not None:
        what, _, hint = one.suspended.partition("\n")
        yield Problem(
            message=f"{one.name} is suspended: {what}.",
            action=hint or "Fix it, then run: syncer apply",
            runbook="SyncerDocumentSuspended",
            about=one.name,
        )
    elif not one.is_loaded:
        yield _incomplete(one, seen)


def _of_indices(one: DocumentOverview, lost: Collection[str]) -> Iterator[Problem]:
    """The problems that the registry knows of indices, except those that are lost."""
    for index_name, said in one.troubles.items():
        if index_name not in lost:
            what, _, hint = said.partition("\n")
            yield Problem(
                message=f"{index_name} ({one.roles[index_name]}) is suspended: {what}.",
                action=_do_without(one, hint),
                runbook="SyncerDocumentSuspended",
                about=one.name,
            )


def _incomplete(one: DocumentOverview, seen: Overview) -> Problem:
    filling = [job for job in _jobs(seen) if job.index_name == one.current and job.completes_load and not job.is_paused]
    if filling:
        left = filling[0].eta_seconds
        until = "" if left is None else f", done in {duration(left)}"
        return Problem(
            message=f"{one.name} is being loaded{until}.",
            action="Wait: until then some of its documents may be missing or stale.",
            runbook="SyncerDocumentIncomplete",
            about=one.name,
            is_passing=True,
        )
    return Problem(
        message=f"{one.name} is not loaded: documents may be missing or stale.",
        action=f"Run: syncer apply, or syncer backfill {one.name}",
        runbook="SyncerDocumentIncomplete",
        about=one.name,
    )


def _of_index(one: DocumentOverview, index_name: str, fault: IndexFault) -> Problem:
    """The problem of an index that cannot be searched."""
    role = one.roles[index_name]
    if fault is IndexFault.SHARDS_AWAY:
        action = "Wait if Elasticsearch was just started: it recovers them. Else see: GET /_cluster/allocation/explain"
    elif fault is IndexFault.CLOSED:
        action = f"Open it: POST /{index_name}/_open. Its document then resumes by itself"
    else:
        action = {
            Role.CURRENT: "Run: syncer apply",
            Role.BUILDING: f"Give it up: syncer index abort {one.name}",
        }[role]
    of = one.name if role is Role.CURRENT else f"{one.name}, {role}"
    return Problem(
        message=f"The index {index_name} (of {of}) {fault}.",
        action=action,
        runbook="SyncerDocumentSuspended",
        about=one.name,
    )


def _do_without(one: DocumentOverview, hint: str) -> str:
    """The action for a suspended index that is being built."""
    return f"{hint}\nTo give it up: syncer index abort {one.name}".strip()


def _of_jobs(seen: Overview) -> Iterator[Problem]:
    loaded = {one.current for one in seen.documents if one.is_loaded}
    for one in _jobs(seen):
        if one.is_paused and one.kind.is_pending:
            yield Problem(
                message=f"Job {one.id} is paused, and documents of {one.document} are stale until it is done.",
                action=f"Run: syncer jobs resume {one.id}",
                runbook="SyncerJobPaused",
                about=one.document,
            )
        elif one.kind is JobKind.REFRESH and one.index_name in loaded:
            loaded.remove(one.index_name)  # a second refresh, which waits for this one, is the same problem
            until = "" if one.eta_seconds is None else f", done in {duration(one.eta_seconds)}"
            yield Problem(
                message=f"Every document of {one.document} is being written again{until}.",
                action=f"Wait: until then some may be stale. Its progress: syncer jobs show {one.id}",
                runbook="SyncerRecordsLost",
                about=one.document,
                is_passing=True,
            )
