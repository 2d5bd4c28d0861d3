"""Whatever changes a watched column leaves its mark in the outbox, and nothing else does."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql

from syncer.apply import activate
from syncer.base.errors import DefinitionError, SourceError
from syncer.base.model import Image
from syncer.capture import install as capture_install
from syncer.capture.triggers import row_trigger, truncate_trigger
from tests.support.capture import Change, capture_only, define, forget, install, plan, triggers, written
from tests.support.world import DEADLINE_SECONDS, World, wait_until

BLOG = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com'), (3, 'Alice John', 'alice@john.com');
INSERT INTO posts (id, user_id, title, body) VALUES (2, 1, 'Relationships', 'long'), (4, 3, 'are cool', 'short');
INSERT INTO comments (id, post_id, name, comment) VALUES (1, 2, 'Alice White', 'More'), (2, 2, 'Bob', 'Less');
"""


@pytest.fixture
def blog(world: World) -> World:
    """The blog with two posts and two comments, and an empty outbox."""
    world.sql(BLOG)
    forget(world)
    return world


def post(id_: int) -> Image:
    """The image of a post."""
    return {"id": str(id_)}


def comment(id_: int, post_id: int) -> Image:
    """The image of a comment."""
    return {"id": str(id_), "post_id": str(post_id)}


# What is written

CHANGES: dict[str, tuple[str, list[Change]]] = {
    "insert": (
        "INSERT INTO comments (id, post_id, name, comment) VALUES (8, 4, 'a', 'b'), (9, 4, 'a', 'b')",
        [("public.comments", "I", None, comment(8, 4)), ("public.comments", "I", None, comment(9, 4))],
    ),
    "update": (
        "UPDATE comments SET stars = 5 WHERE id = 1",
        [("public.comments", "U", comment(1, 2), comment(1, 2))],
    ),
    "update_of_a_routing_column": (
        "UPDATE comments SET post_id = 4 WHERE id = 1",
        [("public.comments", "U", comment(1, 2), comment(1, 4))],
    ),
    "delete": (
        "DELETE FROM comments WHERE id = 1",
        [("public.comments", "D", comment(1, 2), None)],
    ),
    "delete_by_cascade": (
        "DELETE FROM posts WHERE id = 2",
        [
            ("public.comments", "D", comment(1, 2), None),
            ("public.comments", "D", comment(2, 2), None),
            ("public.posts", "D", post(2), None),
        ],
    ),
    "truncate": (
        "TRUNCATE comments",
        [("public.comments", "T", None, None)],
    ),
    "truncate_by_cascade": (
        "TRUNCATE posts CASCADE",
        [("public.comments", "T", None, None), ("public.posts", "T", None, None)],
    ),
    "new_primary_key": (
        "UPDATE posts SET id = 40 WHERE id = 4",
        [("public.posts", "U", post(4), post(40))],
    ),
    "update_among_untouched_rows": (
        "UPDATE comments SET comment = CASE id WHEN 1 THEN 'new' ELSE comment END",
        [("public.comments", "U", comment(1, 2), comment(1, 2))],
    ),
    "upsert": (
        """
        INSERT INTO comments (id, post_id, name, comment) VALUES (1, 2, 'a', 'b'), (9, 4, 'a', 'b')
        ON CONFLICT (id) DO UPDATE SET comment = excluded.comment
        """,
        [("public.comments", "I", None, comment(9, 4)), ("public.comments", "U", comment(1, 2), comment(1, 2))],
    ),
    "merge": (
        """
        MERGE INTO comments AS c USING (VALUES (1), (2), (9)) AS v (id) ON c.id = v.id
        WHEN MATCHED AND c.id = 2 THEN DELETE
        WHEN MATCHED THEN UPDATE SET stars = 1
        WHEN NOT MATCHED THEN INSERT (id, post_id, name, comment) VALUES (v.id, 4, 'a', 'b')
        """,
        [
            ("public.comments", "D", comment(2, 2), None),
            ("public.comments", "I", None, comment(9, 4)),
            ("public.comments", "U", comment(1, 2), comment(1, 2)),
        ],
    ),
    "statements_of_one_transaction": (
        """
        INSERT INTO comments (id, post_id, name, comment) VALUES (9, 4, 'a', 'b');
        UPDATE comments SET stars = 3 WHERE id = 9;
        DELETE FROM comments WHERE id = 9
        """,
        [
            ("public.comments", "D", comment(9, 4), None),
            ("public.comments", "I", None, comment(9, 4)),
            ("public.comments", "U", comment(9, 4), comment(9, 4)),
        ],
    ),
    "replica_role": (
        "SET LOCAL session_replication_role = replica; UPDATE posts SET title = 'as a replica' WHERE id = 2",
        [("public.posts", "U", post(2), post(2))],
    ),
    "savepoint": (
        """
        UPDATE posts SET title = 'kept' WHERE id = 2; SAVEPOINT s;
        UPDATE posts SET title = 'not kept' WHERE id = 4; ROLLBACK TO SAVEPOINT s;
        DELETE FROM comments WHERE id = 1
        """,
        [("public.comments", "D", comment(1, 2), None), ("public.posts", "U", post(2), post(2))],
    ),
    # And what is not.
    "unwatched_column": ("UPDATE posts SET views = views + 1; UPDATE users SET email = 'else@where.com'", []),
    "the_very_same_value": ("UPDATE posts SET title = title, body = body, user_id = user_id", []),
    "no_row": ("UPDATE posts SET title = 'x' WHERE id = 99; DELETE FROM posts WHERE id = 99", []),
    "rollback": ("UPDATE posts SET title = 'x'; TRUNCATE comments; ROLLBACK", []),
}


