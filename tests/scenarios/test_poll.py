"""What the poll, the metrics and the health say of components at work on real servers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr
from rich.console import Console
from structlog.testing import capture_logs

from syncer import daemon
from syncer.base import metrics, postgres
from syncer.base.settings import MetricsSettings, PostgresSettings
from syncer.cli.comparing import compared
from syncer.documents.registry import current
from syncer.elasticsearch.reader import Holdings
from syncer.monitoring import status
from syncer.monitoring.poll import Poller
from syncer.monitoring.status import IndexFault, Server
from syncer.verify.last_result import Verification
from tests.support.world import BLOG_SCHEMA, DEADLINE_SECONDS, World, running, wait_until

BLOG = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com');
INSERT INTO posts (id, user_id, title, body) VALUES (2, 1, 'Relationships', 'long');
"""
NOBODY = "127.0.0.1:1"
AWAY = PostgresSettings(dsn=SecretStr(f"postgresql://x@{NOBODY}/x"))


def scraped() -> dict[str, dict[tuple[str, ...], float]]:
    """What Prometheus reads: of each series its values, by those of its labels."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


@contextmanager
def surveying(world: World, **settings: Any) -> Iterator[Poller]:
    """A poll that turns only when the test says so."""
    made = daemon.poller(world.settings.model_copy(update=settings))
    try:
        yield made
    finally:
        made.close()


def test_what_waits_is_seen_where_it_waits(world: World) -> None:
    """In the outbox, then in the topic, by partition and with its age, then nowhere; the history has each reading."""
    world.sql(BLOG)
    with surveying(world) as poll, world.index() as index, world.relay() as relay, world.worker(index) as worker:
        first = poll.run_once()
        assert first.overview.stored is not None
        assert first.overview.stored.outbox_waiting == 2
        seen = scraped()
        assert seen["syncer_outbox_waiting_changes"] == {(): 2}
        assert 0 < seen["syncer_outbox_lag_seconds"][()] <= seen["syncer_lag_seconds"]["blogpost",] < 60
        assert seen["syncer_relay_leaders"] == {(): 0}
        assert seen["syncer_document_is_suspended"] == {("blogpost", world.index_of()): 0}
        assert seen["syncer_outbox_used_segments"] == {(): 1}
        relay.run_once()
        poll.run_once()
        seen = scraped()
        assert seen["syncer_outbox_waiting_changes"] == {(): 0}
        assert seen["syncer_relay_leaders"] == {(): 1}
        assert sum(seen["syncer_topic_waiting_changes"].values()) == 2
        wait_until(lambda: poll.run_once().overview.topic_lag_seconds > 0.1, what="what waits in the topic grows older")
        world.drain(relay, worker)
        world.handle(worker)
        wait_until(lambda: poll.run_once().overview.lag_seconds == 0, what="nothing waits")
        assert set(scraped()["syncer_topic_waiting_changes"].values()) == {0}
        lags = [one.lag_seconds for one in poll.history.last()]
        assert lags[0] == first.overview.lag_seconds > 0
        assert lags[-1] == 0


def test_servers_that_hang_do_not_hang_the_poll(world: World) -> None:
    """They are waited for no longer than that, not asked twice at once, and keep no daemon from ending."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as deaf:
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        hanging = {
            "postgres": PostgresSettings(dsn=SecretStr(f"postgresql://x@{address}/x")),
            "kafka": world.settings.kafka.model_copy(update={"bootstrap_servers": address}),
            "elasticsearch": world.settings.elasticsearch.model_copy(update={"url": f"http://{address}"}),
        }
        with surveying(world, **hanging) as poll:
            before = set(threading.enumerate())
            poll.patience_seconds = 0.3
            for _ in range(2):
                polled = poll.run_once()
                hanging_ones = [one for one in polled.overview.servers if "does not answer" in (one.error or "")]
                assert [one.server for one in hanging_ones] == [Server.POSTGRES, Server.KAFKA, Server.ELASTICSEARCH]
            asking = [one.name for one in set(threading.enumerate()) - before if one.name.startswith("ask-")]
            assert sorted(asking) == [f"ask-{one}" for one in sorted(Server)]
            poll.patience_seconds = 60
            with running(poll, seconds=30):
                wait_until(lambda: len(scraped()["syncer_poll_is_answered"]) == 3, what="it is at it")


