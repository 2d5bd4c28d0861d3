"""What a bulk request says is what was composed; a document on several shards is counted once, by what all answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from syncer.base.model import Composition
from syncer.elasticsearch.bulk import BulkOutcome, _lines, _settle

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
    "something_newer_here": ([NEWER, ABSENT], "skipped"),
    "something_newer_elsewhere": ([CREATED, ABSENT, NEWER], "skipped"),
}
REJECTED: dict[str, tuple[list[dict[str, Any]], list[int]]] = {
    "the_document": ([BAD, ABSENT, DONE], [400]),
    "the_delete_elsewhere": ([CREATED, ABSENT, AWAY], [503]),
    "the_delete_elsewhere_of_what_is_skipped": ([NEWER, AWAY], [503]),
    "both": ([BAD, AWAY, ABSENT], [400, 503]),
}


def judged(items: list[dict[str, Any]], source: bytes | None = b"{}") -> BulkOutcome:
    """What becomes of a document that was answered so."""
    outcome = BulkOutcome()
    _settle(Composition(id="1", version=1, source=source, routing="r"), items, outcome)
    return outcome


@pytest.mark.parametrize(("items", "counted"), WRITTEN.values(), ids=WRITTEN.keys())
def test_a_document_is_one_document(items: list[dict[str, Any]], counted: str) -> None:
    """However many shards answer, it has one result."""
    assert judged(items).done == {"1": counted}


def conflict(version: int) -> dict[str, Any]:
    """The answer to a write that met a version."""
    reason = f"[1]: version conflict, current version [{version}] is higher or equal"
    return {"status": 409, "error": {"reason": reason}}


@pytest.mark.parametrize(("version", "newer"), [(256, 0), (257, 257), (513, 513)])
def test_a_version_that_another_client_may_have_raised_says_nothing(version: int, newer: int) -> None:
    """Its own, or one in a gap: what is there may be older, so the document is written again."""
    own = Composition(id="1", version=256, source=b"{}", routing="r")
    outcome = BulkOutcome()
    _settle(own, [conflict(version), ABSENT], outcome)
    assert outcome == BulkOutcome(unsure=[own], newer_version=newer)


def test_a_newer_version_is_a_success() -> None:
    """A later write is there."""
    assert judged([conflict(512), ABSENT]) == BulkOutcome(done={"1": "skipped"}, newer_version=512)


def test_a_delete_everywhere_is_one_delete() -> None:
    """Absent here and deleted there, it is a deleted document."""
    assert judged([ABSENT, DONE, ABSENT], source=None) == BulkOutcome(done={"1": "deleted"})


@pytest.mark.parametrize(("items", "statuses"), REJECTED.values(), ids=REJECTED.keys())
def test_a_shard_that_refuses_rejects_the_document(items: list[dict[str, Any]], statuses: list[int]) -> None:
    """A document is not called written while any shard has not taken it, its delete or something newer."""
    outcome = judged(items)
    assert [one.status for one in outcome.rejections] == statuses
    assert {one.composition.id for one in outcome.rejections} == {"1"}
    assert outcome.done == {}


IDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
COMPOSITIONS = st.builds(
    Composition,
    id=IDS,
    version=st.integers(min_value=1, max_value=(1 << 63) - 1),
    source=st.none() | st.just(b'{"title": "x"}'),
    routing=st.none() | st.just("") | IDS,
)


@given(one=COMPOSITIONS, elsewhere=st.lists(IDS, max_size=3))
def test_lines_say_what_was_composed(one: Composition, elsewhere: list[str]) -> None:
    """Whatever characters an id or a routing has, each operation is one line that says it, with its version."""
    meta = {"_id": one.id, "version": one.version, "version_type": "external"}
    own = meta | ({"routing": one.routing} if one.routing else {})
    expected: list[Any] = [{"delete": own}] if one.source is None else [{"index": own}, json.loads(one.source)]
    expected += [{"delete": meta | {"routing": routing}} for routing in elsewhere]
    lines = _lines(one, elsewhere)
    assert [json.loads(line) for line in lines.splitlines()] == expected
    assert lines.endswith(b"\n")
