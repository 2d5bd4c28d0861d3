"""Affected: changes → which documents they touch.

Follows the definitions in force when the changes are handled, which is after they were received, so that a table
that a newer generation reads is not overlooked. Names too many documents rather than too few: a document that
is composed again without need is written as it was.

Few are named one by one, to be composed at once. Many are a *fan-out*: it is only found out that they are many, and the
changed rows that lead to them are handed on as the *cause* of a job, whose lister asks for their ids (`touched_by`).
What is asked for one batch and one definition is bounded, whatever the data is like:

- Ids that are columns of the changed rows are never many: no more than the batch has rows.
- A question that leads further is asked with a LIMIT of the threshold; who gets no more than that has an answer. If
  there is more, the causes are halved, until what leads to many is alone: John, who has three posts, does not wait for
  an author of a million who is renamed in the same batch. Two causes that are alike are one.
- In all, a batch may ask `QUESTIONS_MAX` times, for `SECONDS_MAX`, and have a few times the threshold answered. What is
  left when one of these is used up belongs to the fan-out, be it few or many.

A change on whose data a question fails is one of which nobody knows whom it touches. So it touches all: the document is
refreshed whole, beside the live changes, of which the others in the batch are found as ever. If that is found out only
when a fan-out is listed, a refresh takes its place: see `syncer.jobs`.

That the images of one change are never parted, and those of two may be, asks of an affects query no more than that the
batches of a topic with several partitions do: that it finds a document by each of the changes that touch it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import psycopg
from psycopg import sql

from syncer.errors import DocumentError
from syncer.model import Change, dump_images
from syncer.policy import Action, decide
from syncer.postgres import Connection, value
from syncer.reading import STAGE_LOCK_SECONDS, following
from syncer.store import Catalogue, Document
from syncer.uses import TableUse

QUESTIONS_MAX = 64
SECONDS_MAX = 1.0
_THRESHOLDS_AT_ONCE = 4

_ROWS = "$1::jsonb"
_TOUCHES = "SELECT EXISTS (SELECT FROM ({affected}) AS touched (id) WHERE touched.id = $2)"
_FEW = "SELECT touched.id FROM ({affected}) AS touched (id) WHERE touched.id IS NOT NULL LIMIT $2"
# Planned as if ids came evenly from all over a table, a LIMIT is dear for those that are rare: so by index, always.
_BOUND = """
SELECT set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
       set_config('statement_timeout', $1, true)
"""
# Texts that some collation holds to be equal are different ids.
_TOUCHED_BY = (
    'SELECT DISTINCT touched.id COLLATE "C" AS id FROM ({affected}) AS touched (id) WHERE touched.id IS NOT NULL'
)
_CAUSE = "(SELECT j.cause -> {relation} FROM syncer.job AS j WHERE j.id = $1)"
_NOTHING = "SELECT NULL::text WHERE false"

_Answer = TypeVar("_Answer")

Image = dict[str, Any]
Cause = tuple[Image, ...]
"""The images of one change, each once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Affected:
    """Documents to compose again.

    Args:
        ids: Distinct ids, at most a page of them; None stands for every document, after a TRUNCATE.
        failed: If an affects query failed on the data of a change, so that every document may be touched: the name of
            its error.
    """

    ids: tuple[str, ...] | None
    failed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOut:
    """Documents to compose again that are too many to be named here.

    Args:
        cause: The images of the changed rows that lead to them, each once, by relation: no more than the batch has.
    """

    cause: Mapping[str, Sequence[Image]]


@dataclass(slots=True)
class _Allowance:
    """What may yet be asked for one batch.

    Args:
        ids: How many ids may be found.
        questions: How many questions may be asked.
        until: When it is over, by `time.monotonic`.
    """

    ids: int
    questions: int = QUESTIONS_MAX
    until: float = field(default_factory=lambda: time.monotonic() + SECONDS_MAX)

    @property
    def seconds(self) -> float:
        """How long the next question may take."""
        return self.until - time.monotonic()

    @property
    def is_used_up(self) -> bool:
        """Whether nothing more may be asked."""
        return self.ids <= 0 or self.questions <= 0 or self.seconds <= 0


