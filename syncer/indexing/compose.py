"""Composer: builds whole documents from ids, in one snapshot, with a version assigned together with that snapshot.

This module keeps the reading half of the version rule. Assigning a version and taking the snapshot is serialised
against all other writers. The document's rows and the active revision of its index are all read in that snapshot.

Why that is correct: consider a change, and a reader whose snapshot missed it. Its turn was over before the change
became visible. The change's own event is handled later, with a later turn and a greater version, so its document wins.
Of any two readers, the one with the greater version has seen all that the other has. So a document never shows a state
and then an earlier one.

Before the snapshot, the document's relations are locked against ALTER TABLE, which would make a table look empty in it.
In the snapshot, the catalog is compared with the one that the definition was applied to. So a document is built from
the columns that it was made for, or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count
from typing import Any, TypeVar

import psycopg
from psycopg import sql

from syncer.base.error_policy import Action, at_work_for, decide
from syncer.base.errors import DocumentError
from syncer.base.lifecycle import clock
from syncer.base.model import Composition
from syncer.base.postgres import FLUSHED, Connection, lock_timeout, locking, value
from syncer.capture import install
from syncer.documents import registry
from syncer.documents.queries import castable, one_line, query_of, twice
from syncer.documents.registry import Catalogue, Document, DocumentState
from syncer.documents.snapshot import COMPONENT_LOCK_SECONDS, reading, uncaptured
from syncer.indexing import fault, version
from syncer.indexing.fault import Fault
from syncer.lineage import fingerprint as lineage_fingerprint

_Result = TypeVar("_Result")

# fields.* is the row, whatever a column is called; fields alone would be a column of that name.
# Only the size of a document that is too large for its slice is read. OFFSET makes Postgres compute it once.
_BUILD = """
SELECT id, CASE WHEN pg_column_size(source) <= {bytes_max} THEN source END,
       CASE WHEN pg_column_size(source) > {bytes_max} THEN pg_column_size(source) END, routing
FROM (SELECT d._id::text AS id, (SELECT row_to_json(fields.*) FROM (SELECT {fields}) AS fields) AS source,
             {routing} AS routing
      FROM ({select}) AS d WHERE d._id = ANY ($1::text[]::{id_type}[]) OFFSET 0) AS built
"""
# The row without an id holds the state of the definition in the snapshot.
_CHECK = """
SELECT NULL AS id, json_build_array({state}, ({fingerprint}), ARRAY({uncaptured})), NULL, NULL
FROM syncer.document AS d WHERE d.index_name = {index_name}
"""
_AFTER = """
SELECT {flushed}, {state} FROM (VALUES (1)) AS one LEFT JOIN syncer.document AS d ON d.index_name = {index_name}
"""
_FAULTS = """
SELECT id, state, message, column_name, constraint_name, type_name FROM syncer.faults({query}, {ids}::text[], {seconds})
"""

DOCUMENT_BYTES_MAX = 100 * 1024 * 1024
"""Maximum size of a document, equal to Elasticsearch's default limit for a request. A larger one is never fetched."""

