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
AWAY = {"status": 503, "error": {"type": "unavailable_shards_exception", "reason": "away"}}
BAD = {"status": 400, "error": {"type": "document_parsing_exception", "reason": "bad"}}


def conflict(version: int) -> dict[str, Any]:
    """The answer to a write that met a version."""
    reason = f"[1]: version conflict, current version [{version}] is higher or equal"
    return {"status": 409, "error": {"reason": reason}}


OWN = Composition(id="1", version=256, source=b"{}", routing="r")
GONE = Composition(id="1", version=256, source=None, routing="r")
ANSWERS: dict[str, tuple[Composition, list[dict[str, Any]], dict[str, Any]]] = {
    "one_shard": (OWN, [CREATED], {"done": {"1": "indexed"}, "created": [OWN]}),
    "moved": (OWN, [CREATED, DONE, ABSENT], {"done": {"1": "indexed"}, "created": [OWN]}),
    "nothing_elsewhere": (OWN, [DONE, ABSENT, ABSENT], {"done": {"1": "indexed"}}),
    "deleted_on_another_shard": (GONE, [ABSENT, DONE, ABSENT], {"done": {"1": "deleted"}}),
    "something_newer_here": (OWN, [conflict(512), ABSENT], {"done": {"1": "skipped"}, "newer_version": 512}),
    "something_newer_elsewhere": (OWN, [DONE, ABSENT, conflict(512)], {"done": {"1": "skipped"}, "newer_version": 512}),
    # Another client may have raised a version to its own, or to one in a gap: what is there may be older.
    "its_own_version": (OWN, [conflict(256), ABSENT], {"unsure": [OWN]}),
    "a_version_in_a_gap": (OWN, [conflict(257), ABSENT], {"unsure": [OWN], "newer_version": 257}),
}
REJECTED: dict[str, tuple[list[dict[str, Any]], list[int]]] = {
    "the_document": ([BAD, ABSENT, DONE], [400]),
    "the_delete_elsewhere": ([DONE, ABSENT, AWAY], [503]),
    "the_delete_elsewhere_of_what_is_skipped": ([conflict(512), AWAY], [503]),
    "both": ([BAD, AWAY, ABSENT], [400, 503]),
}


def judged(composition: Composition, items: list[dict[str, Any]]) -> BulkOutcome:
    """What becomes of a document that was answered so."""
    outcome = BulkOutcome()
    _settle(composition, items, outcome)
    return outcome


@pytest.mark.parametrize(("composition", "items", "outcome"), ANSWERS.values(), ids=ANSWERS.keys())
def test_a_document_is_one_document(
    composition: Composition, items: list[dict[str, Any]], outcome: dict[str, Any]
) -> None:
    """However many shards answer, it has one result."""
    assert judged(composition, items) == BulkOutcome(**outcome)


@pytest.mark.parametrize(("items", "statuses"), REJECTED.values(), ids=REJECTED.keys())
def test_a_shard_that_refuses_rejects_the_document(items: list[dict[str, Any]], statuses: list[int]) -> None:
    """A document is not called written while any shard has not taken it, its delete or something newer."""
    outcome = judged(OWN, items)
    assert [(rejection.composition, rejection.status) for rejection in outcome.rejections] == [
        (OWN, status) for status in statuses
    ]
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