@pytest.mark.parametrize(("change", "expected"), CHANGES.values(), ids=CHANGES.keys())
def test_each_changed_row_leaves_its_images(shared_world: World, change: str, expected: list[Change]) -> None:
    """Each row that changed in a watched column leaves its operation and its images, and no other row does."""
    if "MERGE" in change:
        shared_world.require_postgres(15, "MERGE")
    shared_world.sql("TRUNCATE users, posts, comments")
    shared_world.sql(BLOG)
    forget(shared_world)
    shared_world.sql(change)
    assert written(shared_world) == expected


def test_psql_and_copy_count_like_any_client(blog: World) -> None:
    """Rows that come by psql, and by COPY, are captured too."""
    psql = [str(blog.sandbox.postgres.bin_folder / "psql"), blog.dsn, "-X", "-q", "-v", "ON_ERROR_STOP=1"]
    commands = r"""
        UPDATE posts SET title = 'by hand' WHERE id = 2;
        \copy users (id, name, email) FROM pstdin WITH (FORMAT csv)
    """.replace("pstdin", "stdin")
    script = (
        "\n".join(line.strip() for line in commands.strip().splitlines()) + "\n7,Ann,ann@x.com\n8,Bo,b@x.com\n\\.\n"
    )
    subprocess.run(psql, input=script, text=True, check=True, capture_output=True, timeout=DEADLINE_SECONDS)
    assert written(blog) == [
        ("public.posts", "U", post(2), post(2)),
        ("public.users", "I", None, {"id": "7"}),
        ("public.users", "I", None, {"id": "8"}),
    ]


def test_an_application_needs_no_privilege_of_ours(blog: World) -> None:
    """A role that may only write its tables, and nothing in schema syncer, is captured."""
    role = sql.Identifier(f"{blog.name}_app")
    with psycopg.connect(blog.dsn, autocommit=True) as owner:
        owner.execute(sql.SQL("CREATE ROLE {}").format(role))
        try:
            owner.execute(
                sql.SQL("GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA public TO {}").format(
                    role
                )
            )
            owner.execute(sql.SQL("SET ROLE {}").format(role))
            owner.execute("UPDATE posts SET title = 'mine' WHERE id = 2")
            owner.execute("TRUNCATE comments")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                owner.execute("SELECT FROM syncer.outbox")
        finally:
            owner.execute("RESET ROLE")
            owner.execute(sql.SQL("DROP OWNED BY {}").format(role))
            owner.execute(sql.SQL("DROP ROLE {}").format(role))
    assert written(blog) == [("public.comments", "T", None, None), ("public.posts", "U", post(2), post(2))]


# Values, keys and names

