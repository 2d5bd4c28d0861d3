"""Drift: how a document in Elasticsearch differs from its SELECT, field by field, and what to do about it.

Values are compared as JSON: numbers by value, however long; key order and spelling do not matter. A document nested
deeper than Python's parser allows, about 900 levels, or with an exponent beyond all bounds, is compared by its bytes.
Its differences are not named: their path is `TOO_DEEP`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from itertools import islice, zip_longest
from typing import Any

from syncer.base.model import Place
from syncer.documents.queries import Row
from syncer.documents.registry import Document
from syncer.elasticsearch.reader import Copy

TOO_DEEP = "…"
_DIFFERENCES_MAX = 20
_VALUE_CHARACTERS_MAX = 80
_ROUNDING = Decimal("1e-12")
_NOTHING = object()
_BETWEEN_ELEMENTS = re.compile(r"\s*[,;|/\n]\s*")
"""What `string_agg` usually puts between elements."""
UNPARSED = (RecursionError, ValueError, InvalidOperation)
"""Nested too deep, an exponent beyond all bounds, or not JSON to Python, though Elasticsearch has accepted it."""


class DriftKind(StrEnum):
    """How a document differs."""

    MISSING = "missing"  # Postgres has it, Elasticsearch does not
    EXTRA = "extra"  # Elasticsearch has it, Postgres does not
    DIFFERENT = "different"  # both have it, with other contents
    FAILING = "failing"  # its SELECT fails on the data
    UNREADABLE = "unreadable"  # its SELECT takes more time, memory or temporary files than it may
    MISPLACED = "misplaced"  # Elasticsearch has it, or a second copy of it, under another routing
    DUPLICATE = "duplicate"  # searches find it several times, in an index that syncer does not write


class Cause(StrEnum):
    """Why a document differs, where that is known."""

    DEAD_LETTERED = "dead_lettered"  # it could not be written: it is a dead letter
    FOREIGN = "foreign"  # another client wrote it, with a version that syncer's next one surpasses
    FOREIGN_AHEAD = "foreign_ahead"  # another client wrote it, with a version that no write of syncer's surpasses
    INCOMPLETE = "incomplete"  # the document's definition has not been loaded yet
    REORDERED = "reordered"  # both have the same elements in another order
    ROUNDED = "rounded"  # sums of floating-point numbers differ in their last digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One value that differs.

    Args:
        path: Its place in the document: ``comments[1].age``.
        postgres: The value in Postgres, shortened; None if there is none, or values were not asked for.
        elasticsearch: The value in Elasticsearch, likewise.
    """

    path: str
    postgres: str | None = None
    elasticsearch: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One document that does not equal its SELECT.

    Args:
        differences: What differs within it, limited to the first few.
        version: The version in Elasticsearch, if it has the document.
        routing: The routing of the copy that should not be where it is.
        error: If it is a dead letter: its error.
        failure: How its SELECT fails, if it does.
    """

    id: str
    kind: DriftKind
    differences: tuple[Difference, ...] = ()
    version: int | None = None
    routing: str | None = None
    cause: Cause | None = None
    error: str | None = None
    failure: str | None = None


Compared = tuple[list["Difference"], Cause | None]
"""The first differences, and the cause if it is known."""


def compare(
    expected: Mapping[str, Row],
    copies: Iterable[Copy],
    *,
    values: bool = False,
    compared: Callable[[Row, Copy], Compared] | None = None,
) -> Iterator[Drift]:
    """Yield the differences between documents in Postgres and all their copies in Elasticsearch.

    Args:
        expected: Documents as in Postgres.
        copies: All copies of these documents, and of documents that Postgres lacks.
        values: Whether to show differing values, which may be secrets.
        compared: How to compare what differs in its bytes; by default, as JSON.
    """
    copies_by_id: dict[str, list[Copy]] = {}
    for copy in copies:
        copies_by_id.setdefault(copy.id, []).append(copy)
    for id_ in expected.keys() | copies_by_id.keys():
        row, stored = expected.get(id_), copies_by_id.get(id_, [])
        if row is None:
            yield Drift(id=id_, kind=DriftKind.EXTRA, version=stored[0].version, routing=stored[0].place.routing)
        elif orphan := next((copy for copy in stored if copy.place != Place.of(id_, row.routing)), None):
            yield Drift(id=id_, kind=DriftKind.MISPLACED, version=orphan.version, routing=orphan.place.routing)
        elif not stored:
            yield Drift(id=id_, kind=DriftKind.MISSING)
        elif len(stored) > 1:  # in several indices of an alias
            yield Drift(id=id_, kind=DriftKind.DUPLICATE)
        # Elasticsearch keeps the bytes that syncer wrote, so only documents of another client are parsed.
        elif row.source != stored[0].source:
            differences, cause = (compared or _as_json)(row, stored[0])
            if differences:
                shown = differences if values else [Difference(path=difference.path) for difference in differences]
                yield Drift(
                    id=id_,
                    kind=DriftKind.DIFFERENT,
                    differences=tuple(shown),
                    version=stored[0].version,
                    cause=cause,
                )


def _as_json(row: Row, copy: Copy) -> Compared:
    try:  # as floats, two long numbers could be equal
        values = (json.loads(source, parse_float=Decimal, parse_int=Decimal) for source in (row.source, copy.source))
        return first_differences(*values)
    except UNPARSED:
        return [Difference(path=TOO_DEEP)], None


def first_differences(expected: Any, indexed: Any) -> Compared:
    """Compare two values, without their types."""
    differences = list(islice(_differences(expected, indexed), _DIFFERENCES_MAX))
    if len(differences) < _DIFFERENCES_MAX and all(map(_is_rounding, differences)):
        return differences, Cause.ROUNDED
    try:
        return differences, Cause.REORDERED if _in_any_order(expected) == _in_any_order(indexed) else None
    except RecursionError:
        return differences, None


def _is_rounding(difference: Difference) -> bool:
    """Whether two numbers are equal but for the digits that the order of a sum decides."""
    try:
        numbers = [Decimal(text or "") for text in (difference.postgres, difference.elasticsearch)]
        return max(numbers) - min(numbers) <= _ROUNDING * max(map(abs, numbers))
    except InvalidOperation:
        return False


def _in_any_order(value: Any) -> str:
    """Return a text that is the same for values whose arrays, or texts of string_agg, have the same elements."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{name!r}:{_in_any_order(value[name])}' for name in sorted(value))}}}"
    if isinstance(value, list):
        return f"[{','.join(sorted(map(_in_any_order, value)))}]"
    return repr(sorted(_BETWEEN_ELEMENTS.split(value)) if isinstance(value, str) else value)


