"""Preview: what `syncer apply` would do, with its problems and costs. `syncer plan` shows it.

Nothing in Postgres or in a document's index is changed. A problem with one definition does not hide problems of others.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterator
from concurrent.futures import Future, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Any

import psycopg
from elasticsearch import ApiError

from syncer.apply import cost, plan, trial
from syncer.apply.cost import Cost, MissingIndex
from syncer.apply.plan import ActiveDefinitions, Plan, PlannedChange, Step
from syncer.apply.trial import PlanProblem, PlanSeverity
from syncer.base import migrations
from syncer.base.error_policy import explain
from syncer.base.errors import DefinitionError, SyncerError
from syncer.base.model import is_utf8
from syncer.base.postgres import Connection
from syncer.documents import definition, queries
from syncer.documents.definition import Definition
from syncer.documents.registry import Document, TableUse
from syncer.documents.snapshot import Tries
from syncer.elasticsearch.bulk import Index
from syncer.elasticsearch.indices import Indices

# Errors of one definition; a failing connection is none of these.
_REFUSALS = (SyncerError, ApiError, psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError)
_BUILDS = 3
"""How many documents are built apart, to see what one costs."""
_TRIALS_MAX = 10
"""How many samples are in memory, and written at once: Elasticsearch handles changes of its indices together."""
_CLEANUP_SECONDS_MAX = 10.0
"""How long a command that ends early waits for the trials in progress, if Elasticsearch does not answer."""

_COSTLY = (
    "Each edit of a document costs that. If the SELECT computes a part for all rows, as in a CTE that is\n"
    "MATERIALIZED, write it as a subquery with the document's key in WHERE."
)
_FAILING = (
    "It meets rows that WHERE leaves out, too. In select.sql, compare what cannot fail on any row:\n"
    "texts, as in posts.id::text = events.subject_id, instead of a cast of the text."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AffectsQuery:
    """A query from changed rows, ``$1``, to documents; its cost is None if the table has no row to try it with."""

    query: str
    cost: Cost | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePreview:
    """How changes of a table lead to documents: by columns whose value is an id, and by queries for other ones."""

    relation: str
    watched: tuple[str, ...]
    id_columns: tuple[str, ...]
    affects: tuple[AffectsQuery, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentPreview:
    """What apply would do to one document: no outcome if its definition is refused. The worst problem is the first.

    Args:
        index: The alias that searches use; empty if its folder could not be read.
        suspended: Why it is suspended until apply.
        reason: What differs from what is active, or why it needs a new index.
        documents: How many there are; None if counting took too long or failed, in which case a problem says so.
    """

    name: str
    index: str
    suspended: str | None = None
    outcome: PlannedChange | None = None
    reason: str | None = None
    documents: int | None = None
    tables: tuple[TablePreview, ...] = ()
    problems: tuple[PlanProblem, ...] = ()

    @property
    def errors(self) -> list[PlanProblem]:
        """Why apply refuses it, or cannot write all of its documents."""
        return [problem for problem in self.problems if problem.severity in (PlanSeverity.REFUSED, PlanSeverity.ERROR)]

    @property
    def warnings(self) -> list[PlanProblem]:
        """What is probably not intended."""
        return [problem for problem in self.problems if problem.severity is PlanSeverity.WARNING]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What apply would do.

    Args:
        is_migrated: Whether the database has the syncer schema that apply needs.
        documents: One for each folder.
        missing_indexes: The most needed one first.
        released: Tables that would no longer be captured.
        forgotten: Active documents without a folder; they are left as they are.
        dropped: Indices that would be dropped: removed, obsolete, or left behind by an interrupted command.
    """

    is_migrated: bool
    is_empty: bool
    documents: tuple[DocumentPreview, ...]
    missing_indexes: tuple[MissingIndex, ...]
    released: tuple[str, ...]
    forgotten: tuple[str, ...]
    removed: tuple[str, ...]
    dropped: tuple[str, ...]

    @property
    def has_errors(self) -> bool:
        """Whether apply would refuse anything, or documents could not be written."""
        return any(document.errors for document in self.documents)

    @property
    def has_warnings(self) -> bool:
        """Whether there is anything else to fix."""
        is_warned = any(document.warnings for document in self.documents)
        return is_warned or bool(self.missing_indexes) or not self.is_migrated

    def as_json(self) -> dict[str, Any]:
        """The preview as plain data."""
        return {"has_errors": self.has_errors, "has_warnings": self.has_warnings, **asdict(self)}

    def require_applicable(self, *, allow_failed: bool) -> None:
        """Refuse to apply what is refused, or what has documents that cannot be written."""
        errors = {document.name: document.errors[0] for document in self.documents if document.errors}
        for problem in errors.values():
            if problem.severity is PlanSeverity.REFUSED:
                raise DefinitionError(problem.message, hint=problem.action)
        if errors and not allow_failed:
            raise DefinitionError(
                "\n".join(f"{name}: {problem.message}" for name, problem in errors.items()),
                hint="Nothing was changed. Fix the SELECT, the mapping or the data; `syncer plan` shows all problems.\n"
                "To go on without such documents, add --allow-failed-documents.",
            )