VALUES = """
CREATE TABLE things (
    id int PRIMARY KEY, amount numeric, doc json, name text, price real,
    tripled numeric GENERATED ALWAYS AS (amount * 3) STORED
);
INSERT INTO things VALUES (1, 1.0, '{"a": 1}', NULL, 0)
"""


def test_a_value_that_equals_but_reads_differently_is_a_change(empty_world: World) -> None:
    """1.0 → 1.00 and another spelling of the same JSON change the document, so they are captured."""
    capture_only(empty_world, VALUES, "SELECT id AS _id, amount, doc, name, price, tripled FROM things")
    update = [("public.things", "U", {"id": "1"}, {"id": "1"})]
    for change in ("amount = 1.00", "doc = '{\"a\":1}'", "name = ''", "name = NULL", "price = '-0'"):
        empty_world.sql(f"UPDATE things SET {change}")
        assert written(empty_world) == update, change
        empty_world.sql(f"UPDATE things SET {change}")
        assert written(empty_world) == [], change


def test_a_stored_generated_column_is_watched_by_its_value(empty_world: World) -> None:
    """A column computed from another one changes with it."""
    capture_only(empty_world, VALUES, "SELECT id AS _id, tripled FROM things")
    empty_world.sql("UPDATE things SET amount = 2")
    assert written(empty_world) == [("public.things", "U", {"id": "1"}, {"id": "1"})]


def test_keys_that_swap_in_one_statement_lose_no_row(empty_world: World) -> None:
    """A row that takes another key leaves both, so the documents of both are written."""
    tables = """
        CREATE TABLE things (id int PRIMARY KEY DEFERRABLE, name text);
        INSERT INTO things VALUES (1, 'one'), (2, 'two'), (3, 'three')
    """
    capture_only(empty_world, tables, "SELECT id AS _id, name FROM things")
    empty_world.sql("UPDATE things SET id = CASE id WHEN 1 THEN 2 WHEN 2 THEN 1 ELSE 30 END")
    assert written(empty_world) == [
        ("public.things", "U", {"id": "1"}, {"id": "2"}),
        ("public.things", "U", {"id": "2"}, {"id": "1"}),
        ("public.things", "U", {"id": "3"}, {"id": "30"}),
    ]


def test_keys_of_several_columns_are_compared_whole(empty_world: World) -> None:
    """Rows of a composite key that differ in one part are different rows."""
    tables = """
        CREATE TABLE things (shop text, code int, name text, PRIMARY KEY (code, shop));
        INSERT INTO things VALUES ('a', 1, 'x'), ('b', 1, 'y')
    """
    shutil.rmtree(empty_world.document_folder)
    define(
        empty_world,
        "thing",
        "SELECT t.shop || '-' || t.code AS _id, t.name FROM things AS t",
        things="SELECT c.shop || '-' || c.code AS _id FROM %(rows)s AS c",
    )
    empty_world.sql(tables)
    empty_world.migrate()
    install(empty_world)
    empty_world.sql("UPDATE things SET name = 'z' WHERE shop = 'b'")
    empty_world.sql("UPDATE things SET shop = 'c' WHERE shop = 'a'")
    b = {"shop": "b", "code": "1"}
    assert written(empty_world) == [
        ("public.things", "U", {"shop": "a", "code": "1"}, {"shop": "c", "code": "1"}),
        ("public.things", "U", b, b),
    ]


