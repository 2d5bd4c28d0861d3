"""Three brokers, of which some are killed: what was acknowledged is not lost, or its loss is noticed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.cimpl import NewTopic

from syncer.kafka import topic
from syncer.relay.loop import Relay
from syncer.sandbox import Endpoints, Sandbox
from syncer.sandbox.kafka import KafkaServer
from tests.faults.following import admin, following, handle, publish, refreshes
from tests.faults.test_leadership import keep_the_lead
from tests.faults.writers import fill, writing
from tests.harness import DEADLINE_SECONDS, World, made, wait_until

pytestmark = pytest.mark.thorough  # it takes half a minute to start three brokers

REPLICAS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    # How soon a broker that is dead is given up.
    "replica.lag.time.max.ms": "3000",
}
MANY = "DO $$ BEGIN FOR i IN 1..400 LOOP UPDATE posts SET title = 'n' || i WHERE id = 1; END LOOP; END $$"


@pytest.fixture(scope="module")
def brokers() -> Iterator[list[KafkaServer]]:
    """Three, of which the first is the controller and must live."""
    with tempfile.TemporaryDirectory(prefix="syncer-tests-") as folder:
        Path(folder).chmod(0o755)  # for root's servers, which run as nobody
        servers = [Sandbox(Path(folder) / f"{number}").kafka for number in (1, 2, 3)]
        try:
            for number, server in enumerate(servers, 1):
                server.settings |= REPLICAS
                if number > 1:
                    server.join(servers[0], node=number)
                server.start()
            yield servers
        finally:
            for server in reversed(servers):
                server.stop()


@pytest.fixture
def bare(sandbox: Sandbox, endpoints: Endpoints, brokers: list[KafkaServer], tmp_path: Path) -> Iterator[World]:
    """A world on these brokers, with nothing in it, and no topic."""
    for broker in brokers:
        broker.start()
    there = replace(endpoints, kafka_bootstrap_servers=",".join(one.address for one in brokers))
    with made(World(sandbox=sandbox, endpoints=there, folder=tmp_path)) as world:
        wait_until(lambda: len(admin(world).list_topics(timeout=60).brokers) == 3, what="all three are there")
        yield world


def leaders(world: World) -> dict[int, int]:
    """By partition, the broker that leads it; nothing, while nobody says."""
    name = world.settings.kafka.topic
    with suppress(KafkaException):
        found = admin(world).list_topics(name, timeout=10).topics[name]
        return {one.id: one.leader for one in found.partitions.values()}
    return {}


def test_brokers_are_killed_beside_writers(bare: World, brokers: list[KafkaServer]) -> None:
    """With one of three the daemon goes on; without two it waits, says so once, and goes on when they are back."""
    bare.set_up()
    fill(bare)
    daemon = bare.daemon(environment={"SYNCER_KAFKA_PROPERTIES": json.dumps({"message.timeout.ms": 3000})})
    bare.wait_until_level()
    with writing(bare):
        brokers[1].kill()
        wait_until(lambda: bool(leaders(bare)) and 2 not in leaders(bare).values(), what="another one leads")
        brokers[2].kill()
        daemon.wait_for("component.retried")
        brokers[1].start()
        brokers[2].start()
        daemon.wait_for("component.recovered")
    bare.wait_until_level(seconds=2 * DEADLINE_SECONDS)
    assert bare.syncer("verify").returncode == 0
    assert refreshes(bare) == 0
    assert len([one for one in daemon.events() if one["event"] == "component.retried"]) < 10
    assert daemon.stop() == 0


def test_the_lead_does_not_rotate_while_brokers_are_few(bare: World, brokers: list[KafkaServer]) -> None:
    """Kafka answers every question, and takes no record."""

    @contextmanager
    def few(_: World) -> Iterator[None]:
        for broker in brokers[1:]:
            broker.kill()
        try:
            yield
        finally:
            for broker in brokers[1:]:
                broker.start()

    bare.set_up()
    keep_the_lead(bare, few)


def test_a_silent_broker_is_no_loss(bare: World, brokers: list[KafkaServer], monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks gets an error, and asks again; when the broker is back, so is the answer."""
    client = admin(bare)
    new = NewTopic(bare.settings.kafka.topic, num_partitions=2, replica_assignment=[[1], [2]])
    client.create_topics([new])[bare.settings.kafka.topic].result()
    wait_until(lambda: leaders(bare) == {0: 1, 1: 2}, what="each of two brokers leads")
    observer = topic.Observer(bare.settings.kafka)
    wait_until(lambda: len(asked(observer)) == 2, what="they say so themselves")
    before = observer.extents()
    brokers[1].pause()
    try:
        with monkeypatch.context() as impatient:
            impatient.setattr(topic, "ANSWER_SECONDS", 2)
            with pytest.raises(KafkaException):
                observer.extents([0, 1])
    finally:
        brokers[1].resume()
    wait_until(lambda: asked(observer) == before, what="it answers again")


def asked(observer: topic.Observer) -> dict[int, topic.Extent]:
    """What the partitions have; nothing, while a broker does not say."""
    with suppress(KafkaException):
        return observer.extents([0, 1])
    return {}


def test_an_unclean_election_is_noticed(bare: World, brokers: list[KafkaServer]) -> None:
    """New changes are published behind the offsets of the lost ones, where the worker continues."""
    name = bare.settings.kafka.topic
    client = admin(bare)
    loose = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    client.create_topics([NewTopic(name, num_partitions=1, replica_assignment=[[2, 3]], config=loose)])[name].result()
    bare.set_up()
    fill(bare)
    handle(bare)
    brokers[2].kill()
    bare.sql("UPDATE posts SET title = 'only broker 2 has it'")
    bare.sql(MANY)
    handle(bare)
    brokers[1].kill()
    brokers[2].start()
    wait_until(lambda: leaders(bare) == {0: 3}, what="who lacks it leads")
    with bare.relay() as relay, bare.index() as index:  # it notices, and its job is over before the rest comes
        wait_until(lambda: _leads(relay), what="the relay leads", seconds=2 * DEADLINE_SECONDS)
        bare.refresh(index)
    assert refreshes(bare) == 1
    publish(bare, "UPDATE posts SET title = 'below what was handled' WHERE id = 2", MANY, MANY)
    (lag,) = topic.Observer(bare.settings.kafka).lag()
    assert lag.committed < lag.end - 800
    with following(bare):
        bare.wait_until_level()
    assert refreshes(bare) == 1


def _leads(relay: Relay) -> bool:
    try:
        return relay.run_once().is_leader
    except KafkaException:
        relay.close()
        return False
