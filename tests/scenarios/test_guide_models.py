"""The guide's models answer the guide's questions on the guide's data."""

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
            documents = (model.documents for model in models().values() if model.schema == tables)
            world.use(*dict.fromkeys(name for names in documents for name in names))
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
    world, answer = playing(model), list[Row]()
    with world.elasticsearch() as client:
        for step in model.steps:
            if isinstance(step, Ask):
                answer = step.rows(client, world.alias_of(step.document), answer)
                assert answer == step.answer, step.question
            else:
                with ThreadPoolExecutor() as applications:
                    list(applications.map(world.sql, step.statements))
                settle(world)


def test_a_cycle_of_directories_hangs_nothing(playing: Callable[[Model], World]) -> None:
    """With the application's rule switched off, files in a cycle have some path, and the others theirs."""
    world = playing(models()["files"])
    world.sql("ALTER TABLE directories DISABLE TRIGGER USER; UPDATE directories SET parent_id = 4 WHERE id = 2")
    world.sql("ALTER TABLE directories ENABLE TRIGGER USER; UPDATE files SET name = 'seen' WHERE id = 4")
    settle(world)
    assert world.held("file")["4"]["name"] == "seen"