class AffectedReader:
    """Answers from Postgres.

    Args:
        connection: Nothing else is done on it while a question is asked.
        page: How many ids are handed on together.
        fan_out_documents_max: More documents than that of one cause are a fan-out.
    """

    def __init__(self, connection: Connection, *, page: int, fan_out_documents_max: int = 1000) -> None:
        self._connection = connection
        self._page = page
        self._threshold = fan_out_documents_max
        self._catalogue = Catalogue()

    def documents(self) -> list[Document]:
        """The definitions in force that are not halted; what is skipped here is made good: see `syncer.halting`."""
        return [one for one in self._catalogue.refresh(self._connection) if one.halted is None]

    def last(self, index_name: str) -> Document | None:
        """One definition as it was last read; None if its index was not in force then."""
        return self._catalogue.last(self._connection, index_name)

    def read(self, document: Document, changes: Sequence[Change]) -> Generator[Affected | FanOut]:
        """The documents of one definition that these changes touch: those that are many at first, the others in pages.

        Raises:
            DocumentError: The document is to halt.
        """
        used = _used(document, changes)
        if used is None:
            yield Affected(ids=None)
            return
        ids: dict[str, None] = {}
        many: dict[str, list[Image]] = {}
        failed: list[str] = []
        allowance = _Allowance(ids=_THRESHOLDS_AT_ONCE * self._threshold)
        for relation, some in used.items():
            use = document.dependencies.tables[relation]
            for column in use.id_columns:
                ids.update(dict.fromkeys(_keys(some, column)))
            if use.affected:
                rest = self._name_few(document, use, _causes(some), allowance, ids, failed)
                if rest:
                    many[relation] = _images(rest)
        if failed:
            yield Affected(ids=None, failed=failed[0])
        elif many:
            yield FanOut(cause=many)
        for page in _pages(ids, self._page):
            yield Affected(ids=page)

    def _name_few(  # noqa: PLR0917 - what is asked, and three to add to
        self,
        document: Document,
        use: TableUse,
        causes: list[Cause],
        allowance: _Allowance,
        ids: dict[str, None],
        failed: list[str],
    ) -> list[Cause]:
        """Add the ids of causes that lead to few, and the names of errors; the other causes."""
        try:
            return _planned_anew(partial(self._halved, document, use, causes, allowance, ids))
        except psycopg.Error as error:
            if decide(error) is not Action.PARK:
                raise
        # One of them makes the query raise: now each question is one that may.
        return self._halved(document, use, causes, allowance, ids, failed)

    def _halved(  # noqa: PLR0917 - as above
        self,
        document: Document,
        use: TableUse,
        causes: list[Cause],
        allowance: _Allowance,
        ids: dict[str, None],
        failed: list[str] | None = None,
    ) -> list[Cause]:
        many: list[Cause] = []
        groups = [causes]
        with (
            suppress(psycopg.errors.QueryCanceled),
            following(self._connection, document, parks=True, lock_seconds=STAGE_LOCK_SECONDS),
        ):
            while groups and not allowance.is_used_up:
                group = groups[-1]
                try:
                    with nullcontext() if failed is None else self._connection.transaction():
                        few = self._few(use, group, allowance)
                except psycopg.Error as error:
                    if failed is None or decide(error) is not Action.PARK:
                        raise
                    few = None
                    if len(group) == 1:
                        failed.append(type(error).__name__)
                        few = []
                groups.pop()
                if few is not None:
                    ids.update(dict.fromkeys(few))
                elif len(group) == 1:
                    many += group
                else:
                    middle = len(group) // 2
                    groups += [group[middle:], group[:middle]]
        if groups:
            allowance.until = time.monotonic()
        return many + [one for group in groups for one in group]

    def _few(self, use: TableUse, causes: Sequence[Cause], allowance: _Allowance) -> list[str] | None:
        """The ids that these causes lead to, if they are few.

        Raises:
            psycopg.errors.QueryCanceled: That is not found out soon enough.
        """
        allowance.questions -= 1
        limit = min(self._threshold, allowance.ids)
        query = sql.SQL(_FEW).format(affected=_affected(use))
        images = dump_images(_images(causes))
        self._connection.execute(_BOUND, (f"{max(1, allowance.seconds * 1000):.0f}ms",))
        rows = self._connection.execute(query, (images, limit + 1)).fetchall()
        if len(rows) > limit:
            return None
        allowance.ids -= len(rows)
        return [row[0] for row in rows]

    def touches(self, document: Document, changes: Sequence[Change], id_: str) -> bool:
        """Whether `read` would name this instance; asked without naming all the others.

        Raises:
            DocumentError: The document is to halt.
            psycopg.errors.QueryCanceled: The connection has a ``statement_timeout``, and it took longer.
        """
        used = _used(document, changes)
        if used is None:
            return True
        for relation, some in used.items():
            use = document.dependencies.tables[relation]
            if any(id_ in _keys(some, column) for column in use.id_columns):
                return True
            if use.affected:
                is_touched = _planned_anew(partial(self._leads_to, document, use, some, id_))
                if is_touched:
                    return True
        return False

    def _leads_to(self, document: Document, use: TableUse, changes: Sequence[Change], id_: str) -> bool:
        query = sql.SQL(_TOUCHES).format(affected=_affected(use))
        with following(self._connection, document, lock_seconds=STAGE_LOCK_SECONDS):
            return bool(value(self._connection, query, (Change.dump_images(changes), id_)))


