"""The commands, as a person or a script uses them: what they print, what they leave, how they exit."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from tests.support.world import BLOG_SCHEMA, World, wait_until

BLOG = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com'), (3, 'Alice John', 'alice@john.com');
INSERT INTO posts (id, user_id, title, body) VALUES
    (2, 1, 'Relationships', 'long'), (4, 3, 'are cool', 'short'), (5, 3, 'to the last', 'post');
INSERT INTO comments (id, post_id, name, comment) VALUES (1, 2, 'Alice White', 'More'), (2, 2, 'Bob', 'Less');
"""
FAR_AHEAD = 1 << 62
"""A version that no assign reaches: whatever was written with it stays."""
WORD = "xylophone-in-the-row"
"""What no log may show."""


def done(world: World, *arguments: str, code: int = 0) -> str:
    """What a command prints; it must exit with this code and say nothing of an error."""
    finished = world.syncer(*arguments)
    assert finished.returncode == code, finished.stdout + finished.stderr
    assert "Error" not in finished.stderr
    assert "Traceback" not in finished.stderr
    return finished.stdout


def status(world: World, *, code: int) -> dict[str, Any]:
    """What ``syncer status --json`` says."""
    said: dict[str, Any] = json.loads(done(world, "status", "--json", code=code))
    return said


# From nothing to documents that follow


def test_the_first_hour(empty_world: World) -> None:
    """migrate, apply, run, status and verify take a plain database to documents that follow it."""
    world = empty_world
    world.sql(BLOG_SCHEMA.read_text() + BLOG)
    assert "not applied" in done(world, "migrate", "--status", code=1)
    assert "applied 0001" in done(world, "migrate")
    assert "current" in done(world, "migrate")
    assert all(json.loads(done(world, "migrate", "--status", "--json")).values())

    said = done(world, "apply", "--yes")
    assert "blogpost" in said
    assert world.alias in said
    assert "3 written" in said
    assert world.differences() == []
    assert "Nothing to do" in done(world, "apply", "--yes")
    assert "Nothing to do" in done(world, "apply")

    assert status(world, code=1)["leader"] is None
    daemon = world.daemon()
    daemon.wait_for("relay.led")
    world.sql("UPDATE users SET name = 'John Doe' WHERE id = 1; DELETE FROM posts WHERE id = 5")
    world.wait_until_level()
    wait_until(lambda: world.syncer("status").returncode == 0, what="all is well")
    assert "at work" in done(world, "status")
    assert "equal their SELECT" in done(world, "verify")
    assert daemon.stop() == 0
    assert [one["failed"] for one in daemon.events() if one["event"] == "daemon.stopped"] == [False]


def test_status_as_json_has_the_documented_keys(empty_world: World) -> None:
    """A monitor finds the same keys whether a relay leads or not; the exit code says which."""
    world = empty_world
    world.set_up()
    world.sql(BLOG)
    idle = status(world, code=1)
    assert idle.keys() == {
        "at",
        "servers",
        "headline",
        "status",
        "problems",
        "leader",
        "daemons",
        "totals",
        "written_per_second",
        "verifications",
        "lag_seconds",
        "topic_lag_seconds",
        "outbox_waiting",
        "outbox_lag_seconds",
        "workers",
        "topic_waiting",
        "epoch",
        "documents",
        "is_well",
        "jobs",
    }
    assert idle["leader"] is None
    assert idle["problems"][0]["message"] == idle["headline"] == "No daemon is running."
    assert idle["daemons"] == []
    assert idle["is_well"] is False
    assert idle["outbox_waiting"] == 7
    assert idle["outbox_lag_seconds"] > 0
    (document,) = idle["documents"]
    assert document.pop("lag_seconds") == idle["lag_seconds"] >= idle["outbox_lag_seconds"]
    assert document == {
        "name": "blogpost",
        "index": world.alias,
        "revision": 1,
        "is_loaded": True,
        "suspended": None,
        "targets": {f"{world.alias}-000001": 0},
        "roles": {f"{world.alias}-000001": "current"},
        "faults": {},
        "troubles": {},
        "dead_letters": 0,
        "drifted": 0,
        "searched": [f"{world.alias}-000001"],
    }

    daemon = world.daemon()
    daemon.wait_for("relay.led")
    world.wait_until_level()
    wait_until(lambda: level(world) and seen(world).get("is_well") is True, what="nothing waits, and all is well")
    led = status(world, code=0)
    assert led.keys() == idle.keys()
    assert led["is_well"] is True
    assert led["status"] == "well"
    assert led["problems"] == []
    (running,) = led["daemons"]
    assert (running["leads"], running["is_silent"], running["troubles"]) == (True, False, [])
    assert {"relay", "worker-1", "worker-2", "job_worker"} <= set(running["components"])
    assert led["totals"]["handled"] == led["totals"]["published"] >= led["totals"]["captured"] == 7
    assert led["leader"] == {"host": running["host"], "process": running["process"]}
    assert led["epoch"] >= 1
    assert led["documents"][0]["targets"] == {f"{world.alias}-000001": 3}
    assert daemon.stop() == 0
    assert status(world, code=1)["leader"] is None


