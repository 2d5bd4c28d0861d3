"""``syncer plan`` as a person and a CI job use it: what it prints, how it exits, that it needs no Kafka."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.world import BLOG_SCHEMA, REPOSITORY, World

ROWS = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com');
INSERT INTO posts (id, user_id, title, body) VALUES (2, 1, 'Relationships', repeat('long ', 100)), (4, 1, 'cool', 'x');
INSERT INTO comments (id, post_id, name, comment) SELECT i, 2, 'Bob', 'Less' FROM generate_series(1, 9) AS i;
ANALYZE;
"""
NO_KAFKA = {"SYNCER_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}


@pytest.fixture
def blog(empty_world: World) -> World:
    """The blog with some rows, and nothing of syncer's."""
    empty_world.sql(BLOG_SCHEMA.read_text())
    empty_world.sql(ROWS)
    return empty_world


def plan(world: World, *arguments: str, code: int = 0, **environment: str) -> str:
    """What plan prints; it must exit with this code."""
    finished = world.syncer("plan", *arguments, environment={**NO_KAFKA, **environment})
    assert finished.returncode == code, finished.stdout + finished.stderr
    assert finished.stderr == ""
    return finished.stdout


def plan_json(world: World, *arguments: str, code: int = 0) -> dict[str, Any]:
    """The same as data."""
    printed: dict[str, Any] = json.loads(plan(world, "--json", *arguments, code=code))
    return printed


def test_a_plan_needs_neither_migrate_nor_kafka(blog: World) -> None:
    """It shows the document and what one changed row of each table leads to; --verbose adds the queries."""
    printed = plan(blog)
    assert "syncer migrate" in printed
    assert f"blogpost → {blog.alias}: new index, 2 documents" in printed
    ways = dict(line.split(maxsplit=4)[3:5] for line in printed.splitlines() if "a change of" in line)
    assert ways["public.users"].startswith("2 documents, ")
    assert ways["public.comments"] == "1 document, by its post_id"
    assert blog.sql("SELECT to_regnamespace('syncer')") == [(None,)]
    assert "FROM %(rows)s AS n1" in plan(blog, "--verbose")


def test_a_select_that_its_mapping_rejects_is_an_error(blog: World) -> None:
    """A column without a field in a strict mapping: the exit code is 1, and apply refuses it, too."""
    blog.migrate()
    select = blog.document_folder / "select.sql"
    select.write_text(select.read_text().replace("p.tags,", "p.tags, length(p.body) AS size,"))
    first, *_ = plan(blog, code=1).splitlines()
    assert first.startswith("Error in blogpost: 2 of 2 sampled documents are rejected, for example ")
    assert "dynamic introduction of [size]" in first
    seen = plan_json(blog, code=1)
    assert seen["has_errors"] is True
    assert [problem["severity"] for problem in seen["documents"][0]["problems"]] == ["error"]
    for options in ((), ("--yes",)):
        finished = blog.syncer("apply", *options)
        assert finished.returncode == 1
        assert "blogpost: 2 of 2 sampled documents are rejected, for example " in finished.stderr
        assert "Nothing was changed" in finished.stderr
        assert blog.sql("SELECT name FROM syncer.document") == []


def test_json_has_what_the_page_guarantees(blog: World) -> None:
    """A CI job finds the same names whether a document is fine or refused."""
    seen = plan_json(blog)
    assert seen.keys() == {
        *("has_errors", "has_warnings", "is_migrated", "is_empty", "documents", "missing_indexes"),
        *("released", "forgotten", "removed", "dropped"),
    }
    (document,) = seen["documents"]
    assert document["outcome"] == "new"
    assert document["sample"]["source"]["user"] == {"id": 1, "name": "John Smith"}
    assert (seen["has_errors"], seen["has_warnings"], seen["is_migrated"]) == (False, True, False)
    select = blog.document_folder / "select.sql"
    select.write_text(select.read_text().replace("p.title", "p.tilte"))
    refused = plan_json(blog, code=1)
    assert refused.keys() == seen.keys()
    assert refused["documents"][0].keys() == document.keys()
    assert refused["documents"][0]["outcome"] is None
    assert "tilte" in refused["documents"][0]["problems"][0]["message"]
    page = (REPOSITORY / "docs" / "json.md").read_text()
    assert [name for name in (*seen, *document, *document["tables"][0]) if f"`{name}`" not in page] == []


def test_warnings_fail_only_a_strict_plan(blog: World) -> None:
    """A text that searches do not find is a warning with exit code 0, and 1 with --strict; a note never is."""
    blog.migrate()
    blog.sql("ALTER TABLE posts ADD COLUMN due text")
    body, select = (blog.document_folder / name for name in ("index.json", "select.sql"))
    select.write_text(select.read_text().replace("p.tags,", "p.tags, p.due::date AS due,"))
    title = '"title": { "type": "text" }'
    body.write_text(body.read_text().replace(title, title + ', "due": { "type": "date" }'))
    assert "a text is cast to date" in plan(blog, "--strict")
    body.write_text(body.read_text().replace(title, '"title": { "type": "keyword", "ignore_above": 5 }'))
    assert plan_json(blog)["has_warnings"] is True
    assert plan(blog, "--strict", code=1).startswith("No errors; 1 warning")


def test_a_change_that_needs_a_new_index_is_no_refusal(blog: World) -> None:
    """Elasticsearch's reason is shown, and the exit code is 0."""
    blog.migrate()
    blog.apply()
    body = blog.document_folder / "index.json"
    body.write_text(body.read_text().replace('"title": { "type": "text" }', '"title": { "type": "keyword" }'))
    (document,) = plan_json(blog)["documents"]
    assert (document["outcome"], document["problems"]) == ("reindex", [])
    assert "from type [text] to [keyword]" in document["reason"]


def test_one_document_alone(blog: World) -> None:
    """A name limits the plan to that document; one that is not there is an error with those that are."""
    assert [document["name"] for document in plan_json(blog, "blogpost")["documents"]] == ["blogpost"]
    finished = blog.syncer("plan", "blogpots")
    assert finished.returncode == 1
    assert "There is no document blogpots" in finished.stderr
    assert "There are: blogpost" in finished.stderr
