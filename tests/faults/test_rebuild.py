"""A new index takes the place of the one that serves, whatever happens meanwhile; searches never see half of one."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from syncer.apply import activate, reindex
from syncer.base.errors import ConfigError
from syncer.base.model import Role
from syncer.base.postgres import AdvisoryLock
from syncer.documents import registry
from tests.faults import harness
from tests.faults.harness import require_holds
from tests.support.world import DEADLINE_SECONDS, World, planned, wait_until
from tests.support.writers import altering

KEPT = 300
"""So many posts exist throughout."""
DISK_FULL = "index.blocks.read_only_allow_delete"


@pytest.fixture
def blog(world: World) -> World:
    """A blog with some posts that stay."""
    harness.add_posts(world, KEPT)
    return world


def roles(world: World) -> dict[str, str]:
    """What each of the document's indices is for."""
    return dict(world.sql("SELECT role, index_name FROM syncer.document WHERE name = 'blogpost'"))


def begin(world: World) -> subprocess.Popen[bytes]:
    """``syncer index rebuild blogpost`` in a process of its own."""
    with (world.folder / "rebuild.log").open("ab") as log:
        command = [sys.executable, "-m", "syncer", "index", "rebuild", "blogpost"]
        return subprocess.Popen(command, env=world.environment, stdout=log, stderr=log)


def require_done(world: World, process: subprocess.Popen[bytes]) -> None:
    """It ends, and well."""
    assert process.wait(2 * DEADLINE_SECONDS) == 0, (world.folder / "rebuild.log").read_text()


@contextmanager
def searching(world: World) -> Iterator[None]:
    """Search through the alias all the while: what was there throughout is found once, each time."""
    stop = threading.Event()
    failures: list[str] = []

    def search() -> None:
        query = {"match": {"title": "title"}}
        with world.elasticsearch() as client:
            while not stop.wait(0.02) and not failures:
                try:
                    answer = client.search(index=world.alias, query=query, size=0, track_total_hits=True)
                    if (number := answer["hits"]["total"]["value"]) != KEPT:
                        failures.append(f"{number} of {KEPT} found")
                except Exception as error:  # noqa: BLE001 - told to the test below
                    failures.append(repr(error))

    thread = threading.Thread(target=search)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert failures == []


def test_a_rebuild_of_a_suspended_document_begins_only_if_it_can_end(blog: World) -> None:
    """If its tables are at fault, nothing is created; if its index is, a new one is the way out."""
    blog.backfill()
    blog.sql("TRUNCATE syncer.outbox")  # as if all were handled
    blog.sql("UPDATE syncer.document SET suspended = 'a shard is gone'")
    rebuilt = blog.syncer("index", "rebuild", "blogpost")
    assert rebuilt.returncode == 0, rebuilt.stdout + rebuilt.stderr
    events = blog.syncer("events").stdout
    assert "Applied blogpost" in events
    assert "resumed" not in events, "the index before stayed suspended until the new one was searched"
    before = roles(blog)
    blog.sql("ALTER TABLE posts RENAME title TO heading")
    refused = blog.syncer("index", "rebuild", "blogpost")
    assert (refused.returncode, "public.posts.title" in refused.stderr) == (1, True), refused.stderr
    assert roles(blog) == before
    with blog.elasticsearch() as client:
        assert list(client.indices.get(index=f"{blog.alias}*").body) == [before[Role.CURRENT]]


def test_a_full_disk_amid_a_rebuild_leaves_the_old_index_live(blog: World) -> None:
    """The rebuild suspends and says so; changes go on reaching what is searched; later it is done by one command."""
    blog.daemon()
    require_holds(blog)
    before = blog.index_of()
    with searching(blog):
        with altering(blog):  # nothing is written before the disk is full
            process = begin(blog)
            wait_until(lambda: Role.BUILDING in roles(blog), what="a new index is active")
            new = roles(blog)[Role.BUILDING]
            with blog.elasticsearch() as client:
                client.indices.put_settings(index=new, settings={DISK_FULL: True})
        assert process.wait(DEADLINE_SECONDS) == 1
        output = (blog.folder / "rebuild.log").read_text()
        assert f"{new} is suspended" in output
        assert "syncer index rebuild blogpost" in output
        blog.sql("UPDATE posts SET body = 'written while the rebuild is suspended'")
        blog.wait_until_level()
        assert blog.index_of() == before
        require_done(blog, begin(blog))
    require_holds(blog)
    assert roles(blog).keys() == {Role.CURRENT}
    assert blog.index_of() not in (before, new)
    with blog.elasticsearch() as client:
        assert not client.indices.exists(index=new)