def seen(world: World) -> dict[str, Any]:
    """What ``syncer status --json`` says now, well or not; nothing, if a server has not answered it in time."""
    said: dict[str, Any] = json.loads(world.syncer("status", "--json").stdout or "{}")
    return said


def level(world: World) -> bool:
    """Whether nothing waits anywhere."""
    said = seen(world)
    return (said.get("outbox_waiting"), said.get("topic_waiting")) == (0, 0)


def test_status_shows_what_waits_for_workers(world: World) -> None:
    """With a relay and no workers, changes pile up in the topic, and status says how many."""
    relay = world.daemon("--only", "relay")
    relay.wait_for("relay.led")
    assert not [one for one in relay.events() if one["event"].startswith("worker.")]
    world.sql(BLOG)
    wait_until(lambda: seen(world).get("topic_waiting") == 7, what="7 wait")
    said = status(world, code=1)
    assert said["outbox_waiting"] == 0
    assert said["workers"] == 0
    assert world.held() == {}

    workers = world.daemon("--only", "workers")
    world.wait_until_level()
    wait_until(lambda: level(world), what="nothing waits")
    assert not [one for one in workers.events() if one["event"].startswith("relay.")]
    assert workers.stop() == 0
    assert relay.stop() == 0


def test_status_is_not_well_with_a_dead_letter(world: World) -> None:
    """A dead-lettered document makes the exit code 1 although a relay leads, and is counted.

    The log shows no value of it.
    """
    world.sql("ALTER TABLE comments ALTER age TYPE bigint")
    world.apply()
    world.sql(BLOG)
    daemon = world.daemon()
    world.wait_until_level()
    world.sql("UPDATE comments SET age = 5")
    world.sql("UPDATE comments SET age = 123456789 WHERE id = 1")  # its mapping is short
    daemon.wait_for("document.dead_lettered")
    said = status(world, code=1)
    assert said["leader"] is not None
    assert said["documents"][0]["dead_letters"] == 1
    log = daemon.log_file.read_text()
    assert "123456789" not in log
    world.sql("UPDATE comments SET age = 12 WHERE id = 1")
    world.wait_until_level()
    wait_until(lambda: world.syncer("status").returncode == 0, what="the dead letter is gone")
    assert daemon.stop() == 0


# Drift


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
        client.index(index=world.alias, id="77", document={"title": "nobody wrote this"})
    return world


