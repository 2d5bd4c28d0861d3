"""An application's migrations, at random, while its writers, the daemon and ``syncer apply`` are all at work."""

from __future__ import annotations

import contextlib
import json
import random
import re
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from syncer.base import postgres
from syncer.base.postgres import Connection
from syncer.documents.snapshot import COMPONENT_LOCK_SECONDS
from syncer.recovery.schema_watch import Watch, WatchReport
from tests.faults.test_schema_changes import is_waiting
from tests.support.world import World, wait_until
from tests.support.writers import QUICK_FAILOVER, SECONDS, SEED, at_work

LONGEST_MIGRATION_SECONDS = 60.0
"""Nobody of syncer's holds a table for long; what a busy machine takes for a commit is not its own."""
PREPARED_AFTER = 6
"""How often psycopg runs a statement until it has prepared it."""
ENVIRONMENT = {"SYNCER_WATCH_SECONDS": "0.3", "SYNCER_KAFKA_PROPERTIES": QUICK_FAILOVER}

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

WRITES = (
    "UPDATE users SET name = 'name {n}' WHERE id = {user}",
    "UPDATE users SET email = '{n}' WHERE id = {user}",
    "UPDATE posts SET title = 'title {n}' WHERE id = {post}",
    "UPDATE posts SET headline = 'headline {n}' WHERE id = {post}",  # one of the two is not there
    "UPDATE posts SET body = 'body {n}' WHERE id = {post}",
    "UPDATE posts SET user_id = {user} WHERE id = {post}",
    "UPDATE posts SET id = {post} WHERE id = (SELECT max(id) FROM posts)",
    "INSERT INTO posts (id, user_id) VALUES ({post}, {user}) ON CONFLICT (id) DO UPDATE SET user_id = {user}",
    "DELETE FROM posts WHERE id = {post}",
    "INSERT INTO comments (id, post_id, comment) VALUES ({comment}, {post}, '{n}') ON CONFLICT (id) DO NOTHING",
    "UPDATE comments SET post_id = {post} WHERE id = {comment}",
    "UPDATE comments SET stars = {user} WHERE id = {comment}",
    "DELETE FROM comments WHERE id = {comment}",
    "UPDATE pages SET text = '{n}' WHERE id = {user}",
    "INSERT INTO pages VALUES ({post}, '{n}') ON CONFLICT (id) DO UPDATE SET text = excluded.text",
    "DELETE FROM pages WHERE id = {post}",
)


@dataclass(frozen=True, kw_only=True)
class Migration:
    """Something that is done to the tables.

    Args:
        sql: What.
        suspends: The documents that are to suspend.
        back: How it is taken back, where that can be; else the definition is adapted.
        needs: What has to be there, as a column of posts.
    """

    sql: str
    suspends: tuple[str, ...] = ()
    back: str | None = None
    needs: str = "id"


MIGRATIONS = {
    "a column is added": Migration(sql="ALTER TABLE posts ADD COLUMN c{n} text DEFAULT clock_timestamp()::text"),
    "a column is renamed": Migration(
        sql="ALTER TABLE posts RENAME COLUMN title TO headline",
        suspends=("post",),
        back="ALTER TABLE posts RENAME COLUMN headline TO title",
        needs="title",
    ),
    "a column has its name back": Migration(
        sql="ALTER TABLE posts RENAME COLUMN headline TO title", suspends=("post",), needs="headline"
    ),
    "a column is dropped": Migration(
        sql="ALTER TABLE posts DROP COLUMN body",
        suspends=("post",),
        back="ALTER TABLE posts ADD COLUMN body text DEFAULT 'again'",
        needs="body",
    ),
    "a type is changed": Migration(
        sql="ALTER TABLE comments ALTER COLUMN stars TYPE {number} USING stars + 1", suspends=("post",)
    ),
    "a type of another table is changed": Migration(
        sql="ALTER TABLE users ALTER COLUMN email TYPE varchar(10{n})",
        suspends=("user",),
        back="ALTER TABLE users ALTER COLUMN email TYPE text",
    ),
    "a table is replaced by a copy of itself": Migration(
        sql="LOCK TABLE comments; CREATE TABLE anew (LIKE comments INCLUDING ALL); "
        "INSERT INTO anew SELECT * FROM comments; DROP TABLE comments; ALTER TABLE anew RENAME TO comments",
        suspends=("post",),
    ),
    "a view is redefined": Migration(
        sql="CREATE OR REPLACE VIEW shown_users AS SELECT id, name || ' {n}' AS name FROM users",
        suspends=("post",),
        back="CREATE OR REPLACE VIEW shown_users AS SELECT id, name FROM users",
    ),
    "triggers are disabled": Migration(
        sql="ALTER TABLE users DISABLE TRIGGER USER",
        suspends=("post", "user"),
        back="ALTER TABLE users ENABLE TRIGGER USER",
    ),
    "two tables are altered at once": Migration(
        sql="ALTER TABLE users ALTER COLUMN name SET NOT NULL; UPDATE users SET email = email || '.'; "
        "ALTER TABLE posts ALTER COLUMN user_id DROP NOT NULL; "
        "ALTER TABLE comments ALTER COLUMN comment SET DEFAULT '{n}'"
    ),
}


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


def test_migrations_at_random_leave_no_wrong_document(three: World) -> None:
    """Whatever is migrated, writers never fail of it, others follow, and after fix and apply nothing is missing."""
    world, dice = three, random.Random(SEED)
    world.daemon()
    deadline = time.monotonic() + SECONDS
    done: list[str] = []
    with writing(world):
        while time.monotonic() < deadline:
            done += a_round(world, dice)
    print(done)  # noqa: T201 - pytest shows it when the test fails
    world.wait_until_level()
    assert suspended(world) == set()


