"""One index takes no documents, for longer than a client would wait: the others continue, and it loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import pytest
from elasticsearch import Elasticsearch

from syncer.base.errors import DocumentError
from syncer.base.model import Role
from syncer.documents import registry
from syncer.indexing import bulk_errors
from syncer.indexing.bulk_errors import Patience
from tests.faults.test_job_writes import two_documents
from tests.faults.test_processes import wait_until_dead
from tests.support.breakpoints import Plan, Point
from tests.support.world import Daemon, World, wait_until
from tests.support.writers import fill

HURRIED = {"syncer.indexing.bulk_errors:PATIENCE_SECONDS": 1.0, "syncer.elasticsearch.bulk:_WAIT_FOR_SHARD": "1s"}
AT_ONCE = {"SYNCER_WORKER_THREADS": "1"}
JOBS = "SELECT kind, state FROM syncer.job WHERE state NOT IN ('done', 'cancelled', 'failed') ORDER BY 1"


@contextmanager
def disk_full(client: Elasticsearch, name: str) -> Iterator[None]:
    """What Elasticsearch does to the indices of a node whose disk is full."""
    block = "index.blocks.read_only_allow_delete"
    client.indices.put_settings(index=name, settings={block: True})
    yield
    client.indices.put_settings(index=name, settings={block: None})


Trouble = Callable[[Elasticsearch, str], AbstractContextManager[None]]


def daemon(world: World, *points: Point) -> Daemon:
    """One worker and one job worker, of little patience."""
    return world.daemon(environment=AT_ONCE, program=Plan(points=points, constants=HURRIED).program)


def level(world: World, document: str) -> bool:
    """Whether a document's instances equal its SELECT."""
    return not world._differences(document)


def test_an_index_that_takes_nothing_keeps_no_other_waiting(world: World) -> None:
    """Other documents are followed; a refresh makes up for what was skipped, even if workers are killed."""
    two_documents(world)
    with world.elasticsearch() as client, disk_full(client, world.index_of()):
        fill(world)
        point = Point(at="syncer.documents.registry:suspend", when="after")
        wait_until_dead(daemon(world, point), point)
        second = daemon(world)
        for number in range(2):
            world.sql("UPDATE posts SET views = views + 1 WHERE id < 40")
            world.sql("DELETE FROM posts WHERE id = %s", 50 + number)
            world.sql("UPDATE users SET name = %s, email = %s", f"name {number}", f"email {number}")
            wait_until(lambda: level(world, "user"), what="users are followed", detail=second.log_file.read_text)
        status = world.syncer("status")
        assert status.returncode == 1
        assert "takes no documents" in status.stdout
    world.wait_until_level()
    wait_until(lambda: world.sql(JOBS) == [], what="all jobs are done", detail=second.log_file.read_text)
    assert world.sql("SELECT count(*) FROM syncer.document WHERE suspended IS NOT NULL") == [(0,)]
    assert world.sql("SELECT id FROM syncer.dead_letter") == []
    assert second.wait_for("document.resumed")["outage_seconds"] > 0
    assert world.syncer("verify").returncode == 0
    assert second.stop() == 0


def test_an_index_that_goes_on_is_given_time_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next revision of a suspended definition is not suspended by the first 429."""
    monkeypatch.setattr(bulk_errors, "PATIENCE_SECONDS", 0.1)
    with world.connect() as connection, world.index() as index:
        suspends = replace(registry.current(connection)["blogpost"], role=Role.BUILDING)
        patience = Patience(index.holdings)

        def is_over() -> bool:
            try:
                patience.require_needed(suspends, "too many requests", is_blocked=False)
            except DocumentError:
                return True
            return False

        assert not is_over()
        wait_until(is_over, what="it suspends")
        suspends = replace(suspends, revision=suspends.revision + 1)
        assert not is_over()
