"""Problems: what is wrong with a document, or probably unintended, found before it is written.

A sample on a scratch index is the judge of what Elasticsearch rejects and how it indexes values: see
`syncer.apply.preview.estimate`. Rare values that a sample may miss are looked for in all documents: see
`syncer.apply.preview.silent`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import psycopg

from syncer.apply.preview import estimate, silent
from syncer.apply.preview.column_type import column_type
from syncer.apply.preview.estimate import TrialResult
from syncer.base.formatting import amount
from syncer.base.postgres import Connection, bounded
from syncer.documents import queries
from syncer.documents.registry import Document
from syncer.indexing import fault
from syncer.lineage import catalog
from syncer.lineage.remarks import Remark, RemarkKind, remarks


class ProblemKind(StrEnum):
    """What happens to documents or values."""

    FAILS = "fails"
    """The SELECT fails on them."""
    REJECTED = "rejected"
    """Elasticsearch rejects them."""
    CHANGED = "changed"
    """They are indexed with other values."""
    UNSEARCHABLE = "unsearchable"
    """No search finds them."""
    STALE = "stale"
    """They may change over time without a change in the database."""
    SETTING = "setting"
    """They depend on settings of a session, which syncer pins."""
    UNORDERED = "unordered"
    """They have elements in an order that is left to chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProblem:
    """Something that is wrong, or probably unintended.

    Args:
        field: The field that is affected; empty if unknown.
        message: What happens, in a sentence; for an error, the reason.
        documents: How many of the examined documents are affected; None if unknown.
        looked_at: How many documents were examined; None for all.
        total: How many documents there are; None if unknown.
        example: The id of an affected document.
    """

    kind: ProblemKind
    field: str
    message: str
    action: str
    documents: int | None = None
    looked_at: int | None = None
    total: int | None = None
    example: str | None = None

    @property
    def finding(self) -> str:
        """What happens to how many documents, for example to which."""
        if self.documents is None:
            return self.message
        example = f", for example {self.example}" if self.example is not None else ""
        if self.is_error:
            happens = "is rejected" if self.documents == 1 else "are rejected"
            happens = "cannot be built" if self.kind is ProblemKind.FAILS else happens
            return f"{self._share} {happens}{example}: {self.message}"
        return f"{self.message}; {self._share}{example}" if self.documents else f"{self.message}; no document has one"

    @property
    def _share(self) -> str:
        if self.looked_at is not None:
            return f"{self.documents:,} of {amount(self.looked_at, 'sampled document')}"
        if self.documents == self.total:
            return f"all {amount(self.total or 0, 'document')}"
        of = f" of {self.total:,}" if self.total is not None else ""
        return f"{self.documents:,}{of} document{'' if (self.total or self.documents) == 1 else 's'}"

    @property
    def is_error(self) -> bool:
        """Whether documents cannot be written."""
        return self.kind in (ProblemKind.FAILS, ProblemKind.REJECTED)

    @property
    def is_note(self) -> bool:
        """Whether it may be intended."""
        return self.kind in (ProblemKind.STALE, ProblemKind.SETTING, ProblemKind.UNORDERED)


def find(connection: Connection, document: Document, trial: TrialResult) -> tuple[PlanProblem, ...]:
    """Return the problems of one document, the worst first."""
    found = list(_columns(connection, document, trial))
    known = {one.field for one in found}
    found += [one for one in _of_sample(trial) if one.is_error or one.field not in known]
    found += _casts(catalog.casts_from_text(connection, document.select, document.name))
    found += map(_remarked, remarks(connection, document.select, document.name))
    return tuple(sorted(found, key=lambda one: list(ProblemKind).index(one.kind)))