def test_names_that_need_quotes_are_quoted(empty_world: World) -> None:
    """Schemas, tables and columns may be called anything that Postgres allows."""
    tables = """
        CREATE SCHEMA "My Schema";
        CREATE TABLE "My Schema"."or""der's" ("group" int PRIMARY KEY, "sel""ect %s {}" text, "Müller" text);
        CREATE TABLE "My Schema"."order" ("group" int PRIMARY KEY, "user" text)
    """
    select = """
        SELECT o."group" AS _id, o."sel""ect %s {}" AS a, o."Müller" AS b,
               (SELECT i."user" FROM "My Schema"."order" AS i WHERE i."group" = o."group") AS c
        FROM "My Schema"."or""der's" AS o
    """
    shutil.rmtree(empty_world.document_folder)
    define(empty_world, "thing", select)
    (empty_world.config / "documents" / "thing" / "affects" / '"My Schema"."order".sql').write_text(
        'SELECT c."group" AS _id FROM %(rows)s AS c'
    )
    empty_world.sql(tables)
    empty_world.migrate()
    install(empty_world)
    with empty_world.application() as application:
        application.execute('INSERT INTO "My Schema"."order" VALUES (1, $$x$$)')
        application.execute('INSERT INTO "My Schema"."or""der\'s" VALUES (1, $$x$$)')
        application.execute('UPDATE "My Schema"."or""der\'s" SET "Müller" = $$y$$')
        application.execute('UPDATE "My Schema"."or""der\'s" SET "group" = 2')
        application.execute('TRUNCATE "My Schema"."or""der\'s"')
    quoted = '"My Schema"."or""der\'s"'
    one, two = {"group": "1"}, {"group": "2"}
    assert sorted(written(empty_world), key=repr) == sorted(
        [
            (quoted, "I", None, one),
            (quoted, "U", one, one),
            (quoted, "U", one, two),
            (quoted, "T", None, None),
            ('"My Schema"."order"', "I", None, one),
        ],
        key=repr,
    )


def test_long_names_do_not_collide(empty_world: World) -> None:
    """Two tables whose names agree in the first 60 letters, or but for a dot, have a function each."""
    long = "a" * 60
    shutil.rmtree(empty_world.document_folder)
    empty_world.migrate()
    tables = {"one": f"{long}_1", "two": f"{long}_2", "three": "a.b_c", "four": "a_b.c"}
    empty_world.sql("CREATE SCHEMA a; CREATE SCHEMA a_b")
    for name, table in tables.items():
        empty_world.sql(f"CREATE TABLE {table} (id int PRIMARY KEY, {name} int)")
        define(empty_world, name, f"SELECT id AS _id, {name} FROM {table}")
    install(empty_world)
    for table in tables.values():
        empty_world.sql(f"INSERT INTO {table} VALUES (1, 1)")
    for name, table in tables.items():
        empty_world.sql(f"UPDATE {table} SET {name} = 2")
    qualified = {"one": f"public.{long}_1", "two": f"public.{long}_2", "three": "a.b_c", "four": "a_b.c"}
    assert sorted((relation, operation) for relation, operation, _, _ in written(empty_world)) == sorted(
        (relation, operation) for relation in qualified.values() for operation in "IU"
    )


# Several documents, other definitions


def test_two_documents_share_what_they_read(empty_world: World) -> None:
    """A table that two documents read is watched for the columns of both."""
    tables = "CREATE TABLE things (id int PRIMARY KEY, a int, b int, c int); INSERT INTO things VALUES (1, 1, 1, 1)"
    capture_only(empty_world, tables, "SELECT id AS _id, a FROM things")
    define(empty_world, "other", "SELECT id AS _id, b FROM things")
    install(empty_world)
    update = [("public.things", "U", {"id": "1"}, {"id": "1"})]
    for column, expected in {"a": update, "b": update, "c": []}.items():
        empty_world.sql(f"UPDATE things SET {column} = 2")
        assert written(empty_world) == expected, column


def test_a_table_that_no_document_reads_any_more_is_released(blog: World) -> None:
    """After the SELECT has left a table, apply drops its triggers, and its changes leave nothing."""
    define(blog, "blogpost", "SELECT id AS _id, title FROM posts")
    (blog.document_folder / "document.yaml").write_text(f"index: {blog.alias}\n")
    assert plan(blog).released == ("public.comments", "public.users")
    blog.apply()
    forget(blog)
    assert triggers(blog, "comments") == triggers(blog, "users") == []
    blog.sql("UPDATE comments SET comment = 'unheard'; DELETE FROM comments; UPDATE posts SET title = 'heard'")
    assert {relation for relation, _, _, _ in written(blog)} == {"public.posts"}
    assert plan(blog).is_empty


def test_apply_twice_changes_nothing(blog: World) -> None:
    """What is applied again is the same: no new trigger, no new revision, nothing to do."""
    objects = "SELECT oid, tgname FROM pg_trigger UNION ALL SELECT oid, proname FROM pg_proc ORDER BY 1"
    before = blog.sql(objects), blog.sql("TABLE syncer.capture"), blog.sql("TABLE syncer.document")
    assert plan(blog).is_empty
    blog.apply()
    assert (blog.sql(objects), blog.sql("TABLE syncer.capture"), blog.sql("TABLE syncer.document")) == before
    assert blog.outbox() == []


