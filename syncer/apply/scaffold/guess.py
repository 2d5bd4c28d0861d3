"""Guess: a mapping for JSON whose fields no type tells, from the values in sampled documents.

A guess accepts every sampled value. Other values may not fit: so it is reported as a guess, and fields that occur
later are kept and shown, but not searched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from syncer.apply.scaffold import field

_KEYS_MAX = 50
"""Objects with more keys than this are taken for maps, whose keys are data."""
_DATE = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d(:?\d\d)?)?)?")
_DIMENSIONS = range(2, 4097)
"""How many numbers a dense_vector may have; a single number is none."""
STORED: dict[str, Any] = {"type": "object", "enabled": False}
"""Accepts any JSON: it is kept and shown, but not searched."""


def at(documents: Iterable[Mapping[str, Any]], path: Sequence[str]) -> Iterator[Any]:
    """Yield the values at a path, in each object of an array on the way; NULL is left out."""
    for document in documents:
        inside: Any = document.get(path[0])
        if len(path) == 1:
            if inside is not None:
                yield inside
        else:
            objects = inside if isinstance(inside, list) else [inside]
            yield from at([one for one in objects if isinstance(one, Mapping)], path[1:])


def mapping(values: Iterable[Any]) -> dict[str, Any]:
    """Return a mapping that accepts these values."""
    flat = list(_flat(values))
    kinds = {type(one) for one in flat}
    if kinds == {dict}:
        names = list(dict.fromkeys(name for one in flat for name in one))
        if len(names) > _KEYS_MAX:
            return {"type": "object", "dynamic": False}
        inside = {name: mapping(at(flat, (name,))) for name in names if name and "." not in name}
        return (
            {"type": "object", "dynamic": False, "properties": inside}
            if inside
            else {"type": "object", "dynamic": False}
        )
    if kinds == {bool}:
        return {"type": "boolean"}
    if kinds and kinds <= {int, float}:
        return {"type": "long" if kinds == {int} and all(abs(one) < 2**63 for one in flat) else "double"}
    if kinds == {str}:
        return dict(field.DATE if all(map(_is_date, flat)) else field.TEXT)
    return dict(STORED)


def dimensions(values: Iterable[Any]) -> int | None:
    """Return how many numbers each array has, if all have equally many and may be vectors."""
    lengths = {len(one) if isinstance(one, list) and None not in one else 0 for one in values}
    return lengths.pop() if len(lengths) == 1 and lengths <= set(_DIMENSIONS) else None


def _is_date(text: str) -> bool:
    """Whether Elasticsearch takes a text for a date."""
    try:
        return _DATE.fullmatch(text) is not None and bool(datetime.fromisoformat(text))
    except ValueError:
        return False


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for one in values:
        if isinstance(one, list):
            yield from _flat(one)
        elif one is not None:
            yield one
