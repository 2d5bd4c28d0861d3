"""What ``syncer dead-letters …`` shows to a person."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from syncer.dead_letters import DeadLetter, Kind
from syncer.model import EPOCH_SHIFT
from syncer.terminal import brief, table
from syncer.trying import Now, Trial
from syncer.unreadable import Kept, TopicCount
from syncer.wording import amount

_KEY_SHOWN = 60
_VALUE_SHOWN = 300

_PLACE = re.compile(r"^\[-?\d+:-?\d+\] ")
_RECORD_HINT = (
    "Does somebody else write to the topic? Then: syncer dead-letters discard --records, and set kafka.topic to one\n"
    "that is syncer's alone. Was it a newer syncer? Once all are as new: syncer dead-letters retry --records. If they\n"
    "may have been changes that are lost: syncer backfill for each document, and then discard them"
)


def show_list(
    console: Console,
    kinds: Sequence[Kind],
    letters: Sequence[DeadLetter],
    *,
    offset: int,
    topics: Sequence[TopicCount],
    records: Sequence[Kept],
) -> None:
    """Dead letters by kind, then some one by one; and what was unreadable."""
    if not kinds and not topics:
        console.print("There are no dead letters.")
        return
    if kinds:
        _show_kinds(console, kinds)
    if letters:
        _show_letters(console, letters, total=sum(one.letters for one in kinds), offset=offset)
    if kinds:
        console.print(
            "\nOne in full: syncer dead-letters show DOCUMENT ID. Mended data is written by itself; once a mapping is "
            "mended: syncer dead-letters retry DOCUMENT",
            style="dim",
            soft_wrap=True,
        )
    if topics:
        _show_records(console, topics, records)


def _show_kinds(console: Console, kinds: Sequence[Kind]) -> None:
    shown = table("letters", "index", "error", "field", "value", "since", "such as")
    for one in kinds:
        shown.add_row(
            f"[red]{one.letters:,}",
            escape(one.index_name),
            escape(one.kind),
            escape(one.field or "-"),
            escape(one.value_type or "-"),
            _moment(one.first_at),
            escape(", ".join(one.examples)),
        )
    console.print(shown)


def _show_letters(console: Console, letters: Sequence[DeadLetter], *, total: int, offset: int) -> None:
    console.print()
    shown = table("document", "id", "parked", "said")
    for one in letters:
        shown.add_row(escape(one.document), escape(one.id), _moment(one.parked_at), escape(_said(one)))
    console.print(shown)
    end = offset + len(letters)
    if end < total:
        console.print(f"… and {total - end:,} more: --offset {end}, --limit, --kind, --field", style="dim")


def _said(one: DeadLetter) -> str:
    """In one line, without what the other columns say, and without the value that Elasticsearch quotes."""
    said = _PLACE.sub("", one.error.removeprefix(f"{one.kind}: "))
    return " ".join(brief(said).split())


def _show_records(console: Console, topics: Sequence[TopicCount], records: Sequence[Kept]) -> None:
    for one in topics:
        console.print(
            f"\n[red]{amount(one.kept + one.only_counted, 'record')}[/] of {escape(one.topic)} cannot be read as "
            + ("changes" + (f"; {one.only_counted:,} of them are only counted, not kept" if one.only_counted else "")),
            soft_wrap=True,
        )
    shown = table("record", "partition", "offset", "received", "bytes", "why")
    for kept in records:
        shown.add_row(
            str(kept.id),
            str(kept.partition),
            f"{kept.offset:,}",
            _moment(kept.received_at),
            f"{kept.value_bytes:,}",
            escape(kept.error),
        )
    if records:
        console.print(shown)
    console.print(f"\n{_RECORD_HINT}", style="dim", soft_wrap=True)


def show_letter(console: Console, letter: DeadLetter, trial: Trial) -> None:
    """All that is known of one dead letter, and what to do."""
    console.print(
        f"[bold]{escape(letter.document)} {escape(letter.id)}[/] could not be written to {escape(letter.index_name)}",
        soft_wrap=True,
    )
    _show_lines(console, _lines(letter, trial))


def _lines(letter: DeadLetter, trial: Trial) -> Iterator[tuple[str, str]]:
    yield "said", letter.error
    if letter.field is not None:
        yield "field", letter.field
    if letter.value_type is not None:
        yield "its value", letter.value_type
    epoch, number = letter.version >> EPOCH_SHIFT, letter.version & ((1 << EPOCH_SHIFT) - 1)
    yield (
        "parked",
        f"{_moment(letter.parked_at)} UTC, with version {letter.version:,} (epoch {epoch}, number {number:,})",
    )
    yield "now", says(trial)
    yield "do", advice(letter, trial)


def says(trial: Trial) -> str:
    """What a new attempt would meet."""
    said = "" if trial.fault is None else trial.fault.error
    return {
        Now.SELECT_FAILS: f"its SELECT still fails: {said}",
        Now.REFUSED: f"Elasticsearch still refuses it: {said}",
        Now.WRITABLE: "its SELECT returns it, and Elasticsearch has nothing against it",
        Now.GONE: "its SELECT no longer returns it",
        Now.UNKNOWN: f"only an attempt would tell: {said}",
    }[trial.now]


def advice(letter: DeadLetter, trial: Trial) -> str:
    """What to do about a dead letter."""
    retry = f"syncer dead-letters retry {letter.document}"
    field_ = f" of {letter.field}" if letter.field else ""
    return {
        Now.SELECT_FAILS: "Mend the row: the change is followed, and the letter goes away by itself.\n"
        "Or make select.sql bear it: syncer apply",
        Now.REFUSED: f"Mend the value{field_}: the change is followed, and the letter goes away by itself.\n"
        f"Or mend the mapping in index.json: syncer apply. If it was mended by hand: {retry}",
        Now.WRITABLE: f"{retry} {letter.id}",
        Now.GONE: f"{retry} {letter.id}, which deletes it from the index too",
        Now.UNKNOWN: f"Mend its id: the document is written under the new one. Then: {_discard(letter)}"
        if letter.is_id_cut
        else f"{retry} {letter.id}",
    }[trial.now]


def _discard(letter: DeadLetter) -> str:
    return f"syncer dead-letters discard {letter.document} --kind {letter.kind}"


def show_record(console: Console, one: Kept) -> None:
    """All that is known of one record."""
    console.print(f"[bold]Record {one.id}[/] of {escape(one.topic)} cannot be read as a change", soft_wrap=True)
    _show_lines(console, _record_lines(one))


def _record_lines(one: Kept) -> Iterator[tuple[str, str]]:
    yield "why", one.error
    yield "place", f"partition {one.partition}, offset {one.offset:,}"
    yield "received", f"{_moment(one.received_at)} UTC"
    yield "key", "none" if one.key is None else repr(one.key[:_KEY_SHOWN])
    cut = "" if one.is_whole else f", of which {len(one.value):,} are kept"
    yield "value", f"{amount(one.value_bytes, 'byte')}{cut}: {one.value[:_VALUE_SHOWN]!r}"
    yield "do", _RECORD_HINT


def _show_lines(console: Console, lines: Iterable[tuple[str, str]]) -> None:
    for label, said in lines:
        for number, line in enumerate(said.splitlines()):
            console.print(Text(f"  {'' if number else label:<11}{line}"), soft_wrap=True)


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"
