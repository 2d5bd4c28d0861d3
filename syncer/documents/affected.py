"""Affected documents: runs the derived SQL for a batch of changes.

It uses the definitions that are active after the changes were received, so no table of a newer revision is overlooked.
It returns too many documents rather than too few: one that is built again without need is written as it was.

A few ids are returned, to be built at once. Many are a *fan-out*: the changed rows that lead to them become the *cause*
of a job, which lists their ids (`touched_by`). For one batch and one definition there are at most `QUERIES_MAX` queries
for `SECONDS_MAX`, which return a few pages.

If a query fails on the data of a change, the definition is refreshed, beside the live changes: the change may touch any
document. The images of one change are never separated, but those of two may be: an affects query has to find a document
by each of the changes that touch it. A `DocumentError` says that the definition has to be suspended.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product

import psycopg
from psycopg import sql

from syncer.base.error_policy import is_of_data, is_of_some_rows, kind
from syncer.base.errors import DocumentError
from syncer.base.model import Change, Image, Operation, dump_images
from syncer.base.postgres import Connection
from syncer.capture.triggers import IMAGE_BYTES_MAX
from syncer.documents.registry import Definitions, Document
from syncer.documents.snapshot import COMPONENT_LOCK_SECONDS, reading

QUERIES_MAX = 64
SECONDS_MAX = 1.0
_PAGES_AT_ONCE = 4

_ROWS = re.compile(r"""('(?:[^']|'')*'|"(?:[^"]|"")*")|\$1::jsonb""")
"""The changed rows in a query that Postgres or syncer has printed, where they are not in a literal or a name."""
_FEW = "SELECT touched.id FROM ({affected}) AS touched (id) WHERE touched.id IS NOT NULL LIMIT $2"
# The planner assumes that ids are spread evenly over a table, so a LIMIT is expensive for rare ones: always use an
# index.
_BOUND = """
SELECT set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
       set_config('statement_timeout', $1, true)
"""
# Texts that a collation considers equal are different ids.
_TOUCHED_BY = (
    'SELECT DISTINCT touched.id COLLATE "C" AS _id FROM ({affected}) AS touched (id) WHERE touched.id IS NOT NULL'
)
_ANY_ROW = {
    Operation.TRUNCATE: "was truncated",
    Operation.NOTED: "may have been rewritten or restored, or had another name, partitions or triggers for a while",
}
_NO_IMAGE = f"had a row changed whose keys to documents exceed {IMAGE_BYTES_MAX // 1024} kB, are gone, or have no text"
_CAUSE = "(SELECT j.cause -> {relation} FROM syncer.job AS j WHERE j.id = $1)"
_NAMED = "SELECT image.value ->> {column} FROM jsonb_array_elements({cause}) AS image"
_NOTHING = "SELECT NULL::text WHERE false"

