"""The commands, as a person or a script uses them: what they print, what they leave, how they exit."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest

from tests.support.world import BLOG_SCHEMA, REPOSITORY, World, wait_until

BLOG = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com'), (3, 'Alice John', 'alice@john.com');
INSERT INTO posts (id, user_id, title, body) VALUES
    (2, 1, 'Relationships', 'long'), (4, 3, 'are cool', 'short'), (5, 3, 'to the last', 'post');
INSERT INTO comments (id, post_id, name, comment) VALUES (1, 2, 'Alice White', 'More'), (2, 2, 'Bob', 'Less');
"""
FAR_AHEAD = 1 << 62
"""A version that no assign reaches: whatever was written with it stays."""


def done(world: World, *arguments: str, code: int = 0) -> str:
    """What a command prints; it must exit with this code and print no error."""
    finished = world.syncer(*arguments)
    assert finished.returncode == code, finished.stdout + finished.stderr
    assert "Error" not in finished.stderr
    assert "Traceback" not in finished.stderr
    return finished.stdout


def status(world: World, *, code: int) -> dict[str, Any]:
    """What ``syncer status --json`` prints."""
    printed: dict[str, Any] = json.loads(done(world, "status", "--json", code=code))
    return printed


def test_the_first_hour(empty_world: World) -> None:
    """migrate, apply, run, status and verify take a plain database to documents that follow it."""
    world = empty_world
    world.sql(BLOG_SCHEMA.read_text() + BLOG)
    assert "applied 0001" in done(world, "migrate")
    assert "current" in done(world, "migrate")

    applied = done(world, "apply", "--yes")
    assert f"blogpost → {world.alias}" in applied
    assert "3 written" in applied
    assert world.differences() == []
    assert "Nothing to do" in done(world, "apply")

    idle = status(world, code=1)
    assert idle["leader"] is None
    assert idle["problems"][0]["message"] == idle["headline"] == "No daemon is running."
    daemon = world.daemon()
    daemon.wait_for("relay.led")
    world.sql("UPDATE users SET name = 'John Doe' WHERE id = 1; DELETE FROM posts WHERE id = 5")
    world.wait_until_level()
    wait_until(lambda: world.syncer("status").returncode == 0, what="all is well")
    assert "at work" in done(world, "status")
    led = status(world, code=0)
    assert led.keys() == idle.keys()
    assert (led["status"], led["problems"], led["documents"][0]["targets"]) == ("well", [], {world.index_of(): 2})
    assert led["totals"]["handled"] == led["totals"]["published"] >= led["totals"]["captured"]
    documented = set(re.findall(r"^\| `(\w+)` \|", (REPOSITORY / "docs" / "json.md").read_text(), re.MULTILINE))
    parts = (led, led["documents"][0], led["daemons"][0], led["servers"][0], idle["problems"][0])
    assert {name for part in parts for name in part} - documented == set()

    assert "equal their SELECT" in done(world, "verify")
    daemon.process.send_signal(signal.SIGINT)
    assert daemon.exit_code() == 0  # which it is not, if a component has not ended in time
    assert [event["failed"] for event in daemon.events() if event["event"] == "daemon.stopped"] == [False]


@pytest.fixture
def drifted(world: World) -> World:
    """A world whose index was edited by hand: post 2 lost, 4 changed for good, and one put in."""
    world.sql(BLOG)
    with world.index() as index, world.relay() as relay, world.worker(index) as worker:
        world.drain(relay, worker)
    with world.elasticsearch() as client:
        changed = {**world.expected()["4"], "title": "edited by hand"}
        client.delete(index=world.alias, id="2")
        client.index(index=world.alias, id="4", document=changed, version=FAR_AHEAD, version_type="external")
        client.index(index=world.alias, id="77", document={"title": "of another client"})
    return world


def test_verify_names_every_kind_of_drift_and_repairs(drifted: World) -> None:
    """A document that is missing, one too many, one with another field: each is named, and the exit code is 1."""
    (report,) = json.loads(done(drifted, "verify", "blogpost", "--json", code=1))
    assert (report["holds"], report["is_complete"], report["documents"]) == (False, True, 3)
    assert {(drift["id"], drift["kind"], drift["cause"]) for drift in report["drifts"]} == {
        ("2", "missing", None),
        ("4", "different", "foreign_ahead"),
        ("77", "extra", "foreign"),
    }
    assert {drift["version"] for drift in report["drifts"] if drift["id"] == "4"} == {FAR_AHEAD}

    printed = done(drifted, "verify", code=1)
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    for start in ("2 missing", "4 different title", "77 extra"):
        assert any(line.startswith(start) for line in lines), printed
    assert "syncer verify blogpost --repair" in printed
    assert "syncer index rebuild blogpost" in printed
    # Values are shown only if they are asked for.
    assert "edited by hand" not in json.dumps(report) + printed
    (report,) = json.loads(done(drifted, "verify", "--values", "--json", code=1))
    (changed,) = [drift for drift in report["drifts"] if drift["id"] == "4"]
    assert changed["differences"] == [{"path": "title", "postgres": '"are cool"', "elasticsearch": '"edited by hand"'}]

    (report,) = json.loads(done(drifted, "verify", "--repair", "--json", code=1))
    assert sorted(drift["id"] for drift in report["repaired"]) == ["2", "77"]
    assert [(drift["id"], drift["cause"]) for drift in report["drifts"]] == [("4", "foreign_ahead")]
    with drifted.elasticsearch() as client:
        client.delete(index=drifted.alias, id="4", version=FAR_AHEAD + 1, version_type="external")
    drifted.sql("DELETE FROM posts WHERE id = 4")
    assert "2 documents equal their SELECT" in done(drifted, "verify", "--repair")
    loaded = json.loads(done(drifted, "backfill", "blogpost", "--json"))
    assert (loaded["document"], loaded["job"]["state"], loaded["job"]["dead_lettered"]) == ("blogpost", "done", 0)


