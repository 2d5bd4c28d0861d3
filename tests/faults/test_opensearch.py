"""OpenSearch of two nodes whose replicas copy segments, as a remote store makes them: they show and know less.

The other tests run on OpenSearch with SYNCER_TEST_VERSIONS='{"opensearch": "3"}'.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import cast

import pytest

from syncer.base.model import Composition, Target
from syncer.elasticsearch.client import OPENSEARCH
from syncer.elasticsearch.record import STATE_INDEX
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
def empty_world(
    sandbox: Sandbox,
    endpoints: Endpoints,
    nodes: tuple[ElasticsearchServer, ElasticsearchServer],
    tmp_path: Path,
) -> Iterator[World]:
    """A world with nothing in its database, whose search server these nodes are."""
    there = replace(endpoints, elasticsearch_url=nodes[0].address)
    with made(World(sandbox=sandbox, endpoints=there, folder=tmp_path)) as world:
        yield world


@pytest.fixture
def world(empty_world: World) -> World:
    """The blog, in an index of which the second node has the primary shard, and the first a replica."""
    world = empty_world
    world.use("blogpost")
    settings = {"index.replication.type": "SEGMENT", "index.routing.allocation.include._name": "second"}
    world.edit_index(lambda body: body["settings"].update(settings))
    world.set_up()
    fill(world)
    with world.elasticsearch() as client:
        spread = {"index.routing.allocation.include._name": None, "number_of_replicas": 1}
        client.indices.put_settings(index=world.index_of(), settings=spread)
        client.cluster.health(index=world.index_of(), wait_for_status="green", timeout="60s")
    return world


PARKS = """
CREATE TABLE parks (id int PRIMARY KEY, area jsonb, path text, release text, extra jsonb, embedding real[]);
INSERT INTO parks VALUES
    (1, '{"type": "Point", "coordinates": [13.4, 52.5]}', '/a/b.log', '1.10.0', '{"a": {"b": [1, "x"]}}', '{1,2,3}'),
    (2, '{"type": "Polygon", "coordinates": [[[0,0],[0,1],[1,1],[0,0]]]}', '/c', '1.9.0', '{"a.b": true}', '{1,2,4}'),
    (3, NULL, NULL, NULL, '{}', NULL);