def a_round(world: World, dice: random.Random) -> list[str]:
    """Some migrations, what suspends of them, that the others go on, the fix and the apply; what was done."""
    done: list[str] = []
    to_suspend: set[str] = set()
    fixes: list[str] = []
    untimely = threading.Thread(target=lambda: apply(world, is_to_work=False))
    if dice.random() < 0.3:
        untimely.start()
    columns = columns_of_posts(world)
    possible = sorted(name for name, migration in MIGRATIONS.items() if migration.needs in columns)
    for name in dice.sample(possible, dice.randint(1, 3)):
        migration = MIGRATIONS[name]
        values = {"n": dice.randrange(10, 99), "number": dice.choice(("smallint", "integer", "bigint", "numeric"))}
        before = shape(world)
        migrate(world, migration.sql.format(**values))
        done.append(name)
        to_suspend |= set(migration.suspends) if shape(world) != before else set()
        if migration.back and dice.random() < 0.5:
            fixes.append(migration.back)
    if dice.random() < 0.3:
        delete_index(world, "user")
        done.append("an index is deleted")
        to_suspend.add("user")
    if not untimely.ident:
        wait_until(
            lambda: suspended(world) >= to_suspend, what=f"{to_suspend} suspend after {done}", detail=world._last_words
        )
        assert suspended(world) == to_suspend
    page_follows(world, dice)
    if untimely.ident:
        untimely.join()
    for fix in fixes:
        migrate(world, fix)
    define(world)
    apply(world)
    assert suspended(world) == set()
    return done


def page_follows(world: World, dice: random.Random) -> None:
    """A page that is written is found."""
    text = f"text {dice.random()}"
    world.sql("INSERT INTO pages VALUES (1000, %s) ON CONFLICT (id) DO UPDATE SET text = excluded.text", text)
    wait_until(lambda: world.held("page").get("1000", {}).get("text") == text, what="the page follows")


def shape(world: World) -> list[Any]:
    """What a document can rely on."""
    return world.sql(
        "SELECT attrelid, relname, attname, atttypid, atttypmod "
        "FROM pg_attribute JOIN pg_class AS c ON c.oid = attrelid "
        "WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' UNION ALL "
        "SELECT tgrelid, tgname, tgenabled::text, NULL, NULL FROM pg_trigger UNION ALL "
        "SELECT NULL, pg_get_viewdef('shown_users'::regclass), NULL, NULL, NULL ORDER BY 1, 2, 3"
    )


def columns_of_posts(world: World) -> set[str]:
    """The columns that posts has now."""
    query = "SELECT attname FROM pg_attribute WHERE attrelid = 'posts'::regclass AND NOT attisdropped"
    return {name for (name,) in world.sql(query)}


def suspended(world: World) -> set[str]:
    """The documents that say that they are suspended."""
    return {name for (name,) in world.sql("SELECT name FROM syncer.document WHERE suspended IS NOT NULL")}


def migrate(world: World, statements: str) -> None:
    """What the application's migration does, in one transaction; a deadlock with its own writers is tried again."""
    began = time.monotonic()
    while True:
        try:
            world.sql(statements)
        except psycopg.errors.DeadlockDetected as error:
            require_not_syncers(world, error)
        else:
            break
    assert time.monotonic() - began < LONGEST_MIGRATION_SECONDS, statements


def delete_index(world: World, document: str) -> None:
    """Delete the index of a document."""
    with world.elasticsearch() as client:
        for name in client.indices.get(index=world.alias_of(document)).body:
            client.indices.delete(index=name)


def apply(world: World, *, is_to_work: bool = True) -> None:
    """What an operator does, once all is fixed or, if it is not to work, too early."""
    applied = world.syncer("apply", "--yes")
    assert "Traceback" not in applied.stderr, applied.stderr
    assert applied.returncode == 0 or not is_to_work, applied.stdout + applied.stderr


def writing(world: World, *, writers: int = 3) -> AbstractContextManager[None]:
    """Writers at work until the block ends; none of them fails for a reason that is syncer's."""

    def write(stop: threading.Event, connection: psycopg.Connection[Any], dice: random.Random) -> None:
        while not stop.wait(0.01):
            write_some(world, connection, dice, stop.wait)

    return at_work(world, [write] * writers)


def write_some(
    world: World, connection: psycopg.Connection[Any], dice: random.Random, pause: Callable[[float], object]
) -> None:
    """A transaction of one to four statements; a tenth of them roll back."""
    try:
        with connection.transaction(force_rollback=dice.random() < 0.1):
            for _ in range(dice.randint(1, 4)):
                values = {"n": dice.random(), "user": dice.randrange(6), "post": dice.randrange(60)}
                connection.execute(dice.choice(WRITES).format(**values, comment=dice.randrange(90)))
                pause(dice.choice((0, 0.002, 0.03)))
    except (psycopg.IntegrityError, psycopg.OperationalError, psycopg.ProgrammingError, psycopg.DataError) as error:
        require_not_syncers(world, error)


def require_not_syncers(world: World, error: psycopg.Error) -> None:
    """Fail if syncer has a part in an application's error: its triggers, its tables or its locks."""
    said = f"{error.diag.message_primary} {error.diag.message_detail} {error.diag.context}"
    assert "syncer" not in said, said
    if isinstance(error, psycopg.errors.DeadlockDetected):
        processes = [int(one) for one in re.findall(r"rocess (\d+)", said)]
        found = world.sql("SELECT application_name, query FROM pg_stat_activity WHERE pid = ANY (%s)", processes)
        assert not [one for one in found if one[0].startswith("syncer")], f"{said}\n{found}"


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
