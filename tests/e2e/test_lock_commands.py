"""``syncer locks``: who holds what, whether it moves, and what breaking its locks does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from typer.testing import CliRunner

from syncer import lock_commands
from syncer.locks import Recovery
from syncer.sandbox import Endpoints
from tests.harness import DEADLINE_SECONDS, REPOSITORY, wait_until
from tests.locking.owners import fail_at, lockers, stall
from tests.locking.pair import pair_index, set_pair, values

OTHER_LEASE = 5.0
"""Which is how long is watched; longer than Elasticsearch stands still as a rule."""


@pytest.fixture
def index(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An index with two documents that are equal; each is a page of its own."""
    monkeypatch.setattr("syncer.locks.held._PAGE_CHANGES_MAX", 1)
    with pair_index(endpoints.elasticsearch_url) as name:
        yield name


def syncer(endpoints: Endpoints, *arguments: str, answer: str = "") -> tuple[int, str]:
    """The exit code, and all that is said."""
    done = subprocess.run(
        [sys.executable, "-m", "syncer", "locks", *arguments],
        env={**os.environ, "SYNCER_ELASTICSEARCH_URL": endpoints.elasticsearch_url, "COLUMNS": "160"},
        cwd=REPOSITORY,
        input=answer,
        capture_output=True,
        text=True,
        timeout=3 * DEADLINE_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("recovery", "found"), [(Recovery.FINISH, (7, 7)), (Recovery.ROLL_BACK, (0, 0))])
def test_locks_are_listed_and_broken(
    endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch, recovery: Recovery, found: tuple[int, ...]
) -> None:
    """What its holder has left half done is said, and finished or rolled back, as asked."""
    where = ("--index", f"{index}-locks")
    with lockers(endpoints, index) as (first, second):
        fail_at(monkeypatch, first._fence, "write", KeyboardInterrupt(), turn=2)
        with pytest.raises(KeyboardInterrupt), first.tree("/a [b]") as held:
            set_pair(held, index, 7)
        with second.documents(index, ["x"]) as other:
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
            assert holders["second"]["term"] >= other.term

        code, said = syncer(endpoints, "list", *where)
        assert code == 0
        assert "tree files /a [b]" in said
        assert "whoever takes the locks finishes or rolls back" in said

        asked = ("break", "first", *where, "--changes", recovery.value)
        code, said = syncer(endpoints, *asked, answer="n\n")
        assert code == 1
        assert f"2 documents of {index}, or has left that half done; such as left, right" in said
        assert values(first._client, index) == (7, 0)
        code, said = syncer(endpoints, *asked, answer="y\n")
        assert code == 0
        assert values(first._client, index) == found
        assert syncer(endpoints, "list", *where) == (0, "Nobody holds a lock.\n")


def test_a_holder_that_moves_is_told_from_one_that_does_not(endpoints: Endpoints, index: str) -> None:
    """By the clock of who watches, for as long as the longest lease."""
    with lockers(endpoints, index, other_lease=OTHER_LEASE) as (first, second), first.everything(), second.tree("/a"):
        stall(first)

        def has_the_other_moved() -> bool:
            _, said = syncer(endpoints, "list", "--index", f"{index}-locks", "--watch", "--json")
            states = {one["owner"]: one["state"] for one in json.loads(said)["holders"]}
            still = re.fullmatch(r"still for (\d+\.\d) s", states["first"])
            assert still, states
            assert float(still[1]) >= OTHER_LEASE
            return str(states["second"]).startswith("moved ")

        # If Elasticsearch stands still while it is watched, nobody moves.
        wait_until(has_the_other_moved, what="who renews his lease is seen to move")


def test_what_is_left_of_who_was_killed_idle_is_shown_and_removed(endpoints: Endpoints, index: str) -> None:
    """It holds nothing, and would be in no list; who moves is not among them."""
    where = ("--index", f"{index}-locks")
    with lockers(endpoints, index, other_lease=OTHER_LEASE) as (first, second):
        stall(first)

        def is_only_the_first_shown() -> bool:
            code, said = syncer(endpoints, "list", "--watch", *where)
            assert code == 0
            idle, _, _ = said.partition("Nobody holds a lock.")
            return f"a lease: first ({first._lease.id.rpartition(':')[2][:8]}). " in idle

        wait_until(is_only_the_first_shown, what="who does not move is shown, and nobody else")
        code, said = syncer(endpoints, "break", "first", *where, "--yes")
        assert (code, "it holds nothing any more" in said) == (0, True)
        assert first._registry.holders.look(first._lease.id) is None
        assert second._registry.holders.look(second._lease.id) is not None


def test_who_leaves_while_he_is_watched_is_not_listed(
    endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are his locks; who comes meanwhile is, with his."""
    watched = lock_commands._watched
    monkeypatch.setenv("SYNCER_ELASTICSEARCH_URL", endpoints.elasticsearch_url)
    monkeypatch.setattr("syncer.telemetry.configure", lambda *_, **__: None)
    with ExitStack() as staying, ExitStack() as leaving:
        first, _ = leaving.enter_context(lockers(endpoints, index))
        leaving.enter_context(first.tree("/a"))

        def leave(*arguments: Any) -> Any:
            leaving.close()
            other, _ = staying.enter_context(lockers(endpoints, index))
            staying.enter_context(other.tree("/b"))
            return watched(*arguments)

        monkeypatch.setattr(lock_commands, "_watched", leave)
        monkeypatch.setattr(lock_commands, "_WATCHED_SECONDS_MAX", 0)
        done = CliRunner().invoke(
            lock_commands.app, ["list", "--watch", "--index", f"{index}-locks"], env={"COLUMNS": "160"}
        )
    assert done.exit_code == 0, done.exception
    assert "/b" in done.stdout
    assert "/a" not in done.stdout
    assert "left" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("break", "nobody"), "There is no holder 'nobody'"),
        (("break", ""), "There is no holder ''"),
        (("break", "x", "--index", "nowhere"), "There is no index nowhere"),
        (("break", "x", "--changes", "both"), "'both' is none of these"),
    ],
)
def test_nonsense_is_explained(endpoints: Endpoints, index: str, arguments: tuple[str, ...], said: str) -> None:
    """Nothing is broken, and what to do is said."""
    with lockers(endpoints, index):
        where = () if "--index" in arguments else ("--index", f"{index}-locks")
        code, told = syncer(endpoints, *arguments, *where)
    assert code != 0
    assert said in told
