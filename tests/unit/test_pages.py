"""What is cut into pages loses nothing, and no page is larger than it may be."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from elasticsearch import Elasticsearch
from hypothesis import given, strategies as st

from syncer.base.model import Composition, Target
from syncer.documents.queries import one_line
from syncer.elasticsearch.bulk import BulkOutcome, Index, _lines, _Task

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
COMPOSITIONS = st.lists(st.none() | st.integers(min_value=0, max_value=300), max_size=40).map(
    lambda lengths: [
        Composition(id=str(at), version=1, source=None if length is None else b"x" * length)
        for at, length in enumerate(lengths)
    ]
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


def size(part: list[_Task]) -> int:
    """The bytes of a request."""
    return sum(len(task.lines) for task in part)


@given(compositions=COMPOSITIONS, bytes_max=st.integers(min_value=1, max_value=1000))
def test_a_bulk_request_is_bounded(compositions: list[Composition], bytes_max: int) -> None:
    """No request is larger than allowed, unless a document is; none is empty, and no two would have been one."""
    with Elasticsearch("http://127.0.0.1:9") as client:
        index = Index(client, bulk_bytes_max=bytes_max)
        cut = list(index._parts(index._tasks(Target.of("blog", 1), compositions, BulkOutcome())))
    assert [task.composition for part in cut for task in part] == compositions
    assert all(part for part in cut)
    assert all(size(part) <= bytes_max or len(part) == 1 for part in cut)
    assert all(size(part) + size(following[:1]) > bytes_max for part, following in pairwise(cut))


def test_deletes_on_other_shards_count_towards_the_bound() -> None:
    """A document without contents of its own loads a request with what it sends to the other shards."""
    deletion = Composition(id="1", version=1, source=None, routing="")
    assert len(_lines(deletion, ("a", "b", "c"))) > 3 * len(_lines(deletion, ()))
