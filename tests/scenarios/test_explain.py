"""Why a document is as it is: each verdict where it holds, whatever moves meanwhile, whatever a stranger asks."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from syncer.base.errors import DefinitionError
from syncer.documents import registry
from syncer.jobs import listing, queue
from syncer.jobs.model import JobKind
from syncer.kafka import topic
from syncer.relay.loop import Relay
from syncer.verify.explain import explanation
from syncer.verify.explain.explanation import Explanation
from syncer.verify.explain.verdict import Verdict
from syncer.worker.loop import Worker
from tests.harness import DEADLINE_SECONDS, World, wait_until
from tests.routed import put, put_routing, put_shards, shards, users_on_two_shards

BLOG = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com'), (3, 'Alice John', 'alice@john.com');
INSERT INTO posts (id, user_id, title, body) VALUES
    (2, 1, 'Relationships', 'long'), (4, 3, 'are cool', 'short'), (5, 3, 'to the last', 'post');
INSERT INTO comments (id, post_id, name, comment) VALUES (1, 2, 'Alice White', 'More'), (2, 2, 'Bob', 'Less');
"""
FAR_AHEAD = 1 << 62
"""A version that no assign reaches: whatever was written with it stays."""
NOWHERE = {"SYNCER_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A relay and a worker that turn only when the test says so."""

    world: World
    relay: Relay
    worker: Worker

    def drain(self) -> None:
        """Turn both until nothing is on its way, and the offsets say so."""
        self.world.drain(self.relay, self.worker)
        self.handle()

    def publish_and_handle(self) -> None:
        """Turn each once, and the worker until the offsets say so."""
        self.relay.run_once()
        self.handle()

    def handle(self) -> None:
        """Turn the worker until nothing is in the topic that it has not handled, and the offsets say so."""
        self.world.handle(self.worker)


@pytest.fixture
def parts(world: World) -> Iterator[Parts]:
    """The blog, followed until it is level."""
    world.sql(BLOG)
    with world.index() as index, world.relay() as relay, world.worker(index) as worker:
        made = Parts(world=world, relay=relay, worker=worker)
        made.drain()
        yield made


level = pytest.mark.usefixtures("parts")


def explained(world: World, id_: str = "2", *, seconds: float = 60) -> Explanation:
    """What syncer explains of one post."""
    with world.connect() as connection, world.index() as index:
        documents = [one for one in registry.documents(connection) if one.name == "blogpost"]
        return explanation.read(connection, index, world.settings.kafka, documents, id_, seconds=seconds)


def verdict(seen: Explanation) -> Verdict:
    """The verdict on the only index."""
    ((_, answer),) = seen.standings
    return answer.verdict


def says(seen: Explanation) -> str:
    """The first sentence."""
    ((_, answer),) = seen.standings
    return answer.says


# The verdicts


@level
def test_what_equals_its_select_says_so(world: World) -> None:
    """Nothing differs: exit code 0, with its version and the tables that it reads."""
    seen = explained(world)
    assert verdict(seen) is Verdict.EQUAL
    assert seen.is_equal
    ((standing, _),) = seen.standings
    assert standing.fields == {}
    assert [one.origin for one in standing.copies] == ["assigned"]
    done = world.syncer("explain", "blogpost", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Equal to its SELECT.\n")
    assert re.search(r"reads +public.comments, public.posts, public.users", done.stdout)


def test_a_change_is_followed_from_the_outbox_to_the_index(world: World, parts: Parts) -> None:
    """In the outbox, in the topic, handled: it is said where changes are, and the document is behind until then."""
    world.sql("UPDATE users SET name = 'J. Smith' WHERE id = 1")
    seen = explained(world)
    assert verdict(seen) is Verdict.BEHIND
    assert seen.in_flight == "1 change in the outbox"
    assert says(seen) == "Different; changes in flight may explain that: 1 change in the outbox."
    ((standing, _),) = seen.standings
    assert standing.fields.keys() == {"user"}

    parts.relay.run_once()
    seen = explained(world)
    assert (verdict(seen), seen.in_flight) == (Verdict.BEHIND, "1 record in the topic")
    parts.handle()
    seen = explained(world)
    assert (verdict(seen), seen.in_flight) == (Verdict.EQUAL, "")


def test_what_is_equal_is_equal_whatever_is_in_flight(world: World, parts: Parts) -> None:
    """Changes of other documents are no reason to wait, or to doubt what equals its SELECT."""
    world.sql("UPDATE posts SET title = 'new' WHERE id = 4")
    assert verdict(explained(world, "2")) is Verdict.EQUAL
    parts.drain()
    assert verdict(explained(world, "4")) is Verdict.EQUAL


@level
def test_a_lost_write_has_drifted(world: World) -> None:
    """What differs with nothing on its way says so, what a refresh would do, and how to repair it."""
    with world.elasticsearch() as client:
        client.delete(index=world.alias, id="2")
        put(client, world, "77", None, {"title": "nobody wrote this"})
    seen = explained(world)
    assert verdict(seen) is Verdict.DRIFTED
    assert says(seen) == "Missing from Elasticsearch, and no change is in flight."
    assert explained(world, "4").is_equal
    seen = explained(world, "77")
    assert verdict(seen) is Verdict.DRIFTED
    assert "another client wrote" in says(seen)
    done = world.syncer("explain", "blogpost", "2")
    assert done.returncode == 1
    assert "syncer verify blogpost --repair" in done.stdout
    assert "a refresh      would write it" in done.stdout


@level
def test_a_hand_edited_document_is_told_from_a_final_one(world: World) -> None:
    """A version that syncer will surpass can be repaired; one that it never reaches needs a new index."""
    edited = {**world.expected()["2"], "title": "edited by hand"}
    with world.elasticsearch() as client:
        put(client, world, "2", None, edited)
        client.index(index=world.alias, id="4", document=edited, version=FAR_AHEAD, version_type="external")
        equal = world.expected()["5"]
        client.index(index=world.alias, id="5", document=equal, version=FAR_AHEAD, version_type="external")
    seen = explained(world)
    assert verdict(seen) is Verdict.DRIFTED
    assert seen.standings[0][0].fields == {"title": ("Relationships", "edited by hand")}
    for id_ in ("4", "5"):
        seen = explained(world, id_)
        assert verdict(seen) is Verdict.FOREIGN
        assert "syncer index rebuild blogpost" in seen.standings[0][1].hint
        assert not seen.is_equal
    # No backfill of today's index can do anything about it, as was said.
    assert world.syncer("backfill", "blogpost").returncode == 0
    assert explained(world, "2").is_equal
    assert verdict(explained(world, "4")) is Verdict.FOREIGN


def test_a_dead_lettered_document_says_why(world: World, parts: Parts) -> None:
    """What the mapping refuses is dead-lettered; once the row is fixed it is behind, and then equal."""
    relay = parts.relay
    world.sql("UPDATE posts SET created = 'infinity' WHERE id = 2")
    relay.run_once()
    parts.handle()
    seen = explained(world)
    assert verdict(seen) is Verdict.DEAD_LETTERED
    assert says(seen).startswith("Dead-lettered: document_parsing_exception: ")
    said = json.loads(world.syncer("explain", "blogpost", "2", "--json").stdout)
    assert said["indices"][0]["dead_letter"].keys() == {"error", "version", "failed_at"}
    world.sql("UPDATE posts SET created = now() WHERE id = 2")
    parts.drain()
    assert explained(world).is_equal


def test_a_select_that_fails_on_one_document(world: World, parts: Parts) -> None:
    """It is said before any worker has dead-lettered it, of that document only, and after that as well."""
    relay = parts.relay
    select = world.document_folder / "select.sql"
    select.write_text(select.read_text().replace("p.body,", "p.body, (100 / (p.views - 13))::text AS title2,"))
    mapping = world.document_folder / "index.json"
    mapping.write_text(mapping.read_text().replace('"strict"', "true"))
    world.apply()
    world.sql("UPDATE posts SET views = 13 WHERE id = 2")
    seen = explained(world)
    assert verdict(seen) is Verdict.FAILING
    assert says(seen) == "Its SELECT fails: division by zero."
    assert explained(world, "4").is_equal
    relay.run_once()
    parts.handle()
    seen = explained(world)
    assert verdict(seen) is Verdict.DEAD_LETTERED
    assert says(seen) == "Dead-lettered: division by zero."
    assert world.syncer("explain", "blogpost", "2").returncode == 1


def test_a_suspended_document_says_why(world: World, parts: Parts) -> None:
    """Whether a worker has met it or not: a renamed column is the reason, and syncer apply the way out."""
    relay = parts.relay
    world.sql("ALTER TABLE posts RENAME title TO heading")
    seen = explained(world)
    assert verdict(seen) is Verdict.SUSPENDED
    assert "title" in says(seen)
    world.sql("UPDATE posts SET body = 'new' WHERE id = 2")
    relay.run_once()
    parts.handle()
    seen = explained(world)
    assert verdict(seen) is Verdict.SUSPENDED
    assert says(seen).startswith("blogpost is suspended: ")
    done = world.syncer("explain", "blogpost", "2")
    assert done.returncode == 1
    assert "syncer apply" in done.stdout


@level
def test_an_index_that_is_gone(world: World) -> None:
    """Nothing can be compared: it says that the index is gone, and what to do."""
    with world.elasticsearch() as client:
        client.indices.delete(index=f"{world.alias}-000001")
    done = world.syncer("explain", "blogpost", "2")
    assert done.returncode == 1
    assert "is gone" in done.stdout
    assert "syncer apply" in done.stdout
    assert "its SELECT returns it" in done.stdout


def test_a_document_that_was_not_loaded(world: World) -> None:
    """A document that lacks only because its index has not been loaded says that, not that it has drifted."""
    world.sql("ALTER TABLE posts DISABLE TRIGGER ALL")
    world.sql(BLOG)
    world.sql("TRUNCATE syncer.outbox")
    world.sql("UPDATE syncer.document SET loaded_at = NULL")
    seen = explained(world)
    assert verdict(seen) is Verdict.INCOMPLETE
    assert "syncer apply" in seen.standings[0][1].hint


@level
def test_a_job_that_may_yet_write_it_is_named(world: World) -> None:
    """What differs while a backfill is under way, or is paused, is not called drift; nor is what it will delete."""
    with world.elasticsearch() as client:
        client.delete(index=world.alias, id="2")
        put(client, world, "77", None, {"title": "nobody wrote this"})
    with world.connect() as connection, world.index() as index:
        made = queue.create(connection, registry.current(connection)["blogpost"], JobKind.BACKFILL)
        assert made is not None
        queue.pause(connection, made.id)
        for id_ in ("2", "77"):
            seen = explained(world, id_)
            assert verdict(seen) is Verdict.BEHIND
            assert f"job {made.id} (backfill) is writing all documents, but is paused" in says(seen)
        queue.resume(connection, made.id)
        world.refresh(index)
    assert explained(world).is_equal
    assert verdict(explained(world, "77")) is Verdict.ABSENT


@level
def test_a_fan_out_that_leads_to_it_is_named(world: World) -> None:
    """While it is not listed, and while a chunk has it; another one is not."""
    world.sql("UPDATE users SET name = 'renamed' WHERE id = 1")
    world.sql("TRUNCATE syncer.outbox")
    with world.connect() as connection, world.index() as index:
        document = registry.current(connection)["blogpost"]
        other = queue.create_fan_out(connection, document, {"public.users": [{"id": "3"}]})
        assert other is not None
        listing.list_chunks(connection, other, document, chunk=10)
        assert verdict(explained(world)) is Verdict.DRIFTED
        made = queue.create_fan_out(connection, document, {"public.users": [{"id": "1"}]})
        assert made is not None
        who = f"job {made.id} (fan_out: public.users, 1 row)"
        assert f"{who} has yet to write it: 0 of an unknown number done" in says(explained(world))
        queue.cancel(connection, other.id)
        listing.list_chunks(connection, made, document, chunk=10)
        assert f"{who} has yet to write it: 0 of" in says(explained(world))
        world.refresh(index)
    assert explained(world).is_equal


def test_a_copy_on_another_shard_is_in_the_wrong_place(empty_world: World) -> None:
    """Both copies are shown, each with its routing, and a refresh would remove the one."""
    world = empty_world
    put_shards(world, 5)
    put_routing(world, "p.user_id")
    world.set_up()
    world.sql(BLOG)
    with world.index() as index, world.relay() as relay, world.worker(index) as worker:
        Parts(world=world, relay=relay, worker=worker).drain()
        one, other = users_on_two_shards(shards(world, index))
    with world.elasticsearch() as client:
        put(client, world, "2", str(other), {"title": "left behind"})
    seen = explained(world)
    assert verdict(seen) is Verdict.DRIFTED
    assert says(seen).startswith("In the wrong place")
    assert {copy.place.routing for copy in seen.standings[0][0].copies} == {str(one), str(other)}
    said = json.loads(world.syncer("explain", "blogpost", "2", "--json").stdout)
    assert said["indices"][0]["refresh"]["does"] == "move"
    assert said["indices"][0]["postgres"]["routing"] == str(one)


# Whatever moves meanwhile


def test_what_is_handled_while_it_is_looked_at_is_no_drift(
    world: World, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change that is handled between the two looks leaves no false verdict."""
    rounds = overtaking(monkeypatch, before=parts.publish_and_handle)
    world.sql("UPDATE posts SET title = 'new' WHERE id = 2")
    assert verdict(explained(world)) is Verdict.EQUAL
    assert len(rounds) == 1


def test_what_is_written_all_the_while_is_no_drift(world: World, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document that changes again each time, and differs at each look, is changing."""
    overtaking(
        monkeypatch,
        before=parts.publish_and_handle,
        after=lambda: world.sql("UPDATE posts SET title = title || '!' WHERE id = 2"),
    )
    world.sql("UPDATE posts SET title = 'new' WHERE id = 2")
    assert verdict(explained(world)) is Verdict.CHANGING


def overtaking(
    monkeypatch: pytest.MonkeyPatch, *, before: Callable[[], Any], after: Callable[[], Any] = lambda: None
) -> list[None]:
    """Do these things around each time that changes in flight are waited for; how often that was."""
    wait, rounds = explanation._in_flight, list[None]()

    def overtaken(*arguments: Any) -> str:
        rounds.append(None)
        before()
        says = wait(*arguments)
        after()
        return says

    monkeypatch.setattr(explanation, "_in_flight", overtaken)
    return rounds


def test_live_traffic_is_never_called_drift(world: World) -> None:
    """While a daemon follows writers that change one document all the time, it is equal, behind or changing."""
    world.sql(BLOG)
    world.daemon().wait_for("relay.led")
    world.wait_until_level()
    stop = threading.Event()

    def write() -> None:
        with world.application() as connection:
            while not stop.is_set():
                connection.execute("UPDATE posts SET title = title || '!' WHERE id = 2")
                connection.execute("UPDATE users SET name = name || '!' WHERE id = 1")
                connection.commit()
                stop.wait(0.01)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        verdicts: list[Verdict] = []
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(verdicts) < 8 and time.monotonic() < deadline:
            verdicts.append(verdict(explained(world)))
    finally:
        stop.set()
        writer.join()
    assert set(verdicts) <= {Verdict.EQUAL, Verdict.BEHIND, Verdict.CHANGING}, verdicts
    world.wait_until_level()
    wait_until(lambda: explained(world).is_equal, what="it is equal in the end")


def test_workers_are_not_disturbed(world: World, parts: Parts) -> None:
    """Looking joins no group, commits no offset, assigns no version, and leaves the relay's cursor alone."""
    relay = parts.relay
    world.sql("UPDATE posts SET title = 'new' WHERE id = 2")
    relay.run_once()
    world.sql("UPDATE posts SET title = 'newer' WHERE id = 2")
    kafka = world.settings.kafka
    wait_until(lambda: sum(one.records for one in topic.Observer(kafka).lag()) == 1, what="one record waits")

    def state() -> tuple[Any, ...]:
        return (
            topic.Observer(kafka).members(),
            topic.Observer(kafka).lag(),
            world.sql("SELECT last_value FROM syncer.version"),
            world.sql("SELECT snapshot::text FROM syncer.relay_cursor"),
            world.sql("SELECT count(*) FROM syncer.outbox"),
            world.held(),
        )

    before = state()
    for _ in range(3):
        assert verdict(explained(world)) is Verdict.BEHIND
    assert state() == before
    assert before[0] == 1


# What cannot be looked at


@level
def test_without_kafka_the_rest_is_shown(world: World) -> None:
    """What is equal is equal all the same; of what differs it is not said that no change is in flight."""
    done = world.syncer("explain", "blogpost", "2", environment=NOWHERE)
    assert done.returncode == 0, done.stdout
    with world.elasticsearch() as client:
        client.delete(index=world.alias, id="2")
    done = world.syncer("explain", "blogpost", "2", environment=NOWHERE)
    assert done.returncode == 1
    assert "changes in flight may explain that: Kafka cannot be reached" in done.stdout
    assert "its SELECT returns it" in done.stdout


# What a stranger asks wrongly


@level
def test_bad_input_is_explained(world: World) -> None:
    """An unknown document, letters for a number, another spelling of a number, nothing, far too much."""
    for id_, *words in (
        ("abc", "'abc' cannot be an id of blogpost", "bigint"),
        ("99999999999999999999", "cannot be an id", "bigint"),
        ("007", "written 7"),
        ("", "1 to 512 bytes"),
        ("x" * 513, "1 to 512 bytes"),
    ):
        with pytest.raises(DefinitionError) as raised:
            explained(world, id_)
        assert all(word in f"{raised.value.message}\n{raised.value.hint}" for word in words), raised.value.message
    done = world.syncer("explain", "blogspot", "2")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "No document blogspot is active" in done.stderr
    assert "Active documents: blogpost" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_id_that_only_somebody_else_would_write_is_explained(world: World) -> None:
    """What cannot be an id, and is in Elasticsearch all the same, is what a person asks about."""
    with world.elasticsearch() as client:
        put(client, world, "ghost", None, {"title": "boo"})
    seen = explained(world, "ghost")
    assert verdict(seen) is Verdict.DRIFTED
    assert says(seen).startswith("Elasticsearch has it and Postgres does not: another client wrote")


def test_no_such_document(world: World, parts: Parts) -> None:
    """Neither side has it: exit code 1."""
    world.sql("DELETE FROM posts WHERE id = 4")
    parts.drain()
    seen = explained(world, "4")
    assert verdict(seen) is Verdict.ABSENT
    assert not seen.is_equal
    assert world.syncer("explain", "blogpost", "12345").returncode == 1


# What is shown


@level
def test_values_are_shown_only_on_request(world: World) -> None:
    """Names and keys without --values; both sides with it, cut for a person and whole as JSON."""
    long = "xylophone " * 100
    world.sql("UPDATE posts SET title = %s WHERE id = 2", long)
    for arguments in ((), ("--json",)):
        done = world.syncer("explain", "blogpost", "2", *arguments)
        assert "xylophone" not in done.stdout
        assert "title" in done.stdout
    shown = world.syncer("explain", "blogpost", "2", "--values").stdout
    assert "xylophone" in shown
    assert "(1,000 characters)" in shown
    assert "Relationships" in shown
    said = json.loads(world.syncer("explain", "blogpost", "2", "--values", "--json").stdout)
    assert said["indices"][0]["refresh"]["fields"] == {"title": {"postgres": long, "elasticsearch": "Relationships"}}
    assert said["indices"][0]["postgres"]["source"]["title"] == long


def test_json_has_the_documented_keys(world: World, parts: Parts) -> None:
    """A script finds the same keys whatever the verdict."""
    relay = parts.relay
    world.sql("UPDATE posts SET title = 'new' WHERE id = 2")
    relay.run_once()
    for id_, code in (("2", 1), ("4", 0), ("999", 1)):
        done = world.syncer("explain", "blogpost", id_, "--json")
        assert done.returncode == code
        said = json.loads(done.stdout)
        assert said.keys() == {"document", "id", "at", "is_equal", "in_flight", "indices"}
        (one,) = said["indices"]
        assert one.keys() == {
            "index", "role", "revision", "is_loaded", "suspended", "reads", "verdict", "says", "hint", "postgres",
            "elasticsearch", "unreadable", "refresh", "dead_letter", "jobs",
        }  # fmt: skip
