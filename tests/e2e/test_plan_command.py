"""``syncer plan`` as a person and a CI job use it: what it prints, how it exits, that it needs no Kafka."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.harness import BLOG_SCHEMA, DEADLINE_SECONDS, World, wait_until

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
    said: dict[str, Any] = json.loads(plan(world, "--json", *arguments, code=code))
    return said


def test_a_stranger_reads_what_apply_would_do(blog: World) -> None:
    """Before migrate and without Kafka: outcome, tables, the way from a change to documents, one document cut short."""
    said = plan(blog)
    lines = [line.strip() for line in said.splitlines()]
    assert "run `syncer migrate` before" in said
    fill = (
        rf"blogpost → {blog.alias}: new index, 2 documents, (less than a second|about \d+ s) to fill \(measured on 2\)"
    )
    assert any(re.fullmatch(fill, line) for line in lines), said
    assert "public.users  1 row, triggers new" in lines
    assert "watched id, name" in lines
    assert "finds   the document whose _id is its post_id" in lines
    assert "FROM %(rows)s AS n1" in said
    assert "1 changed row → 2 documents" in said
    assert "… (500 characters)" in said
    assert "… 4 more" in said
    assert "Missing indexes" not in said
    assert "warning" not in said
    assert not [line for line in said.splitlines() if line.endswith(" ")]
    blog.migrate()
    blog.apply()
    said = plan(blog)
    assert "nothing to do" in said
    assert "migrate" not in said


@pytest.mark.parametrize("columns", ["80", "200"])
def test_missing_indexes_can_be_pasted(blog: World, columns: str) -> None:
    """Each statement stands on a line of its own, whole at any width, and is valid SQL with its comment."""
    blog.sql("DROP INDEX posts_user_id, comments_post_id")
    said = plan(blog, COLUMNS=columns)
    statements = [line for line in said.splitlines() if "CREATE INDEX" in line]
    assert [one.split(";")[0].strip() for one in statements] == [
        "CREATE INDEX CONCURRENTLY ON public.comments (post_id)",
        "CREATE INDEX CONCURRENTLY ON public.posts (user_id)",
    ]
    with blog.connect() as connection:
        for one in statements:
            connection.execute(one.encode())
    assert "Missing indexes" not in plan(blog)


def test_json_has_what_the_help_promises(blog: World) -> None:
    """A CI job finds the same names whether a document is fine or refused."""
    seen = plan_json(blog)
    assert seen.keys() == {
        *("is_refused", "has_warnings", "is_migrated", "documents", "missing_indexes", "released", "forgotten")
    }
    (document,) = seen["documents"]
    assert document["outcome"] == "new"
    assert document["sample"]["source"]["user"] == {"id": 1, "name": "John Smith"}
    assert (seen["is_refused"], seen["has_warnings"], seen["is_migrated"]) == (False, True, False)
    select = blog.document_folder / "select.sql"
    select.write_text(select.read_text().replace("p.title", "p.tilte"))
    refused = plan_json(blog, code=1)
    assert refused.keys() == seen.keys()
    assert refused["documents"][0].keys() == document.keys()
    assert refused["documents"][0]["outcome"] is None
    assert "tilte" in refused["documents"][0]["refusals"][0]["message"]
    help_ = blog.syncer("plan", "--help").stdout
    assert [name for name in (*seen, *document) if name not in help_] == []


def test_warnings_fail_only_a_strict_plan(blog: World) -> None:
    """A field that does not fit is a warning with exit code 0, and 1 with --strict; a note never is."""
    blog.migrate()
    body = blog.document_folder / "index.json"
    body.write_text(
        body.read_text().replace('"title": { "type": "text" }', '"title": { "type": "text" }, "x": { "type": "long" }')
    )
    assert "1 note" in plan(blog, "--strict")
    body.write_text(body.read_text().replace('"created": { "type": "date" }', '"created": { "type": "text" }'))
    said = plan(blog)
    assert "created (timestamp with time zone into text)" in said
    assert "Map it as date." in said
    plan(blog, "--strict", code=1)
    assert plan_json(blog, "--strict", code=1)["has_warnings"] is True


def test_a_change_that_needs_a_new_index_is_no_refusal(blog: World) -> None:
    """It is said with Elasticsearch's reason and how long filling takes, and the exit code is 0."""
    blog.migrate()
    blog.apply()
    body = blog.document_folder / "index.json"
    body.write_text(body.read_text().replace('"title": { "type": "text" }', '"title": { "type": "keyword" }'))
    (line,) = [line for line in plan(blog).splitlines() if line.startswith("blogpost →")]
    assert "needs a new index: mapper [title] cannot be changed from type [text] to [keyword]; 2 documents, " in line
    assert "to fill" in line
    seen = plan_json(blog)
    assert seen["is_refused"] is False
    (document,) = seen["documents"]
    assert (document["outcome"], document["refusals"]) == ("reindex", [])
    assert "from type [text] to [keyword]" in document["reason"]


def test_one_document_alone(blog: World) -> None:
    """A name limits the plan to that document; one that is not there is an error with those that are."""
    assert [one["name"] for one in plan_json(blog, "blogpost")["documents"]] == ["blogpost"]
    finished = blog.syncer("plan", "blogpots")
    assert finished.returncode == 1
    assert "There is no document blogpots" in finished.stderr
    assert "There are: blogpost" in finished.stderr


def test_apply_warns_before_it_asks(blog: World) -> None:
    """A mapping that does not fit is said by apply too, while nothing has been done yet."""
    blog.migrate()
    body = blog.document_folder / "index.json"
    body.write_text(body.read_text().replace('"created": { "type": "date" }', '"created": { "type": "long" }'))
    finished = blog.syncer("apply")
    assert finished.returncode == 1
    assert "created (timestamp with time zone into long): every value is refused" in finished.stdout
    assert "Add --yes" in finished.stderr
    assert blog.sql("SELECT name FROM syncer.document") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_plan_leaves_nothing_for_long(blog: World, number: signal.Signals) -> None:
    """Ctrl-C cleans up; after a kill the next plan does."""

    def scratch() -> list[str]:
        with blog.elasticsearch() as client:
            return list(client.indices.get(index=f"{blog.alias}*", expand_wildcards="all").body)

    rows = "SELECT i, 1, 't', repeat('x', 50000) FROM generate_series(5, 300) AS i"
    blog.sql(f"INSERT INTO posts (id, user_id, title, body) {rows}")
    process = subprocess.Popen(
        [sys.executable, "-m", "syncer", "plan"],
        env=blog.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: scratch() != [] or process.poll() is not None, what="it tries something")
    process.send_signal(number)
    _, said = process.communicate(timeout=DEADLINE_SECONDS)
    assert "Traceback" not in said
    if number is signal.SIGINT:
        assert process.returncode in (130, 0)
        assert scratch() == []
    plan(blog)
    assert scratch() == []
