"""What cannot be written or read is set aside, whatever it is and however much, and everything else goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka import Producer
from structlog.testing import capture_logs

from syncer import dead_letters, jobs, repeated, store, unreadable
from syncer.dead_letters import Selection
from syncer.index import BulkOutcome
from syncer.job import JobKind, JobState, find, unfinished
from syncer.model import Change, Composition, Target
from syncer.postgres import Connection
from syncer.unreadable import Record
from syncer.writer import Writer
from tests.harness import BLOG_SCHEMA, World, wait_until
from tests.proof import Rule, faces

USER = "INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com')"
POSTS = "INSERT INTO posts (id, user_id, title, body) SELECT g, 1, 'title', 'body' FROM generate_series(1, {}) AS g"


def letters(world: World) -> dict[str, tuple[Any, ...]]:
    """Which documents are parked, of the index that serves: kind, field and type."""
    rows = world.sql(
        "SELECT id, kind, field, value_type FROM syncer.dead_letter JOIN syncer.document USING (index_name) "
        "WHERE role = 'serving'"
    )
    return {id_: tuple(rest) for id_, *rest in rows}


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


@faces(
    "two thousand rows of three thousand make the SELECT raise",
    promises=(1, 3),
    without=Rule(
        "a row that makes the SELECT raise is found out and set aside",
        module="syncer.writer",
        text="isolated = self._persist(partial(self._parking.isolate, index_name, group.ids))",
        instead="raise",
    ),
)
def test_rows_that_make_the_select_raise_are_parked_together(dividing: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is parked with its error, in a statement for each batch; those between them are written, and later they."""
    world = dividing
    world.sql(POSTS.format(3000))
    world.sql("UPDATE posts SET views = 13 WHERE id % 3 > 0")
    parked: list[int] = []
    park = dead_letters.park

    def counted(*arguments: Any) -> None:
        parked.append(len(arguments[3]))
        park(*arguments)

    monkeypatch.setattr(dead_letters, "park", counted)
    world.backfill()
    assert len(letters(world)) == 2000
    assert set(letters(world).values()) == {("DivisionByZero", None, None)}
    assert world.held().keys() == {str(one) for one in range(3, 3001, 3)}
    assert len([one for one in parked if one]) < 100, parked
    world.sql("UPDATE posts SET views = 0")
    world.backfill()
    assert world.differences() == []
    assert letters(world) == {}


@faces("a SELECT raises for many rows, and takes long for each", promises=(1,))
def test_a_slow_select_that_raises_is_looked_into_bit_by_bit(dividing: World) -> None:
    """Time that is up leaves the rest for the next look, and each look finds out something."""
    world = dividing
    world.sql(POSTS.format(40))
    world.sql("UPDATE posts SET views = 13")
    ids = [str(one) for one in range(1, 41)]
    looks = 0
    with world.index() as index, world.writer(index) as writer:
        while ids:
            found = writer._session.composer.faults(world.index_of(), ids, seconds=0)
            assert len(found.faults) + len(found.untried) == len(ids)
            assert found.faults
            ids = list(found.untried)
            looks += 1
    assert looks == 40


@faces("a mapping refuses thousands of documents, and is mended", promises=(1, 3))
def test_what_a_mapping_refuses_is_written_once_it_is_mended(world: World) -> None:
    """Every one is parked with its field and type; `syncer apply` writes them all, and no dead letter is left."""
    world.sql(USER)
    world.sql(POSTS.format(2100))
    world.sql("UPDATE posts SET created = 'infinity' WHERE id > 100")
    with capture_logs() as said:
        began = time.monotonic()
        world.backfill()
        most = 3 + (time.monotonic() - began) / repeated.QUIET_SECONDS
    assert len(letters(world)) == 2000
    assert set(letters(world).values()) == {("document_parsing_exception", "created", "string")}
    assert len(world.held()) == 100
    told = [one for one in said if one["event"] == "document.parked"]
    assert sum(one["documents"] for one in told) == 2000
    assert len(told) <= most, told
    index_json = world.document_folder / "index.json"
    index_json.write_text(
        index_json.read_text().replace('"created": { "type": "date" }', '"created": {"type": "keyword"}')
    )
    world.apply()
    assert world.differences() == []
    assert letters(world) == {}


@faces(
    "Elasticsearch refuses documents; then the mapping is mended in place, and applied",
    promises=(1, 3),
    without=Rule(
        "a dead letter goes away once a newer version is written",
        module="syncer.dead_letters",
        text="l.version < $3",
        instead="l.version < $3 AND false",
    ),
)
def test_a_mapping_that_is_changed_in_place_fills_what_was_parked(empty_world: World) -> None:
    """A field that a strict mapping lacked is added: the fill of the new generation writes what it refused."""
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
        assert set(letters(world).values()) == {("strict_dynamic_mapping_exception", "body", "string")}
        before = world.index_of()
        index_json.write_text(whole)
        world.apply()
        assert client.indices.exists(index=before)
    assert world.index_of() == before
    assert world.differences() == []
    assert letters(world) == {}


