"""The commands ``plan``, ``apply`` and ``detach``: preview definitions, activate them, and stop following them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from rich.text import Text

from syncer.apply import activate
from syncer.apply.cost import MissingIndex, duration
from syncer.apply.plan import Plan, PlannedChange
from syncer.apply.preview import DocumentPreview, Preview, read
from syncer.apply.trial import PlanSeverity
from syncer.base import settings
from syncer.base.errors import ConfigError
from syncer.base.formatting import amount, shortened
from syncer.cli import render
from syncer.cli.context import (
    AllowFailed,
    AnyDocument,
    AsJson,
    Servers,
    Yes,
    confirm,
    flag,
    open_postgres,
    open_servers,
)
from syncer.cli.load import load_all
from syncer.cli.render import Part, say, show_table
from syncer.documents import registry
from syncer.kafka import topic
from syncer.monitoring import daemons
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
_STYLES = {
    PlanSeverity.REFUSED: "red",
    PlanSeverity.ERROR: "red",
    PlanSeverity.WARNING: "yellow",
    PlanSeverity.NOTE: "dim",
}

_AS_TEXT = re.compile(r"CAST\(\(?([^()]+)\)? AS TEXT\)")
_FIRST_JOIN = re.compile(r"^JOIN (.+) AS n1 ON (.+)$", re.MULTILINE)

Remove = Annotated[
    list[str] | None,
    typer.Option(metavar="DOCUMENT", help="A document to drop with its index: one whose folder you deleted."),
]

TakeOver = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DOCUMENT", help="A document, or '*', whose alias points at another database's index: replace that."
    ),
]


def plan(
    document: AnyDocument = None, *, remove: Remove = None, take_over: TakeOver = None, as_json: AsJson = False
) -> None:
    """Preview what apply would do, without doing it.

    Shows for each document whether its index would be created, changed in place or rebuilt.
    Writes a sample of documents to a scratch index to find what Elasticsearch rejects. Shows
    how many documents one changed row of each table leads to, and lists missing indexes. The
    first line is the verdict. --json adds the queries from changed rows to documents.
    Exit code 1 if a definition is invalid or a sampled document is rejected.
    """
    with open_servers("plan", is_migrated=False) as servers:
        _, preview = _decided(servers, document, remove, take_over)
    if as_json:
        render.print_json(preview.as_json())
    else:
        _show_preview(preview)
    if preview.has_errors:
        raise typer.Exit(1)


def apply(
    document: AnyDocument = None,
    *,
    yes: Yes = False,
    lock_timeout: Annotated[int, typer.Option(min=0, help="Seconds to keep trying to lock a table in use.")] = 60,
    remove: Remove = None,
    take_over: TakeOver = None,
    allow_failed: AllowFailed = False,
) -> None:
    """Activate the definitions of the config folder.

    Shows what changes, as `syncer plan` does, and asks for confirmation. Creates indices,
    triggers and the topic, and runs initial loads. If there is an error in any document that
    changes, nothing is changed. With --allow-failed-documents, documents that cannot be written
    become dead letters instead. A document whose folder was deleted stays active unless you
    name it with --remove. This drops its index, its jobs, its dead letters, and the triggers
    of tables that no other document reads. If an alias points at an index of another database,
    --take-over DOCUMENT builds a new one beside it, switches searches once it is complete,
    and drops it. From the start, the other database cannot write it.
    """
    with open_servers("apply") as servers:
        kafka = servers.settings.kafka
        if kafka.is_used:
            lost_records.require_original(servers.connection, kafka, servers.index)
        decided, preview = _decided(servers, document, remove, take_over, only_changed=True)
        preview.require_applicable(allow_failed=allow_failed)
        _show_preview(preview)
        if decided.is_empty and (not kafka.is_used or topic.exists(kafka)):
            return
        confirm("Apply?", yes=yes)
        if kafka.is_used and topic.ensure_topic(kafka):
            say(f"topic {kafka.topic} created")
        loads = activate.carry_out(
            servers.connection, servers.indices, decided, report=say, timeout_seconds=lock_timeout
        )
        load_all(servers, loads, allow_failed=allow_failed)


def _decided(
    servers: Servers,
    document: str | None,
    remove: Sequence[str] | None,
    take_over: Sequence[str] | None,
    *,
    only_changed: bool = False,
) -> tuple[Plan, Preview]:
    with render.progress("testing the definitions on a sample"):
        of_servers = servers.connection, servers.index, servers.indices
        return read(
            *of_servers,
            settings.config_folder(),
            only=document,
            remove=remove or (),
            take_over=take_over or (),
            only_changed=only_changed,
        )


def _show_preview(preview: Preview) -> None:
    """Print a preview on one screen: first the verdict, then each document that changes or has a problem."""
    say(_verdict(preview))
    if not preview.is_migrated:
        say("The database has no syncer schema: run `syncer migrate` before `syncer apply`.", style="yellow")
    for document in preview.documents:
        if document.outcome is not PlannedChange.UNCHANGED or document.problems:
            _show_document(document)
    for name in preview.forgotten:
        say(f"{name} is active, but its folder is missing: it is left unchanged", style="yellow")
        say(f"  syncer apply --remove {shlex.quote(name)} removes it and drops its index", style="dim")
    for name in preview.removed:
        say(f"{name} will be removed", style="red")
    if preview.dropped:
        say(f"to be dropped: {', '.join(preview.dropped)}", style="red")
    for relation in preview.released:
        say(f"{relation} will no longer be captured")
    if preview.missing_indexes:
        say(("Missing indexes", "bold yellow"), ": each of these changes reads a whole table")
    for missing in preview.missing_indexes:
        say(f"  {missing.statement}  ", (f"-- {_needed_by(missing)}", "dim"))
        say(f"  -- for {shortened(missing.condition)}", style="dim")


def _verdict(preview: Preview) -> tuple[str, str]:
    wrong = [document for document in preview.documents if document.errors]
    if wrong:
        elsewhere = f"; also in {', '.join(document.name for document in wrong[1:])}" if wrong[1:] else ""
        return f"Error in {wrong[0].name}: {wrong[0].errors[0].message.splitlines()[0]}{elsewhere}", "bold red"
    verdict = "Nothing to do" if preview.is_empty else "No errors"
    warnings, missing = sum(len(document.warnings) for document in preview.documents), len(preview.missing_indexes)
    counted = [amount(warnings, "warning")] if warnings else []
    counted += [f"{missing} missing index{'es' if missing > 1 else ''}"] if missing else []
    return (f"{verdict}; {', '.join(counted)}", "bold yellow") if counted else (f"{verdict}.", "bold green")


def _show_document(document: DocumentPreview) -> None:
    title = (document.name, "bold"), f" → {document.index}: " if document.index else ": "
    if document.outcome is None:
        say(*title, ("refused", "bold red"))
    else:
        count = "" if document.documents is None else amount(document.documents, "document")
        if document.documents is None and document.tables and not document.errors:
            count = "too many documents to count in time"
        because = f": {document.reason}" if document.reason else ""
        say(*title, _OUTCOMES[document.outcome], because, count and ("; " if because else ", "), count)
    show_table(("", ""), [(Text.assemble("  ", label), text) for label, text in _facts(document)])


def _facts(document: DocumentPreview) -> Iterator[tuple[Part, Part]]:
    """Why a document is suspended, its problems, and where a changed row of each table leads to, with the cost."""
    if document.suspended is not None:
        yield ("suspended", "yellow"), document.suspended
    for problem in document.problems:
        action = f"\n{problem.action}" if problem.action else ""
        yield (problem.severity, _STYLES[problem.severity]), Text.assemble(problem.message, (action, "dim"))
    for table in document.tables if document.outcome is not PlannedChange.UNCHANGED else ():
        for column in table.id_columns:
            yield f"a change of {table.relation}", f"1 document, by its {column}"
        for path in table.affects:
            if path.cost is None:
                tried = "no row to try it with"
            elif path.cost.failure:
                tried = "every document: the query fails"
            else:
                most = "up to " if path.cost.documents > 1 else ""  # of the rows tried
                tried = f"{most}{amount(path.cost.documents, 'document')}, {duration(path.cost.seconds)}"
            which = f", {_use(table.relation, path.query)}" if len(table.affects) > 1 else ""
            yield f"a change of {table.relation}", f"{tried}{which}"


def _use(relation: str, query: str) -> str:
    """Which use of a table a query is for: the equality with the table to which it leads first."""
    first_join = _FIRST_JOIN.search(query)
    if first_join is None:
        return "by affects/….sql" if ") AS affected" in query else "by its own columns"
    # Postgres compares varchar as text, which would read as a cast of the SELECT.
    equal = _AS_TEXT.sub(r"\1", first_join[2]).replace('"n0".', f"{relation}.").replace('"n1".', f"{first_join[1]}.")
    return f"by {equal}".replace("public.", "").replace('"', "")


def _needed_by(missing: MissingIndex) -> str:
    took = duration(missing.seconds)
    if not missing.change_of:
        return f"to build a document of {missing.document} takes {took}"
    documents = f"{amount(missing.documents, 'document')} of {missing.document}"
    return f"a change of {missing.change_of} → {documents}, {took}"


def detach(
    *,
    uninstall: Annotated[
        bool, flag("--uninstall", text="Remove triggers, indices, the topic and the schema syncer instead.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Stop capturing changes, or uninstall syncer.

    Disables the triggers of every table, empties the outbox and suspends every document. Your
    writes continue without syncer, and searches keep the last state. To go on, run
    `syncer apply`: it enables the triggers and writes every document once. Needs the role that
    runs apply, and no Elasticsearch. With --uninstall, removes everything that syncer has
    created; your tables and rows stay as they are.
    """
    if uninstall:
        _uninstall(yes=yes)
        return
    with open_postgres("detach") as connection:
        confirm("Stop capturing changes? Every document stays as it is until `syncer apply`.", yes=yes)
        activate.stop_capturing(connection, report=say)


def _uninstall(*, yes: bool) -> None:
    with open_servers("detach") as servers:
        if running := daemons.reporting(servers.connection):
            raise ConfigError(
                f"A daemon runs: {', '.join(running)}",
                hint="Nothing was removed. Stop every daemon, and run this again a few seconds later.",
            )
        kafka = servers.settings.kafka
        for document in registry.documents(servers.connection):
            say(f"will be removed: index {document.index_name}, searched as {document.index}")
        say("will be removed: the triggers of every table, and the schema syncer with the outbox")
        if kafka.is_used:
            say(f"will be removed: topic {kafka.topic}")
        confirm("Remove all of this? Your tables and rows stay as they are.", yes=yes)
        activate.uninstall(servers.connection, servers.index, servers.indices, report=say)
        if kafka.is_used and topic.delete(kafka):
            say(f"topic {kafka.topic} is deleted")
    say("Left for you, if you created them: roles, API keys, ACLs, the service, and the index syncer-locks.")
