"""What an Elasticsearch under another administrator may have set: nothing goes wrong silently, or for good.

Each row of the table in docs/deploy.md has its test here, or in `tests.faults.test_elasticsearch` if it concerns the
index that all tests share.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import ApiError

from syncer.apply import preview
from syncer.apply.trial import PlanProblem, PlanSeverity
from syncer.base.errors import LockError
from syncer.locks import Edit, Locks
from tests.faults.harness import SUSPENDED, require_holds
from tests.support.doctor import fix, is_well, look
from tests.support.world import BLOG_SCHEMA, VERSIONS, World, wait_until
from tests.support.writers import fill, writing

LATER_THAN_8 = VERSIONS.elasticsearch not in (None, "8")
IS_ELASTICSEARCH = VERSIONS.opensearch is None
DERIVED: tuple[str, Any, Any] = ("index.mapping.source.mode", "synthetic", "stored")
"""A setting with which a document is not returned as it was written, and without."""
if VERSIONS.opensearch:
    DERIVED = ("index.derived_source.enabled", True, False)
DERIVES = VERSIONS.opensearch != "2"
NOTE = "SELECT p.id AS _id, p.title, ARRAY[p.id, 1]::real[] AS place FROM posts AS p"
FIELDS = {"title": {"type": "text"}, "place": {"type": "float"}}
VECTOR = {"title": {"type": "text"}, "place": {"type": "dense_vector", "dims": 2}}


@pytest.fixture
def world(world: World) -> World:
    """The blog, with users and posts. Each test leaves the server's templates and settings as they were."""
    fill(world)
    world.sql("DELETE FROM syncer.outbox")  # no change is in flight
    return world


@pytest.fixture(scope="module")
def planned(module_world: World) -> World:
    """A world of which nothing is active, for tests that only plan."""
    module_world.sql(BLOG_SCHEMA.read_text())
    fill(module_world)
    module_world.migrate()
    return module_world


@contextmanager
def template(world: World, content: Mapping[str, Any], **others: Any) -> Iterator[None]:
    """An index template of another team for what this world creates."""
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
    "a default pipeline": ({"settings": {"index.default_pipeline": "stamp"}}, {}, "bypass it", WARNING),
    "shards by id": (
        {
            "settings": {"index.routing_partition_size": 2, "index.number_of_shards": 4},
            "mappings": {"_routing": {"required": True}},
        },
        {},
        "routing_partition_size",
        REFUSED,
    ),
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
if DERIVES:
    FOUND["synthetic source"] = ({"settings": {DERIVED[0]: DERIVED[1]}}, {}, DERIVED[0], REFUSED)
if IS_ELASTICSEARCH:
    FOUND["logsdb"] = ({"settings": {"index.mode": "logsdb"}}, {}, "source.mode", REFUSED)
    SERIES = {"properties": {"title": {"type": "keyword", "time_series_dimension": True}}}
    FOUND["time series"] = (
        {"settings": {"index.mode": "time_series", "index.routing_path": "title"}, "mappings": SERIES},
        {"mappings": {}},
        "index.mode of",
        REFUSED,
    )
else:
    FOUND["segments"] = ({"settings": {"index.replication.type": "SEGMENT"}}, {}, "replication.type", WARNING)
if VERSIONS.opensearch == "3":
    FOUND["additions"] = ({"settings": {"index.append_only.enabled": True}}, {}, "append_only", REFUSED)
    FOUND["searches alone"] = ({"settings": {"index.blocks.search_only": True}}, {}, "search_only", REFUSED)
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
        matching = [problem for problem in problems(planned, "note") if words in problem.message]
        assert [problem.severity for problem in matching] == [severity], problems(planned, "note")
        _, is_setting, setting = matching[0].action.removesuffix(".").partition("Add to the settings in index.json: ")
        if is_setting:
            body_before = json.loads((folder / "index.json").read_text())
            (folder / "index.json").write_text(json.dumps(body_before | {"settings": json.loads(f"{{{setting}}}")}))
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
    define(planned, {"settings": vectors, "mappings": {"properties": VECTOR if IS_ELASTICSEARCH else FIELDS}})
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
            refused = [f"{problem.message} {problem.action}" for problem in problems(planned, "note")]
        finally:
            client.cluster.put_settings(persistent={"cluster.max_shards_per_node": None})
            client.options(ignore_status=404).indices.delete_index_template(name=planned.name)
    sentences = [
        words in "".join(refused) for words in ("index.json is not the reason", "Change what it names in index.json")
    ]
    assert sentences == [case != "index.json", case == "index.json"], refused
    assert scratch_indices(planned) == []


