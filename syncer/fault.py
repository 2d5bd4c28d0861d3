"""Fault: why one document could not be written, and which of its fields is to blame.

Elasticsearch names the field in its sentence, nearly always; the type of its value is read from the document that was
refused. A field is named only if the document has it, so that no value, which the sentence quotes too, is taken for
one. Of a row that makes the SELECT raise, Postgres sometimes names a column, a constraint, a type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg

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
        kind: The name that Elasticsearch, or psycopg, has for it.
        error: What was said, with the beginning of the value if that is quoted.
        field: Which field it is about, its path joined by dots; or which column or constraint; None if that is not
            said.
        value_type: What JSON calls the type of that field's value, or Postgres the type of the column.
    """

    kind: str
    error: str
    field: str | None = None
    value_type: str | None = None


def of_index(kind: str, reason: str, source: bytes | None) -> Fault:
    """What Elasticsearch has against a document.

    Args:
        kind: Its name of the error.
        reason: Its sentence.
        source: The document, if it was not to be deleted.
    """
    field, value_type = _located(reason, source)
    # A sentence that quotes a long value says after it what is wrong with that.
    said = _PREVIEW.sub(r"\1…'", reason)
    error = f"{kind}: {said}"[:_ERROR_CHARACTERS_MAX]
    return Fault(kind=kind, error=error, field=field, value_type=value_type)


def of_select(error: BaseException) -> Fault:
    """What Postgres has against a row."""
    if not isinstance(error, psycopg.Error):
        return Fault(kind=type(error).__name__, error=str(error).strip()[:_ERROR_CHARACTERS_MAX])
    diag = error.diag
    return of_row(
        type(error).__name__,
        diag.message_primary or str(error),
        column=diag.column_name,
        constraint=diag.constraint_name,
        type_name=diag.datatype_name,
    )


def of_row(kind: str, message: str, *, column: str | None, constraint: str | None, type_name: str | None) -> Fault:
    """The same, from what is known of it."""
    said = message.strip()[:_ERROR_CHARACTERS_MAX]
    return Fault(kind=kind, error=said, field=column or constraint or None, value_type=type_name or None)


def _located(reason: str, source: bytes | None) -> tuple[str | None, str | None]:
    """The field that a sentence names, and the type of the value that the document has there."""
    if source is None:
        return None, None
    with suppress(ValueError, RecursionError):  # beyond what can be read here: nested too deeply
        document = json.loads(source)
        for path in _paths(reason):
            types = {_type(value) for value in _values(document, path)}
            if types:
                return path, " or ".join(sorted(types))
    return None, None


def _paths(reason: str) -> Iterator[str]:
    """What the sentence may mean by a field, the likeliest first."""
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
    """All values at a path, of which a list on the way has many; a name may itself have dots."""
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
    of = {"array" if isinstance(one, list) else _type(one) for one in value}  # however deep that goes on
    return f"array of {' or '.join(sorted(of)) or 'nothing'}"
