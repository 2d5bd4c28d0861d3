"""A new index takes the place of the one that serves, whatever happens meanwhile; searches never see half of one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from syncer.apply import activate, reindex
from syncer.base.errors import ConfigError, DocumentError
from syncer.base.model import Role
from tests.support.breakpoints import Plan
from tests.support.world import DEADLINE_SECONDS, World, planned, wait_until
from tests.support.writers import fill

KEPT = 300
"""So many posts exist throughout; random writers leave these ids alone, but for their authors' names."""


@pytest.fixture
def blog(world: World) -> World:
    """A blog with some posts that stay, and a daemon that keeps up."""
    fill(world)
    world.sql(
        "INSERT INTO posts (id, user_id, title, body) SELECT 1000000 + g, (SELECT min(id) FROM users), 'kept', 'kept'"
        " FROM generate_series(1, %s) AS g",
        KEPT,
    )
    return world


def roles(world: World) -> dict[str, str]:
    """What each of the document's indices is for."""
    return dict(world.sql("SELECT role, index_name FROM syncer.document WHERE name = 'blogpost'"))


def physical(world: World) -> set[str]:
    """The document's indices in Elasticsearch."""
    with world.elasticsearch() as client:
        return set(client.indices.get(index=f"{world.alias}-0*").body)


@contextmanager
def searching(world: World) -> Iterator[None]:
    """Search through the alias all the while: what was there throughout is found once, each time."""
    stop = threading.Event()
    failures: list[str] = []

    def search() -> None:
        with world.elasticsearch() as client:
            while not stop.is_set():
                try:
                    answer = client.search(
                        index=world.alias, query={"match": {"title": "kept"}}, size=0, track_total_hits=True
                    )
                    number = answer["hits"]["total"]["value"]
                except Exception as error:  # noqa: BLE001 - told to the test below
                    failures.append(repr(error))
                    return
                if number != KEPT:
                    failures.append(f"{number} of {KEPT} found")
                    return

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures


def is_searchable(world: World) -> bool:
    """Whether searches find all that stays."""
    with world.elasticsearch() as client:
        client.indices.refresh(index=world.alias)
        return int(client.count(index=world.alias, query={"match": {"title": "kept"}})["count"]) == KEPT


def begin(world: World) -> subprocess.Popen[bytes]:
    """``syncer index rebuild blogpost`` in a process of its own."""
    with (world.folder / "rebuild.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "syncer", "index", "rebuild", "blogpost"],
            env=world.environment,
            stdout=log,
            stderr=log,
        )


def require_done(world: World, process: subprocess.Popen[bytes]) -> None:
    """It ends, and well."""
    assert process.wait(2 * DEADLINE_SECONDS) == 0, (world.folder / "rebuild.log").read_text()


# A command that dies at a step


STEPS: dict[str, tuple[str, str]] = {
    "the index is built and not yet active": ("syncer.apply.activate", "registry.put_document"),
    "it is active and not yet loaded": ("syncer.cli.follow_jobs", "LoadProgress.follow"),
    "it is loaded and not yet settled": ("syncer.apply.reindex", "settle"),
    "it is settled and not yet verified": ("syncer.cli.comparing", "verify"),
    "it is verified and the alias not yet moved": ("syncer.apply.reindex", "Indices.swap"),
    "the alias is moved and the roles are not": ("syncer.apply.reindex", "registry.make_current"),
}
"""After which step: in which module, before which call."""
SOME_STEPS = (
    "the index is built and not yet active",
    "it is active and not yet loaded",
    "the alias is moved and the roles are not",
)

DIE = """
import os, signal, sys, importlib
module = importlib.import_module(sys.argv[1])
*path, name = sys.argv[2].split(".")
owner = module
for one in path:
    owner = getattr(owner, one)
setattr(owner, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
sys.argv[1:] = ["index", "rebuild", "blogpost"]
from syncer.cli.app import main
main()
"""


