"""The command ``syncer explain``: what is known of one document."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC
from typing import Annotated

import typer
from rich.console import Console

from syncer.base.formatting import amount, shortened, shown_id
from syncer.cli import parameters, render
from syncer.cli.context import open_parts
from syncer.cli.render import Part, say, show_facts, table
from syncer.documents import registry
from syncer.indexing import version
from syncer.verify import explain as explaining
from syncer.verify.explain import Explanation, State, contents

_IN_FLIGHT_SECONDS = 5
"""How long changes in flight may make no progress."""
_STYLES = {State.EQUAL: "bold green", State.BUSY: "bold yellow"}


def explain(
    document: parameters.Document,
    id_: Annotated[str, typer.Argument(metavar="ID", help="The document's _id.")],
    *,
    values: parameters.Values = False,
    as_json: parameters.AsJson = False,
) -> None:
    """Explain the state of one document.

    Shows whether the document equals its SELECT, and in which fields it differs; the version
    in Elasticsearch; its dead letter; the jobs that may write it; and the tables it reads. If
    it differs, waits for changes in flight. Exit code 0 only if it equals its SELECT.
    """
    with render.asking(), open_parts("explain") as parts:
        seen = [
            explaining.explain(parts.connection, parts.index, active, id_, seconds=_IN_FLIGHT_SECONDS)
            for active in registry.named(parts.connection, document)
        ]
    if as_json:
        render.print_json(explaining.as_json(seen, id_, values=values))
    else:
        console = render.console(sys.stdout)
        for explanation in seen:
            _show(console, explanation, id_, values=values)
    if not explaining.is_equal(seen):
        raise typer.Exit(1)


def _show(console: Console, seen: Explanation, id_: str, *, values: bool) -> None:
    """Print the state in one index, and what it rests on."""
    document = seen.document
    say(console, (seen.says, _STYLES.get(seen.state, "bold red")))
    if seen.hint:
        say(console, seen.hint, style="dim")
    loaded = "" if document.is_loaded else ", not loaded yet"
    where = f" in {document.index_name}, {document.role}, revision {document.revision}{loaded}"
    say(console, (f"\n{document.name} {shown_id(id_)}", "bold"), where)
    show_facts(console, _facts(seen))
    if not values:
        return
    if seen.drift is not None and seen.drift.differences:
        rows = [(part.path, part.expected or "", part.held or "") for part in seen.drift.differences]
        console.print(table(("field", "Postgres", "Elasticsearch"), rows))
        return
    if seen.row is None and seen.copies:
        say(console, "  Elasticsearch has:")
    found = contents(seen.row.source if seen.row else seen.copies[0].source if seen.copies else b"{}")
    for name, value in (found if isinstance(found, dict) else {"…": found}).items():
        say(console, f"    {name}: {json.dumps(shortened(value), ensure_ascii=False)}")


def _facts(seen: Explanation) -> Iterator[tuple[Part, Part]]:
    if not seen.is_row_known:
        yield "Postgres", "unknown: its SELECT fails, or a table is locked"
    elif seen.row is None:
        yield "Postgres", "its SELECT returns no such id"
    else:
        routing = f", _routing {seen.row.routing}" if seen.row.routing else ""
        yield "Postgres", f"its SELECT returns it: {amount(len(seen.row.source), 'byte')}{routing}"
    copies = [
        f"{_version(copy.version)}{f', under routing {copy.routing}' if copy.place.routing != copy.id else ''}"
        for copy in seen.copies or ()
    ]
    nothing = "unknown: it cannot be read" if seen.copies is None else "nothing under this id"
    yield "Elasticsearch", "\n".join(copies) or nothing
    if seen.drift is not None:
        yield "differs in", ", ".join(part.path for part in seen.drift.differences)
    if (letter := seen.dead_letter) is not None:
        at = f"{letter.failed_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        yield "dead letter", f"{letter.error}\nat {at}, with {_version(letter.version)}"
    yield "jobs", ", ".join(map(str, seen.jobs))
    yield "reads", ", ".join(sorted(seen.document.dependencies.tables))


def _version(number: int) -> str:
    epoch, sequence = version.split(number)
    return f"version {number}: epoch {epoch}, number {sequence:,}"
