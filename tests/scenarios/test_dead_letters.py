"""One document at fault is set aside; its siblings continue, and it comes back by itself."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.in_process import following
from tests.support.world import BLOG_SCHEMA, World, wait_until

USER = "INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com')"
POSTS = "INSERT INTO posts (id, user_id, title, body) SELECT g, 1, 'title', 'body' FROM generate_series(1, 20) AS g"


def dead_letters(world: World) -> list[tuple[str, str]]:
    """Which documents are dead-lettered, and why."""
    return world.sql("SELECT id, error FROM syncer.dead_letter ORDER BY id")


def test_a_value_that_the_mapping_refuses(world: World) -> None:
    """Elasticsearch refuses one document of a batch.

    It is dead-lettered with the reason, and cleared once it is fixed.
    """
    world.sql(USER)
    world.sql(POSTS + "; INSERT INTO comments (post_id, name, comment, age) VALUES (7, 'c', 'c', 1)")
    world.sql("UPDATE posts SET created = 'infinity' WHERE id = 7")
    with world.index() as index, world.relay() as relay, world.worker(index) as worker:

        def turn() -> bool:
            relay.run_once()
            worker.run_once()
            return len(world.held()) == 19 and len(dead_letters(world)) == 1

        wait_until(turn, what="nineteen posts are there and one is dead-lettered")
        [(id_, error)] = dead_letters(world)
        assert id_ == "7"
        assert "document_parsing_exception" in error
        assert "created" in error
        world.sql("UPDATE posts SET created = now() WHERE id = 7")
        world.drain(relay, worker)
    assert dead_letters(world) == []


def test_a_row_that_makes_the_select_raise(empty_world: World) -> None:
    """Postgres cannot compose one document of a batch: it is found by halving, and dead-lettered."""
    select: Path = empty_world.document_folder / "select.sql"
    select.write_text(select.read_text().replace("p.body,", "p.body, 100 / (p.views - 13) AS ratio,"))
    index_json: Path = empty_world.document_folder / "index.json"
    index_json.write_text(index_json.read_text().replace('"strict"', "true"))
    empty_world.set_up()
    empty_world.sql(USER)
    empty_world.sql(POSTS)
    empty_world.sql("UPDATE posts SET views = 13 WHERE id = 5")
    with empty_world.index() as index, empty_world.relay() as relay, empty_world.worker(index) as worker:

        def turn() -> bool:
            relay.run_once()
            worker.run_once()
            return len(empty_world.held()) == 19 and len(dead_letters(empty_world)) == 1

        wait_until(turn, what="nineteen posts are there and one is dead-lettered")
        assert dead_letters(empty_world) == [("5", "division by zero")]
        empty_world.sql("UPDATE posts SET views = 14 WHERE id = 5")
        empty_world.drain(relay, worker)
    assert dead_letters(empty_world) == []


def test_an_id_of_any_length_is_dead_lettered_and_holds_up_nobody(empty_world: World) -> None:
    """Elasticsearch takes none of more than 512 bytes, and an index of Postgres none of 3,000: it has a digest."""
    world = empty_world
    world.sql(BLOG_SCHEMA.read_text())
    folder = world.document_folder
    folder.joinpath("select.sql").write_text("SELECT u.email || u.id::text AS _id, u.name FROM users AS u")
    folder.joinpath("index.json").write_text('{"mappings": {"properties": {"name": {"type": "text"}}}}')
    world.migrate()
    world.apply()
    with following(world):
        world.sql("INSERT INTO users (id, name, email) SELECT g, 'name', 'mail' || g FROM generate_series(1, 3) AS g")
        # Of random characters, since what repeats itself is compressed.
        long = "(SELECT string_agg(md5(g::text), '') FROM generate_series(1, 120) AS g)"
        world.sql(f"UPDATE users SET email = {long} WHERE id = 2")
        wait_until(
            lambda: len(world.held()) == 2 and len(dead_letters(world)) == 1,
            what="the others are written, and it is dead-lettered",
        )
        [(id_, error)] = dead_letters(world)
        assert len(id_) < 200
        assert "512 bytes" in error
        verified = json.loads(world.syncer("verify", "--json").stdout)
        assert [(one["kind"], one["cause"]) for one in verified[0]["drifts"]] == [("missing", "dead_lettered")]
        world.sql("UPDATE users SET email = 'short' WHERE id = 2")
        wait_until(
            lambda: len(world.held()) == 3 and dead_letters(world) == [],
            what="it is written under its new id, and no longer dead-lettered",
        )
