"""What counts as handled is known, however long workers are away."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from syncer.base.model import Composition, Target
from syncer.capture import progress
from syncer.capture.reader import OutboxReader
from syncer.elasticsearch.bulk import BulkOutcome, Index
from tests.support.in_process import handling
from tests.support.world import DEADLINE_SECONDS, World, running, wait_until

WAITING = """
SELECT h.id, (SELECT max(changes) FROM syncer.cursor) - h.changes, h.waiting_since FROM syncer.handled AS h
"""


def test_merging_what_waits_keeps_what_is_handled(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many cursors few are kept; how much waits, and since when, stays true."""
    monkeypatch.setattr(progress, "NOTES_MAX", 4)
    insert = "INSERT INTO users (id, name, email) VALUES (%s, 'somebody', '')"
    with world.relay() as relay, world.connect() as connection:
        world.sql(insert, 0)
        relay.run_once()
        with handling(world):
            wait_until(world.is_handled, what="the first change is handled")
        first = progress.handled(connection)
        for number in range(1, 20):
            world.sql(insert, number)
            assert relay.run_once().published == 1
        before = world.sql(WAITING)
        assert before[0][:2] == (first, 19)
        progress.prune(connection)
        ((kept,),) = world.sql("SELECT count(*) FROM syncer.cursor")
        assert kept < 20
        assert world.sql(WAITING) == before
        with handling(world):
            wait_until(world.is_handled, what="all is handled")
        assert world.sql(WAITING)[0][1] == 0


@pytest.mark.parametrize("rows", [2, 3])
def test_a_backlog_is_saved_to_its_end(world: World, rows: int) -> None:
    """Read in pages of two rows, of one transaction or of several: what was read is what the saved cursor sees."""
    users = "INSERT INTO users (id, name, email) SELECT g, 'somebody', '' FROM generate_series({}, {}) AS g"
    reader = OutboxReader(world.connect)
    try:
        wait_until(reader.lead, what="it leads")
        world.sql(users.format(1, rows))
        world.sql(users.format(10, 9 + rows))
        read, is_last = 0, False
        while not is_last:
            page = reader.read(rows_max=2)
            reader.save(page, {})
            read, is_last = read + len(page.rows), page.is_last
        assert read == 2 * rows
        seen = "SELECT bool_and(pg_visible_in_snapshot(o.xid, h.snapshot)) FROM syncer.outbox AS o, syncer.handled AS h"
        assert world.sql(seen) == [(True,)]
    finally:
        reader.close()


def test_a_moment_is_handled_once_all_before_it_is(world: World) -> None:
    """Also of a transaction that began before others and committed after them, and of rows that were adopted."""
    insert = "INSERT INTO users (id, name, email) VALUES (%s, 'somebody', '')"

    def is_handled() -> bool:
        return progress.is_handled(connection, moment)

    with world.relay() as relay, world.connect() as connection, world.application() as long:
        moment = progress.moment(connection)
        assert is_handled()
        long.execute(insert, (1,))
        world.sql(insert, 2)
        assert is_handled()  # later changes are no matter
        relay.run_once()
        long.commit()
        moment = progress.moment(connection)
        with handling(world):
            wait_until(world.is_handled, what="what was read is handled")
        assert not is_handled()
        relay.run_once()
        assert not is_handled()
        with handling(world):
            wait_until(is_handled, what="all before the moment is handled")
        world.sql(insert, 3)
        progress.adopt(connection)
        assert not is_handled()
        relay.run_once()
        with handling(world):
            wait_until(is_handled, what="what was adopted is handled")


class Slow(Index):
    """Keeps writes of post 2 back until the test lets them go."""

    is_reached, may_go = threading.Event(), threading.Event()

    def write(self, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        """Write, perhaps later."""
        if any(composition.id == "2" for composition in compositions):
            self.is_reached.set()
            assert self.may_go.wait(DEADLINE_SECONDS)
        return super().write(target, compositions)


def test_progress_is_saved_in_the_order_in_which_changes_were_received(world: World) -> None:
    """A change that was received later and is written already counts as handled once those before it are."""
    world.uses_kafka = False
    world.sql("INSERT INTO users (id, name, email) VALUES (1, 'somebody', '')")
    insert = "INSERT INTO posts (id, user_id, title, body) VALUES (%s, 1, 'title', '')"
    with world.elasticsearch() as client, world.connect() as connection:
        index = Slow(client)
        with world.worker(index) as worker, running(worker):
            world.sql(insert, 2)
            wait_until(index.is_reached.is_set, what="the first change is being written")
            world.sql(insert, 3)
            wait_until(lambda: "3" in world.held(), what="the second change is written")
            moment = progress.moment(connection)
            assert not progress.is_handled(connection, moment)
            index.may_go.set()
            wait_until(lambda: progress.is_handled(connection, moment), what="both are handled")
    assert world.differences() == []
