"""Explain one document: each state where it holds, and what a stranger asks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from syncer.base.errors import DefinitionError
from syncer.documents import registry
from syncer.jobs import queue
from syncer.jobs.model import JobKind
from syncer.relay.loop import Relay
from syncer.verify.diff import Cause
from syncer.verify.explain import Explanation, State, explain
from syncer.worker.loop import Worker
from tests.support.routing import put
from tests.support.world import World

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
        """Turn both until every change is written and handled."""
        self.world.drain(self.relay, self.worker)
        self.handle()

    def handle(self) -> None:
        """Turn the worker until every change in the topic is handled."""
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
        documents = [document for document in registry.documents(connection) if document.name == "blogpost"]
        (seen,) = explain(connection, index, documents, id_, seconds=seconds)
    return seen


def test_a_change_is_followed_from_the_outbox_to_the_index(world: World, parts: Parts) -> None:
    """In the outbox, in the topic, handled: the document is busy until then."""
    world.sql("UPDATE users SET name = 'J. Smith' WHERE id = 1")
    seen = explained(world, seconds=0)
    assert (seen.state, seen.says) == (State.BUSY, "Different; earlier changes are not handled.")
    assert seen.drift is not None
    assert [part.path for part in seen.drift.differences] == ["user.name"]
    assert explained(world, "4").state is State.EQUAL
    parts.relay.run_once()
    assert explained(world, seconds=0).state is State.BUSY
    parts.handle()
    assert explained(world).state is State.EQUAL
    done = world.syncer("explain", "blogpost", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Equal to its SELECT.\n")


@level
def test_what_differs_with_nothing_on_its_way_can_be_repaired(world: World) -> None:
    """A lost write, and a document of another client; a version that syncer never reaches needs a new index.

    Kafka is not asked.
    """
    edited = {**world.expected()["2"], "title": "edited by hand"}
    with world.elasticsearch() as client:
        client.delete(index=world.alias, id="2")
        put(client, world, "ghost", None, {"title": "nobody wrote this"})
        client.index(index=world.alias, id="4", document=edited, version=FAR_AHEAD, version_type="external")
    seen = explained(world)
    assert (seen.state, seen.says) == (State.DIFFERENT, "Missing from Elasticsearch, and no change is in flight.")
    assert explained(world, "ghost").state is State.DIFFERENT
    seen = explained(world, "4")
    assert seen.state is State.DIFFERENT
    assert "syncer index rebuild blogpost" in seen.hint
    done = world.syncer("explain", "blogpost", "2", environment=NOWHERE)
    assert done.returncode == 1
    assert "syncer verify blogpost --repair" in done.stdout
    done = world.syncer("explain", "blogpost", "5", environment=NOWHERE)
    assert done.returncode == 0, done.stdout


def test_a_document_that_cannot_be_written_says_why(world: World, parts: Parts) -> None:
    """Its SELECT fails on it, or the mapping refuses it; once the row is fixed it is equal."""
    select = world.document_folder / "select.sql"
    select.write_text(select.read_text().replace("p.body,", "p.body, (100 / (p.views - 13))::text AS title2,"))
    mapping = world.document_folder / "index.json"
    mapping.write_text(mapping.read_text().replace('"strict"', "true"))
    world.apply()
    world.sql("UPDATE posts SET views = 13 WHERE id = 2")
    seen = explained(world)
    assert seen.state is State.UNKNOWN
    assert "division by zero" in seen.says
    assert explained(world, "4").state is State.EQUAL
    world.sql("UPDATE posts SET views = 1, created = 'infinity' WHERE id = 2")
    parts.relay.run_once()
    parts.handle()
    seen = explained(world)
    assert seen.state is State.DIFFERENT
    assert seen.says.startswith("Dead-lettered: document_parsing_exception: ")
    world.sql("UPDATE posts SET created = now() WHERE id = 2")
    parts.drain()
    assert explained(world).state is State.EQUAL


@level
def test_a_suspended_document_and_an_index_that_is_gone_say_why(world: World) -> None:
    """Whether a worker has met it or not."""
    world.sql("ALTER TABLE posts RENAME title TO heading")
    seen = explained(world)
    assert seen.state is State.UNKNOWN
    assert "title" in seen.says
    assert "syncer apply" in seen.hint
    world.sql("ALTER TABLE posts RENAME heading TO title")
    with world.elasticsearch() as client:
        client.indices.delete(index=f"{world.alias}-000001")
    done = world.syncer("explain", "blogpost", "2")
    assert done.returncode == 1
    assert "is gone" in done.stdout
    assert "syncer apply" in done.stdout


@level
def test_a_job_that_may_yet_write_it_is_named(world: World) -> None:
    """What differs while a backfill is under way, or is paused, will be written; so will what it deletes."""
    with world.elasticsearch() as client:
        client.delete(index=world.alias, id="2")
        put(client, world, "77", None, {"title": "nobody wrote this"})
    with world.connect() as connection, world.index() as index:
        made = queue.create(connection, registry.current(connection)["blogpost"], JobKind.BACKFILL)
        assert made is not None
        queue.pause(connection, made.id)
        for id_ in ("2", "77"):
            seen = explained(world, id_, seconds=0)
            assert (seen.state, seen.jobs) == (State.BUSY, (made.id,))
            assert f"an open job may write it: {made.id}" in seen.says
        queue.resume(connection, made.id)
        world.refresh(index)
    assert explained(world).state is State.EQUAL
    assert explained(world, "77").state is State.ABSENT


def test_an_index_that_was_not_loaded_is_named_as_the_cause(world: World) -> None:
    """And what to do about it."""
    world.sql("ALTER TABLE posts DISABLE TRIGGER ALL")
    world.sql(BLOG)
    world.sql("TRUNCATE syncer.outbox")
    world.sql("UPDATE syncer.document SET loaded_at = NULL")
    seen = explained(world)
    assert (seen.state, seen.drift and seen.drift.cause) == (State.DIFFERENT, Cause.INCOMPLETE)
    assert "syncer apply" in seen.hint


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


@level
def test_values_are_shown_only_on_request(world: World) -> None:
    """Paths without --values; both sides with it."""
    with world.elasticsearch() as client:
        client.index(index=world.alias, id="2", document={**world.expected()["2"], "title": "xylophone"})
    for arguments in ((), ("--json",)):
        done = world.syncer("explain", "blogpost", "2", *arguments)
        assert "xylophone" not in done.stdout
        assert "title" in done.stdout
    (index,) = json.loads(world.syncer("explain", "blogpost", "2", "--values", "--json").stdout)["indices"]
    assert index["differences"] == [
        {"path": "title", "how": "changed", "postgres": '"Relationships"', "elasticsearch": '"xylophone"'}
    ]
    assert index["postgres"]["source"]["title"] == "Relationships"
