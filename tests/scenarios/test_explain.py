"""Why a document is as it is: each verdict where it holds, whatever moves meanwhile, whatever a stranger asks."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from syncer import jobs, listing, outbox, store, topic
from syncer.affected import Affected, AffectedReader
from syncer.errors import DefinitionError
from syncer.explain import events, explanation
from syncer.explain.events import Flow, Limits, Stage
from syncer.explain.explanation import Explanation
from syncer.explain.verdict import Verdict
from syncer.job import JobKind
from syncer.model import Change
from syncer.producer import ChangeProducer
from syncer.relay import Relay
from syncer.worker import Worker
from tests.harness import DEADLINE_SECONDS, World, wait_until
from tests.lane import Lane
from tests.routed import put, put_routing, put_shards, shards, users_on_two_shards

BLOG = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com'), (3, 'Alice John', 'alice@john.com');
INSERT INTO posts (id, user_id, title, body) VALUES
    (2, 1, 'Relationships', 'long'), (4, 3, 'are cool', 'short'), (5, 3, 'to the last', 'post');
INSERT INTO comments (id, post_id, name, comment) VALUES (1, 2, 'Alice White', 'More'), (2, 2, 'Bob', 'Less');
"""
FAR_AHEAD = 1 << 62
"""A version that no draw reaches: whatever was written with it stays."""
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


def explained(world: World, id_: str = "2", *, limits: Limits | None = None) -> Explanation:
    """What syncer explains of one post."""
    with world.connect() as connection, world.index() as index:
        documents = [one for one in store.documents(connection) if one.name == "blogpost"]
        return explanation.read(
            connection, index, world.settings.kafka, documents, id_, limits=limits or Limits(seconds=60)
        )


def verdict(seen: Explanation) -> Verdict:
    """The verdict on the only index."""
    ((_, answer),) = seen.standings
    return answer.verdict


def says(seen: Explanation) -> str:
    """The first sentence."""
    ((_, answer),) = seen.standings
    return answer.says


def found(seen: Explanation) -> list[tuple[str, str, dict[str, Any], Stage]]:
    """The changes that touch it: table, operation, key, stage."""
    return [(one.relation, one.operation.name, one.key, one.stage) for one in (*seen.flow.done, *seen.flow.coming)]


# The verdicts


