"""Problems: what is wrong with a document, or probably unintended, found before it is written.

A scratch index shows what Elasticsearch rejects and how it indexes values: see `syncer.apply.preview.estimate`. Rare
values that a sample may miss are looked for in all documents: see `syncer.apply.preview.silent`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import psycopg

from syncer.apply.preview import estimate, silent
from syncer.apply.preview.column_type import column_type
from syncer.apply.preview.estimate import TrialResult
from syncer.apply.preview.silent import Silent
from syncer.base.formatting import amount
from syncer.base.model import ID_BYTES_MAX
from syncer.base.postgres import Connection, bounded
from syncer.documents import queries
from syncer.documents.registry import Document
from syncer.indexing import fault
from syncer.lineage import catalog


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
    UNUSED = "unused"
    """The mapping has a field that no column fills."""
    COSTLY = "costly"
    """Each write of them costs more than it has to."""
    STALE = "stale"
    """They may change over time without a change in the database."""


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
        return self.kind in (ProblemKind.UNUSED, ProblemKind.STALE)


_FEW_DOCUMENTS = 1000
_AS_GEO_POINT = (
    "Of a point with the longitude first, select column[1] || ',' || column[0], which is NULL for NULL. "
    "Elasticsearch reads it as latitude and longitude."
)
_BAD_ID = f"octet_length(d._id::text) NOT BETWEEN 1 AND {ID_BYTES_MAX}"


def find(connection: Connection, document: Document, trial: TrialResult) -> tuple[PlanProblem, ...]:
    """Return the problems of one document, the worst first."""
    found = [*_failures(trial), *_rejections(trial), *_columns(connection, document, trial)]
    known = {one.field for one in found}
    found += [one for one in _alterations(trial) if one.field not in known]
    found += _inferences(document.index_body.get("mappings", {}))
    found += _casts(catalog.casts_from_text(connection, document.select, document.name))
    return tuple(sorted(found, key=lambda one: list(ProblemKind).index(one.kind)))


def _failures(trial: TrialResult) -> Iterator[PlanProblem]:
    """Yield a problem for each message with which the SELECT fails; it may fail on documents outside the sample."""
    by_message: dict[str, list[str]] = {}
    for id_, message in trial.failures.items():
        by_message.setdefault(message, []).append(id_)
    if trial.failure is not None:
        by_message.setdefault(trial.failure, [])
    for message, ids in by_message.items():
        yield PlanProblem(
            kind=ProblemKind.FAILS,
            field="",
            message=f"the SELECT fails on the data: {message}",
            action="Fix the SELECT or the data: documents on which it fails are not written.",
            documents=len(ids) or None,
            looked_at=len(trial.sample) + len(trial.failures),
            example=ids[0] if ids else None,
        )


def _casts(types: Sequence[str]) -> Iterator[PlanProblem]:
    for one in types:
        yield PlanProblem(
            kind=ProblemKind.STALE,
            field="",
            message=f"a text is cast to {one} while the SELECT runs: a row with the text 'today', 'now' or the like "
            "makes a document that is soon wrong, and no change tells",
            action="If a row may have such a text, use to_date(column, 'YYYY-MM-DD') or to_timestamp instead.",
        )


def _inferences(mapping: Mapping[str, Any], path: str = "") -> Iterator[PlanProblem]:
    """Yield a problem for each field on which Elasticsearch runs a model."""
    for part in ("properties", "fields"):
        for name, one in mapping.get(part, {}).items():
            if one.get("type") == "semantic_text":
                yield PlanProblem(
                    kind=ProblemKind.COSTLY,
                    field=f"{path}{name}",
                    message="semantic_text runs inference on every write of a document, whichever field has changed; "
                    "a backfill or rebuild runs it on all of them",
                    action="Keep embeddings in a table, keyed by a hash of the text, and map them as dense_vector: "
                    "see docs/how-to/vectors.md",
                )
            yield from _inferences(one, f"{path}{name}.")


def _rejections(trial: TrialResult) -> Iterator[PlanProblem]:
    """Yield a problem for each field that caused rejections."""
    by_field: dict[str, dict[str, str]] = {}
    for one in trial.rejections:
        found = fault.of_index(one.kind, one.reason, one.composition.source)
        by_field.setdefault(found.field or "", {})[one.composition.id] = found.error
    for field, some in by_field.items():
        example, message = next(iter(some.items()))
        yield PlanProblem(
            kind=ProblemKind.REJECTED,
            field=field,
            message=message,
            action=_AS_GEO_POINT
            if "of type [geo_point]" in message
            else "Fix the mapping, the SELECT or the data: such documents are not written.",
            documents=len(some),
            looked_at=len(trial.sample),
            example=example,
        )


def _columns(connection: Connection, document: Document, trial: TrialResult) -> Iterator[PlanProblem]:
    """Check column types against the mapping, and against the current documents."""
    total = trial.documents
    types = {one.name: column_type(connection, one.type) for one in document.dependencies.fields}
    misfits = list(silent.check(types, document.index_body.get("mappings", {})))
    conditions = list(dict.fromkeys([_BAD_ID, *(one.condition for one in misfits if one.condition is not None)]))
    found, looked_at = _examples(connection, document, conditions)
    number, example = found.get(_BAD_ID, (0, None))
    if number:
        yield PlanProblem(
            kind=ProblemKind.REJECTED,
            field="_id",
            message=f"an id has 1 to {ID_BYTES_MAX} bytes",
            action="Select something shorter AS _id, such as md5(column).",
            documents=number,
            looked_at=looked_at,
            total=total,
            example=example,
        )
    for one in misfits:
        # Without a condition, every document is affected; a field that no column fills affects none.
        count, example = found.get(one.condition, (None, None)) if one.condition else (total, None)
        if count or not one.only_if_found:
            yield PlanProblem(
                kind=_kind(one),
                field=one.field,
                message=f"{one.message} ({one.types})",
                action=one.action if trial.has_scaled_float else one.action.replace(silent.OR_SCALED, ""),
                documents=None if one.is_note else count,
                looked_at=looked_at if one.condition and count is not None else None,
                total=total,
                example=example,
            )


def _kind(one: Silent) -> ProblemKind:
    if one.is_note:
        return ProblemKind.UNUSED
    return ProblemKind.CHANGED if one.is_found else ProblemKind.UNSEARCHABLE


def _examples(
    connection: Connection, document: Document, conditions: list[str]
) -> tuple[dict[str, tuple[int, str | None]], int | None]:
    """Return for each condition how many documents meet it and an example; and among how many, None for all."""
    for limit in (None, _FEW_DOCUMENTS):
        try:
            with bounded(connection, seconds=estimate.SECONDS_MAX):
                found = queries.examples(connection, document, conditions, limit=limit)
        except psycopg.Error as error:  # too many documents; or the SELECT fails on one of them
            if not estimate.is_too_much(error):
                raise
            continue
        return dict(zip(conditions, found, strict=True)), limit
    return {}, None


def _alterations(trial: TrialResult) -> Iterator[PlanProblem]:
    """Yield a problem for each field whose values in the sample searches find differently, or not at all."""
    by_field: dict[tuple[str, bool], dict[str, str]] = {}
    for one in trial.altered:
        description = (
            f"{one.value} is indexed as {one.indexed}"
            if one.indexed
            else "it is kept and shown, but no search finds it"
        )
        by_field.setdefault((one.field, bool(one.indexed)), {}).setdefault(one.id, description)
    for (field, is_found), some in by_field.items():
        example, message = next(iter(some.items()))
        yield PlanProblem(
            kind=ProblemKind.CHANGED if is_found else ProblemKind.UNSEARCHABLE,
            field=field,
            message=message,
            action="Choose a mapping that keeps it, or cast it in the SELECT.",
            documents=len(some),
            looked_at=len(trial.sample),
            example=example,
        )