def aliases(world: World) -> dict[str, Any]:
    """The aliases of the index that searches find, but for its write alias."""
    index = world.index_of()
    with world.elasticsearch() as client:
        all_aliases: dict[str, Any] = client.indices.get_alias(index=index).body[index]["aliases"]
    return {name: properties for name, properties in all_aliases.items() if "-syncer-write-" not in name}


def test_every_alias_moves_with_a_rebuild_under_writers(world: World) -> None:
    """Aliases of applications and of templates move in the one request; no search finds a document twice meanwhile."""
    filtered = {"filter": {"exists": {"field": "title"}}}
    team, tenant, routed = (f"{name}-{world.name}" for name in ("team", "tenant", "routed"))
    world.backfill()
    actions: list[dict[str, Any]] = [
        {"add": {"index": world.index_of(), "alias": team}},
        {"add": {"index": world.index_of(), "alias": tenant, **filtered}},
        {"add": {"index": world.index_of(), "alias": routed, "routing": "7", "is_hidden": True}},
    ]
    with template(world, {"aliases": {team: {}}}), world.elasticsearch() as client:
        client.indices.update_aliases(actions=actions)
        aliases_before, index = aliases(world), world.index_of()
        world.daemon()
        twice: list[str] = []

        def turn() -> bool:
            ids = [hit["_id"] for hit in client.search(index=team, size=1000, source=False).body["hits"]["hits"]]
            twice.extend(id_ for id_ in set(ids) if ids.count(id_) > 1)
            return rebuilding.done()

        with writing(world, writers=2), ThreadPoolExecutor(1) as pool:
            rebuilding = pool.submit(world.syncer, "index", "rebuild", "blogpost")
            wait_until(turn, what="the rebuild ends")
            world.backfill()
        require_holds(world)
        assert (rebuilding.result().returncode, twice) == (0, []), rebuilding.result().stderr
        assert (aliases(world), world.index_of() != index) == (aliases_before, True)
        assert len(world.held()) == client.count(index=team)["count"] == client.count(index=tenant)["count"]


def test_an_alias_that_cannot_move_stops_a_rebuild_before_the_load(world: World) -> None:
    """Its filter needs what the new mapping lacks: current searches stay, and without the alias it goes through."""
    world.backfill()
    index, alias = world.index_of(), f"talks-{world.name}"
    filtered = {"nested": {"path": "comments", "query": {"match_all": {}}}}
    with world.elasticsearch() as client:
        client.indices.put_alias(index=index, name=alias, filter=filtered)
        world.edit_file('"type": "nested"', '"type": "object"', file="index.json")
        refused = world.syncer("apply", "--yes")
        assert (refused.returncode, f"The alias {alias} cannot move" in refused.stderr) == (1, True), refused.stderr
        assert world.index_of() == index
        client.indices.delete_alias(index=index, name=alias)
    applied = world.syncer("apply", "--yes")
    assert (applied.returncode, world.differences()) == (0, []), applied.stderr
    assert is_well(look(world, "elasticsearch.orphans"))


WRITE_ALIASES: dict[str, list[dict[str, Any]]] = {
    "another index is written to": [
        {"add": {"index": "{index}", "alias": "{alias}", "is_hidden": True, "is_write_index": False}},
        {"add": {"index": "{other}", "alias": "{alias}", "is_hidden": True, "is_write_index": True}},
    ],
    "another index has it alone": [
        {"remove": {"index": "{index}", "alias": "{alias}"}},
        {"add": {"index": "{other}", "alias": "{alias}"}},
    ],
    "another index has it, too": [{"add": {"index": "{other}", "alias": "{alias}", "is_hidden": True}}],
    "no index has it": [{"remove": {"index": "{index}", "alias": "{alias}"}}],
}


@pytest.mark.parametrize("case", WRITE_ALIASES)
def test_nothing_is_written_to_the_index_of_another(world: World, case: str) -> None:
    """A writer that connects notices; doctor names it, its fix is pasted, and the document resumes by itself."""
    world.backfill()
    index, foreign = world.index_of(), f"{world.alias}-of-others"
    names = {"{index}": index, "{other}": foreign, "{alias}": world.write_alias_of()}
    with world.elasticsearch() as client:
        client.indices.create(index=foreign, settings={"number_of_replicas": 0})
        with pytest.raises(ApiError, match="more than one write index"):
            client.indices.put_alias(index=foreign, name=names["{alias}"], is_write_index=True)
        text = json.dumps(WRITE_ALIASES[case])
        for name, value in names.items():
            text = text.replace(name, value)
        client.indices.update_aliases(actions=json.loads(text))
        daemon = world.daemon()
        with writing(world, writers=2):
            daemon.wait_for("document.suspended")
            while not is_well(findings := look(world, "elasticsearch.settings")):
                fix(world, findings[0])
        require_holds(world)
        client.indices.refresh(index=foreign)
        assert client.count(index=foreign)["count"] == 0


