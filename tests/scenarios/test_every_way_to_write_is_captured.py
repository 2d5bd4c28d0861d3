"""Whatever writes a captured table, each row that changed in a watched column is captured, and no other.

Only documents that show a changed column are written, and a trigger that was disabled for a while is noticed.
"""

from __future__ import annotations

import json

import psycopg
import pytest

from syncer.capture import install
from syncer.indexing import version
from tests.faults.harness import following
from tests.support.capture import Change, capture_only, written
from tests.support.world import World

FAMILY = """
CREATE TABLE parents (id int PRIMARY KEY, code int UNIQUE, name text);
CREATE TABLE children (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text, unread text,
    by_cascade int REFERENCES parents (code) ON UPDATE CASCADE ON DELETE CASCADE,
    by_null int REFERENCES parents ON DELETE SET NULL,
    by_default int DEFAULT 3 REFERENCES parents ON DELETE SET DEFAULT
);
INSERT INTO parents VALUES (1, 10, 'one'), (2, 20, 'two'), (3, 30, 'three');
INSERT INTO children (name, by_cascade, by_null, by_default) VALUES ('a', 10, NULL, NULL), ('b', NULL, 1, 1);
"""
CHILDREN = "SELECT c.id AS _id, c.name, c.by_cascade, c.by_null, c.by_default FROM children AS c"
RELATION = "public.children"


def left(changes: str) -> list[Change]:
    """What these changes of children leave: ``U2>3`` is an update of the child 2, whose id becomes 3."""

    def change(operation: str, ids: str) -> Change:
        old, _, new = ids.partition(">")
        images = [{"id": id_} if id_ else None for id_ in (old, new or old)]
        return RELATION, operation, None if operation == "I" else images[0], None if operation == "D" else images[1]

    return [change(word[0], word[1:]) for word in changes.split()]


@pytest.fixture(scope="module")
def family(module_world: World) -> World:
    """Children that refer to their parents in several ways; only the children are captured."""
    capture_only(module_world, FAMILY, CHILDREN)
    return module_world


UPSERT = "INSERT INTO children OVERRIDING SYSTEM VALUE VALUES (1, 'x'), (50, 'y') ON CONFLICT (id) DO"
WAYS = (
    ("INSERT INTO children (name) VALUES ('x')", "I3"),
    ("UPDATE children SET name = CASE id WHEN 1 THEN 'new' ELSE name END", "U1"),
    ("UPDATE children SET id = DEFAULT WHERE id = 2", "U2>3"),
    ("UPDATE parents SET code = 11 WHERE id = 1", "U1"),
    ("DELETE FROM parents WHERE id = 1", "D1 U2 U2"),
    ("TRUNCATE children", "T"),
    ("TRUNCATE parents CASCADE", "T"),
    (f"{UPSERT} UPDATE SET name = excluded.name", "I50 U1"),
    (
        """
        MERGE INTO children AS c USING (VALUES (1), (2), (9)) AS v (id) ON c.id = v.id
        WHEN MATCHED AND c.id = 2 THEN DELETE
        WHEN MATCHED THEN UPDATE SET name = 'm'
        WHEN NOT MATCHED THEN INSERT (name) VALUES ('n')
        """,
        "D2 I3 U1",
    ),
    (
        """
        WITH a AS (UPDATE children SET name = 'n' WHERE id = 1), b AS (DELETE FROM children WHERE id = 2 RETURNING name)
        INSERT INTO children (name) SELECT name FROM b
        """,
        "D2 I3 U1",
    ),
    (
        """
        UPDATE children SET name = 'kept' WHERE id = 1; SAVEPOINT s;
        UPDATE children SET name = 'not kept' WHERE id = 2; ROLLBACK TO SAVEPOINT s
        """,
        "U1",
    ),
    ("CREATE VIEW v AS SELECT id, name FROM children; UPDATE v SET name = 'v' WHERE id = 1", "U1"),
    (
        """
        CREATE FUNCTION t() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.id := 77; RETURN NEW; END$$;
        CREATE TRIGGER t BEFORE INSERT ON children FOR EACH ROW EXECUTE FUNCTION t();
        INSERT INTO children (name) VALUES ('t')
        """,
        "I77",
    ),
    # As the worker of a subscription writes.
    ("SET LOCAL session_replication_role = replica; UPDATE children SET name = 'r' WHERE id = 1", "U1"),
    # And what is no change.
    ("UPDATE children SET unread = 'x'", ""),
    ("UPDATE children SET name = name, by_null = by_null", ""),
)


@pytest.mark.parametrize(("way", "expected"), WAYS, ids=lambda value: " ".join(value.split())[:40])
def test_each_way_leaves_what_it_did(family: World, way: str, expected: str) -> None:
    """Each row that changed in a watched column leaves its operation and its images, and no other row does."""
    if "MERGE" in way:
        family.require_postgres(15, "MERGE")
    with family.application() as application:
        application.execute(f"ALTER TABLE children ALTER id RESTART WITH 3; {way}".encode())
        assert written(family, application) == left(expected)
        application.rollback()