# At once


_LATE = Rule(
    "what is parked is looked at again, in case it has been mended meanwhile",
    module="syncer.writer",
    text="if parked and follows:",
    instead="if False and parked and follows:",
)


@faces("a document is mended and written between its refusal and its dead letter", promises=(3,), without=_LATE)
@pytest.mark.parametrize("mend", ["UPDATE posts SET created = now()", "DELETE FROM posts"])
def test_a_refusal_that_comes_late_parks_nothing(world: World, connection: Connection, mend: str) -> None:
    """A slow writer sends what a quick one has overtaken: Elasticsearch refuses it, and nothing is wrong."""
    name = world.index_of()
    with world.index() as index, world.writer(index) as slow, world.writer(index) as quick:
        attempt = slow.compose(name, ["1"])
        world.sql(mend)
        quick.write(name, ["1"])
        slow.send(attempt)
        assert attempt.rejections
        again = slow.settle(attempt)
        assert again == ["1"]
        slow.write(name, again)
    assert dead_letters.count(connection, Selection()) == 0
    assert world.differences() == []


@faces(
    "a document changes each time that Elasticsearch refuses it for good",
    promises=(3,),
    without=Rule(
        "only what Elasticsearch asks to try again is trouble of a server",
        module="syncer.writer",
        text="attempt.refused.extend(again.values())",
        instead="attempt.refused.extend(attempt.rejections)",
    ),
)
@pytest.mark.usefixtures("connection")
def test_a_refusal_of_what_has_changed_is_no_outage(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is composed again at once; the log says of no server that it is unwell, and quotes no value."""
    with world.index() as index, world.writer(index) as writer, capture_logs() as logs:
        send = index.write
        changes = iter(["UPDATE posts SET views = views + 1, title = 'of a row'", "UPDATE posts SET created = now()"])

        def refused(target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
            outcome = send(target, compositions)
            world.sql(next(changes, "SELECT 1"))
            return outcome

        monkeypatch.setattr(index, "write", refused)
        report = writer.write(world.index_of(), ["1"])
    assert (report.indexed, report.parked) == (1, 0)
    assert not [one for one in logs if one["event"] == "stage.retried"]
    assert letters(world) == {}
    assert world.differences() == []


@faces(
    "a row is mended and written between the failure of its SELECT and its dead letter",
    promises=(3,),
    without=Rule(
        "what is parked is tried again, in case it has been mended meanwhile",
        module="syncer.parking",
        text="mended = self._mended_since(index_name, list(found.faults)) if found.faults else set()",
        instead="mended = set[str]()",
    ),
)
def test_a_failure_that_is_late_parks_nothing(dividing: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else has written the mended row before it was parked: it does not stay parked."""
    world = dividing
    world.sql(POSTS.format(2))
    world.sql("UPDATE posts SET views = 13 WHERE id = 1")
    park = dead_letters.park
    with world.index() as index, world.writer(index) as slow, world.writer(index) as quick:
        name = world.index_of()

        def late(*arguments: Any) -> None:
            monkeypatch.setattr(dead_letters, "park", park)
            world.sql("UPDATE posts SET views = 0")
            quick.write(name, ["1"])
            park(*arguments)

        monkeypatch.setattr(dead_letters, "park", late)
        slow.write(name, ["1", "2"])
    assert letters(world) == {}
    assert world.differences() == []


@faces(
    "a row is mended, and composed for the mend, before its older failure is parked",
    promises=(3,),
    without=(
        Rule(
            "a dead letter has a version from before its failure was read",
            module="syncer.compose",
            text="return Findings(\n                version=drawn,",
            instead="return Findings(\n                version=drawn + 1000,",
        ),
        Rule(
            "who has written looks for dead letters after that",
            module="syncer.writer",
            text="if batch.has_dead_letters or (state is not None and state.has_dead_letters):",
            instead="if batch.has_dead_letters:",
        ),
    ),
)
def test_a_mend_clears_a_letter_that_was_parked_after_it_was_composed(dividing: World) -> None:
    """The failure was drawn before: whoever writes the mended row clears it, though he read before it was there."""
    world = dividing
    world.sql(POSTS.format(1))
    world.sql("UPDATE posts SET views = 13")
    name = world.index_of()
    with world.index() as index, world.writer(index) as slow, world.writer(index) as quick:
        for one in (slow, quick):
            assert one._session.composer  # which lets the sequence jump
        found = slow._session.composer.faults(name, ["1"], seconds=1)
        world.sql("UPDATE posts SET views = 0")
        attempt = quick.compose(name, ["1"])
        with world.connect() as connection:
            dead_letters.park(connection, name, found.version, found.faults)
        quick.send(attempt)
        assert quick.settle(attempt) == []
    assert letters(world) == {}


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


@faces(
    "a change makes the affects query raise, beside others that do not",
    promises=(1, 3),
    without=Rule(
        "a change of which nobody knows whom it touches touches all, and halts nobody",
        module="syncer.affected",
        text="following(self._connection, document, parks=True, lock_seconds=STAGE_LOCK_SECONDS),",
        instead="following(self._connection, document, lock_seconds=STAGE_LOCK_SECONDS),",
    ),
)
def test_a_change_that_cannot_be_followed_refreshes_all(noted: World) -> None:
    """The others in its batch are written at once, the document goes on, and a job writes all of it."""
    world = noted
    world.sql("INSERT INTO notes (ref) VALUES ('2'), ('x3'), ('1')")
    with world.index() as index, world.relay() as relay, world.worker(index) as worker, world.connect() as connection:

        def turn() -> bool:
            relay.run_once()
            worker.run_once()
            return bool(unfinished(connection))

        def turn_for_others() -> bool:
            turn()
            return {id_: one["notes"] for id_, one in world.held().items()} == {"1": 1, "2": 1, "3": 0}

        with capture_logs() as said:
            wait_until(turn, what="a job is made")
            wait_until(turn_for_others, what="the others are written")
        assert [one.kind for one in unfinished(connection)] == [JobKind.REFRESH]
        world.refresh(index)
    assert world.differences() == []
    assert world.sql("SELECT halted FROM syncer.document") == [(None,)]
    [unplaced] = [one for one in said if one["event"] == "worker.changes_unplaced"]
    assert unplaced["kind"] == "InvalidTextRepresentation"
    assert "x3" not in json.dumps(said, default=str)


@faces(
    "the affects query raises only when a fan-out is listed",
    promises=(1, 3),
    without=Rule(
        "a refresh takes the place of a fan-out that cannot be listed",
        module="syncer.listing",
        text="if job.kind is not JobKind.FAN_OUT or not is_of_data(error.__cause__):",
        instead="if True:",
    ),
)
def test_a_fan_out_that_cannot_be_listed_refreshes_all(noted: World) -> None:
    """The job ends, and says which one does its work; the document is not halted."""
    world = noted
    with world.index() as index, world.connect() as connection:
        world.sql("INSERT INTO notes (ref) VALUES ('x3')")
        document = store.served(connection)["blogpost"]
        job = jobs.create_fan_out(connection, document, {"public.notes": [{"ref": "2"}, {"ref": "x3"}]})
        assert job is not None
        world.refresh(index)
        ended = find(connection, job.id)
        assert ended.state is JobState.CANCELLED
        assert (ended.error or "").startswith(f"Job {job.id + 1} takes its place")
        assert find(connection, job.id + 1).state is JobState.DONE
        assert store.served(connection)["blogpost"].is_filled
    assert world.differences() == []


@faces("a change that touches many documents has a key with decimals", promises=(1,))
def test_a_fan_out_keeps_the_digits_of_its_cause(noted: World) -> None:
    """A numeric key with decimals, as it comes from the topic, is a cause like any other."""
    with noted.connect() as connection:
        document = store.served(connection)["blogpost"]
        for number in ("1.5", "2.50"):
            job = jobs.create_fan_out(connection, document, {"public.notes": [{"id": Decimal(number), "ref": "3"}]})
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
    """What somebody else's producer puts on the topic, in one partition."""
    producer = Producer({"bootstrap.servers": world.endpoints.kafka_bootstrap_servers})
    for one in values:
        producer.produce(world.settings.kafka.topic, one, b"key", partition=0)
    producer.flush()


@faces(
    "records on the topic are no changes: no JSON, no text, nested without end, of another shape",
    promises=(1, 3),
    without=(
        Rule(
            "what is no change is kept in Postgres before its offset is committed",
            module="syncer.membership",
            text="only_counted = persist(partial(self._keep_unread, records), pause=self.pause, stage=self._name)",
            instead="only_counted = 0",
        ),
        Rule(
            "what is no change ends nobody",
            module="syncer.membership",
            text="        except ValueError:\n            changes, records",
            instead="        except ZeroDivisionError:\n            changes, records",
        ),
    ),
)
def test_a_record_that_is_no_change_is_kept_and_holds_up_nobody(world: World) -> None:
    """Changes before, between and behind them are written; each is there with its place and bytes; all is committed."""
    world.sql(USER)
    world.sql(POSTS.format(5))
    with world.index() as index, world.relay() as relay, world.worker(index) as worker, world.connect() as connection:
        put(world, *GARBAGE[:4])
        world.drain(relay, worker)
        put(world, *GARBAGE[4:])
        world.sql("UPDATE posts SET title = 'other'")
        world.drain(relay, worker)

        def turn() -> bool:
            worker.run_once()
            return unreadable.total(connection) == len(GARBAGE)

        wait_until(turn, what="all are kept")
        kept = unreadable.page(connection, limit=100)
        assert {one.value for one in kept} == {one[: unreadable.VALUE_BYTES_MAX] for one in GARBAGE}
        assert {one.key for one in kept} == {b"key"}
        assert {one.partition for one in kept} == {0}
        assert len({one.offset for one in kept}) == len(GARBAGE)
        assert [one.value_bytes for one in kept if not one.is_whole] == [50_000]
        for one in kept:
            with pytest.raises(ValueError, match="not a change"):
                Change.parse(one.value)


@faces("a foreign producer floods the topic", promises=(1,))
def test_no_more_records_are_kept_than_the_bound(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that floods the topic fills neither the database nor the log: the rest is counted."""
    monkeypatch.setattr(unreadable, "KEPT_MAX", 10)
    with world.index() as index, world.worker(index) as worker, world.connect() as connection:
        put(world, *(b"garbage %d" % number for number in range(300)))

        def turn() -> bool:
            worker.run_once()
            return unreadable.total(connection) == 300

        with capture_logs() as said:
            began = time.monotonic()
            wait_until(turn, what="all are counted")
            most = 2 + (time.monotonic() - began) / repeated.QUIET_SECONDS
        [topic] = unreadable.topics(connection)
        assert (topic.kept, topic.only_counted) == (10, 290)
        told = [one for one in said if one["event"] == "worker.records_parked"]
        assert len(told) <= most, told
        assert unreadable.discard(connection) == 10
        assert unreadable.total(connection) == 0


@faces(
    "a record that is no change is received twice",
    promises=(1,),
    without=Rule(
        "a record is known by its place and its bytes",
        module="syncer.unreadable",
        text="places.pop((partition, offset, bytes(digest)), None)",
        instead="pass",
    ),
)
def test_a_record_that_comes_twice_is_kept_once(world: World) -> None:
    """A rebalance gives it again; another record in its place, of a topic that was made anew, is another one."""
    one = Record(partition=0, offset=7, key=None, value=b"garbage", error="no change")
    other = Record(partition=0, offset=7, key=b"k", value=b"other", error="no change")
    with world.connect() as connection:
        for records in ([one], [one, one], [one, other]):
            assert unreadable.park(connection, "topic", records) == 0
        assert [kept.value for kept in unreadable.page(connection, limit=9)] == [b"garbage", b"other"]
        assert unreadable.total(connection) == 2


# What is said


@faces(
    "one poisonous document changes again and again",
    promises=(3,),
    without=Rule(
        "what was just said is only counted",
        module="syncer.repeated",
        text="is_due=is_urgent or now - count.said_at >= count.seconds)",
        instead="is_due=True)",
    ),
)
def test_a_stream_of_poison_is_said_once_and_then_counted(world: World, connection: Connection) -> None:
    """The log has a line for the first, and one for all others: no number is lost."""
    name = world.index_of()
    began = time.monotonic()
    with capture_logs() as said, world.index() as index, world.writer(index) as writer:
        for _ in range(20):
            writer.write(name, ["1"])
    most = 3 + (time.monotonic() - began) / repeated.QUIET_SECONDS
    told = [one for one in said if one["event"] == "document.parked"]
    assert sum(one["documents"] for one in told) == 20
    assert len(told) <= most, told
    assert dead_letters.count(connection, Selection()) == 1


# What cannot even be parked


@pytest.mark.parametrize("fault", ["views = 13", "created = 'infinity'"], ids=["select", "mapping"])
@faces(
    "a dead letter cannot be recorded: of a row that makes the SELECT raise, of one that the mapping refuses",
    promises=(1,),
    without=Rule(
        "what cannot be parked is trouble, which is told of, and tried again",
        module="syncer.parking",
        text="            if decide(error) is not Action.PARK:\n                raise\n            raise ParkingError(",
        instead="            raise\n            raise ParkingError(",
    ),
)
def test_what_cannot_be_parked_is_tried_again_and_told_of(dividing: World, fault: str) -> None:
    """It is not taken for done, nor tried without a pause; the log says it once, and it is parked once that can be."""
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
    assert (report.indexed, report.parked) == (2, 1)
    assert letters(world).keys() == {"2"}
    (told,) = [one for one in logs if one["event"] == "stage.retried"]
    assert "cannot be parked: CheckViolation" in told["error"]
    assert len(pauses) >= 5
    assert pauses[4] > 4 * pauses[0]