def test_a_restored_copy_does_not_join_the_write_alias(world: World) -> None:
    """Elasticsearch refuses a copy that brings the aliases along; without them, nothing is written to it."""
    world.backfill()
    copy: dict[str, Any] = {"rename_pattern": "(.+)", "rename_replacement": "$1-copy", "wait_for_completion": True}
    older: dict[str, Any] = {"repository": world.name, "snapshot": "one"}
    with world.elasticsearch() as client:
        client.snapshot.create_repository(
            name=world.name, repository={"type": "fs", "settings": {"location": world.name}}
        )
        client.snapshot.create(**older, indices=world.index_of(), include_global_state=False, wait_for_completion=True)
        with pytest.raises(ApiError, match="more than one write index"):
            client.snapshot.restore(**older, **copy, include_global_state=False)
        client.snapshot.restore(**older, **copy, include_global_state=False, include_aliases=False)
        client.snapshot.delete_repository(name=world.name)
    world.daemon()
    with writing(world, writers=2):
        pass
    require_holds(world)


@pytest.mark.parametrize("window", [1, 999])
def test_a_small_window_of_results_is_enough(world: World, window: int) -> None:
    """A load removes what only the index has, and verify compares all, in pages that the index allows."""
    world.backfill()
    with world.elasticsearch() as client:
        client.indices.put_settings(index=world.index_of(), settings={"index.max_result_window": window})
        client.index(index=world.index_of(), id="only here", document={})
    assert world.syncer("verify").returncode == 1
    world.backfill()
    world.prints("verify")
    with world.elasticsearch() as client:
        client.indices.put_settings(index=world.index_of(), settings={"index.max_result_window": None})
    assert world.differences() == []


BLOCKED = ({"index.blocks.metadata": True}, {"index.blocks.read_only": True}, {"index.blocks.read": True})


@pytest.mark.parametrize("block", BLOCKED, ids=str)
def test_one_blocked_index_stops_no_command_for_others(world: World, block: dict[str, Any]) -> None:
    """plan, verify, apply and status do for the blogpost what they do without the block, and name the block."""
    define(world, {})
    world.documents = ("blogpost", "note")
    world.apply()
    blocked = world.index_of("note")
    with world.elasticsearch() as client:
        client.indices.put_settings(index=blocked, settings=block)
        try:
            world.edit_file("p.body,", "upper(p.body) AS body,")
            planned = json.loads(world.syncer("plan", "--json").stdout)["documents"]
            applied, verified = world.syncer("apply", "--yes"), world.syncer("verify", "blogpost")
            counts = json.loads(world.syncer("status", "--json").stdout)
            (finding, *_) = look(world, "elasticsearch.settings")
            assert (finding.severity, next(iter(block)) in finding.found) == ("wrong", True)
            fix(world, finding)
        finally:
            client.indices.put_settings(index=blocked, settings=dict.fromkeys(block))
    assert [(document["name"], document["outcome"]) for document in planned if document["name"] == "blogpost"] == [
        ("blogpost", "in_place")
    ]
    assert (applied.returncode, verified.returncode) == (0, 0), applied.stderr + verified.stdout
    assert "60" in json.dumps(counts)
    assert world.differences("blogpost") == []


def test_a_filter_on_the_search_alias_is_named_and_kept(world: World) -> None:
    """Verify does not call it equal; a rebuild keeps the filter, which may protect something; doctor's fix ends it."""
    world.backfill()
    with world.elasticsearch() as client:
        client.indices.put_alias(index=world.index_of(), name=world.alias, filter={"term": {"_id": "7"}})
        verified = world.syncer("verify")
        assert (verified.returncode, "has a filter" in verified.stdout) == (1, True), verified.stdout
        world.syncer("index", "rebuild", "blogpost")
        assert client.count(index=world.alias)["count"] == 1
    (finding,) = look(world, "elasticsearch.settings")
    fix(world, finding)
    assert (world.syncer("verify").returncode, world.differences()) == (0, [])