def test_a_role_without_privileges_is_captured(empty_world: World) -> None:
    """A writer needs nothing in schema syncer, and the triggers see rows that a policy hides from everybody."""
    owner, writer = (f"{name}_{empty_world.name}" for name in ("owner", "writer"))
    tables = """
        CREATE TABLE things (id int PRIMARY KEY, tenant text, name text) PARTITION BY RANGE (id);
        CREATE TABLE things_1 PARTITION OF things DEFAULT
    """
    capture_only(empty_world, tables, "SELECT t.id AS _id, t.name FROM things AS t")
    empty_world.sql(f"""
        CREATE ROLE {owner}; CREATE ROLE {writer};
        ALTER TABLE things ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
        CREATE POLICY own ON things USING (false) WITH CHECK (false);
        CREATE POLICY writers ON things TO {writer} USING (tenant = 'mine') WITH CHECK (true);
        GRANT INSERT, UPDATE, DELETE, SELECT, TRUNCATE ON things TO {writer};
        GRANT USAGE, CREATE ON SCHEMA public TO {owner};
        ALTER TABLE things OWNER TO {owner};
        GRANT USAGE ON SCHEMA syncer TO {owner};
        GRANT INSERT ON syncer.outbox TO {owner}; GRANT SELECT ON syncer.outbox_segment TO {owner};
        ALTER FUNCTION syncer."capture_public.things" OWNER TO {owner}
    """)
    try:
        empty_world.sql(f"""
            SET ROLE {writer}; INSERT INTO things VALUES (1, 'mine', 'a'), (2, 'other', 'b');
            UPDATE things SET tenant = 'other', name = 'c'; TRUNCATE things
        """)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            empty_world.sql(f"SET ROLE {writer}; SELECT FROM syncer.outbox")
    finally:
        empty_world.sql(f"DROP OWNED BY {owner}, {writer} CASCADE; DROP ROLE {owner}, {writer}")
    image = {"id": "1"}
    assert written(empty_world) == [
        ("public.things", "I", None, image),
        ("public.things", "I", None, {"id": "2"}),
        ("public.things", "T", None, None),
        ("public.things", "U", image, image),
    ]


PEOPLE = {
    "by statement": "CREATE TABLE people (id int PRIMARY KEY, name text, logins int NOT NULL DEFAULT 0)",
    "by row": """
        CREATE TABLE people (id int PRIMARY KEY, name text, logins int NOT NULL DEFAULT 0) PARTITION BY HASH (id);
        CREATE TABLE people_0 PARTITION OF people FOR VALUES WITH (MODULUS 2, REMAINDER 0);
        CREATE TABLE people_1 PARTITION OF people FOR VALUES WITH (MODULUS 2, REMAINDER 1)
    """,
}
DOCUMENTS = {
    "names": "SELECT n.id AS _id, p.name FROM notes AS n JOIN people AS p ON p.id = n.person",
    "counts": "SELECT p.id AS _id, p.logins FROM people AS p",
}
CHANGES = {
    "UPDATE people SET logins = logins + 1": {"counts"},
    "UPDATE people SET name = name || '!'": {"names"},
    "UPDATE people SET name = 'both', logins = 7": {"names", "counts"},
    "UPDATE people SET id = id + 10 WHERE id = 1; UPDATE notes SET person = 11 WHERE person = 1": {"names", "counts"},
    "UPDATE people SET name = name": set(),
}


def versions(world: World, document: str) -> dict[str, int]:
    """The number of the write that each document shows."""
    with world.elasticsearch() as client:
        client.indices.refresh(index=world.alias_of(document))
        hits = client.search(index=world.alias_of(document), version=True, size=100)["hits"]["hits"]
    return {hit["_id"]: version.split(hit["_version"])[1] for hit in hits}


@pytest.fixture(params=PEOPLE)
def people(request: pytest.FixtureRequest, empty_world: World) -> World:
    """Two documents that show different columns of one table."""
    world = empty_world
    world.use()
    world.sql(f"{PEOPLE[request.param]}; CREATE TABLE notes (id int PRIMARY KEY, person int)")
    world.sql("INSERT INTO people SELECT n, 'John' FROM generate_series(1, 3) AS n")
    world.sql("INSERT INTO notes SELECT n, 1 + n % 3 FROM generate_series(1, 20) AS n")
    for name, select in DOCUMENTS.items():
        world.define(name, select)
    world.documents = tuple(DOCUMENTS)
    world.migrate()
    world.apply()
    return world


def test_an_update_writes_only_documents_that_show_a_changed_column(people: World) -> None:
    """A counter that one document shows does not rewrite the others; a change of the key reaches all."""
    with following(people) as follower:
        follower.drain()
        for change, expected in CHANGES.items():
            versions_before = {name: versions(people, name) for name in DOCUMENTS}
            people.sql(change)
            follower.drain()
            versions_after = {name: versions(people, name) for name in DOCUMENTS}
            assert {name for name in DOCUMENTS if versions_before[name] != versions_after[name]} == expected, change


DISABLED = (
    "ALTER TABLE people DISABLE TRIGGER USER",
    "ALTER TABLE people DISABLE TRIGGER {trigger}",
    "ALTER TABLE people ENABLE REPLICA TRIGGER {trigger}",
)


def test_a_trigger_that_was_disabled_for_a_while_refreshes_what_reads_the_table(people: World) -> None:
    """Between two looks, a table is written without triggers that are enabled again afterwards."""
    named = "SELECT quote_ident(tgname), tgname ~ 'update|row' FROM pg_trigger WHERE tgrelid = 'people'::regclass"
    triggers = people.sql(named)
    trigger = next(name for name, is_for_updates in triggers if is_for_updates)
    with people.connect() as connection:
        assert install.note(connection) == []
        connection.execute("VACUUM (FREEZE) pg_trigger")
        people.apply()
        assert install.note(connection) == []
        for number, disable in enumerate(DISABLED):
            written(people)
            people.sql(
                f"{disable.format(trigger=trigger)}; UPDATE people SET name = 'unseen', logins = {1000 + number}; "
                + "; ".join(f"ALTER TABLE people ENABLE ALWAYS TRIGGER {name}" for name, _ in triggers)
            )
            assert written(people) == []
            assert install.note(connection) == ["public.people"]
            assert install.note(connection) == []
            with following(people) as follower:
                follower.drain()
            assert json.dumps(people.held("counts")).count(str(1000 + number)) == 3
