"""Forecast: what `syncer apply` would do, and all that is worth knowing before. What `syncer plan` shows.

Nothing in Postgres or in a document's index is changed. What is wrong with one definition does not hide what is
wrong with another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from syncer import capturable, compose, definition, schema, steps, store
from syncer.compose import Row
from syncer.definition import Definition
from syncer.errors import DefinitionError, SyncerError
from syncer.index import Index
from syncer.indices import Indices
from syncer.plan import caution, cost, estimate
from syncer.plan.caution import Warned
from syncer.plan.cost import Cost, MissingIndex
from syncer.plan.estimate import Outcome, Trial
from syncer.policy import explain
from syncer.postgres import Connection, value
from syncer.steps import Standing, Step
from syncer.store import Document
from syncer.trigger import Capture
from syncer.uses import TableUse


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why apply would refuse a document."""

    message: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One way from changed rows of a table to the documents that they touch.

    Args:
        id_column: The column whose value is the document's id, if it is that simple.
        query: Otherwise: the query over the changed rows, ``$1``.
        changed_rows: For how many rows of the table it was tried.
        cost: What that cost.
    """

    id_column: str | None
    query: str | None
    changed_rows: int
    cost: Cost | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableForecast:
    """How one document uses one table.

    Args:
        relation: Which.
        rows: How many rows it had when it was last analysed.
        watched: The columns whose change matters.
        routing: The columns that a change carries.
        is_derived: Whether the ways to the documents follow from the SELECT, or are said by the definition.
        finding: The ways to the documents.
        capture: Whether its triggers are new, changed or unchanged.
        is_owned: Whether this role may make them.
    """

    relation: str
    rows: int
    watched: tuple[str, ...]
    routing: tuple[str, ...]
    is_derived: bool
    finding: tuple[Finding, ...]
    capture: str
    is_owned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentForecast:
    """What apply would do to one document.

    Args:
        name: Which.
        index: The alias that searches use; empty if its folder could not be read.
        refusals: Why it would do nothing: each thing that is wrong.
        halted: Why it is halted, until apply; None if it is not.
        outcome: What becomes of the index; None if the definition is refused.
        reason: Why it needs a new index, if it does.
        documents: How many there are; None if counting took too long, or failed: a warning says so.
        fill_seconds: About how long writing them all takes; None if nothing could be measured.
        sampled: On how many documents that was measured.
        compose: What composing the sample costs.
        tables: What it reads.
        warnings: What is probably not meant.
        sample: One document, by its id.
    """

    name: str
    index: str
    refusals: tuple[Refusal, ...]
    halted: str | None = None
    outcome: Outcome | None = None
    reason: str | None = None
    documents: int | None = None
    fill_seconds: float | None = None
    sampled: int = 0
    compose: Cost | None = None
    tables: tuple[TableForecast, ...] = ()
    warnings: tuple[Warned, ...] = ()
    sample: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What apply would do.

    Args:
        is_migrated: Whether the database has the syncer schema that apply needs.
        documents: Of each folder.
        missing_indexes: What to create before.
        released: Tables that would no longer be captured.
        forgotten: Documents in force that have no folder; they are left as they are.
    """

    is_migrated: bool
    documents: tuple[DocumentForecast, ...]
    missing_indexes: tuple[MissingIndex, ...]
    released: tuple[str, ...]
    forgotten: tuple[str, ...]

    @property
    def is_refused(self) -> bool:
        """Whether apply would refuse anything."""
        return any(one.refusals for one in self.documents)

    @property
    def has_warnings(self) -> bool:
        """Whether there is anything to mend besides."""
        warned = any(not warning.is_note for one in self.documents for warning in one.warnings)
        return warned or bool(self.missing_indexes) or not self.is_migrated

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "is_refused": self.is_refused, "has_warnings": self.has_warnings}


def read(
    connection: Connection, index: Index, indices: Indices, config_folder: Path, *, only: str | None = None
) -> Forecast:
    """Look ahead.

    Args:
        connection: To Postgres.
        index: To write a sample with.
        indices: To try on what apply would do.
        config_folder: Where the definitions are.
        only: Forecast this document alone.

    Raises:
        SyncerError, psycopg.Error, elasticsearch.ApiError: Nothing at all can be said.
    """
    is_migrated = schema.exists(connection)
    if is_migrated:
        schema.require_current(connection)
    forecaster = _Forecaster(connection, index, indices, steps.standing(connection) if is_migrated else Standing())
    folders = definition.folders(config_folder)
    if only is not None and only not in (folder.name for folder in folders):
        known = ", ".join(folder.name for folder in folders)
        raise DefinitionError(f"There is no document {only} in {config_folder}", hint=f"There are: {known}")
    forecaster.analyse(folders)
    return forecaster.forecast(is_migrated=is_migrated, only=only)


