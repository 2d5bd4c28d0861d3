"""``syncer dead-letters``: what an operator sees of poison, and does about it, with the daemon at work."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.world import World, wait_until

BLOG = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com');
INSERT INTO posts (id, user_id, title, body) SELECT g, 1, 'title', 'body' FROM generate_series(1, 30) AS g;
"""


def done(world: World, *arguments: str, code: int = 0) -> str:
    """What a command prints."""
    result = world.syncer("dead-letters", *arguments)
    assert result.returncode == code, result.stderr + result.stdout
    return result.stdout


def refused(world: World, *arguments: str) -> str:
    """What a command says that takes nothing."""
    result = world.syncer("dead-letters", *arguments)
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())


def said(world: World, *arguments: str, code: int = 0) -> Any:
    """The same as plain data."""
    return json.loads(done(world, *arguments, "--json", code=code))


@pytest.fixture
def poisoned(empty_world: World) -> World:
    """A world whose daemon has written posts 1 to 10, and dead-lettered the others.

    18 in Elasticsearch, 2 in Postgres.
    """
    world = empty_world
    select = world.document_folder / "select.sql"
    select.write_text(select.read_text().replace("p.body,", "p.body, 100 / (p.views - 13) AS ratio,"))
    index_json = world.document_folder / "index.json"
    index_json.write_text(index_json.read_text().replace('"title":', '"ratio": {"type": "long"}, "title":'))
    world.set_up()
    world.daemon()
    world.sql(
        BLOG + "UPDATE posts SET created = 'infinity' WHERE id > 10; UPDATE posts SET views = 13 WHERE id IN (28, 29)"
    )
    wait_until(lambda: len(world.held()) == 10, what="what can be is written")
    wait_until(lambda: count(world) == 20, what="the others are dead-lettered")
    return world


def count(world: World) -> int:
    """How many dead letters there are."""
    return int(world.sql("SELECT count(*) FROM syncer.dead_letter")[0][0])


def test_a_mapping_fixed_by_hand(poisoned: World) -> None:
    """They are listed by kind and one by one, tried again, and cleared by themselves once the data is fixed."""
    world = poisoned
    listed = said(world, "list", "--limit", "3", "--offset", "1")
    assert listed["letters"] == 20
    assert [(each["letters"], each["kind"]) for each in listed["kinds"]] == [
        (18, "document_parsing_exception"),
        (2, "DivisionByZero"),
    ]
    assert [each["id"] for each in listed["shown"]] == ["12", "13", "14"]
    words = done(world, "list", "blogpost")
    assert "division by zero" in words
    assert "failed to parse field [created]" in words

    # Nothing is fixed: it is tried, and remains.
    tried = said(world, "retry", "blogpost", "11", code=1)
    assert {name: tried[name] for name in ("tried", "fixed", "remaining")} == {"tried": 1, "fixed": 0, "remaining": 1}

    # A mapping that is fixed by hand, which syncer cannot see.
    with world.elasticsearch() as client:
        body = json.loads((world.document_folder / "index.json").read_text())["mappings"]["properties"]
        client.indices.put_mapping(
            index=world.index_of(), properties={"created": {**body["created"], "ignore_malformed": True}}
        )
    tried = said(world, "retry", "blogpost", code=1)
    assert {name: tried[name] for name in ("tried", "fixed", "remaining")} == {
        "tried": 20,
        "fixed": 18,
        "remaining": 2,
    }
    assert len(world.held()) == 28
    assert world.syncer("status").returncode == 1
    world.sql("UPDATE posts SET views = 14")
    world.wait_until_level()
    wait_until(lambda: count(world) == 0, what="what is fixed is cleared by itself")
    assert "There are no dead letters" in done(world, "list")
    wait_until(lambda: world.syncer("status").returncode == 0, what="status is well")
    assert world.daemons[0].stop() == 0


def test_what_is_asked_for_must_be_there(poisoned: World) -> None:
    """A mistake is explained, with what to do, and nothing is done."""
    world = poisoned
    assert "No document nosuch is active" in refused(world, "list", "nosuch")
    assert "blogpost has no dead letter 1 " in refused(world, "retry", "blogpost", "1")
    assert count(world) == 20
