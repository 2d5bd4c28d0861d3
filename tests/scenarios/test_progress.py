"""What counts as handled is known, however long workers are away, and one's own write can be waited for."""

from __future__ import annotations

import json
import time
from contextlib import closing

import psycopg
import pytest

import syncer
from syncer.base.errors import TokenError, WaitTimeoutError
from syncer.base.postgres import Connection
from syncer.capture import outbox, progress, reader as capture_reader
from syncer.monitoring import status
from syncer.recovery import backlog
from syncer.verify.wait import wait
from syncer.worker.source import OutboxSource
from tests.faults.harness import committed
from tests.support.in_process import following, handling
from tests.support.network import ask
from tests.support.world import World, wait_until

WAITING = "SELECT h.id, (SELECT max(changes) FROM syncer.cursor) - h.changes, h.waiting_since FROM syncer.handled AS h"
INSERT = "INSERT INTO users (id, name, email) VALUES (%s, 'somebody', '')"


def test_merging_what_waits_keeps_what_is_handled(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many cursors few are kept; how much waits, and since when, stays true."""
    monkeypatch.setattr(progress, "NOTES_MAX", 4)
    with world.relay() as relay, world.connect() as connection:
        world.sql(INSERT, 0)
        relay.run_once()
        with handling(world):
            wait_until(world.is_handled, what="the first change is handled")
        earlier = progress.handled(connection)
        for number in range(1, 20):
            world.sql(INSERT, number)
            assert relay.run_once().published == 1
        waiting = world.sql(WAITING)
        assert waiting[0][:2] == (earlier, 19)
        progress.prune(connection)
        ((cursors,),) = world.sql("SELECT count(*) FROM syncer.cursor")
        assert cursors < 20
        assert world.sql(WAITING) == waiting
        with handling(world):
            wait_until(world.is_handled, what="all is handled")
        assert world.sql(WAITING)[0][1] == 0


def test_terms_of_long_ago_are_forgotten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many are kept, beside the new one, and the numbers in each are greater than those in all before it."""
    monkeypatch.setattr(progress, "TERMS_MAX", 2)
    with world.connect() as connection:
        terms = [progress.begin_term(connection) for _ in range(4)]
        assert [progress.has_term(connection, term.name) for term in terms] == [False, True, True, True]
        assert not progress.has_term(connection, "a copy's")
    starts = [term.start for term in terms]
    assert sorted({*starts}) == starts


@pytest.mark.parametrize("rows", [2, 3])
def test_a_backlog_is_saved_to_its_end(world: World, rows: int) -> None:
    """Read in pages of two rows, of one transaction or of several: what was read is what the saved cursor sees."""
    users = "INSERT INTO users (id, name, email) SELECT g, 'somebody', '' FROM generate_series({}, {}) AS g"
    reader = backlog.reader(world.connect, bytes_max=10**9)
    try:
        wait_until(reader.lead, what="it leads")
        world.sql(users.format(1, rows))
        world.sql(users.format(10, 9 + rows))
        rows_read, is_last = 0, False
        while not is_last:
            page = reader.read(rows_max=2)
            reader.save(page, {})
            rows_read, is_last = rows_read + len(page.rows), page.is_last
        assert rows_read == 2 * rows
        visibility = (
            "SELECT bool_and(pg_visible_in_snapshot(o.xid, h.snapshot)) FROM syncer.outbox AS o, syncer.handled AS h"
        )
        assert world.sql(visibility) == [(True,)]
    finally:
        reader.close()


def test_rows_of_an_open_transaction_are_passed_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction may write millions of rows before it commits: no look at the outbox, and no status, reads them."""
    world.require_postgres(15, "to be told at once how many blocks were read")
    monkeypatch.setattr(capture_reader, "TRIM_SECONDS", 0.0)
    blocks = "SELECT sum(heap_blks_hit + heap_blks_read) FROM pg_statio_user_tables WHERE relname LIKE 'outbox%'"

    def read_blocks(connection: Connection) -> int:
        connection.execute("SELECT pg_stat_force_next_flush()")
        return int(connection.execute(blocks).fetchall()[0][0])

    def look() -> tuple[int, int]:
        """How many changes a reader of the saved cursor sees, and how many blocks it reads; so does the status."""
        with world.connect() as connection:
            outbox.prepare(connection)
            [(saved,)] = connection.execute("SELECT snapshot::text FROM syncer.cursor ORDER BY id DESC LIMIT 1")
            blocks = read_blocks(connection)
            rows = sum(len(page.rows) for page in outbox.pages(connection, saved, rows_max=1000))
            assert status.ask_postgres(connection).outbox_waiting == rows
            return rows, read_blocks(connection) - blocks

    source = OutboxSource(connect=world.connect, settings=world.settings.relay, pause=time.sleep)

    def saved_without_changes() -> bool:
        batch = source.receive(records_max=1, wait_seconds=1)
        if batch is not None:
            source.save(batch)
        return batch is not None and not batch.changes

    with closing(source), world.application() as long:
        long.execute("INSERT INTO users (id, name, email) SELECT g, 'somebody', '' FROM generate_series(1, 20000) AS g")
        for _ in range(2):  # the second one knows of the transaction, since the first save was a later one
            wait_until(saved_without_changes, what="a cursor is saved")
        changes, blocks_read = look()
        assert (changes, blocks_read < 100) == (0, True)
        long.commit()
        assert look()[0] == 20_000


def test_changes_that_wait_for_a_server_take_no_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rows are left in the outbox for as long, and the leader looks on: that is one more batch, not thousands."""
    monkeypatch.setattr(capture_reader, "TRIM_SECONDS", 0.0)
    with closing(OutboxSource(connect=world.connect, settings=world.settings.relay, pause=time.sleep)) as source:
        for number in (1, 2):
            world.sql(INSERT, number)
            in_hand = [batch for _ in range(20) if (batch := source.receive(records_max=10, wait_seconds=0.1))]
            assert [len(batch.changes) for batch in in_hand] == [1, 0]
            for batch in in_hand:
                source.save(batch)


def test_a_moment_is_handled_once_all_before_it_is(world: World) -> None:
    """Also of a transaction that began before others and committed after them, and of rows that were adopted."""

    def is_handled() -> bool:
        return progress.is_handled(connection, moment)

    with world.relay() as relay, world.connect() as connection, world.application() as long:
        moment = progress.moment(connection)
        assert is_handled()
        long.execute(INSERT, (1,))
        world.sql(INSERT, 2)
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
        world.sql(INSERT, 3)
        progress.adopt(connection)
        assert not is_handled()
        relay.run_once()
        with handling(world):
            wait_until(is_handled, what="what was adopted is handled")


def test_a_transaction_that_is_open_while_the_outbox_is_adopted_is_waited_for(world: World) -> None:
    """Its own changes keep their id, and are handled later than what was adopted."""
    with world.relay() as relay, world.connect() as connection, world.application() as late:
        world.sql(INSERT, 1)
        late.execute(INSERT, (2,))
        [(token,)] = late.execute("SELECT syncer.token()").fetchall()
        progress.adopt(connection)
        relay.run_once()
        with handling(world):
            wait_until(world.is_handled, what="what was adopted is handled")
        late.commit()
        with pytest.raises(WaitTimeoutError):
            wait(world.settings, token, timeout_seconds=0.01)
        relay.run_once()
        with handling(world):
            assert wait(world.settings, token).is_complete
        with world.application() as quiet:
            [(token,)] = quiet.execute("SELECT syncer.token() FROM pg_current_xact_id()").fetchall()
        assert not wait(world.settings, token).is_captured, "the adopted rows are still there, but handled"


def test_a_publication_of_all_tables_prevents_no_write_of_syncer(world: World) -> None:
    """Postgres refuses to change or delete rows of a published table without a replica identity."""
    world.sql("INSERT INTO users (id, name, email) VALUES (1, 'waits in the outbox', '')")
    world.sql("CREATE PUBLICATION everything FOR ALL TABLES")
    tables = "SELECT oid::regclass FROM pg_class WHERE relnamespace = 'syncer'::regnamespace AND relkind = 'r'"
    for (table,) in world.sql(f"{tables} AND relname <> 'version_lock'"):  # of which only the lock is used
        world.sql(f"DELETE FROM {table} WHERE false")
    with world.connect() as connection:
        progress.adopt(connection)
    with following(world):
        world.wait_until_level()


UPDATE = "UPDATE posts SET title = %s WHERE id = 1"


@pytest.fixture
def blog(world: World) -> World:
    """Twenty posts, whose changes are not yet published."""
    world.sql(INSERT, 1)
    world.sql("INSERT INTO posts (id, user_id, title, body) SELECT g, 1, 'title', '' FROM generate_series(1, 20) AS g")
    return world


def test_what_cannot_be_waited_for_is_said(blog: World) -> None:
    """Nonsense, the future, what is open, what was rolled back, another life of the database: each has its words."""
    token = committed(blog, UPDATE, "later")
    xid, _, life = token.partition(".")
    for nonsense in ("", "nonsense", "2", "-5", "1" * 21, f"{xid}.xyz", f"{xid} OR true", "\0"):
        with pytest.raises(TokenError, match="is no token"):
            wait(blog.settings, nonsense)
    with pytest.raises(TokenError, match="No transaction 99999999999 has begun"):
        wait(blog.settings, "99999999999")
    with pytest.raises(TokenError, match="another database than this one"):
        wait(blog.settings, f"{xid}.{'0' * 8 if life != '0' * 8 else '1' * 8}")
    with psycopg.connect(blog.dsn) as connection:
        connection.execute(UPDATE, ("open",))
        [(open_,)] = connection.execute("SELECT syncer.token()").fetchall()
        with pytest.raises(TokenError, match="is not committed as yet"):
            wait(blog.settings, open_)
        connection.rollback()
        with pytest.raises(TokenError, match="was rolled back"):
            wait(blog.settings, open_)


def test_what_could_not_be_written_is_said(blog: World) -> None:
    """Documents that were dead-lettered since, and not before; documents that are suspended."""
    update = "UPDATE posts SET created = 'infinity' WHERE id = %s"
    with following(blog):
        wait(blog.settings, committed(blog, update, 7))
        waited = wait(blog.settings, committed(blog, update, 8))
        assert ([letter.id for letter in waited.dead_lettered], waited.is_complete) == (["8"], False)
        well = committed(blog, UPDATE, "fine")
        assert wait(blog.settings, well).is_complete
    blog.sql("UPDATE syncer.document SET suspended = 'for a test', stale_since = now(), loaded_at = NULL")
    assert wait(blog.settings, well).suspended == ("blogpost",)


def test_one_s_own_write_is_waited_for(blog: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command, in Python and over HTTP; exit code 1 if it is not there in time, with where it hangs."""
    token = committed(blog, UPDATE, "mine")
    late = blog.syncer("wait", token, "--timeout", "1")
    assert (late.returncode, "no daemon has read it" in late.stderr) == (1, True), late.stderr
    with blog.relay() as relay:
        relay.run_once()
    assert "the workers have not handled it" in blog.syncer("wait", token, "--timeout", "1").stderr
    daemon = blog.daemon(environment={"SYNCER_WEB_PORT": "0"})
    assert json.loads(blog.prints("wait", token, "--searchable", "--json"))["is_complete"]
    for name, value in blog.environment.items():
        if name.startswith("SYNCER_"):
            monkeypatch.setenv(name, value)
    assert syncer.wait(token, timeout_seconds=60).is_complete
    address = daemon.wait_for("web.listening")["address"]
    query = f"token={token}&timeout=25&searchable=true"
    assert json.loads(ask(address, f"/api/wait?{query}")[1])["is_searchable"]
    for bad in ("token=nonsense", "", f"token={token}&timeout=99"):
        assert ask(address, f"/api/wait?{bad}")[0] == 400
