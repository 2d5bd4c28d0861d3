"""Drift: how a document in Elasticsearch differs from what its SELECT says, to the field.

Compares values as JSON has them: numbers by their value, however long; the order of an object's keys, and how
something is spelled, do not matter. What is nested deeper than Python's parser goes, about 900 levels, is compared
by its bytes alone, and what differs within it is not named: its path is `TOO_DEEP`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from functools import partial
from itertools import islice, zip_longest
from typing import Any

from syncer.compose import Row
from syncer.holdings import Copy
from syncer.model import Place

TOO_DEEP = "…"
_DIFFERENCES_MAX = 20
_VALUE_CHARACTERS_MAX = 80
_NOTHING = object()


class Kind(StrEnum):
    """How a document differs."""

    MISSING = "missing"
    """Postgres has it, Elasticsearch has not."""
    EXTRA = "extra"
    """Elasticsearch has it, Postgres has not."""
    DIFFERENT = "different"
    """Both have it, with other contents."""
    MISPLACED = "misplaced"
    """Elasticsearch has it, or a second copy of it, under another routing."""


class Cause(StrEnum):
    """Why a document differs, where that is known."""

    PARKED = "parked"
    """It could not be written: it is a dead letter."""
    FOREIGN = "foreign"
    """Somebody else wrote it, with a version that the next one of syncer's surpasses."""
    FOREIGN_AHEAD = "foreign_ahead"
    """Somebody else wrote it, with a version that no write of syncer's surpasses."""
    FOREIGN_DELETE = "foreign_delete"
    """Somebody else deleted it with a greater version, which Elasticsearch remembers for a while."""
    LOST = "lost"
    """It shows what the database has lost to a restore, or a failover."""
    UNFILLED = "unfilled"
    """The document's definition has not been filled yet."""


