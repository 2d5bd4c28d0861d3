"""Whatever fails on the values of a row, the log names documents, fields and kinds of errors, and never the value."""

from __future__ import annotations

import json
from urllib.request import urlopen

from syncer.documents import registry
from syncer.jobs.model import JobKind
from syncer.jobs.queue import create
from tests.support.world import BLOG_SCHEMA, DEADLINE_SECONDS, World, wait_until

VALUE = "Wert-der-Zeile"
"""What is in rows, and in nothing else."""
AFFECTS = """
SELECT p.id AS _id FROM %(rows)s AS changed JOIN posts AS p ON p.user_id = changed.id WHERE changed.email::text <> ''
AND (changed.name = '' OR changed.name !~ 'poison' OR changed.name::integer > 0)
"""


def test_errors_on_values_are_logged_without_them(empty_world: World) -> None:
    """A value that the mapping refuses, one that the SELECT raises on, and one that an affects query raises on."""
    world, folder = empty_world, empty_world.document_folder
    select = (folder / "select.sql").read_text()
    (folder / "select.sql").write_text(
        select.replace("p.title,", "p.title, nullif(p.title, 'fine')::integer AS number,")
    )
    body = json.loads((folder / "index.json").read_text())
    body["mappings"]["properties"] |= {"body": {"type": "integer"}, "number": {"type": "integer"}}
    (folder / "index.json").write_text(json.dumps(body))
    (folder / "affects").mkdir()
    (folder / "affects" / "users.sql").write_text(AFFECTS)
    world.sql(BLOG_SCHEMA.read_text())
    world.migrate()
    world.apply()
    daemon = world.daemon(environment={"SYNCER_LOG_LEVEL": "debug"})
    world.sql("INSERT INTO users (id, name, email) VALUES (1, %s, %s)", VALUE, VALUE)
    world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (1, 1, 'fine', %s), (2, 1, %s, '2')", VALUE, VALUE)
    wait_until(
        lambda: {one["sample_id"] for one in daemon.events() if one["event"] == "document.dead_lettered"} == {"1", "2"},
        what="both posts are dead letters",
        detail=daemon.log_file.read_text,
    )
    world.sql("UPDATE users SET name = %s WHERE id = 1", f"poison {VALUE}")
    daemon.wait_for("worker.changes_unresolved")
    world.sql("ALTER TABLE posts ALTER COLUMN tags TYPE text USING 'x'")
    daemon.wait_for("document.suspended")
    assert daemon.stop() == 0
    log = daemon.log_file.read_text()
    assert "body" in log or "document_parsing_exception" in log
    assert VALUE not in log
    for command in (("status",), ("dead-letters", "list", "--limit", "0"), ("jobs", "list"), ("doctor",)):
        ended = world.syncer("--debug", *command)
        assert VALUE not in ended.stderr, command


def test_a_select_that_fails_while_it_is_listed_quotes_no_row(empty_world: World) -> None:
    """The log and the page without a token say which kind of error has suspended the document.

    `syncer plan` says more.
    """
    world = empty_world
    (world.document_folder / "select.sql").write_text(
        "SELECT p.id AS _id, p.title FROM posts AS p WHERE (p.body LIKE '%-%')::text <> p.body::integer::text"
    )
    (world.document_folder / "index.json").write_text('{"mappings": {"dynamic": true}}')
    world.sql(BLOG_SCHEMA.read_text())
    world.migrate()
    world.apply()
    world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John', 'john')")
    world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (1, 1, 'fine', '1'), (2, 1, 'other', %s)", VALUE)
    daemon = world.daemon()
    daemon.wait_for("document.dead_lettered")
    with world.connect() as connection:
        assert create(connection, registry.current(connection)["blogpost"], JobKind.REFRESH)
    suspended = daemon.wait_for("document.suspended")
    assert "InvalidTextRepresentation" in str(suspended["reason"])
    address = daemon.wait_for("web.listening")["address"]
    wait_until(lambda: "suspended: " in ask(f"{address}/api/status"), what="the page knows that it is suspended")
    for path in ("/api/status", "/api/explain/blogpost?id=1"):
        answer = ask(f"{address}{path}")
        assert "InvalidTextRepresentation" in answer
        assert VALUE not in answer
    assert daemon.stop() == 0
    assert VALUE not in daemon.log_file.read_text()
    assert VALUE in world.syncer("plan").stdout


def ask(url: str) -> str:
    """What a daemon answers to who sends no token."""
    with urlopen(url, timeout=DEADLINE_SECONDS) as answer:  # noqa: S310 - our own
        return str(answer.read().decode())
