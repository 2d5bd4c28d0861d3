"""What cannot be written or read is set aside, whatever it is and however much, and everything else continues."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import Producer
from structlog.testing import capture_logs

from syncer.base import log_limit
from syncer.base.model import Composition, Target
from syncer.base.postgres import Connection
from syncer.documents import registry
from syncer.elasticsearch.bulk import BulkOutcome
from syncer.indexing import dead_letters
from syncer.indexing.writer import Slice, Writer
from syncer.jobs import queue
from syncer.jobs.model import JobKind, JobState, find, unfinished
from syncer.kafka.topic import INSTALLATION
from tests.support.in_process import handle, refreshes
from tests.support.world import BLOG_SCHEMA, World, wait_until

USER = "INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com')"
POSTS = "INSERT INTO posts (id, user_id, title, body) SELECT g, 1, 'title', 'body' FROM generate_series(1, {}) AS g"


def letters(world: World) -> dict[str, str]:
    """Which documents are dead-lettered, of the index that serves, and the kind of error."""
    rows = world.sql(
        "SELECT id, kind FROM syncer.dead_letter JOIN syncer.document USING (index_name) WHERE role = 'current'"
    )
    return dict(rows)


@pytest.fixture
def dividing(empty_world: World) -> World:
    """A world whose SELECT raises for a post that has been seen 13 times."""
    select = empty_world.document_folder / "select.sql"
    select.write_text(select.read_text().replace("p.body,", "p.body, 100 / (p.views - 13) AS ratio,"))
    index_json = empty_world.document_folder / "index.json"
    index_json.write_text(index_json.read_text().replace('"strict"', "true"))
    empty_world.set_up()
    empty_world.sql(USER)
    return empty_world


@pytest.fixture
def connection(world: World) -> Iterator[Connection]:
    """To a blog with one post, whose age is too great for the mapping."""
    world.sql(USER)
    world.sql(POSTS.format(1))
    world.sql("UPDATE posts SET created = 'infinity'")
    with world.connect() as made:
        yield made


# Many


def test_rows_that_make_the_select_raise_are_dead_lettered(dividing: World) -> None:
    """Each is dead-lettered with its error; those between them are written, and later they."""
    world = dividing
    world.sql(POSTS.format(300))
    world.sql("UPDATE posts SET views = 13 WHERE id % 3 > 0")
    world.backfill()
    assert len(letters(world)) == 200
    assert set(letters(world).values()) == {"DivisionByZero"}
    assert world.held().keys() == {str(one) for one in range(3, 301, 3)}
    world.sql("UPDATE posts SET views = 0")
    world.backfill()
    assert world.differences() == []
    assert letters(world) == {}


def test_what_a_mapping_refuses_is_written_once_it_is_fixed(world: World) -> None:
    """Every one is dead-lettered with its kind of error.

    `syncer apply` writes them all, and no dead letter is left.
    """
    world.sql(USER)
    world.sql(POSTS.format(2100))
    world.sql("UPDATE posts SET created = 'infinity' WHERE id > 100")
    with capture_logs() as said:
        began = time.monotonic()
        world.backfill()
        most = 3 + (time.monotonic() - began) / log_limit.QUIET_SECONDS
    assert len(letters(world)) == 2000
    assert set(letters(world).values()) == {"document_parsing_exception"}
    assert len(world.held()) == 100
    told = [one for one in said if one["event"] == "document.dead_lettered"]
    assert sum(one["documents"] for one in told) == 2000
    assert len(told) <= most, told
    index_json = world.document_folder / "index.json"
    index_json.write_text(
        index_json.read_text().replace('"created": { "type": "date" }', '"created": {"type": "keyword"}')
    )
    world.apply()
    assert world.differences() == []
    assert letters(world) == {}


def test_a_mapping_that_is_changed_in_place_initial_loads_what_was_dead_lettered(empty_world: World) -> None:
    """A field that a strict mapping lacked is added: the load of the new revision writes what it refused."""
    world = empty_world
    index_json = world.document_folder / "index.json"
    whole = index_json.read_text()
    index_json.write_text(whole.replace('"body": { "type": "text" },', ""))
    world.set_up()
    world.sql(USER)
    world.sql(POSTS.format(3))
    world.backfill()
    with world.elasticsearch() as client:
        assert len(letters(world)) == 3
        assert set(letters(world).values()) == {"strict_dynamic_mapping_exception"}
        before = world.index_of()
        index_json.write_text(whole)
        world.apply()
        assert client.indices.exists(index=before)
    assert world.index_of() == before
    assert world.differences() == []
    assert letters(world) == {}


# At once


@pytest.mark.parametrize("fix", ["UPDATE posts SET created = now()", "DELETE FROM posts"])
@pytest.mark.usefixtures("connection")
def test_a_refusal_that_comes_late_dead_letters_nothing(world: World, fix: str) -> None:
    """A slow writer sends what a quick one has overtaken: Elasticsearch refuses it, and nothing is wrong."""
    name = world.index_of()
    with world.index() as index, world.writer(index) as slow, world.writer(index) as quick:
        slow.build(attempt := Slice(index_name=name, ids=["1"]))
        world.sql(fix)
        quick.write(name, ["1"])
        slow.send(attempt)
        assert attempt.outcome.rejections
        again = slow.settle(attempt)
        assert again == ["1"]
        slow.write(name, again)
    assert letters(world) == {}
    assert world.differences() == []


@pytest.mark.usefixtures("connection")
def test_a_refusal_of_what_has_changed_is_no_outage(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is composed again at once; the log says of no server that it is unavailable, and quotes no value."""
    with world.index() as index, world.writer(index) as writer, capture_logs() as logs:
        send = index.write
        changes = iter(["UPDATE posts SET views = views + 1, title = 'of a row'", "UPDATE posts SET created = now()"])

        def refused(target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
            outcome = send(target, compositions)
            world.sql(next(changes, "SELECT 1"))
            return outcome

        monkeypatch.setattr(index, "write", refused)
        report = writer.write(world.index_of(), ["1"])
    assert (report.indexed, report.dead_lettered) == (1, 0)
    assert not [one for one in logs if one["event"] == "component.retried"]
    assert letters(world) == {}
    assert world.differences() == []


def test_a_failure_that_is_late_dead_letters_nothing(dividing: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else has written the fixed row before it was dead-lettered: it does not stay dead-lettered."""
    world = dividing
    world.sql(POSTS.format(2))
    world.sql("UPDATE posts SET views = 13 WHERE id = 1")
    dead_letter = dead_letters.dead_letter
    with world.index() as index, world.writer(index) as slow, world.writer(index) as quick:
        name = world.index_of()

        def late(*arguments: Any) -> None:
            monkeypatch.setattr(dead_letters, "dead_letter", dead_letter)
            world.sql("UPDATE posts SET views = 0")
            quick.write(name, ["1"])
            dead_letter(*arguments)

        monkeypatch.setattr(dead_letters, "dead_letter", late)
        slow.write(name, ["1", "2"])
    assert letters(world) == {}
    assert world.differences() == []


# Changes of which nobody knows whom they touch


@pytest.fixture
def noted(empty_world: World) -> World:
    """A world whose affects query raises for a note that refers to no number, though the SELECT bears it."""
    world = empty_world
    world.sql(BLOG_SCHEMA.read_text())
    world.sql("CREATE TABLE notes (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, ref text NOT NULL)")
    world.sql("CREATE INDEX ON notes (ref)")
    world.document_folder.joinpath("select.sql").write_text(
        "SELECT p.id AS _id, (SELECT count(*) FROM notes AS n WHERE n.ref IN (p.id::text, 'x' || p.id)) AS notes\n"
        "FROM posts AS p"
    )
    world.document_folder.joinpath("index.json").write_text('{"mappings": {"dynamic": true}}')
    affects = world.document_folder / "affects"
    affects.mkdir()
    (affects / "notes.sql").write_text("SELECT p.id AS _id FROM %(rows)s AS r JOIN posts AS p ON p.id = r.ref::bigint")
    world.migrate()
    world.sql(USER)
    world.sql(POSTS.format(3))
    world.apply()
    return world


def test_a_change_that_cannot_be_followed_refreshes_all(noted: World) -> None:
    """The document goes on, and a job writes all of it, with what the others in the batch changed."""
    world = noted
    world.sql("INSERT INTO notes (ref) VALUES ('2'), ('x3'), ('1')")
    with world.index() as index, world.relay() as relay, world.worker(index) as worker, world.connect() as connection:

        def turn() -> bool:
            relay.run_once()
            worker.run_once()
            return bool(unfinished(connection))

        with capture_logs() as said:
            wait_until(turn, what="a job is made")
        assert [one.kind for one in unfinished(connection)] == [JobKind.REFRESH]
        world.refresh(index)
    assert world.differences() == []
    assert world.sql("SELECT suspended FROM syncer.document") == [(None,)]
    [unresolved] = [one for one in said if one["event"] == "worker.changes_unresolved"]
    assert unresolved["kind"] == "InvalidTextRepresentation"
    assert "x3" not in json.dumps(said, default=str)


def test_a_fan_out_that_cannot_be_listed_refreshes_all(noted: World) -> None:
    """The job ends, and says which one does its work; the document is not suspended."""
    world = noted
    with world.index() as index, world.connect() as connection:
        world.sql("INSERT INTO notes (ref) VALUES ('x3')")
        document = registry.current(connection)["blogpost"]
        job = queue.create_fan_out(connection, document, {"public.notes": [{"ref": "2"}, {"ref": "x3"}]})
        assert job is not None
        world.refresh(index)
        ended = find(connection, job.id)
        assert ended.state is JobState.CANCELLED
        assert (ended.error or "").startswith(f"Job {job.id + 1} takes its place")
        assert find(connection, job.id + 1).state is JobState.DONE
        assert registry.current(connection)["blogpost"].is_loaded
    assert world.differences() == []


def test_a_fan_out_keeps_the_digits_of_its_cause(noted: World) -> None:
    """A numeric key with decimals, as it comes from the topic, is a cause like any other."""
    with noted.connect() as connection:
        document = registry.current(connection)["blogpost"]
        for number in ("1.5", "2.50"):
            job = queue.create_fan_out(connection, document, {"public.notes": [{"id": number, "ref": "3"}]})
        assert job is not None
        assert job.cause == {"public.notes": 2}


# Records that are no changes

NESTED = b'{"id":1,"changed_at":1,"relation":"public.posts","operation":"I","old":null,"new":{"id":%s%s%s}}'
GARBAGE = (
    b"",
    b"\xff\xfe",
    b"{",
    b'{"id": "one"}',
    b"[" * 50_000,
    b'{"id":1,"changed_at":1e999,"relation":"public.posts","operation":"T","old":null,"new":null}',
    b'{"id":1,"changed_at":1,"relation":"public.posts","operation":"X","old":null,"new":null}',
    b'{"id":1,"changed_at":1,"relation":"public.posts","operation":"I","old":null,"new":{"id":"\\u0000"}}',
    NESTED % (b"[" * 970, b"1", b"]" * 970),
    NESTED % (b'{"a":' * 500, b'"\\u0000"', b"}" * 500),
)


def put(world: World, *values: bytes) -> None:
    """Publish these values to one partition, as records of this database."""
    kafka = world.settings.kafka
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for one in values:
        ours: list[tuple[str, str | bytes | None]] = [(INSTALLATION, kafka.installation)]
        producer.produce(kafka.topic, one, b"key", partition=0, headers=ours)
    producer.flush()


def test_unreadable_records_are_made_up_for(world: World) -> None:
    """Changes before, between and behind them are written, and so is what they may have changed; all is committed."""
    world.sql(USER)
    world.sql(POSTS.format(5))
    handle(world)
    with world.index() as index, world.relay() as relay, world.worker(index) as worker:
        put(world, *GARBAGE[:4])
        world.sql("UPDATE posts SET title = 'other' WHERE id = 1")
        assert relay.run_once().published
        put(world, *GARBAGE[4:])
        world.sql("SET session_replication_role = replica; UPDATE posts SET title = 'not captured' WHERE id = 2")

        def turn() -> bool:
            worker.run_once()
            return world.is_handled()

        with capture_logs() as said:
            wait_until(turn, what="all is committed")
        world.refresh(index)
    world.wait_until_level()
    lost = [one for one in said if one["event"] == "topic.records_lost"]
    assert lost
    assert {one["log_level"] for one in lost} == {"error"}
    assert {one["documents"][0] for one in lost} == {"blogpost"}
    assert "not a change" in lost[0]["cause"]
    assert refreshes(world) == 1


# What is said


@pytest.mark.usefixtures("connection")
def test_a_stream_of_poison_is_said_once_and_then_counted(world: World) -> None:
    """The log has a line for the first, and one for all others: no number is lost."""
    name = world.index_of()
    began = time.monotonic()
    with capture_logs() as said, world.index() as index, world.writer(index) as writer:
        for _ in range(20):
            writer.write(name, ["1"])
    most = 3 + (time.monotonic() - began) / log_limit.QUIET_SECONDS
    told = [one for one in said if one["event"] == "document.dead_lettered"]
    assert sum(one["documents"] for one in told) == 20
    assert len(told) <= most, told
    assert len(letters(world)) == 1


# What cannot even be dead-lettered


@pytest.mark.parametrize("fault", ["views = 13", "created = 'infinity'"], ids=["select", "mapping"])
def test_what_cannot_be_dead_lettered_is_tried_again_and_told_of(dividing: World, fault: str) -> None:
    """It is not taken for done, nor tried without a pause.

    The log says it once, and it is dead-lettered once that can be.
    """
    world = dividing
    world.sql(POSTS.format(3))
    world.sql(f"UPDATE posts SET {fault} WHERE id = 2")
    world.sql("ALTER TABLE syncer.dead_letter ADD CONSTRAINT nothing CHECK (false) NOT VALID")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 5:
            world.sql("ALTER TABLE syncer.dead_letter DROP CONSTRAINT nothing")

    with world.index() as index, capture_logs() as logs:
        writer = Writer(connect=world.connect, index=index, pause=pause, name="test")
        report = writer.write(world.index_of(), ["1", "2", "3"])
        writer.close()
    assert (report.indexed, report.dead_lettered) == (2, 1)
    assert letters(world).keys() == {"2"}
    (told,) = [one for one in logs if one["event"] == "component.retried"]
    assert "cannot be dead-lettered: CheckViolation" in told["error"]
    assert len(pauses) >= 5
    assert pauses[4] > 4 * pauses[0]