def test_verify_names_every_kind_of_drift(drifted: World) -> None:
    """A document that is missing, one too many, one with another field: each is named, and the exit code is 1."""
    said = json.loads(done(drifted, "verify", "blogpost", "--settle", "0.5", "--json", code=1))
    (report,) = said
    assert report["holds"] is False
    assert report["is_complete"] is True
    assert report["documents"] == 3
    assert {(one["id"], one["kind"], tuple(one["fields"])) for one in report["drifts"]} == {
        ("2", "missing", ()),
        ("4", "different", ("title",)),
        ("77", "extra", ()),
    }
    assert {one["index_name"] for one in report["drifts"]} == {f"{drifted.alias}-000001"}
    assert {one["version"] for one in report["drifts"] if one["id"] == "4"} == {FAR_AHEAD}
    assert {one["id"]: one["cause"] for one in report["drifts"]} == {"2": None, "4": "foreign_ahead", "77": "foreign"}
    assert "edited by hand" not in json.dumps(said)

    words = done(drifted, "verify", "--settle", "0", code=1)
    lines = [" ".join(line.split()) for line in words.splitlines()]
    for start in ("2 missing", "4 different title", "77 extra"):
        assert any(line.startswith(start) for line in lines), words
    assert "syncer verify blogpost --repair" in words
    assert "syncer index rebuild blogpost" in words
    assert "edited by hand" not in words

    # Values are shown only if they are asked for.
    (report,) = json.loads(done(drifted, "verify", "--settle", "0", "--values", "--json", code=1))
    (changed,) = [one for one in report["drifts"] if one["id"] == "4"]
    assert changed["differences"] == [
        {"path": "title", "how": "changed", "expected": '"are cool"', "held": '"edited by hand"'}
    ]


def test_verify_repairs(drifted: World) -> None:
    """What can be fixed is; the exit code is 1 as long as something differs."""
    (report,) = json.loads(done(drifted, "verify", "--repair", "--settle", "0", "--json", code=1))
    assert sorted(one["id"] for one in report["repaired"]) == ["2", "77"]
    assert [(one["id"], one["cause"]) for one in report["drifts"]] == [("4", "foreign_ahead")]
    with drifted.elasticsearch() as client:
        client.delete(index=drifted.alias, id="4", version=FAR_AHEAD + 1, version_type="external")
        client.index(index=drifted.alias, id="5", document={"title": "edited by hand"})
    drifted.sql("DELETE FROM posts WHERE id = 4")
    (report,) = json.loads(done(drifted, "verify", "--repair", "--settle", "0", "--json"))
    assert [one["id"] for one in report["repaired"]] == ["5"]
    assert (report["holds"], report["documents"]) == (True, 2)
    assert drifted.differences() == []


def test_verify_holds_when_nothing_differs(world: World) -> None:
    """Documents that equal their SELECT are counted, and the exit code is 0."""
    world.sql(BLOG)
    loaded = json.loads(done(world, "backfill", "blogpost", "--json"))
    assert (loaded["document"], loaded["job"]["state"], loaded["job"]["dead_lettered"]) == ("blogpost", "done", 0)
    report = json.loads(done(world, "verify", "--json"))[0]
    assert report["holds"] is True
    assert report["documents"] == 3
    assert report["drifts"] == []
    assert "3 documents equal their SELECT" in done(world, "verify", "blogpost")


# The daemon's log


OF_A_BUSY_MACHINE = {"component.retried", "topic.troubled"}
"""What is said of a server that answers late."""


def test_the_log_is_json_without_a_value_of_a_row(world: World) -> None:
    """Every line of a daemon's log is one JSON object with a time and a level, and shows nothing of any row."""
    daemon = world.daemon()
    world.sql(BLOG)
    world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (9, 1, %s, %s)", WORD, WORD)
    world.sql("UPDATE users SET name = %s, email = %s WHERE id = 1", WORD, WORD)
    world.sql("INSERT INTO comments (id, post_id, name, comment) VALUES (9, 9, %s, %s)", WORD, WORD)
    world.wait_until_level()
    world.sql("TRUNCATE comments")
    world.wait_until_level()
    daemon.wait_for("worker.batch_indexed")
    # Else it is stopped in the middle of its first rebalance, of which librdkafka may have something to say.
    daemon.wait_for_workers()
    assert daemon.stop() == 0
    text = daemon.log_file.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert {"daemon.started", "relay.led", "relay.batch_published", "worker.batch_indexed", "daemon.stopped"} <= {
        one["event"] for one in lines
    }
    assert all(one["at"] and one["level"] in ("info", "warning", "error") for one in lines)
    assert all(one["level"] == "info" for one in lines if one["event"] not in OF_A_BUSY_MACHINE), text
    assert WORD not in text
    assert "xylophone" not in text