@pytest.mark.parametrize(
    "harm",
    [
        "ALTER TABLE posts DISABLE TRIGGER USER",
        f"ALTER TABLE posts ENABLE TRIGGER {row_trigger('public.posts')}",
        f"DROP TRIGGER {truncate_trigger('public.posts')} ON posts",
        f"DROP TRIGGER {row_trigger('public.posts')} ON posts",
    ],
)
def test_apply_fixes_triggers_that_someone_has_meddled_with(blog: World, harm: str) -> None:
    """Triggers that were disabled, weakened or dropped are whole again after apply."""
    whole = triggers(blog, "posts")
    blog.sql(harm)
    assert triggers(blog, "posts") != whole
    install(blog)
    assert triggers(blog, "posts") == whole
    blog.sql("UPDATE posts SET title = 'heard' WHERE id = 2")
    assert written(blog) == [("public.posts", "U", post(2), post(2))]


def test_a_session_survives_a_change_of_its_table(blog: World) -> None:
    """A connection that has written before goes on after columns that are not watched came and went."""
    with psycopg.connect(blog.dsn, autocommit=True) as application:
        application.execute("UPDATE posts SET title = 'before' WHERE id = 2")
        blog.sql("ALTER TABLE posts ADD COLUMN note text, DROP COLUMN views")
        application.execute("UPDATE posts SET title = 'after' WHERE id = 2")
        blog.sql("ALTER TABLE posts ALTER COLUMN title TYPE varchar(300)")
        application.execute("UPDATE posts SET title = 'later' WHERE id = 2")
    assert written(blog) == [("public.posts", "U", post(2), post(2))] * 3


# Beside traffic


