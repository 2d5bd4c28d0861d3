"""The last version is noted in each epoch, which assigns none; and any version is told by what made it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from syncer.base.model import EPOCH_SHIFT
from syncer.base.postgres import Connection
from syncer.elasticsearch.bulk import Index
from syncer.indexing import failover, version, version_log
from syncer.indexing.failover import Origin
from syncer.worker.job_loop import JobWorker
from tests.support.versions import assign
from tests.support.world import World

SEQUENCE = "SELECT last_value FROM syncer.version"
NOTES = "SELECT version FROM syncer.version_time ORDER BY version"
OTHER_TIMELINE = "UPDATE syncer.cluster_identity SET timeline = timeline - 1"


@pytest.fixture
def database(empty_world: World) -> World:
    """A database with the syncer schema, in no cluster identity yet."""
    empty_world.migrate()
    return empty_world


@pytest.fixture
def index(database: World) -> Iterator[Index]:
    """Elasticsearch, which keeps the record of epochs."""
    with database.index() as made:
        yield made


@pytest.fixture
def connection(database: World, index: Index) -> Iterator[Connection]:
    """A writer's connection, in the first epoch."""
    with database.connect() as made:
        failover.enter_cluster_identity(made, index)
        yield made


def test_notes_assign_nothing_and_only_the_last_is_kept(database: World, connection: Connection) -> None:
    """The sequence is where it was, however often it is looked at."""
    for _ in range(3):
        last = assign(connection)
        before = database.sql(SEQUENCE)
        for _ in range(2):
            assert version_log.note(connection)[1] == last
        assert database.sql(SEQUENCE) == before
        assert database.sql(NOTES) == [(last,)]


def test_an_epoch_that_ended_keeps_its_note(database: World, connection: Connection, index: Index) -> None:
    """A database that was set back notes nothing before it has an epoch of its own."""
    first = assign(connection)
    version_log.note(connection)
    assign(connection)
    database.sql(OTHER_TIMELINE)
    assert version_log.note(connection)[1] == first
    failover.enter_cluster_identity(connection, index)
    second = assign(connection)
    assert version_log.note(connection)[1] == second
    assert database.sql(NOTES) == [(first,), (second,)]


def test_who_made_a_version(database: World, connection: Connection, index: Index) -> None:
    """Assigned, assigned in an earlier epoch, assigned in a life that was lost, or made up.

    Each is told from the others.
    """

    def origin(one: int) -> Origin:
        return failover.origin(connection, index, one)

    own = assign(connection)
    assert origin(own) is Origin.ASSIGNED
    assert origin(own + 1) is Origin.FOREIGN  # another client has raised it
    assert origin(own + 256) is Origin.FOREIGN
    assert own + 256 < version.least_next(connection)
    assert origin(1) is Origin.FOREIGN
    assert origin(2 << EPOCH_SHIFT | 5) is Origin.FOREIGN
    assert version.least_next(connection) <= 2 << EPOCH_SHIFT | 5
    assert origin(1 << 62) is Origin.FOREIGN
    database.sql(OTHER_TIMELINE)
    failover.enter_cluster_identity(connection, index)
    assert origin(own) is Origin.EARLIER
    second = assign(connection)
    assert origin(second) is Origin.ASSIGNED
    # A restore to the first epoch, which nobody has noticed yet.
    database.sql(f"{OTHER_TIMELINE}, epoch = 1; SELECT setval('syncer.version', {version.split(own)[1]})")
    assert origin(own) is Origin.ASSIGNED
    assert origin(second) is Origin.LOST
    assert origin(own + 5 * 256) is Origin.LOST
    assert origin(3 << EPOCH_SHIFT | 5) is Origin.FOREIGN


def test_the_job_worker_takes_the_notes(database: World, connection: Connection, index: Index) -> None:
    """Every daemon that assigns versions has one; it keeps the last version in Elasticsearch too."""
    last = assign(connection)
    with closing(JobWorker(connect=database.connect, index=index)) as job_worker:
        job_worker.run_once()
    [(noted,)] = database.sql(NOTES)
    assert noted >= last
    [(installation,)] = database.sql("SELECT installation FROM syncer.cluster_identity")
    assert index.read_assigned(installation) == noted
