"""The page of events: what `syncer.events` has of each, as docs/events.md."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from syncer.events import CATALOGUE, ON_EVERY_LINE, Event

PAGE = Path(__file__).parent.parent / "docs" / "events.md"

_INTRODUCTION = """\
# What the log says

Each line is one event. As JSON it has the fields {common}, and those that are named below; on a terminal it reads as
`console` renders it (`log.format`). No line has a value of a row, or a secret: ids of documents, names of tables and of
fields are in it.

**Which lines there are.** `log.level` is for all; `log.levels` for single events, or for all whose names begin so:
`{{"worker": "warning", "document.written": "debug"}}`. Of the lines of batches one of `log.batch_sample` is logged, and
each of a batch that took `log.batch_slow_seconds` or more, or is so far behind.

**What goes on and on** is said once, then as a number, more and more rarely, and once more when it is over.

**Following one change.** Its id in the outbox lies between the two `ids` of a `relay.batch_published`, whose `offsets`
say where its record is in the topic. The `worker.batch_indexed` whose `offsets` have that place is the batch that
handled it, with its lag. At level `debug` each document of that batch has a line `document.written`, with its `stage`
and `batch`, its id and its version: that is what `syncer explain` finds in Elasticsearch. What went to a job instead
has a `job.created` of that worker, and lines with that `job`. A change that was published twice is in two batches.
"""
_SECTIONS = {
    "daemon": "The daemon and its stages",
    "stage": "The daemon and its stages",
    "survey": "How far behind it is",
    "lag": "How far behind it is",
    "relay": "The relay",
    "worker": "Workers and documents",
    "document": "Workers and documents",
    "watch": "What documents rely on, and jobs",
    "job": "What documents rely on, and jobs",
    "incarnation": "What servers do to it",
    "topic": "What servers do to it",
    "traces": "What servers do to it",
    "web": "The status page",
}


def _section(event: Event) -> str:
    return _SECTIONS[event.name.partition(".")[0]]


def _described(event: Event) -> Iterator[str]:
    yield f"### {event.name}\n"
    yield f"`{event.level}`. {event.meaning}"
    if event.action:
        yield f"\n**What to do:** {event.action}"
    if event.fields:
        yield ""
    for name, meaning in event.fields.items():
        yield f"- `{name}`{' (not always)' if name in event.optional else ''}: {meaning}"
    yield ""


def page() -> str:
    """The page."""
    common = ", ".join(f"`{name}` ({meaning})" for name, meaning in ON_EVERY_LINE.items())
    lines = [_INTRODUCTION.format(common=common)]
    for title, events in groupby(CATALOGUE.values(), key=_section):
        lines.append(f"## {title}\n")
        for event in events:
            lines += _described(event)
    lines.append("This page is written by `python -m tests.events_page`, from `syncer/events.py`.")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
