"""The log and `syncer events`: what happened is there, in order and without a value of a row, and delays nothing."""

from __future__ import annotations

import json
from typing import Any

from syncer.base import timeline
from syncer.base.timeline import KEPT_MAX, Timeline
from tests.support.world import World, wait_until

BLOG = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com');
INSERT INTO posts (id, user_id, title, body) VALUES (2, 1, 'Relationships', 'long');
"""
WORD = "xylophone-in-the-row"
OF_A_BUSY_MACHINE = {"component.retried", "component.recovered", "topic.troubled"}
"""What is logged of a server that answers late."""


def events(world: World, *options: str) -> list[dict[str, Any]]:
    """What `syncer events --json` prints."""
    events_read: list[dict[str, Any]] = json.loads(world.prints("events", "--json", *options))
    return events_read


def wait_for(world: World, event: str, words: str = "") -> dict[str, Any]:
    """The last event of that name whose message has this part, once it is there."""
    matching: list[dict[str, Any]] = []

    def is_there() -> bool:
        matching[:] = [
            candidate for candidate in events(world) if candidate["event"] == event and words in candidate["message"]
        ]
        return bool(matching)

    wait_until(is_there, what=f"{event} is there: {words}", detail=lambda: json.dumps(events(world), indent=1))
    return matching[-1]


def test_what_happened_is_shown_in_order_and_delays_nothing(world: World) -> None:
    """A leader, a suspension and its end, an apply, a verify, a gone daemon; a locked table is written later."""
    world.sql(BLOG)
    daemon = world.daemon()
    wait_for(world, "daemon.joined", "A daemon started")
    led = wait_for(world, "relay.led")
    assert (led["process"], led["level"]) == (daemon.process.pid, "info")
    with world.application() as locking:
        locking.execute("LOCK TABLE syncer.event")
        world.sql("UPDATE users SET name = 'Jane'")
        world.wait_until_level()
        world.sql("ALTER TABLE posts RENAME title TO headline")
        daemon.wait_for("timeline.write_failed")
    wait_for(world, "document.suspended", "blogpost was suspended")
    world.edit_file("p.title", "p.headline AS title")
    world.prints("apply", "--yes")
    wait_for(world, "apply.finished", "Applied blogpost (in_place, resumed).")
    world.prints("verify")
    wait_for(world, "verify.finished", f"Verified {world.index_of()}: 1 document, 0 drifted, 0 repaired.")
    assert daemon.stop() == 0
    wait_for(world, "daemon.left", "A daemon stopped")
    timeline = events(world)
    assert [event["at"] for event in timeline] == sorted(event["at"] for event in timeline)
    names = [event["event"] for event in timeline]
    order = ["relay.led", "document.suspended", "apply.finished", "verify.finished"]
    assert sorted(order, key=names.index) == order
    assert events(world, "--since", "0s") == []
    assert timeline[-1]["message"] in world.syncer("events", "--since", "30m").stdout.splitlines()[-1]


def test_the_table_is_bounded(shared_world: World) -> None:
    """Events older than a week go, and the oldest beyond so many; a command removes none, and any text can be noted."""
    insert = "INSERT INTO syncer.event (at, event, level, message, host, process) "
    shared_world.sql(
        insert + "SELECT now() - interval '8 days', 'e', 'info', 'old', 'h', 1 FROM generate_series(1, 10)"
    )
    shared_world.sql(insert + "SELECT now(), 'e', 'info', 'm', 'h', 1 FROM generate_series(1, %s)", KEPT_MAX + 50)
    noted = Timeline()
    for number in range(3000):
        noted.note("topic.records_lost", "warning", str(number))
    with shared_world.connect() as connection:
        noted.write(connection)
        assert shared_world.sql("SELECT count(*) FROM syncer.event WHERE message = 'old'") == [(10,)]
        assert shared_world.sql("SELECT count(*) FROM syncer.event WHERE event ~ '[.]'") == [(1000,)]
        noted.note("component.failed", "error", "a\0b\ud800\n\tc" + "x" * 100_000)
        noted.write(connection, prunes=True)
        assert shared_world.sql("SELECT count(*) FROM syncer.event WHERE message = 'old'") == [(0,)]
        assert shared_world.sql("SELECT count(*) FROM syncer.event") == [(KEPT_MAX,)]
        latest = timeline.read(connection, seconds=60, limit=3)
    assert [event.event for event in latest] == ["topic.records_lost"] * 2 + ["component.failed"]
    assert "a\N{REPLACEMENT CHARACTER}b? cx" in latest[-1].message
    assert len(latest[-1].message) < 3000


def test_a_change_is_followed_by_its_id_and_its_version(world: World) -> None:
    """Outbox id → batch of the relay, with Kafka → batch of a worker → document and version."""
    daemon = world.daemon(environment={"SYNCER_LOG_LEVEL": "debug"})
    daemon.wait_for_worker()  # else what is handled while the second one joins is handled once more
    world.sql(BLOG)
    world.wait_until_level()
    with world.application() as application:
        application.execute("UPDATE posts SET title = %s WHERE id = 2", [WORD])
        ((change,),) = application.execute("SELECT max(id) FROM syncer.outbox").fetchall()
    world.wait_until_level()
    world.sql("TRUNCATE comments")

    def of_change(event: str) -> list[dict[str, Any]]:
        return [line for line in daemon.events(event) if line["ids"][0] <= change <= line["ids"][1]]

    wait_until(lambda: bool(of_change("worker.batch_indexed")), what="the batch is logged")
    published, (indexed,) = of_change("relay.batch_published"), of_change("worker.batch_indexed")
    assert [line["changes"] >= 1 for line in published] == [True] * world.uses_kafka
    sentences = [
        line
        for line in daemon.events("document.written")
        if (line["component"], line.get("batch"), line["id"]) == (indexed["worker"], indexed["batch"], "2")
    ]
    with world.elasticsearch() as client:
        assert [line["version"] for line in sentences] == [client.get(index=world.alias, id="2")["_version"]]
    assert daemon.stop() == 0
    text = daemon.log_file.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert {"daemon.started", "relay.led", "daemon.stopped"} <= {line["event"] for line in lines}
    assert all(line["at"] and line["level"] in ("debug", "info", "warning", "error") for line in lines)
    unusual = [line for line in lines if line["level"] in ("warning", "error")]
    assert [line for line in unusual if line["event"] not in OF_A_BUSY_MACHINE] == []
    assert "xylophone" not in text


def test_an_error_at_start_is_a_line_of_the_log(world: World) -> None:
    """Also one of the settings: every line is JSON, and the last one says what to do."""
    completed = world.syncer("run", environment={"SYNCER_LOG_FORMAT": "json", "SYNCER_WORKER_THREADS": "many"})
    assert completed.returncode == 1
    last_line = [json.loads(line) for line in completed.stderr.splitlines()][-1]
    assert (last_line["event"], last_line["level"]) == ("daemon.failed", "error")
    assert "worker.threads" in last_line["error"]
    assert last_line["hint"]
