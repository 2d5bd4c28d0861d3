"""The fewest indexes that serve all lookups of a table."""

from __future__ import annotations

from itertools import combinations, permutations

from hypothesis import given, strategies as st

from syncer.plan.cost import fewest

COLUMNS = st.lists(st.sampled_from("abcde"), min_size=1, max_size=4, unique=True).map(tuple)


def most_apart(lists: list[tuple[str, ...]]) -> int:
    """Of how many lists at most none is the beginning of another: each of these needs an index of its own."""
    sets = sorted({frozenset(one) for one in lists}, key=sorted)
    return max(
        size
        for size in range(len(sets) + 1)
        for some in combinations(sets, size)
        if not any(one < other for one, other in permutations(some, 2))
    )


def test_one_index_serves_its_own_beginnings() -> None:
    """An index on (tenant, post) serves a lookup by tenant; no second index is asked for."""
    assert fewest([("post", "tenant"), ("tenant",)]) == [("tenant", "post")]
    assert fewest([("a",), ("b", "a"), ("c", "b", "a")]) == [("a", "b", "c")]
    assert sorted(fewest([("a", "b"), ("b", "c")])) == [("a", "b"), ("b", "c")]
    assert sorted(fewest([("c",), ("b",), ("a", "c", "d"), ("c", "b")])) == [("b", "c"), ("c", "a", "d")]


@given(st.lists(COLUMNS, max_size=6))
def test_every_lookup_is_the_beginning_of_an_index(lists: list[tuple[str, ...]]) -> None:
    """Whatever is looked up, the columns in some order lead one of the indexes; and no fewer indexes would do."""
    indexes = fewest(lists)
    assert len(indexes) == most_apart(lists)
    for wanted in lists:
        assert any(set(index[: len(wanted)]) == set(wanted) for index in indexes)
