"""Tables of a database that is a subscriber of logical replication are captured like any other."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr

from syncer.base import migrations, postgres
from syncer.base.postgres import Connection
from syncer.base.settings import PostgresSettings
from syncer.capture import install
from syncer.capture.triggers import Capture
from tests.support.world import postgres_server, wait_until

TABLES = "CREATE TABLE posts (id int PRIMARY KEY, title text); CREATE TABLE users (id int PRIMARY KEY, title text)"
POSTS, USERS = (
    Capture(
        relation=f"public.{one}",
        watched=frozenset({"id", "title"}),
        routing=frozenset({"id"}),
        aggregate=f"public.{one}",
        aggregate_column="id",
    )
    for one in ("posts", "users")
)
WRITES = """
INSERT INTO {0} VALUES (1, 'a'), (2, 'b'); UPDATE {0} SET title = 'c' WHERE id = 1; DELETE FROM {0} WHERE id = 2
"""
WRITTEN = [
    ("I", None, {"id": "1"}),
    ("I", None, {"id": "2"}),
    ("U", {"id": "1"}, {"id": "1"}),
    ("D", {"id": "2"}, None),
]


@pytest.fixture
def publisher() -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A database that publishes all of its tables; another one of the same server is to follow it."""
    with (
        postgres_server({"wal_level": "logical"}) as server,
        psycopg.connect(server.address, autocommit=True) as connection,
    ):
        connection.execute("CREATE DATABASE subscriber")
        connection.execute(TABLES)
        connection.execute("CREATE PUBLICATION everything FOR ALL TABLES")
        connection.execute("SELECT pg_create_logical_replication_slot('everything', 'pgoutput')")
        yield connection


def changes(connection: Connection) -> list[tuple[object, ...]]:
    """What the outbox holds, as it came."""
    return connection.execute("SELECT operation::text, old, new FROM syncer.outbox ORDER BY id").fetchall()


def test_what_a_subscription_brings_is_captured(publisher: psycopg.Connection[tuple[object, ...]]) -> None:
    """Each row that the worker writes is in the outbox, whether the triggers or the subscription came first."""
    address = publisher.info.dsn
    settings = PostgresSettings(dsn=SecretStr(make_conninfo(address, dbname="subscriber")))
    with psycopg.connect(settings.dsn.get_secret_value(), autocommit=True) as connection:
        connection.execute(TABLES)
    with postgres.connect(settings, name="test") as connection:
        migrations.migrate(connection)
        install.install(connection, USERS)
        connection.execute(
            f"CREATE SUBSCRIPTION everything CONNECTION '{address}' PUBLICATION everything "
            "WITH (create_slot = false, copy_data = false)"
        )
        install.install(connection, POSTS)
        for one in (POSTS, USERS):
            assert install.is_installed(connection, one.relation)
            assert install.is_current(connection, one)
            publisher.execute(WRITES.format(one.relation).encode())
            wait_until(lambda: len(changes(connection)) == len(WRITTEN), what="the worker has applied all")
            assert changes(connection) == WRITTEN
            connection.execute("TRUNCATE syncer.outbox")
            publisher.execute(f"TRUNCATE {one.relation}")
            wait_until(lambda: changes(connection) == [("T", None, None)], what="and the TRUNCATE")
            connection.execute("TRUNCATE syncer.outbox")
