"""The guide's models answer the guide's questions on the guide's data, before a change and after it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from elasticsearch import Elasticsearch

from syncer.demo.guide import MODELS
from syncer.demo.guide.authors import COLLAPSE, JOIN
from syncer.demo.guide.comments import NESTED, PARENT_CHILD
from syncer.demo.model import SCHEMAS, Ask, Body, GuideModel, Write, commit, execute, search
from tests.support.world import World, wait_until


@contextmanager
def playing(world: World, model: GuideModel) -> Iterator[Elasticsearch]:
    """The model's documents active, a daemon at work, the guide's rows written; yields a client to ask with."""
    world.use(*model.documents)
    world.sql(SCHEMAS[model.schema].creation)
    world.migrate()
    world.apply()
    world.daemon()
    execute(world.dsn, model.rows)
    world.wait_until_level()
    # Nothing that is on its way yet writes a document once more.
    wait_until(world.is_handled, what="all is handled")
    with world.elasticsearch() as client:
        yield client


def wait_for_answer(world: World, client: Elasticsearch, ask: Ask, before: Body) -> Body:
    """The response, once it says what the guide says."""
    responses: list[Body] = []

    def is_answered() -> bool:
        responses[:] = [search(client, world.alias_of(ask.document), ask.request(before))]
        return tuple(ask.read.rows(responses[0])) == ask.answer

    wait_until(is_answered, what=f"{ask.question}: {ask.answer}", detail=lambda: json.dumps(responses))
    return responses[0]


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_a_model_answers_the_guides_questions(empty_world: World, model: GuideModel) -> None:
    """Each question has the guide's answer, before and after each change, and every document equals its SELECT."""
    with playing(empty_world, model) as client:
        response: Body = {}
        for step in model.steps:
            match step:
                case Ask():
                    response = wait_for_answer(empty_world, client, step, response)
                case Write():
                    commit(empty_world.dsn, *step.statements)
    empty_world.wait_until_level()
    assert empty_world.syncer("verify").returncode == 0


def test_collapsing_returns_groups_and_no_hits(empty_world: World) -> None:
    """The outer hits are empty though two posts match, and John Smith's shorter title scores higher."""
    (ask, *_) = COLLAPSE.steps
    assert isinstance(ask, Ask)
    with playing(empty_world, COLLAPSE) as client:
        found = search(client, empty_world.alias, ask.request({}))
    assert found["hits"]["hits"] == []
    assert found["hits"]["total"]["value"] == 2
    first, second = found["aggregations"]["users"]["buckets"]
    assert (first["key"], second["key"]) == ("John Smith", "Alice John")
    assert first["top_score"]["value"] > second["top_score"]["value"]
    assert [one["blogposts"]["hits"]["total"]["value"] for one in (first, second)] == [1, 1]


@pytest.mark.parametrize(
    ("model", "change", "written"),
    [
        (JOIN, "UPDATE users SET name = 'John Doe' WHERE id = 1", {("user", "1")}),
        (PARENT_CHILD, "UPDATE comments SET stars = 1 WHERE id = 2", {("discussion", "comment-2")}),
    ],
    ids=["a_user_of_a_join", "a_child"],
)
def test_a_change_writes_one_document(
    empty_world: World, model: GuideModel, change: str, written: set[tuple[str, str]]
) -> None:
    """A user is renamed without its posts, and a comment changes without its post and the other comments."""
    with playing(empty_world, model) as client:
        before = versions(empty_world, client, *model.documents)
        execute(empty_world.dsn, change)
        empty_world.wait_until_level()
        after = versions(empty_world, client, *model.documents)
    assert {one for one, version in after.items() if version != before[one]} == written


def test_parents_and_children_are_reached_by_index(empty_world: World) -> None:
    """A page of made-up ids is looked up in both tables, however large they are."""
    empty_world.use("discussion")
    empty_world.sql(SCHEMAS["blog"].creation)
    empty_world.sql("INSERT INTO users SELECT 1, 'name', 'email'")
    empty_world.sql("INSERT INTO posts (user_id, title, body) SELECT 1, 't', 'b' FROM generate_series(1, 5000)")
    empty_world.sql("INSERT INTO comments (post_id, name, comment) SELECT id, 'n', 'c' FROM posts")
    empty_world.sql("ANALYZE posts, comments")
    select = (empty_world.config / "documents" / "discussion" / "select.sql").read_text()
    ids = "ARRAY(SELECT 'comment-' || n FROM generate_series(1, 1000) AS n)"
    plan = "\n".join(
        row[0] for row in empty_world.sql(f"EXPLAIN SELECT * FROM ({select}) AS d WHERE _id = ANY ({ids})")
    )
    assert "Seq Scan" not in plan, plan


def test_nested_comments_are_found_each_by_itself(empty_world: World) -> None:
    """The same post as plain objects matches Alice aged 28, which no comment says; a moved comment is found once."""
    with playing(empty_world, NESTED) as client:
        flat = f"{empty_world.alias}-flat"
        document = empty_world.expected()["1"]
        del document["created"]
        client.index(index=flat, id="1", document=document, refresh=True)
        alice_aged_28 = [{"match": {"comments.name": "Alice"}}, {"match": {"comments.age": 28}}]
        plain: Body = {"bool": {"must": alice_aged_28}}
        assert client.count(index=flat, query=plain)["count"] == 1
        nested = {"nested": {"path": "comments", "query": plain}}
        assert client.count(index=empty_world.alias, query=nested)["count"] == 0

        execute(empty_world.dsn, "UPDATE comments SET post_id = 2 WHERE id = 2")
        empty_world.wait_until_level()
        by_alice = {"nested": {"path": "comments", "query": {"match": {"comments.name": "Alice"}}}}
        found = search(client, empty_world.alias, {"query": by_alice})
    assert [hit["_id"] for hit in found["hits"]["hits"]] == ["2"]


def versions(world: World, client: Elasticsearch, *documents: str) -> dict[tuple[str, str], int]:
    """The version of every document, by its definition's name and its id."""
    found: dict[tuple[str, str], int] = {}
    for name in documents:
        everything = search(client, world.alias_of(name), {"size": 1000, "version": True})
        found |= {(name, hit["_id"]): int(hit["_version"]) for hit in everything["hits"]["hits"]}
    return found
