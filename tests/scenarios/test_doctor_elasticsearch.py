"""The doctor sees what is broken in Elasticsearch, and its fix mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from syncer.elasticsearch.indices import seconds
from syncer.monitoring.deployment import Deployment
from syncer.monitoring.doctor import CHECKS, Severity
from syncer.sandbox import Endpoints, Sandbox
from tests.support.doctor import fix, is_well, look
from tests.support.world import World, made

CONSIDER, WRONG = Severity.CONSIDER, Severity.WRONG
PASSWORD = "a password of this test"  # noqa: S105 - of a user that lives as long as one test
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


@dataclass(frozen=True, kw_only=True)
class Case:
    """Something that is broken.

    Args:
        id: The check that sees it.
        breaks: What breaks it.
        says: What the finding names.
        severity: How bad it is.
    """

    id: str
    breaks: Break
    says: str
    severity: Severity = WRONG


def put(name: str, value: object) -> Break:
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
        index = f"{world.alias}{name}-000099"
        named: dict[str, dict[str, object]] = {alias.format(alias=world.alias, index=index): {} for alias in aliases}
        client.indices.create(index=index, mappings=mark, aliases=named)

    return make


def forget_epoch(client: Elasticsearch, world: World) -> None:
    """Delete the record of the epoch."""
    ((installation, epoch),) = world.sql("SELECT installation, epoch FROM syncer.cluster_identity")
    client.delete(index="syncer-state", id=f"epoch-{installation}", version=epoch, version_type="external_gte")


def override_guard(client: Elasticsearch, world: World) -> None:
    """Add an index template that takes precedence over syncer's."""
    client.indices.put_index_template(
        name=f"doctor-{world.name}", index_patterns=[f"{world.alias}-*-write"], allow_auto_create=True, priority=900
    )


CASES = [
    Case(id="elasticsearch.gc_deletes", breaks=put("index.gc_deletes", "59m"), says="is 59m"),
    Case(id="elasticsearch.gc_deletes", breaks=put("index.gc_deletes", None), says="is 60s"),
    Case(id="elasticsearch.durability", breaks=put("index.translog.durability", "async"), says="async"),
    Case(id="elasticsearch.refresh", breaks=put("index.refresh_interval", "-1"), says="-1"),
    Case(id="elasticsearch.pipelines", breaks=pipeline, says="doctor-stamp"),
    Case(id="elasticsearch.guard", breaks=override_guard, says="doctor-"),
    Case(id="elasticsearch.orphans", breaks=orphan(), says="made for page", severity=CONSIDER),
    Case(
        id="elasticsearch.orphans",
        breaks=orphan("x", "{index}-syncer-write"),
        says="x-000099, made for page",
        severity=CONSIDER,
    ),
    Case(id="elasticsearch.orphans", breaks=orphan("y", "{alias}y", "{index}-syncer-write"), says="y find blog-"),
    Case(id="elasticsearch.epoch", breaks=forget_epoch, says="recorded none"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}-{case.says}")
def test_what_is_broken_is_seen_and_fixed(world: World, case: Case) -> None:
    """It is well, it is broken and seen, the fix is pasted, and it is well again."""
    with world.elasticsearch() as client:
        before = look(world, case.id)
        assert is_well(before), before
        try:
            case.breaks(client, world)
            (found,) = look(world, case.id)
            assert found.severity is case.severity
            assert case.says in found.found
            fix(world, found)
            after = look(world, case.id)
            assert is_well(after), after
        finally:
            client.options(ignore_status=404).indices.delete_index_template(name=f"doctor-{world.name}")


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
    (check,) = [one for one in CHECKS if one.id == "elasticsearch.lifecycle"]
    with Deployment(world.settings, world.config) as deployment:
        assert list(check.ask(deployment)) == []
        ((_, settings),) = deployment.indices
        settings["index.lifecycle.name"] = "30-days"
        (found,) = check.ask(deployment)
    assert found.fix.endswith("""-d '{"index.lifecycle.name": null}'""")


def test_durations_are_read_as_elasticsearch_states_them() -> None:
    """A duration has a unit; without one that is known it is none."""
    assert [seconds(one) for one in ("3600s", "1h", "60m", "3600000ms", "-1", "0s")] == [3600, 3600, 3600, 3600, 0, 0]
