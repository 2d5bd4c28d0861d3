"""Whatever writes a captured table, the outbox holds each row that changed in a watched column, and no other."""

from __future__ import annotations

import psycopg
import pytest

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
