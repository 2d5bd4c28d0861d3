"""The output of `syncer plan` and `syncer apply`: the verdict, each document with its problems, and the cost."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from rich.console import Console
from rich.json import JSON
from rich.text import Text

from syncer.apply.plan import PlannedChange
from syncer.apply.preview.cost import Cost
from syncer.apply.preview.forecast import DocumentForecast, Forecast, WayToDocuments
from syncer.apply.preview.problems import PlanProblem, ProblemKind
from syncer.base.formatting import amount, duration, shortened
from syncer.cli.render import Part, say, show_facts

_OUTCOMES = {
    PlannedChange.NEW: ("new index", "green"),
    PlannedChange.CHANGED: ("changed in place", "green"),
    PlannedChange.REBUILD: ("needs a new index", "yellow"),
    PlannedChange.BUILDING: ("its new index is being built", "yellow"),
    PlannedChange.INDEX_GONE: ("its index is gone, or its alias leads elsewhere: restored or loaded anew", "yellow"),
    PlannedChange.TRIGGERS_GONE: ("triggers only; the index stays as it is", "green"),
    PlannedChange.INCOMPLETE: ("not yet loaded", "green"),
    PlannedChange.UNCHANGED: ("nothing to do", "dim"),
}
_IN_A_NEW_INDEX = frozenset(
    {PlannedChange.NEW, PlannedChange.REBUILD, PlannedChange.BUILDING, PlannedChange.INDEX_GONE}
)
_KINDS = {
    ProblemKind.FAILS: ("fails", "red"),
    ProblemKind.REJECTED: ("rejected", "red"),
    ProblemKind.CHANGED: ("changed", "yellow"),
    ProblemKind.UNSEARCHABLE: ("not found", "yellow"),
    ProblemKind.STALE: ("stale", "dim"),
    ProblemKind.SETTING: ("setting", "dim"),
    ProblemKind.UNORDERED: ("any order", "dim"),
}
# The changed rows, as an affects query names them.
_CHANGED_ROWS = re.compile(
    r"jsonb_populate_recordset\(NULL::(?:[^,]|\"[^\"]*\")+, \$1::jsonb\)"
    r"|\(SELECT \* FROM jsonb_to_recordset\(\$1::jsonb\) AS changed \(.*?\)\)(?= AS n\d)"
)
_NUMBERED = re.compile(r'"(n\d+)"')
_SHORTEST_SECONDS = 0.0001
_SLOW_SECONDS = 0.5


def show_forecast(console: Console, seen: Forecast, *, verbose: bool = False) -> None:
    """Print a forecast on one screen; with ``verbose``, all of it."""
    say(console, _verdict(seen))
    if not seen.is_migrated:
        say(console, "The database has no syncer schema: run `syncer migrate` before `syncer apply`.", style="yellow")
    unchanged = [] if verbose else [one.name for one in seen.documents if one.is_unchanged]
    for one in seen.documents:
        if one.name not in unchanged:
            _show_document(console, one)
    if unchanged and not seen.is_empty:
        say(console, f"unchanged: {', '.join(unchanged)}", style="dim")
    _show_removals(console, seen)
    if seen.missing_indexes:
        say(console)
        say(console, ("Missing indexes", "bold yellow"), ": without them, a change or a document scans a whole table")
        for missing in seen.missing_indexes:
            say(console, f"  {missing.statement}  ", (f"-- {amount(missing.rows, 'row')}", "dim"))
    for one in seen.documents:
        _show_tables(console, one, verbose=verbose)
    for one in seen.documents if verbose else ():
        if one.sample is not None:
            say(console, (f"\n{one.name}: one of the documents, {one.sample['id']}", "bold"))
            console.print(JSON.from_data(shortened(one.sample["source"]), ensure_ascii=False), soft_wrap=True)


def _show_removals(console: Console, seen: Forecast) -> None:
    """Print what apply would remove, and what only looks as if it should."""
    for name in seen.forgotten:
        say(console, f"{name} is active, but its folder is missing: it is left unchanged", style="yellow")
        say(console, f"  syncer apply --remove {shlex.quote(name)} removes it and drops its index", style="dim")
    for name in seen.removed:
        say(console, f"{name} will be removed", style="red")
    if seen.dropped:
        say(console, f"to be dropped: {', '.join(seen.dropped)}", style="red")
    for relation in seen.released:
        say(console, f"{relation} will no longer be captured")


def _verdict(seen: Forecast) -> Text:
    """The verdict in one line: the worst finding."""
    wrong = [one for one in seen.documents if one.has_errors]
    if len(wrong) == 1:
        return Text(f"Error in {wrong[0].name}: {next(_errors(wrong[0]))}", "bold red")
    if wrong:
        names = ", ".join(one.name for one in wrong)
        return Text(f"Errors in {len(wrong)} of {len(seen.documents)} documents: {names}", "bold red")
    warnings = sum(not one.is_note for document in seen.documents for one in document.problems)
    counted = [
        amount(warnings, "warning") if warnings else "",
        f"{len(seen.missing_indexes)} missing index{'es' if len(seen.missing_indexes) > 1 else ''}"
        if seen.missing_indexes
        else "",
    ]
    verdict = "Nothing to do" if seen.is_empty else "No errors"
    if any(counted):
        return Text(f"{verdict}; {', '.join(filter(None, counted))}", "bold yellow")
    return Text(f"{verdict}.", "bold green")


def _errors(one: DocumentForecast) -> Iterator[str]:
    """The errors, one line each."""
    for refusal in one.refusals:
        yield refusal.message.splitlines()[0]
    for problem in one.problems:
        if problem.is_error:
            yield _said(problem).plain.splitlines()[0]


# What apply would do to a document


def _show_document(console: Console, one: DocumentForecast) -> None:
    title = (f"{one.name}", "bold"), f" → {one.index}: " if one.index else ": "
    if one.outcome is None:
        say(console, *title, ("refused", "bold red"))
    else:
        because = f": {one.reason}" if one.reason else ""
        initial_load = _initial_load(one)
        joint = f"{';' if one.reason else ','} " if initial_load else ""
        say(console, *title, _OUTCOMES[one.outcome], f"{because}{joint}{initial_load}")
    if one.suspended is not None:
        resumes = "" if one.refusals else "That was the cause when it was suspended. To resume it: syncer apply"
        show_facts(console, [(("suspended", "yellow"), _with_action(one.suspended, resumes))])
    show_facts(console, [(("refused", "red"), _with_action(one.message, one.hint)) for one in one.refusals])
    problems = [(_KINDS[each.kind], _with_action(_said(each), each.action)) for each in one.problems]
    show_facts(console, problems)


def _initial_load(one: DocumentForecast) -> str:
    """How many documents are to be written, and how long that takes."""
    if one.documents is None:
        is_failing = any(problem.kind is ProblemKind.FAILS for problem in one.problems)
        return "" if is_failing or not one.tables else "too many documents to count in time"
    counted = amount(one.documents, "document")
    if one.outcome is PlannedChange.UNCHANGED or one.initial_load_seconds is None:
        return counted
    verb = "to load" if one.outcome in _IN_A_NEW_INDEX else "to write them once more"
    return f"{counted}, {duration(one.initial_load_seconds)} {verb} (measured on {one.sampled:,})"


def _with_action(message: Part, action: str) -> Text:
    return Text.assemble(message, *(("\n", (action, "dim")) if action else ()))


def _said(one: PlanProblem) -> Text:
    return Text.assemble((f"{one.field}: " if one.field else "", "bold"), one.finding)


# What it reads, and the cost


def _show_tables(console: Console, one: DocumentForecast, *, verbose: bool) -> None:
    if not one.tables:
        return
    if not verbose:
        for table in one.tables:
            for way in table.ways:
                if way.cost is not None and _is_costly(way.cost):
                    say(console, f"\n{one.name}, a change of {table.relation}: ", (_tried(way, way.cost), "yellow"))
        return
    say(console, (f"\n{one.name} reads", "bold"))
    for table in one.tables:
        owned = "" if table.is_owned or table.capture == "unchanged" else ", this role does not own it"
        say(
            console,
            "  ",
            (table.relation, "cyan"),
            f"  {amount(table.rows, 'row')}, triggers {table.capture}",
            (owned, "red"),
        )
        facts = [("watched", ", ".join(table.watched) or "no column, only that a row is there")]
        given = None if table.is_derived else table.ways[-1]
        facts += [
            ("" if number else "finds", _way(way, is_given=way is given)) for number, way in enumerate(table.ways)
        ]
        show_facts(console, facts, indent=4)


def _is_costly(cost: Cost) -> bool:
    return bool(cost.scans) or cost.seconds is None or cost.seconds >= _SLOW_SECONDS


def _way(way: WayToDocuments, *, is_given: bool) -> str:
    if way.id_column is not None:
        return f"the document whose _id is its {way.id_column}"
    query = _NUMBERED.sub(r"\1", _CHANGED_ROWS.sub("%(rows)s", way.query or ""))
    said = f"{query}\n(from affects/)" if is_given else query
    if way.cost is None:
        return said
    return f"{said}\n{_tried(way, way.cost)}" if way.changed_rows else f"{said}\n(the table has no row to try it on)"


def _tried(way: WayToDocuments, cost: Cost) -> str:
    changed = amount(way.changed_rows, "changed row")
    took = f"it fails: {cost.failure}" if cost.seconds is None else _milliseconds(cost.seconds)
    scans = f", reads all of {', '.join(cost.scans)}" if cost.scans else ""
    return f"{changed} → {amount(round(cost.rows), 'document')}, {took}, cost {cost.total:,.0f}{scans}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms" if seconds >= _SHORTEST_SECONDS else "less than 0.1 ms"
