"""The output of `syncer explain`: the state first, then what it rests on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC

from rich.console import Console

from syncer.base.formatting import amount, shortened
from syncer.cli.render import Part, Rows, say, show_facts
from syncer.elasticsearch.reader import Copy
from syncer.indexing import version
from syncer.verify.explain import Explanation, State, contents

_STYLES = {State.EQUAL: "bold green", State.COMING: "bold yellow"}


def show(console: Console, explanations: Sequence[Explanation], id_: str, *, values: bool) -> None:
    """Print the explanation of a document in each of its indices."""
    for seen in explanations:
        document = seen.document
        where = f"{document.index_name} ({document.role}): " if len(explanations) > 1 else ""
        say(console, where, (seen.says, _STYLES.get(seen.state, "bold red")))
        if seen.hint:
            say(console, seen.hint, style="dim")
        loaded = "" if document.is_loaded else ", not loaded yet"
        about = f" in {document.index_name}, {document.role}, revision {document.revision}{loaded}"
        say(console, (f"\n{document.name} {id_}", "bold"), about)
        show_facts(console, _facts(seen))
        if values:
            _show_values(console, seen)


def _facts(seen: Explanation) -> Iterator[tuple[Part, Part]]:
    yield "Postgres", _row(seen)
    yield "Elasticsearch", "\n".join(map(_copy, seen.copies)) or "nothing under this id"
    if seen.drift is not None:
        yield "differs in", ", ".join(part.path for part in seen.drift.differences)
    if (letter := seen.dead_letter) is not None:
        at = f"{letter.failed_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        yield "dead letter", f"{letter.error}\nat {at}, with {_version(letter.version)}"
    yield "jobs", "\n".join(f"{job.id} ({job.reason})" for job in seen.jobs)
    yield "in flight", seen.in_flight
    yield "reads", ", ".join(sorted(seen.document.dependencies.tables))


def _row(seen: Explanation) -> str:
    if seen.error is not None:
        return f"unknown: {seen.error.message}"
    if seen.row is None:
        return "its SELECT returns no such id"
    routing = f", _routing {seen.row.routing}" if seen.row.routing else ""
    return f"its SELECT returns it: {amount(len(seen.row.source), 'byte')}{routing}"


def _copy(copy: Copy) -> str:
    routing = f", under routing {copy.place.routing}" if copy.place.routing != copy.place.id else ""
    return f"{_version(copy.version)}{routing}"


def _version(number: int) -> str:
    epoch, sequence = version.split(number)
    return f"version {number}: epoch {epoch}, number {sequence:,}"


def _show_values(console: Console, seen: Explanation) -> None:
    if seen.drift is not None and seen.drift.differences:
        rows = [(f"  {part.path}", part.expected or "", part.held or "") for part in seen.drift.differences]
        console.print(Rows(("  field", "Postgres", "Elasticsearch"), rows))
        return
    source = seen.row.source if seen.row else bytes(seen.copies[0].source) if seen.copies else b"{}"
    found = contents(source)
    for name, value in (found if isinstance(found, dict) else {"…": found}).items():
        say(console, f"    {name}: {json.dumps(shortened(value), ensure_ascii=False)}")
