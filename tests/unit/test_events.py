"""The catalogue of events is all that is logged, as it is logged; and which lines an operator has chosen."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import structlog

import syncer
from syncer.base import events
from syncer.base.log import Choice, Summary
from syncer.base.settings import LogSettings
from tests.log_lines import objections

SOURCE = Path(syncer.__file__).parent
CONSTANTS = {
    name: value for name, value in vars(events).items() if isinstance(value, str) and value in events.CATALOGUE
}


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
                assert None in named or event.fields.keys() - event.optional - named <= {"worker", "job_worker"}


def test_a_line_that_is_not_as_the_catalogue_says_is_objected_to() -> None:
    """An unknown event, another level, a field too few and one too many; what it may have it need not have."""
    line = {"event": "component.gave_up", "level": "warning", "at": "now", "component": "relay"}
    assert objections([line, line | {"worker": "worker-1"}]) == []
    assert objections([line | {"event": "component.sighed"}])
    assert objections([line | {"level": "info"}])
    assert objections([line | {"value": 3}])
    assert objections([{**line, "event": "component.recovered", "level": "info", "attempts": 3}])


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
        (LogSettings(), ["relay.led", "component.gave_up"]),
        (LogSettings(level="debug"), ["document.written", "relay.led", "relay.outbox_trimmed", "component.gave_up"]),
        (LogSettings(levels={"document.written": "debug"}), ["document.written", "relay.led", "component.gave_up"]),
        (LogSettings(levels={"relay": "warning"}), ["component.gave_up"]),
        (
            LogSettings(levels={"relay": "error", "relay.outbox_trimmed": "debug"}),
            ["relay.outbox_trimmed", "component.gave_up"],
        ),
    ],
)
def test_the_level_of_an_event_is_its_own_or_its_components_or_that_of_all(
    settings: LogSettings, logged: list[str]
) -> None:
    """In that order."""
    names = ["document.written", "relay.led", "relay.outbox_trimmed", "component.gave_up"]
    assert [one["event"] for one in taken(settings, [{"event": name} for name in names])] == logged


def test_a_command_leaves_information_to_what_it_prints() -> None:
    """Unless somebody asks for more."""
    assert taken(LogSettings(), [{"event": "relay.led"}], is_command=True) == []
    assert taken(LogSettings(level="debug"), [{"event": "relay.led"}], is_command=True)


QUICK = {"event": "worker.batch_indexed", "changes": 2, "indexed": 3, "seconds": 0.1, "lag_seconds": 0.2}


def test_a_slow_batch_is_logged_and_each_if_its_level_says_so() -> None:
    """One that is only late is not: while a daemon catches up, all of them are. Other events are not concerned."""
    slow, late = QUICK | {"seconds": 3.0}, QUICK | {"lag_seconds": 30.0}
    assert taken(LogSettings(), [QUICK, slow, late, QUICK | {"lag_seconds": None}]) == [slow]
    assert taken(LogSettings(levels={"worker.batch_indexed": "debug"}), [QUICK, slow]) == [QUICK, slow]
    assert taken(LogSettings(levels={"worker": "warning"}), [QUICK, slow]) == []
    assert len(taken(LogSettings(), [{"event": "relay.led"}] * 5)) == 5


def test_batches_are_summed_up() -> None:
    """Every batch is counted once, logged or not; nothing is said of none."""
    summary = Summary()
    assert summary.take(at_once=True) is None
    published = {"event": "relay.batch_published", "changes": 5, "seconds": 0.5}
    for line in (published, QUICK, QUICK | {"seconds": 3.0, "lag_seconds": None}):
        summary.count(line)
    assert summary.take() is None  # it is too early
    told = summary.take(at_once=True)
    assert told == {
        "published": 5,
        "relay_batches": 1,
        "handled": 4,
        "worker_batches": 2,
        "documents": 0,
        "indexed": 6,
        "deleted": 0,
        "skipped": 0,
        "dead_lettered": 0,
        "seconds_max": 3.0,
        "lag_seconds_max": 0.2,
    }
    assert told.keys() == events.CATALOGUE["batches.summarised"].fields.keys()
    assert summary.take(at_once=True) is None
