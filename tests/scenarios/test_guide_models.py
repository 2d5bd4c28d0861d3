"""The guide's models answer the guide's questions on the guide's data; files follow the directories above them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache

import pytest

from syncer.demo.guide import Ask, Model, Row, models, schema
from syncer.sandbox import Endpoints, Sandbox
from tests.support.world import World, made, wait_until


@pytest.fixture(scope="module")
def playing(
    sandbox: Sandbox, endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Model], World]]:
    """Returns the world of a model's tables, with the model's rows: all models of these tables are active there."""
    with ExitStack() as stack:

        @cache
        def world_of(tables: str) -> World:
            folder = tmp_path_factory.mktemp(tables)
            world = stack.enter_context(made(World(sandbox=sandbox, endpoints=endpoints, folder=folder)))
            found = (model.documents for model in models().values() if model.schema == tables)
            world.use(*dict.fromkeys(name for names in found for name in names))
            world.sql(schema(tables))
            world.migrate()
            world.apply()
            world.daemon()
            return world

        def play(model: Model) -> World:
            world = world_of(model.schema)
            world.sql(model.rows)
            settle(world)
            return world

        yield play


def settle(world: World) -> None:
    """Wait until every document shows what is committed, and nothing that is on its way writes one once more."""
    world.wait_until_level()
    wait_until(world.is_handled, what="all is handled")


@pytest.mark.parametrize("model", models().values(), ids=models().keys())
def test_a_model_answers_the_guides_questions(playing: Callable[[Model], World], model: Model) -> None:
    """Each question has the guide's answer, before and after each change, and every document equals its SELECT."""
    world, answer = playing(model), tuple[Row, ...]()
    with world.elasticsearch() as client:
        for step in model.steps:
            if isinstance(step, Ask):
                answer = step.rows(client, world.alias_of(step.document), answer)
                assert answer == step.answer, step.question
            else:
                with ThreadPoolExecutor() as applications:
                    list(applications.map(world.sql, step.statements))
                settle(world)


@pytest.mark.parametrize(
    ("model", "change", "written"),
    [
        ("join", "UPDATE users SET name = 'John Doe' WHERE id = 1", {("user", "1")}),
        ("parent-child", "UPDATE comments SET stars = 1 WHERE id = 2", {("discussion", "comment-2")}),
    ],
)
def test_a_change_writes_one_document(
    playing: Callable[[Model], World], model: str, change: str, written: set[tuple[str, str]]
) -> None:
    """A user is renamed without its posts, and a comment changes without its post and the other comments."""
    world = playing(models()[model])
    with world.elasticsearch() as client:

        def versions() -> dict[tuple[str, str], int]:
            return {
                (name, hit["_id"]): hit["_version"]
                for name in models()[model].documents
                for hit in client.search(index=world.alias_of(name), size=1000, version=True)["hits"]["hits"]
            }

        before = versions()
        world.sql(change)
        settle(world)
        assert {document for document, version in versions().items() if version != before[document]} == written


Follow = Callable[..., None]


@pytest.fixture(scope="module")
def grown(module_world: World) -> World:
    """The guide's files, with the document active."""
    module_world.use("file")
    module_world.sql(schema("filesystem"))
    module_world.migrate()
    module_world.apply()
    return module_world


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
    "directory_becomes_a_tree_of_its_own": (
        ("UPDATE directories SET parent_id = NULL, name = 'backup:' WHERE id = 3",),
        {"1": "backup:/elasticsearch: README.txt", "2": "backup:: ideas.txt"},
    ),
    "directory_deleted_with_all_in_it": (("DELETE FROM directories WHERE id = 3",), {"1": None, "2": None}),
    "everything_deleted": (("TRUNCATE directories CASCADE",), {"1": None, "2": None, "3": None, "4": None}),
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
