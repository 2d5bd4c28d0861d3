"""The doctor sees what is broken in Kafka, and its fix mends it, by Kafka's own tool."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from syncer.monitoring.doctor import Severity
from syncer.sandbox import Endpoints, Sandbox
from tests.support.doctor import fix, is_well, look
from tests.support.in_process import admin
from tests.support.world import World, made, wait_until

CONSIDER, WRONG = Severity.CONSIDER, Severity.WRONG


@pytest.fixture(scope="module")
def world(sandbox: Sandbox, endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world; each test leaves it as it was."""
    with made(World(sandbox=sandbox, endpoints=endpoints, folder=tmp_path_factory.mktemp("doctor"))) as world:
        world.set_up()
        yield world


def configure(world: World, name: str, value: str) -> None:
    """Give the topic a setting, and wait until the broker has it."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, world.settings.kafka.topic, incremental_configs=[entry])
    client = admin(world)  # answers only as long as it lives
    client.incremental_alter_configs([resource])[resource].result()
    asked = ConfigResource(ResourceType.TOPIC, world.settings.kafka.topic)
    wait_until(lambda: client.describe_configs([asked])[asked].result()[name].value == value, what=f"{name} is {value}")


@pytest.mark.parametrize(
    ("id_", "name", "value", "severity"),
    [
        ("kafka.cleanup_policy", "cleanup.policy", "compact", WRONG),
        ("kafka.unclean_election", "unclean.leader.election.enable", "true", WRONG),
        ("kafka.retention", "retention.ms", "60000", CONSIDER),
        ("kafka.retention", "retention.bytes", "1000000", CONSIDER),
    ],
)
def test_a_setting_that_breaks_a_guarantee_is_seen_and_fixed(
    world: World, id_: str, name: str, value: str, severity: Severity
) -> None:
    """It is well, it is set wrong and seen, the fix is pasted, and it is well again."""
    assert is_well(look(world, id_))
    configure(world, name, value)
    (found,) = look(world, id_)
    assert found.severity is severity
    fix(world, found)
    wait_until(lambda: is_well(look(world, id_)), what="the broker has the setting")


def test_a_missing_topic_is_seen(world: World) -> None:
    """Kafka answers, but cannot take changes."""
    assert is_well(look(world, "kafka.reach"))
    elsewhere = world.settings.kafka.model_copy(update={"topic": f"{world.name}.missing"})
    settings = world.settings.model_copy(update={"kafka": elsewhere})
    (found,) = look(world, "kafka.reach", settings=settings)
    assert found.severity is WRONG
    assert [one.severity for one in look(world, "kafka.cleanup_policy", settings=settings)] == [Severity.UNSEEN]
