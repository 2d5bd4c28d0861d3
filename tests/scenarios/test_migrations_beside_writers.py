"""Migrations beside applications and a daemon: what no document shows has no effect, and the rest is written."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import psycopg
import pytest

from syncer.base.errors import AlteredError
from syncer.capture import progress
from syncer.documents import snapshot
from syncer.indexing import compose
from tests.faults.harness import require_holds
from tests.support.world import Daemon, World, wait_until
from tests.support.writers import at_work

TABLES = """
CREATE TYPE state AS ENUM ('raw', 'cut', 'done');
CREATE DOMAIN code AS text NOT NULL CHECK (VALUE <> '');
CREATE TABLE shelves (
    former int, id int PRIMARY KEY, parent_id int, name varchar(20), extra jsonb, code code DEFAULT 'c'
);
CREATE TABLE films (
    legacy int, id int PRIMARY KEY, shelf_id int, title varchar(30), price numeric(8, 2), state state, weight int,
    colour text DEFAULT 'red', shape text DEFAULT 'flat', meta json, stamp timestamptz DEFAULT now()
);
CREATE VIEW priced AS SELECT f.id AS film, f.price AS cost FROM films AS f;
CREATE FUNCTION worded(t text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT upper(t)';
INSERT INTO shelves (id, parent_id, name) SELECT g, nullif(g / 3, 0), 's' || g FROM generate_series(1, 12) AS g;
INSERT INTO films (id, shelf_id, title, price, state, weight)
SELECT g, 1 + g % 12, 't' || g, g, (ENUM_RANGE(NULL::state))[1 + g % 3], g FROM generate_series(1, 80) AS g
"""
SELECT = """
SELECT f.id AS _id, worded(f.title) AS title, p.cost, f.state, f.weight, f.colour, (
    WITH RECURSIVE up AS (
        SELECT s.id, s.parent_id, s.name FROM shelves AS s WHERE s.id = f.shelf_id
        UNION ALL SELECT s.id, s.parent_id, s.name FROM up AS u JOIN shelves AS s ON s.id = u.parent_id
    ) SELECT string_agg(up.name, '/' ORDER BY up.id) FROM up) AS path
FROM films AS f JOIN priced AS p ON p.film = f.id
"""
BELOW = """
WITH RECURSIVE down AS (
    SELECT c.id FROM %(rows)s AS c UNION SELECT s.id FROM down AS o JOIN shelves AS s ON s.parent_id = o.id
) SELECT f.id AS _id FROM films AS f JOIN down AS d ON d.id = f.shelf_id
"""
RETYPED = """
ALTER TYPE state RENAME TO state_old; CREATE TYPE state AS ENUM ('raw', 'cut', 'done', 'sold');
ALTER TABLE films ALTER state TYPE state USING state::text::state; DROP TYPE state_old
"""
UNSEEN = (
    "ALTER TABLE shelves ADD kind int",
    "ALTER TABLE shelves DROP former",
    "ALTER TABLE shelves DROP extra, ALTER name TYPE varchar(80)",
    "ALTER TABLE shelves ALTER code TYPE text; DROP DOMAIN code",
    "ALTER TABLE shelves ALTER name TYPE text",
    "ALTER TYPE state ADD VALUE 'lost' BEFORE 'done'",
    "ALTER TABLE films ALTER meta TYPE text USING meta::text, DROP legacy",
    RETYPED,
    "ALTER TABLE films RENAME price TO amount",
    "ALTER TABLE films ADD more numeric NOT NULL DEFAULT 1; ALTER TABLE films DROP stamp, DROP shape",
)
SEEN = {
    "label raw of public.state": "ALTER TYPE state RENAME VALUE 'raw' TO 'rough'; ALTER TYPE state ADD VALUE 'raw'",
    "films.weight was integer": "ALTER TABLE films ALTER weight TYPE text USING weight || ' kg'",
    "worded": "CREATE OR REPLACE FUNCTION worded(t text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT lower(t)'",
    "films.colour is another column": (
        "ALTER TABLE films RENAME colour TO was; ALTER TABLE films RENAME shape TO colour"
    ),
    "label cut of public.state": "ALTER TYPE state RENAME VALUE 'cut' TO 'sliced'",
}
"""Migrations, by what the reason of the suspension says of each."""
WRITES = (
    "UPDATE films SET title = 't' || {n} WHERE id = 1 + {n} % 80",
    "UPDATE films SET shelf_id = 1 + {n} % 12 WHERE id = 1 + ({n} * 7) % 80",
    "UPDATE films SET state = 'done' WHERE id = 1 + ({n} * 3) % 80",
    "UPDATE films SET colour = 'c' || {n} WHERE id = 1 + ({n} * 5) % 80",
    "UPDATE shelves SET name = 's' || {n} WHERE id = 1 + {n} % 12",
    "UPDATE shelves SET parent_id = CASE WHEN id > 3 THEN 1 + {n} % 3 END WHERE id = 1 + {n} % 12",
    "DELETE FROM films WHERE id = 1 + ({n} * 11) % 80",
    "INSERT INTO films (id, shelf_id, state) VALUES (1 + {n} % 80, 1 + {n} % 12, 'done') ON CONFLICT (id) DO NOTHING",
)


def write_until(stop: threading.Event, connection: psycopg.Connection[Any], dice: random.Random) -> None:
    """An application that names what is there before and after each migration; none of its writes may fail."""
    while not stop.is_set():
        connection.execute(dice.choice(WRITES).format(n=dice.randrange(1000)))
        connection.commit()
        stop.wait(0.01)


@pytest.fixture
def films(empty_world: World) -> World:
    """Films on nested shelves, by way of a view, a function, an enum and an affects query."""
    empty_world.sql(TABLES)
    empty_world.use()
    empty_world.define("film", SELECT, {"dynamic": True, "properties": {"weight": {"type": "keyword"}}}, shelves=BELOW)
    empty_world.documents = ("film",)
    empty_world.migrate()
    empty_world.apply()
    return empty_world


def planned(world: World) -> tuple[str, str | None]:
    """What plan says of the document."""
    (document,) = json.loads(world.syncer("plan", "--json").stdout)["documents"]
    return document["outcome"], document["reason"]


def wait_until_resumed(daemon: Daemon, words: str) -> None:
    """Return once the daemon has suspended a document for a reason with these words, and has resumed it since."""

    def is_resumed() -> bool:
        events = daemon.events()
        reasons = [at for at, logged in enumerate(events) if words in logged.get("reason", "")]
        return bool(reasons) and any(logged["event"] == "document.resumed" for logged in events[reasons[-1] :])

    wait_until(is_resumed, what=f"resumed after {words}", detail=daemon.log_file.read_text)


def migrate(world: World, migrations: tuple[str, ...]) -> None:
    """Each migration, as a tool does it, and what has been written since is followed."""
    for migration in migrations:
        with world.application() as connection:
            connection.execute("SET deadlock_timeout = '10s'")
            connection.execute(migration.encode())
        world.sql("UPDATE films SET title = 'at ' || clock_timestamp()::time WHERE id = (SELECT min(id) FROM films)")
        with world.connect() as connection:
            is_handled = partial(progress.is_handled, connection, progress.moment(connection))
            wait_until(is_handled, what=f"the daemon goes on after {migration}", detail=world.last_words)


@pytest.mark.parametrize(
    "migration",
    [
        SEEN["worded"],
        SEEN["worded"]
        .replace("LANGUAGE sql", "STRICT LANGUAGE plpgsql")
        .replace("SELECT lower(t)", "BEGIN RETURN t; END"),
        "ALTER FUNCTION worded(text) STRICT",
    ],
)
def test_a_function_that_changes_while_a_statement_is_prepared_is_noticed(films: World, migration: str) -> None:
    """It is not locked, and Postgres prints it as it is, not as it was in the snapshot that was compared."""

    @contextmanager
    def overtaken(*arguments: Any, **options: Any) -> Iterator[None]:
        with snapshot.reading(*arguments, **options):
            films.sql(migration)
            yield

    with (
        films.index() as index,
        films.writer(index) as writer,
        patch.object(compose, "reading", overtaken),
        pytest.raises(AlteredError, match=r"the function public\.worded"),
    ):
        writer.write(films.index_of("film"), ["1"])


def test_what_no_document_shows_has_no_effect(films: World) -> None:
    """Documents are followed through it, none is suspended or written again, and plan has nothing to do."""
    daemon = films.daemon()
    with at_work(films, [write_until, write_until]):
        migrate(films, UNSEEN)
    require_holds(films)
    assert daemon.events("document.suspended") == []
    assert planned(films) == ("nothing", None)
    films.prints("apply", "--yes")
    require_holds(films)
    assert films.syncer("plan").stdout.startswith("Nothing to do")
    assert daemon.stop() == 0


def test_what_documents_show_is_written_again_by_itself(films: World) -> None:
    """A label, a type, a function, a column under another's name: no apply is needed, and plan says what differs."""
    daemon = films.daemon()
    with at_work(films, [write_until, write_until]):
        for words, migration in SEEN.items():
            migrate(films, (migration,))
            wait_until_resumed(daemon, words)
    require_holds(films)
    assert planned(films) == ("nothing", None)
    assert daemon.stop() == 0
