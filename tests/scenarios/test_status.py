"""What the status, the metrics and the health say of components at work on real servers."""

from __future__ import annotations

import re
import socket
from functools import partial
from typing import Any

import pytest
from pydantic import SecretStr

from syncer.base import postgres
from syncer.base.settings import PostgresSettings
from syncer.capture.reader import LEADS
from syncer.monitoring.problems import problems
from syncer.monitoring.status import IndexFault, Reader, Status
from syncer.recovery import backlog
from tests.faults.harness import add_posts, following
from tests.support.world import World, wait_until


def read(world: World, **settings: Any) -> Status:
    """The status now."""
    reader = Reader(world.settings.model_copy(update=settings))
    try:
        return reader.read()
    finally:
        reader.close()


def test_what_waits_is_seen_where_it_waits(world: World) -> None:
    """In the outbox, then published, with its age, then nowhere."""
    add_posts(world, 1)

    def waiting() -> tuple[int, int]:
        stored = read(world).stored
        assert stored is not None
        return stored.outbox_waiting, stored.topic_waiting

    with world.relay() as relay:
        assert (waiting(), read(world).outbox_lag_seconds > 0) == ((2, 0), True)
        relay.run_once()
        assert waiting() == (0, 2)
        wait_until(lambda: read(world).topic_lag_seconds > 0.1, what="what is published grows older")
    with following(world) as follower:
        follower.handle()
        wait_until(lambda: read(world).lag_seconds == 0, what="nothing waits")


def test_a_server_that_hangs_does_not_hang_the_status(world: World) -> None:
    """It does not wait for the server's answer, and has what the other one says."""
    add_posts(world, 1)
    with socket.create_server(("127.0.0.1", 0), backlog=100) as deaf:  # accepts connections and never answers
        address = "{}:{}".format(*deaf.getsockname())
        postgres = PostgresSettings(dsn=SecretStr(f"postgresql://x@{address}/x"))
        elasticsearch = world.settings.elasticsearch.model_copy(update={"url": f"http://{address}"})
        for silent, server in (("postgres", postgres), ("elasticsearch", elasticsearch)):
            status = read(world, **{silent: server})
            assert status.silent == {silent}
            (error,) = [server.error for server in status.servers if server.error]
            assert error.endswith("has not answered")
            (problem, *_) = problems(status)
            assert re.search(r" has not answered for \d+ s\.", problem.message)
            assert problem.is_passing, "one late answer is no reason to restart a server"
            assert "estart" not in problem.action
            assert not any(server.hint.startswith("Start it") for server in status.servers)
        assert status.stored is not None
        assert status.stored.outbox_waiting == 2


def test_a_connection_that_was_lost_meanwhile_is_no_outage(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Postgres was restarted while nobody asked for the status: the next one is of now."""
    monkeypatch.setattr("syncer.monitoring.status.FRESH_SECONDS", 0)
    reader = Reader(world.settings)
    assert not reader.read().silent
    world.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'syncer status' AND datname = current_database()"
    )
    assert not reader.read().silent
    reader.close()


def test_an_index_of_which_a_shard_is_away_is_not_counted_in_part(world: World) -> None:
    """Else fewer documents would be shown, and all would be well."""
    name = world.index_of()
    lonely = {"number_of_shards": 2, "number_of_replicas": 0, "index.routing.allocation.total_shards_per_node": 1}
    with world.elasticsearch() as client:
        (index_state,) = client.indices.get(index=name, expand_wildcards="all").body.values()
        client.indices.delete(index=name)
        assert read(world).documents[0].faults == {name: IndexFault.GONE}
        both = {"mappings": index_state["mappings"], "aliases": index_state["aliases"]}
        client.indices.create(index=name, settings=lonely, wait_for_active_shards=0, **both)
        health = partial(client.cluster.health, index=name)
        wait_until(lambda: health().body["active_primary_shards"] == 1, what="one of two shards is there")
        (document,) = read(world).documents
        assert (document.targets, document.faults) == ({name: None}, {name: IndexFault.SHARDS_AWAY})
        client.indices.close(index=name, wait_for_active_shards=0)
        assert read(world).documents[0].faults == {name: IndexFault.CLOSED}


@pytest.mark.parametrize("bytes_max", [0, 1, 2**40])
def test_a_daemon_that_leads_says_so_while_its_guard_looks(world: World, bytes_max: int) -> None:
    """Rule: only the reader that leads gives the lead up; another one of the process that closes leaves it."""
    connect = partial(postgres.connect, world.settings.postgres, name="test")
    leader = backlog.reader(connect, bytes_max=2**40)
    assert leader.lead()
    assert not backlog.BacklogGuard(connect=connect, bytes_max=bytes_max).run_once()
    assert LEADS.is_set()
    leader.close()
    assert not LEADS.is_set()
