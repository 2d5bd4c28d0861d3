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
from syncer.indexing import failover, marks, version
from tests.support.in_process import assign
from tests.support.world import DEADLINE_SECONDS, World

EPOCH = "SELECT epoch FROM syncer.installation"

THREADS = 6
ASSIGNS = 100


@pytest.fixture
def database(empty_world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A database with the syncer schema, in no epoch yet; no other one of its installation is in use."""
    monkeypatch.setattr(failover, "SILENT_SECONDS", 0.0)
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
    ((id_,),) = world.sql("SELECT installation FROM syncer.installation")
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


# Across cluster identities

FAILOVER = "TRUNCATE syncer.cluster_identity"
SET_BACK = "SELECT setval('syncer.version', 1)"
CHANGES = {
    "failover": FAILOVER,
    "dump_and_restore": f"UPDATE syncer.cluster_identity SET name = name; {SET_BACK}",
    "copy": f"UPDATE syncer.cluster_identity SET database = 1, written_in = pg_current_xact_id(); {SET_BACK}",
    "a_sequence_that_is_set_back": SET_BACK,
    "files_that_are_put_back": f"UPDATE syncer.mark SET number = number - 1, last_version = 1; {SET_BACK}",
    "restore_of_an_older_epoch": f"{FAILOVER}; UPDATE syncer.installation SET epoch = 1; {SET_BACK}",
    "restore_of_a_database_that_had_no_epoch": f"{FAILOVER}; UPDATE syncer.installation SET epoch = 0; {SET_BACK}",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_another_cluster_identity_assigns_greater_versions(database: World, index: Index, change: str) -> None:
    """After failover or restore, each version is greater than each one before, though Postgres was set back."""
    enter(database, index)
    for _ in range(2):
        database.sql(FAILOVER)
        assert enter(database, index).has_changed
    with database.connect() as connection:
        earlier = max(assign(connection), assign(connection))
        assert marks.take(connection, index, always=True)
    database.sql(change)
    entered = enter(database, index)
    assert (entered.epoch, index.record.read(installation(database)).epoch, database.sql(EPOCH)) == (4, 4, [(4,)])
    assert assign_alone(database) > earlier
    entered_again = enter(database, index)
    assert (entered_again.epoch, entered_again.has_changed) == (4, False)


def test_an_epoch_that_only_postgres_remembers_counts_too(database: World, index: Index) -> None:
    """When Elasticsearch was set up anew and has no record, Postgres's own epoch is exceeded."""
    entered = enter(database, index)
    assert (entered.epoch, entered.has_changed, assign_alone(database) >> EPOCH_SHIFT) == (1, False, 1)
    database.sql(f"{FAILOVER}; UPDATE syncer.installation SET installation = gen_random_uuid(), epoch = 7")
    assert (enter(database, index).epoch, index.record.read(installation(database)).epoch) == (8, 8)
    assert assign_alone(database) >> EPOCH_SHIFT == 8


def test_writers_that_find_the_change_together_enter_one_epoch(database: World, index: Index) -> None:
    """Of many writers that notice a failover at the same time one bumps the epoch, and all assign with it."""
    enter(database, index)
    database.sql(FAILOVER)
    with ThreadPoolExecutor(THREADS) as threads:
        entered = list(threads.map(lambda _: enter(database, index), range(THREADS)))
    assert {identity.epoch for identity in entered} == {2}
    assert [identity.has_changed for identity in entered].count(True) == 1
    assert assign_alone(database) >> EPOCH_SHIFT == 2


def test_the_record_never_goes_back(database: World, index: Index) -> None:
    """A daemon that was suspended while others entered later epochs cannot write its own over theirs: it asks again."""
    original = installation(database)
    index.record.enter(original, 5, "a server")
    for late in (4, 5):
        with pytest.raises(IndexingError, match=f"epoch {late}, or a later one") as refused:
            index.record.enter(original, late, "another one")
        assert decide(refused.value) is Action.RETRY
    index.record.renew(original, 4, 7)
    assert index.record.read(original)[:2] == (5, 0)


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
        assert earlier < version.least_next(connection) <= earlier + 256
        database.sql(FAILOVER)
        failover.enter(connection, index)
        second = assign(connection)
        # A restore to the first epoch, which nobody has noticed yet.
        database.sql(f"{FAILOVER}; UPDATE syncer.installation SET epoch = 1; {SET_BACK}")
        assert not any(map(is_foreign, (earlier, second, earlier + 5 * 256)))
        assert is_foreign(3 << EPOCH_SHIFT | 5)
