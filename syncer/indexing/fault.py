"""Faults: why a document could not be written, and which field is at fault.

Elasticsearch nearly always names the field in its message. The type of the value is read from the refused document.
A field is reported only if the document has it: the message also quotes values, which must not be mistaken for fields.
For a row that makes the SELECT raise, Postgres sometimes names a column, a constraint or a type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_ERROR_CHARACTERS_MAX = 500
_QUOTED_CHARACTERS = 100

_PLACE = re.compile(r"^\[-?\d+:-?\d+\] ")
_PREVIEW = re.compile(rf"(Preview of field's value: '.{{{_QUOTED_CHARACTERS}}}).*?'(?=: |$)", re.DOTALL)
_PREVIEW_BEGINS = " Preview of field's value: "
_NAMED = tuple(
    re.compile(one)
    for one in (
        r"failed to parse field \[(.+?)\] of type \[",
        r"object mapping for \[(.+?)\] tried to parse field",
        r"failed to parse: The \[\w+\] field \[(.+?)\] in doc \[",
        r"failed to parse: failed to parse \[(.+?)\]: ",
        r"failed to parse: Limit of mapping depth \[\d+\] has been exceeded due to object field \[(.+?)\]",
        r"Cannot write to a field alias \[(.+?)\]",
        r".*\bfield \[([^\[\]]+)\]",
    )
)
_INTRODUCED = re.compile(r"mapping set to strict, dynamic introduction of \[(.+?)\] within \[(.+?)\] is not allowed")
_DOCUMENT = "_doc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why one document could not be written.

    Args:
        kind: The name of the error in Elasticsearch or psycopg.
        error: The message, with only the beginning of a quoted value.
        field: The field at fault, as a dotted path, or the column or constraint; None if unknown.
        value_type: The JSON type of that field's value, or the Postgres type of the column.
    """

    kind: str
    error: str
    field: str | None = None
    value_type: str | None = None


def of_index(kind: str, reason: str, source: bytes | None) -> Fault:
    """Return the fault that Elasticsearch reports for a document.

    Args:
        kind: The name of the error.
        reason: The message.
        source: The document; None for a deletion.
    """
    field, value_type = _located(reason, source)
    # If the message quotes a long value, the explanation follows it.
    said = _PREVIEW.sub(r"\1…'", reason)
    error = f"{kind}: {said}"[:_ERROR_CHARACTERS_MAX]
    return Fault(kind=kind, error=error, field=field, value_type=value_type)


def of_row(kind: str, message: str, *, column: str | None, constraint: str | None, type_name: str | None) -> Fault:
    """Return the fault with these properties."""
    said = message.strip()[:_ERROR_CHARACTERS_MAX]
    return Fault(kind=kind, error=said, field=column or constraint or None, value_type=type_name or None)


def _located(reason: str, source: bytes | None) -> tuple[str | None, str | None]:
    """Return the field that a message names, and the type of its value in the document."""
    if source is None:
        return None, None
    with suppress(ValueError, RecursionError):  # nested too deeply to be read
        document = json.loads(source)
        for path in _paths(reason):
            types = {_type(value) for value in _values(document, path)}
            if types:
                return path, " or ".join(sorted(types))
    return None, None


def _paths(reason: str) -> Iterator[str]:
    """Return possible field paths in the message, the likeliest first."""
    said = _PLACE.sub("", reason.partition(_PREVIEW_BEGINS)[0])
    introduced = _INTRODUCED.match(said)
    if introduced is not None:
        name, within = introduced.groups()
        yield name if within == _DOCUMENT else f"{within}.{name}"
    for one in _NAMED:
        found = one.match(said)
        if found is not None:
            yield found.group(1)


def _values(node: Any, path: str) -> Iterator[Any]:
    """Return all values at a path; lists on the way have several, and a name may itself contain dots."""
    if isinstance(node, list):
        for one in node:
            yield from _values(one, path)
    elif isinstance(node, dict):
        for name, value in node.items():
            if name == path:
                yield value
            elif path.startswith(f"{name}."):
                yield from _values(value, path[len(name) + 1 :])


def _type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case dict():
            return "object"
    of = {"array" if isinstance(one, list) else _type(one) for one in value}  # at any depth
    return f"array of {' or '.join(sorted(of)) or 'nothing'}"