def _of_sample(trial: TrialResult) -> Iterator[PlanProblem]:
    """Yield a problem for each message with which the SELECT fails, and for each field with values that do not fit."""
    found: dict[tuple[ProblemKind, str, str], dict[str, str]] = {}
    for id_, message in trial.failures.items():
        found.setdefault((ProblemKind.FAILS, "", message), {})[id_] = message
    if trial.failure is not None and trial.failure not in trial.failures.values():  # on documents outside the sample
        found[ProblemKind.FAILS, "", trial.failure] = {}
    for one in trial.rejections:
        seen = fault.of_index(one.kind, one.reason, one.composition.source)
        found.setdefault((ProblemKind.REJECTED, seen.field or "", ""), {})[one.composition.id] = seen.error
    for other in trial.altered:
        kind = ProblemKind.CHANGED if other.indexed else ProblemKind.UNSEARCHABLE
        said = (
            f"{other.value} is indexed as {other.indexed}"
            if other.indexed
            else "it is kept and shown, but no search finds it"
        )
        found.setdefault((kind, other.field, ""), {}).setdefault(other.id, said)
    for (kind, field, message), some in found.items():
        example, said = next(iter(some.items()), (None, message))
        yield PlanProblem(
            kind=kind,
            field=field,
            message=f"the SELECT fails on the data: {said}" if kind is ProblemKind.FAILS else said,
            action=_action(kind, said),
            documents=len(some) or None,
            looked_at=len(trial.sample) + len(trial.failures),
            example=example,
        )


def _action(kind: ProblemKind, message: str) -> str:
    if message.startswith("strict_dynamic_mapping_exception"):
        return "Add it to index.json: syncer init --from-select adds every field that it lacks."
    if kind is ProblemKind.UNSEARCHABLE:
        return "Add it to index.json, as syncer init --from-select does, or choose a mapping that keeps it."
    if kind is ProblemKind.CHANGED:
        return "Choose a mapping that keeps it, or cast it in the SELECT."
    return "Fix the mapping, the SELECT or the data: such documents are not written."


def _casts(types: Sequence[str]) -> Iterator[PlanProblem]:
    for one in types:
        yield PlanProblem(
            kind=ProblemKind.STALE,
            field="",
            message=f"a text is cast to {one} while the SELECT runs: a row with the text 'today', 'now' or the like "
            "makes a document that is soon wrong, and no change tells",
            action="If a row may have such a text, use to_date(column, 'YYYY-MM-DD') or to_timestamp instead.",
        )


_REMARKS = {
    RemarkKind.ORDER: (
        ProblemKind.UNORDERED,
        "has no ORDER BY: the elements may come in another order each time, and verify then reports a difference",
        "Add ORDER BY inside the call, as in: jsonb_agg(c.name ORDER BY c.id)",
    ),
    RemarkKind.TIME_ZONE: (
        ProblemKind.SETTING,
        "depends on TimeZone: syncer uses UTC, whatever the database, the role or psql use",
        "Name the zone, as in: (placed AT TIME ZONE 'America/New_York')::date",
    ),
    RemarkKind.FORMAT: (
        ProblemKind.SETTING,
        "depends on TimeZone, DateStyle, IntervalStyle or extra_float_digits: syncer uses UTC, ISO, iso_8601 and 1",
        "If the text matters, use to_char with a format",
    ),
}


def _remarked(remark: Remark) -> PlanProblem:
    kind, message, action = _REMARKS[remark.kind]
    where = f" in the view {remark.view}" if remark.view else ""
    return PlanProblem(kind=kind, field="", message=f"{remark.name}{where} {message}", action=f"{action}.")


def _columns(connection: Connection, document: Document, trial: TrialResult) -> Iterator[PlanProblem]:
    """Check column types against the mapping, and against the current documents."""
    types = {one.name: column_type(connection, one.type) for one in document.dependencies.fields}
    misfits = list(silent.check(types, document.index_body.get("mappings", {})))
    found = _examples(connection, document, {one.condition for one in misfits if one.condition is not None})
    for one in misfits:
        # Without a condition, every document is affected.
        count, example = found.get(one.condition, (None, None)) if one.condition else (trial.documents, None)
        if count or not one.only_if_found:
            yield PlanProblem(
                kind=ProblemKind.CHANGED if one.is_found else ProblemKind.UNSEARCHABLE,
                field=one.field,
                message=one.message,
                action=one.action,
                documents=count,
                total=trial.documents,
                example=example,
            )


def _examples(
    connection: Connection, document: Document, conditions: Collection[str]
) -> dict[str, tuple[int, str | None]]:
    """Return for each condition how many documents meet it, and an example; nothing if that takes too long."""
    if not conditions:
        return {}
    try:
        with bounded(connection, seconds=estimate.SECONDS_MAX):
            return dict(zip(conditions, queries.examples(connection, document, conditions), strict=True))
    except psycopg.Error as error:  # too many documents; or the SELECT fails on one of them
        if not estimate.is_too_much(error):
            raise
        return {}