Cause = tuple[Image, ...]
"""The distinct images of one change."""
_Followed = tuple[str, tuple[str, ...], bool]
"""How documents are found from changes: of which relation, by which queries, and whether they may have moved them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Affected:
    """Documents to build again.

    Args:
        ids: Those that were found: distinct.
        unmoved: Those of them that none of the changes has moved to another shard.
        cause: A fan-out: the distinct images of the changed rows that lead to documents that are too many to be listed
            here, by relation. They are no more than the batch has.
        occasion: Why all documents are to be built again, as after a TRUNCATE; None if they are not.
        failed: The name of the error, if that is because an affects query failed on the data of a change.
    """

    ids: Sequence[str] = ()
    unmoved: frozenset[str] = frozenset()
    cause: Mapping[str, Sequence[Image]] = field(default_factory=dict)
    occasion: str | None = None
    failed: str | None = None


class _UnresolvedError(Exception):
    """An affects query of this relation failed on the data."""


class AffectedReader:
    """Finds affected documents in Postgres. One cause with more documents than a page is a fan-out."""

    def __init__(self, connection: Connection, *, page: int) -> None:
        self._connection = connection
        self._page = page
        self._definitions = Definitions()

    def documents(self) -> list[Document]:
        """Return the active definitions."""
        # Rule: ask-for-indices-after-receiving.
        return self._definitions.refresh(self._connection)

    def read(self, document: Document, changes: Sequence[Change]) -> Affected:
        """Return the documents of a definition that these changes touch: all, or a few pages of them and a fan-out."""
        used = _used(document, changes)
        if used is None:
            return unlisted(document, changes)
        # A change from before an id column was captured lacks it: the load of the new revision covers that.
        ids: dict[str, bool] = {}
        for relation, relevant in used.items():
            use = document.dependencies.tables[relation]
            for lead, change in product((lead for lead in use.leads if lead.id_column), relevant):
                if lead.follows(change):
                    _note(ids, (image.get(lead.id_column) for image in change.images), moves=use.moves(change))
        try:
            fan_outs = self._find(document, used, ids)
        except _UnresolvedError as error:
            cause = error.__cause__
            assert cause is not None
            return Affected(ids=[*ids], occasion=unresolved(str(error), cause), failed=type(cause).__name__)
        unmoved = frozenset(id_ for id_, moves in ids.items() if document.dependencies.has_routing and not moves)
        return Affected(ids=[*ids], unmoved=unmoved, cause=fan_outs)

    def _find(
        self, document: Document, used: Mapping[str, Sequence[Change]], ids: dict[str, bool]
    ) -> dict[str, list[Image]]:
        """Add the ids that causes lead to that lead to few; return the images of the other causes, by relation."""
        followed: dict[_Followed, list[Change]] = {}
        for relation, relevant in used.items():
            use = document.dependencies.tables[relation]
            for change in relevant:
                queries = tuple(lead.query for lead in use.leads if lead.query and lead.follows(change))
                if queries:
                    followed.setdefault((relation, queries, use.moves(change)), []).append(change)
        groups = [(by, _causes(relevant)) for by, relevant in followed.items()]
        if not groups:
            return {}
        try:
            return self._separate(document, groups.copy(), ids)
        except DocumentError as error:
            # Postgres does not plan anew when a table is altered of which a statement uses only the row type.
            # After a failed transaction psycopg has dropped the connection's prepared statements.
            if not isinstance(error.__cause__, psycopg.ProgrammingError):
                raise
            return self._separate(document, groups.copy(), ids)

    def _separate(
        self, document: Document, groups: list[tuple[_Followed, list[Cause]]], ids: dict[str, bool]
    ) -> dict[str, list[Image]]:
        """Halve groups of causes until each leads to a page at most, or has one cause, or the allowance is used up.

        So an author with three posts does not wait for one with a million that is renamed in the same batch. What
        remains belongs to the fan-out, whether it leads to few or many.
        """
        fan_outs: list[tuple[str, list[Cause]]] = []
        ids_left, queries_left, until = _PAGES_AT_ONCE * self._page, QUERIES_MAX, time.monotonic() + SECONDS_MAX
        relation = ""
        try:
            with (
                suppress(psycopg.errors.QueryCanceled),
                reading(self._connection, document, isolates=True, captured=True, lock_seconds=COMPONENT_LOCK_SECONDS),
            ):
                while groups and ids_left > 0 and queries_left > 0 and (seconds_left := until - time.monotonic()) > 0:
                    by, causes = groups[-1]
                    relation, queries, moves = by
                    limit = min(self._page, ids_left)
                    query = sql.SQL(_FEW).format(affected=_affected(queries))
                    self._connection.execute(_BOUND, (f"{max(1, seconds_left * 1000):.0f}ms",))
                    rows = self._connection.execute(query, (dump_images(_images(causes)), limit + 1)).fetchall()
                    queries_left -= 1
                    groups.pop()
                    if len(rows) <= limit:
                        ids_left -= len(rows)
                        _note(ids, (row[0] for row in rows), moves=moves)
                    elif len(causes) == 1:
                        fan_outs.append((relation, causes))
                    else:
                        middle = len(causes) // 2
                        groups += [(by, causes[middle:]), (by, causes[:middle])]
        except psycopg.Error as error:
            if not is_of_some_rows(error):
                raise
            raise _UnresolvedError(relation) from error
        by_relation: dict[str, list[Cause]] = {}
        for relation, causes in (*fan_outs, *((by[0], causes) for by, causes in groups)):
            by_relation.setdefault(relation, []).extend(causes)
        return {relation: _images(causes) for relation, causes in by_relation.items()}


def _note(ids: dict[str, bool], more: Iterable[str | None], *, moves: bool) -> None:
    """Add ids, each with whether any change may have moved it."""
    ids.update({id_: moves or ids.get(id_, False) for id_ in more if id_ is not None})


def unresolved(relations: str, error: BaseException) -> str:
    """Say which query failed on the data, and how; the values stay unsaid."""
    where = " on the data" if is_of_data(error) else ""
    return f"the query from a change of {relations} to documents failed{where}: {kind(error)}"


def unlisted(document: Document, changes: Sequence[Change]) -> Affected:
    """Return what these changes touch, without looking for ids: a fan-out of all changed rows, or all documents."""
    used = _used(document, changes)
    if used is None:
        return Affected(occasion=_any_row(document, changes))
    images = {relation: _images([change.images for change in relevant]) for relation, relevant in used.items()}
    return Affected(cause=images)


def _any_row(document: Document, changes: Sequence[Change]) -> str:
    """Say of the tables that may have changed in any row why that is all that is known."""
    relevant = [change for change in changes if not change.images and change.relation in document.dependencies.tables]
    # A TRUNCATE shows in the catalogue as well.
    ordered = sorted(relevant, key=lambda change: change.operation is Operation.TRUNCATE)
    reasons = {change.relation: _ANY_ROW.get(change.operation, _NO_IMAGE) for change in ordered}
    return " and ".join(f"{relation} {reason}" for relation, reason in sorted(reasons.items()))


def touched_by(document: Document, relations: Iterable[str]) -> sql.Composed:
    """Return a query for the distinct ids that a job's cause leads to, by these relations; the job's id is ``$1``."""
    queries: list[sql.Composable] = []
    for use in (document.dependencies.tables[relation] for relation in relations):
        cause = _CAUSE.format(relation=sql.Literal(use.relation).as_string())
        if use.affected:
            queries.append(_affected(over(cause, query) for query in use.affected))
        queries += [
            sql.SQL(_NAMED).format(column=sql.Literal(column), cause=sql.SQL(cause)) for column in use.id_columns
        ]
    return sql.SQL(_TOUCHED_BY).format(affected=sql.SQL(" UNION ALL ").join(queries or [sql.SQL(_NOTHING)]))


def _affected(queries: Iterable[str]) -> sql.Composed:
    """Return affects queries of a table as one; an id may occur several times."""
    # The queries are generated by syncer, or deparsed by Postgres.
    return sql.SQL(" UNION ALL ").join(sql.SQL(f"({query})") for query in queries)


def over(rows: str, query: str) -> str:
    """Return an affects query over these rows instead of its parameter."""
    return _ROWS.sub(lambda match: match[1] or rows, query)


def _used(document: Document, changes: Sequence[Change]) -> dict[str, list[Change]] | None:
    """Return the changes that the definition depends on, by relation; None if every document is touched."""
    used: dict[str, list[Change]] = {}
    for change in changes:
        use = document.dependencies.tables.get(change.relation)
        if use is not None and any(lead.follows(change) for lead in use.leads):
            used.setdefault(change.relation, []).append(change)
    # A change without images stands for any row of its table, as after a TRUNCATE.
    return used if all(change.images for relevant in used.values() for change in relevant) else None


def _causes(changes: Sequence[Change]) -> list[Cause]:
    """Return the distinct images of each change; changes with equal images are one cause."""
    causes = {dump_images(images): images for images in map(_distinct, (change.images for change in changes))}
    return list(causes.values())


def _images(causes: Sequence[Cause]) -> list[Image]:
    """Return the distinct images of these causes."""
    return list(_distinct(image for images in causes for image in images))


def _distinct(images: Iterable[Image]) -> Cause:
    return tuple({dump_images(image): image for image in images}.values())
