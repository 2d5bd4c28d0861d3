"""What the lines of a log are held to: the catalogue of events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from syncer.base.events import CATALOGUE, ON_EVERY_LINE


def objections(lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """What is wrong with these lines: an event that is in no catalogue, another level, a field too many or too few."""
    return [said for line in lines for said in _objections(line)]


def _objections(line: Mapping[str, Any]) -> list[str]:
    name = line.get("event", "")
    event = CATALOGUE.get(name)
    if event is None:
        return [f"{name} is in no catalogue: {dict(line)}"]
    said = [] if line.get("level") == event.level else [f"{name} has the level {line.get('level')}"]
    fields = line.keys() - ON_EVERY_LINE.keys()
    said += [f"{name} lacks {one}" for one in sorted(event.fields.keys() - event.optional - fields)]
    said += [f"{name} has {one}, which is not in the catalogue" for one in sorted(fields - event.fields.keys())]
    return said
