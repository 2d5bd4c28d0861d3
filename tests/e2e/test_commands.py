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

from syncer.monitoring.doctor import CHECKS
from tests.faults.harness import following, needs_kafka
from tests.support.world import BLOG_SCHEMA, NOT_PARSED, REPOSITORY, World, wait_until

BLOG = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com'), (3, 'Alice John', 'alice@john.com');
INSERT INTO posts (id, user_id, title, body) VALUES
    (2, 1, 'Relationships', 'long'), (4, 3, 'are cool', 'short'), (5, 3, 'to the last', 'post');
INSERT INTO comments (id, post_id, name, comment) VALUES (1, 2, 'Alice White', 'More'), (2, 2, 'Bob', 'Less');
"""
FAR_AHEAD = 1 << 62
"""A version that no assign reaches: whatever was written with it stays."""


def status(world: World, *, code: int) -> dict[str, Any]:
    """What ``syncer status --json`` prints."""
    printed: dict[str, Any] = json.loads(world.prints("status", "--json", code=code))
    return printed


def test_the_first_hour(empty_world: World) -> None:
    """migrate, apply, run, status and verify take a plain database to documents that follow it."""
    world = empty_world
    world.sql(BLOG_SCHEMA.read_text() + BLOG)
    assert "applied 0001" in world.prints("migrate")
    assert "current" in world.prints("migrate")

    applied = world.prints("apply", "--yes")
    assert f"blogpost → {world.alias}" in applied
    assert "3 written" in applied
    assert world.differences() == []
    assert "Nothing to do" in world.prints("apply")

    idle = status(world, code=1)
    assert idle["leader"] is None
    assert idle["problems"][0]["message"] == idle["headline"] == "No daemon is running."
    daemon = world.daemon()
    daemon.wait_for("relay.led")
    world.sql("UPDATE users SET name = 'John Doe' WHERE id = 1; DELETE FROM posts WHERE id = 5")
    world.wait_until_level()
    wait_until(lambda: world.syncer("status").returncode == 0, what="all is well")
    assert "at work" in world.prints("status")
    led = status(world, code=0)
    assert led.keys() == idle.keys()
    assert (led["status"], led["problems"], led["documents"][0]["targets"]) == ("well", [], {world.index_of(): 2})
    assert led["totals"]["handled"] == led["totals"]["published"] >= led["totals"]["captured"]
    documented = set(re.findall(r"`(\w+)`", (REPOSITORY / "docs" / "json.md").read_text()))
    items = (led, led["documents"][0], led["daemons"][0], led["servers"][0], idle["problems"][0])
    assert {name for item in items for name in item} - documented == set()

    assert "equal their SELECT" in world.prints("verify")
    daemon.process.send_signal(signal.SIGINT)
    assert daemon.exit_code() == 0  # which it is not, if a component has not ended in time
    assert [event["failed"] for event in daemon.events("daemon.stopped")] == [False]


@pytest.fixture
def drifted(world: World) -> World:
    """A world whose index was edited by hand: post 2 lost, 4 changed for good, and one put in."""
    world.sql(BLOG)
    with following(world) as follower:
        follower.drain()
    with world.elasticsearch() as client:
        changed = {**world.expected()["4"], "title": "edited by hand"}
        client.delete(index=world.alias, id="2")
        client.index(index=world.alias, id="4", document=changed, version=FAR_AHEAD, version_type="external")
        client.index(index=world.alias, id="77", document={"title": "of another client"})
    return world


def test_verify_names_every_kind_of_drift_and_repairs(drifted: World) -> None:
    """Missing, different, one too many: each is named, values only if they are asked for; what can be is repaired."""
    (report,) = json.loads(drifted.prints("verify", "blogpost", "--json", code=1))
    assert (report["holds"], report["is_complete"], report["documents"]) == (False, True, 3)
    assert {(drift["id"], drift["kind"], drift["cause"]) for drift in report["drifts"]} == {
        ("2", "missing", None),
        ("4", "different", "foreign_ahead"),
        ("77", "extra", "foreign"),
    }
    printed = drifted.prints("verify", code=1)
    assert [words for words in ("2 missing", "4 different title", "77 extra", "--repair") if words not in printed] == []
    assert "edited by hand" not in json.dumps(report) + printed
    assert '"edited by hand" in the index' in drifted.prints("verify", "--values", code=1)

    (report,) = json.loads(drifted.prints("verify", "--repair", "--json", code=1))
    assert sorted(drift["id"] for drift in report["repaired"]) == ["2", "77"]
    assert [(drift["id"], drift["cause"]) for drift in report["drifts"]] == [("4", "foreign_ahead")]
    with drifted.elasticsearch() as client:
        client.delete(index=drifted.alias, id="4", version=FAR_AHEAD + 1, version_type="external")
    drifted.sql("DELETE FROM posts WHERE id = 4")
    assert "2 documents equal their SELECT" in drifted.prints("verify", "--repair")
    loaded = json.loads(drifted.prints("backfill", "blogpost", "--json"))
    assert (loaded["document"], loaded["job"]["state"], loaded["job"]["dead_lettered"]) == ("blogpost", "done", 0)


def test_a_document_is_applied_alone(world: World) -> None:
    """The others stay as they are and captured, though one has changed and another is broken."""
    world.define("writer", "SELECT u.id AS _id, u.email FROM users AS u")
    world.apply()
    captures_before = world.sql("SELECT * FROM syncer.capture WHERE relation <> 'public.posts'")
    world.edit_file("p.title,", "upper(p.title) AS title,")
    (world.config / "documents" / "writer" / "select.sql").write_text("SELECT u.id AS _id FROM users AS u")
    world.define("broken", "SELECT nonsense")
    assert "writer" not in world.prints("--config", str(world.config), "apply", "blogpost", "--yes")
    assert world.sql("SELECT name, revision FROM syncer.document ORDER BY 1") == [("blogpost", 2), ("writer", 1)]
    assert world.sql("SELECT * FROM syncer.capture WHERE relation <> 'public.posts'") == captures_before
    assert world.syncer("apply", "--yes").returncode == 1
    (world.config / "documents" / "broken" / "document.yaml").write_text(f"index: {world.alias}\n")
    assert "share the index" in world.syncer("apply", "broken", "--yes").stderr


def test_dead_letters_are_listed_and_retried(world: World) -> None:
    """One that is not fixed remains; what a mapping fixed by hand allows is written; fixed data needs no command."""
    world.sql(BLOG)
    world.daemon()
    world.sql("UPDATE posts SET created = 'infinity' WHERE id <> 5")
    wait_until(lambda: world.sql("SELECT count(*) FROM syncer.dead_letter") == [(2,)], what="two are dead-lettered")
    listed = json.loads(world.prints("dead-letters", "list", "--limit", "1", "--json"))
    assert (listed["letters"], [kind["kind"] for kind in listed["kinds"]]) == (2, [NOT_PARSED])
    assert [letter["id"] for letter in listed["shown"]] == ["2"]
    printed = world.prints("dead-letters", "list", "blogpost")
    assert "failed to parse field [created]" in printed
    assert "infinity" not in printed, "what a field holds is not for everybody"
    assert "1 dead letter of" in world.prints("dead-letters", "retry", "blogpost", "2", code=1)
    world.prints("status", code=1)

    with world.elasticsearch() as client:
        body = json.loads((world.document_folder / "index.json").read_text())["mappings"]["properties"]
        lenient = {"created": {**body["created"], "ignore_malformed": True}}
        client.indices.put_mapping(index=world.index_of(), properties=lenient)
    assert "1 written" in world.prints("dead-letters", "retry", "blogpost", "2")
    world.sql("UPDATE posts SET created = now() WHERE id = 4")
    wait_until(lambda: "There are no dead letters" in world.prints("dead-letters", "list"), what="the other is cleared")
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
            while chunk := os.read(screen, 65536):
                shown += chunk
    os.close(screen)
    return process.returncode, shown.decode("utf-8", "replace")


def test_a_no_changes_nothing(world: World) -> None:
    """On a terminal apply asks; it goes on only after a yes."""
    world.edit_file('"title":', '"more": {"type": "long"}, "title":', file="index.json")
    for answer, code, revision in (("n", 1, 1), ("y", 0, 2)):
        ended, shown = on_a_terminal(world, answer, "apply")
        assert (ended, "Apply?" in shown) == (code, True), shown
        assert world.sql("SELECT revision FROM syncer.document") == [(revision,)]


# plan and doctor

AWAY = {
    "postgres": {"SYNCER_POSTGRES_DSN": "postgresql://postgres@127.0.0.1:9/absent"},
    "kafka": {"SYNCER_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9"},
    "elasticsearch": {"SYNCER_ELASTICSEARCH_URL": "http://127.0.0.1:9"},
}


def plan(world: World, *arguments: str, code: int = 0) -> str:
    """What plan prints, which needs no Kafka; it must exit with this code."""
    return world.prints("plan", *arguments, code=code, environment=AWAY["kafka"])


def test_a_definition_that_is_new_and_then_wrong(empty_world: World) -> None:
    """It needs neither migrate nor Kafka; what a mapping rejects is an error, and what Postgres refuses."""
    world = empty_world
    world.sql(BLOG_SCHEMA.read_text() + BLOG + "ANALYZE;")
    printed = plan(world)
    assert "syncer migrate" in printed
    assert f"blogpost → {world.alias}: new index, 3 documents" in printed
    paths = dict(line.strip().split(maxsplit=4)[3:5] for line in printed.splitlines() if "a change of" in line)
    assert paths["public.users"].startswith("up to 2 documents, ")
    assert paths["public.comments"] == "1 document, by its post_id"
    assert world.sql("SELECT to_regnamespace('syncer')") == [(None,)]
    previewed = json.loads(plan(world, "--json"))
    (document,) = previewed["documents"]
    assert (document["outcome"], document["documents"]) == ("new", 3)
    assert (previewed["has_errors"], previewed["has_warnings"], previewed["is_migrated"]) == (False, True, False)
    page = (REPOSITORY / "docs" / "json.md").read_text()
    assert [name for name in (*previewed, *document, *document["tables"][0]) if f"`{name}`" not in page] == []

    world.migrate()
    world.sql("ALTER TABLE users ALTER name TYPE varchar(90)")  # which Postgres compares as text
    size = "(SELECT count(*) FROM users AS o WHERE o.name = p.title) AS size,"
    world.edit_file("p.tags,", f"p.tags, {size}")
    error, *tables = plan(world, code=1).splitlines()
    used = [line.strip().rpartition(", ")[2] for line in tables if "a change of public.users" in line]
    assert {*used} == {"by users.id = posts.user_id", "by users.name = posts.title"}
    assert error.startswith("Error in blogpost: 3 of 3 sampled documents are rejected, for example ")
    assert "dynamic introduction of [size]" in error
    world.edit_file(f"p.tags, {size}", "p.tilte,")
    refused = json.loads(plan(world, "--json", code=1))
    assert (refused.keys(), refused["documents"][0].keys()) == (previewed.keys(), document.keys())
    assert (refused["documents"][0]["outcome"], refused["documents"][0]["problems"][0]["severity"]) == (None, "refused")
    assert "tilte" in refused["documents"][0]["problems"][0]["message"]


@needs_kafka
def test_from_an_empty_database_each_fix_leads_on_until_nothing_is_wrong(empty_world: World) -> None:
    """The doctor asks for `migrate`, then for `apply`, and then nothing is wrong; a command can be pasted unbroken."""
    world = empty_world
    world.sql(BLOG_SCHEMA.read_text())
    for command, says in (["migrate"], "      Run: syncer migrate\n"), (["apply", "--yes"], "      syncer apply\n"):
        assert says in world.prints("doctor", code=1)
        world.prints(*command)
    report = json.loads(world.prints("doctor", "--json"))
    assert (report["is_well"], report["wrong"], report["unseen"]) == (True, 0, 0)
    assert {finding["id"] for finding in report["findings"]} == {check.id for check in CHECKS}
    assert "The topic has one replica" in world.syncer("doctor").stdout
    with world.elasticsearch() as client:
        client.indices.put_settings(index=world.index_of(), settings={"index.gc_deletes": "60s"})
    printed = world.prints("doctor", code=1, environment={"COLUMNS": "80"})
    assert f"""      PUT /{world.index_of()}/_settings\n      {{"index.gc_deletes": "3600s"}}\n""" in printed


@needs_kafka
def test_a_server_that_is_down_does_not_prevent_the_checks_of_the_others(shared_world: World) -> None:
    """It is named, as is each of several."""
    for down in (["postgres"], ["kafka"], ["elasticsearch"], list(AWAY)):
        away = {name: value for server in down for name, value in AWAY[server].items()}
        findings = json.loads(shared_world.prints("doctor", "--json", code=1, environment=away))["findings"]
        reach = {finding["id"]: finding["severity"] for finding in findings if finding["id"].endswith(".reach")}
        wrong = {id_ for id_, severity in reach.items() if severity == "wrong"}
        assert wrong == {f"{server}.reach" for server in down}
        well = {finding["id"].partition(".")[0] for finding in findings if finding["severity"] == "well"}
        assert well == AWAY.keys() - set(down)
