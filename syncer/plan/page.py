"""What `syncer plan` shows to a person: what apply would do, what it reads, what to mend, one document."""

from __future__ import annotations

import re
from textwrap import indent

from rich.console import Console, Group
from rich.json import JSON
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from syncer.plan.caution import Kind, Warned
from syncer.plan.cost import Cost
from syncer.plan.estimate import Outcome
from syncer.plan.forecast import DocumentForecast, Finding, Forecast, TableForecast
from syncer.wording import amount, duration, shortened

_OUTCOMES = {
    Outcome.NEW: ("green", "new index"),
    Outcome.IN_PLACE: ("green", "changed in place"),
    Outcome.REINDEX: ("yellow", "needs a new index"),
    Outcome.TRIGGERS: ("green", "triggers only; the index stays as it is"),
    Outcome.FILL: ("green", "not yet filled"),
    Outcome.NOTHING: ("dim", "nothing to do"),
}
_KINDS = {
    Kind.REFUSED: "[red]refused[/]",
    Kind.FAILS: "[red]fails[/]",
    Kind.CHANGED: "[yellow]changed[/]",
    Kind.UNSEARCHABLE: "[yellow]not found[/]",
    Kind.UNUSED: "[dim]unused[/]",
}
# The changed rows, as an affects query names them.
_CHANGED_ROWS = re.compile(
    r"jsonb_populate_recordset\(NULL::(?:[^,]|\"[^\"]*\")+, \$1::jsonb\)"
    r"|\(SELECT \* FROM jsonb_to_recordset\(\$1::jsonb\) AS changed \(.*?\)\)(?= AS n\d)"
)

_SHORTEST_SECONDS = 0.0001
_NUMBERED = re.compile(r'"(n\d+)"')


def show_forecast(console: Console, seen: Forecast) -> None:
    """All of a forecast."""
    if not seen.is_migrated:
        console.print("[yellow]The database has no syncer schema: run `syncer migrate` before `syncer apply`.[/]\n")
    for one in seen.documents:
        _show_heading(console, one)
    for name in seen.forgotten:
        console.print(
            f"[bold]{escape(name)}[/]: [yellow]in force without a folder: left as it is, but for apply --remove"
        )
    for one in seen.documents:
        _show_tables(console, one)
    for relation in seen.released:
        console.print(f"\n{escape(relation)} is no longer read: its triggers are removed", soft_wrap=True)
    _show_missing(console, seen)
    for one in seen.documents:
        show_warnings(console, one.name, one.warnings)
    for one in seen.documents:
        _show_sample(console, one)


# What apply would do


def _show_heading(console: Console, one: DocumentForecast) -> None:
    title = f"[bold]{escape(one.name)}[/]" + (f" → {escape(one.index)}" if one.index else "")
    if one.outcome is None:
        console.print(f"{title}: [bold red]refused", soft_wrap=True)
    else:
        style, words = _OUTCOMES[one.outcome]
        because = f": {escape(one.reason)}" if one.reason else ""
        fill = _fill(one)
        joint = f"{';' if one.reason else ','} " if fill else ""
        console.print(f"{title}: [{style}]{words}[/]{because}{joint}{fill}", soft_wrap=True)
    if one.halted is not None:
        console.print(Text(indent(f"halted: {one.halted}", "  "), style="yellow"), soft_wrap=True)
    for refusal in one.refusals:
        console.print(Text(indent(refusal.message, "  ")), soft_wrap=True)
        if refusal.hint:
            console.print(Text(indent(refusal.hint, "    "), style="dim"), soft_wrap=True)


def _fill(one: DocumentForecast) -> str:
    """How many documents are written, and how long that takes; nothing if the SELECT fails when they are counted."""
    if one.documents is None:
        is_failing = any(warned.kind is Kind.FAILS for warned in one.warnings)
        return "" if is_failing else "too many documents to count in time"
    counted = f"{amount(one.documents, 'document')}"
    if one.outcome is Outcome.NOTHING:
        return counted
    if one.fill_seconds is None:
        return counted
    verb = "to fill" if one.outcome in (Outcome.NEW, Outcome.REINDEX) else "to write them once more"
    return f"{counted}, {duration(one.fill_seconds)} {verb} (measured on {one.sampled:,})"


# What it reads


