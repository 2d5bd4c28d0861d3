"""The catalogue of events is all that is logged, as it is logged; and which lines an operator has chosen."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import structlog

import syncer
from syncer import events
from syncer.settings import LogSettings
from syncer.telemetry import Choice
from tests import events_page
from tests.log_lines import objections

SOURCE = Path(syncer.__file__).parent
CONSTANTS = {
    name: value for name, value in vars(events).items() if isinstance(value, str) and value in events.CATALOGUE
}


def test_the_page_of_events_is_what_the_catalogue_has() -> None:
    """It is written anew from the catalogue, and is what stands in docs/events.md."""
    assert events_page.PAGE.read_text("utf-8") == events_page.page(), "Run: python -m tests.events_page"


def test_every_event_of_the_catalogue_is_logged_somewhere_and_no_other() -> None:
    """Each constant is used; nobody logs a name of his own; a name is dotted and in the past tense's form."""
    source = "".join(one.read_text() for one in SOURCE.rglob("*.py") if one.name != "events.py")
    assert [name for name in CONSTANTS if f"events.{name}" not in source] == []
    assert set(CONSTANTS.values()) == set(events.CATALOGUE)
    assert re.findall(r"log(?:ger\(\))?\.(?:debug|info|warning|error|exception)\(\s*[\"']", source) == []
    assert [name for name in events.CATALOGUE if not re.fullmatch(r"[a-z]+\.[a-z_]+", name)] == []
    assert [one.name for one in events.CATALOGUE.values() if one.level in ("warning", "error") and not one.action] == []


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda one: str(one.relative_to(SOURCE)))
def test_what_is_logged_has_the_level_and_the_fields_of_the_catalogue(file: Path) -> None:
    """Wherever it stands, whether a test comes there or not; what a logger is bound to, the end-to-end tests see."""
    for call in ast.walk(ast.parse(file.read_text())):
        match call:
            case ast.Call(
                func=ast.Attribute(attr=level),
                args=[ast.Attribute(value=ast.Name(id="events"), attr=constant), *_],
                keywords=keywords,
            ) if level in events.LEVELS:
                event = events.CATALOGUE[CONSTANTS[constant]]
                named = {"exception" if one.arg == "exc_info" else one.arg for one in keywords}
                assert level == event.level
                assert named - {None} <= event.fields.keys()
                assert None in named or event.fields.keys() - event.optional - named <= {"worker", "lane"}


def test_a_line_that_is_not_as_the_catalogue_says_is_objected_to() -> None:
    """An unknown event, another level, a field too few and one too many; what it may have it need not have."""
    line = {"event": "stage.gave_up", "level": "warning", "at": "now", "stage": "relay"}
    assert objections([line, line | {"worker": "worker-1"}]) == []
    assert objections([line | {"event": "stage.sighed"}])
    assert objections([line | {"level": "info"}])
    assert objections([line | {"value": 3}])
    assert objections([{**line, "event": "stage.recovered", "level": "info", "attempts": 3}])


def taken(settings: LogSettings, lines: list[dict[str, Any]], *, is_command: bool = False) -> list[dict[str, Any]]:
    """Those of the lines that are logged."""
    choice = Choice(settings, is_command=is_command)
    found = []
    for line in lines:
        level = events.CATALOGUE[line["event"]].level
        try:
            found.append(dict(choice(None, level, dict(line))))
        except structlog.DropEvent:
            continue
    return found


@pytest.mark.parametrize(
    ("settings", "logged"),
    [
        (LogSettings(), ["relay.led", "stage.gave_up"]),
        (LogSettings(level="debug"), ["document.written", "relay.led", "relay.outbox_trimmed", "stage.gave_up"]),
        (LogSettings(levels={"document.written": "debug"}), ["document.written", "relay.led", "stage.gave_up"]),
        (LogSettings(levels={"relay": "warning"}), ["stage.gave_up"]),
        (
            LogSettings(levels={"relay": "error", "relay.outbox_trimmed": "debug"}),
            ["relay.outbox_trimmed", "stage.gave_up"],
        ),
    ],
)
def test_the_level_of_an_event_is_its_own_or_its_stages_or_that_of_all(
    settings: LogSettings, logged: list[str]
) -> None:
    """In that order."""
    names = ["document.written", "relay.led", "relay.outbox_trimmed", "stage.gave_up"]
    assert [one["event"] for one in taken(settings, [{"event": name} for name in names])] == logged


def test_a_command_leaves_information_to_what_it_prints() -> None:
    """Unless somebody asks for more."""
    assert taken(LogSettings(), [{"event": "relay.led"}], is_command=True) == []
    assert taken(LogSettings(level="debug"), [{"event": "relay.led"}], is_command=True)


def test_one_of_so_many_batches_is_logged_and_each_slow_one() -> None:
    """Slow is what took long, or is far behind; other events are not concerned."""
    settings = LogSettings(batch_sample=10, batch_slow_seconds=2)
    quick = {"event": "worker.batch_indexed", "seconds": 0.1, "lag_seconds": 0.2}
    slow, late = quick | {"seconds": 3.0}, quick | {"lag_seconds": 30.0}
    assert len(taken(settings, [quick] * 100)) == 10
    assert taken(settings, [quick, slow, quick, late, quick | {"lag_seconds": None}]) == [quick, slow, late]
    assert len(taken(settings, [{"event": "relay.led"}] * 5)) == 5