def touched_by(document: Document, relations: Iterable[str]) -> sql.Composed:
    """The distinct ids that the cause of a job leads to, by those of its relations; the job's id is ``$1``."""
    uses = [use for one in relations if (use := document.dependencies.tables[one]).affected]
    parts: list[sql.Composable] = [
        _affected(one, _CAUSE.format(relation=sql.Literal(one.relation).as_string())) for one in uses
    ]
    return sql.SQL(_TOUCHED_BY).format(affected=sql.SQL(" UNION ALL ").join(parts or [sql.SQL(_NOTHING)]))


def _planned_anew(ask: Callable[[], _Answer]) -> _Answer:
    """What a question in a transaction of its own comes to; asked once more if it may have been planned too long ago.

    Postgres does not plan anew when a table is altered of which a statement has only the row type. Nothing is prepared
    any more on a connection whose transaction has failed: psycopg sees to that.
    """
    try:
        return ask()
    except DocumentError as error:
        if not isinstance(error.__cause__, psycopg.ProgrammingError):
            raise
    return ask()


def _affected(use: TableUse, rows: str = _ROWS) -> sql.Composed:
    """All affected queries of a table as one, over these rows; an id may come several times."""
    # Made by us, or deparsed by Postgres.
    return sql.SQL(" UNION ALL ").join(sql.SQL(f"({one.replace(_ROWS, rows)})") for one in use.affected)


def _used(document: Document, changes: Sequence[Change]) -> dict[str, list[Change]] | None:
    """Those of the changes that the document depends on, by relation; None if every instance is touched."""
    used: dict[str, list[Change]] = {}
    for change in changes:
        if change.relation in document.dependencies.tables:
            used.setdefault(change.relation, []).append(change)
    return None if any(not change.images for some in used.values() for change in some) else used


def _keys(changes: Sequence[Change], column: str) -> Iterator[str]:
    """What the images have in a column that is an id."""
    # A change from before the column was captured lacks it: the fill of the new generation covers that.
    keys = (image.get(column) for one in changes for image in one.images)
    return (str(key) for key in keys if key is not None)


def _causes(changes: Sequence[Change]) -> list[Cause]:
    """The images of each change, each once; changes that have the same are one cause."""
    causes = {dump_images(images): images for images in map(_distinct, (one.images for one in changes))}
    return list(causes.values())


def _images(causes: Sequence[Cause]) -> list[Image]:
    """All images of these causes, each once."""
    return list(_distinct(image for images in causes for image in images))


def _distinct(images: Iterable[Image]) -> Cause:
    return tuple({dump_images(image): image for image in images}.values())


def _pages(ids: Iterable[str], size: int) -> Iterator[tuple[str, ...]]:
    """The same ids, so many at once."""
    remaining = iter(ids)
    while page := tuple(islice(remaining, size)):
        yield page