@contextmanager
def open_transaction(world: World, statement: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A transaction of an application that has run this statement and stays open."""
    with psycopg.connect(world.dsn, application_name="long report") as application:
        application.execute(statement)
        yield application


def install_beside_traffic(world: World) -> list[str]:
    """Install triggers on a table that a long transaction uses; others write it meanwhile, and wait briefly.

    Returns:
        What went wrong for the others.
    """
    (one,) = plan(world).captures
    told: list[str] = []
    failed: list[str] = []

    def wait_for_lock() -> None:
        with world.connect() as connection:
            capture_install.install(connection, one, waiting=told.append)

    with ThreadPoolExecutor(1) as threads, open_transaction(world, "UPDATE things SET name = 'long'") as long:
        installing = threads.submit(wait_for_lock)
        with psycopg.connect(world.dsn, autocommit=True, options="-c lock_timeout=10s") as writer:

            def another_write() -> bool:
                try:
                    writer.execute("INSERT INTO things (name) VALUES ('quick')")
                except psycopg.errors.LockNotAvailable as error:
                    failed.append(str(error))
                return len(told) >= 2 or bool(failed) or installing.done()

            wait_until(another_write, what="the lock is asked for twice, or someone is blocked")
        long.rollback()
        installing.result(timeout=DEADLINE_SECONDS)
    return failed


THINGS = "CREATE TABLE things (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text)"


@pytest.fixture
def things(empty_world: World) -> World:
    """A table with one row that is to be captured and is not yet."""
    shutil.rmtree(empty_world.document_folder)
    define(empty_world, "thing", "SELECT id AS _id, name FROM things")
    empty_world.sql(THINGS)
    empty_world.sql("INSERT INTO things (name) VALUES ('first')")
    empty_world.migrate()
    return empty_world


def test_install_waits_for_a_long_transaction_and_others_do_not(things: World) -> None:
    """While apply waits for a table, other writers are held up for a moment only; then everything is captured."""
    assert install_beside_traffic(things) == []
    things.sql("UPDATE things SET name = 'captured' WHERE id = 1")
    assert written(things) == [("public.things", "U", {"id": "1"}, {"id": "1"})]


def test_a_table_that_stays_in_use_is_an_error_that_names_the_user(things: World) -> None:
    """When the lock is not to be had in time, the error says who holds the table, and nothing was changed."""
    (one,) = plan(things).captures
    with open_transaction(things, "UPDATE things SET name = 'long'") as long, things.connect() as connection:
        with pytest.raises(SourceError, match=rf"held by process {long.info.backend_pid} long report") as refused:
            capture_install.install(connection, one, timeout_seconds=0)
        assert "Nothing was changed" in refused.value.hint
        assert triggers(things, "things") == []
        assert capture_install.captured(connection) == {}


def test_removal_from_a_table_that_is_read_names_the_reader(things: World) -> None:
    """Dropping a trigger waits even for readers; when one stays, the error says who it is."""
    install(things)
    with open_transaction(things, "SELECT FROM things") as long, things.connect() as connection:
        with pytest.raises(SourceError, match=rf"held by process {long.info.backend_pid} long report"):
            capture_install.remove(connection, "public.things", timeout_seconds=0)
        assert len(triggers(things, "things")) == 2


def read_views_too(world: World) -> None:
    """Let the document read a column that it did not."""
    select = world.document_folder / "select.sql"
    select.write_text(select.read_text().replace("p.body,", "p.body, p.views,"))
    index = world.document_folder / "index.json"
    index.write_text(index.read_text().replace('"body":', '"views": {"type": "long"}, "body":'))


# What a change of definitions must not lose


def test_a_write_in_flight_is_not_lost_to_a_wider_definition(blog: World) -> None:
    """A transaction that wrote a column before it was watched, and commits after apply, is in the document."""
    read_views_too(blog)
    write = "UPDATE posts SET views = 7 WHERE id = 2"
    with ThreadPoolExecutor(1) as threads, open_transaction(blog, write) as application:
        applying = threads.submit(blog.apply)
        wait([applying], timeout=2)  # it may wait for the transaction, or not: the guarantee is the same
        application.commit()
        applying.result(timeout=DEADLINE_SECONDS)
    with blog.index() as index, blog.relay() as relay, blog.worker(index) as worker:
        relay.run_once()
        blog.sql("INSERT INTO posts (id, user_id, title, body) VALUES (9, 1, 'last', '')")
        wait_for_document(blog, "9", lambda: (relay.run_once(), worker.run_once()))
    assert blog.differences() == []


def test_an_apply_that_failed_half_way_and_was_taken_back_has_lost_nothing(blog: World) -> None:
    """A narrower definition that could not be put active, and was undone, leaves no change unheard."""
    select = blog.document_folder / "select.sql"
    before = select.read_text()
    blog.sql("CREATE TABLE tags (id int PRIMARY KEY)")
    select.write_text("SELECT p.id AS _id, p.title, (SELECT max(t.id) FROM tags AS t) AS body FROM posts AS p")
    (blog.document_folder / "affects").mkdir()
    (blog.document_folder / "affects" / "tags.sql").write_text(
        "SELECT p.id AS _id FROM posts AS p, %(rows)s AS changed"
    )
    decided = plan(blog)
    with open_transaction(blog, "INSERT INTO tags VALUES (1)"), blog.connect() as connection, blog.indices() as indices:
        with pytest.raises(SourceError, match=r"public\.tags is in use"):
            activate.carry_out(connection, indices, decided, timeout_seconds=0)
        blog.sql("UPDATE posts SET body = 'written meanwhile' WHERE id = 2")
    select.write_text(before)
    (blog.document_folder / "affects" / "tags.sql").unlink()
    blog.apply()
    assert ("public.posts", "U", post(2), post(2)) in written(blog)


def wait_for_document(world: World, id_: str, turn: Callable[[], object]) -> None:
    """Turn until a search finds this document."""

    def is_held() -> bool:
        turn()
        return id_ in world.held()

    wait_until(is_held, what=f"document {id_} is found")


# What cannot be captured is refused, or captured after all


def test_a_virtual_generated_column_is_watched_by_what_it_is_computed_from(empty_world: World) -> None:
    """A virtual column has no value in a trigger; a change of its source is a change all the same."""
    empty_world.require_postgres(18, "virtual columns")
    tables = """
        CREATE TABLE things (id int PRIMARY KEY, a int, b int GENERATED ALWAYS AS (a * 2) VIRTUAL);
        INSERT INTO things (id, a) VALUES (1, 1)
    """
    capture_only(empty_world, tables, "SELECT id AS _id, b FROM things")
    empty_world.sql("UPDATE things SET a = 2")
    assert written(empty_world) == [("public.things", "U", {"id": "1"}, {"id": "1"})]


@pytest.mark.parametrize("table", ["child", "leaf"])
def test_rows_that_are_written_through_another_table_are_captured(empty_world: World, table: str) -> None:
    """Statements on a parent fire the row triggers of a child, or of a partition."""
    tables = """
        CREATE TABLE parent (id int PRIMARY KEY, name text);
        CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent);
        CREATE TABLE whole (id int PRIMARY KEY, name text) PARTITION BY RANGE (id);
        CREATE TABLE leaf PARTITION OF whole FOR VALUES FROM (0) TO (9);
        CREATE TABLE other PARTITION OF whole FOR VALUES FROM (9) TO (20);
        INSERT INTO child VALUES (1, 'a'); INSERT INTO whole VALUES (1, 'a')
    """
    capture_only(empty_world, tables, f"SELECT id AS _id, name FROM {table}")
    image = {"id": "1"}
    empty_world.sql("UPDATE parent SET name = 'b'; UPDATE whole SET name = 'b'")
    assert written(empty_world) == [(f"public.{table}", "U", image, image)]
    empty_world.sql("UPDATE whole SET id = 10; DELETE FROM parent")
    assert written(empty_world) == [(f"public.{table}", "D", image, None)]


OWN_TYPE = """
CREATE TYPE code;
CREATE FUNCTION code_in(cstring) RETURNS code LANGUAGE internal IMMUTABLE STRICT AS 'int4in';
CREATE FUNCTION code_out(code) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'int4out';
CREATE TYPE code (INPUT = code_in, OUTPUT = code_out, LIKE = integer);
CREATE FUNCTION code_eq(code, code) RETURNS boolean LANGUAGE internal IMMUTABLE STRICT AS 'int4eq';
CREATE FUNCTION code_lt(code, code) RETURNS boolean LANGUAGE internal IMMUTABLE STRICT AS 'int4lt';
CREATE FUNCTION code_cmp(code, code) RETURNS integer LANGUAGE internal IMMUTABLE STRICT AS 'btint4cmp';
CREATE OPERATOR = (LEFTARG = code, RIGHTARG = code, FUNCTION = code_eq, COMMUTATOR = =, MERGES);
CREATE OPERATOR < (LEFTARG = code, RIGHTARG = code, FUNCTION = code_lt);
CREATE OPERATOR CLASS code_ops DEFAULT FOR TYPE code USING btree
    AS OPERATOR 1 <, OPERATOR 3 =, FUNCTION 1 code_cmp(code, code);
