"""Files follow the directories above them, however those change, and whoever writes meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from syncer.demo.guide import models, schema
from syncer.sandbox import Endpoints, Sandbox
from tests.support.world import World, made

Follow = Callable[..., None]


def set_up(world: World) -> None:
    """The guide's files, with the document active."""
    world.use("file")
    world.sql(schema("filesystem"))
    world.sql(models()["files"].rows)
    world.migrate()
    world.apply()


@pytest.fixture
def tree(empty_world: World) -> World:
    """A world with the guide's files, and no daemon."""
    set_up(empty_world)
    return empty_world


@pytest.fixture(scope="module")
def grown(sandbox: Sandbox, endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The same, shared by tests."""
    with made(World(sandbox=sandbox, endpoints=endpoints, folder=tmp_path_factory.mktemp("grown"))) as world:
        set_up(world)
        yield world


@pytest.fixture(scope="module")
def follow(grown: World) -> Iterator[Follow]:
    """Commits transactions there, and writes what they affect."""
    with grown.index() as index, grown.relay() as relay, grown.worker(index) as worker:

        def commit(*transactions: str) -> None:
            for transaction in transactions:
                grown.sql(transaction)
            grown.drain(relay, worker)

        yield commit


@pytest.fixture
def replanted(grown: World, follow: Follow) -> World:
    """The shared one with the guide's files as at first."""
    follow(models()["files"].rows)
    assert paths(grown) == AT_FIRST
    return grown


def paths(world: World) -> dict[str, str]:
    """Where each file is, by id, as a search finds it."""
    return {id_: f"{file['path']}: {file['name']}" for id_, file in world.held("file").items()}


AT_FIRST = {
    "1": "/clinton/projects/elasticsearch: README.txt",
    "2": "/clinton/projects: ideas.txt",
    "3": "/clinton: letter.txt",
    "4": "/alice: photos.txt",
}

# Transactions, one after the other; what they leave; and what is not found any more.
CHANGES: dict[str, tuple[tuple[str, ...], dict[str, str | None]]] = {
    "file_renamed": (
        ("UPDATE files SET name = 'README.asciidoc' WHERE id = 1",),
        {"1": "/clinton/projects/elasticsearch: README.asciidoc"},
    ),
    "file_moved_to_the_root": (("UPDATE files SET directory_id = 1 WHERE id = 1",), {"1": "/: README.txt"}),
    "directory_renamed": (
        ("UPDATE directories SET name = 'bill' WHERE id = 2",),
        {"1": "/bill/projects/elasticsearch: README.txt", "2": "/bill/projects: ideas.txt", "3": "/bill: letter.txt"},
    ),
    "directory_moved": (
        ("UPDATE directories SET parent_id = 5 WHERE id = 3",),
        {"1": "/alice/projects/elasticsearch: README.txt", "2": "/alice/projects: ideas.txt"},
    ),
    "directory_becomes_a_tree_of_its_own": (
        ("UPDATE directories SET parent_id = NULL, name = 'backup:' WHERE id = 3",),
        {"1": "backup:/elasticsearch: README.txt", "2": "backup:: ideas.txt"},
    ),
    "directory_deleted_with_all_in_it": (("DELETE FROM directories WHERE id = 3",), {"1": None, "2": None}),
    "everything_deleted": (("TRUNCATE directories CASCADE",), {"1": None, "2": None, "3": None, "4": None}),
    "directory_renamed_and_a_file_taken_out_in_one_transaction": (
        (
            """
            UPDATE directories SET name = 'bill' WHERE id = 2;
            UPDATE files SET directory_id = 5 WHERE id = 2;
            UPDATE files SET name = 'README' WHERE id = 1
            """,
        ),
        {"1": "/bill/projects/elasticsearch: README", "2": "/alice: ideas.txt", "3": "/bill: letter.txt"},
    ),
    "directory_renamed_then_moved_from_under_it": (
        (
            "UPDATE directories SET name = 'bill' WHERE id = 2",
            "UPDATE directories SET parent_id = 5 WHERE id = 3",
            "UPDATE files SET directory_id = 3 WHERE id = 1",
        ),
        {"1": "/alice/projects: README.txt", "2": "/alice/projects: ideas.txt", "3": "/bill: letter.txt"},
    ),
    "directory_replaced_by_one_with_another_key": (
        (
            """
            INSERT INTO directories (id, parent_id, name) VALUES (30, 2, 'work');
            UPDATE directories SET parent_id = 30 WHERE parent_id = 3;
            UPDATE files SET directory_id = 30 WHERE directory_id = 3;
            DELETE FROM directories WHERE id = 3
            """,
        ),
        {"1": "/clinton/work/elasticsearch: README.txt", "2": "/clinton/work: ideas.txt"},
    ),
    "two_directories_swap_places": (
        ("UPDATE directories SET parent_id = CASE id WHEN 5 THEN 2 WHEN 2 THEN 1 ELSE 5 END WHERE id IN (2, 3, 5)",),
        {
            "1": "/clinton/alice/projects/elasticsearch: README.txt",
            "2": "/clinton/alice/projects: ideas.txt",
            "4": "/clinton/alice: photos.txt",
        },
    ),
}


@pytest.mark.parametrize(("transactions", "leaves"), CHANGES.values(), ids=CHANGES.keys())
def test_every_file_has_the_path_of_its_directory(
    replanted: World, follow: Follow, transactions: tuple[str, ...], leaves: dict[str, str | None]
) -> None:
    """Whatever is renamed, moved or deleted, on whatever level, the files below it have the right path afterwards."""
    follow(*transactions)
    assert paths(replanted) == {id_: path for id_, path in (AT_FIRST | leaves).items() if path is not None}


def test_a_cycle_that_was_made_all_the_same_hangs_nothing(replanted: World, follow: Follow) -> None:
    """With the application's rule switched off, files in a cycle have some path, and the others theirs."""
    replanted.sql("ALTER TABLE directories DISABLE TRIGGER USER; UPDATE directories SET parent_id = 4 WHERE id = 2")
    replanted.sql("ALTER TABLE directories ENABLE TRIGGER USER")
    follow("UPDATE directories SET name = 'bill' WHERE id = 2; UPDATE files SET name = 'seen' WHERE id = 4")
    assert paths(replanted)["4"] == "/alice: seen"


def test_a_recursive_search_takes_part_of_a_path_only_at_a_slash(replanted: World) -> None:
    """/clint finds nothing below /clinton; a match query finds what a term query finds."""
    with replanted.elasticsearch() as client:
        found = {
            (kind, path): client.count(index=replanted.alias_of("file"), query={kind: {"path.tree": path}})["count"]
            for kind in ("term", "match")
            for path in ("/clinton", "/clinton/projects", "/clint", "/clinton/", "clinton")
        }
    assert {search for search, number in found.items() if number} == {
        (kind, path) for kind in ("term", "match") for path in ("/clinton", "/clinton/projects")
    }


def test_composing_a_thousand_files_does_not_read_the_tree(tree: World) -> None:
    """A page of ids reaches files and directories by their keys; so does what a renamed directory affects."""
    tree.sql("INSERT INTO directories (id, parent_id, name) SELECT 10 + n, 5, n FROM generate_series(1, 5000) AS n")
    tree.sql("INSERT INTO files (id, directory_id, name) SELECT 10 + n, 10 + n, n FROM generate_series(1, 5000) AS n")
    with psycopg.connect(tree.dsn, autocommit=True) as connection:
        connection.execute("ANALYZE directories")
        connection.execute("ANALYZE files")
    folder = tree.config / "documents" / "file"
    select = (folder / "select.sql").read_text()
    affects = (folder / "affects" / "directories.sql").read_text()
    ids = ", ".join(str(10 + n) for n in range(1, 1001))
    changed = "jsonb_populate_recordset(NULL::directories, '[{\"id\": 20}]')"
    for query in (
        f"SELECT d.* FROM ({select}) AS d WHERE d._id = ANY (ARRAY[{ids}]::bigint[])",
        f"SELECT DISTINCT d._id FROM ({affects.replace('%(rows)s', changed)}) AS d",
    ):
        plan = "\n".join(row[0] for row in tree.sql(f"EXPLAIN (COSTS OFF) {query}"))
        assert "Seq Scan" not in plan, plan
