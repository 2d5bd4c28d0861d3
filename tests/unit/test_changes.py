"""A change keeps every character on its way through the topic, as a document does; what is none is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from syncer.base.model import Change, Image, Operation, dump_images
from syncer.documents.queries import one_line

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


@pytest.mark.parametrize(
    ("operation", "old", "new", "images"),
    [
        ("I", None, {"id": "1"}, ({"id": "1"},)),
        ("D", {"id": "1"}, None, ({"id": "1"},)),
        ("T", None, None, ()),
        ("U", {"id": "2"}, {"id": "3"}, ({"id": "2"}, {"id": "3"})),
        ("U", {}, {"id": "1"}, ({}, {"id": "1"})),
        ("U", None, {"id": "1"}, ()),
        ("U", {"id": "1"}, None, ()),
    ],
)
def test_images_that_do_not_exist_are_left_out(operation: str, old: Any, new: Any, images: tuple[Any, ...]) -> None:
    """An insert has no old image, a delete no new one, a TRUNCATE none, nor half an UPDATE; an empty one is one."""
    assert Change.parse(record(operation=operation, old=old, new=new)) == Change(
        id=1, changed_at=1700000000.25, relation="public.posts", operation=Operation(operation), images=images
    )


@given(old=IMAGES, new=IMAGES)
def test_no_value_changes_on_its_way(old: Image, new: Image) -> None:
    """What is asked about is what the outbox has, to the last character; images of all changes are in one array."""
    changes = [Change.parse(record(old=old, new=new)), Change.parse(record(operation="D", old=new, new=None))]
    assert [json.loads(dump_images(change.images)) for change in changes] == [[old, new], [new]]


@pytest.mark.parametrize(
    "garbage",
    [
        *(b"", b"hello", record()[:-5], b"\xff\xfe\xfa{}", b"1", b"[]", b"null", b"{}"),
        *(
            json.dumps({name: value for name, value in FIELDS.items() if name != omitted}).encode()
            for omitted in FIELDS
        ),
        *(record(operation="X"), record(operation=None), record(changed_at="yesterday"), record(relation=7)),
        *(record(new=5), record(new={"id": 5}), record(new={"id": [[]]})),
        *(record(new={"id": "\0"}), record(new={"\0": None})),
    ],
)
def test_garbage_is_a_value_error(garbage: bytes) -> None:
    """What is not a change is refused as such, whatever it is instead."""
    with pytest.raises(ValueError, match="not a change"):
        Change.parse(garbage)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(value=JSON, indent=st.sampled_from([None, 1, "\t"]), ascii_only=st.booleans())
def test_one_line_is_the_same_json(value: Any, indent: int | str | None, *, ascii_only: bool) -> None:
    """However JSON is laid out, it has the same contents on one line; a json column keeps an application's breaks."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    line = one_line(text)
    assert b"\n" not in line
    assert b"\r" not in line
    assert json.loads(line.decode("utf-8", "surrogatepass")) == value
    assert json.loads(one_line(b'{\r\n "a": "x\\ny",\r "b": 1\n}')) == {"a": "x\ny", "b": 1}