class How(StrEnum):
    """How a field differs."""

    CHANGED = "changed"
    """Both have it, with other values."""
    MISSING = "missing"
    """Elasticsearch lacks it."""
    EXTRA = "extra"
    """Only Elasticsearch has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One value that differs.

    Args:
        path: Where in the document: ``comments[1].age``.
        how: In which way.
        expected: What Postgres says, shortened; None if it says nothing, or values were not asked for.
        held: What Elasticsearch holds, likewise.
    """

    path: str
    how: How
    expected: str | None = None
    held: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One document that is not equal to its SELECT.

    Args:
        document: Which definition.
        index_name: In which physical index.
        id: Which document.
        kind: How it differs.
        fields: The top-level fields that differ.
        differences: What differs within them; the first few, if they are many.
        version: The version that Elasticsearch holds, if it holds the document.
        routing: What leads to the copy that should not be where it is.
        cause: Why, if that is known.
        error: If it is a dead letter: what was said of it.
        drawn_after: When that version was drawn, at the earliest; None if unknown.
        drawn_before: The same, at the latest.
    """

    document: str
    index_name: str
    id: str
    kind: Kind
    fields: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    version: int | None = None
    routing: str | None = None
    cause: Cause | None = None
    error: str | None = None
    drawn_after: datetime | None = None
    drawn_before: datetime | None = None


def suspects(expected: dict[str, Row], copies: Iterable[Copy]) -> set[str]:
    """Those that are not held exactly once, in their place, with the same contents.

    Args:
        expected: Documents as Postgres says them.
        copies: All copies of these documents.
    """
    missing = set(expected)
    wrong: set[str] = set()
    for copy in copies:
        row = expected[copy.id]
        missing.discard(copy.id)
        if (copy.routing or copy.id) != (row.routing or copy.id) or not _is_same(row.source, copy.source):
            wrong.add(copy.id)
    return missing | wrong


def compare(
    document: str, index_name: str, expected: dict[str, Row], copies: Iterable[Copy], *, values: bool = False
) -> Iterator[Drift]:
    """What differs between documents as Postgres says them and all the copies that Elasticsearch holds of them.

    Args:
        document: Which definition.
        index_name: Which physical index.
        expected: Documents as Postgres says them.
        copies: All copies of these documents, and of others that Postgres has not.
        values: Whether to show what differs: it may be a secret.
    """
    drift = partial(Drift, document=document, index_name=index_name)
    found: dict[str, list[Copy]] = {}
    for copy in copies:
        found.setdefault(copy.id, []).append(copy)
    for id_ in expected.keys() | found.keys():
        row, held = expected.get(id_), found.get(id_, [])
        if row is None:
            yield drift(id=id_, kind=Kind.EXTRA, version=held[0].version, routing=held[0].place.routing)
        elif stray := next((one for one in held if one.place != Place.of(id_, row.routing)), None):
            yield drift(id=id_, kind=Kind.MISPLACED, version=stray.version, routing=stray.place.routing)
        elif not held:
            yield drift(id=id_, kind=Kind.MISSING)
        elif not _is_same(row.source, held[0].source):
            fields, differences = _differing(row.source, held[0].source, values=values)
            version = held[0].version
            yield drift(id=id_, kind=Kind.DIFFERENT, fields=fields, differences=differences, version=version)


def _is_same(expected: bytes, held: bytes) -> bool:
    # Elasticsearch keeps the bytes that we wrote, so that parsing is for what somebody else wrote.
    if expected == held:
        return True
    try:
        return next(_differences("", _parsed(expected), _parsed(held)), None) is None
    except RecursionError:
        return False


def _differing(expected: bytes, held: bytes, *, values: bool) -> tuple[tuple[str, ...], tuple[Difference, ...]]:
    try:
        left, right = _parsed(expected), _parsed(held)
    except RecursionError:
        return (), (Difference(path=TOO_DEEP, how=How.CHANGED),)
    found = _differences("", left, right)
    named = tuple(islice((one if values else _hidden(one) for one in found), _DIFFERENCES_MAX))
    return _names(left, right), named


def _names(left: dict[str, Any], right: dict[str, Any]) -> tuple[str, ...]:
    names = sorted(left.keys() | right.keys())
    return tuple(
        name
        for name in names
        if name not in left or name not in right or any(_differences(name, left[name], right[name]))
    )


def _hidden(difference: Difference) -> Difference:
    return Difference(path=difference.path, how=difference.how)


def _differences(path: str, left: Any, right: Any) -> Iterator[Difference]:
    """In the order of the document. What is left to compare is a list of ours: documents may be nested very deep."""
    left_to_do = [(path, left, right)]
    while left_to_do:
        path, left, right = left_to_do.pop()
        if isinstance(left, dict) and isinstance(right, dict):
            names = sorted(left.keys() | right.keys(), reverse=True)
            left_to_do += [
                (f"{path}.{one}" if path else one, left.get(one, _NOTHING), right.get(one, _NOTHING)) for one in names
            ]
        elif isinstance(left, list) and isinstance(right, list):
            pairs = list(enumerate(zip_longest(left, right, fillvalue=_NOTHING)))
            left_to_do += [(f"{path}[{number}]", *pair) for number, pair in reversed(pairs)]
        elif right is _NOTHING:
            yield Difference(path=path, how=How.MISSING, expected=_shown(left))
        elif left is _NOTHING:
            yield Difference(path=path, how=How.EXTRA, held=_shown(right))
        elif isinstance(left, bool) is not isinstance(right, bool) or left != right:  # to Python, true equals 1
            yield Difference(path=path, how=How.CHANGED, expected=_shown(left), held=_shown(right))


def _parsed(source: bytes) -> Any:
    return json.loads(source, parse_float=_number, parse_int=_number)


def _number(text: str) -> Decimal | str:
    """Exactly that number: a float would take two long ones for the same."""
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent beyond all bounds
        return text


def _plain(number: Decimal) -> int | float:
    return int(number) if number.as_tuple().exponent == 0 else float(number)


def _shown(value: Any) -> str:
    try:
        text = str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False, default=_plain)
    except RecursionError:
        return TOO_DEEP
    text = text.encode(errors="replace").decode()  # half of a surrogate pair cannot be shown
    return text if len(text) <= _VALUE_CHARACTERS_MAX else text[: _VALUE_CHARACTERS_MAX - 1] + "…"