def test_index_json_may_say_what_elasticsearch_does_not_return(world: World) -> None:
    """What is given as null, or is returned under no name, is applied once, and then changed in place."""
    for settings in (
        {"number_of_routing_shards": 8, "number_of_shards": 2},
        {"number_of_routing_shards": 8, "number_of_shards": 2, "codec": None, "refresh_interval": "7s"},
        {"number_of_routing_shards": 8, "number_of_shards": 2, "sort.field": None, "refresh_interval": None},
    ):
        define(world, {"settings": settings})
        applied = world.syncer("apply", "--yes")
        assert (applied.returncode, applied.stdout.count("Nothing to do")) == (0, 0), applied.stderr
        assert "Nothing to do" in world.syncer("apply", "--yes").stdout
    world.documents = ("blogpost", "note")
    assert world.index_of("note").endswith("-000001")
    assert world.differences("note") == []


def do_what_status_says(world: World, message: str) -> None:
    """Send the request of the one problem whose message has these words."""
    problems = json.loads(world.syncer("status", "--json").stdout)["problems"]
    [action] = [problem["action"] for problem in problems if message in problem["message"]]
    body = action.partition("POST /_aliases ")[2]
    with world.elasticsearch() as client:
        client.indices.update_aliases(**json.loads(body))


@pytest.mark.parametrize("case", ["another index has the alias", "an index has its name", "it was rolled over"])
def test_an_alias_that_an_operator_moved_is_told_and_comes_back(world: World, case: str) -> None:
    """Status names what searches find, and its request is the way back; a rebuild loads nothing before."""
    world.backfill()
    index, other = world.index_of(), f"{world.alias}-other"
    with world.elasticsearch() as client:
        if case == "it was rolled over":
            other = client.indices.rollover(alias=world.alias).body["new_index"]
        else:
            client.indices.update_aliases(actions=[{"remove": {"index": index, "alias": world.alias}}])
            other = world.alias if case == "an index has its name" else other
            client.index(index=other, id="1", document={"title": "another"})
            if other != world.alias:
                client.indices.put_alias(index=other, name=world.alias)
    refused = world.syncer("index", "rebuild", "blogpost")
    assert (refused.returncode, "written" in refused.stdout, other in refused.stderr) == (1, False, True), refused
    do_what_status_says(world, f"find {other} instead of {index} alone")
    assert (world.syncer("verify").returncode, world.differences()) == (0, [])


def resize(world: World, document: str, *, shards: int) -> None:
    """Give an index another number of shards, as an operator does: the new one has its name and aliases in the end."""
    index, aliases = world.index_of(document), dict[str, Any]({world.alias_of(document): {}})
    aliases[world.write_alias_of(document)] = {"is_hidden": True, "is_write_index": True}
    with world.elasticsearch() as client:
        client.indices.put_settings(index=index, settings={"index.blocks.write": True})
        settings = {"index.number_of_replicas": 0, "index.blocks.write": None}
        split = {**settings, "index.number_of_shards": shards, "index.blocks.write": True}
        client.indices.split(index=index, target=f"{index}-split", settings=split)
        client.cluster.health(index=f"{index}-split", wait_for_status="green", timeout="60s")
        client.indices.delete(index=index)
        client.indices.clone(index=f"{index}-split", target=index, settings=settings, aliases=aliases)
        client.indices.delete(index=f"{index}-split")


def test_an_index_that_was_split_keeps_no_copy_of_what_moves(world: World) -> None:
    """The daemon that wrote it before learns of its shards: a document that moves is deleted on each other one."""
    settings = {"number_of_shards": 2, "number_of_routing_shards": 8, "number_of_replicas": 0}
    define(world, {"settings": settings}, select="SELECT p.id AS _id, p.user_id AS _routing, p.title FROM posts AS p")
    world.sql("INSERT INTO users (id, name, email) SELECT g, 'user', '' FROM generate_series(100, 140) AS g")
    world.documents = ("note",)
    world.apply()
    world.daemon()
    for move in range(3):
        world.sql("UPDATE posts SET user_id = 100 + (id + %s) %% 41", 7 * move)
        world.wait_until_level()
        if move == 0:
            resize(world, "note", shards=8)
    wait_until(lambda: not world.sql("SELECT FROM syncer.job WHERE finished_at IS NULL"), what="the refresh ends")
    world.prints("verify", "note")


def test_an_index_that_was_renamed_is_made_anew(world: World) -> None:
    """Another index has all its names: the document is suspended, and apply builds an index that has them alone."""
    world.backfill()
    index, renamed = world.index_of(), f"{world.alias}-renamed"
    names = [index, world.alias, world.write_alias_of()]
    world.daemon()
    with world.elasticsearch() as client:
        client.indices.put_settings(index=index, settings={"index.blocks.write": True})
        client.indices.clone(index=index, target=renamed, settings={"index.blocks.write": None})
        added: list[dict[str, Any]] = [{"add": {"index": renamed, "alias": name}} for name in names]
        client.indices.update_aliases(actions=[{"remove_index": {"index": index}}, *added])
        world.sql("UPDATE posts SET title = 'later' WHERE id % 2 = 0")
        wait_until(lambda: bool(world.sql(SUSPENDED)), what="it is suspended")
        world.prints("apply", "--yes")
        assert world.index_of() != index
        require_holds(world)
        assert client.indices.get_alias(name=world.alias).body.keys() == {world.index_of()}


