"""The output of ``syncer dead-letters …``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from rich.console import Console

from syncer.base.formatting import brief
from syncer.cli.render import Rows, say, show_facts
from syncer.indexing import version
from syncer.indexing.dead_letters import DeadLetter, DeadLetterGroup

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


def show_letter(console: Console, letter: DeadLetter) -> None:
    """Print everything about one dead letter, and what to do."""
    epoch, number = version.split(letter.version)
    retry = f"syncer dead-letters retry {letter.document} {letter.id}"
    facts = {
        "said": letter.error,
        "field": letter.field or "",
        "its value": letter.value_type or "",
        "dead_lettered": f"{_moment(letter.failed_at)} UTC, with version {letter.version:,} "
        f"(epoch {epoch}, number {number:,})",
        "do": "Fix its id: the document is written under the new one. Then: syncer dead-letters discard "
        f"{letter.document} --kind {letter.kind}"
        if letter.is_id_cut
        else "Fix the data: the change is followed, and the letter goes away by itself.\n"
        f"Or fix select.sql or index.json: syncer apply\nIf it was fixed in another way: {retry}",
    }
    say(console, (f"{letter.document} {letter.id}", "bold"), f" could not be written to {letter.index_name}")
    show_facts(console, facts.items())


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"