@level
def test_what_equals_its_select_says_so(world: World) -> None:
    """Nothing differs and nothing is on its way: exit code 0, with the changes that made it so."""
    seen = explained(world)
    assert verdict(seen) is Verdict.EQUAL
    assert seen.is_equal
    ((standing, _),) = seen.standings
    assert standing.fields == {}
    assert [one.origin for one in standing.copies] == ["drawn"]
    assert found(seen) == [
        ("public.users", "INSERT", {"id": 1}, "done"),
        ("public.posts", "INSERT", {"id": 2}, "done"),
        ("public.comments", "INSERT", {"id": 1}, "done"),
        ("public.comments", "INSERT", {"id": 2}, "done"),
    ]
    done = world.syncer("explain", "blogpost", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Equal to its SELECT.\n")


def test_a_change_is_followed_from_the_outbox_to_the_index(world: World, parts: Parts) -> None:
    """In the outbox, in both, in the topic, done: it is said where it is, and the document is behind until then."""
    relay = parts.relay
    world.sql("UPDATE users SET name = 'J. Smith' WHERE id = 1")
    seen = explained(world)
    assert verdict(seen) is Verdict.BEHIND
    assert says(seen).startswith("Behind: 1 change is in the outbox, ")
    assert [(one.relation, one.key, one.partition) for one in seen.flow.coming] == [("public.users", {"id": 1}, None)]
    ((standing, _),) = seen.standings
    assert standing.fields.keys() == {"user"}

    relay.run_once()
    world.sql("UPDATE posts SET title = 'Relations' WHERE id = 2")
    seen = explained(world)
    assert says(seen).startswith("Behind: 1 change is in the outbox and 1 is in the topic, the oldest ")
    assert [one.stage for one in seen.flow.coming] == ["topic", "outbox"]
    assert seen.flow.coming[0].offset is not None

    relay.run_once()
    assert says(explained(world)).startswith("Behind: 2 changes are in the topic, the oldest ")
    parts.handle()
    seen = explained(world)
    assert verdict(seen) is Verdict.EQUAL
    assert [(one.relation, one.operation) for one in seen.flow.done[-2:]] == [
        ("public.users", "U"),
        ("public.posts", "U"),
    ]


def test_what_touches_other_documents_only_is_not_shown(world: World, parts: Parts) -> None:
    """Changes of other posts, and of other tables, are none of this document's."""
    relay = parts.relay
    world.sql("UPDATE users SET name = 'Alice' WHERE id = 3; UPDATE posts SET title = 'new' WHERE id = 4")
    relay.run_once()
    world.sql("INSERT INTO comments (id, post_id, name, comment) VALUES (99, 5, 'Bob', 'Nice')")
    seen = explained(world, "2")
    assert verdict(seen) is Verdict.EQUAL
    assert seen.flow.coming == []
    assert says(explained(world, "5")).startswith("Behind: 1 change is in the outbox and 1 is in the topic")


@level
def test_a_comment_that_moved_touches_both_posts(world: World) -> None:
    """The old image finds the post that has lost it, as it does for a worker."""
    world.sql("UPDATE comments SET post_id = 4 WHERE id = 1")
    for id_ in ("2", "4"):
        seen = explained(world, id_)
        assert verdict(seen) is Verdict.BEHIND
        assert [(one.relation, one.key) for one in seen.flow.coming] == [("public.comments", {"id": 1})]


@level
def test_a_truncate_touches_every_document(world: World) -> None:
    """One change that stands for all rows of a table is on the way of each document that reads it."""
    world.sql("TRUNCATE comments")
    seen = explained(world)
    assert verdict(seen) is Verdict.BEHIND
    assert [(one.operation.name, one.key) for one in seen.flow.coming] == [("TRUNCATE", {})]
    assert explained(world, "4").flow.coming != []


def test_one_change_is_found_among_many(world: World, parts: Parts) -> None:
    """Of thousands of changes in the outbox and thousands in the topic, the few that touch it, and no other."""
    relay = parts.relay
    world.sql("INSERT INTO posts (id, user_id, title, body) SELECT g, 3, 't', 'b' FROM generate_series(100, 3099) AS g")
    world.sql("INSERT INTO comments (id, post_id, name, comment) VALUES (77, 2, 'c', 'c')")
    relay.run_once()
    world.sql("UPDATE posts SET title = 'u' WHERE id >= 100; UPDATE comments SET comment = 'd' WHERE id = 77")
    world.sql("UPDATE posts SET title = 'v' WHERE id IN (2, 5)")
    seen = explained(world)
    assert [(one.relation, one.key, one.stage) for one in seen.flow.coming] == [
        ("public.comments", {"id": 77}, "topic"),
        ("public.comments", {"id": 77}, "outbox"),
        ("public.posts", {"id": 2}, "outbox"),
    ]
    assert seen.flow.is_complete
    assert [(one.looked, one.of) for one in seen.flow.searched[:2]] == [(3003, 3003), (3001, 3001)]


@level
def test_a_lost_write_has_drifted(world: World) -> None:
    """What differs with nothing on its way says so, what a refresh would do, and how to repair it."""
    with world.elasticsearch() as client:
        client.delete(index=world.alias, id="2")
        put(client, world, "77", None, {"title": "nobody wrote this"})
    seen = explained(world)
    assert verdict(seen) is Verdict.DRIFTED
    assert says(seen) == "Missing from Elasticsearch, and nothing is on its way."
    assert explained(world, "4").is_equal
    seen = explained(world, "77")
    assert verdict(seen) is Verdict.DRIFTED
    assert "somebody else wrote" in says(seen)
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
        assert "syncer backfill blogpost --rebuild" in seen.standings[0][1].hint
        assert not seen.is_equal
    # No backfill of today's index can do anything about it, as was said.
    assert world.syncer("backfill", "blogpost").returncode == 0
    assert explained(world, "2").is_equal
    assert verdict(explained(world, "4")) is Verdict.FOREIGN


def test_a_parked_document_says_why(world: World, parts: Parts) -> None:
    """What the mapping refuses is parked; once the row is mended it is behind, and then equal."""
    relay = parts.relay
    world.sql("UPDATE posts SET created = 'infinity' WHERE id = 2")
    relay.run_once()
    parts.handle()
    seen = explained(world)
    assert verdict(seen) is Verdict.PARKED
    assert says(seen).startswith("Parked: document_parsing_exception: ")
    said = json.loads(world.syncer("explain", "blogpost", "2", "--json").stdout)
    assert said["indices"][0]["dead_letter"].keys() == {"error", "version", "parked_at"}
    world.sql("UPDATE posts SET created = now() WHERE id = 2")
    parts.drain()
    assert explained(world).is_equal


def test_a_select_that_fails_on_one_document(world: World, parts: Parts) -> None:
    """It is said before any worker has parked it, of that document only, and after that as well."""
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
    assert verdict(seen) is Verdict.PARKED
    assert says(seen) == "Parked: division by zero."
    assert world.syncer("explain", "blogpost", "2").returncode == 1


def test_a_halted_document_says_why(world: World, parts: Parts) -> None:
    """Whether a worker has met it or not: a renamed column is the reason, and syncer apply the way out."""
    relay = parts.relay
    world.sql("ALTER TABLE posts RENAME title TO heading")
    seen = explained(world)
    assert verdict(seen) is Verdict.HALTED
    assert "title" in says(seen)
    world.sql("UPDATE posts SET body = 'new' WHERE id = 2")
    relay.run_once()
    parts.handle()
    seen = explained(world)
    assert verdict(seen) is Verdict.HALTED
    assert says(seen).startswith("blogpost is halted: ")
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


def test_a_document_that_was_not_filled(world: World) -> None:
    """A document that lacks only because its index has not been filled says that, not that it has drifted."""
    world.sql("ALTER TABLE posts DISABLE TRIGGER ALL")
    world.sql(BLOG)
    world.sql("TRUNCATE syncer.outbox")
    world.sql("UPDATE syncer.document SET filled_at = NULL")
    seen = explained(world)
    assert verdict(seen) is Verdict.UNFILLED
    assert "syncer apply" in seen.standings[0][1].hint


@level
def test_a_job_that_may_yet_write_it_is_named(world: World) -> None:
    """What differs while a backfill is under way, or is paused, is not called drift; nor is what it will delete."""
    with world.elasticsearch() as client:
        client.delete(index=world.alias, id="2")
        put(client, world, "77", None, {"title": "nobody wrote this"})
    with world.connect() as connection, world.index() as index:
        made = jobs.create(connection, store.served(connection)["blogpost"], JobKind.BACKFILL)
        assert made is not None
        jobs.pause(connection, made.id)
        for id_ in ("2", "77"):
            seen = explained(world, id_)
            assert verdict(seen) is Verdict.BEHIND
            assert f"job {made.id} (backfill) is writing all documents, but is paused" in says(seen)
        jobs.resume(connection, made.id)
        world.refresh(index)
    assert explained(world).is_equal
    assert verdict(explained(world, "77")) is Verdict.ABSENT


@level
def test_a_fan_out_that_leads_to_it_is_named(world: World) -> None:
    """While it is not listed, while a page has it, and while a lane has that page; another one is not."""
    world.sql("UPDATE users SET name = 'renamed' WHERE id = 1")
    world.sql("TRUNCATE syncer.outbox")
    with world.connect() as connection, world.index() as index, world.connect() as own:
        document = store.served(connection)["blogpost"]
        other = jobs.create_fan_out(connection, document, {"public.users": [{"id": 3}]})
        assert other is not None
        listing.list_pages(connection, other, document, page=10)
        assert verdict(explained(world)) is Verdict.DRIFTED
        made = jobs.create_fan_out(connection, document, {"public.users": [{"id": 1}]})
        assert made is not None
        who = f"job {made.id} (fan-out: public.users, 1 row)"
        assert f"{who} has yet to write it: 0 of an unknown number done" in says(explained(world))
        jobs.cancel(connection, other.id)
        listing.list_pages(connection, made, document, page=10)
        assert f"{who} has yet to write it: 0 of" in says(explained(world))
        Lane(own).take()
        assert f"{who} is writing it just now: 0 of" in says(explained(world))
        own.close()
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


def test_what_is_handled_while_it_is_looked_for_is_no_drift(
    world: World, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change that was on its way at the first look, and is done before it is looked for, leaves no false verdict."""
    relay = parts.relay
    find, rounds = events.find, 0

    def overtaken(*arguments: Any) -> Flow:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            relay.run_once()
            parts.handle()
        return find(*arguments)

    world.sql("UPDATE posts SET title = 'new' WHERE id = 2")
    monkeypatch.setattr(events, "find", overtaken)
    assert verdict(explained(world)) is Verdict.EQUAL
    assert rounds == 1


def test_what_is_written_all_the_while_is_no_drift(world: World, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document that changes again after each search, and differs at each look, is changing."""
    relay = parts.relay
    find = events.find

    def overtaken(*arguments: Any) -> Flow:
        relay.run_once()
        parts.handle()
        flow = find(*arguments)
        world.sql("UPDATE posts SET title = title || '!' WHERE id = 2")
        return flow

    world.sql("UPDATE posts SET title = 'new' WHERE id = 2")
    monkeypatch.setattr(events, "find", overtaken)
    assert verdict(explained(world)) is Verdict.CHANGING


def test_what_is_published_while_it_is_looked_for_is_found_once(
    world: World, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change that moves from the outbox to the topic between the two searches is neither missed nor seen twice."""
    relay = parts.relay

    def then_published(search: Callable[..., None]) -> Callable[..., None]:
        def run(*arguments: Any) -> None:
            search(*arguments)
            relay.run_once()

        return run

    world.sql("UPDATE posts SET title = 'new' WHERE id = 2")
    for name in ("_search_outbox", "_search_topic"):
        monkeypatch.setattr(events, name, then_published(getattr(events, name)))
    seen = explained(world)
    assert [one.stage for one in seen.flow.coming] == ["topic"]
    assert verdict(seen) is Verdict.BEHIND


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
        while len(verdicts) < 25 and time.monotonic() < deadline:
            verdicts.append(verdict(explained(world)))
    finally:
        stop.set()
        writer.join()
    assert set(verdicts) <= {Verdict.EQUAL, Verdict.BEHIND, Verdict.CHANGING}, verdicts
    world.wait_until_level()
    wait_until(lambda: explained(world).is_equal, what="it is equal in the end")


def test_workers_are_not_disturbed(world: World, parts: Parts) -> None:
    """Looking joins no group, commits no offset, draws no version, and leaves the relay's cursor alone."""
    relay = parts.relay
    world.sql("UPDATE posts SET title = 'new' WHERE id = 2")
    relay.run_once()
    world.sql("UPDATE posts SET title = 'newer' WHERE id = 2")
    kafka = world.settings.kafka
    wait_until(lambda: sum(one.records for one in topic.lag(kafka)) == 1, what="one record waits")

    def state() -> tuple[Any, ...]:
        return (
            topic.members(kafka),
            topic.lag(kafka),
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


def test_one_document_is_asked_for_as_workers_ask_for_all(empty_world: World) -> None:
    """Whether changes touch a document is answered as by the derivation that names all that they touch."""
    world = empty_world
    world.use("blogpost", "discussion")
    world.set_up()
    world.sql(BLOG)
    world.sql("UPDATE comments SET post_id = 4 WHERE id = 1; UPDATE users SET name = 'x' WHERE id = 3")
    world.sql("DELETE FROM comments WHERE id = 2; UPDATE posts SET user_id = 3 WHERE id = 2; TRUNCATE comments")
    with world.connect() as connection:
        found = outbox.oldest(connection, "1:1:", ["public.users", "public.posts", "public.comments"], limit=100)
        changes = [Change.parse(one) for one in found]
        assert len(changes) == 12
        reader = AffectedReader(connection, page=2)
        ids = ["2", "4", "5", "77", "post-2", "post-4", "post-5", "comment-1", "comment-2"]
        for document in store.documents(connection):
            for some in [*([one] for one in changes), changes[:7], changes[7:-1], changes]:
                named = [one.ids for one in reader.read(document, some) if isinstance(one, Affected)]
                for id_ in ids:
                    is_named = any(page is None or id_ in page for page in named)
                    assert reader.touches(document, some, id_) == is_named, (document.name, some, id_)


# What cannot be looked at


def test_a_search_that_stops_early_says_so(world: World, parts: Parts) -> None:
    """With more changes than it may look at, nothing found is not nothing on its way."""
    relay = parts.relay
    with world.elasticsearch() as client:
        client.delete(index=world.alias, id="2")
    world.sql("UPDATE posts SET title = title || '!' WHERE id <> 2")
    world.sql("INSERT INTO posts (id, user_id, title, body) SELECT g, 3, 't', 'b' FROM generate_series(100, 149) AS g")
    seen = explained(world, limits=Limits(changes=20, seconds=60))
    assert verdict(seen) is Verdict.UNKNOWN
    assert "only the oldest 20 of 52 changes in the outbox were looked at" in says(seen)
    relay.run_once()
    seen = explained(world, limits=Limits(changes=20, seconds=60))
    assert verdict(seen) is Verdict.UNKNOWN
    assert "changes in the topic were looked at" in says(seen)
    assert verdict(explained(world)) is Verdict.DRIFTED


def test_a_derivation_that_takes_too_long_is_given_up(empty_world: World) -> None:
    """A slow affects query is stopped in time, and the search says how far it came."""
    world = empty_world
    folder = world.document_folder / "affects"
    folder.mkdir()
    (folder / "users.sql").write_text(
        "SELECT p.id AS _id FROM %(rows)s AS u JOIN posts AS p ON p.user_id = u.id "
        "WHERE (SELECT count(*) FROM generate_series(1, 50000000)) > 0"
    )
    world.set_up()
    world.sql(BLOG)
    began = time.monotonic()
    seen = explained(world, limits=Limits(seconds=0.5))
    assert time.monotonic() - began < 45
    assert not seen.flow.is_complete
    assert verdict(seen) is Verdict.UNKNOWN
    with world.connect() as connection:
        assert connection.execute("SHOW statement_timeout").fetchone() == ("0",)


@level
def test_without_kafka_the_rest_is_shown(world: World) -> None:
    """What is equal is equal all the same; of what differs it is not said that nothing is on its way."""
    done = world.syncer("explain", "blogpost", "2", environment=NOWHERE)
    assert done.returncode == 0, done.stdout
    assert "Kafka could not be asked: Kafka cannot be reached" in done.stdout
    assert "SYNCER_KAFKA_BOOTSTRAP_SERVERS" in done.stdout
    with world.elasticsearch() as client:
        client.delete(index=world.alias, id="2")
    done = world.syncer("explain", "blogpost", "2", environment=NOWHERE)
    assert done.returncode == 1
    assert "not known: Kafka could not be asked" in done.stdout
    assert "its SELECT returns it" in done.stdout


@level
def test_a_record_that_is_no_change_is_told_of(world: World) -> None:
    """It may have been one, so that nobody knows what is on its way; the rest is shown all the same."""
    with closing(ChangeProducer(world.settings.kafka)) as producer:
        producer.produce([(b"", b"hello")])
        producer.flush()
    seen = explained(world)
    assert (seen.flow.trouble, seen.flow.unreadable) == (None, 1)
    assert seen.is_equal
    with world.elasticsearch() as client:
        client.delete(index=world.alias, id="2")
    assert verdict(seen := explained(world)) is Verdict.UNKNOWN
    assert says(seen).endswith("not known: 1 record in the topic cannot be read as changes.")


def test_what_an_affects_query_fails_on_is_not_quoted(empty_world: World) -> None:
    """Who may not see values is told which error it is, and not the value."""
    world = empty_world
    folder = world.document_folder / "affects"
    folder.mkdir()
    (folder / "users.sql").write_text(
        "SELECT p.id AS _id FROM %(rows)s AS u JOIN posts AS p ON p.user_id = u.id WHERE u.name::integer > 0"
    )
    world.set_up()
    world.sql(BLOG)
    world.sql("TRUNCATE syncer.outbox")
    world.sql("UPDATE users SET name = 'John' WHERE id = 1")
    seen = explained(world)
    assert verdict(seen) is Verdict.UNKNOWN
    assert says(seen).endswith("an affects query of blogpost fails on the data: InvalidTextRepresentation 22P02.")


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
    assert "No document blogspot is in force" in done.stderr
    assert "In force: blogpost" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_id_that_only_somebody_else_would_write_is_explained(world: World) -> None:
    """What cannot be an id, and is in Elasticsearch all the same, is what a person asks about."""
    with world.elasticsearch() as client:
        put(client, world, "ghost", None, {"title": "boo"})
    seen = explained(world, "ghost")
    assert verdict(seen) is Verdict.DRIFTED
    assert says(seen).startswith("Elasticsearch has it and Postgres does not: somebody else wrote")


def test_no_such_document(world: World, parts: Parts) -> None:
    """Neither side has it: exit code 1; its deletion is among the last events."""
    world.sql("DELETE FROM posts WHERE id = 4")
    parts.drain()
    seen = explained(world, "4")
    assert verdict(seen) is Verdict.ABSENT
    assert not seen.is_equal
    assert ("public.posts", "DELETE", {"id": 4}, "done") in found(seen)
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
        assert said.keys() == {
            "document", "id", "at", "is_equal", "indices", "coming", "done", "events", "searched", "lost", "kafka",
        }  # fmt: skip
        (one,) = said["indices"]
        assert one.keys() == {
            "index", "role", "generation", "is_filled", "halted", "verdict", "says", "hint", "postgres",
            "elasticsearch", "unreadable", "refresh", "dead_letter", "jobs",
        }  # fmt: skip
        for event in said["events"]:
            assert event.keys() == {
                "change", "changed_at", "relation", "operation", "key", "stage", "partition", "offset", "indices",
            }  # fmt: skip
