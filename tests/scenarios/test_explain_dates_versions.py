"""When a version was drawn: notes that draw nothing, stay few, and are never wrong, across epochs and restores."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from syncer import version
from syncer.index import Index
from syncer.model import EPOCH_SHIFT
from syncer.postgres import Connection, value
from syncer.version import DrawLog, Origin
from syncer.watch import Watch
from tests.drawing import draw
from tests.harness import World

SEQUENCE = "SELECT last_value FROM syncer.version"
NOTES = "SELECT version, drawn_before, greater_after FROM syncer.version_time ORDER BY version"
OTHER_TIMELINE = "UPDATE syncer.incarnation SET timeline = timeline - 1"
AT_ONCE = timedelta(0)


@pytest.fixture
def database(empty_world: World) -> World:
    """A database with the syncer schema, in no incarnation yet."""
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
        version.enter_incarnation(made, index)
        yield made


def now(connection: Connection) -> datetime:
    """The time of the database."""
    found = value(connection, "SELECT clock_timestamp()")
    assert isinstance(found, datetime)
    return found


def drawn(connection: Connection) -> tuple[datetime, int, datetime]:
    """A version, with the times just before and just after it was drawn."""
    before = now(connection)
    return before, draw(connection), now(connection)


def require_true(connection: Connection, draws: list[tuple[datetime, int, datetime]]) -> None:
    """What is said of each of these draws is true."""
    for began, one, ended in draws:
        after, before = version.drawn_between(connection, one)
        assert after is None or after <= ended, (one, after, ended)
        assert before is None or before >= began, (one, before, began)


def test_a_version_is_dated_by_the_notes_around_it(connection: Connection) -> None:
    """Between the note before it and the one after it; nothing is said where there is no note."""
    log = DrawLog(apart=AT_ONCE)
    draws = [drawn(connection)]
    assert version.drawn_between(connection, draws[0][1]) == (None, None)
    for _ in range(20):
        log.note(connection)
        draws += [drawn(connection) for _ in range(3)]
    require_true(connection, draws)
    said = [version.drawn_between(connection, one) for _, one, _ in draws]
    assert said[0][0] is None
    assert said[-1][1] is None
    assert all(after is not None and before is not None and after < before for after, before in said[1:-3])


def test_notes_draw_nothing_and_skip_nothing(database: World, connection: Connection) -> None:
    """The sequence is where it was, however often it is looked at, and nothing is noted twice."""
    draw(connection)
    before = database.sql(SEQUENCE)
    log = DrawLog(apart=AT_ONCE)
    for _ in range(5):
        log.note(connection)
    assert database.sql(SEQUENCE) == before
    assert len(database.sql(NOTES)) == 1


def test_a_version_after_a_quiet_night_is_dated_by_the_morning(connection: Connection) -> None:
    """That nothing was drawn for a long time is known, though nothing is written while nothing is drawn."""
    log = DrawLog(apart=AT_ONCE)
    draw(connection)
    log.note(connection)
    for _ in range(3):
        quiet = now(connection)
        log.note(connection)
    one = drawn(connection)
    log.note(connection)
    require_true(connection, [one])
    after, _ = version.drawn_between(connection, one[1])
    assert after is not None
    assert after >= quiet


def test_notes_of_many_daemons_stay_apart(database: World, connection: Connection) -> None:
    """However many watch, and however often, there is one note in the time that is to be between two."""
    logs = [DrawLog(apart=timedelta(hours=1)) for _ in range(6)]

    def watch(log: DrawLog) -> None:
        with database.connect() as own:
            for _ in range(10):
                draw(own)
                log.note(own)

    draw(connection)
    with ThreadPoolExecutor(len(logs)) as threads:
        list(threads.map(watch, logs))
    # Some may have looked at the empty table together.
    assert 1 <= len(database.sql(NOTES)) <= len(logs)


def test_old_notes_become_fewer_and_stay_true(database: World, connection: Connection) -> None:
    """Two years of notes, ten seconds apart at the end, are thinned to few, of which each is as it was."""
    database.sql(
        """
        INSERT INTO syncer.version_time (version, drawn_before, greater_after)
        SELECT (1::bigint << 43) + row_number() OVER (ORDER BY at), at, at FROM (
            SELECT now() - make_interval(secs => s) AS at FROM generate_series(0, 7190, 10) AS s
            UNION SELECT now() - make_interval(secs => 7200 + 15 * m) FROM generate_series(0, 90000) AS m
            UNION SELECT now() - make_interval(days => 15, hours => h) FROM generate_series(0, 24 * 715) AS h
        ) AS x
        """
    )
    database.sql("SELECT setval('syncer.version', 1000000)")
    before = {row[0]: row for row in database.sql(NOTES)}
    assert len(before) > 90_000
    log = DrawLog()
    log.note(connection)
    kept = [row for row in database.sql(NOTES) if row[0] in before]
    assert all(before[row[0]] == row for row in kept)
    assert len(kept) < 20_000
    aged = [(datetime.now(UTC) - row[1], row[1]) for row in kept]
    widest = {timedelta(minutes=55): 10, timedelta(days=6): 2 * 60, timedelta(days=364): 2 * 3600}
    for (age, at), (_, following) in pairwise(aged):
        limit = next((seconds for oldest, seconds in widest.items() if age < oldest), 60 * 86400)
        assert (following - at).total_seconds() <= limit + 1, age
    DrawLog().note(connection)
    assert len([row for row in database.sql(NOTES) if row[0] in before]) == len(kept)


def test_an_epoch_that_ended_keeps_its_dates(database: World, connection: Connection, index: Index) -> None:
    """After a failover, versions from before are dated as before; the notes of the new epoch say nothing of them."""
    log = DrawLog(apart=AT_ONCE)
    draws = [drawn(connection)]
    log.note(connection)
    draws.append(drawn(connection))
    noted = version.drawn_between(connection, draws[0][1])
    database.sql(OTHER_TIMELINE)
    version.enter_incarnation(connection, index)
    draws.append(drawn(connection))
    log.note(connection)
    draws.append(drawn(connection))
    require_true(connection, draws)
    assert version.drawn_between(connection, draws[0][1]) == noted
    after, before = version.drawn_between(connection, draws[1][1])
    assert after is not None
    assert before is None
    assert version.drawn_between(connection, draws[2][1])[1] is not None


def test_a_restored_database_dates_nothing_before_it_has_its_own_epoch(
    database: World, connection: Connection, index: Index
) -> None:
    """Numbers of the life that was lost were not drawn after the restore, whatever the set-back sequence says."""
    log = DrawLog(apart=AT_ONCE)
    draw(connection)
    log.note(connection)
    lost = [drawn(connection) for _ in range(50)]
    database.sql(f"{OTHER_TIMELINE}; SELECT setval('syncer.version', {lost[10][1] & 0xFFFFFF})")
    restored_at = now(connection)
    DrawLog(apart=AT_ONCE).note(connection)
    log.note(connection)
    version.enter_incarnation(connection, index)
    draw(connection)
    log.note(connection)
    require_true(connection, lost)
    for _, one, _ in lost:
        after, _ = version.drawn_between(connection, one)
        assert after is None or after < restored_at


def test_who_made_a_version(database: World, connection: Connection, index: Index) -> None:
    """Drawn, drawn in an earlier epoch, drawn in a life that was lost, or made up: each is told from the others."""

    def origin(one: int) -> Origin:
        return version.origin(connection, index, one)

    own = draw(connection)
    assert origin(own) is Origin.DRAWN
    assert origin(own + 1) is Origin.FOREIGN
    assert version.is_surpassed(connection, own + 1)
    assert origin(1) is Origin.FOREIGN
    assert origin(2 << EPOCH_SHIFT | 5) is Origin.FOREIGN
    assert not version.is_surpassed(connection, 2 << EPOCH_SHIFT | 5)
    assert origin(1 << 62) is Origin.FOREIGN
    database.sql(OTHER_TIMELINE)
    version.enter_incarnation(connection, index)
    assert origin(own) is Origin.EARLIER
    second = draw(connection)
    assert origin(second) is Origin.DRAWN
    # A restore to the first epoch, which nobody has noticed yet.
    database.sql(f"{OTHER_TIMELINE}, epoch = 1; SELECT setval('syncer.version', {own & 0xFFFFFF})")
    assert origin(own) is Origin.DRAWN
    assert origin(second) is Origin.LOST
    assert origin(own + 5) is Origin.LOST
    assert origin(3 << EPOCH_SHIFT | 5) is Origin.FOREIGN


def test_the_watch_takes_the_notes(database: World, connection: Connection) -> None:
    """Every daemon has a watch, and each of its turns looks."""
    one = drawn(connection)
    with closing(Watch(connect=database.connect)) as watch:
        watch.run_once()
    assert version.drawn_between(connection, one[1])[1] is not None
