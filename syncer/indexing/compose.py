"""Composer: builds whole documents from ids, in one snapshot, with a version assigned together with that snapshot.

Of any two batches, the one with the greater version shows all that the other shows: see `syncer.indexing.version`. If a
snapshot missed a change, the change's own event is handled in a later turn: its document has a greater version.

A document is built from the columns that its definition was applied to, or not at all. In the snapshot, the catalogue
is compared; before it, the relations are locked against ALTER TABLE, which would make a table look empty in it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from syncer.base.error_policy import at_work_for
from syncer.base.errors import DocumentError, SuspendedError
from syncer.base.lifecycle import clock
from syncer.base.model import Composition, Target
from syncer.base.postgres import Connection, lock_timeout, locking, value
from syncer.capture import install
from syncer.documents import registry
from syncer.documents.queries import castable, one_line, query_of, twice
from syncer.documents.registry import Definitions, Document, DocumentState
from syncer.documents.snapshot import COMPONENT_LOCK_SECONDS, reading, uncaptured
from syncer.indexing import version
from syncer.lineage import fingerprint as lineage_fingerprint

# fields.* is the row, whatever a column is called; fields alone would be a column of that name.
# Only the size of a document that is too large for its slice is read. OFFSET makes Postgres compute it once.
_BUILD = """
SELECT id, CASE WHEN pg_column_size(source) <= {bytes_max} THEN source END,
       CASE WHEN pg_column_size(source) > {bytes_max} THEN pg_column_size(source) END, routing
FROM (SELECT d._id::text AS id, (SELECT row_to_json(fields.*) FROM (SELECT {fields}) AS fields) AS source,
             {routing} AS routing
      FROM {wanted} OFFSET 0) AS built
"""
# The row without an id holds the state of the definition in the snapshot.
_CHECK = """
SELECT NULL AS id, json_build_array({state}, ({fingerprint}), ARRAY({uncaptured})), NULL, NULL
FROM syncer.document AS d WHERE d.index_name = {index_name}
"""
_PREPARE_AFTER = f"""
PREPARE syncer_after (text) AS
SELECT {registry.STATE_COLUMNS}
FROM (VALUES (1)) AS row LEFT JOIN syncer.document AS d ON d.index_name = $1
"""
_AFTER = "EXECUTE syncer_after ({index_name})"

DOCUMENT_BYTES_MAX = 100 * 1024 * 1024
"""Maximum size of a document, equal to Elasticsearch's default limit for a request. A larger one is never fetched."""

