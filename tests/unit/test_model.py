"""A change keeps every character on its way through the topic."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from syncer.base.model import Change, Image, Operation

FIELDS: dict[str, Any] = {
    "id": 1,
    "changed_at": 1700000000.25,
    "relation": "public.posts",
    "operation": "U",
    "old": {"id": "2"},
    "new": {"id": "3"},
}

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))  # as Postgres has them
IMAGES = st.dictionaries(TEXTS, st.none() | TEXTS, max_size=4)


def record(**fields: Any) -> bytes:
    """A record's value as the relay writes it."""
    return json.dumps({**FIELDS, **fields}, ensure_ascii=False).encode("utf-8", "surrogatepass")


def test_a_change_is_read_as_it_was_written() -> None:
    """Every field arrives, and the images that exist in the order old, new."""
    assert Change.parse(record()) == Change(
        id=1,
        changed_at=1700000000.25,
        relation="public.posts",
        operation=Operation.UPDATE,
        images=({"id": "2"}, {"id": "3"}),
    )


@pytest.mark.parametrize(
    ("operation", "old", "new", "images"),
    [
        ("I", None, {"id": "1"}, ({"id": "1"},)),
        ("D", {"id": "1"}, None, ({"id": "1"},)),
        ("T", None, None, ()),
        ("U", {}, {"id": "1"}, ({}, {"id": "1"})),
        ("U", None, {"id": "1"}, ()),
        ("U", {"id": "1"}, None, ()),
    ],
)
def test_images_that_do_not_exist_are_left_out(operation: str, old: Any, new: Any, images: tuple[Any, ...]) -> None:
    """An insert has no old image, a delete no new one, a TRUNCATE none, nor half an UPDATE; an empty one is one."""
    change = Change.parse(record(operation=operation, old=old, new=new))
    assert change.operation is Operation(operation)
    assert change.images == images


@given(old=IMAGES, new=IMAGES)
def test_no_value_changes_on_its_way(old: Image, new: Image) -> None:
    """What is asked about is what the outbox has, to the last character."""
    assert json.loads(Change.dump_images([Change.parse(record(old=old, new=new))])) == [old, new]


def test_the_images_of_all_changes_are_dumped_together() -> None:
    """One array holds every image of every change, in order; none is an empty array."""
    changes = [Change.parse(record(operation="D", old={"id": one}, new=None)) for one in "012"]
    assert json.loads(Change.dump_images(changes)) == [{"id": "0"}, {"id": "1"}, {"id": "2"}]
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
    "an_image_with_a_number": record(new={"id": 5}),
    "an_image_that_is_nested": record(new={"id": [[]]}),
    "a_zero_byte": record(new={"id": "\0"}),
    "a_zero_byte_in_a_name": record(new={"\0": None}),
    "a_relation_that_is_a_number": record(relation=7),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_a_value_error(garbage: bytes) -> None:
    """What is not a change is refused as such, whatever it is instead."""
    with pytest.raises(ValueError, match=r"."):
        Change.parse(garbage)


@given(
    st.binary(max_size=60)
    | st.recursive(st.none() | st.booleans() | st.integers() | TEXTS, lambda inner: st.lists(inner, max_size=3)).map(
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
