"""One index takes no documents, for longer than anybody wants to wait: the others go on, and it loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import pytest
from elasticsearch import Elasticsearch

from syncer import refusal, store
from syncer.errors import DocumentError
from syncer.model import Role
from syncer.refusal import Patience
from tests.faults.stopping_at import Plan, Point
from tests.faults.test_processes import wait_until_dead
from tests.faults.test_write_lane import two_documents
from tests.faults.writers import fill
from tests.harness import Daemon, World, wait_until
from tests.proof import Rule, faces

HURRIED = {"syncer.refusal:PATIENCE_SECONDS": 1.0, "syncer.index:_WAIT_FOR_SHARD": "1s"}
AT_ONCE = {"SYNCER_WORKER_THREADS": "1"}
JOBS = "SELECT kind, state FROM syncer.job WHERE state NOT IN ('done', 'cancelled', 'failed') ORDER BY 1"


@contextmanager
def without_primary(client: Elasticsearch, name: str) -> Iterator[None]:
    """The only node that may have its shard is away; to be entered while it is empty, since it is made anew."""
    require = "index.routing.allocation.require._name"
    (made,) = client.indices.get(index=name, expand_wildcards="all").body.values()
    client.indices.delete(index=name)  # a shard that was there before would be put where it was, whatever is required
    client.indices.create(
        index=name,
        settings={"index.number_of_replicas": 0, require: "away"},
        mappings=made["mappings"],
        aliases=made["aliases"],
        wait_for_active_shards=0,
    )
    wait_until(lambda: client.cluster.health(index=name).body["status"] == "red", what="the index is red")
    yield
    client.indices.put_settings(index=name, settings={require: None})


@contextmanager
def disk_full(client: Elasticsearch, name: str) -> Iterator[None]:
    """What Elasticsearch does to the indices of a node whose disk is full."""
    block = "index.blocks.read_only_allow_delete"
    client.indices.put_settings(index=name, settings={block: True})
    yield
    client.indices.put_settings(index=name, settings={block: None})


Trouble = Callable[[Elasticsearch, str], AbstractContextManager[None]]
LEFT = Rule(
    "an index that serves is not waited for for ever while Elasticsearch says that it is unwell",
    module="syncer.refusal",
    text="if is_over and self._is_unwell(document.index_name):",
    instead="if False:",
)
IN_A_JOB = Rule(
    "what changes of an index that takes nothing is in a job before its offset is committed",
    module="syncer.unwell",
    text="job, is_new = jobs.create_catch_up(connection, document, ids)",
    instead="job, is_new = None, False",
)


def daemon(world: World, *points: Point) -> Daemon:
    """One worker and one lane, of little patience."""
    return world.daemon(environment=AT_ONCE, program=Plan(points=points, constants=HURRIED).program)


def level(world: World, document: str) -> bool:
    """Whether a document's instances equal its SELECT."""
    return not world._differences(document)


@pytest.mark.parametrize("trouble", [without_primary, disk_full])
@faces(
    "a shard has no primary, or a disk is full, for minutes; changes go on, and workers are killed meanwhile",
    promises=(1, 3),
    without=(LEFT, IN_A_JOB),
)
def test_an_index_that_takes_nothing_keeps_no_other_waiting(world: World, trouble: Trouble) -> None:
    """Other documents are followed; what changes waits in few jobs, whoever dies, and all is level by itself after."""
    two_documents(world)
    with world.elasticsearch() as client, trouble(client, world.index_of()):
        fill(world)
        point = Point(at="syncer.jobs:create_catch_up", when="after")
        wait_until_dead(daemon(world, point), point)
        second = daemon(world)
        for number in range(4):
            world.sql("UPDATE posts SET views = views + 1 WHERE id < 40")
            world.sql("DELETE FROM posts WHERE id = %s", 50 + number)
            world.sql("UPDATE users SET name = %s, email = %s", f"name {number}", f"email {number}")
            wait_until(lambda: level(world, "user"), what="users are followed", detail=second.log_file.read_text)
        status = world.syncer("status")
        assert status.returncode == 1
        assert "takes no documents" in status.stdout
        assert 0 < len(world.sql(JOBS)) <= 2, world.sql(JOBS)
        assert world.sql("SELECT count(*) <= 60 FROM syncer.postponed") == [(True,)]
    world.wait_until_level()
    wait_until(lambda: world.sql(JOBS) == [], what="all jobs are done", detail=second.log_file.read_text)
    assert world.sql("SELECT count(*) FROM syncer.document WHERE unwell IS NOT NULL OR halted IS NOT NULL") == [(0,)]
    assert world.sql("SELECT id FROM syncer.postponed UNION ALL SELECT id FROM syncer.dead_letter") == []
    assert second.wait_for("document.resumed")["outage_seconds"] > 0
    assert world.syncer("verify").returncode == 0
    assert second.stop() == 0


@faces(
    "a new index takes no documents for too long, halts, is mended, and is refused something again at once",
    promises=(4,),
    without=Rule(
        "what has halted is given as long as before once it goes on",
        module="syncer.refusal",
        text="self._unwell_since.setdefault((document.index_name, document.generation), now)",
        instead="self._unwell_since.setdefault((document.index_name, 0), now)",
    ),
)
def test_an_index_that_goes_on_is_given_time_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next generation of what was halted does not halt for the first request that Elasticsearch has no room for."""
    monkeypatch.setattr(refusal, "PATIENCE_SECONDS", 0.1)
    with world.connect() as connection, world.index() as index:
        halts = replace(store.served(connection)["blogpost"], role=Role.BUILDING)
        patience = Patience(index.holdings)

        def is_over() -> bool:
            try:
                patience.require_needed(halts, "too many requests", is_blocked=False)
            except DocumentError:
                return True
            return False

        assert not is_over()
        wait_until(is_over, what="it halts")
        halts = replace(halts, generation=halts.generation + 1)
        assert not is_over()
