"""``syncer plan`` as a person and a CI job use it: what it prints, how it exits, that it needs no Kafka."""

from __future__ import annotations

import json
from typing import Any

from tests.support.world import BLOG_SCHEMA, REPOSITORY, World

ROWS = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com');
INSERT INTO posts (id, user_id, title, body) VALUES (2, 1, 'Relationships', repeat('long ', 100)), (4, 1, 'cool', 'x');
INSERT INTO comments (id, post_id, name, comment) SELECT i, 2, 'Bob', 'Less' FROM generate_series(1, 9) AS i;
ANALYZE;
"""
NO_KAFKA = {"SYNCER_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}


def plan(world: World, *arguments: str, code: int = 0) -> str:
    """What plan prints; it must exit with this code."""
    finished = world.syncer("plan", *arguments, environment=NO_KAFKA)
    assert finished.returncode == code, finished.stdout + finished.stderr
    assert finished.stderr == ""
    return finished.stdout


def plan_json(world: World, *, code: int = 0) -> dict[str, Any]:
    """The same as data."""
    printed: dict[str, Any] = json.loads(plan(world, "--json", code=code))
    return printed


def edit(world: World, file: str, old: str, new: str) -> None:
    """Change a file of the definition."""
    path = world.document_folder / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_definition_that_is_new_and_then_wrong(empty_world: World) -> None:
    """It needs neither migrate nor Kafka; what a mapping rejects is an error, and what Postgres refuses."""
    world = empty_world
    world.sql(BLOG_SCHEMA.read_text() + ROWS)
    printed = plan(world)
    assert "syncer migrate" in printed
    assert f"blogpost → {world.alias}: new index, 2 documents" in printed
    paths = dict(line.strip().split(maxsplit=4)[3:5] for line in printed.splitlines() if "a change of" in line)
    assert paths["public.users"].startswith("2 documents, ")
    assert paths["public.comments"] == "1 document, by its post_id"
    assert world.sql("SELECT to_regnamespace('syncer')") == [(None,)]
    seen = plan_json(world)
    (document,) = seen["documents"]
    assert (document["outcome"], document["documents"]) == ("new", 2)
    assert (seen["has_errors"], seen["has_warnings"], seen["is_migrated"]) == (False, True, False)
    page = (REPOSITORY / "docs" / "json.md").read_text()
    assert [name for name in (*seen, *document, *document["tables"][0]) if f"`{name}`" not in page] == []

    world.migrate()
    edit(world, "select.sql", "p.tags,", "p.tags, length(p.body) AS size,")
    first, *_ = plan(world, code=1).splitlines()
    assert first.startswith("Error in blogpost: 2 of 2 sampled documents are rejected, for example ")
    assert "dynamic introduction of [size]" in first
    rejected = plan_json(world, code=1)
    assert [problem["severity"] for problem in rejected["documents"][0]["problems"]] == ["error"]
    edit(world, "select.sql", "p.tags, length(p.body) AS size,", "p.tilte,")
    refused = plan_json(world, code=1)
    assert (refused.keys(), refused["documents"][0].keys()) == (seen.keys(), document.keys())
    assert refused["documents"][0]["outcome"] is None
    assert "tilte" in refused["documents"][0]["problems"][0]["message"]
