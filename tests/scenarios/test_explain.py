"""Explain one document: each state where it holds, and what a stranger asks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from syncer.base.errors import DefinitionError
from syncer.documents import registry
from syncer.relay.loop import Relay
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
        return explain(connection, index, registry.current(connection)["blogpost"], id_, seconds=seconds)


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


@level
def test_bad_input_is_explained(world: World) -> None:
    """An unknown document, letters for a number, another spelling of a number, nothing, far too much."""
    for id_ in ("abc", "99999999999999999999", "007"):
        seen = explained(world, id_)
        assert (seen.state, "bigint" in seen.says) == (State.ABSENT, True)
    for id_ in ("", "x" * 513):
        with pytest.raises(DefinitionError, match="1 to 512 bytes"):
            explained(world, id_)
    done = world.syncer("explain", "blogspot", "2")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "No document blogspot is active" in done.stderr
    assert "Active documents: blogpost" in done.stderr
    assert "Traceback" not in done.stderr