STATEMENT_SECONDS_MAX = 60.0
"""How long Postgres may take to read a slice. A document that alone takes longer may never end, as on a cycle."""
_LIMIT = "SELECT set_config('statement_timeout', $1, false)"
_FEW_IDS = 10
"""Up to so many ids, the plan is the one that Postgres makes for any: to make one for them costs more than to read."""
_FOR_ANY = "SET LOCAL plan_cache_mode = force_generic_plan"
_REPLAN_SECONDS = 10.0
"""How long such a plan is used: a table may have grown out of it before Postgres has analysed it again."""
_PREPARE = "PREPARE {name} (text[], bigint) AS {check} UNION ALL {documents}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Documents that were built together, with one version and by the definition in the snapshot, if one is active.

    ``listings`` of all documents had begun by then. ``too_large`` has the sizes of those that were not fetched.
    """

    compositions: tuple[Composition, ...]
    version: int = 0
    document: Document | None = None
    listings: int = 0
    too_large: Mapping[str, int] = field(default_factory=dict)


class _Plan(NamedTuple):
    """What is prepared to read few documents, and more; what locks the relations, and their fingerprint as applied."""

    document: Document
    names: tuple[str, str]
    lock: str
    fingerprint: str


class _Snapshot(NamedTuple):
    """The result of one round trip: the version, the state of the definition and of its relations, and the rows."""

    version: int
    state: DocumentState | None
    fingerprint: str
    uncaptured: list[str]
    rows: list[tuple[Any, ...]]


class Composer:
    """Builds documents, on a connection of its own, in one round trip for a slice."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        # Statements are prepared in SQL: psycopg would drop its own each time a savepoint is rolled back.
        self.connection.prepare_threshold = None
        self.connection.execute(lock_timeout(COMPONENT_LOCK_SECONDS))
        self.connection.execute(_LIMIT, (f"{STATEMENT_SECONDS_MAX * 1000:.0f}ms",))
        self.connection.execute(_PREPARE_AFTER)
        self._definitions = Definitions()
        self._plans: dict[str, _Plan] = {}
        self._numbers = count(1)
        self._planned_at = clock()

    def compose(
        self,
        index_name: str,
        ids: Sequence[str],
        *,
        everywhere: bool = False,
        bytes_max: int = DOCUMENT_BYTES_MAX,
        resumes: bool = False,
    ) -> Batch:
        """Assign a version with a snapshot, and read the documents and their definition in it.

        There is a composition for each distinct id; none if the definition is not active. A document larger than
        ``bytes_max`` is not fetched. ``everywhere`` and ``resumes`` are as in `syncer.indexing.writer.Options`.

        Raises:
            DocumentError: The definition is suspended, or has to be.
            psycopg.Error: The SELECT failed on some row of these ids, or the connection did.
        """
        while (document := self._definitions.last(self.connection, index_name)) is not None:
            try:
                plan = self._plans.get(index_name)
                if plan is None or plan.document is not document:
                    plan = self._prepared(document)
                # Without an id no row can be at fault alone.
                with at_work_for(document.name, document.revision, isolates=bool(ids), in_time=True):
                    snapshot = self._read(plan, ids, min(bytes_max, DOCUMENT_BYTES_MAX))
                    if snapshot.state is None:
                        break
                    if self._may_be_built(snapshot, plan, resumes=resumes):
                        return self._batch(ids, document, snapshot, everywhere=everywhere)
            except SuspendedError:
                raise
            except DocumentError:
                self._forget(index_name)
                self._definitions.forget()
                # If its relations have changed since it was applied, that is the more specific error.
                with reading(self.connection, document, lock_seconds=COMPONENT_LOCK_SECONDS):
                    raise
            except psycopg.Error:
                self._forget(index_name)
                raise
            self._forget(index_name)
            self._definitions.forget()
        return Batch(compositions=())

    def state_of(self, index_name: str) -> DocumentState | None:
        """Return the definition's state now."""
        query = sql.SQL(_AFTER).format(index_name=sql.Literal(index_name))
        row = self.connection.execute(query).fetchone()
        assert row is not None  # the query always returns one row
        return DocumentState.of(row)

    def _read(self, plan: _Plan, ids: Sequence[str], bytes_max: int) -> _Snapshot:
        """Assign a version with a snapshot, and read in it, in one round trip."""
        # Rule: the-revision-is-read-in-the-snapshot. So is everything else that decides on what is written.
        literal = sql.Literal(castable(self.connection, plan.document, ids)).as_string(self.connection)
        read = f"EXECUTE {plan.names[len(ids) > plan.document.apart_max]}({literal}, {bytes_max})"
        planning = []
        if len(ids) <= _FEW_IDS:
            planning.append(_FOR_ANY)
            if clock() - self._planned_at > _REPLAN_SECONDS:
                self._planned_at = clock()
                planning.append("DISCARD PLANS")
        begin = ["BEGIN ISOLATION LEVEL REPEATABLE READ", *planning]
        statements = filter(None, [*begin, plan.lock, version.assign_version(), read, "COMMIT"])
        rows: list[tuple[Any, ...]] = []
        try:
            cursor = self.connection.execute("; ".join(statements), prepare=False)
            while True:
                if cursor.description is not None:
                    rows += cursor.fetchall()
                if not cursor.nextset():
                    break
        except psycopg.Error:
            if not self.connection.closed:
                self.connection.rollback()
            raise
        (assigned,), *rows = rows
        checked: list[Any] = next((json.loads(row[1]) for row in rows if row[0] is None), [*6 * [None], "", []])
        *state, fingerprint, lost = checked
        built = [row for row in rows if row[0] is not None]
        return _Snapshot(int(assigned), DocumentState.of(state), fingerprint, lost, built)

    def _batch(self, ids: Sequence[str], document: Document, snapshot: _Snapshot, *, everywhere: bool) -> Batch:
        assert snapshot.state is not None  # checked by the caller
        absent = "" if everywhere or document.dependencies.has_routing else None
        assigned, rows = snapshot.version, snapshot.rows
        by_id = {
            id_: Composition(id_, assigned, one_line(source), absent if routing is None else routing)
            for id_, source, _, routing in rows
            if source is not None
        }
        too_large = {id_: size for id_, _, size, _ in rows if size is not None}
        if len(by_id) + len(too_large) != len(rows):
            # The reason for a suspension is visible to users who may not see ids: see `syncer.documents.suspend`.
            repeated = [id_ for id_, number in Counter(row[0] for row in rows).items() if number > 1]
            raise twice(self.connection, document, "an _id", hint="`syncer plan` says which. ", ids=repeated)
        compositions = tuple(
            by_id.get(id_) or Composition(id_, assigned, None, absent)
            for id_ in dict.fromkeys(ids)
            if id_ not in too_large
        )
        listings = snapshot.state.listings
        return Batch(
            compositions=compositions, version=assigned, document=document, listings=listings, too_large=too_large
        )

    def _may_be_built(self, snapshot: _Snapshot, plan: _Plan, *, resumes: bool) -> bool:
        """Return whether a snapshot has the definition, not suspended, and its relations as they were planned for."""
        document, state = plan.document, snapshot.state
        if state is None or (state.revision, state.role) != (document.revision, document.role):
            return False
        if document.target != Target.of_index(document.index_name, state.epoch):
            return False
        if state.is_suspended and not resumes:
            problem = f"{document.index_name} is suspended"
            raise SuspendedError(problem, document=document.name, revision=document.revision)
        if snapshot.uncaptured:
            raise uncaptured(self.connection, document, snapshot.uncaptured)
        return snapshot.fingerprint == plan.fingerprint

    def _prepared(self, document: Document) -> _Plan:
        """Prepare the statement of a definition, after checking that its relations are those that it was applied to."""
        self._forget(document.index_name)
        name = f"syncer_{next(self._numbers)}"
        names = (name, f"{name}_many" if document.apart_max else name)
        fingerprint = lineage_fingerprint.fingerprint_query(document.shapes)
        check = sql.SQL(_CHECK).format(
            state=sql.SQL(registry.STATE_COLUMNS),
            fingerprint=fingerprint,
            uncaptured=install.uncaptured_query(document.dependencies.tables),
            index_name=sql.Literal(document.index_name),
        )
        # Postgres prints functions as they are now, not as in a snapshot. If one changes between the two readings, the
        # second sees the new one: it is refused there, or differs from the first when the statement is executed.
        applied = str(value(self.connection, fingerprint))
        with reading(self.connection, document, lock_seconds=COMPONENT_LOCK_SECONDS):
            for name, few in zip(dict.fromkeys(names), (document.apart_max, None), strict=False):
                documents = query_of(_BUILD, document, documents=few, bytes_max=sql.SQL("$2"))
                prepare = sql.SQL(_PREPARE).format(name=sql.Identifier(name), check=check, documents=documents)
                self.connection.execute(prepare)
        lock = locking(lineage_fingerprint.lockable(document.dependencies.shapes))
        plan = self._plans[document.index_name] = _Plan(document, names, lock.as_string(self.connection), applied)
        return plan

    def _forget(self, index_name: str) -> None:
        """Drop the prepared statement; the next use prepares it again."""
        plan = self._plans.pop(index_name, None)
        if plan is not None and not self.connection.closed:
            for name in set(plan.names):
                self.connection.execute(sql.SQL("DEALLOCATE {name}").format(name=sql.Identifier(name)))
