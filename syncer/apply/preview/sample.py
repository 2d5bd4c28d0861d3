"""Sample: compares how Elasticsearch has indexed values of real documents with the values themselves.

This finds what column types do not show: values inside JSON, arrays and nested objects. A number must be indexed as the
same number. A text in a keyword, date or number field must be indexed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

_OBJECTS = frozenset({"object", "nested"})
_COMPARED = frozenset(
    {
        *("byte", "short", "integer", "long", "unsigned_long", "half_float", "float", "double", "scaled_float"),
        *("date", "date_nanos", "keyword", "wildcard"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Altered:
    """A value that is indexed differently, or not at all.

    Args:
        indexed: The value that searches find; empty if they find none.
    """

    id: str
    field: str
    value: str
    indexed: str


def compared_fields(mappings: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the paths whose values are compared."""
    for name, mapping in mappings.get("properties", {}).items():
        if mapping.get("type") in _COMPARED:
            yield f"{path}{name}"
        yield from compared_fields(mapping, f"{path}{name}.")


def altered(
    sources: Mapping[str, bytes], indexed: Mapping[str, Mapping[str, Any]], mappings: Mapping[str, Any]
) -> Iterator[Altered]:
    """Yield the values that searches find differently, or not at all.

    ``sources`` are documents as they were written, ``indexed`` is what searches find in their compared fields, both by
    id.
    """
    compared = set(compared_fields(mappings))
    for id_, found in indexed.items():
        has: dict[str, Counter[object]] = {}
        for path, value in _scalars(found, ""):
            has.setdefault(path, Counter())[_comparable(value)] += 1
        try:
            source = json.loads(sources[id_], parse_float=Decimal)
        except (ValueError, RecursionError):  # more digits or levels than Python reads
            continue
        for path, value in _leaves(source, "", mappings):
            there = has.get(path, Counter())
            is_number = not isinstance(value, str)
            if path not in compared or not there.total():
                yield Altered(id=id_, field=path, value=str(value), indexed="")
            elif is_number and not there[_comparable(value)]:  # a text may have been normalised
                yield Altered(id=id_, field=path, value=str(value), indexed=", ".join(map(str, there)))


def _comparable(value: object) -> object:
    """Return a number by its value, however it is written; anything else as text."""
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return str(value)
    return number if number.is_finite() else str(value)


def _scalars(found: object, path: str) -> Iterator[tuple[str, object]]:
    """Yield the values of a search's ``fields`` with their paths; nested objects come as objects."""
    if isinstance(found, Mapping):
        for name, one in found.items():
            yield from _scalars(one, f"{path}.{name}" if path else name)
    elif isinstance(found, list):
        for one in found:
            yield from _scalars(one, path)
    else:
        yield path, found


def _leaves(part: object, path: str, mapping: Mapping[str, Any], dynamic: str = "true") -> Iterator[tuple[str, object]]:
    """Yield values with their paths: compared ones, and those in objects that have no mapping for them."""
    if isinstance(part, list):
        for one in part:
            yield from _leaves(one, path, mapping, dynamic)
    elif isinstance(part, dict):
        if mapping.get("type", "object") not in _OBJECTS or str(mapping.get("enabled", True)).lower() == "false":
            return
        inherited = str(mapping.get("dynamic", dynamic)).lower()
        properties = mapping.get("properties", {})
        for name, one in part.items():
            head, dot, rest = name.partition(".")
            if dot and name not in properties:  # to Elasticsearch, {"a.b": 1} is {"a": {"b": 1}}
                yield from _leaves({head: {rest: one}}, path, mapping, dynamic)
            elif name in properties:
                yield from _leaves(one, f"{path}.{name}" if path else name, properties[name], inherited)
            elif inherited == "false" and one is not None:
                yield (f"{path}.{name}" if path else name), one
    elif mapping.get("type") in _COMPARED and part not in (None, "") and not isinstance(part, bool):
        yield path, part
