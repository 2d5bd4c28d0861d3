"""Formats numbers, durations and long values for messages, and any value for JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any

_FIELD = re.compile(r"(.*?failed to parse field \[.*?\] of type \[\w+\])(.*)", re.DOTALL)
_PREVIEW = re.compile(r"\s*Preview of field's value: '(.*)'(?=:|$)", re.DOTALL)
_DELIMITED = re.compile(r"(?<=\[)[^][]+(?=\])|(?<=\()[^()]+(?=\))|(?<=['\"])[^'\"]+(?=['\"])")
_PARSER = re.compile(r"\s+at \[Source: .*", re.DOTALL)
_OTHER = re.compile(
    r"(?<=Preview of invalid vector: )\[.*?\]|(?<=Illegal input )\[.*\](?= UTF)|(?<=Numeric value )\(.*?\)", re.DOTALL
)
"""What else quotes a value, in the words of Elasticsearch."""
_CONTROLS = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")
"""Controls but for line breaks and tabs, what turns the direction of writing, and what is no UTF-8."""
_LONG_TEXT = 200
_LONG_LIST = 5
_MINUTE, _HOUR = 60, 3600


def elapsed(seconds: float) -> str:
    """Format a duration to the second, or to the minute from one hour on."""
    seconds = round(seconds)
    if seconds < _MINUTE:
        return f"{seconds} s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE} min {seconds % _MINUTE} s"
    return f"{seconds // _HOUR} h {seconds % _HOUR // _MINUTE} min"


def amount(number: int, noun: str) -> str:
    """Format a number with its noun, in the plural unless it is 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shortened(value: object) -> object:
    """Return JSON with long strings and lists truncated and marked so, where that makes them shorter."""
    if isinstance(value, str):
        return min(value, f"{value[:_LONG_TEXT]}… ({len(value):,} characters)", key=len)
    if isinstance(value, list):
        omitted = [f"… {len(value) - _LONG_LIST:,} more"] if len(value) > _LONG_LIST else []
        return [shortened(item) for item in value[:_LONG_LIST]] + omitted
    if isinstance(value, dict):
        return {name: shortened(item) for name, item in value.items()}
    return value


def visible(text: str) -> str:
    """Return a text with what a terminal may obey, or cannot show, written as JSON escapes it; line breaks stay."""
    return _CONTROLS.sub(lambda control: f"\\u{ord(control[0]):04x}", text)


def shown_id(id_: str) -> str:
    """Return a document's id as a message shows it, in one line, also one that is long or empty."""
    return visible(str(shortened(id_))).replace("\n", "\\n").replace("\t", "\\t") or "''"


def without_values(reason: str) -> str:
    """Return the reason for a rejection without values of the document: Elasticsearch quotes them, and its parser too.

    Of the cause of a field's rejection nothing is kept that is in quotes or brackets.
    """
    reason = _OTHER.sub("…", _PARSER.sub("", reason))
    if (of_field := _FIELD.fullmatch(reason)) is None:
        return reason
    field, cause = of_field.groups()
    explanation, *quoted = _PREVIEW.split(cause, maxsplit=1)
    if quoted:
        value, cause = quoted
        cause = explanation.removesuffix(".") + re.sub(rf"(?<=[\[\"'(]){re.escape(value)}(?=[\]\"')])", "…", cause)
    context, colon, cause = cause.partition(":")
    return field + context + colon + _DELIMITED.sub("…", cause)


def plain(value: object) -> Any:
    """Return a value as JSON has it: a dataclass by its fields and properties, a time in ISO 8601."""
    if is_dataclass(value):
        properties = [name for name, attribute in vars(type(value)).items() if isinstance(attribute, property)]
        return {name: plain(getattr(value, name)) for name in [*(field.name for field in fields(value)), *properties]}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value.isoformat() if isinstance(value, datetime) else value