@pytest.mark.parametrize("signal_name", ["SIGTERM", "SIGINT"])
def test_a_daemon_leaves_when_it_is_told_to(world: World, signal_name: str) -> None:
    """Either signal ends an idle daemon, with all its components, with exit code 0."""
    daemon = world.daemon()
    daemon.process.send_signal(getattr(signal, signal_name))
    assert daemon.exit_code() == 0  # which it is not, if a component has not ended in time
    assert daemon.events()[-1]["event"] == "daemon.stopped"


def add_document(world: World, name: str, select: str) -> None:
    """Another document beside the blogpost."""
    folder = world.document_folder.with_name(name)
    folder.mkdir()
    (folder / "document.yaml").write_text(f"index: {world.alias}-{name}\n")
    (folder / "select.sql").write_text(select)
    (folder / "index.json").write_text("{}")


def test_one_document_is_applied_alone(world: World) -> None:
    """The others stay as they are and captured, though one has changed and another is broken."""
    add_document(world, "writer", "SELECT u.id AS _id, u.email FROM users AS u")
    world.apply()
    before = world.sql("SELECT * FROM syncer.capture WHERE relation <> 'public.posts'")
    select = world.document_folder / "select.sql"
    select.write_text(select.read_text().replace("p.title,", "upper(p.title) AS title,"))
    (world.config / "documents" / "writer" / "select.sql").write_text("SELECT u.id AS _id FROM users AS u")
    add_document(world, "broken", "SELECT nonsense")
    said = done(world, "apply", "blogpost", "--yes")
    assert "writer" not in said
    assert world.sql("SELECT name, revision FROM syncer.document ORDER BY 1") == [("blogpost", 2), ("writer", 1)]
    assert world.sql("SELECT * FROM syncer.capture WHERE relation <> 'public.posts'") == before
    assert world.syncer("apply", "--yes").returncode == 1
    (world.config / "documents" / "broken" / "document.yaml").write_text(f"index: {world.alias}\n")
    assert "share the index" in world.syncer("apply", "broken", "--yes").stderr


def test_the_config_folder_is_an_option_too(world: World) -> None:
    """It takes precedence over the variable, and stands before the command's name."""
    done(world, "--config", str(world.config), "plan")
    elsewhere = world.syncer("--config", str(world.folder / "nowhere"), "plan")
    assert elsewhere.returncode == 1
    assert "nowhere" in elsewhere.stderr


def test_documents_that_cannot_be_written_fail_the_apply(empty_world: World) -> None:
    """Apply refuses them. If told to go on, it says which and why, exits with 1, and loads the documents after them."""
    add_document(empty_world, "writer", "SELECT u.id AS _id, u.name FROM users AS u")
    empty_world.sql(BLOG_SCHEMA.read_text())
    empty_world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com')")
    empty_world.sql("INSERT INTO posts (id, user_id, title, body, created) VALUES (2, 1, 't', 'b', 'infinity')")
    empty_world.migrate()
    refused = empty_world.syncer("apply", "--yes")
    assert refused.returncode == 1
    assert "1 of 1 sampled document is rejected, for example 2: document_parsing_exception" in refused.stderr
    assert empty_world.sql("SELECT FROM syncer.document") == []
    said = empty_world.syncer("apply", "--yes", "--despite-dead-lettered")
    assert said.returncode == 1
    assert "1 dead-lettered" in said.stdout
    assert "such as 2: document_parsing_exception" in said.stderr
    assert "created" in said.stderr
    assert "writer: 1 written" in said.stdout