def test_a_document_is_applied_alone(world: World) -> None:
    """The others stay as they are and captured, though one has changed and another is broken."""
    world.define("writer", "SELECT u.id AS _id, u.email FROM users AS u")
    world.apply()
    before = world.sql("SELECT * FROM syncer.capture WHERE relation <> 'public.posts'")
    select = world.document_folder / "select.sql"
    select.write_text(select.read_text().replace("p.title,", "upper(p.title) AS title,"))
    (world.config / "documents" / "writer" / "select.sql").write_text("SELECT u.id AS _id FROM users AS u")
    world.define("broken", "SELECT nonsense")
    assert "writer" not in done(world, "--config", str(world.config), "apply", "blogpost", "--yes")
    assert world.sql("SELECT name, revision FROM syncer.document ORDER BY 1") == [("blogpost", 2), ("writer", 1)]
    assert world.sql("SELECT * FROM syncer.capture WHERE relation <> 'public.posts'") == before
    assert world.syncer("apply", "--yes").returncode == 1
    (world.config / "documents" / "broken" / "document.yaml").write_text(f"index: {world.alias}\n")
    assert "share the index" in world.syncer("apply", "broken", "--yes").stderr


def test_dead_letters_are_listed_and_retried(world: World) -> None:
    """One that is not fixed remains; what a mapping fixed by hand allows is written; fixed data needs no command."""
    world.sql(BLOG)
    world.daemon()
    world.sql("UPDATE posts SET created = 'infinity' WHERE id <> 5")
    wait_until(lambda: world.sql("SELECT count(*) FROM syncer.dead_letter") == [(2,)], what="two are dead-lettered")
    listed = json.loads(done(world, "dead-letters", "list", "--limit", "1", "--json"))
    assert (listed["letters"], [kind["kind"] for kind in listed["kinds"]]) == (2, ["document_parsing_exception"])
    assert [letter["id"] for letter in listed["shown"]] == ["2"]
    printed = done(world, "dead-letters", "list", "blogpost")
    assert "failed to parse field [created]" in printed
    assert "infinity" not in printed, "what a field holds is not for everybody"
    assert "1 dead letter of" in done(world, "dead-letters", "retry", "blogpost", "2", code=1)
    done(world, "status", code=1)

    with world.elasticsearch() as client:
        body = json.loads((world.document_folder / "index.json").read_text())["mappings"]["properties"]
        lenient = {"created": {**body["created"], "ignore_malformed": True}}
        client.indices.put_mapping(index=world.index_of(), properties=lenient)
    assert "1 written" in done(world, "dead-letters", "retry", "blogpost", "2")
    world.sql("UPDATE posts SET created = now() WHERE id = 4")
    wait_until(lambda: "There are no dead letters" in done(world, "dead-letters", "list"), what="the other is cleared")
    wait_until(lambda: world.syncer("status").returncode == 0, what="all is well")
    assert "has no dead letter 2" in world.syncer("dead-letters", "retry", "blogpost", "2").stderr


def on_a_terminal(world: World, answer: str, *arguments: str) -> tuple[int, str]:
    """The exit code of a command whose question is answered, and what it has shown."""
    screen, inside = pty.openpty()
    environment = {**world.environment, "TERM": "xterm-256color", "COLUMNS": "100"}
    command, shown = [sys.executable, "-m", "syncer", *arguments], b""
    with subprocess.Popen(
        command, env=environment, stdin=inside, stdout=inside, stderr=inside, start_new_session=True
    ) as process:
        os.close(inside)
        os.write(screen, f"{answer}\n".encode())
        with suppress(OSError):  # Linux raises it once the command has ended
            while part := os.read(screen, 65536):
                shown += part
    os.close(screen)
    return process.returncode, shown.decode("utf-8", "replace")


def test_a_no_changes_nothing(world: World) -> None:
    """On a terminal apply asks; it goes on only after a yes."""
    mapping = world.document_folder / "index.json"
    mapping.write_text(mapping.read_text().replace('"title":', '"more": {"type": "long"}, "title":'))
    for answer, code, revision in (("n", 1, 1), ("y", 0, 2)):
        ended, shown = on_a_terminal(world, answer, "apply")
        assert (ended, "Apply?" in shown) == (code, True), shown
        assert world.sql("SELECT revision FROM syncer.document") == [(revision,)]
