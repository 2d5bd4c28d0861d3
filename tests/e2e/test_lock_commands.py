"""``syncer locks``: who holds what, whether it moves, and what breaking its locks does."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from syncer.sandbox import Endpoints
from tests.support import preloaded
from tests.support.locking.owners import fail_at, lockers, stall
from tests.support.locking.pair import pair_index, set_pair, values
from tests.support.world import DEADLINE_SECONDS, wait_until

OTHER_LEASE = 5.0
"""Longer than Elasticsearch pauses as a rule."""


@pytest.fixture
def index(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An index with two documents that are equal; each is a page of its own."""
    monkeypatch.setattr("syncer.locks.held._PAGE_CHANGES_MAX", 1)
    with pair_index(endpoints.elasticsearch_url) as name:
        yield name


def syncer(endpoints: Endpoints, *arguments: str) -> tuple[int, str]:
    """The exit code, and all that is said."""
    environment = {**os.environ, "SYNCER_ELASTICSEARCH_URL": endpoints.elasticsearch_url, "COLUMNS": "160"}
    done = preloaded.run("locks", *arguments, environment=environment, seconds=3 * DEADLINE_SECONDS)
    return done.returncode, done.stdout + done.stderr


def test_locks_are_listed_and_broken(endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its holder has left half done is said, and rolled back."""
    where = ("--index", f"{index}-locks")
    with lockers(endpoints, index) as (first, second):
        fail_at(monkeypatch, first._fence, "write", KeyboardInterrupt(), turn=2, ever=True)
        with pytest.raises(KeyboardInterrupt), first.tree("/a [b]") as held:
            set_pair(held, index, 7)
        with second.documents(index, ["x"]):
            code, said = syncer(endpoints, "list", *where, "--json")
            listed = json.loads(said)
            holders = {one["owner"]: one for one in listed["holders"]}
            assert code == 0
            assert {(one["name"], one["mode"], one["holder"]) for one in listed["locks"]} == {
                ("tree files /", "shared", holders["first"]["id"]),
                ("tree files /a [b]", "exclusive", holders["first"]["id"]),
                (f"document {index} x", "exclusive", holders["second"]["id"]),
            }
            assert holders["first"]["intent"]["pages"] == 2

        code, said = syncer(endpoints, "list", *where)
        assert code == 0
        assert "tree files /a [b]" in said

        asked = ("break", "first", *where)
        code, said = syncer(endpoints, *asked)
        assert code == 2
        assert f"2 documents of {index}; such as left, right" in said
        assert values(first._client, index) == (7, 0)
        code, said = syncer(endpoints, *asked, "--yes")
        assert code == 0
        assert values(first._client, index) == (0, 0)
        code, said = syncer(endpoints, "list", *where)
        assert (code, said.startswith("No locks are held.\n")) == (0, True)


def test_a_holder_that_was_killed_idle_is_shown_and_removed(endpoints: Endpoints, index: str) -> None:
    """It holds nothing; the time of its last renewal stands still, that of a live holder does not."""
    where = ("--index", f"{index}-locks")
    with lockers(endpoints, index, other_lease=OTHER_LEASE) as (first, second):

        def renewed() -> dict[str, str]:
            code, said = syncer(endpoints, "list", "--json", *where)
            assert code == 0
            return {one["owner"]: one["renewed"] for one in json.loads(said)["holders"]}

        stall(first)
        before = renewed()
        wait_until(lambda: renewed()["second"] > before["second"], what="the live holder renews its lease")
        assert renewed()["first"] == before["first"]
        code, said = syncer(endpoints, "break", "first", *where, "--yes")
        assert (code, "it holds nothing any more" in said) == (0, True)
        assert first._registry.holders.look(first._lease.id) is None
        assert second._registry.holders.look(second._lease.id) is not None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("break", "nobody"), "There is no holder 'nobody'"),
        (("break", ""), "There is no holder ''"),
        (("break", "x", "--index", "nowhere"), "There is no index nowhere"),
    ],
)
def test_nonsense_is_explained(endpoints: Endpoints, index: str, arguments: tuple[str, ...], said: str) -> None:
    """Nothing is broken, and what to do is said."""
    with lockers(endpoints, index):
        where = () if "--index" in arguments else ("--index", f"{index}-locks")
        code, told = syncer(endpoints, *arguments, *where)
    assert code != 0
    assert said in told
