"""The syncer schema is damaged, emptied or dropped by others: applications go on, and each state has a way out."""

from __future__ import annotations

import random
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from syncer.base import migrations
from syncer.base.errors import SourceError
from tests.faults.harness import add_posts, require_holds
from tests.support.world import DEADLINE_SECONDS, World, wait_until
from tests.support.writers import Work, at_work

WRITERS = 3


def editing(counts: list[int], number: int) -> Work:
    """An application that edits its own post, one transaction after the other; an error fails the test."""

    def work(stop: threading.Event, connection: psycopg.Connection[Any], _: random.Random) -> None:
        connection.autocommit = True
        while not stop.is_set():
            connection.execute("UPDATE posts SET title = %s WHERE id = %s", (f"edit {counts[number]}", number + 1))
            counts[number] += 1

    return work


def under_writers(world: World, statement: str) -> None:
    """Run a statement while applications write, until each has written after it as well.

    A session that also wants the lock of a table that is written gives up itself; then it goes on once they are done.
    """
    is_done = False
    counts = [0] * WRITERS
    with at_work(world, [editing(counts, number) for number in range(WRITERS)]):
        wait_until(lambda: min(counts) > 10, what="all of them write")
        with psycopg.connect(world.dsn, autocommit=True) as connection, suppress(psycopg.errors.DeadlockDetected):
            connection.execute(statement.encode())
            is_done = True
        before = list(counts)
        wait_until(lambda: all(now > then + 10 for now, then in zip(counts, before, strict=True)), what="they write on")
    if not is_done:
        world.sql(statement)


def state(world: World) -> str:
    """What every command says of the schema; empty if it is current."""
    with world.connect() as connection:
        try:
            migrations.require_current(connection)
        except SourceError as error:
            return error.message
    return ""


def start_over(world: World, *migrate: str) -> None:
    """The way out that the messages name, while searches go on finding every document."""
    ended = world.syncer("migrate", *migrate)
    assert ended.returncode == 0, ended.stderr
    refused = world.syncer("apply", "--yes")
    assert refused.returncode == 1
    assert "syncer apply --take-over blogpost" in refused.stdout + refused.stderr
    counts: list[int] = []
    done = threading.Event()

    def search(stop: threading.Event, _: object, __: object) -> None:
        with world.elasticsearch() as client:
            while not (stop.is_set() and done.is_set()):
                counts.append(client.count(index=world.alias)["count"])
                stop.wait(0.05)

    with at_work(world, [search]):
        applied = world.syncer("apply", "--yes", "--take-over", "blogpost")
        done.set()
    assert applied.returncode == 0, applied.stdout + applied.stderr
    assert set(counts) == {20}
    with world.elasticsearch() as client:
        assert len(client.indices.get(index=f"{world.alias}*")) == 1


@pytest.fixture
def filled(world: World) -> World:
    """The blog with twenty posts in its index."""
    add_posts(world, 20)
    world.backfill()
    return world


BROKEN = {
    "the outbox": ("DROP TABLE syncer.outbox CASCADE", "table syncer.outbox"),
    "the segment in use": ("DROP TABLE syncer.outbox_0", "table syncer.outbox_0"),
    "the sequence of segments": ("DROP SEQUENCE syncer.outbox_segment", "sequence syncer.outbox_segment"),
    "a function of the triggers": ("DROP FUNCTION syncer.text_of", "function syncer.text_of"),
    "the identity": ("DROP TABLE syncer.cluster_identity", "table syncer.cluster_identity"),
    "the row of the identity": ("TRUNCATE syncer.cluster_identity", "the row of table syncer.cluster_identity"),
    "the record of migrations": ("DROP TABLE syncer.migration", "table syncer.migration"),
    "its rows": ("TRUNCATE syncer.migration", "the rows of table syncer.migration"),
    "a view": ("DROP VIEW syncer.handled", "view syncer.handled"),
    "what a restore makes last": ("DROP MATERIALIZED VIEW syncer.restored", "materialized view syncer.restored"),
    "a column": ("ALTER TABLE syncer.job DROP COLUMN occasion", "column syncer.job.occasion"),
}


