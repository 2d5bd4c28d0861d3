"""The log: JSON without a value of a row, in which a change is found again."""

from __future__ import annotations

import json
from typing import Any

from tests.support.world import World, wait_until

BLOG = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com');
INSERT INTO posts (id, user_id, title, body) VALUES (2, 1, 'Relationships', 'long'), (3, 1, 'Others', 'short');
"""
WORD = "xylophone-in-the-row"
OF_A_BUSY_MACHINE = {"component.retried", "component.recovered", "topic.troubled"}
"""What is logged of a server that answers late."""


def test_a_change_is_followed_by_its_id_and_its_version(world: World) -> None:
    """Outbox id → batch of the relay → batch of a worker → document and version."""
    daemon = world.daemon(environment={"SYNCER_LOG_LEVEL": "debug"})
    daemon.wait_for_workers()  # else what is handled while the second one joins is handled once more
    world.sql(BLOG)
    world.wait_until_level()
    with world.application() as application:
        application.execute("UPDATE posts SET title = %s WHERE id = 2", [WORD])
        ((change,),) = application.execute("SELECT max(id) FROM syncer.outbox").fetchall()
    world.wait_until_level()
    world.sql("TRUNCATE comments")

    def of_change(event: str) -> list[dict[str, Any]]:
        found = (line for line in daemon.events() if line["event"] == event)
        return [line for line in found if line["ids"][0] <= change <= line["ids"][1]]

    wait_until(lambda: bool(of_change("worker.batch_indexed")), what="the batch is logged")
    (published,), (indexed,) = of_change("relay.batch_published"), of_change("worker.batch_indexed")
    assert published["changes"] >= 1
    written = [
        line
        for line in daemon.events()
        if line["event"] == "document.written"
        and (line["component"], line.get("batch"), line["id"]) == (indexed["worker"], indexed["batch"], "2")
    ]
    with world.elasticsearch() as client:
        assert [line["version"] for line in written] == [client.get(index=world.alias, id="2")["_version"]]
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
    done = world.syncer("run", environment={"SYNCER_LOG_FORMAT": "json", "SYNCER_WORKER_THREADS": "many"})
    assert done.returncode == 1
    last = [json.loads(line) for line in done.stderr.splitlines()][-1]
    assert (last["event"], last["level"]) == ("daemon.failed", "error")
    assert "worker.threads" in last["error"]
    assert last["hint"]
