"""A change is looked up for the documents that show a changed column, and a trigger that was disabled is noticed."""

from __future__ import annotations

import json

import pytest

from syncer.capture import install
from syncer.indexing import version
from tests.support.capture import written
from tests.support.world import World

TABLES = {
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


@pytest.fixture(params=TABLES)
def people(request: pytest.FixtureRequest, empty_world: World) -> World:
    """Two documents that show different columns of one table."""
    world = empty_world
    world.use()
    world.sql(f"{TABLES[request.param]}; CREATE TABLE notes (id int PRIMARY KEY, person int)")
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
    with people.index() as index, people.relay() as relay, people.worker(index) as worker:
        people.drain(relay, worker)
        for change, expected in CHANGES.items():
            before = {name: versions(people, name) for name in DOCUMENTS}
            people.sql(change)
            people.drain(relay, worker)
            after = {name: versions(people, name) for name in DOCUMENTS}
            assert {name for name in DOCUMENTS if before[name] != after[name]} == expected, change


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
    with people.connect() as connection, people.index() as index, people.relay() as relay:
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
            with people.worker(index) as worker:
                people.drain(relay, worker)
            assert json.dumps(people.held("counts")).count(str(1000 + number)) == 3
