"""The doctor sees what is broken in Kafka and Elasticsearch, and its fix mends it, by their own tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from elasticsearch import Elasticsearch

from syncer.elasticsearch.indices import seconds
from syncer.monitoring.deployment import Deployment
from syncer.monitoring.doctor import CHECKS, Severity
from syncer.sandbox import Endpoints, Sandbox
from tests.support.doctor import fix, is_well, look
from tests.support.in_process import admin
from tests.support.world import World, made, wait_until

CONSIDER, WRONG = Severity.CONSIDER, Severity.WRONG
Break = Callable[[Elasticsearch, World], object]


@pytest.fixture(scope="module")
def world(sandbox: Sandbox, endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world with a document in it; each test leaves it as it was."""
    with made(World(sandbox=sandbox, endpoints=endpoints, folder=tmp_path_factory.mktemp("doctor"))) as world:
        world.set_up()
        world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John', 'j@example.com')")
        world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (1, 1, 'title', 'body')")
        world.backfill()
        yield world


def topic(name: str, value: str) -> Break:
    """Change a setting of the topic, and wait until the broker has it."""

    def configure(_: Elasticsearch, world: World) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = partial(ConfigResource, ResourceType.TOPIC, world.settings.kafka.topic)
        client, changed, asked = admin(world), resource(incremental_configs=[entry]), resource()
        client.incremental_alter_configs([changed])[changed].result()
        wait_until(lambda: client.describe_configs([asked])[asked].result()[name].value == value, what=f"{name} is set")

    return configure


def index(name: str, value: object) -> Break:
    """Change a setting of the index."""
    return lambda client, world: client.indices.put_settings(index=world.index_of(), settings={name: value})


def pipeline(client: Elasticsearch, world: World) -> None:
    """Add a pipeline that changes what is written."""
    client.ingest.put_pipeline(id="doctor-stamp", processors=[])
    client.indices.put_settings(index=world.index_of(), settings={"index.final_pipeline": "doctor-stamp"})


def orphan(name: str = "", *aliases: str) -> Break:
    """Make an index of this installation that Postgres does not know."""

    def make(client: Elasticsearch, world: World) -> None:
        installation = str(world.sql("SELECT installation FROM syncer.cluster_identity")[0][0])
        mark: dict[str, Any] = {"_meta": {"syncer": {"document": "page", "installation": installation}}}
        made_index = f"{world.alias}{name}-000099"
        named: dict[str, dict[str, object]] = {a.format(alias=world.alias, index=made_index): {} for a in aliases}
        client.indices.create(index=made_index, mappings=mark, aliases=named)

    return make


def forget_epoch(client: Elasticsearch, world: World) -> None:
    """Delete the record of the epoch."""
    ((installation, epoch),) = world.sql("SELECT installation, epoch FROM syncer.cluster_identity")
    client.delete(index="syncer-state", id=f"epoch-{installation}", version=epoch, version_type="external_gte")


def override_guard(client: Elasticsearch, world: World) -> None:
    """Add an index template that takes precedence over syncer's."""
    pattern = f"{world.alias}-*-write"
    client.indices.put_index_template(
        name=f"doctor-{world.name}", index_patterns=[pattern], allow_auto_create=True, priority=900
    )


@pytest.mark.parametrize(
    ("id_", "breaks", "part", "severity"),
    [
        ("kafka.cleanup_policy", topic("cleanup.policy", "compact"), "compact", WRONG),
        ("kafka.unclean_election", topic("unclean.leader.election.enable", "true"), "true", WRONG),
        ("kafka.retention", topic("retention.ms", "60000"), "60000", CONSIDER),
        ("kafka.retention", topic("retention.bytes", "1000000"), "1000000", CONSIDER),
        ("elasticsearch.gc_deletes", index("index.gc_deletes", "59m"), "is 59m", WRONG),
        ("elasticsearch.gc_deletes", index("index.gc_deletes", None), "is 60s", WRONG),
        ("elasticsearch.durability", index("index.translog.durability", "async"), "async", WRONG),
        ("elasticsearch.refresh", index("index.refresh_interval", "-1"), "-1", WRONG),
        ("elasticsearch.pipelines", pipeline, "doctor-stamp", WRONG),
        ("elasticsearch.guard", override_guard, "doctor-", WRONG),
        ("elasticsearch.orphans", orphan(), "made for page", CONSIDER),
        ("elasticsearch.orphans", orphan("x", "{index}-syncer-write"), "x-000099, made for page", CONSIDER),
        ("elasticsearch.orphans", orphan("y", "{alias}y", "{index}-syncer-write"), "y find blog-", WRONG),
        ("elasticsearch.epoch", forget_epoch, "recorded none", WRONG),
    ],
)
def test_what_is_broken_is_seen_and_fixed(world: World, id_: str, breaks: Break, part: str, severity: Severity) -> None:
    """It is well, it is broken and seen, the fix is pasted, and it is well again."""
    with world.elasticsearch() as client:
        assert is_well(look(world, id_))
        try:
            breaks(client, world)
            (found,) = look(world, id_)
            assert (found.severity, part in found.found) == (severity, True)
            fix(world, found)
            wait_until(lambda: is_well(look(world, id_)), what="it is well again", detail=lambda: str(look(world, id_)))
        finally:
            client.options(ignore_status=404).indices.delete_index_template(name=f"doctor-{world.name}")


def test_a_missing_topic_is_seen(world: World) -> None:
    """Kafka answers, but cannot take changes."""
    elsewhere = world.settings.kafka.model_copy(update={"topic": f"{world.name}.missing"})
    settings = world.settings.model_copy(update={"kafka": elsewhere})
    (found,) = look(world, "kafka.reach", settings=settings)
    assert found.severity is WRONG
    (found,) = look(world, "kafka.cleanup_policy", settings=settings)
    assert found.severity is Severity.UNSEEN


def test_a_disk_that_was_restored_is_seen_and_fixed(world: World) -> None:
    """Elasticsearch has recorded a greater epoch than that of a database that believes it is the same."""
    ((installation, epoch),) = world.sql("SELECT installation, epoch FROM syncer.cluster_identity")
    assert is_well(look(world, "elasticsearch.epoch"))
    with world.elasticsearch() as client:
        client.index(index="syncer-state", id=f"epoch-{installation}", document={"epoch": epoch + 4}, refresh=True)
    (found,) = look(world, "elasticsearch.epoch")
    assert found.severity is WRONG
    fix(world, found)
    world.backfill()
    assert world.sql("SELECT epoch FROM syncer.cluster_identity") == [(epoch + 5,)]
    assert is_well(look(world, "elasticsearch.epoch"))


def test_a_lifecycle_policy_is_judged_by_the_setting_that_names_it(world: World) -> None:
    """The sandbox's Elasticsearch has no lifecycle policies: their setting is added to its answer."""
    (check,) = [check for check in CHECKS if check.id == "elasticsearch.lifecycle"]
    with Deployment(world.settings, world.config) as deployment:
        assert list(check.ask(deployment)) == []
        ((_, settings),) = deployment.indices
        settings["index.lifecycle.name"] = "30-days"
        (found,) = check.ask(deployment)
    assert found.fix.endswith("""-d '{"index.lifecycle.name": null}'""")
    assert [seconds(text) for text in ("3600s", "1h", "60m", "3600000ms", "-1", "0s")] == [3600] * 4 + [0, 0]