def read(
    connection: Connection,
    index: Index,
    indices: Indices,
    config_folder: Path,
    *,
    only: str | None = None,
    remove: Collection[str] = (),
    take_over: Collection[str] = (),
    only_changed: bool = False,
) -> tuple[Plan, Preview]:
    """Plan what apply would do, and preview it.

    With ``only``, do so for this document alone; with ``only_changed``, try only definitions that change. ``remove``
    names documents without a folder that are to be withdrawn, ``take_over`` those that replace another installation's
    index, or is ``*`` for all.
    """
    # Each probe of a SELECT is rolled back, and psycopg then discards what it has prepared.
    connection.prepare_threshold = None
    is_migrated = migrations.exists(connection)
    if is_migrated:
        migrations.require_current(connection)
    if only is not None:
        definition.require_folder(config_folder, only)
    active = plan.read_active(connection) if is_migrated else ActiveDefinitions()
    folders = definition.folders(config_folder, may_be_none=bool(remove))
    configured = {folder.name for folder in folders}
    plan.require_removable(remove, active, configured)
    previewed = _Previewed(connection, index, indices)
    definitions: list[Definition] = []
    for folder in folders:
        with previewed.refusals(folder.name):
            definitions.append(definition.load(folder))
    indices.delete_leftovers({loaded.index for loaded in definitions})
    steps: list[Step] = []
    with previewed.trials():
        for loaded in definitions:
            if only in (None, loaded.name):
                with previewed.refusals(loaded.name):
                    definition.require_own_index(loaded, definitions)
                with previewed.refusals(loaded.name):
                    takes_over = not {"*", loaded.name}.isdisjoint(take_over)
                    step = plan.step(connection, indices, loaded, active, takes_over=takes_over)
                    steps.append(previewed.begin(step, is_tried=step.is_new_revision or not only_changed))
        for step in steps:  # while Elasticsearch handles the last samples
            if step.document.name in previewed.sampled:
                previewed.complete(step)
    decided = plan.assemble(connection, steps, active, remove=remove)
    documents = previewed.documents
    for name, problems in previewed.problems.items():
        if only in (None, name):
            current = active.documents.get(name)
            preview = documents.get(name) or DocumentPreview(
                name=name, index=current.index if current else "", suspended=current.suspended if current else None
            )
            worst_first = sorted(problems, key=lambda problem: list(PlanSeverity).index(problem.severity))
            is_refused = any(problem.severity is PlanSeverity.REFUSED for problem in problems)
            outcome = None if is_refused else preview.outcome
            documents[name] = replace(preview, outcome=outcome, problems=tuple(worst_first))
    dropped = (*(document.target for document in (*decided.removed, *decided.abandoned)), *active.orphan_indices)
    return decided, Preview(
        is_migrated=is_migrated,
        is_empty=decided.is_empty,
        documents=tuple(documents[name] for name in sorted(documents)),
        missing_indexes=cost.ranked(previewed.missing),
        released=decided.released,
        forgotten=tuple(name for name in decided.forgotten if name not in configured),
        removed=tuple(dict.fromkeys(document.name for document in decided.removed)),
        dropped=tuple(dict.fromkeys(target.index_name for target in dropped)),
    )


