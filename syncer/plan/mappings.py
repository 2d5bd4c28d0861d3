"""Mappings: those of an index.json as they are judged. Pure.

Elasticsearch takes ``"false"`` for a boolean and ``"256"`` for a number, so an option is settled before it is judged.
What is sent to Elasticsearch stays as it is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any


def settled(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping, with all that is in it, whose options each have values of one type.

    A value that is none, such as ``"many"`` for a number, is left out: Elasticsearch refuses it, in words of its own.

    Args:
        mapping: As `syncer.definition` lets it pass: what is in ``properties`` and ``fields`` are objects.
    """
    found = {name: _OPTIONS[name](value) if name in _OPTIONS else value for name, value in mapping.items()}
    fields = {
        part: {name: settled(one) for name, one in mapping[part].items()}
        for part in ("properties", "fields")
        if part in mapping
    }
    return {name: value for name, value in (found | fields).items() if value is not None}


def _boolean(said: object) -> bool | None:
    return {"true": True, "false": False}.get(str(said).lower())


def _number(said: object) -> float | None:
    if isinstance(said, bool):
        return None
    for kind in (int, float):
        try:
            number = kind(str(said))
        except ValueError:
            continue
        return number if math.isfinite(number) else None
    return None


def _whole(said: object) -> int | None:
    number = _number(said)
    return None if number is None else int(number)


def _fields(said: object) -> list[str]:
    return [str(one) for one in (said if isinstance(said, list) else [said])]


_OPTIONS: dict[str, Callable[[object], object]] = {
    "enabled": _boolean,
    "coerce": _boolean,
    "ignore_malformed": _boolean,
    "ignore_above": _whole,
    "scaling_factor": _number,
    "copy_to": _fields,
}