def _show_tables(console: Console, one: DocumentForecast) -> None:
    if not one.tables:
        return
    console.print(f"\n[bold]{escape(one.name)} reads[/]")
    for table in one.tables:
        owned = "" if table.is_owned or table.capture == "unchanged" else ", [red]this role does not own it[/]"
        console.print(
            f"  [cyan]{escape(table.relation)}[/]  {amount(table.rows, 'row')}, triggers {table.capture}{owned}"
        )
        _show_part(console, "watched", ", ".join(table.watched) or "no column, only that a row is there")
        for number, finding in enumerate(table.finding):
            _show_part(console, "" if number else "finds", _way(table, finding))
    if one.compose is not None and one.sampled:
        composed = amount(one.sampled, "document")
        console.print(f"  composing {composed}: {escape(_cost(one.compose, ''))}", soft_wrap=True)


def _show_part(console: Console, label: str, text: str) -> None:
    for number, line in enumerate(text.splitlines()):
        console.print(f"    {'' if number else label:<8}{escape(line)}", soft_wrap=not label.startswith("watched"))


def _way(table: TableForecast, finding: Finding) -> str:
    if finding.id_column is not None:
        return f"the document whose _id is its {finding.id_column}"
    query = _NUMBERED.sub(r"\1", _CHANGED_ROWS.sub("%(rows)s", finding.query or ""))
    said = "" if table.is_derived else "\n(as affects/ says)"
    if finding.cost is None:
        return query + said
    if not finding.changed_rows:
        return f"{query}{said}\n(the table has no row to try it on)"
    changed = amount(finding.changed_rows, "changed row")
    if finding.cost.failure is not None:
        return f"{query}{said}\n{changed} → it fails: {finding.cost.failure}"
    documents = amount(round(finding.cost.rows), "document")
    return f"{query}{said}\n{_cost(finding.cost, f'{changed} → {documents}, ')}"


def _cost(cost: Cost, before: str) -> str:
    took = "did not finish in time" if cost.seconds is None else _milliseconds(cost.seconds)
    scans = f", reads all of {', '.join(cost.scans)}" if cost.scans else ""
    return f"{before}{took}, cost {cost.total:,.0f}{scans}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms" if seconds >= _SHORTEST_SECONDS else "less than 0.1 ms"


# What to mend


def _show_missing(console: Console, seen: Forecast) -> None:
    if not seen.missing_indexes:
        return
    console.print("\n[bold yellow]Missing indexes[/]: without them, a change or a document reads a whole table")
    for missing in seen.missing_indexes:
        console.print(f"  {escape(missing.statement)}", soft_wrap=True, end="")
        console.print(f"  [dim]-- {amount(missing.rows, 'row')}", soft_wrap=True)


def show_warnings(console: Console, document: str, warnings: tuple[Warned, ...]) -> None:
    """What of one document is probably not meant."""
    if not warnings:
        return
    console.print(f"\n[bold yellow]{escape(document)}: {_counted(warnings)}[/]")
    # On a terminal a long line goes on below its beginning; in a pipe it stays one line.
    grid = Table.grid(padding=(0, 1))
    for one in warnings:
        kind, said, mend = Text.from_markup(_KINDS[one.kind]), _said(one), Text(one.mend, style="dim")
        grid.add_row("", kind, Group(said, mend))
        if not console.is_terminal:
            console.print(
                f"  {kind.plain:<9} {said.plain}\n{indent(mend.plain, ' ' * 12)}", markup=False, soft_wrap=True
            )
    if console.is_terminal:
        console.print(grid)


def _counted(warnings: tuple[Warned, ...]) -> str:
    notes = sum(one.is_note for one in warnings)
    numbers = ((len(warnings) - notes, "warning"), (notes, "note"))
    return ", ".join(amount(many, noun) for many, noun in numbers if many)


def _said(one: Warned) -> Text:
    link = ", " if one.mapping.startswith("no mapping") else " into "
    types = link.join(part for part in (one.type, one.mapping) if part)
    place = f"[bold]{escape(one.field)}[/]" + (f" ({escape(types)})" if types else "")
    return Text.from_markup(f"{place}: {escape(one.what)}{_today(one)}" if one.field else escape(one.what))


def _today(one: Warned) -> str:
    if one.example is not None:
        return f". [bold]It happens to document {escape(one.example)}[/]"
    return ". No document of today has one" if one.is_looked_for else ""


# One document


def _show_sample(console: Console, one: DocumentForecast) -> None:
    if one.sample is None:
        return
    console.print(f"\n[bold]{escape(one.name)}: one of the documents, {escape(str(one.sample['id']))}[/]")
    console.print(JSON.from_data(shortened(one.sample["source"]), ensure_ascii=False), soft_wrap=True)
