"""OpenSearch of two nodes whose replicas copy segments, as a remote store makes them: they show and know less.

The other tests run on OpenSearch with SYNCER_TEST_VERSIONS='{"opensearch": "3"}'.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from syncer.base.model import Composition, Target
from syncer.sandbox import Endpoints, Sandbox, Versions
from syncer.sandbox.servers import ElasticsearchServer
from tests.faults.harness import is_forgotten, require_holds
from tests.faults.test_processes import LEASES, QUICK, WRITE, wait_until_stopped, witness
from tests.support.breakpoints import Plan, Point
from tests.support.world import VERSIONS, World, made, nodes_of_its_own, wait_until
from tests.support.writers import fill, writing


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[ElasticsearchServer, ElasticsearchServer]]:
    """Two nodes; the first leads."""
    with nodes_of_its_own(Versions(opensearch=VERSIONS.opensearch or "3")) as nodes:
        yield nodes


@pytest.fixture
def world(
    sandbox: Sandbox,
    endpoints: Endpoints,
    nodes: tuple[ElasticsearchServer, ElasticsearchServer],
    tmp_path: Path,
) -> Iterator[World]:
    """The blog, in an index of which the second node has the primary shard, and the first a replica."""
    there = replace(endpoints, elasticsearch_url=nodes[0].address)
    with made(World(sandbox=sandbox, endpoints=there, folder=tmp_path)) as world:
        world.use("blogpost")
        file = world.document_folder / "index.json"
        body = json.loads(file.read_text())
        body["settings"] |= {"index.replication.type": "SEGMENT", "index.routing.allocation.include._name": "second"}
        file.write_text(json.dumps(body))
        world.set_up()
        fill(world)
        with world.elasticsearch() as client:
            spread = {"index.routing.allocation.include._name": None, "number_of_replicas": 1}
            client.indices.put_settings(index=world.index_of(), settings=spread)
            client.cluster.health(index=world.index_of(), wait_for_status="green", timeout="60s")
        yield world


def test_what_is_read_back_is_what_was_written_whatever_a_replica_shows(world: World) -> None:
    """Searches by ids and by sequence numbers, and counts, ask primary shards."""
    target = Target.of_index(world.index_of())
    with world.index() as index:
        for version in range(1, 41):
            compositions = [Composition(f"id {version}", version, b'{"title": "t"}'), Composition("id", version, b"{}")]
            assert len(index.write(target, compositions).done) == 2
            copies = index.holdings.read(target, ["id", f"id {version}"])
            assert {copy.id: copy.version for copy in copies} == {"id": version, f"id {version}": version}
            numbers = index.holdings.sequence_numbers(target)
            listed = [place.id for page in index.holdings.untouched_since(target, numbers, page=100) for place in page]
            assert len(listed) == index.holdings.count(target) == version + 1


def test_a_promoted_replica_that_forgot_a_delete_brings_nothing_back(
    world: World, nodes: tuple[ElasticsearchServer, ElasticsearchServer]
) -> None:
    """A daemon that stood still writes what was deleted meanwhile; that it creates it, it notices, and looks again."""
    world.worker_settings = dict(QUICK)
    world.sql("INSERT INTO users (id, name, email) VALUES (100, 'witness', '')")
    sleeping = world.daemon(program=Plan(points=(Point(at=WRITE, send="SIGSTOP"),), constants=LEASES).program)
    witness(world, 1)
    wait_until_stopped(sleeping)
    world.daemon(program=Plan(constants=LEASES).program)
    world.wait_until_level()
    world.sql("DELETE FROM posts WHERE id = 1001")
    wait_until(lambda: "1001" not in world.held(), what="the post is gone")
    with writing(world, writers=2):
        nodes[1].kill()
        wait_until(lambda: is_forgotten(world, "1001"), what="a replica that does not know it is the primary shard")
        sleeping.process.send_signal(signal.SIGCONT)
        sleeping.wait_for("worker.batch_indexed" if world.uses_kafka else "relay.stood_by")
    require_holds(world)
    verified = world.syncer("verify")
    assert verified.returncode == 0, verified.stdout
    nodes[1].start()
