"""A document that is written to several shards is counted once, by what all of them answer."""

from __future__ import annotations

from typing import Any

import pytest

from syncer.index import BulkOutcome, _judge
from syncer.model import Composition

DONE = {"status": 200}
CREATED = {"status": 201}
ABSENT = {"status": 404, "result": "not_found"}
NEWER = {"status": 409, "error": {"type": "version_conflict_engine_exception", "reason": "newer"}}
AWAY = {"status": 503, "error": {"type": "unavailable_shards_exception", "reason": "away"}}
BAD = {"status": 400, "error": {"type": "document_parsing_exception", "reason": "bad"}}

WRITTEN: dict[str, tuple[list[dict[str, Any]], str]] = {
    "one_shard": ([CREATED], "indexed"),
    "nothing_elsewhere": ([DONE, ABSENT, ABSENT], "indexed"),
    "moved": ([CREATED, DONE, ABSENT], "indexed"),
    "something_newer_here": ([NEWER, ABSENT], "superseded"),
    "something_newer_elsewhere": ([CREATED, ABSENT, NEWER], "superseded"),
}
REJECTED: dict[str, tuple[list[dict[str, Any]], list[int]]] = {
    "the_document": ([BAD, ABSENT, DONE], [400]),
    "the_delete_elsewhere": ([CREATED, ABSENT, AWAY], [503]),
    "the_delete_elsewhere_of_what_is_superseded": ([NEWER, AWAY], [503]),
    "both": ([BAD, AWAY, ABSENT], [400, 503]),
}


def judged(items: list[dict[str, Any]], source: bytes | None = b"{}") -> BulkOutcome:
    """What becomes of a document that was answered so."""
    outcome = BulkOutcome()
    _judge(Composition(id="1", version=1, source=source, routing="r"), items, outcome)
    return outcome


@pytest.mark.parametrize(("items", "counted"), WRITTEN.values(), ids=WRITTEN.keys())
def test_a_document_is_one_document(items: list[dict[str, Any]], counted: str) -> None:
    """However many shards answer, one number grows by one."""
    expected = BulkOutcome()
    setattr(expected, counted, 1)
    assert judged(items) == expected


def test_a_delete_everywhere_is_one_delete() -> None:
    """Absent here and deleted there, it is a deleted document."""
    assert judged([ABSENT, DONE, ABSENT], source=None) == BulkOutcome(deleted=1)


@pytest.mark.parametrize(("items", "statuses"), REJECTED.values(), ids=REJECTED.keys())
def test_a_shard_that_refuses_rejects_the_document(items: list[dict[str, Any]], statuses: list[int]) -> None:
    """A document is not called written while any shard has not taken it, its delete or something newer."""
    outcome = judged(items)
    assert [one.status for one in outcome.rejections] == statuses
    assert {one.composition.id for one in outcome.rejections} == {"1"}
    assert (outcome.indexed, outcome.deleted, outcome.superseded) == (0, 0, 0)