_FEW_IDS = 10
"""Up to so many ids, the plan is the one that Postgres makes for any: to make one for them costs more than to read."""
_FOR_ANY = "SET LOCAL plan_cache_mode = force_generic_plan"
_REPLAN_SECONDS = 10.0
"""How long such a plan is used: a table may have grown out of it before Postgres has analysed it again."""
_REPLAN = "DISCARD PLANS"
_PREPARE = "PREPARE {name} (text[], bigint) AS {check} UNION ALL {documents}"
_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Documents that were built together.

    Args:
        compositions: One for each requested id, except for documents that are too large.
        version: The version of all of them; a document with a greater one is at least as new.
        assigned_at: The time by `clock` just before the version was assigned.
        document: The active definition in the snapshot; None if there is none or it is suspended.
        listings: How many listings of all documents had begun, as of the snapshot.
        too_large: The sizes in bytes of documents that were not fetched, by id.
    """

    compositions: tuple[Composition, ...]
    assigned_at: float
    version: int = 0
    document: Document | None = None
    listings: int = 0
    too_large: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The documents for which the SELECT raises.

    Args:
        version: As in `Batch`.
        document: As in `Batch`.
        faults: The faults, by id.
        untried: The ids that there was no time for.
    """

    version: int = 0
    document: Document | None = None
    faults: Mapping[str, Fault] = field(default_factory=dict)
    untried: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What is prepared on a connection to read the documents of one definition.

    Args:
        document: The definition.
        name: The name of the prepared statement.
        check: The query for the state of the definition, which the prepared statement begins with.
        lock: The statement that locks the relations against ALTER TABLE; empty if there are none.
        fingerprint: The `syncer.lineage.fingerprint` of the relations as they were when the definition was applied.
    """

    document: Document
    name: str
    check: str
    lock: str
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    """The result of one round trip.

    Args:
        version: The version that was assigned with it.
        state: The state of the definition; None if it is unknown.
        fingerprint: The fingerprint of the definition's relations.
        uncaptured: The tables that have no triggers.
        rows: The other rows that were read.
    """

    version: int
    state: DocumentState | None
    fingerprint: str
    uncaptured: list[str]
    rows: list[tuple[Any, ...]]


class Composer:
    """Builds documents, on a connection that is not used for anything else.

    One round trip reads all that a slice needs: the version with its snapshot, the state of the definition, the
    fingerprint and triggers of its relations, and the documents. Statements are prepared by name, in SQL: psycopg would
    drop them each time a savepoint is rolled back.

    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._connection.prepare_threshold = None
        self._connection.execute(lock_timeout(COMPONENT_LOCK_SECONDS))
        self._catalogue = Catalogue()
        self._plans: dict[str, _Plan] = {}
        self._numbers = count(1)
        self._planned_at = clock()

    def compose(
        self, index_name: str, ids: Sequence[str], *, everywhere: bool = False, bytes_max: int | None = None
    ) -> Batch:
        """Assign a version with a snapshot, and read the documents and their definition in it.

        Args:
            index_name: The index that they are for, which determines their definition.
            ids: The documents to build.
            everywhere: Whether any shard may hold a copy, although the SELECT has no ``_routing``.
            bytes_max: The size above which a document is not fetched; by default `DOCUMENT_BYTES_MAX`.

        Returns:
            A composition for each distinct id; none if the definition is not active, or suspended.

        Raises:
            DocumentError: The definition has to be suspended: its SELECT no longer fits, or returns an id more than
                once.
            psycopg.Error: The SELECT failed on some row, or the connection did.
        """
        assigned_at = clock()  # the version is assigned later, so it is no older than this
        limit = min(bytes_max or DOCUMENT_BYTES_MAX, DOCUMENT_BYTES_MAX)

        use = partial(self._batch, ids, assigned_at, everywhere=everywhere)
        return self._while_active(index_name, ids, use, bytes_max=limit) or Batch(
            compositions=(), assigned_at=assigned_at
        )

    def faults(self, index_name: str, ids: Sequence[str], *, seconds: float) -> Findings:
        """Assign a version with a snapshot, and find in it the documents for which the SELECT raises.

        They are tried in groups on the server, and those of a failed group one by one. So at worst each document is
        read a little more than once.

        Args:
            index_name: The index that they are for.
            ids: The documents to try.
            seconds: The time after which no more are tried; at least one always is.

        Raises:
            DocumentError: The definition has to be suspended.
            psycopg.Error: An error that no row causes.
            ReplicaError: As for `compose`.
        """

        def findings(document: Document, found: _Snapshot) -> Findings:
            return Findings(
                version=found.version,
                document=document,
                faults={row[0]: _fault(*row[1:]) for row in found.rows if row[1] is not None},
                untried=tuple(row[0] for row in found.rows if row[1] is None),
            )

        return self._while_active(index_name, ids, findings, seconds=seconds) or Findings()

    def confirm(self, index_name: str) -> DocumentState | None:
        """Return once what was built on this connection is on the primary's disk, so that no crash takes it back.

        Returns:
            The current state of the definition.

        Raises:
            psycopg.Error: Postgres is unavailable. What was built may have been taken back.
        """
        query = sql.SQL(_AFTER).format(
            flushed=sql.SQL(FLUSHED), state=sql.SQL(registry.STATE_COLUMNS), index_name=sql.Literal(index_name)
        )
        row = self._connection.execute(query).fetchone()
        assert row is not None  # noqa: S101 - the query always returns one row
        return DocumentState.of(row[1:])

    def _while_active(
        self,
        index_name: str,
        ids: Sequence[str],
        use: Callable[[Document, _Snapshot], _Result],
        *,
        bytes_max: int = DOCUMENT_BYTES_MAX,
        seconds: float | None = None,
    ) -> _Result | None:
        """Read in one snapshot that has the definition active; None if there is none, or it is suspended.

        Args:
            index_name: As for `compose`.
            ids: What to read.
            use: Makes the result of what was read.
            bytes_max: The size above which a document is not fetched.
            seconds: For how long to look for faults instead; None to read the documents.
        """
        while (document := self._definition(index_name)) is not None:
            try:
                plan = self._plans.get(index_name)
                if plan is None or plan.document is not document:
                    plan = self._prepared(document)
                with at_work_for(document.name, document.revision, isolates=True):
                    found = self._read(plan, ids, bytes_max, seconds)
                    if found.state is None or found.state.is_suspended:  # the next load covers what is skipped
                        return None
                    is_active = _is_active(found.state, document)
                    if is_active and found.uncaptured:
                        raise uncaptured(document, found.uncaptured)
                    if is_active and found.fingerprint == plan.fingerprint:
                        return use(document, found)
            except DocumentError:
                self._forget(index_name)
                if self._is_to_suspend(document):
                    raise
            except psycopg.Error:
                self._forget(index_name)
                raise
            self._forget(index_name)
            self._catalogue.forget()
        return None

    def _definition(self, index_name: str) -> Document | None:
        """Return the active definition."""
        return self._catalogue.last(self._connection, index_name)

    def _is_to_suspend(self, document: Document) -> bool:
        """Return whether the failed definition is still active and has not been replaced meanwhile.

        Raises:
            DocumentError: Its relations have changed since it was applied, which is the more specific error.
        """
        if not _is_active(registry.state(self._connection, document.index_name), document):
            return False
        with reading(self._connection, document, lock_seconds=COMPONENT_LOCK_SECONDS):
            return True

    def _read(self, plan: _Plan, ids: Sequence[str], bytes_max: int, seconds: float | None = None) -> _Snapshot:
        """Assign a version with a snapshot, and read in it, in one round trip."""
        # Rule: the-revision-is-read-in-the-snapshot. So is everything else that decides on what is written.
        wanted = sql.Literal(castable(self._connection, plan.document, ids)).as_string(self._connection)
        select = f"EXECUTE {plan.name}({wanted}, {bytes_max})" if seconds is None else self._try(plan, wanted, seconds)
        text = "; ".join(
            (
                _BEGIN,
                *self._planning(ids),
                *filter(None, [plan.lock]),
                version.assign_version(),
                select,
                "COMMIT",
            )
        )
        try:
            ((assigned,),), *answers = self._answers(text)
        except psycopg.Error:
            if not self._connection.closed:
                self._connection.rollback()
            raise
        rows = list(chain.from_iterable(answers))
        checked: list[Any] = next((json.loads(row[1]) for row in rows if row[0] is None), [*5 * [None], "", []])
        *state, fingerprint, lost = checked
        return _Snapshot(
            version=int(assigned),
            state=DocumentState.of(state),
            fingerprint=fingerprint,
            uncaptured=lost,
            rows=[row for row in rows if row[0] is not None],
        )

    def _try(self, plan: _Plan, wanted: str, seconds: float) -> str:
        """Return the statements that look for documents for which the SELECT raises."""
        build = query_of(_BUILD, plan.document, bytes_max=sql.Literal(DOCUMENT_BYTES_MAX)).as_string(self._connection)
        query = sql.Literal(build).as_string(self._connection)
        return f"{plan.check}; {_FAULTS.format(query=query, ids=wanted, seconds=seconds)}"

    def _planning(self, ids: Sequence[str]) -> Iterator[str]:
        """Yield the statements that decide by which plan so many ids are read."""
        if len(ids) > _FEW_IDS:
            return
        yield _FOR_ANY
        if clock() - self._planned_at > _REPLAN_SECONDS:
            self._planned_at = clock()
            yield _REPLAN

    def _answers(self, text: str) -> Iterator[list[Any]]:
        """Return the rows of each statement that returns any."""
        cursor = self._connection.execute(text, prepare=False)
        while True:
            if cursor.description is not None:
                yield cursor.fetchall()
            if not cursor.nextset():
                return

    def _batch(
        self, ids: Sequence[str], assigned_at: float, document: Document, found: _Snapshot, *, everywhere: bool
    ) -> Batch:
        assert found.state is not None  # noqa: S101 - checked by the caller
        absent = "" if everywhere or document.dependencies.has_routing else None
        assigned, rows = found.version, found.rows
        by_id = {
            id_: Composition(id_, assigned, one_line(source), absent if routing is None else routing)
            for id_, source, _, routing in rows
            if source is not None
        }
        too_large = {id_: size for id_, _, size, _ in rows if size is not None}
        if len(by_id) + len(too_large) != len(rows):
            # The reason for a suspension is visible to users who may not see ids: see `syncer.documents.suspend`.
            raise twice(self._connection, document, "an _id", hint="`syncer plan` says which. ")
        return Batch(
            compositions=tuple(
                by_id.get(one) or Composition(one, assigned, None, absent)
                for one in dict.fromkeys(ids)
                if one not in too_large
            ),
            version=assigned,
            assigned_at=assigned_at,
            document=document,
            listings=found.state.listings,
            too_large=too_large,
        )

    # Prepared statements

    def _prepared(self, document: Document) -> _Plan:
        """Prepare the statement of a definition, after checking that its relations are those that it was applied to.

        Raises:
            DocumentError: They are not.
        """
        self._forget(document.index_name)
        name = f"syncer_{next(self._numbers)}"
        fingerprint = lineage_fingerprint.fingerprint_query(document.dependencies.shapes)
        check = sql.SQL(_CHECK).format(
            state=sql.SQL(registry.STATE_COLUMNS),
            fingerprint=fingerprint,
            uncaptured=install.uncaptured_query(document.dependencies.tables),
            index_name=sql.Literal(document.index_name),
        )
        with reading(self._connection, document, lock_seconds=COMPONENT_LOCK_SECONDS):
            known = str(value(self._connection, fingerprint))
            documents = query_of(_BUILD, document, bytes_max=sql.SQL("$2"))
            self._connection.execute(
                sql.SQL(_PREPARE).format(name=sql.Identifier(name), check=check, documents=documents)
            )
        lock = locking(lineage_fingerprint.lockable(document.dependencies.shapes))
        plan = _Plan(
            document=document,
            name=name,
            check=check.as_string(self._connection),
            lock=lock.as_string(self._connection),
            fingerprint=known,
        )
        self._plans[document.index_name] = plan
        return plan

    def _forget(self, index_name: str) -> None:
        """Drop the prepared statement; the next use prepares it again."""
        plan = self._plans.pop(index_name, None)
        if plan is not None and not self._connection.closed:
            self._connection.execute(sql.SQL("DEALLOCATE {name}").format(name=sql.Identifier(plan.name)))


def _is_active(state: DocumentState | None, document: Document) -> bool:
    """Return whether the definition is active in a snapshot."""
    return state is not None and (state.revision, state.role) == (document.revision, document.role)


def _fault(state: str, message: str, column: str, constraint: str, type_name: str) -> Fault:
    """Return the fault that Postgres reports for a row.

    Raises:
        psycopg.Error: The row is not at fault.
    """
    kind = _error_class(state)
    if decide(kind(message)) is not Action.DEAD_LETTER:
        raise kind(message)
    return fault.of_row(kind.__name__, message, column=column, constraint=constraint, type_name=type_name)


def _error_class(state: str) -> type[psycopg.Error]:
    try:
        return psycopg.errors.lookup(state)
    except KeyError:  # a state that a user's function has made up
        return _OF_CLASS.get(state[:2], psycopg.DatabaseError)


_OF_CLASS: dict[str, type[psycopg.Error]] = {"22": psycopg.DataError, "23": psycopg.IntegrityError}
