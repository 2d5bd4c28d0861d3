"""One document at fault is set aside; its siblings continue, and it comes back by itself."""

from __future__ import annotations

import json

import pytest

from tests.support.in_process import following
from tests.support.world import BLOG_SCHEMA, World, wait_until

USER = "INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com')"
POSTS = "INSERT INTO posts (id, user_id, title, body) SELECT g, 1, 'title', 'body' FROM generate_series(1, 20) AS g"


def dead_letters(world: World) -> list[tuple[str, str]]:
    """Which documents are dead-lettered, and why."""
    return world.sql("SELECT id, error FROM syncer.dead_letter ORDER BY id")


@pytest.mark.parametrize(
    ("broken", "fixed", "error"),
    [
        ("created = 'infinity'", "created = now()", "document_parsing_exception"),
        ("views = 13", "views = 14", "division by zero"),
    ],
    ids=["refused_by_the_mapping", "raised_by_the_select"],
)
def test_a_document_at_fault_is_dead_lettered_and_its_siblings_are_written(
    empty_world: World, broken: str, fixed: str, error: str
) -> None:
    """It is found among twenty, kept with the reason, and cleared once its row is fixed."""
    world = empty_world
    select, mapping = (world.document_folder / name for name in ("select.sql", "index.json"))
    select.write_text(select.read_text().replace("p.body,", "p.body, 100 / (p.views - 13) AS ratio,"))
    mapping.write_text(mapping.read_text().replace('"strict"', "true"))
    world.set_up()
    world.sql(USER)
    world.sql(POSTS)
    world.sql(f"UPDATE posts SET {broken} WHERE id = 5")
    with world.index() as index, world.relay() as relay, world.worker(index) as worker:

        def turn() -> bool:
            relay.run_once()
            worker.run_once()
            return len(world.held()) == 19 and len(dead_letters(world)) == 1

        wait_until(turn, what="nineteen posts are there and one is dead-lettered")
        [(id_, words)] = dead_letters(world)
        assert id_ == "5"
        assert error in words
        world.sql(f"UPDATE posts SET {fixed} WHERE id = 5")
        world.drain(relay, worker)
    assert dead_letters(world) == []


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
        assert [(drift["kind"], drift["cause"]) for drift in verified[0]["drifts"]] == [("missing", "dead_lettered")]
        world.sql("UPDATE users SET email = 'short' WHERE id = 2")
        wait_until(
            lambda: len(world.held()) == 3 and dead_letters(world) == [],
            what="it is written under its new id, and no longer dead-lettered",
        )