def die_before(world: World, step: str) -> None:
    """A rebuild that is killed with SIGKILL at a step."""
    ended = subprocess.run(
        [sys.executable, "-c", DIE, *STEPS[step]],
        env=world.environment,
        capture_output=True,
        check=False,
        timeout=2 * DEADLINE_SECONDS,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()


def test_a_rebuild_that_died_at_each_step_goes_on(blog: World) -> None:
    """The same command goes on with the same index and ends the rebuild; nothing else that it had left remains."""
    blog.backfill()
    begun = set()
    for step in SOME_STEPS:
        die_before(blog, step)
        begun |= {index_name for role, index_name in roles(blog).items() if role == Role.BUILDING}
        assert is_searchable(blog)
    blog.sql("UPDATE posts SET title = 'changed meanwhile' WHERE id < 10")
    with blog.relay() as relay, blog.index() as index, blog.worker(index) as worker:
        require_done(blog, begin(blog))
        blog.drain(relay, worker)
    now = roles(blog)
    assert now.keys() == {Role.CURRENT}
    assert begun == physical(blog) == set(now.values())
    assert is_searchable(blog)


def test_a_rebuild_that_died_at_a_step_can_be_given_up(blog: World) -> None:
    """What was searched before is searched still, and nothing else is left."""
    blog.backfill()
    before = blog.index_of()
    for step in SOME_STEPS[1:]:
        die_before(blog, step)
        assert blog.syncer("index", "abort", "blogpost").returncode == 2
        assert Role.BUILDING in roles(blog)
        given_up = blog.syncer("index", "abort", "blogpost", "--yes")
        assert given_up.returncode == 0, given_up.stderr
        assert roles(blog) == {Role.CURRENT: before}
        assert physical(blog) == {before}
        assert is_searchable(blog)


def test_a_plan_that_is_out_of_date_is_not_carried_out(world: World) -> None:
    """Nothing is changed: the index that serves by now stays active, and the next plan is made for that."""
    select = world.document_folder / "select.sql"
    with world.connect() as connection, world.indices() as indices:
        reindex.begin(connection, indices, "blogpost", report=lambda _: None)
        select.write_text(select.read_text().replace("p.title,", "upper(p.title) AS title,"))
        decided = planned(connection, indices, world.config)
        assert len(decided.abandoned) == 1
        require_done(world, begin(world))
        now = roles(world)
        with pytest.raises(ConfigError, match="changed the active definitions"):
            activate.carry_out(connection, indices, decided)
    assert roles(world) == now
    assert now["current"] == world.index_of() == decided.abandoned[0].index_name
    world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John', '')")
    world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (1, 1, 'first', '')")
    world.apply()
    assert world.differences() == []


# An index that takes nothing


HASTY = Plan(
    constants={
        "syncer.cli.comparing:compared.__kwdefaults__": {
            "settle_seconds": 0.5,
            "sample": None,
            "values": False,
            "repair": False,
        }
    }
)
"""A command that soon believes that what differs will stay so."""


def block(world: World, index_name: str, *, is_blocked: bool) -> None:
    """What Elasticsearch does to an index when the disk is full."""
    with world.elasticsearch() as client:
        value = True if is_blocked else None
        client.indices.put_settings(index=index_name, settings={"index.blocks.read_only_allow_delete": value})


def building(world: World) -> str:
    """The new index, once it is active."""
    wait_until(lambda: Role.BUILDING in roles(world), what="a new index is active")
    return roles(world)[Role.BUILDING]


def test_a_full_disk_in_the_middle_of_a_rebuild_leaves_the_old_index_current_and_live(blog: World) -> None:
    """The rebuild suspends and says so; changes go on reaching what is searched.

    Afterwards it is done by one command.
    """
    blog.daemon()
    wait_until(lambda: is_searchable(blog), what="all that stays is found")
    before = blog.index_of()
    with searching(blog):
        with blog.application() as altering:
            altering.execute("LOCK TABLE posts")  # nothing is written before the disk is full
            process = begin(blog)
            new = building(blog)
            block(blog, new, is_blocked=True)
        assert process.wait(DEADLINE_SECONDS) == 1
        said = (blog.folder / "rebuild.log").read_text()
        assert f"{new} is suspended" in said
        assert "syncer index rebuild blogpost" in said
        blog.sql("UPDATE posts SET body = 'written while the rebuild is suspended' WHERE id >= 1000000")
        blog.wait_until_level()
        assert blog.index_of() == before
        require_done(blog, begin(blog))
    assert blog.index_of() not in (before, new)
    assert new not in physical(blog)
    blog.wait_until_level()


def test_a_new_mapping_that_refuses_some_documents_does_not_serve(blog: World) -> None:
    """It says how many and such as which; with --despite-dead-lettered it serves without them."""
    file = blog.document_folder / "index.json"
    body = json.loads(file.read_text())
    body["mappings"]["properties"]["title"] = {"type": "date"}
    file.write_text(json.dumps(body))
    blog.sql("UPDATE posts SET title = '2020-01-01'")
    blog.apply()
    before = blog.index_of()
    blog.sql("UPDATE posts SET title = 'no date' WHERE id IN (1000001, 1000002)")
    applied = blog.syncer("index", "rebuild", "blogpost", program=HASTY.program)
    assert applied.returncode == 1
    assert "2 documents of blogpost could not be written" in applied.stderr
    assert "mapper_parsing" in applied.stderr or "document_parsing" in applied.stderr
    assert blog.index_of() == before
    despite = blog.syncer("index", "rebuild", "blogpost", "--despite-dead-lettered", program=HASTY.program)
    assert despite.returncode == 0, despite.stdout + despite.stderr
    assert blog.index_of() != before
    with blog.elasticsearch() as client:
        assert client.indices.get_mapping(index=blog.alias)[blog.index_of()]["mappings"]["properties"]["title"] == {
            "type": "date"
        }


def test_who_wrote_the_new_index_knows_that_it_serves_now(blog: World) -> None:
    """A full disk suspends an index while it is being built; once searches find it, it is written."""
    with blog.connect() as connection, blog.indices() as indices, blog.index() as index, blog.writer(index) as writer:
        new = reindex.begin(connection, indices, "blogpost", report=lambda _: None).document
        blog.refresh(index)
        block(blog, new.index_name, is_blocked=True)
        with pytest.raises(DocumentError, match="refuses"):
            writer.write(new.index_name, ["1000001"])
        block(blog, new.index_name, is_blocked=False)
        reindex.serve(connection, indices, new)
        assert writer.write(new.index_name, ["1000001"]).indexed == 1


# Servers
