"""The output of ``syncer dead-letters …``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.console import Console

from syncer.base.formatting import brief
from syncer.base.model import EPOCH_SHIFT
from syncer.cli.render import Rows, say, show_facts
from syncer.indexing.dead_letters import DeadLetter, DeadLetterGroup
from syncer.indexing.dry_run import DryRun, Now

_PLACE = re.compile(r"^\[-?\d+:-?\d+\] ")


def show_list(
    console: Console,
    kinds: Sequence[DeadLetterGroup],
    letters: Sequence[DeadLetter],
    *,
    offset: int,
) -> None:
    """Print dead letters by kind, then some one by one."""
    if not kinds:
        say(console, "There are no dead letters.")
        return
    _show_kinds(console, kinds)
    if letters:
        _show_letters(console, letters, total=sum(one.letters for one in kinds), offset=offset)
    say(
        console,
        "\nOne in full: syncer dead-letters show DOCUMENT ID. Fixed data is written by itself; once a mapping is "
        "fixed: syncer dead-letters retry DOCUMENT",
        style="dim",
    )


def _show_kinds(console: Console, kinds: Sequence[DeadLetterGroup]) -> None:
    rows = [
        (
            (f"{one.letters:,}", "red"),
            one.index_name,
            one.kind,
            one.field or "-",
            one.value_type or "-",
            _moment(one.first_at),
            ", ".join(one.examples),
        )
        for one in kinds
    ]
    console.print(Rows(("letters", "index", "error", "field", "value", "since", "such as"), rows))


def _show_letters(console: Console, letters: Sequence[DeadLetter], *, total: int, offset: int) -> None:
    rows = [(one.document, one.id, _moment(one.failed_at), _said(one)) for one in letters]
    say(console)
    console.print(Rows(("document", "id", "dead_lettered", "said"), rows))
    end = offset + len(letters)
    if end < total:
        say(console, f"… and {total - end:,} more: --offset {end}, --limit, --kind, --field", style="dim")


def _said(one: DeadLetter) -> str:
    """The error in one line, without what the other columns show, and without the value that Elasticsearch quotes."""
    said = _PLACE.sub("", one.error.removeprefix(f"{one.kind}: "))
    return " ".join(brief(said).split())


def show_letter(console: Console, letter: DeadLetter, trial: DryRun) -> None:
    """Print everything about one dead letter, and what to do."""
    say(console, (f"{letter.document} {letter.id}", "bold"), f" could not be written to {letter.index_name}")
    show_facts(console, _lines(letter, trial))


def _lines(letter: DeadLetter, trial: DryRun) -> Iterator[tuple[str, str]]:
    yield "said", letter.error
    if letter.field is not None:
        yield "field", letter.field
    if letter.value_type is not None:
        yield "its value", letter.value_type
    epoch, number = letter.version >> EPOCH_SHIFT, letter.version & ((1 << EPOCH_SHIFT) - 1)
    yield (
        "dead_lettered",
        f"{_moment(letter.failed_at)} UTC, with version {letter.version:,} (epoch {epoch}, number {number:,})",
    )
    yield "now", says(trial)
    yield "do", advice(letter, trial)


def says(trial: DryRun) -> str:
    """The outcome that a new attempt would have."""
    said = "" if trial.fault is None else trial.fault.error
    return {
        Now.SELECT_FAILS: f"its SELECT still fails: {said}",
        Now.REFUSED: f"Elasticsearch still refuses it: {said}",
        Now.WRITABLE: "its SELECT returns it, and Elasticsearch has nothing against it",
        Now.GONE: "its SELECT no longer returns it",
        Now.UNKNOWN: f"only an attempt would tell: {said}",
    }[trial.now]


def advice(letter: DeadLetter, trial: DryRun) -> str:
    """What to do about a dead letter."""
    retry = f"syncer dead-letters retry {letter.document}"
    field_ = f" of {letter.field}" if letter.field else ""
    return {
        Now.SELECT_FAILS: "Fix the row: the change is followed, and the letter goes away by itself.\n"
        "Or make select.sql bear it: syncer apply",
        Now.REFUSED: f"Fix the value{field_}: the change is followed, and the letter goes away by itself.\n"
        f"Or fix the mapping in index.json: syncer apply. If it was fixed by hand: {retry}",
        Now.WRITABLE: f"{retry} {letter.id}",
        Now.GONE: f"{retry} {letter.id}, which deletes it from the index too",
        Now.UNKNOWN: f"Fix its id: the document is written under the new one. Then: {_discard(letter)}"
        if letter.is_id_cut
        else f"{retry} {letter.id}",
    }[trial.now]


def _discard(letter: DeadLetter) -> str:
    return f"syncer dead-letters discard {letter.document} --kind {letter.kind}"


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"
