"""An application migrates its tables: what it computes anew is followed, and no migration fails because of syncer."""

from __future__ import annotations

import contextlib
import json
import threading
from contextlib import closing

import psycopg
import pytest

from syncer.base import postgres
from syncer.base.postgres import Connection
from syncer.documents.snapshot import COMPONENT_LOCK_SECONDS
from syncer.recovery.schema_watch import Watch, WatchReport
from tests.faults.test_schema_changes import is_waiting
from tests.support.world import World, wait_until
from tests.support.writers import QUICK_FAILOVER

"""Nobody of syncer's holds a table for long; what a busy machine takes for a commit is not its own."""
PREPARED_AFTER = 6
"""How often psycopg runs a statement until it has prepared it."""
ENVIRONMENT = {"SYNCER_KAFKA_PROPERTIES": QUICK_FAILOVER}

SCHEMA = """
CREATE TABLE users (id integer PRIMARY KEY, name text DEFAULT '', email text DEFAULT '');
CREATE TABLE posts (id integer PRIMARY KEY, user_id integer, title text DEFAULT '', body text DEFAULT '');
CREATE TABLE comments (id integer PRIMARY KEY, post_id integer, comment text DEFAULT '', stars smallint DEFAULT 3);
CREATE TABLE pages (id integer PRIMARY KEY, text text);
CREATE INDEX ON posts (user_id);
CREATE INDEX ON comments (post_id);
CREATE VIEW shown_users AS SELECT id, name FROM users;
INSERT INTO users SELECT g, 'user ' || g FROM generate_series(0, 5) AS g;
INSERT INTO posts SELECT g, g % 6, 'title ' || g FROM generate_series(0, 39) AS g;
INSERT INTO comments SELECT g, g % 40, 'comment ' || g FROM generate_series(0, 79) AS g;
INSERT INTO pages SELECT g, 'page ' || g FROM generate_series(0, 9) AS g;
"""
POST = """
SELECT p.id AS _id, p.{title} AS title, {body} AS body, u.name AS author,
       (SELECT jsonb_agg(jsonb_build_object('comment', c.comment, 'stars', c.stars) ORDER BY c.id)
        FROM comments AS c WHERE c.post_id = p.id) AS comments
FROM posts AS p LEFT JOIN shown_users AS u ON u.id = p.user_id
"""
USER = "SELECT u.id AS _id, u.name, u.email FROM users AS u"
PAGE = "SELECT id AS _id, text FROM pages"


@pytest.fixture
def three(empty_world: World) -> World:
    """A world with three documents active, one of which reads what no migration touches."""
    world = empty_world
    world.worker_settings = ENVIRONMENT
    world.use()
    world.documents = ("post", "user", "page")
    world.sql(SCHEMA)
    define(world)
    world.migrate()
    world.apply()
    return world


def define(world: World) -> None:
    """Write the definitions as the tables are now."""
    columns = columns_of_posts(world)
    post = POST.format(
        title="title" if "title" in columns else "headline", body="p.body" if "body" in columns else "'gone'::text"
    )
    for name, select in (("post", post), ("user", USER), ("page", PAGE)):
        folder = world.config / "documents" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "document.yaml").write_text(f"index: {world.alias_of(name)}\n")
        (folder / "select.sql").write_text(select)
        settings = {"number_of_shards": 1, "number_of_replicas": 0}
        (folder / "index.json").write_text(json.dumps({"settings": settings, "mappings": {"dynamic": False}}))


def columns_of_posts(world: World) -> set[str]:
    """The columns that posts has now."""
    query = "SELECT attname FROM pg_attribute WHERE attrelid = 'posts'::regclass AND NOT attisdropped"
    return {name for (name,) in world.sql(query)}


def suspended(world: World) -> set[str]:
    """The documents that say that they are suspended."""
    return {name for (name,) in world.sql("SELECT name FROM syncer.document WHERE suspended IS NOT NULL")}


@pytest.mark.parametrize("is_partitioned", [False, True], ids=["a table", "a partitioned table"])
def test_values_that_a_migration_computes_anew_are_followed(empty_world: World, *, is_partitioned: bool) -> None:
    """ALTER TABLE … USING fires no trigger and may leave the type as it was: documents show the new values even so."""
    world = empty_world
    world.use()
    world.documents = ("post", "user", "page")
    world.sql(SCHEMA)
    if is_partitioned:
        world.sql(
            "ALTER TABLE comments RENAME TO comments_0; ALTER TABLE comments_0 ALTER COLUMN stars SET NOT NULL;"
            "CREATE TABLE comments (LIKE comments_0 INCLUDING ALL) PARTITION BY RANGE (id);"
            "ALTER TABLE comments ATTACH PARTITION comments_0 DEFAULT"
        )
    define(world)
    world.migrate()
    world.apply()
    with (
        world.relay() as relay,
        world.index() as index,
        world.worker(index) as worker,
        closing(Watch(connect=world.connect)) as watch,
    ):
        assert watch.run_once().noted == ()
        world.sql("ALTER TABLE comments ALTER COLUMN stars TYPE smallint USING stars + 1")
        assert world.differences() != []
        assert watch.run_once().noted == ("public.comments",)
        world.drain(relay, worker)
        assert watch.run_once() == WatchReport(documents=3, suspended=(), noted=())


@pytest.mark.parametrize("alteration", ["DROP COLUMN email", "ADD COLUMN more text"])
def test_a_question_that_was_planned_before_is_planned_anew(three: World, alteration: str) -> None:
    """A statement prepared before the ALTER suspends no definition that does not read the new column."""
    with three.relay() as relay, three.index() as index, three.worker(index) as worker:
        for n in range(2 * PREPARED_AFTER):
            three.sql("UPDATE users SET name = %s WHERE id = 1", f"name {n}")
            three.drain(relay, worker)
        three.sql(f"ALTER TABLE users {alteration}")
        three.sql("UPDATE users SET name = 'the last' WHERE id = 1")
        three.documents = ("post",)  # the other reads the column, and suspends
        three.drain(relay, worker)
    assert "post" not in suspended(three)


def test_a_long_migration_of_two_tables_is_not_the_victim_of_a_deadlock(three: World) -> None:
    """A component that holds one table and waits for another gives up before Postgres ends the migration of both."""
    relations = ["public.comments", "public.posts"]
    gave_up = threading.Event()

    def read(reader: Connection) -> None:
        with (
            contextlib.suppress(psycopg.errors.LockNotAvailable),
            postgres.snapshot(reader, lock=relations, lock_seconds=COMPONENT_LOCK_SECONDS),
        ):
            pass
        gave_up.set()

    with three.application() as migration, three.connect() as reader:
        migration.execute("ALTER TABLE posts ADD COLUMN more text")
        thread = threading.Thread(target=read, args=(reader,))
        thread.start()
        try:
            wait_until(lambda: is_waiting(three), what="the reader waits for posts")
            gave_up.wait(1.3)  # past the only look for a deadlock that a longer wait has
            migration.execute("ALTER TABLE comments ADD COLUMN more text")
        finally:
            thread.join()
