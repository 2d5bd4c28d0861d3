"""The log: a change is found in it again, as docs/operating.md says; what it says by default, and of errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.world import EVERY_BATCH, World, wait_until

BLOG = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com');
INSERT INTO posts (id, user_id, title, body) VALUES (2, 1, 'Relationships', 'long'), (3, 1, 'Others', 'short');
"""


def test_a_change_is_followed_by_its_id_and_its_version(world: World) -> None:
    """Outbox id → batch of the relay → batch of a worker → document and version."""
    daemon = world.daemon(environment={"SYNCER_LOG_LEVELS": json.dumps({"document.written": "debug", **EVERY_BATCH})})
    daemon.wait_for_workers()  # else what is handled while the second one joins is handled once more
    world.sql(BLOG)
    world.wait_until_level()
    with world.application() as application:
        application.execute("UPDATE posts SET title = 'Relations' WHERE id = 2")
        ((change,),) = application.execute("SELECT max(id) FROM syncer.outbox").fetchall()
    world.wait_until_level()

    def said(event: str) -> list[dict[str, Any]]:
        return [one for one in daemon.events() if one["event"] == event]

    wait_until(lambda: any(has(one, change) for one in said("worker.batch_indexed")), what="the batch is logged")
    (published,) = [one for one in said("relay.batch_published") if has(one, change)]
    (indexed,) = [one for one in said("worker.batch_indexed") if has(one, change)]
    assert published["changes"] >= 1
    written = [
        one
        for one in said("document.written")
        if (one["component"], one.get("batch")) == (indexed["worker"], indexed["batch"])
    ]
    (mine,) = [one for one in written if one["id"] == "2"]  # another one may have come with it
    with world.elasticsearch() as client:
        assert client.get(index=world.alias, id="2")["_version"] == mine["version"]
    assert not [one for one in daemon.events() if one["level"] == "debug" and one["event"] != "document.written"]
    assert daemon.stop() == 0


def has(line: dict[str, Any], change: int) -> bool:
    """Whether a batch may have a change."""
    least, greatest = line["ids"]
    return bool(least <= change <= greatest)


def test_by_default_batches_are_summed_up(world: World) -> None:
    """A line every ten seconds says what was done, and nothing is left out; batches have no lines of their own."""
    daemon = world.daemon(environment={"SYNCER_LOG_LEVELS": "{}"})
    world.sql(BLOG)
    for _ in range(50):
        world.sql("UPDATE posts SET title = title || '.' WHERE id = 2")
    first = daemon.wait_for("batches.summarised")
    assert first["published"] > 0
    world.sql("UPDATE users SET name = 'Jane' WHERE id = 1")
    world.wait_until_level()
    wait_until(world.is_handled, what="all offsets are committed")
    assert daemon.stop() == 0
    told = [one for one in daemon.events() if one["event"] == "batches.summarised"]
    ((captured,),) = world.sql("SELECT last_value FROM syncer.outbox_id_seq")
    assert sum(one["published"] for one in told) == captured
    assert sum(one["handled"] for one in told) >= captured  # a rebalance may have handled some again
    batches = [one for one in daemon.events() if one["event"] in EVERY_BATCH]
    assert [one for one in batches if one["seconds"] < 1] == []  # only slow ones have lines of their own
    assert len(daemon.events()) - len(batches) < 25


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"SYNCER_WORKER_THREADS": "many"}, "worker.threads"),
    ],
)
def test_an_error_at_start_is_a_line_of_the_log(world: World, environment: dict[str, str], says: str) -> None:
    """Also one of the settings: every line is JSON, and the last one says what to do."""
    done = world.syncer("run", environment={"SYNCER_LOG_FORMAT": "json", **environment})
    assert done.returncode == 1
    last = [json.loads(line) for line in done.stderr.splitlines()][-1]
    assert (last["event"], last["level"]) == ("daemon.failed", "error")
    assert says in last["error"]
    assert last["hint"]