@pytest.mark.parametrize("is_away", [True, False])
def test_an_answer_about_other_indices_is_none(
    empty_world: World, monkeypatch: pytest.MonkeyPatch, *, is_away: bool
) -> None:
    """Elasticsearch is slow, and was asked when Postgres was away, or knew of no document: no index is called gone."""
    world, begins = empty_world, threading.Event()
    world.sql(BLOG_SCHEMA.read_text() + BLOG)
    world.migrate()
    with surveying(world) as poll:
        connect, search = poll._connect, poll._elasticsearch._connect
        monkeypatch.setattr(
            poll._elasticsearch, "_connect", lambda: search() if begins.wait(DEADLINE_SECONDS) else None
        )
        poll.patience_seconds = 0.3
        if is_away:
            monkeypatch.setattr(poll, "_connect", lambda: postgres.connect(AWAY, name="poll"))
        poll.run_once()
        monkeypatch.setattr(poll, "_connect", connect)
        world.apply()
        world.backfill()
        poll.patience_seconds = 30
        begins.set()
        (document,) = poll.run_once().overview.documents
        assert (document.targets, document.faults) == ({world.index_of(): None}, {})
        (document,) = poll.run_once().overview.documents
        assert document.targets == {world.index_of(): 1}
    assert {one.written_per_second for one in poll.history.last()} == {None}


def test_an_index_of_which_a_shard_is_away_is_not_counted_in_part(world: World) -> None:
    """The others would be counted without a word: fewer documents, and all is well."""
    name = world.index_of()
    lonely = {"number_of_shards": 2, "number_of_replicas": 0, "index.routing.allocation.total_shards_per_node": 1}
    with world.elasticsearch() as client, world.connect() as connection:
        (made,) = client.indices.get(index=name, expand_wildcards="all").body.values()
        client.indices.delete(index=name)
        both = {"mappings": made["mappings"], "aliases": made["aliases"]}
        client.indices.create(index=name, settings=lonely, wait_for_active_shards=0, **both)
        health = partial(client.cluster.health, index=name)
        wait_until(lambda: health().body["active_primary_shards"] == 1, what="one of two shards is there")
        active = list(current(connection).values())
        held = status.ask_elasticsearch(Holdings(client), active)
        assert (held.counts, held.faults) == ({name: None}, {name: IndexFault.SHARDS_AWAY})


def test_too_much_lag_is_said_once_and_once_that_it_is_over(world: World) -> None:
    """However often it is looked at meanwhile."""
    world.sql(BLOG)
    strict = MetricsSettings(lag_seconds_max=0.001)
    with surveying(world, metrics=strict) as poll, world.index() as index, capture_logs() as logs:
        for _ in range(3):
            poll.run_once()
        with world.relay() as relay, world.worker(index) as worker:
            world.drain(relay, worker)
            world.handle(worker)
            wait_until(lambda: poll.run_once().overview.lag_seconds == 0, what="nothing waits")
    assert [one["event"] for one in logs if one["event"].startswith("lag.")] == ["lag.exceeded", "lag.recovered"]


def test_what_holds_the_outbox_back_is_seen(world: World) -> None:
    """A transaction that stays open is as old as it is; one that has ended is not seen."""
    with surveying(world) as poll:
        with world.application() as open_:
            open_.execute("INSERT INTO users (name, email) VALUES ('Jane', 'j@example.com')")
            poll.run_once()
            assert scraped()["syncer_postgres_oldest_transaction_seconds"][("open",)] > 0
        poll.run_once()
        assert scraped()["syncer_postgres_oldest_transaction_seconds"][("open",)] == 0


def test_the_last_verification_is_seen_by_who_did_not_run_it(world: World) -> None:
    """How many documents were left different, and when; a sample says nothing of all, and goes away with its index."""
    world.sql(BLOG)
    world.backfill()
    with surveying(world) as poll:
        poll.run_once()
        assert "syncer_verify_drifted_documents" not in scraped()
        with world.elasticsearch() as client:
            client.index(index=world.alias, id="77", document={"title": "nobody wrote this"}, refresh=True)
        verify(world, sample=5)
        poll.run_once()
        assert "syncer_verify_drifted_documents" not in scraped()
        world.sql("TRUNCATE syncer.outbox")  # nothing is on its way
        verify(world)
        poll.run_once()
        assert scraped()["syncer_verify_drifted_documents"] == {("blogpost",): 1}
        verify(world, repair=True)
        poll.run_once()
        assert scraped()["syncer_verify_drifted_documents"] == {("blogpost",): 0}
        (found,) = verifications(poll)
        assert (found.documents, found.repaired, found.is_complete) == (1, 1, True)
        world.sql("DELETE FROM syncer.document")
        assert verifications(poll) == ()


def verifications(poll: Poller) -> tuple[Verification, ...]:
    """What the poll knows of the last one."""
    stored = poll.run_once().overview.stored
    assert stored is not None
    return stored.verifications


def verify(world: World, **options: Any) -> None:
    """What ``syncer verify`` does."""
    with world.connect() as connection, world.elasticsearch() as client:
        parts = world.parts(connection, client)
        compared(parts, current(connection)["blogpost"], err=Console(quiet=True), settle_seconds=0, **options)
