"""Verdict: what a person needs first: is the document as it should be, and if not, why, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from syncer import halting, rebuild
from syncer.drift import Kind
from syncer.explain.events import Event, Flow, Stage
from syncer.explain.standing import Standing
from syncer.model import Role
from syncer.version import Origin
from syncer.wording import amount, duration

_MINUTE = 60


class Verdict(StrEnum):
    """Why a document is as it is."""

    EQUAL = "equal"
    """It equals its SELECT."""
    ABSENT = "absent"
    """Neither side has it."""
    BEHIND = "behind"
    """It differs, and a change that touches it is on its way, or a job that may write it."""
    UNFILLED = "unfilled"
    """It differs, and its index has not been filled yet."""
    PARKED = "parked"
    """It is a dead letter."""
    FAILING = "failing"
    """Its SELECT fails on it."""
    HALTED = "halted"
    """Its definition is halted, or has to halt."""
    FOREIGN = "foreign"
    """Somebody else wrote it, with a version that syncer will not surpass."""
    DRIFTED = "drifted"
    """It differs, and nothing is on its way."""
    CHANGING = "changing"
    """It differs, and is being written right now."""
    UNKNOWN = "unknown"
    """It differs, and not all that may be on its way could be looked at; or it could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A verdict in words.

    Args:
        verdict: What it is.
        says: One sentence.
        hint: What to do; empty if nothing is to be done.
    """

    verdict: Verdict
    says: str
    hint: str = ""


def judge(standing: Standing, flow: Flow, *, at: float, is_still: bool) -> Answer:
    """The verdict on one index.

    Args:
        standing: The document in that index.
        flow: The changes that touch it.
        at: The time of the database, in seconds since the Unix epoch.
        is_still: Whether nothing moved while it was looked at.
    """
    drift = standing.look.drift
    answer = _halted(standing) or _at_fault(standing)
    if answer is not None:
        return answer
    if drift is None:
        return _EQUAL if standing.look.row is not None else _ABSENT
    coming = [one for one in flow.coming if standing.document.index_name in one.indices]
    if coming:
        return Answer(
            verdict=Verdict.BEHIND,
            says=f"Behind: {'' if flow.is_complete else 'at least '}{_on_its_way(coming, at)}.",
            hint="If it stays so, `syncer status` says whether a relay and workers are at work.",
        )
    return _different(standing, flow, _HOW[drift.kind]) if is_still else _CHANGING


_EQUAL = Answer(verdict=Verdict.EQUAL, says="Equal to its SELECT.")
_ABSENT = Answer(verdict=Verdict.ABSENT, says="No such document: neither Postgres nor Elasticsearch has it.")
_CHANGING = Answer(verdict=Verdict.CHANGING, says="It is being written right now: ask again.")


def _halted(standing: Standing) -> Answer | None:
    """Why its whole index is not written; None if it is."""
    document, look = standing.document, standing.look
    if document.halted is not None:
        what, _, hint = document.halted.partition("\n")
        if document.role is Role.STANDBY:
            hint = halting.no_way_back(document.name)
        return Answer(verdict=Verdict.HALTED, says=f"{document.name} is halted: {what}.", hint=hint)
    if look.unreadable is not None:
        return Answer(verdict=Verdict.UNKNOWN, says=f"{look.unreadable.message}.", hint=look.unreadable.hint)
    if look.failure is not None and not look.is_at_fault:
        return Answer(verdict=Verdict.HALTED, says=f"{look.failure.message}.", hint=look.failure.hint)
    return None


def _at_fault(standing: Standing) -> Answer | None:
    """Why this one document is not written, whatever is on its way; None if nothing is in the way."""
    look, parked = standing.look, standing.dead_letter
    if any(one.is_final for one in standing.copies):
        return _foreign(standing)
    if parked is not None and (look.drift is not None or look.failure is not None):
        return Answer(
            verdict=Verdict.PARKED,
            says=f"Parked: {parked.error}.",
            hint="Mend the row: it is tried again with the next change that touches it.\n"
            "Or mend select.sql or index.json, and run: syncer apply",
        )
    if look.failure is not None:
        return Answer(
            verdict=Verdict.FAILING,
            says=f"Its SELECT fails: {_cause(look.failure)}.",
            hint="Mend the row. Or mend select.sql, and run: syncer apply",
        )
    return None


def _cause(error: BaseException) -> str:
    return str(error.__cause__ or error).partition("\n")[0].strip()


def _foreign(standing: Standing) -> Answer:
    name = standing.document.name
    equals = "" if standing.look.drift is not None else ", though it equals its SELECT now"
    return Answer(
        verdict=Verdict.FOREIGN,
        says=f"Not syncer's: somebody else wrote this document, with a version beyond all that syncer draws{equals}.",
        hint=f"Find out who writes to {standing.document.index}, and stop it.\n"
        f"Elasticsearch refuses every lesser version, so `syncer verify {name} --repair` cannot overwrite it;\n"
        f"`syncer backfill {name} --rebuild` can: it makes a new index without it.",
    )


_HOW = {
    Kind.DIFFERENT: "Different",
    Kind.MISSING: "Missing from Elasticsearch",
    Kind.EXTRA: "Elasticsearch has it and Postgres does not",
    Kind.MISPLACED: "In the wrong place",
}


def _different(standing: Standing, flow: Flow, how: str) -> Answer:
    """The verdict on what differs though nothing that touches it was found on its way."""
    document = standing.document
    if standing.jobs:
        return _being_written(standing, how)
    if not document.is_filled:
        return Answer(verdict=Verdict.UNFILLED, says=f"{how}: its index is not filled.", hint=rebuild.way_on(document))
    if (why := _unsure(flow, document.index_name)) is not None:
        return Answer(verdict=Verdict.UNKNOWN, says=f"{how}; whether a change is on its way is not known: {why}.")
    hint = f"Run: syncer verify {document.name} --repair"
    if any(one.origin is Origin.FOREIGN for one in standing.copies):
        return Answer(
            verdict=Verdict.DRIFTED,
            says=f"{how}: somebody else wrote this document, and nothing is on its way.",
            hint=f"Find out who writes to {document.index}, and stop it. {hint}",
        )
    if standing.copies:
        hint += (
            f"\nDoes somebody else write to {document.index}? "
            "What is written without a version, over syncer's own, looks like this."
        )
    return Answer(verdict=Verdict.DRIFTED, says=f"{how}, and nothing is on its way.", hint=hint)


def _being_written(standing: Standing, how: str) -> Answer:
    """The verdict on what a job may yet come to."""
    coming = standing.jobs[0]
    job = coming.job
    if coming.is_in_hand:
        does = "is writing it just now"
    elif coming.is_certain:
        does = "has yet to write it"
    else:
        does = f"is writing {'all' if job.kind.is_whole else 'some'} documents"
    total = "an unknown number" if job.documents_total is None else f"{job.documents_total:,}"
    paused = ", but is paused" if job.is_paused else ""
    return Answer(
        verdict=Verdict.BEHIND,
        says=f"{how}; job {job.id} ({job.reason}) {does}{paused}: {job.documents_done:,} of {total} done.",
        hint=f"To follow it: syncer jobs show {job.id}",
    )


def _unsure(flow: Flow, index_name: str) -> str | None:
    """Why something that is on its way may have been overlooked."""
    if flow.trouble is not None:
        return "Kafka could not be asked"
    if index_name in flow.undecided:
        return flow.undecided[index_name]
    if flow.lost:
        return f"{amount(flow.lost, 'record')} left the topic before the workers had them"
    if flow.unreadable:
        return f"{amount(flow.unreadable, 'record')} in the topic cannot be read as changes"
    short = [one for one in flow.searched if one.stage is not Stage.DONE and not one.is_complete]
    if short:
        return " and ".join(
            f"only the oldest {one.looked:,} of {one.of:,} changes in the {one.stage} were looked at" for one in short
        )
    return None


def _on_its_way(coming: Sequence[Event], at: float) -> str:
    """As in: 2 changes are in the outbox and 1 is in the topic, the oldest 0.4 s old."""
    parts: list[str] = []
    for stage in (Stage.OUTBOX, Stage.TOPIC):
        many = sum(one.stage is stage for one in coming)
        if many:
            what = f"{many:,}" if parts else amount(many, "change")
            parts.append(f"{what} {'is' if many == 1 else 'are'} in the {stage}")
    return f"{' and '.join(parts)}, {'the oldest ' if len(coming) > 1 else ''}{age(at - coming[0].changed_at)} old"


def age(seconds: float) -> str:
    """How old something is, as a person says it."""
    return f"{max(0, seconds):.1f} s" if seconds < _MINUTE else duration(seconds)