@pytest.mark.skipif(IS_ELASTICSEARCH, reason="a setting of OpenSearch")
def test_a_search_pipeline_changes_nothing_that_syncer_reads(world: World) -> None:
    """Not even one that is gone, with which searches of others fail: the index is neither closed nor different."""
    world.backfill()
    with world.elasticsearch() as client:
        settings = {"index.search.default_pipeline": "gone"}
        client.indices.put_settings(index=world.index_of(), settings=settings)
        with pytest.raises(ApiError, match="gone is not defined"):
            client.search(index=world.alias)
    world.prints("verify")
    world.backfill()
    [document] = json.loads(world.syncer("status", "--json").stdout)["documents"]
    assert (document["targets"], document["faults"]) == ({world.index_of(): 60}, {})


def test_a_mapping_that_a_template_turns_off_is_changed_in_place(world: World) -> None:
    """OpenSearch takes a mapping without "enabled" for one that turns it on, and refuses."""
    define(world, {"mappings": {}})
    with template(world, {"mappings": {"enabled": False}}):
        world.syncer("apply", "--yes")
        define(world, {"mappings": {}}, select=NOTE.replace("p.title", "upper(p.title) AS title"))
        applied = world.prints("apply", "--yes")
    assert "in place" in applied or "up to date" in applied, applied
    world.documents = ("note",)
    assert (world.index_of("note")[-7:], world.differences()) == ("-000001", [])


UNKEPT: dict[str, dict[str, Any]] = {
    "some fields": {"mappings": {"_source": {"excludes": ["se*"]}}},
    "only one field": {"mappings": {"_source": {"includes": ["name"]}}},
    "no source": {"mappings": {"_source": {"enabled": False}}},
}
if DERIVES:
    UNKEPT["synthetic source"] = {"settings": {DERIVED[0]: DERIVED[1]}}
if LATER_THAN_8:
    UNKEPT["vectors"] = {"mappings": {"properties": {"secret": {"type": "dense_vector", "dims": 2}}}}


@pytest.mark.parametrize("case", UNKEPT)
def test_locks_change_nothing_that_they_could_not_restore(planned: World, case: str) -> None:
    """A change in an index that does not return its documents as they were written is refused before the first edit."""
    name = f"{planned.alias}-locked"
    with planned.elasticsearch() as client:
        try:
            client.indices.create(index=name, **UNKEPT[case])
            client.index(index=name, id="1", document={"name": "a", "secret": [1, 2]})
            locks = Locks(client, owner="test", index=f"{planned.alias}-locks")
            with pytest.raises(LockError, match="could not be rolled back"), locks.documents(name, ["1"]) as lock:
                lock.write([Edit(index=name, id="1", source={"name": "b"})])
            assert client.get(index=name, id="1")["_version"] == 1
        finally:
            client.indices.delete(index=[name, f"{planned.alias}-locks"], ignore_unavailable=True)


@pytest.mark.skipif(not IS_ELASTICSEARCH, reason="OpenSearch derives no document with nested ones")
def test_what_only_a_new_index_cures_leads_to_one(world: World) -> None:
    """Doctor names what an index of before lacks; with the setting that it says, apply builds another beside it."""
    world.backfill()
    index = world.index_of()
    with world.elasticsearch() as client:
        state = client.indices.get(index=index).body[index]
        client.indices.delete(index=index)
        settings = {DERIVED[0]: DERIVED[1], "index.gc_deletes": "1h", "number_of_replicas": 0}
        client.indices.create(index=index, settings=settings, mappings=state["mappings"], aliases=state["aliases"])
    world.backfill()
    (finding,) = look(world, "elasticsearch.settings")
    assert DERIVED[0] in finding.found
    world.edit_index(lambda body: body["settings"].update({DERIVED[0]: DERIVED[2]}))
    assert f'"{DERIVED[0]}": {json.dumps(DERIVED[2])}. Then run: syncer apply' in finding.fix
    applied = world.syncer("apply", "--yes")
    assert (applied.returncode, world.differences()) == (0, []), applied.stderr
    assert is_well(look(world, "elasticsearch.settings"))