"""
BOX = {"type": "envelope", "coordinates": [[13, 53], [14, 52]]}
RELEASE = "keyword" if VERSIONS.opensearch == "2" else "version"  # a type of version 3
GIVEN = {"area": {"type": "geo_shape"}, "path": {"type": "wildcard"}, "release": {"type": RELEASE}}
DRAFTED = {"extra": {"type": "flat_object"}}
SEARCHES: list[tuple[dict[str, object], set[str]]] = [
    ({"geo_shape": {"area": {"shape": BOX}}}, {"1"}),
    ({"wildcard": {"path": "*.log"}}, {"1"}),
    ({"range": {"release": {"gt": "1.9.1"}}}, {"1"} if RELEASE == "version" else set()),
    ({"term": {"extra.a.b": "x"}}, {"1"}),
    ({"term": {"extra.a.b": "true"}}, {"2"}),
]


def test_types_of_opensearch_are_drafted_written_and_found(empty_world: World) -> None:
    """A draft has OpenSearch's types where Elasticsearch's differ, and fields of types that index.json names work."""
    world, folder = empty_world, empty_world.config / "documents" / "parks"
    world.sql(PARKS)
    shutil.rmtree(world.document_folder)
    folder.mkdir()
    (folder / "document.yaml").write_text(f"index: {world.alias_of('parks')}\n")
    (folder / "select.sql").write_text("SELECT p.id AS _id, p.area, p.path, p.release, p.extra FROM parks AS p")
    (folder / "index.json").write_text(json.dumps({"mappings": {"properties": GIVEN}}))
    drafted = world.syncer("init", "--from-select", str(folder / "select.sql"))
    assert "so it is flat_object" in drafted.stdout, drafted
    assert json.loads((folder / "index.json").read_text())["mappings"]["properties"] == GIVEN | DRAFTED
    world.documents = ("parks",)
    world.migrate()
    world.apply()  # which refuses what plan refuses
    assert world.held("parks") == world.expected("parks")
    world.prints("verify")
    with world.elasticsearch() as client:
        for query, ids in SEARCHES:
            hits = client.search(index=world.alias_of("parks"), query=query)["hits"]["hits"]
            assert {hit["_id"] for hit in hits} == ids, query


def test_vectors_are_drafted_for_the_plugin(empty_world: World) -> None:
    """The sandbox lacks it: plan refuses the draft, and names what it does not know, and no other product."""
    world = empty_world
    world.sql(PARKS)
    shutil.rmtree(world.document_folder)
    drafted = world.syncer("init", "--table", "parks", "--columns")
    assert "embedding: its mapping is a guess" in drafted.stdout, drafted
    body = json.loads((world.config / "documents" / "parks" / "index.json").read_text())
    assert body["settings"]["index.knn"] is True
    assert body["mappings"]["properties"]["embedding"] == {"type": "knn_vector", "dimension": 3}
    refused = world.syncer("plan")
    assert (refused.returncode, "index.knn" in refused.stdout) == (1, True), refused
    assert "Elasticsearch" not in refused.stdout + refused.stderr


def test_what_is_read_back_is_what_was_written_whatever_a_replica_shows(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Searches by ids and by sequence numbers, listings, counts, and the log of deletes ask primary shards."""
    target = Target(index_name=world.index_of(), write_alias=world.write_alias_of())
    monkeypatch.setitem(cast("dict[str, str]", OPENSEARCH.own_settings), "replication.type", "SEGMENT")
    with world.index() as index, world.elasticsearch() as client:
        client.indices.delete(index=STATE_INDEX)
        index.record.log(target.index_name, ["id 0"])
        client.cluster.health(index=STATE_INDEX, wait_for_status="green", timeout="60s")
        for version in range(1, 21):  # without a preference, two of five are not shown
            compositions = [Composition(f"id {version}", version, b'{"title": "t"}'), Composition("id", version, b"{}")]
            assert len(index.write(target, compositions).done) == 2
            copies = index.holdings.read(target, ["id", f"id {version}"])
            assert {copy.id: copy.version for copy in copies} == {"id": version, f"id {version}": version}
            numbers = index.holdings.sequence_numbers(target)
            listed = [place.id for page in index.holdings.untouched_since(target, numbers, page=100) for place in page]
            assert len(listed) == index.holdings.count(target) == version + 1
            assert sum(map(len, index.holdings.ids(target, page=100))) == version + 1
            index.record.log(target.index_name, [f"id {version}"])
            logged = [*chain.from_iterable(index.record.logged_since(target.index_name, -1, page=100))]
            assert logged == [f"id {number}" for number in range(version + 1)]


def test_a_promoted_replica_that_forgot_a_delete_brings_nothing_back(
    world: World, nodes: tuple[ElasticsearchServer, ElasticsearchServer]
) -> None:
    """A daemon that stood still writes what was deleted meanwhile; that it creates it, it notices, and looks again.

    The last test of this module: it leaves one node.
    """
    world.worker_settings = dict(QUICK)
    world.sql("INSERT INTO users (id, name, email) VALUES (100, 'witness', '')")
    sleeping = world.daemon(plan=Plan(points=(Point(at=WRITE, send="SIGSTOP"),), constants=LEASES))
    witness(world, 1)
    wait_until_stopped(sleeping)
    world.daemon(plan=Plan(constants=LEASES))
    world.wait_until_level()
    world.sql("DELETE FROM posts WHERE id = 1001")
    wait_until(lambda: "1001" not in world.held(), what="the post is gone")
    with writing(world, writers=2):
        nodes[1].kill()
        wait_until(lambda: is_forgotten(world, "1001"), what="a replica that does not know it is the primary shard")
        sleeping.process.send_signal(signal.SIGCONT)
        sleeping.wait_for("worker.batch_indexed" if world.uses_kafka else "relay.stood_by")
    require_holds(world)
    world.prints("verify")