def test_a_new_mapping_that_refuses_some_documents_does_not_serve(blog: World) -> None:
    """The command says how many, and why; with --despite-dead-lettered the new index serves without them."""
    file = blog.document_folder / "index.json"
    body = json.loads(file.read_text())
    body["mappings"]["properties"]["title"] = {"type": "date"}
    file.write_text(json.dumps(body))
    blog.sql("UPDATE posts SET title = '2020-01-01'")
    blog.apply()
    before = blog.index_of()
    blog.sql("UPDATE posts SET title = 'no date' WHERE id IN (1, 2); DELETE FROM syncer.outbox")
    rebuilt = blog.syncer("index", "rebuild", "blogpost")
    assert rebuilt.returncode == 1
    assert "2 documents of blogpost could not be written" in rebuilt.stderr
    assert "parsing" in rebuilt.stderr
    assert blog.index_of() == before
    left = f"{roles(blog)[Role.BUILDING]} is being built, but no command goes on with it"
    assert left in blog.syncer("status").stdout
    with blog.connect() as connection:
        connection.execute("SELECT pg_advisory_lock_shared($1)", (AdvisoryLock.REBUILD,))
        assert left not in blog.syncer("status").stdout
    despite = blog.syncer("index", "rebuild", "blogpost", "--despite-dead-lettered")
    assert despite.returncode == 0, despite.stdout + despite.stderr
    assert blog.index_of() != before


def test_a_plan_that_is_out_of_date_is_not_carried_out(blog: World) -> None:
    """Nothing is changed: the index that serves by now stays active, and the next plan is made for that."""
    select = blog.document_folder / "select.sql"
    with blog.connect() as connection, blog.indices() as indices:
        reindex.begin(connection, indices, "blogpost", report=lambda _: None)
        select.write_text(select.read_text().replace("p.title,", "upper(p.title) AS title,"))
        decided = planned(connection, indices, blog.config)
        assert len(decided.abandoned) == 1
        blog.sql("DELETE FROM syncer.outbox")
        require_done(blog, begin(blog))
        now = roles(blog)
        with pytest.raises(ConfigError, match="changed the active definitions"):
            activate.carry_out(connection, indices, decided)
    assert roles(blog) == now
    assert blog.index_of() == decided.abandoned[0].index_name
    blog.apply()
    assert blog.differences() == []


def test_a_move_that_a_failover_has_taken_back_is_recorded_by_the_next_apply(blog: World) -> None:
    """Postgres no longer knows that the new index serves, and the one before is gone."""
    blog.daemon()
    with blog.connect() as connection, blog.indices() as indices:
        new = reindex.begin(connection, indices, "blogpost", report=lambda _: None).document
        wait_until(lambda: registry.by_role(connection, "blogpost")[Role.BUILDING].is_loaded, what="it is loaded")
        indices.swap(blog.alias, new.target)
        indices.drop(registry.current(connection)["blogpost"].target)
    blog.sql("UPDATE posts SET title = 'changed' WHERE id = 1")
    wait_until(
        lambda: bool(blog.sql("SELECT FROM syncer.document WHERE role = 'current' AND suspended IS NOT NULL")),
        what="the index that is gone is suspended",
    )
    applied = blog.syncer("apply", "--yes")
    assert applied.returncode == 0, applied.stdout + applied.stderr
    assert blog.sql("SELECT role, index_name, suspended FROM syncer.document") == [("current", new.index_name, None)]
    require_holds(blog)
