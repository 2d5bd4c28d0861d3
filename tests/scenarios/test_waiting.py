"""Waiting for one's own write: what can be waited for, what cannot, and what is said of it."""

from __future__ import annotations

import json
import socket
import time
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import psycopg
import pytest

import syncer
from syncer.base.errors import TokenError, WaitTimeoutError
from syncer.verify.wait import Waiter
from tests.faults.test_waiting import committed
from tests.scenarios.test_dead_letters import POSTS, USER
from tests.support.world import DEADLINE_SECONDS, World, wait_until

UPDATE = "UPDATE posts SET title = %s WHERE id = 1"


@pytest.fixture
def blog(world: World) -> World:
    """Twenty posts, whose changes are not yet published."""
    world.sql(USER)
    world.sql(POSTS)
    return world


def follow(world: World, token: str) -> None:
    """Turn a relay and a worker until a transaction is there."""

    def turn() -> bool:
        relay.run_once()
        worker.run_once()
        try:
            waiter.wait(token, timeout_seconds=0.01)
        except WaitTimeoutError:
            return False
        return True

    with (
        Waiter(world.settings) as waiter,
        world.index() as index,
        world.relay() as relay,
        world.worker(index) as worker,
    ):
        wait_until(turn, what="the transaction is there")


def test_what_cannot_be_waited_for_is_said(blog: World) -> None:
    """Nonsense, the future, what is open, what was rolled back, another life of the database: each has its words."""
    token = committed(blog, UPDATE, "later")
    xid, _, life = token.partition(".")
    with Waiter(blog.settings) as waiter:
        for nonsense in ("", "nonsense", "2", "-5", "1" * 21, f"{xid}.xyz", f"{xid} OR true", "\0"):
            with pytest.raises(TokenError, match="is no token"):
                waiter.wait(nonsense)
        with pytest.raises(TokenError, match="No transaction 99999999999 has begun"):
            waiter.wait("99999999999")
        with pytest.raises(TokenError, match="another database than this one"):
            waiter.wait(f"{xid}.{'0' * 8 if life != '0' * 8 else '1' * 8}")
        with psycopg.connect(blog.dsn) as connection:
            connection.execute(UPDATE, ("open",))
            [(open_,)] = connection.execute("SELECT syncer.token()").fetchall()
            with pytest.raises(TokenError, match="is not committed as yet"):
                waiter.wait(open_)
            connection.rollback()
            with pytest.raises(TokenError, match="was rolled back"):
                waiter.wait(open_)


def test_what_no_document_reads_is_not_waited_for(blog: World) -> None:
    """A transaction that changes no watched column is there at once, though no daemon runs."""
    with Waiter(blog.settings) as waiter:
        waited = waiter.wait(committed(blog, "UPDATE posts SET views = views + 1"), timeout_seconds=0)
    assert (waited.is_captured, waited.is_complete) == (False, True)


def test_what_could_not_be_written_is_said(blog: World) -> None:
    """Its own documents that are dead-lettered, and no others; documents that are suspended."""
    follow(blog, committed(blog, UPDATE, "first"))
    committed(blog, "UPDATE posts SET created = 'infinity' WHERE id = 7")
    mine = committed(blog, "UPDATE posts SET created = 'infinity' WHERE id = 8")
    well = committed(blog, UPDATE, "fine")
    follow(blog, well)
    with Waiter(blog.settings) as waiter:
        waited = waiter.wait(mine)
        assert ([letter.id for letter in waited.dead_lettered], waited.is_complete) == (["8"], False)
        assert waiter.wait(well).is_complete
        blog.sql("UPDATE syncer.document SET suspended = 'for a test', stale_since = now(), loaded_at = NULL")
        assert waiter.wait(well).suspended == ("blogpost",)


def test_the_command_says_what_is_waited_for(blog: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In words, as JSON and in Python; exit code 1 if it is not there in time, with where it hangs and what to do."""
    token = committed(blog, UPDATE, "mine")
    late = blog.syncer("wait", token, "--timeout", "0.1")
    assert late.returncode == 1
    assert "no daemon leads, which would read it" in late.stderr
    assert "syncer run" in late.stderr
    with blog.relay() as relay:
        relay.run_once()
    assert "the workers have not handled it" in blog.syncer("wait", token, "--timeout", "0.1").stderr
    blog.daemon()
    done = blog.syncer("wait", token, "--searchable", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["is_complete"]
    assert "is indexed, after" in blog.syncer("wait", token).stdout
    assert blog.syncer("wait", token, "--timeout", "nan").returncode in (1, 2)
    for name, value in blog.environment.items():
        if name.startswith("SYNCER_"):
            monkeypatch.setenv(name, value)
    assert syncer.wait(token, timeout_seconds=60).is_complete


def test_an_application_waits_over_http(blog: World) -> None:
    """The daemon answers once it is indexed; and with the words of an error if there is nothing to wait for."""
    token = committed(blog, UPDATE, "mine")
    daemon = blog.daemon(environment={"SYNCER_WEB_PORT": "0"})
    address = daemon.wait_for("web.listening")["address"]

    def asked(query: str) -> tuple[int, dict[str, Any]]:
        try:
            with urlopen(f"{address}/api/wait?{query}", timeout=DEADLINE_SECONDS) as answer:  # noqa: S310 - our own daemon
                return answer.status, json.load(answer)
        except HTTPError as error:
            with error:
                return error.code, json.load(error)

    status, said = asked(f"token={token}&timeout=25&searchable=true")
    assert (status, said["is_complete"], said["is_searchable"], said["dead_lettered"]) == (200, True, True, 0)
    assert asked("token=nonsense")[0] == asked("")[0] == asked(f"token={token}&timeout=99")[0] == 400
    assert "is no token" in asked("token=nonsense")[1]["message"]


def test_an_application_needs_one_grant_for_its_token(blog: World) -> None:
    """A role that may do nothing in the schema syncer but name it gets a token."""
    role = f"application_{blog.name}"
    blog.sql(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA syncer TO {role}")
    try:
        with psycopg.connect(blog.dsn) as connection:
            connection.execute(f"SET ROLE {role}")
            assert connection.execute("SELECT syncer.token()").fetchone() is not None
    finally:
        blog.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_wait_ends_though_elasticsearch_hangs(blog: World) -> None:
    """The error comes soon after the timeout, and names the server."""
    token = committed(blog, UPDATE, "later")
    follow(blog, token)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        there = {"url": f"http://127.0.0.1:{deaf.getsockname()[1]}"}
        elasticsearch = blog.settings.elasticsearch.model_copy(update=there)
        began = time.monotonic()
        with (
            Waiter(blog.settings.model_copy(update={"elasticsearch": elasticsearch})) as waiter,
            pytest.raises(WaitTimeoutError, match="cannot be reached") as late,
        ):
            waiter.wait(token, timeout_seconds=0.1, searchable=True)
        assert time.monotonic() - began < 40
    assert late.value.component == "servers"
