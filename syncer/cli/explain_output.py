"""The output of `syncer explain`: the verdict first, then the evidence for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime

from rich.console import Console

from syncer.base.formatting import amount, elapsed, shortened
from syncer.cli.render import Part, Rows, say, show_facts
from syncer.indexing import version
from syncer.indexing.failover import Origin
from syncer.verify.diff import TOO_DEEP, DriftKind
from syncer.verify.explain.explanation import Explanation
from syncer.verify.explain.standing import CopyState, DocumentInIndex, contents
from syncer.verify.explain.verdict import Conclusion, Verdict

_STYLES = {
    Verdict.EQUAL: "bold green",
    Verdict.BEHIND: "bold yellow",
    Verdict.INCOMPLETE: "bold yellow",
    Verdict.CHANGING: "bold yellow",
}


def show(console: Console, seen: Explanation, *, values: bool) -> None:
    """Print an explanation."""
    for one, answer in seen.standings:
        where = f"{one.document.index_name} ({one.document.role}): " if len(seen.standings) > 1 else ""
        say(console, where, (answer.says, _STYLES.get(answer.verdict, "bold red")))
        if answer.hint:
            say(console, answer.hint, style="dim")
    for one, answer in seen.standings:
        document = one.document
        loaded = "" if document.is_loaded else ", not loaded yet"
        say(
            console,
            (f"\n{document.name} {seen.id}", "bold"),
            f" in {document.index_name}, {document.role}, revision {document.revision}{loaded}",
        )
        show_facts(console, _facts(seen, one, answer))
        if values:
            _show_values(console, one)


def _facts(seen: Explanation, one: DocumentInIndex, answer: Conclusion) -> Iterator[tuple[Part, Part]]:
    yield "Postgres", _row(one)
    yield "Elasticsearch", _copies(one)
    yield "a refresh", _refresh(one)
    if one.dead_letter is not None:
        dead_lettered = one.dead_letter
        error = "" if answer.verdict is Verdict.DEAD_LETTERED else f"{dead_lettered.error}\n"
        ago = _ago(seen.at, dead_lettered.failed_at)
        yield (
            "dead_lettered",
            f"{error}at {_clock(dead_lettered.failed_at)} UTC, {ago}, with {_version(dead_lettered.version)}",
        )
    yield "jobs", "\n".join(f"{coming.job.id} ({coming.job.reason})" for coming in one.jobs)
    yield "in flight", seen.in_flight
    yield "reads", ", ".join(sorted(one.document.dependencies.tables))


def _row(one: DocumentInIndex) -> str:
    if one.failure is not None:
        return f"unknown: {one.failure.message}"
    row = one.row
    if row is None:
        return "its SELECT returns no such id"
    fields = amount(len(one.document.dependencies.fields), "field")
    routing = f", _routing {row.routing}" if row.routing else ""
    return f"its SELECT returns it: {fields}, {amount(len(row.source), 'byte')}{routing}"


def _copies(one: DocumentInIndex) -> str:
    if one.unreadable is not None:
        return f"unknown: {one.unreadable.message}"
    return "\n".join(_copy(copy) for copy in one.copies) or "nothing under this id"


def _copy(copy: CopyState) -> str:
    routing = f", under routing {copy.place.routing}" if copy.place.routing != copy.place.id else ""
    return f"{_version(copy.version)}{routing}\n{_origin(copy)}"


def _version(number: int) -> str:
    epoch, sequence = version.split(number)
    return f"version {number}: epoch {epoch}, number {sequence:,}"


def _origin(copy: CopyState) -> str:
    match copy.origin:
        case Origin.FOREIGN:
            return f"not assigned by syncer: {'no write replaces it' if copy.is_final else 'syncer can replace it'}"
        case Origin.LOST:
            return "assigned before a restore that has lost it: syncer can replace it"
        case Origin.EARLIER:
            return "assigned in an epoch that a failover or a restore has ended"
        case Origin.ASSIGNED:
            return "assigned by syncer"


def _refresh(one: DocumentInIndex) -> str:
    is_refused = one.drift is not None and any(copy.is_final for copy in one.copies)
    return _would(one) + (", but Elasticsearch would refuse it" if is_refused else "")


def _would(one: DocumentInIndex) -> str:
    if not one.is_sound:
        return "would fail" if one.is_at_fault else "is not possible"
    if one.drift is None:
        return "would change nothing" + (": it equals its SELECT" if one.row else "")
    match one.drift.kind:
        case DriftKind.MISSING:
            return "would write it"
        case DriftKind.EXTRA:
            return "would delete it"
        case DriftKind.MISPLACED:
            return f"would write it where it belongs, and delete the copy under routing {one.drift.routing}"
        case DriftKind.DIFFERENT:
            return f"would change {', '.join(one.fields)}"


def _show_values(console: Console, one: DocumentInIndex) -> None:
    if one.fields:
        rows = [(f"  {name}", _value(ours), _value(theirs)) for name, (ours, theirs) in one.fields.items()]
        console.print(Rows(("  field", "Postgres", "Elasticsearch"), rows))
        return
    held = contents(one.copies[0].source) if one.copies else {}
    shown = contents(one.row.source) if one.row else held
    for name, value in (shown if isinstance(shown, dict) else {TOO_DEEP: shown}).items():
        say(console, f"    {name}: {_value(value)}")


def _value(value: object) -> str:
    return json.dumps(shortened(value), ensure_ascii=False)


def _ago(at: float, then: datetime) -> str:
    return f"{elapsed(max(0, at - then.timestamp()))} ago"


def _clock(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
