"""A few documents are built without making a plan for them; the plan follows tables that grow."""

from __future__ import annotations

import pytest

from syncer.base.postgres import Connection, value
from syncer.indexing import compose
from syncer.indexing.compose import Composer
from tests.support.world import World
from tests.support.writers import fill

_PLANS = "SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE name LIKE 'syncer_%'"
_GROW = """
INSERT INTO posts (id, user_id, title, body)
SELECT 10000 + n, u.id, 'title', 'body' FROM generate_series(1, 20000) AS n, (SELECT min(id) AS id FROM users) AS u
"""


def test_a_plan_is_made_for_many_ids_only(world: World) -> None:
    """One id is read by the plan that serves any; for many, Postgres decides."""
    fill(world)
    with world.connect() as connection:
        composer = Composer(connection)
        for id_ in ("1", "2", "3"):
            assert composer.compose(world.index_of(), [id_]).compositions[0].source
        assert connection.execute(_PLANS).fetchall() == [(3, 0)]
        composer.compose(world.index_of(), [str(id_) for id_ in range(1, compose._FEW_IDS + 2)])
        assert connection.execute(_PLANS).fetchall() == [(3, 1)]


def test_the_plan_follows_a_table_that_grows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was planned for a small table is soon forgotten, though Postgres has not analysed the table again."""
    fill(world)
    world.sql("ALTER TABLE posts SET (autovacuum_enabled = off); ANALYZE posts")
    with world.connect() as connection:
        composer = Composer(connection)
        composer.compose(world.index_of(), ["1"])
        world.sql(_GROW)
        before = scans(connection)
        composer.compose(world.index_of(), ["1"])
        assert scans(connection) == before + 1
        monkeypatch.setattr(compose, "_REPLAN_SECONDS", 0)
        composer.compose(world.index_of(), ["1"])
        assert scans(connection) == before + 1


def scans(connection: Connection) -> int:
    """How often the table of posts was read as a whole."""
    connection.execute("SELECT pg_stat_force_next_flush()")
    return int(str(value(connection, "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'posts'")))
