"""A change keeps every digit and every character on its way through the topic."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, strategies as st

from syncer.model import Change, Operation

FIELDS: dict[str, Any] = {
    "id": 1,
    "changed_at": 1700000000.25,
    "relation": "public.posts",
    "operation": "U",
    "old": {"id": 2},
    "new": {"id": 3},
}

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))  # as Postgres has them
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**70), max_value=2**70)
    | st.decimals(allow_nan=False, allow_infinity=False, places=12)
    | TEXTS
)
IMAGES = st.dictionaries(TEXTS, VALUES, max_size=4)


def record(**fields: Any) -> bytes:
    """A record's value as the relay writes it: Postgres writes a numeric as a JSON number with all its digits."""
    numbers: dict[str, str] = {}

    def mark(value: Any) -> Any:
        if isinstance(value, Decimal):
            numbers[token := f"\ue000{len(numbers)}\ue000"] = format(value, "f")
            return token
        return {key: mark(one) for key, one in value.items()} if isinstance(value, dict) else value

    text = json.dumps(mark({**FIELDS, **fields}), ensure_ascii=False)
    for token, digits in numbers.items():
        text = text.replace(f'"{token}"', digits)
    return text.encode("utf-8", "surrogatepass")


def test_a_change_is_read_as_it_was_written() -> None:
    """Every field arrives, and the images that exist in the order old, new."""
    assert Change.parse(record()) == Change(
        id=1,
        changed_at=1700000000.25,
        relation="public.posts",
        operation=Operation.UPDATE,
        images=({"id": 2}, {"id": 3}),
    )


@pytest.mark.parametrize(
    ("operation", "old", "new", "images"),
    [
        ("I", None, {"id": 1}, ({"id": 1},)),
        ("D", {"id": 1}, None, ({"id": 1},)),
        ("T", None, None, ()),
        ("U", {}, {"id": 1}, ({}, {"id": 1})),
        ("U", None, {"id": 1}, ()),
        ("U", {"id": 1}, None, ()),
    ],
)
def test_images_that_do_not_exist_are_left_out(operation: str, old: Any, new: Any, images: tuple[Any, ...]) -> None:
    """An insert has no old image, a delete no new one, a TRUNCATE none, nor half an UPDATE; an empty one is one."""
    change = Change.parse(record(operation=operation, old=old, new=new))
    assert change.operation is Operation(operation)
    assert change.images == images


@given(old=IMAGES, new=IMAGES)
def test_no_value_changes_on_its_way(old: dict[str, Any], new: dict[str, Any]) -> None:
    """What goes to jsonb_populate_recordset is what the outbox wrote, to the last digit."""
    images = [old, new]
    dumped = json.loads(Change.dump_images([Change.parse(record(old=old, new=new))]), parse_float=Decimal)
    assert len(dumped) == len(images)
    for written, read in zip(images, dumped, strict=True):
        assert [(key, repr(value)) for key, value in read.items()] == [
            (key, repr(value)) for key, value in written.items()
        ]


@pytest.mark.parametrize("number", [2**53 + 1, -(2**63), 2**63 - 1, 10**40])
def test_a_big_integer_is_no_float(number: int) -> None:
    """A key beyond what a float can hold is still the same key."""
    change = Change.parse(record(new={"id": number}))
    assert change.images[1]["id"] == number
    assert str(number) in Change.dump_images([change])


@pytest.mark.parametrize("digits", ["0.1", "1.00", "12345678901234567890.123456789012345678901", "-0.000000000001"])
def test_a_decimal_keeps_its_digits(digits: str) -> None:
    """A numeric key is never rounded, and keeps its scale."""
    change = Change.parse(record(new={"id": Decimal(digits)}))
    assert str(change.images[1]["id"]) == str(Decimal(digits))
    assert digits.lstrip("-") in Change.dump_images([change]) or "E" in str(Decimal(digits))


def test_the_images_of_all_changes_are_dumped_together() -> None:
    """One array holds every image of every change, in order; none is an empty array."""
    changes = [Change.parse(record(operation="D", old={"id": one}, new=None)) for one in range(3)]
    assert json.loads(Change.dump_images(changes)) == [{"id": 0}, {"id": 1}, {"id": 2}]
    assert Change.dump_images([]) == "[]"


GARBAGE = {
    "nothing": b"",
    "words": b"hello",
    "cut_off": record()[:-5],
    "not_utf8": b"\xff\xfe\xfa{}",
    "a_number": b"1",
    "a_list": b"[]",
    "null": b"null",
    "a_string": b'"x"',
    "an_empty_object": b"{}",
    "unknown_operation": record(operation="X"),
    "no_operation": record(operation=None),
    "time_in_words": record(changed_at="yesterday"),
    "no_time": record(changed_at=None),
    "a_list_for_a_time": record(changed_at=[]),
    "an_image_that_is_none": record(new=5),
    "a_relation_that_is_a_number": record(relation=7),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_a_value_error(garbage: bytes) -> None:
    """What is not a change is refused as such, whatever it is instead."""
    with pytest.raises(ValueError, match=r"."):
        Change.parse(garbage)


@given(
    st.binary(max_size=60)
    | st.recursive(VALUES, lambda inner: st.lists(inner, max_size=3)).map(
        lambda value: json.dumps(value, default=str).encode()
    )
)
def test_no_garbage_raises_anything_else(garbage: bytes) -> None:
    """The worker has to know one error only."""
    with pytest.raises(ValueError, match=r"."):
        Change.parse(garbage)


@pytest.mark.parametrize("field", FIELDS)
def test_a_missing_field_is_a_value_error(field: str) -> None:
    """A record that lacks a field is not a change, and the field is named."""
    text = json.dumps({name: value for name, value in FIELDS.items() if name != field})
    with pytest.raises(ValueError, match=field):
        Change.parse(text.encode())
