"""Affected: changes → which documents they touch.

Follows the definitions in force when the changes are handled, which is after they were received, so that a table
that a newer generation reads is not overlooked. Names too many documents rather than too few: a document that
is composed again without need is written as it was.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from psycopg import sql

from syncer.model import Change
from syncer.postgres import Connection, stream_unlocked, value
from syncer.reading import STAGE_LOCK_SECONDS, following
from syncer.store import Catalogue, Document

_TOUCHES = "SELECT EXISTS (SELECT FROM ({affected}) AS touched (id) WHERE touched.id = $2)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Affected:
    """Documents to compose again.

    Args:
        ids: Distinct ids, at most a page of them; None stands for every document, after a TRUNCATE.
    """

    ids: tuple[str, ...] | None


class AffectedReader:
    """Answers from Postgres, on a connection that is taken while an answer is being iterated."""

    def __init__(self, connection: Connection, *, page: int) -> None:
        self._connection = connection
        self._page = page
        self._catalogue = Catalogue()

    def documents(self) -> list[Document]:
        """The definitions in force that are not halted; what is skipped here is made good: see `syncer.halting`."""
        return [one for one in self._catalogue.refresh(self._connection) if one.halted is None]

    def read(self, document: Document, changes: Sequence[Change]) -> Generator[Affected]:
        """The documents of one definition that these changes touch, in pages.

        Raises:
            DocumentError: The document is to halt.
        """
        used = _used(document, changes)
        if used is None:
            yield Affected(ids=None)
        else:
            for ids in _pages(self._ids(document, used), self._page):
                yield Affected(ids=ids)

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
            for affected in use.affected:
                query = sql.SQL(_TOUCHES).format(affected=sql.SQL(affected))  # made by us, or deparsed by Postgres
                with following(self._connection, document, lock_seconds=STAGE_LOCK_SECONDS):
                    if value(self._connection, query, (Change.dump_images(some), id_)):
                        return True
        return False

    def _ids(self, document: Document, used: dict[str, list[Change]]) -> Iterator[str]:
        for relation, changes in used.items():
            use = document.dependencies.tables[relation]
            for column in use.id_columns:
                yield from _keys(changes, column)
            for affected in use.affected:
                query = sql.SQL(affected)  # made by us, or deparsed by Postgres
                images = (Change.dump_images(changes),)
                within = following(self._connection, document, lock_seconds=STAGE_LOCK_SECONDS)
                for rows in stream_unlocked(self._connection, query, images, within=within, page=self._page):
                    yield from (row[0] for row in rows if row[0] is not None)


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


def _pages(ids: Iterator[str], size: int) -> Iterator[tuple[str, ...]]:
    """Distinct ids in pages; an id may come again in a later page."""
    page: dict[str, None] = {}
    for one in ids:
        page[one] = None
        if len(page) == size:
            yield tuple(page)
            page = {}
    if page:
        yield tuple(page)
