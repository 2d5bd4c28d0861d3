"""``syncer locks``: which locks are held, by which holder, and what breaking them does."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from syncer.elasticsearch.client import open_client
from syncer.locks import LockLostError, Locks, edits
from syncer.sandbox import Endpoints
from tests.support import preloaded
from tests.support.locking import pair_index, set_pair, values
from tests.support.world import DEADLINE_SECONDS


@pytest.fixture
def index(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An index with two documents that are equal; each is a page of its own."""
    monkeypatch.setattr(edits, "PAGE_EDITS_MAX", 1)
    with pair_index(endpoints.elasticsearch_url) as name:
        yield name


def test_locks_are_listed_and_broken(endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unfinished change of a holder is shown and rolled back; the holder, which is alive, notices."""
    index_option = ("--index", f"{index}-locks")
    environment = {**os.environ, **endpoints.environment(), "COLUMNS": "160"}

    def syncer(*arguments: str) -> tuple[int, str]:
        completed = preloaded.run("locks", *arguments, environment=environment, seconds=3 * DEADLINE_SECONDS)
        return completed.returncode, completed.stdout + completed.stderr

    with open_client(endpoints.elasticsearch_url, request_timeout=60) as client, ExitStack() as block:
        # No id begins with one of these letters.
        first, second = (Locks(client, owner=name, index=f"{index}-locks", lease_seconds=600) for name in "xy")
        block.enter_context(pytest.raises(LockLostError))
        block.enter_context(second.documents(index, ["x"]))
        block.enter_context(pytest.raises(LockLostError))
        lock = block.enter_context(first.tree("/a [b]"))
        with monkeypatch.context() as patched:
            patched.setattr(edits, "write", lambda *_, **__: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                set_pair(lock, index, 7)

        code, output = syncer("list", *index_option, "--json")
        listed = json.loads(output)
        ids = {holder["owner"]: holder["id"] for holder in listed["holders"]}
        assert code == 0
        assert {(lock["name"], lock["mode"], lock["holder"]) for lock in listed["locks"]} == {
            ("tree files /", "shared", ids["x"]),
            ("tree files /a [b]", "exclusive", ids["x"]),
            (f"document {index} x", "exclusive", ids["y"]),
        }
        code, output = syncer("list", *index_option)
        assert (code, "tree files /a [b]" in output) == (0, True)
        for nonsense in ("absent", ""):
            code, output = syncer("break", nonsense, *index_option)
            assert (code, f"There is no holder {nonsense!r}" in output) == (1, True)
        assert "There is no index nowhere" in syncer("break", "x", "--index", "nowhere")[1]

        code, output = syncer("break", "x", *index_option)
        assert (code, "holds 2 locks; its unfinished change will be rolled back" in output) == (2, True)
        assert syncer("break", ids["x"][:8], *index_option, "--yes")[0] == 0
        assert values(client, index) == (0, 0)
        assert syncer("break", "y", *index_option, "--yes")[0] == 0
        assert syncer("list", *index_option) == (0, "No locks are held.\n")
