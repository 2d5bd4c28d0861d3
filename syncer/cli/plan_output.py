"""The output of `syncer plan` and `syncer apply`: the verdict, each document with its problems, and the cost."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from rich.console import Console
from rich.json import JSON
from rich.text import Text

from syncer.apply.cost import SECONDS_MAX, Cost, MissingIndex
from syncer.apply.plan import PlannedChange
from syncer.apply.preview import DocumentPreview, Preview, TablePreview
from syncer.apply.trial import Severity
from syncer.base.formatting import amount, shortened
from syncer.cli.render import Part, say, show_facts

_OUTCOMES = {
    PlannedChange.NEW: ("new index", "green"),
    PlannedChange.CHANGED: ("changed in place", "green"),
    PlannedChange.REBUILD: ("needs a new index", "yellow"),
    PlannedChange.BUILDING: ("its new index is being built", "yellow"),
    PlannedChange.INDEX_GONE: ("its index is gone, or its alias leads elsewhere: restored or loaded anew", "yellow"),
    PlannedChange.INCOMPLETE: ("not completely loaded: its load goes on", "green"),
    PlannedChange.UNCHANGED: ("nothing to do", "dim"),
}
_STYLES = {Severity.REFUSED: "red", Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}
# The changed rows, as an affects query names them.
_CHANGED_ROWS = re.compile(
    r"jsonb_populate_recordset\(NULL::(?:[^,]|\"[^\"]*\")+, \$1::jsonb\)"
    r"|\(SELECT \* FROM jsonb_to_recordset\(\$1::jsonb\) AS changed \(.*?\)\)(?= AS n\d)"
)
_SHORTEST_SECONDS = 0.0001


def show_preview(console: Console, preview: Preview, *, verbose: bool = False) -> None:
    """Print a preview on one screen; with ``verbose``, all of it."""
    say(console, _verdict(preview))
    if not preview.is_migrated:
        say(console, "The database has no syncer schema: run `syncer migrate` before `syncer apply`.", style="yellow")
    unchanged = []
    for document in preview.documents:
        if document.outcome is PlannedChange.UNCHANGED and not document.problems and not verbose:
            unchanged.append(document.name)
        else:
            _show_document(console, document, verbose=verbose)
    if unchanged and not preview.is_empty:
        say(console, f"unchanged: {', '.join(unchanged)}", style="dim")
    _show_removals(console, preview)
    if preview.missing_indexes:
        say(console, ("Missing indexes", "bold yellow"), ": each of these changes reads a whole table")
    for missing in preview.missing_indexes:
        say(console, f"  {missing.statement}  ", (f"-- {_needed_by(missing)}", "dim"))
        if missing.advice:
            say(console, f"  -- {missing.advice}", style="yellow")


def _needed_by(missing: MissingIndex) -> str:
    took = _took(missing.seconds)
    if not missing.change_of:
        return f"to build a document of {missing.document} takes {took}"
    return f"a change of {missing.change_of} → {amount(missing.documents, 'document')} of {missing.document}, {took}"


def _show_removals(console: Console, preview: Preview) -> None:
    """Print what apply would remove, and what only looks as if it should."""
    for name in preview.forgotten:
        say(console, f"{name} is active, but its folder is missing: it is left unchanged", style="yellow")
        say(console, f"  syncer apply --remove {shlex.quote(name)} removes it and drops its index", style="dim")
    for name in preview.removed:
        say(console, f"{name} will be removed", style="red")
    if preview.dropped:
        say(console, f"to be dropped: {', '.join(preview.dropped)}", style="red")
    for relation in preview.released:
        say(console, f"{relation} will no longer be captured")


def _verdict(preview: Preview) -> Text:
    """The verdict in one line: the worst finding."""
    wrong = [document for document in preview.documents if document.errors]
    if len(wrong) == 1:
        return Text(f"Error in {wrong[0].name}: {wrong[0].errors[0].message.splitlines()[0]}", "bold red")
    if wrong:
        names = ", ".join(document.name for document in wrong)
        return Text(f"Errors in {len(wrong)} of {len(preview.documents)} documents: {names}", "bold red")
    verdict = "Nothing to do" if preview.is_empty else "No errors"
    warnings, missing = sum(len(document.warnings) for document in preview.documents), len(preview.missing_indexes)
    counted = [amount(warnings, "warning")] if warnings else []
    counted += [f"{missing} missing index{'es' if missing > 1 else ''}"] if missing else []
    return Text(f"{verdict}; {', '.join(counted)}", "bold yellow") if counted else Text(f"{verdict}.", "bold green")


def _show_document(console: Console, document: DocumentPreview, *, verbose: bool) -> None:
    title = (f"{document.name}", "bold"), f" → {document.index}: " if document.index else ": "
    if document.outcome is None:
        say(console, *title, ("refused", "bold red"))
    else:
        because, loads = f": {document.reason}" if document.reason else "", _loads(document)
        say(
            console,
            *title,
            _OUTCOMES[document.outcome],
            because,
            f"{'; ' if because else ', '}{loads}" if loads else "",
        )
    facts: list[tuple[Part, Part]] = []
    if document.suspended is not None:
        resumes = "" if document.errors else "\nTo resume it: syncer apply"
        facts.append((("suspended", "yellow"), Text.assemble(document.suspended, (resumes, "dim"))))
    for problem in document.problems:
        action = f"\n{problem.action}" if problem.action else ""
        facts.append(((problem.severity, _STYLES[problem.severity]), Text.assemble(problem.message, (action, "dim"))))
    if document.outcome is not PlannedChange.UNCHANGED or verbose:
        facts += [fact for table in document.tables for fact in _ways(table, verbose=verbose)]
    show_facts(console, facts)
    if verbose and document.sample is not None:
        say(console, f"  one of the documents, {document.sample['id']}:")
        console.print(JSON.from_data(shortened(document.sample["source"]), ensure_ascii=False), soft_wrap=True)


def _loads(document: DocumentPreview) -> str:
    """How many documents there are."""
    if document.documents is None:
        return "" if document.errors or not document.tables else "too many documents to count in time"
    return amount(document.documents, "document")


def _ways(table: TablePreview, *, verbose: bool) -> Iterator[tuple[str, str]]:
    """The ways from a changed row of a table to documents, each with its cost."""
    if verbose:
        watched = ", ".join(table.watched) or "only that a row is there"
        yield table.relation, f"columns: {watched}"
    for column in table.id_columns:
        yield f"a change of {table.relation}", f"1 document, by its {column}"
    for way in table.affects:
        query = re.sub(r'"(n\d+)"', r"\1", _CHANGED_ROWS.sub("%(rows)s", way.query))
        tried = "no row to try it with" if way.cost is None else _cost(way.cost)
        yield f"a change of {table.relation}", f"{tried}\n{query}" if verbose else tried


def _cost(cost: Cost) -> str:
    if cost.failure:
        return f"the query fails: {cost.failure}"
    return f"{amount(cost.documents, 'document')}, {_took(cost.seconds)}"


def _took(seconds: float | None) -> str:
    if seconds is None:
        return f"more than {SECONDS_MAX:.0f} s"
    return f"{seconds * 1000:,.1f} ms" if seconds >= _SHORTEST_SECONDS else "less than 0.1 ms"