class _Forecaster:
    """Definitions on their way to a forecast."""

    def __init__(self, connection: Connection, index: Index, indices: Indices, in_force: Standing) -> None:
        self._connection = connection
        self._index = index
        self._indices = indices
        self._in_force = in_force
        self._steps: dict[str, Step] = {}
        self._refusals: dict[str, tuple[Refusal, ...]] = {}

    def analyse(self, folders: list[Path]) -> None:
        """Find out what to do about each definition, or why nothing."""
        definitions: list[Definition] = []
        for folder in folders:
            with self._refusing(folder.name):
                definitions.append(definition.load(folder))
        for number, one in enumerate(definitions):
            with self._refusing(one.name):
                definition.require_distinct_indices(definitions[: number + 1])
            with self._refusing(one.name):
                self._steps[one.name] = steps.step(self._connection, self._indices, one, self._in_force)
                self._require_free(self._steps[one.name])

    @contextmanager
    def _refusing(self, name: str) -> Iterator[None]:
        """Remember what is wrong with a definition, and go on."""
        try:
            yield
        except _REFUSALS as error:
            self._refusals[name] = (*self._refusals.get(name, ()), _refusal(error))

    def _require_free(self, step: Step) -> None:
        if step.change in (steps.Change.NEW, steps.Change.INDEX_GONE):
            installation = store.installation(self._connection) if schema.exists(self._connection) else ""
            self._indices.require_free(step.document.index, installation)

    def forecast(self, *, is_migrated: bool, only: str | None) -> Forecast:
        whole = steps.assemble(self._connection, self._steps.values(), self._in_force)
        captures = {one.relation: one for one in whole.captures}
        names = sorted(self._steps.keys() | self._refusals.keys())
        documents = [self._document(name, captures) for name in names if only in (None, name)]
        chosen = [step for name, step in self._steps.items() if only in (None, name)]
        lookups = [lookup for step in chosen for lookup in step.document.dependencies.lookups]
        return Forecast(
            is_migrated=is_migrated,
            documents=tuple(documents),
            missing_indexes=cost.missing_indexes(self._connection, lookups),
            released=tuple(one for one in whole.released if capturable.exists(self._connection, one)),
            forgotten=tuple(one for one in whole.forgotten if one not in self._refusals),
        )

    def _document(self, name: str, captures: dict[str, Capture]) -> DocumentForecast:
        step, refusals = self._steps.get(name), self._refusals.get(name, ())
        if step is None:
            before = self._in_force.documents.get(name)
            return DocumentForecast(
                name=name,
                index=before.index if before else "",
                refusals=refusals,
                halted=before.halted if before else None,
            )
        found = DocumentForecast(name=name, index=step.document.index, refusals=(), halted=step.halted)
        trial = None
        with self._refusing(name):
            trial = estimate.attempt(self._connection, self._index, self._indices, step)
            found = _with_trial(found, step, trial)
            found = replace(found, compose=self._compose_cost(step.document, trial))
        with self._refusing(name):
            found = replace(found, tables=tuple(self._tables(step.document, captures)))
        with self._refusing(name):
            found = replace(found, warnings=caution.warnings(self._connection, step.document, trial))
        return replace(found, refusals=self._refusals.get(name, ()))

    def _compose_cost(self, document: Document, trial: Trial) -> Cost | None:
        if trial.failure and not trial.sample:
            return None
        ids = compose.castable(document, list(trial.sample))
        return cost.explain(self._connection, compose.statement(document), (ids,), seconds_max=estimate.SECONDS_MAX)

    def _tables(self, document: Document, captures: dict[str, Capture]) -> Iterator[TableForecast]:
        for relation, use in sorted(document.dependencies.tables.items()):
            yield TableForecast(
                relation=relation,
                rows=cost.rows(self._connection, relation),
                watched=tuple(sorted(use.watched)),
                routing=tuple(sorted(use.routing)),
                is_derived=use.is_derived,
                finding=tuple(self._finding(use)),
                capture=self._capture(relation, captures),
                is_owned=bool(value(self._connection, _IS_OWNED, (relation,))),
            )

    def _capture(self, relation: str, captures: dict[str, Capture]) -> str:
        if relation not in captures:
            return "unchanged"
        return "changed" if relation in self._in_force.captured else "new"

    def _finding(self, use: TableUse) -> Iterator[Finding]:
        for column in use.id_columns:
            yield Finding(id_column=column, query=None, changed_rows=0, cost=None)
        rows = cost.sample(self._connection, use.relation, use.routing) if use.affected else "[]"
        number = len(json.loads(rows))
        for query in use.affected:
            documents = sql.SQL("SELECT DISTINCT * FROM ({}) AS touched").format(sql.SQL(query))
            costs = cost.explain(self._connection, documents, (rows,), seconds_max=estimate.SECONDS_MAX)
            yield Finding(id_column=None, query=query, changed_rows=number, cost=costs)


def _with_trial(found: DocumentForecast, step: Step, trial: Trial) -> DocumentForecast:
    return replace(
        found,
        outcome=trial.outcome,
        reason=step.reason,
        documents=trial.documents,
        fill_seconds=trial.fill_seconds,
        sampled=len(trial.sample),
        sample=_first(trial.sample),
    )


_IS_OWNED = "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = $1::regclass"


# What is wrong with one definition; a connection that fails is none of these.
_REFUSALS = (SyncerError, psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError)


def _refusal(error: BaseException) -> Refusal:
    said = explain(error)
    return Refusal(message=said.message, hint=said.hint) if said else Refusal(message=str(error), hint="")


def _first(sample: dict[str, Row]) -> dict[str, Any] | None:
    return next(
        ({"id": id_, "routing": row.routing or None, "source": json.loads(row.source)} for id_, row in sample.items()),
        None,
    )
