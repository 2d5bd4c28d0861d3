"""A change that is larger than Kafka takes does not stand in the way of the others, and is not lost."""

from __future__ import annotations

from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from structlog.testing import capture_logs

from tests.support.in_process import admin, following, refreshes
from tests.support.world import World
from tests.support.writers import fill

TABLES = """
CREATE TABLE shelves (word text, label text);
CREATE TABLE books (id int PRIMARY KEY, word text);
ALTER TABLE shelves ADD id int PRIMARY KEY;
"""
SELECT = """
SELECT b.id AS _id, (SELECT max(s.label) FROM shelves AS s WHERE s.word = b.word) AS label FROM books AS b
"""
# Does not get smaller when it is compressed.
LARGE = "(SELECT string_agg(md5(g::text), '') FROM generate_series(1, 1500) AS g)"


def limit_records(world: World, bytes_max: int) -> None:
    """Have the topic take no larger records, nor batches of records."""
    client = admin(world)
    limit = ConfigEntry("max.message.bytes", str(bytes_max), incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ResourceType.TOPIC, world.settings.kafka.topic, incremental_configs=[limit])
    client.incremental_alter_configs([topic])[topic].result()


def test_a_change_is_too_large(empty_world: World) -> None:
    """The documents that read its table are written again, and the next changes go on as ever."""
    world = empty_world
    (world.document_folder / "select.sql").write_text(SELECT)
    (world.document_folder / "index.json").write_text('{"mappings": {"properties": {"label": {"type": "keyword"}}}}')
    world.sql(TABLES)
    world.migrate()
    world.apply()
    limit_records(world, 20_000)
    with capture_logs() as said, following(world):
        world.sql(f"INSERT INTO books SELECT 1, {LARGE}")
        world.sql(f"INSERT INTO shelves (id, word, label) SELECT 1, {LARGE}, 'found'")
        world.wait_until_level()
        world.sql("INSERT INTO books VALUES (2, 'short')")
        world.wait_until_level()
    assert world.held()["1"] == {"label": "found"}
    shortened = [one["relations"] for one in said if one["event"] == "relay.changes_shortened"]
    assert shortened[:1] * len(shortened) == shortened  # once, unless it had to be published again
    assert shortened[0] == ["public.shelves"]


def test_a_batch_is_too_large(world: World) -> None:
    """Records that are small enough arrive as they are: nothing has to be written again."""
    limit_records(world, 2000)
    with following(world):
        fill(world)
        world.wait_until_level()
        world.sql(
            "INSERT INTO posts (id, user_id, title, body) SELECT g, 1, 't', '' FROM generate_series(100, 1500) AS g"
        )
        world.wait_until_level()
    assert refreshes(world) == 0
