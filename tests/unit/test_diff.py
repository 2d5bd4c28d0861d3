"""Drift is found to the field, by value and not by spelling."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from syncer.documents.queries import Row
from syncer.elasticsearch.reader import Copy
from syncer.verify.diff import TOO_DEEP, Cause, Difference, Drift, DriftKind, compare
from syncer.verify.meaning import Meaning

POST = {"title": "t", "n": 1, "user": {"id": 7}, "comments": [{"age": 3}, {"age": 4}]}


def copy(source: str | dict[str, Any], id_: str = "1", routing: str | None = None) -> Copy:
    """A copy as Elasticsearch holds it."""
    text = source if isinstance(source, str) else json.dumps(source)
    return Copy(id=id_, version=5, routing=routing, json=msgspec.Raw(text.encode()))


def row(source: str | dict[str, Any], routing: str | None = None) -> Row:
    """A document as Postgres says it."""
    text = source if isinstance(source, str) else json.dumps(source)
    return Row(source=text.encode(), routing=routing)


def drifts(expected: dict[str, Row], *copies: Copy, values: bool = True) -> list[Drift]:
    """What differs."""
    return list(compare(expected, copies, values=values))


def differences(expected: str | dict[str, Any], indexed: str | dict[str, Any]) -> tuple[Difference, ...]:
    """What differs within one document."""
    drifted = drifts({"1": row(expected)}, copy(indexed))
    return drifted[0].differences if drifted else ()


@pytest.mark.parametrize(
    ("expected", "indexed", "is_equal"),
    [
        ('{"a": 1, "b": 2}', '{"b":2,"a":1}', True),
        ('{"a": 1.0}', '{"a": 1.00}', True),
        ('{"a": 100}', '{"a": 1e2}', True),
        ('{"a": "é"}', '{"a": "\\u00e9"}', True),
        ('{"a": 9007199254740993}', '{"a": 9007199254740992}', False),
        ('{"a": 0.12345678901234567891}', '{"a": 0.12345678901234567892}', False),
        ('{"a": 1%s}' % ("0" * 5000), '{"a": 2%s}' % ("0" * 5000), False),
        ('{"a": true}', '{"a": 1}', False),
        ('{"a": null}', "{}", False),
        ('{"a": "1"}', '{"a": 1}', False),
        ('{"a": []}', '{"a": {}}', False),
        ('{"a": [1]}', '{"a": 1}', False),
    ],
)
def test_values_are_compared_and_not_their_spelling(expected: str, indexed: str, *, is_equal: bool) -> None:
    """Not as floats, nor as Python does: long numbers, truth and null are what they are."""
    assert [difference.path for difference in differences(expected, indexed)] == ([] if is_equal else ["a"])


def test_what_differs_is_named() -> None:
    """By its path, with both values; fields and elements that only one side has, too."""
    indexed = {"title": "t", "n": 1, "user": {"id": 7, "secret": "x"}, "comments": [{"age": 5}]}
    (drift,) = drifts({"1": row(POST)}, copy(indexed))
    assert (drift.kind, drift.version) == (DriftKind.DIFFERENT, 5)
    assert drift.differences == (
        Difference(path="comments[0].age", postgres="3", elasticsearch="5"),
        Difference(path="comments[1]", postgres='{"age": 4}'),
        Difference(path="user.secret", elasticsearch='"x"'),
    )
    assert "4" not in repr(drifts({"1": row(POST)}, copy(indexed), values=False)[0].differences)


def test_long_values_and_many_differences_are_cut() -> None:
    """A report does not grow with the documents."""
    expected, indexed = ({str(name): letter * 9999 for name in range(99)} for letter in "xy")
    (drift,) = drifts({"1": row(expected)}, copy(indexed))
    assert len(drift.differences) == 20
    assert max(len(value.postgres or "") for value in drift.differences) == 80


@pytest.mark.parametrize("opening", ['{"a":', "["])
def test_documents_may_be_nested_deep(opening: str) -> None:
    """What differs is found some 900 levels deep; deeper, that it differs; where, depends on the version of Python."""
    closing = "]" if opening == "[" else "}"
    for levels in (900, 5000):
        deep = [f'{{"b":{opening * levels}{leaf}{closing * levels}}}' for leaf in (1, 1, 2)]
        assert differences(deep[0], deep[1]) == ()
        (difference,) = differences(deep[0], deep[2])
        assert (difference.path != TOO_DEEP) or levels > 900
        (difference,) = differences(deep[0], '{"b":[1]}')
        assert difference.path == "b" or opening == "[" or levels > 900


def test_every_place_is_looked_at() -> None:
    """A copy elsewhere is misplaced, beside the right one or instead of it; others are missing, or extra."""
    right, wrong = copy(POST, routing="7"), copy(POST, routing="8")
    for copies in ((right, wrong), (wrong, right), (wrong,)):
        (drift,) = drifts({"1": row(POST, routing="7")}, *copies)
        assert (drift.kind, drift.routing) == (DriftKind.MISPLACED, "8")
    assert drifts({"1": row(POST, routing="7")}, right) == []
    assert drifts({"1": row(POST, routing="")}, copy(POST)) == []
    kinds = {drift.id: drift.kind for drift in drifts({"1": row(POST)}, copy(POST, "2"))}
    assert kinds == {"1": DriftKind.MISSING, "2": DriftKind.EXTRA}


@pytest.mark.parametrize(
    ("expected", "indexed", "cause"),
    [
        ({"tags": ["a", "b"]}, {"tags": ["b", "a"]}, Cause.REORDERED),
        ({"tags": [{"x": 1, "y": [1, 2]}, {"x": 2}]}, {"tags": [{"x": 2}, {"y": [2, 1], "x": 1}]}, Cause.REORDERED),
        ({"names": "Ann, Bo; Cy"}, {"names": "Cy; Ann, Bo"}, Cause.REORDERED),
        ({"names": "12"}, {"names": "21"}, None),
        ({"names": "2026-12-01"}, {"names": "2026-01-12"}, None),
        ({"tags": ["a", "a"]}, {"tags": ["a"]}, None),
        ({"tags": ["1"]}, {"tags": [1]}, None),
        ({"tags": True}, {"tags": 1}, None),
        ({"tags": None}, {}, None),
        ({"tags": ["a", "b"], "title": "x"}, {"tags": ["b", "a"], "title": "y"}, None),
        # The last of some fifteen digits, of numbers alone.
        ({"sum": 0.6000000000000001}, {"sum": 0.6}, Cause.ROUNDED),
        (
            {"a": {"sum": 1e300}, "b": [-0.3]},
            {"a": {"sum": 1.0000000000000001e300}, "b": [-0.30000000000000004]},
            Cause.ROUNDED,
        ),
        ({"sum": 1000000.01}, {"sum": 1000000.02}, None),
        ({"sum": 12345678901}, {"sum": 12345678902}, None),
        ({"sum": "0.6000000000000001"}, {"sum": "0.6"}, None),
        ({"sum": 0.6000000000000001, "n": 1}, {"sum": 0.6, "n": 2}, None),
        ({"sum": 0.1}, {"sum": None}, None),
    ],
)
def test_a_harmless_cause_is_given_only_if_nothing_else_differs(
    expected: dict[str, Any], indexed: dict[str, Any], cause: Cause | None
) -> None:
    """Another order of the same elements, or rounding: real drift gets neither."""
    (drift,) = compare({"1": row(expected)}, [copy(indexed)])
    assert drift.cause is cause


@pytest.mark.parametrize(
    ("mapping", "shown", "indexed", "is_alike"),
    [
        ({"type": "scaled_float", "scaling_factor": 100}, Decimal("19.99"), "19.990000000000002", True),
        ({"type": "scaled_float", "scaling_factor": 100}, Decimal("19.99"), "20", False),
        ({"type": "long"}, "not a number", 0, False),
        ({"type": "date"}, "infinity", 0, False),
        ({"type": "date"}, "20260101", "2026-01-01", False),
        ({"type": "date"}, 10**30, 10**30, True),
        ({"type": "date", "format": "epoch_second||epoch_millis"}, "1970-01-21T12:18:43Z", 1772323, True),
        ({"type": "date", "format": "epoch_millis||epoch_second"}, "1970-01-21T12:18:43Z", 1772323, False),
    ],
)
def test_a_value_means_what_its_field_reads(
    mapping: dict[str, Any], shown: object, indexed: object, *, is_alike: bool
) -> None:
    """What a type does not read stays as it is."""
    meaning = Meaning({"properties": {"a": mapping}})
    assert (meaning.of({"a": shown}) == meaning.of({"a": indexed})) is is_alike