@pytest.mark.parametrize("damage", BROKEN)
def test_a_broken_schema_stops_no_application_and_is_named(filled: World, damage: str) -> None:
    """Whatever is dropped of the schema under writers, no write fails; every command names what is missing."""
    statement, missing = BROKEN[damage]
    under_writers(filled, statement)
    assert f"broken: it lacks {missing}" in state(filled)
    for command in ("migrate", "status", "plan", "run"):
        ended = filled.syncer(command)
        assert ended.returncode == 1, command
        assert missing in ended.stdout + ended.stderr, command
        assert "syncer migrate --anew && syncer apply" in " ".join((ended.stdout + ended.stderr).split()), command
    doctor = filled.syncer("doctor")
    assert missing in doctor.stdout


def test_a_broken_schema_is_made_anew_without_a_gap(filled: World) -> None:
    """Started over beside a daemon and writers, every document equals its SELECT again, and searches saw no gap."""
    daemon = filled.daemon()
    under_writers(filled, "DROP TABLE syncer.outbox CASCADE")
    daemon.exit_code()
    under_writers(filled, "DROP FUNCTION syncer.token")
    start_over(filled, "--anew", "--yes")
    filled.daemon()
    add_posts(filled, 0)
    filled.sql("UPDATE posts SET title = 'after' WHERE id < 5")
    require_holds(filled)


def test_a_schema_that_is_dropped_is_none(filled: World) -> None:
    """DROP SCHEMA: no write fails, though it may have to wait for a pause of the writers; the index is taken over."""
    under_writers(filled, "DROP SCHEMA syncer CASCADE")
    assert state(filled) == "The database has no syncer schema"
    filled.sql("UPDATE posts SET title = 'not captured' WHERE id = 7")
    start_over(filled)
    with filled.connect() as connection:
        assert migrations.migrate(connection) == []


@pytest.mark.parametrize("how", ["truncated", "dumped without rows"])
def test_an_emptied_schema_is_made_anew_by_migrate(filled: World, how: str, tmp_path: Path) -> None:
    """Without any row, the schema is *emptied*: that is what every command says, and what `migrate` heals."""
    if how == "truncated":
        tables = filled.sql("SELECT format('syncer.%I', tablename) FROM pg_tables WHERE schemaname = 'syncer'")
        under_writers(filled, f"TRUNCATE {', '.join(table for (table,) in tables)} CASCADE")
    else:
        bin_folder = filled.sandbox.postgres.bin_folder
        rows = filled.sql("SELECT id, user_id, title, body FROM posts")
        dump = tmp_path / "definitions.sql"
        subprocess.run([bin_folder / "pg_dump", "--schema-only", "-f", dump, filled.dsn], check=True)
        filled.sql("DROP SCHEMA syncer CASCADE; DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        subprocess.run([bin_folder / "psql", "-q", "-f", dump, filled.dsn], check=True, capture_output=True)
        filled.sql("INSERT INTO users (id, name, email) VALUES (1, 'John', '')")
        for row in rows:
            filled.sql("INSERT INTO posts (id, user_id, title, body) VALUES (%s, %s, %s, %s)", *row)
    assert "has no rows" in state(filled)
    for command in ("status", "apply", "run"):
        ended = filled.syncer(command)
        assert "has no rows" in ended.stdout + ended.stderr, command
    assert "has no rows" in filled.syncer("doctor").stdout
    start_over(filled)
    filled.daemon()
    filled.sql("UPDATE posts SET title = 'after' WHERE id < 5")
    require_holds(filled)


def test_a_migration_waits_for_nobody_with_a_lock(filled: World) -> None:
    """Behind a transaction that wrote once, no writer waits for `migrate`, which names it and gives up in time."""
    with filled.application() as holder, filled.connect() as connection:
        holder.execute("UPDATE posts SET title = 'open' WHERE id = 20")
        pid = holder.info.backend_pid
        waiting: list[str] = []
        under_writers(filled, "SELECT 1")
        with pytest.raises(SourceError, match=rf"syncer schema is in use.*process {pid} "):
            migrations.migrate(connection, anew=True, timeout_seconds=0, waiting=waiting.append)
        holder.rollback()
        assert migrations.migrate(connection, anew=True, timeout_seconds=DEADLINE_SECONDS) != []
