"""`syncer detach`: writes go on without syncer, nothing is forgotten, and an uninstalled syncer leaves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from syncer.kafka import topic
from tests.faults.harness import require_holds
from tests.support.world import USES_KAFKA, World, wait_until
from tests.support.writers import fill, writing

TRIGGERS = "SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal"
CAPTURING = TRIGGERS + " AND tgenabled <> 'D'"
PARTITIONED = """
CREATE TABLE measures (id int NOT NULL, day int NOT NULL, value int, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE measures_1 PARTITION OF measures FOR VALUES FROM (0) TO (10);
CREATE TABLE measures_2 PARTITION OF measures DEFAULT;
INSERT INTO measures SELECT g, g, g FROM generate_series(1, 20) AS g;
"""
MEASURES = "SELECT m.id::text || '-' || m.day::text AS _id, m.value FROM measures AS m"


@pytest.fixture
def blog(world: World) -> Iterator[World]:
    """A blog with some posts, whose daemon may run."""
    fill(world)
    yield world
    for daemon in world.daemons:
        daemon.kill()


def detach(world: World, *options: str) -> str:
    """What the command prints, which must succeed."""
    return world.prints("detach", "--yes", *options)


@pytest.mark.parametrize("runs", [True, False], ids=["beside a daemon", "without a daemon"])
def test_writes_go_on_while_nothing_is_captured_and_apply_catches_up(blog: World, *, runs: bool) -> None:
    """The outbox stays empty, the documents as they were; `apply` writes what changed meanwhile, deletes included."""
    blog.sql(PARTITIONED)
    blog.define("measures", MEASURES, {"properties": {"value": {"type": "integer"}}})
    blog.documents = ("blogpost", "measures")
    blog.apply()
    if runs:
        blog.daemon()
        require_holds(blog)
    with writing(blog):
        printed = detach(blog)
    assert "changes of public.measures are no longer captured" in printed
    assert blog.sql(CAPTURING) == [(0,)]
    blog.sql(
        "UPDATE users SET name = 'while detached'; DELETE FROM posts WHERE id < 10; DELETE FROM measures WHERE day < 15"
    )
    # A daemon notes once, when it looks next, that the triggers of each table are others.
    assert blog.sql("SELECT count(*) FROM syncer.outbox WHERE operation <> 'N'") == [(0,)]
    assert blog.sql("SELECT count(*) FROM syncer.document WHERE suspended IS NULL") == [(0,)]
    blog.prints("apply", "--yes")
    if not runs:
        blog.daemon()
    require_holds(blog)


def test_triggers_that_are_enabled_by_hand_bring_a_refresh(blog: World) -> None:
    """The document is known to be stale, whichever way capturing begins again."""
    blog.daemon()
    require_holds(blog)
    detach(blog)
    blog.sql("UPDATE posts SET title = 'unseen'; DELETE FROM posts WHERE id = 3")
    for table, trigger in blog.sql("SELECT tgrelid::regclass::text, tgname FROM pg_trigger WHERE NOT tgisinternal"):
        blog.sql(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {trigger}")
    require_holds(blog)


def test_a_locked_table_is_waited_for_without_a_queue(blog: World) -> None:
    """Writers that come after the command do not wait behind it, and it gets its turn."""
    with psycopg.connect(blog.dsn) as reader, ThreadPoolExecutor(1) as beside:
        reader.execute("LOCK TABLE posts IN SHARE MODE")
        detached = beside.submit(detach, blog)
        for number in range(10):
            blog.sql("UPDATE users SET name = %s", f"name {number}")
        reader.rollback()
        assert "changes of public.posts are no longer captured" in detached.result()
    assert blog.sql(CAPTURING) == [(0,)]


def test_uninstall_leaves_nothing_of_syncers(blog: World) -> None:
    """No trigger, no schema, no index, no alias, no topic; every row of the application is there."""
    daemon = blog.daemon()
    require_holds(blog)
    rows, index = blog.sql("SELECT count(*) FROM posts"), blog.index_of()
    refused = blog.syncer("detach", "--uninstall", "--yes")
    assert (refused.returncode, "A daemon runs" in refused.stderr) == (1, True)
    assert daemon.stop() == 0
    wait_until(lambda: blog.sql("SELECT count(*) FROM syncer.daemon") == [(0,)], what="the daemon has left")
    printed = detach(blog, "--uninstall")
    assert f"will be removed: index {index}" in printed
    assert blog.sql(TRIGGERS) == [(0,)]
    assert blog.sql("SELECT to_regnamespace('syncer')::text") == [(None,)]
    assert blog.sql("SELECT count(*) FROM posts") == rows
    with blog.elasticsearch() as client:
        assert not client.indices.exists(index=index)
        assert not client.indices.exists_alias(name=blog.alias)
    if USES_KAFKA:
        wait_until(lambda: not topic.exists(blog.settings.kafka), what="the topic is gone")
