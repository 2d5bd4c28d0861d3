"""The commands ``syncer plan`` and ``syncer apply``: preview the config folder's definitions, and activate them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from syncer.apply import activate
from syncer.apply.cost import SECONDS_MAX, Cost, MissingIndex
from syncer.apply.plan import Plan, PlannedChange
from syncer.apply.preview import DocumentPreview, Preview, TablePreview, read
from syncer.apply.trial import Severity
from syncer.base import settings
from syncer.base.formatting import amount, shortened
from syncer.cli import parameters, render
from syncer.cli.context import Parts, open_parts
from syncer.cli.follow_jobs import LoadProgress
from syncer.cli.parameters import UsageError, finite
from syncer.cli.render import Part, say, show_facts
from syncer.kafka import topic
from syncer.recovery import lost_records

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
_SHORTEST_SECONDS = 0.0001

Remove = Annotated[
    list[str] | None,
    typer.Option(metavar="DOCUMENT", help="Remove a document whose folder was deleted, and drop its index."),
]


def plan(
    document: parameters.MaybeDocument = None,
    *,
    remove: Remove = None,
    as_json: parameters.AsJson = False,
) -> None:
    """Preview what apply would do, without changing anything.

    Shows for each document whether its index would be created, changed in place or rebuilt.
    Writes a sample of documents to a scratch index to find what Elasticsearch rejects. Shows
    how many documents one changed row of each table leads to, and lists missing indexes. The
    first line is the verdict. --json adds the queries from changed rows to documents.
    Exit code 1 if a definition is invalid or a sampled document is rejected.
    """
    _require_either(document, remove)
    with open_parts("plan", is_migrated=False) as parts:
        _, found = _decided(parts, document, remove)
    if as_json:
        render.print_json(found.as_json())
    else:
        _show_preview(render.console(sys.stdout), found)
    if found.has_errors:
        raise typer.Exit(1)


def apply(
    document: parameters.MaybeDocument = None,
    *,
    yes: parameters.Yes = False,
    lock_timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, callback=finite, help="Time to keep trying to lock a table in use."),
    ] = 60,
    remove: Remove = None,
    despite_dead_lettered: parameters.DespiteDeadLettered = False,
) -> None:
    """Activate the definitions of the config folder.

    Shows what changes, as `syncer plan` does, and asks for confirmation. Creates indices,
    triggers and the topic, and runs initial loads. If there is an error in any document that
    changes, nothing is changed. With --despite-dead-lettered, documents that cannot be written
    become dead letters instead. A document whose folder was deleted stays active unless you
    name it with --remove. This drops its index, its jobs, its dead letters, and the triggers
    of tables that no other document reads.
    """
    _require_either(document, remove)
    out, err = render.console(sys.stdout), render.console(sys.stderr)
    with open_parts("apply") as parts:
        kafka = parts.settings.kafka
        if kafka.is_used:
            lost_records.require_original(parts.connection, kafka, parts.index)
        decided, found = _decided(parts, document, remove, only_changed=True)
        found.require_applicable(despite_dead_lettered=despite_dead_lettered)
        _show_preview(out, found)
        if decided.is_empty and (not kafka.is_used or topic.exists(kafka)):
            return
        parameters.confirm("Apply?", yes=yes)
        if kafka.is_used and topic.ensure_topic(kafka):
            say(out, f"topic {kafka.topic} created")
        initial_loads = activate.carry_out(
            parts.connection,
            parts.indices,
            decided,
            report=lambda line: say(out, line),
            timeout_seconds=lock_timeout,
        )
        LoadProgress(parts, out=out, err=err, despite_dead_lettered=despite_dead_lettered).follow_all(initial_loads)


def _decided(
    parts: Parts, document: str | None, remove: Sequence[str] | None, *, only_changed: bool = False
) -> tuple[Plan, Preview]:
    with render.doing(render.console(sys.stderr), "testing the definitions on a sample", in_pipes=False):
        return read(
            parts.connection,
            parts.index,
            parts.indices,
            settings.config_folder(),
            only=document,
            remove=remove or (),
            only_changed=only_changed,
        )


def _require_either(document: str | None, remove: Sequence[str] | None) -> None:
    if document is not None and remove:
        raise UsageError("DOCUMENT and --remove cannot be combined. Run the command once for each.")


# What is printed


def _show_preview(console: Console, preview: Preview) -> None:
    """Print a preview on one screen."""
    say(console, _verdict(preview))
    if not preview.is_migrated:
        say(console, "The database has no syncer schema: run `syncer migrate` before `syncer apply`.", style="yellow")
    unchanged = []
    for document in preview.documents:
        if document.outcome is PlannedChange.UNCHANGED and not document.problems:
            unchanged.append(document.name)
        else:
            _show_document(console, document)
    if unchanged and not preview.is_empty:
        say(console, f"unchanged: {', '.join(unchanged)}", style="dim")
    _show_removals(console, preview)
    if preview.missing_indexes:
        say(console, ("Missing indexes", "bold yellow"), ": each of these changes reads a whole table")
    for missing in preview.missing_indexes:
        say(console, f"  {missing.statement}  ", (f"-- {_needed_by(missing)}", "dim"))
        say(console, f"  -- for {shortened(missing.condition)}", style="dim")


def _show_removals(console: Console, preview: Preview) -> None:
    """Print what apply would remove, and what it leaves though its folder is missing."""
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


def _show_document(console: Console, document: DocumentPreview) -> None:
    title = (f"{document.name}", "bold"), f" → {document.index}: " if document.index else ": "
    if document.outcome is None:
        say(console, *title, ("refused", "bold red"))
    else:
        count = amount(document.documents, "document") if document.documents is not None else ""
        if document.documents is None and document.tables and not document.errors:
            count = "too many documents to count in time"
        because = f": {document.reason}" if document.reason else ""
        say(console, *title, _OUTCOMES[document.outcome], because, count and ("; " if because else ", "), count)
    facts: list[tuple[Part, Part]] = []
    if document.suspended is not None:
        resumes = "" if document.errors else "\nTo resume it: syncer apply"
        facts.append((("suspended", "yellow"), Text.assemble(document.suspended, (resumes, "dim"))))
    for problem in document.problems:
        action = f"\n{problem.action}" if problem.action else ""
        facts.append(((problem.severity, _STYLES[problem.severity]), Text.assemble(problem.message, (action, "dim"))))
    if document.outcome is not PlannedChange.UNCHANGED:
        facts += [fact for table in document.tables for fact in _paths(table)]
    show_facts(console, facts)


def _paths(table: TablePreview) -> Iterator[tuple[str, str]]:
    """The paths from a changed row of a table to documents, each with its cost."""
    for column in table.id_columns:
        yield f"a change of {table.relation}", f"1 document, by its {column}"
    for path in table.affects:
        tried = "no row to try it with" if path.cost is None else _cost(path.cost)
        yield f"a change of {table.relation}", tried


def _cost(cost: Cost) -> str:
    if cost.failure:
        return "every document: the query fails"
    return f"{amount(cost.documents, 'document')}, {_duration(cost.seconds)}"


def _needed_by(missing: MissingIndex) -> str:
    duration = _duration(missing.seconds)
    if not missing.change_of:
        return f"to build a document of {missing.document} takes {duration}"
    found = f"{amount(missing.documents, 'document')} of {missing.document}"
    return f"a change of {missing.change_of} → {found}, {duration}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return f"more than {SECONDS_MAX:.0f} s"
    return f"{seconds * 1000:,.1f} ms" if seconds >= _SHORTEST_SECONDS else "less than 0.1 ms"
