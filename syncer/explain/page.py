"""What `syncer explain` shows to a person: the verdict first, then what it rests on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from syncer import version
from syncer.explain.events import Event, Searched, Stage
from syncer.explain.explanation import Explanation
from syncer.explain.standing import Copy, Standing
from syncer.explain.verdict import Answer, Verdict, age
from syncer.model import Operation
from syncer.verify import Kind
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
    for one, _ in seen.standings:
        _show_standing(console, seen, one, values=values)
    _show_events(console, seen, "On their way", seen.flow.coming[:_COMING_SHOWN_MAX], len(seen.flow.coming))
    _show_events(console, seen, "Done last", seen.flow.done[-_DONE_SHOWN_MAX:], len(seen.flow.done))
    console.print()
    for line in _searched(seen):
        console.print(line, style="dim", soft_wrap=True)


def _show_answer(console: Console, one: Standing | None, answer: Answer) -> None:
    where = "" if one is None else f"{one.document.index_name} ({one.document.role}): "
    text = Text.assemble(where, (answer.says, _STYLES.get(answer.verdict, "bold red")))
    console.print(text, soft_wrap=True)
    if answer.hint:
        console.print(escape(answer.hint), style="dim", soft_wrap=True)


# The document in one index


def _show_standing(console: Console, seen: Explanation, one: Standing, *, values: bool) -> None:
    document = one.document
    filled = "" if document.is_filled else ", not filled yet"
    console.print(
        f"\n[bold]{escape(document.name)} {escape(seen.id)}[/] in {escape(document.index_name)}, "
        f"{document.role}, generation {document.generation}{filled}",
        soft_wrap=True,
    )
    grid = Table.grid(padding=(0, 2))
    for label, text in _parts(seen, one):
        grid.add_row(f"  {label}", text)
    console.print(grid)
    if values:
        _show_values(console, one)


def _parts(seen: Explanation, one: Standing) -> Iterator[tuple[str, RenderableType]]:
    yield "Postgres", _row(one)
    yield "Elasticsearch", _copies(one, seen.at)
    yield "a refresh", _refresh(one)
    if one.dead_letter is not None:
        parked = one.dead_letter
        words = f"{parked.error}\nsince {_when(parked.parked_at.timestamp(), seen.at)}, at {_version(parked.version)}"
        yield "dead letter", Text(words)


def _row(one: Standing) -> Text:
    if one.look.failure is not None:
        return Text(f"cannot say: {one.look.failure.message}")
    row = one.look.row
    if row is None:
        return Text("its SELECT returns no such id")
    fields = amount(len(one.document.dependencies.fields), "field")
    routing = f", _routing {row.routing}" if row.routing else ""
    return Text(f"its SELECT returns it: {fields}, {amount(len(row.source), 'byte')}{routing}")


def _copies(one: Standing, at: float) -> RenderableType:
    if one.look.unreadable is not None:
        return Text(f"cannot say: {one.look.unreadable.message}")
    if not one.copies:
        return Text("nothing under this id")
    return Group(*(Text(_copy(copy, at)) for copy in one.copies))


def _copy(copy: Copy, at: float) -> str:
    routing = f", under routing {copy.place.routing}" if copy.place.routing != copy.place.id else ""
    return f"{_version(copy.version)}{routing}\n{_origin(copy, at)}"


def _version(number: int) -> str:
    epoch, drawn = version.split(number)
    return f"version {number}: epoch {epoch}, number {drawn:,}"


def _origin(copy: Copy, at: float) -> str:
    match copy.origin:
        case Origin.FOREIGN:
            rest = (
                "no write of syncer's replaces it" if copy.is_unbeatable else "the next write of syncer's replaces it"
            )
            return f"not drawn by syncer: {rest}"
        case Origin.LOST:
            return "drawn in a life of the database that a restore has taken back: the next write replaces it"
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


def _refresh(one: Standing) -> Text:
    return Text(_would(one) + (", but Elasticsearch would refuse it" if _is_refused(one) else ""))


def _is_refused(one: Standing) -> bool:
    return one.look.drift is not None and any(copy.is_unbeatable for copy in one.copies)


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
    grid = Table("field", "Postgres", "Elasticsearch", box=None, pad_edge=False, header_style="bold")
    if one.fields:
        for name, (ours, theirs) in one.fields.items():
            grid.add_row(escape(name), _value(ours), _value(theirs))
        console.print(grid)
    elif one.look.row is not None:
        for name, value in json.loads(one.look.row.source).items():
            console.print(Text.assemble(f"  {name}  ", _value(value)), soft_wrap=True)


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
    for column in ("  when", "table", "operation", "key", "change", "where", *(("for",) if is_split else ())):
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
    return f"partition {event.partition}, offset {event.offset:,}"


def _searched(seen: Explanation) -> Iterator[str]:
    """What was looked at, and what was not."""
    flow = seen.flow
    yield "Looked at " + ", ".join(_extent(one) for one in flow.searched) + "."
    if flow.trouble is not None:
        yield f"Kafka could not be asked: {flow.trouble.message}. {flow.trouble.hint}"
    if flow.lost:
        yield f"{amount(flow.lost, 'record')} left the topic before the workers had them: raise its retention."
    for index_name, why in flow.undecided.items():
        yield f"Which changes touch it in {index_name} cannot be said: {why}"


def _extent(one: Searched) -> str:
    match one.stage:
        case Stage.OUTBOX:
            what = f"{amount(one.of, 'change')} in the outbox"
        case Stage.TOPIC:
            what = f"{amount(one.of, 'change')} in the topic"
        case Stage.DONE:
            return f"the last {amount(one.looked, 'change')} that are done"
    return what if one.is_complete else f"the oldest {one.looked:,} of {what}"


def _when(seconds: float, at: float) -> str:
    return f"{_clock(datetime.fromtimestamp(seconds, UTC))}, {age(at - seconds)} ago"


def _clock(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
