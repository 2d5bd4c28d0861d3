"""Forecast: what `syncer apply` would do, with its problems and costs. `syncer plan` shows it.

Nothing in Postgres or in a document's index is changed. A problem with one definition does not hide problems of others.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from syncer.apply import plan
from syncer.apply.plan import ActiveDefinitions, Plan, PlannedChange, Step
from syncer.apply.preview import cost, estimate, problems
from syncer.apply.preview.cost import Cost, MissingIndex
from syncer.apply.preview.problems import PlanProblem
from syncer.base import migrations
from syncer.base.error_policy import explain
from syncer.base.errors import DefinitionError, SyncerError
from syncer.base.postgres import Connection, value
from syncer.capture.triggers import Capture
from syncer.documents import definition
from syncer.documents.definition import Definition
from syncer.documents.queries import Row
from syncer.documents.registry import Document
from syncer.elasticsearch.bulk import Index
from syncer.elasticsearch.indices import Indices
from syncer.lineage.dependencies import TableUse


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why apply would refuse a document."""

    message: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WayToDocuments:
    """A way from changed rows of a table to the documents that they touch.

    Args:
        id_column: The column that holds the document's id, if there is one.
        query: Otherwise the query over the changed rows, ``$1``.
        changed_rows: How many rows of the table it was tried with.
    """

    id_column: str | None
    query: str | None
    changed_rows: int
    cost: Cost | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableForecast:
    """How one document uses one table.

    Args:
        rows: How many rows it had when it was last analysed.
        watched: The columns whose changes matter.
        is_derived: Whether the queries all follow from the SELECT; otherwise an affects query adds to them.
        capture: Whether its triggers are new, changed or unchanged.
        is_owned: Whether this role may create them.
    """

    relation: str
    rows: int
    watched: tuple[str, ...]
    is_derived: bool
    ways: tuple[WayToDocuments, ...]
    capture: str
    is_owned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentForecast:
    """What apply would do to one document.

    Args:
        index: The alias that searches use; empty if its folder could not be read.
        refusals: Why apply would refuse it, one for each problem found.
        suspended: Why it is suspended until apply; None if it is not.
        outcome: What apply does; None if the definition is refused.
        reason: Why it needs a new index, if it does.
        documents: How many there are; None if counting took too long or failed, in which case a problem says so.
        initial_load_seconds: The estimated time to write them all; None if nothing could be measured.
        sampled: How many documents that was measured on.
        problems: What is wrong or probably unintended, the worst first.
    """

    name: str
    index: str
    refusals: tuple[Refusal, ...]
    suspended: str | None = None
    outcome: PlannedChange | None = None
    reason: str | None = None
    documents: int | None = None
    initial_load_seconds: float | None = None
    sampled: int = 0
    tables: tuple[TableForecast, ...] = ()
    problems: tuple[PlanProblem, ...] = ()
    sample: dict[str, Any] | None = None

    @property
    def has_errors(self) -> bool:
        """Whether apply refuses it, or cannot write all of its documents."""
        return bool(self.refusals) or any(one.is_error for one in self.problems)

    @property
    def is_unchanged(self) -> bool:
        """Whether there is nothing to do, and nothing to say."""
        return self.outcome is PlannedChange.UNCHANGED and not (self.refusals or self.problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What apply would do.

    Args:
        is_migrated: Whether the database has the syncer schema that apply needs.
        is_empty: Whether there is nothing to do.
        documents: One for each folder.
        missing_indexes: The indexes to create first.
        released: Tables that would no longer be captured.
        forgotten: Active documents without a folder; they are left as they are.
        removed: Active documents that would be removed.
        dropped: Indices that would be dropped: removed, obsolete, or left behind by an interrupted command.
    """

    is_migrated: bool
    is_empty: bool
    documents: tuple[DocumentForecast, ...]
    missing_indexes: tuple[MissingIndex, ...]
    released: tuple[str, ...]
    forgotten: tuple[str, ...]
    removed: tuple[str, ...]
    dropped: tuple[str, ...]

    @property
    def has_errors(self) -> bool:
        """Whether apply would refuse anything, or documents could not be written."""
        return any(one.has_errors for one in self.documents)

    @property
    def has_warnings(self) -> bool:
        """Whether there is anything else to fix."""
        warned = any(not (one.is_error or one.is_note) for document in self.documents for one in document.problems)
        return warned or bool(self.missing_indexes) or not self.is_migrated

    def as_json(self) -> dict[str, Any]:
        """The forecast as plain data."""
        return {"has_errors": self.has_errors, "has_warnings": self.has_warnings, **asdict(self)}


def read(
    connection: Connection,
    index: Index,
    indices: Indices,
    config_folder: Path,
    *,
    only: str | None = None,
    remove: Collection[str] = (),
) -> Forecast:
    """Return what apply would do.

    With ``only``, the forecast is for this document alone. ``remove`` names documents without a folder that are to be
    withdrawn.

    Raises:
        SyncerError, psycopg.Error, elasticsearch.ApiError: No forecast is possible.
    """
    is_migrated = migrations.exists(connection)
    if is_migrated:
        migrations.require_current(connection)
    if only is not None:
        definition.require_folder(config_folder, only)
    active = plan.standing(connection) if is_migrated else ActiveDefinitions()
    folders = definition.folders(config_folder, may_be_none=bool(remove))
    plan.require_removable(remove, active, {folder.name for folder in folders})
    forecaster = _Forecaster(connection, index, indices, active)
    decided = plan.assemble(connection, forecaster.analyse(folders, only), active, remove=remove)
    return forecaster.forecast(decided, config_folder, is_migrated=is_migrated, only=only)


def of_plan(connection: Connection, index: Index, indices: Indices, config_folder: Path, decided: Plan) -> Forecast:
    """Return what carrying out a plan would do; what does not change is not tried.

    Raises:
        SyncerError, psycopg.Error, elasticsearch.ApiError: No forecast is possible.
    """
    return _Forecaster(connection, index, indices, decided.active, only_changed=True).forecast(decided, config_folder)


def require_applicable(seen: Forecast, *, despite_dead_lettered: bool) -> None:
    """Refuse to apply what is refused, or what has documents that cannot be written.

    Raises:
        DefinitionError: Names the definitions, each with its first error.
    """
    for document in seen.documents:
        for refusal in document.refusals:
            raise DefinitionError(refusal.message, hint=refusal.hint)
    errors = {one.name: found for one in seen.documents for found in reversed(one.problems) if found.is_error}
    if errors and not despite_dead_lettered:
        raise DefinitionError(
            "\n".join(f"{name}: {one.field and f'{one.field}: '}{one.finding}" for name, one in errors.items()),
            hint="Nothing was changed. Fix the SELECT, the mapping or the data; `syncer plan` shows all problems.\n"
            "To go on without such documents, add --despite-dead-lettered.",
        )


class _Forecaster:
    """Collects steps and refusals, and makes a forecast of them."""

    def __init__(
        self,
        connection: Connection,
        index: Index,
        indices: Indices,
        active: ActiveDefinitions,
        *,
        only_changed: bool = False,
    ) -> None:
        self._connection = connection
        self._index = index
        self._indices = indices
        self._active = active
        self._only_changed = only_changed
        self._refusals: dict[str, tuple[Refusal, ...]] = {}

    def analyse(self, folders: list[Path], only: str | None) -> list[Step]:
        """Plan a step for each definition, or collect why it is refused."""
        steps: list[Step] = []
        definitions: list[Definition] = []
        for folder in folders:
            with self._refusing(folder.name):
                definitions.append(definition.load(folder))
        for one in definitions:
            if only in (None, one.name):
                with self._refusing(one.name):
                    definition.require_own_index(one, definitions)
                with self._refusing(one.name):
                    steps.append(plan.step(self._connection, self._indices, one, self._active))
        return steps

    @contextmanager
    def _refusing(self, name: str) -> Iterator[None]:
        """Collect an error of a definition, and continue."""
        try:
            yield
        except _REFUSALS as error:
            self._refusals[name] = (*self._refusals.get(name, ()), _refusal(error))

    def forecast(
        self, decided: Plan, config_folder: Path, *, is_migrated: bool = True, only: str | None = None
    ) -> Forecast:
        steps = {step.document.name: step for step in decided.steps}
        captures = {one.relation: one for one in decided.captures}
        refused = [name for name in self._refusals if name not in steps and only in (None, name)]
        documents = [
            self._document(steps[name], captures) if name in steps else self._refused(name)
            for name in sorted([*steps, *refused])
        ]
        configured = {folder.name for folder in definition.folders(config_folder, may_be_none=True)}
        lookups = [lookup for step in decided.steps for lookup in step.document.dependencies.lookups]
        gone = (*(one.target for one in (*decided.removed, *decided.abandoned)), *decided.active.orphan_indices)
        return Forecast(
            is_migrated=is_migrated,
            is_empty=decided.is_empty,
            documents=tuple(documents),
            missing_indexes=cost.missing_indexes(self._connection, lookups),
            released=decided.released,
            forgotten=tuple(one for one in decided.forgotten if one not in configured),
            removed=tuple(dict.fromkeys(one.name for one in decided.removed)),
            dropped=tuple(dict.fromkeys(one.index_name for one in gone)),
        )

    def _refused(self, name: str) -> DocumentForecast:
        before = self._active.documents.get(name)
        return DocumentForecast(
            name=name,
            index=before.index if before else "",
            refusals=self._refusals[name],
            suspended=before.suspended if before else None,
        )

    def _document(self, step: Step, captures: dict[str, Capture]) -> DocumentForecast:
        name = step.document.name
        found = DocumentForecast(name=name, index=step.document.index, refusals=(), suspended=step.suspended)
        if self._only_changed and not step.is_new_revision:
            return replace(found, outcome=step.change, reason=step.reason)
        trial = None
        with self._refusing(name):
            trial = estimate.attempt(self._connection, self._index, self._indices, step)
            found = replace(
                found,
                outcome=step.change,
                reason=step.reason,
                documents=trial.documents,
                initial_load_seconds=trial.initial_load_seconds,
                sampled=len(trial.sample),
                sample=_first(trial.sample),
            )
        with self._refusing(name):
            found = replace(found, tables=tuple(self._tables(step.document, captures)))
        with self._refusing(name):
            found = replace(found, problems=problems.find(self._connection, step.document, trial)) if trial else found
        return replace(found, refusals=self._refusals.get(name, ()))

    def _tables(self, document: Document, captures: dict[str, Capture]) -> Iterator[TableForecast]:
        for relation, use in sorted(document.dependencies.tables.items()):
            yield TableForecast(
                relation=relation,
                rows=cost.rows(self._connection, relation),
                watched=tuple(sorted(use.watched)),
                is_derived=use.is_derived,
                ways=tuple(self._ways(use)),
                capture=("changed" if relation in self._active.captured else "new")
                if relation in captures
                else "unchanged",
                is_owned=bool(value(self._connection, _IS_OWNED, (relation,))),
            )

    def _ways(self, use: TableUse) -> Iterator[WayToDocuments]:
        for column in use.id_columns:
            yield WayToDocuments(id_column=column, query=None, changed_rows=0, cost=None)
        rows = cost.sample(self._connection, use.relation, use.routing) if use.affected else "[]"
        number = len(json.loads(rows))
        for query in use.affected:
            documents = sql.SQL("SELECT DISTINCT * FROM ({}) AS touched").format(sql.SQL(query))
            costs = cost.explain(self._connection, documents, (rows,), seconds_max=estimate.SECONDS_MAX)
            yield WayToDocuments(id_column=None, query=query, changed_rows=number, cost=costs)


_IS_OWNED = "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = $1::regclass"


# Errors of one definition; a failing connection is none of these.
_REFUSALS = (SyncerError, psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError)


def _refusal(error: BaseException) -> Refusal:
    said = explain(error) or SyncerError(str(error))
    return Refusal(message=said.message, hint=said.hint)


def _first(sample: dict[str, Row]) -> dict[str, Any] | None:
    return next(
        ({"id": id_, "routing": row.routing or None, "source": json.loads(row.source)} for id_, row in sample.items()),
        None,
    )
