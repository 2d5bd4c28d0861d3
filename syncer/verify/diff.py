"""Drift: how a document in Elasticsearch differs from its SELECT, field by field.

Values are compared as JSON: numbers by value, however long; key order and spelling do not matter. A document nested
deeper than Python's parser allows, about 900 levels, is compared by its bytes. Its differences are not named: their
path is `TOO_DEEP`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from functools import partial
from itertools import islice, zip_longest
from typing import Any

from syncer.base.model import Place
from syncer.documents.queries import Row
from syncer.elasticsearch.reader import Copy

TOO_DEEP = "…"
_DIFFERENCES_MAX = 20
_VALUE_CHARACTERS_MAX = 80
_NOTHING = object()
# What string_agg usually puts between elements.
_BETWEEN_WORDS = re.compile(r"[,;|/\s]+")


class DriftKind(StrEnum):
    """How a document differs."""

    MISSING = "missing"
    """Postgres has it, Elasticsearch does not."""
    EXTRA = "extra"
    """Elasticsearch has it, Postgres does not."""
    DIFFERENT = "different"
    """Both have it, with other contents."""
    MISPLACED = "misplaced"
    """Elasticsearch has it, or a second copy of it, under another routing."""


class Cause(StrEnum):
    """Why a document differs, where that is known."""

    DEAD_LETTERED = "dead_lettered"
    """It could not be written: it is a dead letter."""
    FOREIGN = "foreign"
    """Another client wrote it, with a version that syncer's next one surpasses."""
    FOREIGN_AHEAD = "foreign_ahead"
    """Another client wrote it, with a version that no write of syncer's surpasses."""
    LOST = "lost"
    """It shows a state that the database has lost in a restore or failover."""
    INCOMPLETE = "incomplete"
    """The document's definition has not been loaded yet."""
    REORDERED = "reordered"
    """Both have the same elements or words in another order, as from an aggregate without ORDER BY."""


class FieldChange(StrEnum):
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
        path: Its place in the document: ``comments[1].age``.
        expected: The value in Postgres, shortened; None if there is none, or values were not asked for.
        held: The value in Elasticsearch, likewise.
    """

    path: str
    how: FieldChange
    expected: str | None = None
    held: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One document that does not equal its SELECT.

    Args:
        differences: What differs within them, limited to the first few.
        version: The version in Elasticsearch, if it has the document.
        routing: The routing of the copy that should not be where it is.
        error: If it is a dead letter: its error.
    """

    document: str
    index_name: str
    id: str
    kind: DriftKind
    fields: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    version: int | None = None
    routing: str | None = None
    cause: Cause | None = None
    error: str | None = None


def suspects(expected: dict[str, Row], copies: Iterable[Copy]) -> set[str]:
    """Return the ids that are not held exactly once, in their place, with the same contents.

    ``copies`` must be all copies of the expected documents.
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
    """Yield the differences between documents in Postgres and all their copies in Elasticsearch.

    Args:
        document: The definition's name.
        index_name: The physical index.
        expected: Documents as in Postgres.
        copies: All copies of these documents, and of documents that Postgres lacks.
        values: Whether to show differing values, which may be secrets.
    """
    drift = partial(Drift, document=document, index_name=index_name)
    found: dict[str, list[Copy]] = {}
    for copy in copies:
        found.setdefault(copy.id, []).append(copy)
    for id_ in expected.keys() | found.keys():
        row, held = expected.get(id_), found.get(id_, [])
        if row is None:
            yield drift(id=id_, kind=DriftKind.EXTRA, version=held[0].version, routing=held[0].place.routing)
        elif orphan := next((one for one in held if one.place != Place.of(id_, row.routing)), None):
            yield drift(id=id_, kind=DriftKind.MISPLACED, version=orphan.version, routing=orphan.place.routing)
        elif not held:
            yield drift(id=id_, kind=DriftKind.MISSING)
        elif not _is_same(row.source, held[0].source):
            fields, differences = _differing(row.source, held[0].source, values=values)
            yield drift(
                id=id_,
                kind=DriftKind.DIFFERENT,
                fields=fields,
                differences=differences,
                version=held[0].version,
                cause=Cause.REORDERED if _is_reordered(row.source, held[0].source) else None,
            )


def _is_same(expected: bytes, held: bytes) -> bool:
    # Elasticsearch keeps the bytes that syncer wrote, so parsing is only for documents that another client wrote.
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
        return (), (Difference(path=TOO_DEEP, how=FieldChange.CHANGED),)
    found = _differences("", left, right)
    named = tuple(islice((one if values else _hidden(one) for one in found), _DIFFERENCES_MAX))
    return _names(left, right), named


def _is_reordered(expected: bytes, held: bytes) -> bool:
    """Whether both have the same elements of arrays, and the same words of texts, in another order."""
    try:
        return _sorted(_parsed(expected)) == _sorted(_parsed(held))
    except RecursionError:
        return False


def _sorted(value: Any) -> str:
    """Return a text that is the same for values that differ only in the order of elements and words."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{json.dumps(name)}:{_sorted(value[name])}' for name in sorted(value))}}}"
    if isinstance(value, list):
        return f"[{','.join(sorted(map(_sorted, value)))}]"
    return json.dumps(sorted(_BETWEEN_WORDS.split(value))) if isinstance(value, str) else _shown(value)


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
    """Yield differences in document order, with an explicit stack: documents may be nested very deep."""
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
            yield Difference(path=path, how=FieldChange.MISSING, expected=_shown(left))
        elif left is _NOTHING:
            yield Difference(path=path, how=FieldChange.EXTRA, held=_shown(right))
        elif isinstance(left, bool) is not isinstance(right, bool) or left != right:  # to Python, true equals 1
            yield Difference(path=path, how=FieldChange.CHANGED, expected=_shown(left), held=_shown(right))


def _parsed(source: bytes) -> Any:
    return json.loads(source, parse_float=_number, parse_int=_number)


def _number(text: str) -> Decimal | str:
    """Keep a number exact: as floats, two long numbers could be equal."""
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
