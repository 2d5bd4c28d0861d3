"""What an Elasticsearch that somebody else administers may have set: nothing goes wrong silently, or for good.

Each row of the table in docs/deploy.md has its test here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from syncer.apply import preview
from syncer.apply.trial import PlanProblem, PlanSeverity
from syncer.sandbox import Endpoints, Sandbox
from syncer.sandbox.servers import ElasticsearchServer
from tests.support.world import BLOG_SCHEMA, VERSIONS, World, elsewhere, made, sandbox_of_its_own
from tests.support.writers import fill

LATER_THAN_8 = VERSIONS.elasticsearch not in (None, "8")
NOTE = "SELECT p.id AS _id, p.title, ARRAY[p.id, 1]::real[] AS place FROM posts AS p"
FIELDS = {"title": {"type": "text"}, "place": {"type": "float"}}
VECTOR = {"title": {"type": "text"}, "place": {"type": "dense_vector", "dims": 2}}


@pytest.fixture(scope="module")
def server() -> Iterator[ElasticsearchServer]:
    """An Elasticsearch whose templates and settings no other module meets."""
    with sandbox_of_its_own() as own:
        own.elasticsearch.settings |= {"path.repo": str(own.elasticsearch.folder / "snapshots")}
        own.elasticsearch.start()
        yield own.elasticsearch


@pytest.fixture
def world(sandbox: Sandbox, endpoints: Endpoints, server: ElasticsearchServer, tmp_path: Path) -> Iterator[World]:
    """The blog on that Elasticsearch, with users and posts."""
    with elsewhere(sandbox, endpoints, tmp_path, elasticsearch_url=server.address) as world:
        fill(world)
        yield world


@pytest.fixture(scope="module")
def planned(
    sandbox: Sandbox, endpoints: Endpoints, server: ElasticsearchServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """A world of which nothing is active, for tests that only plan."""
    folder = tmp_path_factory.mktemp("planned")
    there = Endpoints(
        postgres_dsn=endpoints.postgres_dsn,
        kafka_bootstrap_servers=endpoints.kafka_bootstrap_servers,
        elasticsearch_url=server.address,
    )
    with made(World(sandbox=sandbox, endpoints=there, folder=folder)) as world:
        world.sql(BLOG_SCHEMA.read_text())
        fill(world)
        world.migrate()
        yield world


@contextmanager
def template(world: World, content: Mapping[str, Any], **others: Any) -> Iterator[None]:
    """An index template of somebody else's for what this world creates."""
    with world.elasticsearch() as client:
        patterns = [f"{world.alias}*"]
        client.indices.put_index_template(
            name=world.name, index_patterns=patterns, priority=900, template=content, **others
        )
        try:
            yield
        finally:
            client.indices.delete_index_template(name=world.name)


def problems(world: World, name: str) -> list[PlanProblem]:
    """What ``syncer plan`` finds wrong with a document."""
    with world.connect() as connection, world.index() as index, world.indices() as indices:
        (document,) = preview.read(connection, index, indices, world.config, only=name)[1].documents
    return list(document.problems)


def scratch_indices(world: World) -> list[str]:
    """What trials have left."""
    with world.elasticsearch() as client:
        return list(
            client.cluster.state(index=f"{world.alias}*plan-*", expand_wildcards="all").body["metadata"]["indices"]
        )


def define(world: World, body: Mapping[str, Any], *, name: str = "note", select: str = NOTE) -> Path:
    """A document with this index.json."""
    folder = world.define(name, select)
    (folder / "index.json").write_text(json.dumps({"mappings": {"properties": FIELDS}, **body}))
    return folder