def _differences(expected: Any, indexed: Any) -> Iterator[Difference]:
    """Yield differences, with an explicit stack: documents may be nested very deep."""
    stack = [("", expected, indexed)]
    while stack:
        path, expected, indexed = stack.pop()
        if isinstance(expected, dict) and isinstance(indexed, dict):
            for name in sorted(expected.keys() | indexed.keys(), reverse=True):
                values = expected.get(name, _NOTHING), indexed.get(name, _NOTHING)
                stack.append((f"{path}.{name}" if path else name, *values))
        elif isinstance(expected, list) and isinstance(indexed, list):
            pairs = list(enumerate(zip_longest(expected, indexed, fillvalue=_NOTHING)))
            stack += [(f"{path}[{number}]", *pair) for number, pair in reversed(pairs)]
        # To Python, true equals 1.
        elif isinstance(expected, bool) is not isinstance(indexed, bool) or expected != indexed:
            yield Difference(path=path, postgres=_shown(expected), elasticsearch=_shown(indexed))


def _plain(number: Decimal) -> int | float:
    return int(number) if number.as_tuple().exponent == 0 else float(number)


def _shown(value: Any) -> str | None:
    if value is _NOTHING:
        return None
    try:
        text = str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False, default=_plain)
    except RecursionError:
        return TOO_DEEP
    return text if len(text) <= _VALUE_CHARACTERS_MAX else text[: _VALUE_CHARACTERS_MAX - 1] + "…"


_ADVICE: Mapping[Cause | None, str] = {
    None: "To write again what differs: syncer verify {name} --repair; or all documents: syncer backfill {name}",
    Cause.DEAD_LETTERED: "Fix the data, and it is written. Or fix select.sql or index.json, and run: syncer apply",
    Cause.FOREIGN: "Another program writes to {index}: let only syncer write there. To write it again: "
    "syncer verify {name} --repair",
    Cause.FOREIGN_AHEAD: "Another program writes to {index}, with a version that syncer has not assigned yet and "
    "cannot overwrite. Stop that program, then run: syncer index rebuild {name}",
    Cause.INCOMPLETE: "{name} has not been loaded yet. Run: syncer apply",
    Cause.REORDERED: "An aggregate without ORDER BY returns its elements in any order. If select.sql has such an "
    "aggregate, add ORDER BY to it and run: syncer apply",
    Cause.ROUNDED: "A sum of floating-point numbers depends on their order in the last digits. To have it exact, sum "
    "numeric values in select.sql, as in: sum(c.score::numeric), and run: syncer apply",
}


def advice(cause: Cause | None, document: Document) -> str:
    """What to do about a document that differs for this cause."""
    return _ADVICE[cause].format(name=document.name, index=document.index_name)
