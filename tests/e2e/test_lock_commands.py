"""``syncer locks``: which locks are held, by whom, and what breaking them does."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from elasticsearch import Elasticsearch

from syncer.locks import LockLostError, Locks, edits
from syncer.sandbox import Endpoints
from tests.support import preloaded
from tests.support.locking import pair_index, set_pair, values
from tests.support.world import DEADLINE_SECONDS, wait_until


@pytest.fixture
def index(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An index with two documents that are equal; each is a page of its own."""
    monkeypatch.setattr(edits, "PAGE_EDITS_MAX", 1)
    with pair_index(endpoints.elasticsearch_url) as name:
        yield name


def syncer(endpoints: Endpoints, *arguments: str) -> tuple[int, str]:
    """Run a command; return its exit code and its output."""
    environment = {**os.environ, "SYNCER_ELASTICSEARCH_URL": endpoints.elasticsearch_url, "COLUMNS": "160"}
    done = preloaded.run("locks", *arguments, environment=environment, seconds=3 * DEADLINE_SECONDS)
    return done.returncode, done.stdout + done.stderr


def test_locks_are_listed_and_broken(endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unfinished change of a holder is shown and rolled back; the holder, which is alive, is told."""
    where = ("--index", f"{index}-locks")
    with Elasticsearch(endpoints.elasticsearch_url, request_timeout=60) as client, ExitStack() as block:
        first, second = (Locks(client, owner=name, index=f"{index}-locks", lease_seconds=60) for name in "ab")
        block.enter_context(pytest.raises(LockLostError))
        block.enter_context(second.documents(index, ["x"]))
        block.enter_context(pytest.raises(LockLostError))
        held = block.enter_context(first.tree("/a [b]"))
        with monkeypatch.context() as patched:
            patched.setattr(edits, "write", lambda *_, **__: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                set_pair(held, index, 7)

        code, output = syncer(endpoints, "list", *where, "--json")
        listed = json.loads(output)
        ids = {holder["owner"]: holder["id"] for holder in listed["holders"]}
        assert code == 0
        assert {(lock["name"], lock["mode"], lock["holder"]) for lock in listed["locks"]} == {
            ("tree files /", "shared", ids["a"]),
            ("tree files /a [b]", "exclusive", ids["a"]),
            (f"document {index} x", "exclusive", ids["b"]),
        }
        code, output = syncer(endpoints, "list", *where)
        assert (code, "tree files /a [b]" in output) == (0, True)

        code, output = syncer(endpoints, "break", "a", *where)
        assert (code, "holds 2 locks; its unfinished change will be rolled back" in output) == (2, True)
        assert syncer(endpoints, "break", ids["a"][:8], *where, "--yes")[0] == 0
        assert values(client, index) == (0, 0)
        wait_until(lambda: held._is_over, what="the holder has noticed")
        assert syncer(endpoints, "break", "b", *where, "--yes")[0] == 0
        code, output = syncer(endpoints, "list", *where)
        assert (code, output) == (0, "No locks are held.\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("break", "nobody"), "There is no holder 'nobody'"),
        (("break", ""), "There is no holder ''"),
        (("break", "x", "--index", "nowhere"), "There is no index nowhere"),
    ],
)
def test_nonsense_is_explained(endpoints: Endpoints, index: str, arguments: tuple[str, ...], message: str) -> None:
    """Nothing is broken, and the message says what is wrong."""
    with Elasticsearch(endpoints.elasticsearch_url, request_timeout=60) as client:
        where = () if "--index" in arguments else ("--index", f"{index}-locks")
        with Locks(client, owner="a", index=f"{index}-locks").everything():
            code, output = syncer(endpoints, *arguments, *where)
    assert code != 0
    assert message in output