REFUSED, ERROR, WARNING = PlanSeverity.REFUSED, PlanSeverity.ERROR, PlanSeverity.WARNING
FOUND: dict[str, tuple[dict[str, Any], dict[str, Any], str, PlanSeverity]] = {
    "a final pipeline": ({"settings": {"index.final_pipeline": "stamp"}}, {}, "final_pipeline", REFUSED),
    "a default pipeline": ({"settings": {"index.default_pipeline": "stamp"}}, {}, "default_pipeline", REFUSED),
    "shards by id": (
        {
            "settings": {"index.routing_partition_size": 2, "index.number_of_shards": 4},
            "mappings": {"_routing": {"required": True}},
        },
        {},
        "routing_partition_size",
        REFUSED,
    ),
    "synthetic source": ({"settings": {"index.mapping.source.mode": "synthetic"}}, {}, "source.mode", REFUSED),
    "logsdb": ({"settings": {"index.mode": "logsdb"}}, {}, "source.mode", REFUSED),
    "a write block": ({"settings": {"index.blocks.write": True}}, {}, "blocks.write", REFUSED),
    "a metadata block": ({"settings": {"index.blocks.metadata": True}}, {}, "blocks.metadata", REFUSED),
    "a read-only block": ({"settings": {"index.blocks.read_only": True}}, {}, "read", REFUSED),
    "no source": ({"mappings": {"_source": {"enabled": False}}}, {}, "_source of", REFUSED),
    "left out by a template": ({"mappings": {"_source": {"excludes": ["pl*"]}}}, {}, "_source of", REFUSED),
    "left out by index.json": (
        {},
        {"mappings": {"_source": {"includes": ["title"]}, "properties": FIELDS}},
        "_source of",
        REFUSED,
    ),
    "an asynchronous translog": ({"settings": {"index.translog.durability": "async"}}, {}, "translog", WARNING),
    "no refreshes": ({"settings": {"refresh_interval": -1}}, {}, "refresh_interval", WARNING),
    "few fields": ({"settings": {"index.mapping.total_fields.limit": 1}}, {}, "Limit of total fields", REFUSED),
    "a strict mapping": (
        {"mappings": {"dynamic": "strict"}},
        {"mappings": {"properties": {"title": {"type": "text"}}}},
        "strict",
        ERROR,
    ),
    "a required routing": ({"mappings": {"_routing": {"required": True}}}, {}, "requires a _routing", REFUSED),
}
if LATER_THAN_8:
    FOUND |= {
        "vectors": ({}, {"mappings": {"properties": VECTOR}}, "exclude_source_vectors", REFUSED),
        "no sequence numbers": ({"settings": {"index.disable_sequence_numbers": True}}, {}, "disable_seq", REFUSED),
    }


@pytest.mark.parametrize("case", FOUND)
def test_plan_says_what_an_index_would_become_and_its_advice_holds(planned: World, case: str) -> None:
    """The index is judged, not index.json; what is advised ends the problem; nothing is left, whatever plan found."""
    content, body, words, severity = FOUND[case]
    folder = define(planned, body)
    with template(planned, content):
        found = [problem for problem in problems(planned, "note") if words in problem.message]
        assert [problem.severity for problem in found] == [severity], problems(planned, "note")
        _, is_setting, setting = found[0].action.removesuffix(".").partition("Add to the settings in index.json: ")
        if is_setting:
            written = json.loads((folder / "index.json").read_text())
            (folder / "index.json").write_text(json.dumps(written | {"settings": json.loads(f"{{{setting}}}")}))
            assert [problem for problem in problems(planned, "note") if words in problem.message] == []
    assert scratch_indices(planned) == []


def test_what_plan_finds_well_is_read_back_as_it_was_written(planned: World) -> None:
    """Settings that a strict reader might take for a fault: of each, plan and the trial find none."""
    for settings in (
        {"number_of_routing_shards": 12, "number_of_shards": 3},
        {"number_of_replicas": 1, "write.wait_for_active_shards": 2},
        {"codec": None, "sort.field": None},
        {"gc_deletes": "2h", "final_pipeline": "_none", "blocks": {"write": False}},
        {"max_result_window": 50, "index": {"mapping": {"ignore_malformed": True}}},
    ):
        define(planned, {"settings": settings})
        assert problems(planned, "note") == [], settings
    vectors = {"index.mapping.exclude_source_vectors": False} if LATER_THAN_8 else {}
    define(planned, {"settings": vectors, "mappings": {"properties": VECTOR}})
    assert problems(planned, "note") == []


NO_INDEX: dict[str, dict[str, Any]] = {
    "for data streams": {"data_stream": {}},
    "sorted by a field that it lacks": {"template": {"settings": {"index.sort.field": "nix"}}},
}


@pytest.mark.parametrize("case", [*NO_INDEX, "the limit of shards", "index.json"])
def test_index_json_is_blamed_only_if_it_is_the_reason(planned: World, case: str) -> None:
    """Without index.json, Elasticsearch refuses as well: then no edit of the file helps, and no message says so."""
    define(planned, {"settings": {"index.nix": 1}} if case == "index.json" else {})
    with planned.elasticsearch() as client:
        pattern = [f"{planned.alias}*"]
        try:
            if case in NO_INDEX:
                client.options(ignore_status=400).indices.put_index_template(
                    name=planned.name, index_patterns=pattern, priority=900, **NO_INDEX[case]
                )
            if case == "the limit of shards":
                client.cluster.put_settings(persistent={"cluster.max_shards_per_node": 1})
            refused = [f"{found.message} {found.action}" for found in problems(planned, "note")]
        finally:
            client.cluster.put_settings(persistent={"cluster.max_shards_per_node": None})
            client.options(ignore_status=404).indices.delete_index_template(name=planned.name)
    said = [
        words in "".join(refused) for words in ("index.json is not the reason", "Change what it names in index.json")
    ]
    assert said == [case != "index.json", case == "index.json"], refused
    assert scratch_indices(planned) == []
