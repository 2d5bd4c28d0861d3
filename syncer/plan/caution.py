"""Caution: what apply would do that is probably not meant, said before the first document is written.

Types that do not fit their mapping come from `syncer.plan.fitting`; here they are held against the documents of today,
and joined by what a trial on a scratch index has shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import psycopg

from syncer import compose
from syncer.index import Rejection
from syncer.model import ID_BYTES_MAX
from syncer.plan import contents, estimate, fitting
from syncer.plan.estimate import Trial
from syncer.plan.fitting import Misfit
from syncer.plan.verdict import Effect
from syncer.postgres import Connection, bounded
from syncer.store import Document


class Kind(StrEnum):
    """What a warning is about."""

    FAILS = "fails"
    REFUSED = "refused"
    CHANGED = "changed"
    UNSEARCHABLE = "unsearchable"
    UNUSED = "unused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """Something that apply would do, and that is probably not meant.

    Args:
        kind: What becomes of the documents or values.
        field: Which field; empty if that is not known.
        type: Its type in Postgres; empty if there is none.
        mapping: Its type in Elasticsearch; empty if it does not matter.
        what: What happens.
        mend: What to do.
        example: The id of a document of today to which it happens; None if none is known.
        is_looked_for: Whether all documents of today were looked through for one.
    """

    kind: Kind
    field: str
    type: str = ""
    mapping: str = ""
    what: str
    mend: str
    example: str | None = None
    is_looked_for: bool = False

    @property
    def is_note(self) -> bool:
        """Whether it may well be meant."""
        return self.kind is Kind.UNUSED


_FEW_DOCUMENTS = 1000
_FIELD = re.compile(r"field \[([^\]]+)\]")


def warnings(connection: Connection, document: Document, trial: Trial | None = None) -> tuple[Warned, ...]:
    """Fields that do not fit their mapping, each with a document to which that matters today.

    Args:
        connection: To Postgres.
        document: Which.
        trial: What was tried, to tell of what was refused there and is not explained by a type.
    """
    types = {field.name: field.type for field in document.dependencies.fields}
    misfits = (_LONG_ID, *fitting.check(connection, types, document.index_body))
    examples, is_complete = _examples(connection, document, misfits)
    found = [
        _of_misfit(one, examples.get(one.condition or ""), is_looked_for=is_complete and one.condition is not None)
        for one in misfits
        if not one.is_rare or examples.get(one.condition or "")
    ]
    explained = {"" if one.field == "_id" else one.field for one in found if one.kind is Kind.REFUSED}
    if trial is not None:
        sources = {id_: row.source for id_, row in trial.sample.items()}
        inside = contents.check(connection, sources, types, document.index_body)
        found += [_of_misfit(one, example, is_looked_for=False) for one, example in inside]
        found += [*_of_failure(trial), *_of_rejections(trial.rejections, explained)]
    return tuple(sorted(found, key=lambda one: list(Kind).index(one.kind)))


def _examples(
    connection: Connection, document: Document, misfits: tuple[Misfit, ...]
) -> tuple[dict[str, str | None], bool]:
    """For each condition the id of a document that meets it; and whether all documents were looked through."""
    conditions = list(dict.fromkeys(one.condition for one in misfits if one.condition is not None))
    for limit in (None, _FEW_DOCUMENTS) if conditions else ():
        try:
            with bounded(connection, seconds=estimate.SECONDS_MAX):
                found = compose.examples(connection, document, conditions, limit=limit)
        except psycopg.Error as error:  # too many documents; or the SELECT fails on one of them
            if not estimate.is_too_much(error):
                raise
            continue
        return dict(zip(conditions, found, strict=True)), limit is None
    return {}, False


_LONG_ID = Misfit(
    field="_id",
    type="",
    mapping="",
    effect=Effect.REFUSED,
    what=f"an id of no byte, or of more than {ID_BYTES_MAX}, is refused",
    mend="Select something shorter AS _id, such as md5(column).",
    condition=f"octet_length(d._id::text) NOT BETWEEN 1 AND {ID_BYTES_MAX}",
    is_rare=True,
)


def _of_misfit(misfit: Misfit, example: str | None, *, is_looked_for: bool) -> Warned:
    return Warned(
        kind=Kind(misfit.effect.value),
        field=misfit.field,
        type=misfit.type,
        mapping=misfit.mapping,
        what=misfit.what,
        mend=misfit.mend,
        example=example,
        is_looked_for=is_looked_for,
    )


def _of_failure(trial: Trial) -> Iterator[Warned]:
    if trial.failure is not None:
        yield Warned(
            kind=Kind.FAILS,
            field="",
            what=f"the SELECT fails on the data: {trial.failure}",
            mend="Mend the SELECT, or the data: documents on which it fails are not written.",
        )


def _of_rejections(rejections: tuple[Rejection, ...], explained: set[str]) -> Iterator[Warned]:
    """One for each field that Elasticsearch has refused something in."""
    by_field: dict[str, list[Rejection]] = {}
    for one in rejections:
        match = _FIELD.search(one.reason)
        by_field.setdefault(match[1] if match else "", []).append(one)
    for field, some in by_field.items():
        if field not in explained:
            yield Warned(
                kind=Kind.REFUSED,
                field=field,
                what=f"Elasticsearch refuses {len(some):,} of the sample: {some[0].reason}",
                mend="Mend the mapping, the SELECT or the data: such documents are not written.",
                example=some[0].composition.id,
            )