@dataclass(slots=True)
class _Previewed:
    """The documents and their problems, by name; and which indexes are missing."""

    connection: Connection
    index: Index
    indices: Indices
    documents: dict[str, DocumentPreview] = field(default_factory=dict)
    problems: dict[str, list[PlanProblem]] = field(default_factory=lambda: defaultdict(list))
    missing: list[MissingIndex] = field(default_factory=list)
    sampled: dict[str, dict[str, int]] = field(default_factory=dict)
    """The sizes in bytes of the sampled documents by id, by definition."""
    _trials: deque[tuple[str, Future[list[PlanProblem]]]] = field(default_factory=deque)
    """The trials in progress, by document: Elasticsearch writes samples while Postgres is asked about the next."""

    @contextmanager
    def refusals(self, name: str) -> Iterator[None]:
        """Note an error of a definition, and continue."""
        try:
            yield
        except _REFUSALS as error:
            shown = explain(error) or SyncerError(str(error))
            self.problems[name].append(PlanProblem(PlanSeverity.REFUSED, shown.message, shown.hint))

    def begin(self, step: Step, *, is_tried: bool) -> Step:
        """Begin to preview a definition; return its step, with the form of its query that builds with less work."""
        document, count = step.document, None
        select = document.dependencies.canonical_select
        with self.refusals(document.name) if is_tried else suppress(*_REFUSALS):
            with closing(Tries(self.connection, seconds=cost.SECONDS_MAX)) as tries:
                ids, count = queries.sampled_ids(tries, select) if is_tried else ([], None)
                with suppress(*_REFUSALS):  # what is refused is said by the sample
                    # Of the smallest ids, a merge of two sorted sides would read the least.
                    id_ = max(ids, key=lambda id_: (len(id_), id_)) if count else queries.greatest_id(tries, select)
                    apart_max = cost.apart_max(tries, document, id_) if id_ and is_utf8(id_) else None
                    if apart_max is not None:
                        step = replace(step, document=replace(document, apart_max=apart_max))
            if is_tried:
                count, rows, failures = trial.take_sample(self.connection, step.document, ids, count)
                self._begin_trial(step, rows, failures)
                self.sampled[document.name] = {id_: len(row.source) for id_, row in rows.items()}
        self.documents[document.name] = DocumentPreview(
            name=document.name,
            index=document.index,
            suspended=step.suspended,
            outcome=step.change,
            reason=step.reason,
            documents=count,
        )
        return step

    @contextmanager
    def trials(self) -> Iterator[None]:
        """End all trials: after an error or an interrupt, too, their indices are deleted."""
        try:
            yield
            while self._trials:
                self._end_trial()
        finally:
            wait([outcome for _, outcome in self._trials], timeout=_CLEANUP_SECONDS_MAX)

    def _begin_trial(self, step: Step, *sample: Any) -> None:
        """Write a sample in a thread that the end of the process does not wait for, beside a few others."""
        while len(self._trials) >= _TRIALS_MAX:
            self._end_trial()
        outcome = Future[list[PlanProblem]]()
        self._trials.append((step.document.name, outcome))

        def write() -> None:
            try:
                outcome.set_result(trial.write_sample(self.index, self.indices, step, *sample))
            except BaseException as error:  # noqa: BLE001 - it is raised by `_end_trial`
                outcome.set_exception(error)

        Thread(target=write, daemon=True).start()

    def _end_trial(self) -> None:
        """Wait for the trial that was begun first, and add what it has found."""
        name, outcome = self._trials[0]
        with self.refusals(name):
            self.problems[name][:0] = outcome.result()
        self._trials.popleft()

    def complete(self, step: Step) -> None:
        """Add what the fields of a definition depend on, and what its queries cost."""
        document, sizes, problems = step.document, self.sampled[step.document.name], self.problems[step.document.name]
        with self.refusals(document.name):
            problems += trial.notes(self.connection, document, list(sizes))
        with self.refusals(document.name), closing(Tries(self.connection, seconds=cost.SECONDS_MAX)) as tries:
            built = dict(islice(sizes.items(), _BUILDS))
            build, missing = cost.of_build(tries, document, built, document_bytes=max(built.values(), default=0))
            self.missing += missing
            if build is not None and build.is_slow and not missing:
                took = cost.duration(build.seconds)
                message = f"to build one document takes {took}, and syncer knows no index that would help"
                problems.append(PlanProblem(PlanSeverity.NOTE, message, _COSTLY))
            tables = [self._table(tries, document, use) for _, use in sorted(document.dependencies.tables.items())]
            self.documents[document.name] = replace(self.documents[document.name], tables=tuple(tables))

    def _table(self, tries: Tries, document: Document, use: TableUse) -> TablePreview:
        affects = []
        for query, measured, missing in cost.of_changes(tries, document.name, use):
            self.missing += missing
            affects.append(AffectsQuery(query=query, cost=measured))
            if measured is not None and measured.failure:
                message = (
                    f"a change of {use.relation} refreshes every document: the query that finds those that it "
                    f"touches fails on the data: {measured.failure}"
                )
                self.problems[document.name].append(PlanProblem(PlanSeverity.WARNING, message, _FAILING))
        return TablePreview(
            relation=use.relation, watched=tuple(sorted(use.watched)), id_columns=use.id_columns, affects=tuple(affects)
        )
