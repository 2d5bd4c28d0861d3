"""The parts of the benchmark of Flink that need no Flink."""

from __future__ import annotations

import json
import struct
from typing import Any

from tests.benchmarks import flink_setup
from tests.benchmarks.flink import comparable

DOCUMENT: dict[str, Any] = {"title": "x", "created": "2024-01-01T00:01:00+00:00", "comments": [{"a": 1}, {"a": 2}]}


def text(value: bytes) -> bytes:
    """A constant of a class file."""
    return struct.pack(">BH", 1, len(value)) + value


def test_a_class_names_the_moved_classes_where_they_are_now() -> None:
    """Also within a signature, and after a constant that counts twice."""
    head, rest = b"\xca\xfe\xba\xbe\0\0\0\x34", b"the rest"
    number, reference = b"\x05" + bytes(8), b"\x07\0\1"

    def made(signature: bytes) -> bytes:
        return head + struct.pack(">H", 5) + text(signature) + number + reference + rest

    before, after = (made(b"(Lorg/elasticsearch/%s/TimeValue;)V" % one) for one in (b"common/unit", b"core"))
    assert flink_setup.renamed(before) == after
    assert flink_setup.renamed(after) == after


def test_the_pins_are_of_the_versions_that_are_named() -> None:
    """After another version they are to be made again."""
    pinned = {one["coordinate"] for one in json.loads(flink_setup.PINS.read_text("utf-8"))}
    assert set(flink_setup.ROOTS) <= pinned


def test_what_a_job_cannot_say_makes_no_difference() -> None:
    """The id as a field, the order of comments, how a moment is written, no list for an empty one."""
    job = {**DOCUMENT, "id": 1, "created": "2024-01-01T00:01:00Z", "comments": DOCUMENT["comments"][::-1]}
    assert comparable(job) == comparable(DOCUMENT)
    assert comparable({**job, "comments": None}) == comparable({**DOCUMENT, "comments": []})
    assert comparable({**job, "title": "y"}) != comparable(DOCUMENT)
