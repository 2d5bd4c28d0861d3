"""A few indexes that serve all lookups of a table."""

from __future__ import annotations

from hypothesis import given, strategies as st

from syncer.apply.preview.cost import few

COLUMNS = st.lists(st.sampled_from("abcde"), min_size=1, max_size=4, unique=True).map(tuple)


def test_one_index_serves_its_own_beginnings() -> None:
    """An index on (tenant, post) serves a lookup by tenant; no second index is asked for."""
    assert few([("post", "tenant"), ("tenant",)]) == [("tenant", "post")]
    assert few([("a",), ("b", "a"), ("c", "b", "a")]) == [("a", "b", "c")]
    assert sorted(few([("a", "b"), ("b", "c")])) == [("a", "b"), ("b", "c")]
    assert sorted(few([("c",), ("b",), ("a", "c", "d"), ("c", "b")])) == [("b", "c"), ("c", "a", "d")]


@given(st.lists(COLUMNS, max_size=6))
def test_every_lookup_is_the_beginning_of_an_index(lists: list[tuple[str, ...]]) -> None:
    """Whatever is looked up, the columns in some order lead one of the indexes."""
    indexes = few(lists)
    for wanted in lists:
        assert any(set(index[: len(wanted)]) == set(wanted) for index in indexes)
