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
from syncer.verify import explain as explaining
from syncer.verify.explain import InIndex, State

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
        found = explaining.explain(
            parts.connection, parts.index, document, id_, seconds=_IN_FLIGHT_SECONDS, values=values
        )
    if as_json:
        render.print_json(found)
    else:
        console = render.console(sys.stdout)
        for seen in found.indices:
            _show(console, f"{document} {shown_id(id_)}", seen, values=values)
    if not found.is_equal:
        raise typer.Exit(1)


def _show(console: Console, title: str, seen: InIndex, *, values: bool) -> None:
    """Print the state in one index, and what it rests on."""
    say(console, (seen.says, _STYLES.get(seen.state, "bold red")))
    if seen.hint:
        say(console, seen.hint, style="dim")
    loaded = "" if seen.is_loaded else ", not loaded yet"
    say(console, (f"\n{title}", "bold"), f" in {seen.index}, {seen.role}, revision {seen.revision}{loaded}")
    show_facts(console, _facts(seen))
    if not values:
        return
    if seen.differences:
        rows = [(part.path, part.postgres or "", part.elasticsearch or "") for part in seen.differences]
        console.print(table(("field", "Postgres", "Elasticsearch"), rows))
        return
    source = seen.postgres.source
    if source is None and seen.elasticsearch:
        say(console, "  Elasticsearch has:")
        source = seen.elasticsearch[0].source
    for name, value in (source if isinstance(source, dict) else {"…": source} if source else {}).items():
        say(console, f"    {name}: {json.dumps(shortened(value), ensure_ascii=False)}")


def _facts(seen: InIndex) -> Iterator[tuple[Part, Part]]:
    if seen.postgres.exists is None:
        yield "Postgres", "unknown: its SELECT fails, or a table is locked"
    elif not seen.postgres.exists:
        yield "Postgres", "its SELECT returns no such id"
    else:
        routing = f", _routing {seen.postgres.routing}" if seen.postgres.routing else ""
        yield "Postgres", f"its SELECT returns it: {amount(seen.postgres.bytes or 0, 'byte')}{routing}"
    copies = [
        f"version {copy.version}{f', under routing {copy.routing}' if copy.routing is not None else ''}"
        for copy in seen.elasticsearch or ()
    ]
    nothing = "unknown: it cannot be read" if seen.elasticsearch is None else "nothing under this id"
    yield "Elasticsearch", "\n".join(copies) or nothing
    yield "differs in", ", ".join(part.path for part in seen.differences)
    if (letter := seen.dead_letter) is not None:
        at = f"{letter.failed_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        yield "dead letter", f"{letter.error}\nat {at}, with version {letter.version}"
    yield "jobs", ", ".join(map(str, seen.jobs))
    yield "reads", ", ".join(seen.reads)
