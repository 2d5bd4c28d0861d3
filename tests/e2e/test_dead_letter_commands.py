"""``syncer dead-letters``: what an operator sees of poison, and does about it, with the daemon at work."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import Producer

from syncer.model import Change, Operation
from tests.harness import World, wait_until

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
    """A world whose daemon has written posts 1 to 10, and parked the others: 18 in Elasticsearch, 2 in Postgres."""
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
    wait_until(lambda: count(world) == 20, what="the others are parked")
    return world


def count(world: World) -> int:
    """How many dead letters there are."""
    return int(world.sql("SELECT count(*) FROM syncer.dead_letter")[0][0])


def test_a_mapping_mended_by_hand(poisoned: World) -> None:
    """They are listed by kind, shown with field, type and what to do, tried again, and forgotten."""
    world = poisoned
    listed = said(world, "list", "--limit", "3", "--offset", "1")
    assert listed["letters"] == 20
    assert [(one["letters"], one["kind"], one["field"], one["value_type"]) for one in listed["kinds"]] == [
        (18, "document_parsing_exception", "created", "string"),
        (2, "DivisionByZero", None, None),
    ]
    assert [one["id"] for one in listed["shown"]] == ["12", "13", "14"]
    words = done(world, "list", "blogpost", "--kind", "DivisionByZero")
    assert "28, 29" in words
    assert "division by zero" in words

    [shown] = said(world, "show", "blogpost", "11")
    assert (shown["field"], shown["value_type"], shown["now"]) == ("created", "string", "refused")
    assert "created" in shown["now_error"]
    assert said(world, "show", "blogpost", "28")[0]["now"] == "select_fails"
    assert "syncer apply" in done(world, "show", "blogpost", "28")

    # Nothing is mended: all are tried, and remain.
    tried = said(world, "retry", "blogpost", "11", "12", code=1)
    assert {name: tried[name] for name in ("tried", "mended", "remaining")} == {"tried": 2, "mended": 0, "remaining": 2}

    # A mapping that is mended by hand, which syncer cannot see.
    with world.elasticsearch() as client:
        body = json.loads((world.document_folder / "index.json").read_text())["mappings"]["properties"]
        client.indices.put_mapping(
            index=world.index_of(), properties={"created": {**body["created"], "ignore_malformed": True}}
        )
    assert said(world, "show", "blogpost", "11")[0]["now"] == "writable"
    tried = said(world, "retry", "blogpost", code=1)
    assert {name: tried[name] for name in ("tried", "mended", "remaining")} == {
        "tried": 20,
        "mended": 18,
        "remaining": 2,
    }
    assert len(world.held()) == 28
    assert world.syncer("status").returncode == 1

    assert "1 dead letter forgotten" in done(world, "discard", "blogpost", "28")
    world.sql("UPDATE posts SET views = 14")
    world.wait_until_level()
    wait_until(lambda: count(world) == 0, what="what is mended is cleared by itself")
    assert "There are no dead letters" in done(world, "list")
    wait_until(lambda: world.syncer("status").returncode == 0, what="status is well")
    assert world.daemons[0].stop() == 0


def test_what_is_asked_for_must_be_there(poisoned: World) -> None:
    """A mistake is explained, with what to do, and nothing is done."""
    world = poisoned
    assert "No document nosuch is in force" in refused(world, "list", "nosuch")
    assert "blogpost has no dead letter 1, 2" in refused(world, "retry", "blogpost", "1", "2", "11")
    assert "has no dead letter 1" in refused(world, "show", "blogpost", "1")
    assert "DOCUMENT and ID" in refused(world, "show", "blogpost")
    assert "Name a document" in refused(world, "retry")
    assert "--kind" in refused(world, "discard", "blogpost")
    assert "no record 7" in refused(world, "discard", "--record", "7")
    assert "Leave out" in refused(world, "retry", "blogpost", "--records")
    for command in ("retry", "discard"):
        assert "Records have no kind" in refused(world, command, "--records", "--kind", "X")
        assert "Records have no kind" in refused(world, command, "--record", "5", "--field", "x")
        assert "only some of them" in refused(world, command, "--records", "--record", "5")
    assert count(world) == 20


def test_a_record_that_nobody_can_read(world: World) -> None:
    """It makes status not well, is shown, and stays; once it can be read, it is a change like any other."""
    world.sql(BLOG)
    daemon = world.daemon()
    world.backfill()
    producer = Producer({"bootstrap.servers": world.endpoints.kafka_bootstrap_servers})
    producer.produce(world.settings.kafka.topic, b"garbage")
    producer.flush()
    assert daemon.wait_for("worker.records_parked")["records"] == 1
    wait_until(lambda: world.syncer("status").returncode == 1, what="status is not well")
    status = world.syncer("status", "--json")
    assert json.loads(status.stdout)["unreadable_records"] == 1
    assert "1 record of the topic cannot be read" in world.syncer("status").stdout
    [record] = said(world, "list")["records"]
    number = str(record["id"])
    assert "b'garbage'" in done(world, "show", "--record", number)
    assert said(world, "retry", "--records", code=1)["records_remaining"] == 1

    # As if a newer version had written it, which this one is now.
    change = {"id": 1, "changed_at": 1.0, "relation": "public.posts", "operation": "U", "old": None, "new": {"id": 3}}
    value = json.dumps(change).encode()
    assert Change.parse(value).operation is Operation.UPDATE
    world.sql("UPDATE syncer.unreadable_record SET value = %s, value_bytes = %s", value, len(value))
    wait_until(world.is_handled, what="nobody writes it but who tries the record again")
    with world.elasticsearch() as client:
        is_ = client.get(index=world.alias, id="3")["_version"]  # and no greater one: the next may be the next drawn
        client.delete(index=world.alias, id="3", version=is_, version_type="external_gte", refresh=True)
        assert said(world, "retry", "--record", number)["records_sent"] == 1
        # What was a change is followed, now.
        wait_until(lambda: "3" in world.held(), what="it is written")
    assert said(world, "list")["topics"] == []
    wait_until(lambda: world.syncer("status").returncode == 0, what="status is well")
    assert daemon.stop() == 0
