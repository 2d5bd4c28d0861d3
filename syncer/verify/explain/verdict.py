"""Verdict: whether a document equals its SELECT; if not, why, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from syncer.apply import reindex
from syncer.indexing.failover import Origin
from syncer.verify.diff import DriftKind
from syncer.verify.explain.standing import DocumentInIndex


class Verdict(StrEnum):
    """The state of a document in one index."""

    EQUAL = "equal"
    """It equals its SELECT."""
    ABSENT = "absent"
    """Neither side has it."""
    BEHIND = "behind"
    """It differs, and a job may write it, or changes that may be its own are not handled yet."""
    INCOMPLETE = "incomplete"
    """It differs, and its index has not been loaded yet."""
    DEAD_LETTERED = "dead_lettered"
    """It is a dead letter."""
    FAILING = "failing"
    """Its SELECT fails on it."""
    SUSPENDED = "suspended"
    """Its definition is suspended, or has to be."""
    FOREIGN = "foreign"
    """Another client wrote it, with a version that syncer will not surpass."""
    DRIFTED = "drifted"
    """It differs, every change is handled, and no job will write it."""
    CHANGING = "changing"
    """It differs, and is being written right now."""
    UNKNOWN = "unknown"
    """It could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """A verdict in words.

    Args:
        hint: What to do; empty if nothing is needed.
    """

    verdict: Verdict
    says: str
    hint: str = ""


def judge(standing: DocumentInIndex, *, in_flight: str, is_still: bool) -> Conclusion:
    """Return the verdict on one index.

    ``in_flight`` names changes that are not handled yet. ``is_still`` says whether the document kept its version while
    they were waited for.
    """
    drift = standing.drift
    answer = _suspended(standing) or _at_fault(standing)
    if answer is not None:
        return answer
    if drift is None:
        return _EQUAL if standing.row is not None else _ABSENT
    return _different(standing, in_flight, _HOW[drift.kind]) if is_still else _CHANGING


_EQUAL = Conclusion(verdict=Verdict.EQUAL, says="Equal to its SELECT.")
_ABSENT = Conclusion(verdict=Verdict.ABSENT, says="No such document: neither Postgres nor Elasticsearch has it.")
_CHANGING = Conclusion(verdict=Verdict.CHANGING, says="It is being written right now: ask again.")


def _suspended(standing: DocumentInIndex) -> Conclusion | None:
    """Say why the whole index is not written; None if it is."""
    document = standing.document
    if document.suspended is not None:
        what, _, hint = document.suspended.partition("\n")
        return Conclusion(verdict=Verdict.SUSPENDED, says=f"{document.name} is suspended: {what}.", hint=hint)
    if standing.unreadable is not None:
        return Conclusion(
            verdict=Verdict.UNKNOWN, says=f"{standing.unreadable.message}.", hint=standing.unreadable.hint
        )
    if standing.failure is not None and not standing.is_at_fault:
        return Conclusion(verdict=Verdict.SUSPENDED, says=f"{standing.failure.message}.", hint=standing.failure.hint)
    return None


def _at_fault(standing: DocumentInIndex) -> Conclusion | None:
    """Say why this one document cannot be written, whatever is in flight; None if it can."""
    dead_lettered = standing.dead_letter
    if any(one.is_final for one in standing.copies):
        return _foreign(standing)
    if dead_lettered is not None and (standing.drift is not None or standing.failure is not None):
        return Conclusion(
            verdict=Verdict.DEAD_LETTERED,
            says=f"Dead-lettered: {dead_lettered.error}.",
            hint="Fix the row: it is tried again with the next change that touches it.\n"
            "Or fix select.sql or index.json, and run: syncer apply",
        )
    if standing.failure is not None:
        return Conclusion(
            verdict=Verdict.FAILING,
            says=f"Its SELECT fails: {_cause(standing.failure)}.",
            hint="Fix the row. Or fix select.sql, and run: syncer apply",
        )
    return None


def _cause(error: BaseException) -> str:
    return str(error.__cause__ or error).partition("\n")[0].strip()


def _foreign(standing: DocumentInIndex) -> Conclusion:
    name = standing.document.name
    equals = "" if standing.drift is not None else ", though it equals its SELECT now"
    return Conclusion(
        verdict=Verdict.FOREIGN,
        says=f"Another client wrote this document, with a version greater than any that syncer assigns{equals}.",
        hint=f"Find the client that writes to {standing.document.index}, and stop it.\n"
        f"Elasticsearch refuses every lower version, so `syncer verify {name} --repair` cannot overwrite it.\n"
        f"Build a new index without it: syncer index rebuild {name}",
    )


_HOW = {
    DriftKind.DIFFERENT: "Different",
    DriftKind.MISSING: "Missing from Elasticsearch",
    DriftKind.EXTRA: "Elasticsearch has it and Postgres does not",
    DriftKind.MISPLACED: "In the wrong place",
}


def _different(standing: DocumentInIndex, in_flight: str, how: str) -> Conclusion:
    """Return the verdict on a document that differs and keeps its version."""
    document = standing.document
    if standing.jobs:
        return _being_written(standing, how)
    if not document.is_loaded:
        return Conclusion(
            verdict=Verdict.INCOMPLETE, says=f"{how}: its index is not loaded.", hint=reindex.way_on(document)
        )
    if in_flight:
        return Conclusion(
            verdict=Verdict.BEHIND,
            says=f"{how}; changes in flight may explain that: {in_flight}.",
            hint="Run it again in a while. If they stay in flight, see: syncer status",
        )
    hint = f"Run: syncer verify {document.name} --repair"
    if any(one.origin is Origin.FOREIGN for one in standing.copies):
        return Conclusion(
            verdict=Verdict.DRIFTED,
            says=f"{how}: another client wrote this document, and no change is in flight.",
            hint=f"Find the client that writes to {document.index}, and stop it. {hint}",
        )
    if standing.copies:
        hint += (
            f"\nDoes another client write to {document.index}? "
            "Documents written without a version, over those of syncer, look like this."
        )
    return Conclusion(verdict=Verdict.DRIFTED, says=f"{how}, and no change is in flight.", hint=hint)


def _being_written(standing: DocumentInIndex, how: str) -> Conclusion:
    """Return the verdict on a document that a job may write."""
    coming = standing.jobs[0]
    job = coming.job
    if coming.is_certain:
        does = "has yet to write it"
    else:
        does = f"is writing {'all' if job.kind.is_whole else 'some'} documents"
    total = "an unknown number" if job.documents_total is None else f"{job.documents_total:,}"
    paused = ", but is paused" if job.is_paused else ""
    return Conclusion(
        verdict=Verdict.BEHIND,
        says=f"{how}; job {job.id} ({job.reason}) {does}{paused}: {job.documents_done:,} of {total} done.",
        hint=f"To follow it: syncer jobs show {job.id}",
    )