CREATE TABLE things (id code PRIMARY KEY, name text);
INSERT INTO things VALUES ('1', 'a')
"""


def test_a_key_of_a_type_that_an_extension_brings_does_not_break_writes(empty_world: World) -> None:
    """A key whose equality is not Postgres's own is compared all the same, or refused; no write ever fails."""
    shutil.rmtree(empty_world.document_folder)
    define(
        empty_world,
        "thing",
        "SELECT t.id::text AS _id, t.name FROM things AS t",
        things="SELECT c.id::text AS _id FROM %(rows)s AS c",
    )
    empty_world.sql(OWN_TYPE)
    empty_world.migrate()
    try:
        install(empty_world)
    except (psycopg.Error, DefinitionError):
        return
    empty_world.sql("UPDATE things SET name = 'b'")
    assert written(empty_world) == [("public.things", "U", {"id": "1"}, {"id": "1"})]


def test_a_gap_without_triggers_is_loaded_though_apply_was_killed(blog: World) -> None:
    """What was written while triggers were gone is found by the next apply, when the first one died half way."""
    blog.sql(f"DROP TRIGGER {row_trigger('public.posts')} ON posts")
    blog.sql("UPDATE posts SET title = 'unheard'")
    decided = plan(blog)
    with blog.connect() as connection, blog.indices() as indices:
        activate.carry_out(connection, indices, decided)  # and nothing is loaded
    blog.apply()
    assert blog.differences() == []
