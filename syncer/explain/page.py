"""What `syncer explain` shows to a person: the verdict first, then what it rests on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from syncer import version
from syncer.drift import TOO_DEEP, Kind
from syncer.explain.events import Event, Searched, Stage
from syncer.explain.explanation import Explanation
from syncer.explain.standing import Copy, Standing, contents
from syncer.explain.verdict import Answer, Verdict, age
from syncer.model import Operation
from syncer.version import Origin
from syncer.wording import amount, shortened

_COMING_SHOWN_MAX = 20
_DONE_SHOWN_MAX = 5

_STYLES = {
    Verdict.EQUAL: "bold green",
    Verdict.BEHIND: "bold yellow",
    Verdict.UNFILLED: "bold yellow",
    Verdict.CHANGING: "bold yellow",
}


def show(console: Console, seen: Explanation, *, values: bool) -> None:
    """All of an explanation."""
    for one, answer in seen.standings:
        _show_answer(console, one if len(seen.standings) > 1 else None, answer)
    for one, answer in seen.standings:
        _show_standing(console, seen, one, answer, values=values)
    _show_events(console, seen, "On their way", seen.flow.coming[:_COMING_SHOWN_MAX], len(seen.flow.coming))
    _show_events(console, seen, "Done last", seen.flow.done[-_DONE_SHOWN_MAX:], len(seen.flow.done))
    console.print()
    _show_extent(console, seen)


def _show_answer(console: Console, one: Standing | None, answer: Answer) -> None:
    where = "" if one is None else f"{one.document.index_name} ({one.document.role}): "
    text = Text.assemble(where, (answer.says, _STYLES.get(answer.verdict, "bold red")))
    console.print(text, soft_wrap=True)
    if answer.hint:
        console.print(escape(answer.hint), style="dim", soft_wrap=True)


# The document in one index


def _show_standing(console: Console, seen: Explanation, one: Standing, answer: Answer, *, values: bool) -> None:
    document = one.document
    filled = "" if document.is_filled else ", not filled yet"
    console.print(
        f"\n[bold]{escape(document.name)} {escape(seen.id)}[/] in {escape(document.index_name)}, "
        f"{document.role}, generation {document.generation}{filled}",
        soft_wrap=True,
    )
    # On a terminal a long line goes on below its beginning; in a pipe it stays one line.
    grid = Table.grid(padding=(0, 2))
    for label, text in _parts(seen, one, answer):
        grid.add_row(f"  {label}", Text(text))
        for number, line in enumerate(text.splitlines() if not console.is_terminal else ()):
            console.print(Text(f"  {'' if number else label:<15}{line}"), soft_wrap=True)
    if console.is_terminal:
        console.print(grid)
    if values:
        _show_values(console, one)


def _parts(seen: Explanation, one: Standing, answer: Answer) -> Iterator[tuple[str, str]]:
    yield "Postgres", _row(one)
    yield "Elasticsearch", _copies(one, seen.at)
    yield "a refresh", _refresh(one)
    if one.dead_letter is not None:
        parked = one.dead_letter
        error = "" if answer.verdict is Verdict.PARKED else f"{parked.error}\n"
        ago = age(seen.at - parked.parked_at.timestamp())
        yield "parked", f"{error}at {_clock(parked.parked_at)} UTC, {ago} ago, with {_version(parked.version)}"


def _row(one: Standing) -> str:
    if one.look.failure is not None:
        return f"cannot say: {one.look.failure.message}"
    row = one.look.row
    if row is None:
        return "its SELECT returns no such id"
    fields = amount(len(one.document.dependencies.fields), "field")
    routing = f", _routing {row.routing}" if row.routing else ""
    return f"its SELECT returns it: {fields}, {amount(len(row.source), 'byte')}{routing}"


def _copies(one: Standing, at: float) -> str:
    if one.look.unreadable is not None:
        return f"cannot say: {one.look.unreadable.message}"
    return "\n".join(_copy(copy, at) for copy in one.copies) or "nothing under this id"


def _copy(copy: Copy, at: float) -> str:
    routing = f", under routing {copy.place.routing}" if copy.place.routing != copy.place.id else ""
    return f"{_version(copy.version)}{routing}\n{_origin(copy, at)}"


def _version(number: int) -> str:
    epoch, drawn = version.split(number)
    return f"version {number}: epoch {epoch}, number {drawn:,}"


def _origin(copy: Copy, at: float) -> str:
    match copy.origin:
        case Origin.FOREIGN:
            return f"not drawn by syncer: {'no write replaces it' if copy.is_final else 'syncer can replace it'}"
        case Origin.LOST:
            return "drawn in a life of the database that a restore has taken back: syncer can replace it"
        case Origin.EARLIER:
            return f"{_drawn(copy, at)}, in an epoch that a failover or a restore has ended"
        case Origin.DRAWN:
            return _drawn(copy, at)


def _drawn(copy: Copy, at: float) -> str:
    """When a version was drawn, as far as that is known."""
    after, before = copy.drawn_after, copy.drawn_before
    if after is not None and before is not None:
        return f"drawn between {_clock(after)} and {_clock(before)} UTC, {age(at - before.timestamp())} ago"
    if before is not None:
        return f"drawn before {_clock(before)} UTC, {age(at - before.timestamp())} ago"
    if after is not None:
        return f"drawn after {_clock(after)} UTC, {age(at - after.timestamp())} ago"
    return "when it was drawn was not noted: no daemon has watched since"


def _refresh(one: Standing) -> str:
    is_refused = one.look.drift is not None and any(copy.is_final for copy in one.copies)
    return _would(one) + (", but Elasticsearch would refuse it" if is_refused else "")


def _would(one: Standing) -> str:
    seen = one.look
    if not seen.is_sound:
        return "would fail" if seen.is_at_fault else "cannot be made"
    if seen.drift is None:
        return "would change nothing" + (": it equals its SELECT" if seen.row else "")
    match seen.drift.kind:
        case Kind.MISSING:
            return "would write it"
        case Kind.EXTRA:
            return "would delete it"
        case Kind.MISPLACED:
            return f"would write it where it belongs, and delete the copy under routing {seen.drift.routing}"
        case Kind.DIFFERENT:
            return f"would change {', '.join(one.fields)}"


def _show_values(console: Console, one: Standing) -> None:
    if one.fields:
        grid = Table("  field", "Postgres", "Elasticsearch", box=None, pad_edge=False, header_style="bold")
        for name, (ours, theirs) in one.fields.items():
            grid.add_row(f"  {escape(name)}", _value(ours), _value(theirs))
        console.print(grid)
        return
    held = contents(one.look.copies[0].source) if one.look.copies else {}
    shown = contents(one.look.row.source) if one.look.row else held
    for name, value in (shown if isinstance(shown, dict) else {TOO_DEEP: shown}).items():
        console.print(Text.assemble(f"    {name}: ", _value(value)), soft_wrap=True)


def _value(value: object) -> Text:
    return Text(json.dumps(shortened(value), ensure_ascii=False))


# The changes that touch it


def _show_events(console: Console, seen: Explanation, title: str, events: Sequence[Event], total: int) -> None:
    if not events:
        return
    rest = f", {len(events):,} of them" if total > len(events) else ""
    console.print(f"\n[bold]{title}[/]: {amount(total, 'change')}{rest}")
    names = [one.document.index_name for one, _ in seen.standings]
    is_split = any(len(one.indices) < len(names) for one in events)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in (
        "  when (UTC)",
        "table",
        "operation",
        "key",
        "change",
        "place",
        *(("for",) if is_split else ()),
    ):
        table.add_column(column)
    for one in events:
        cells = (
            f"  {_when(one.changed_at, seen.at)}",
            one.relation,
            _operation(one),
            _key(one),
            str(one.id),
            _where(one),
        )
        table.add_row(*map(Text, cells), *((Text(", ".join(one.indices)),) if is_split else ()))
    console.print(table)


def _operation(event: Event) -> str:
    return "TRUNCATE: all rows" if event.operation is Operation.TRUNCATE else event.operation.name


def _key(event: Event) -> str:
    return ", ".join(f"{name} {value}" for name, value in event.key.items())


def _where(event: Event) -> str:
    if event.stage is Stage.OUTBOX:
        return "outbox"
    return f"topic {event.partition}:{event.offset}"


def _show_extent(console: Console, seen: Explanation) -> None:
    """What was looked at, and what was not."""
    flow = seen.flow
    console.print(f"Looked for changes: {', '.join(map(_extent, flow.searched))}.", style="dim", soft_wrap=True)
    if flow.trouble is not None:
        said = f"Kafka could not be asked: {flow.trouble.message}"
        console.print(Text(said, style="yellow"), Text(flow.trouble.hint, style="dim"), sep="\n", soft_wrap=True)
    if flow.lost:
        said = f"{amount(flow.lost, 'record')} left the topic before the workers had them: is its retention too short?"
        console.print(Text(said, style="yellow"), soft_wrap=True)
    if flow.unreadable:
        said = f"{amount(flow.unreadable, 'record')} in the topic cannot be read as changes: a worker sets them aside"
        console.print(Text(said, style="yellow"), soft_wrap=True)
    for index_name, why in flow.undecided.items():
        said = f"Which changes touch it in {index_name} cannot be said: {why}"
        console.print(Text(said, style="yellow"), soft_wrap=True)


def _extent(one: Searched) -> str:
    match one.stage:
        case Stage.DONE:
            return f"the last {one.looked:,} that are done"
        case Stage.OUTBOX | Stage.TOPIC:
            looked = f"{one.of:,}" if one.is_complete else f"the oldest {one.looked:,} of {one.of:,}"
            return f"{looked} in the {one.stage}"


def _when(seconds: float, at: float) -> str:
    """A time, without the day if that is today."""
    then = _clock(datetime.fromtimestamp(seconds, UTC))
    day = _clock(datetime.fromtimestamp(at, UTC)).partition(" ")[0]
    return f"{then.removeprefix(f'{day} ')}, {age(at - seconds)} ago"


def _clock(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
