"""A version assigned later is greater, across connections, crashes, failover, restore, and dump and restore."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest

from syncer.base.error_policy import Action, decide
from syncer.base.errors import IndexingError
from syncer.base.model import EPOCH_SHIFT
from syncer.elasticsearch.bulk import Index
from syncer.indexing import failover, version
from tests.support.in_process import assign
from tests.support.world import DEADLINE_SECONDS, World

EPOCH = "SELECT epoch FROM syncer.cluster_identity"

THREADS = 6
ASSIGNS = 100


@pytest.fixture
def database(empty_world: World) -> World:
    """A database with the syncer schema, in no cluster identity yet."""
    empty_world.migrate()
    return empty_world


@pytest.fixture
def index(database: World) -> Iterator[Index]:
    """Elasticsearch, which keeps the record of epochs."""
    with database.index() as index_client:
        yield index_client


def enter(world: World, index: Index) -> failover.Entered:
    """What every writer does on a new connection."""
    with world.connect() as connection:
        return failover.enter(connection, index)


def assign_alone(world: World) -> int:
    """One version, on a connection of its own."""
    with world.connect() as connection:
        return assign(connection)


def installation(world: World) -> UUID:
    """Whose record it is."""
    ((id_,),) = world.sql("SELECT installation FROM syncer.cluster_identity")
    assert isinstance(id_, UUID)
    return id_


# Within a cluster identity


def test_assigns_of_many_threads_at_once_keep_the_order_of_time(database: World, index: Index) -> None:
    """Of assigns that overlap none is handed out twice, and one that ended before another began is the lesser."""
    enter(database, index)
    begin = threading.Barrier(THREADS)

    def assign_many(_: int) -> list[tuple[int, int, int]]:
        clock = time.monotonic_ns
        with database.connect() as connection:
            begin.wait(timeout=DEADLINE_SECONDS)
            timed = [(clock(), assign(connection), clock()) for _ in range(ASSIGNS)]
        return [(began, ended, assigned) for began, assigned, ended in timed]

    with ThreadPoolExecutor(THREADS) as threads:
        assigns = sorted(timed for assigned in threads.map(assign_many, range(THREADS)) for timed in assigned)
    assert len({assigned for _, _, assigned in assigns}) == THREADS * ASSIGNS
    by_end = sorted(assigns, key=lambda timed: timed[1])
    greatest_ended, ended = 0, 0
    for began, _, assigned in assigns:
        while by_end[ended][1] < began:
            greatest_ended = max(greatest_ended, by_end[ended][2])
            ended += 1
        assert assigned > greatest_ended


def test_a_new_writer_skips_whatever_a_crash_may_have_taken_back(database: World) -> None:
    """It steps over more numbers than all connections together can have assigned and not yet on disk."""
    ahead = 32 * int(database.sql("SHOW max_connections")[0][0])
    with database.connect() as connection:
        earlier = assign(connection)
        version.skip_unflushed(connection)
        assert assign(connection) - earlier > ahead


# Across cluster identities

OTHER_TIMELINE = "UPDATE syncer.cluster_identity SET timeline = timeline - 1"
OTHER_SYSTEM = "UPDATE syncer.cluster_identity SET system_identifier = system_identifier + 1"
OTHER_SEQUENCE = "UPDATE syncer.cluster_identity SET sequence = sequence + 1"
CHANGES = {
    "failover": OTHER_TIMELINE,
    "dump_and_restore": OTHER_SYSTEM + "; SELECT setval('syncer.version', 1)",
    "dump_and_restore_in_the_same_cluster": f"{OTHER_SEQUENCE}; SELECT setval('syncer.version', 1)",
    "restore_of_an_older_epoch": OTHER_TIMELINE + ", epoch = 1; SELECT setval('syncer.version', 1)",
    "restore_of_a_database_that_had_no_epoch": OTHER_SYSTEM + ", epoch = 0; SELECT setval('syncer.version', 1)",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_another_cluster_identity_assigns_greater_versions(database: World, index: Index, change: str) -> None:
    """After failover or restore, each version is greater than each one before, though Postgres was set back."""
    enter(database, index)
    for _ in range(2):
        database.sql(OTHER_TIMELINE)
        assert enter(database, index).has_changed
    earlier = assign_alone(database)
    database.sql(change)
    entered = enter(database, index)
    assert (entered.epoch, index.read_epoch(installation(database)), database.sql(EPOCH)) == (4, 4, [(4,)])
    assert assign_alone(database) > earlier
    entered_again = enter(database, index)
    assert (entered_again.epoch, entered_again.has_changed) == (4, False)


def test_an_epoch_that_only_postgres_remembers_counts_too(database: World, index: Index) -> None:
    """When Elasticsearch was set up anew and has no record, Postgres's own epoch is exceeded."""
    entered = enter(database, index)
    assert (entered.epoch, entered.has_changed, assign_alone(database) >> EPOCH_SHIFT) == (1, False, 1)
    database.sql(f"{OTHER_TIMELINE}, installation = gen_random_uuid(), epoch = 7")
    assert (enter(database, index).epoch, index.read_epoch(installation(database))) == (8, 8)
    assert assign_alone(database) >> EPOCH_SHIFT == 8


def test_writers_that_find_the_change_together_enter_one_epoch(database: World, index: Index) -> None:
    """Of many writers that notice a failover at the same time one bumps the epoch, and all assign with it."""
    enter(database, index)
    database.sql(OTHER_TIMELINE)
    with ThreadPoolExecutor(THREADS) as threads:
        entered = list(threads.map(lambda _: enter(database, index), range(THREADS)))
    assert {identity.epoch for identity in entered} == {2}
    assert [identity.has_changed for identity in entered].count(True) == 1
    assert assign_alone(database) >> EPOCH_SHIFT == 2


def test_the_record_never_goes_back(database: World, index: Index) -> None:
    """A daemon that was suspended while others entered later epochs cannot write its own over theirs: it asks again."""
    original = installation(database)
    index.write_epoch(original, 5)
    for late in (4, 5):
        with pytest.raises(IndexingError, match=f"epoch {late}, or a later one") as refused:
            index.write_epoch(original, late)
        assert decide(refused.value) is Action.RETRY
    assert index.read_epoch(original) == 5


def test_a_version_is_traced_to_its_origin(database: World, index: Index) -> None:
    """Assigned, assigned in an earlier epoch, assigned in an identity that was lost, or made up by another client."""
    enter(database, index)
    with database.connect() as connection:

        def is_foreign(number: int) -> bool:
            return failover.is_foreign(connection, index, number)

        earlier = assign(connection)
        assert not is_foreign(earlier)
        for foreign in (earlier + 1, earlier + 256, 1, 2 << EPOCH_SHIFT | 5, 1 << 62):
            assert is_foreign(foreign), foreign
        assert earlier + 256 < version.least_next(connection) <= 2 << EPOCH_SHIFT | 5
        database.sql(OTHER_TIMELINE)
        failover.enter(connection, index)
        second = assign(connection)
        # A restore to the first epoch, which nobody has noticed yet.
        database.sql(f"{OTHER_TIMELINE}, epoch = 1; SELECT setval('syncer.version', {version.split(earlier)[1]})")
        assert not any(map(is_foreign, (earlier, second, earlier + 5 * 256)))
        assert is_foreign(3 << EPOCH_SHIFT | 5)
