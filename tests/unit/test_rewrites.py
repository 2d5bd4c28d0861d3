"""How far an offset counts, after Kafka has taken back what it had acknowledged."""

from __future__ import annotations

import pytest

from syncer.rewrites import Rewrite, Rewrites

THREE = Rewrites(
    (
        Rewrite(mark="a", partition=0, begins=50),
        Rewrite(mark="b", partition=1, begins=10),
        Rewrite(mark="c", partition=0, begins=70),
    )
)


@pytest.mark.parametrize(
    ("partition", "mark", "until"),
    [
        pytest.param(0, "c", 100, id="all of them were known"),
        pytest.param(0, "b", 70, id="the last was not known"),
        pytest.param(1, "b", 100, id="what was not known is of another partition"),
        pytest.param(0, "a", 70, id="of two, one is of another partition"),
        pytest.param(0, "", 50, id="none was known: the first of the partition counts"),
        pytest.param(0, "gone", 50, id="a mark of a time that Postgres no longer has counts as none"),
        pytest.param(2, "", 100, id="the partition was never taken back"),
    ],
)
def test_an_offset_counts_until_a_rewrite_that_was_not_known(partition: int, mark: str, until: int) -> None:
    """It counts no further than where the lowest of them begins."""
    assert THREE.true_until(partition, 100, mark) == until


def test_no_offset_is_raised() -> None:
    """Who is not that far yet goes on where he was, and who has committed nothing begins as ever."""
    assert THREE.true_until(0, 20, "") == 20
    assert THREE.true_until(0, -1001, "") == -1001


def test_without_rewrites_there_is_no_mark() -> None:
    """The mark is the last one's."""
    assert Rewrites().mark == ""
    assert THREE.mark == "c"
