"""Between syncer and Postgres is a pooler of connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import SecretStr

from syncer.base import postgres
from syncer.base.errors import SourceError
from syncer.base.settings import PostgresSettings
from tests.support.pooler import Mode, pooled
from tests.support.world import World


@contextmanager
def behind(world: World, mode: Mode) -> Iterator[str]:
    """Where the world's database is to be had through a pooler."""
    server = conninfo_to_dict(world.dsn)
    with pooled(str(server["host"]), int(str(server["port"])), mode) as port:
        yield make_conninfo(world.dsn, host="127.0.0.1", port=str(port))


def settings_of(dsn: str) -> PostgresSettings:
    """The settings that name it."""
    return PostgresSettings(dsn=SecretStr(dsn))


def test_a_pooler_that_shares_sessions_is_refused(empty_world: World) -> None:
    """With what to do, however many sessions it holds; and nothing is set in a session that another client gets."""
    with behind(empty_world, Mode.TRANSACTION) as dsn:
        with psycopg.connect(dsn) as one, psycopg.connect(dsn) as other:  # it is in use by applications
            one.execute("SELECT 1")
            other.execute("SELECT 1")
        for _ in range(3):
            with pytest.raises(SourceError, match="behind a pooler") as refused:
                postgres.connect(settings_of(dsn), name="test").close()
            assert "pool_mode = session" in refused.value.hint
        with psycopg.connect(dsn) as application:
            assert application.execute("SELECT current_setting('search_path')").fetchone() == ('"$user", public',)


def test_no_command_works_behind_a_pooler_that_shares_sessions(world: World) -> None:
    """Each ends at once, and says why; doctor says it among all else."""
    with behind(world, Mode.TRANSACTION) as dsn:
        there = {"SYNCER_POSTGRES_DSN": dsn}
        for command in (("apply", "--yes"), ("run",)):
            ended = world.syncer(*command, environment=there)
            assert ended.returncode == 1, (command, ended.stdout, ended.stderr)
            assert "behind a pooler that shares sessions" in ended.stdout + ended.stderr, (command, ended)
        said = world.syncer("doctor", environment=there)
        assert said.returncode == 1
        assert "behind a pooler that shares sessions" in said.stdout


def test_a_pooler_by_session_is_as_good_as_the_server(world: World) -> None:
    """Sessions are set up in full, one after the other; the daemon and a command do all they do."""
    with behind(world, Mode.SESSION) as dsn:
        for _ in range(2):
            with postgres.connect(settings_of(dsn), name="test") as connection:
                for name, setting in (
                    ("search_path", "pg_catalog, pg_temp"),
                    ("TimeZone", "UTC"),
                    ("row_security", "off"),
                ):
                    assert postgres.value(connection, "SELECT current_setting($1)", (name,)) == setting
        there = {"SYNCER_POSTGRES_DSN": dsn}
        daemon = world.daemon(environment=there)
        world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com')")
        world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (2, 1, 'title', 'body')")
        world.wait_until_level()
        verified = world.syncer("verify", environment=there)
        assert verified.returncode == 0, verified.stdout + verified.stderr
        assert daemon.stop() == 0
