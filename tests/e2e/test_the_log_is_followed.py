"""One change is found in the log again, from the outbox to its document, as docs/events.md says."""

from __future__ import annotations

from typing import Any

from tests.harness import World, wait_until

BLOG = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com');
INSERT INTO posts (id, user_id, title, body) VALUES (2, 1, 'Relationships', 'long'), (3, 1, 'Others', 'short');
"""


def test_a_change_is_followed_by_its_id_its_place_and_its_version(world: World) -> None:
    """Outbox id → batch of the relay → place in the topic → batch of a worker → document and version."""
    daemon = world.daemon(environment={"SYNCER_LOG_LEVELS": '{"document.written": "debug"}'})
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
    places = {(partition, offset) for partition, offset in walk(published["offsets"])}
    assert len(places) == published["changes"]
    assert places & set(walk(indexed["offsets"]))
    assert sorted(map(int, indexed["offsets"])) == indexed["partitions"]
    written = [
        one
        for one in said("document.written")
        if (one["stage"], one.get("batch")) == (indexed["worker"], indexed["batch"])
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


def walk(offsets: dict[str, list[int]]) -> list[tuple[str, int]]:
    """All places that a line names."""
    return [(partition, one) for partition, (first, last) in offsets.items() for one in range(first, last + 1)]
