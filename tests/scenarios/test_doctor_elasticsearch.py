"""Whatever is broken in Elasticsearch, the doctor says so, and what he says mends it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from syncer.doctor.indices_checks import count_fields, differences, judge_lifecycle, seconds
from syncer.doctor.patient import Patient
from syncer.doctor.symptom import Severity
from syncer.model import EPOCH_SHIFT
from syncer.sandbox import Endpoints, Sandbox
from syncer.settings import WorkerSettings
from tests.doctoring import is_well, look, mend
from tests.harness import World, made

CONSIDER, WRONG = Severity.CONSIDER, Severity.WRONG


@pytest.fixture(scope="module")
def world(sandbox: Sandbox, endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world with a document in it; each test leaves it as it has found it."""
    with made(World(sandbox=sandbox, endpoints=endpoints, folder=tmp_path_factory.mktemp("doctor"))) as world:
        world.set_up()
        world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John', 'j@example.com')")
        world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (1, 1, 'title', 'body')")
        world.backfill()
        yield world


@dataclass(frozen=True, kw_only=True)
class Ill:
    """Something that is broken.

    Args:
        id: Which check sees it.
        breaks: What breaks it.
        says: What the finding names.
        severity: How bad it is.
    """

    id: str
    breaks: Callable[[Elasticsearch, World], object]
    says: str
    severity: Severity = WRONG


def put(**settings: object) -> Callable[[Elasticsearch, World], object]:
    """Give the index other settings; two underscores stand for a dot."""
    named = {name.replace("__", "."): value for name, value in settings.items()}
    return lambda client, world: client.indices.put_settings(index=world.index_of(), settings=named)


def aliases(*actions: Mapping[str, Mapping[str, str]]) -> Callable[[Elasticsearch, World], object]:
    """Change aliases; INDEX and ALIAS stand for those of the world."""

    def change(client: Elasticsearch, world: World) -> None:
        said = json.dumps(actions).replace("INDEX", world.index_of()).replace("ALIAS", world.alias)
        client.indices.update_aliases(actions=json.loads(said))

    return change


def point_elsewhere(client: Elasticsearch, world: World) -> None:
    """Let searches find another index too."""
    client.indices.create(index=f"{world.alias}x", aliases={world.alias: {}})


def pipeline(client: Elasticsearch, world: World) -> None:
    """Let a pipeline change what is written."""
    client.ingest.put_pipeline(id="doctor-stamp", processors=[])
    client.indices.put_settings(index=world.index_of(), settings={"index.final_pipeline": "doctor-stamp"})


def leave_over(name: str = "", *aliases: str) -> Callable[[Elasticsearch, World], object]:
    """An index of this installation that Postgres knows nothing of."""

    def leave(client: Elasticsearch, world: World) -> None:
        installation = str(world.sql("SELECT installation FROM syncer.incarnation")[0][0])
        meta = {"_meta": {"syncer": {"document": "page", "installation": installation}}}
        index = f"{world.alias}{name}-000099"
        named: dict[str, dict[str, object]] = {alias.format(alias=world.alias, index=index): {} for alias in aliases}
        client.indices.create(index=index, mappings=meta, aliases=named)

    return leave


def forget_epoch(client: Elasticsearch, world: World) -> None:
    """The record of the epoch is deleted."""
    ((installation, epoch),) = world.sql("SELECT installation, epoch FROM syncer.incarnation")
    client.delete(index="syncer-state", id=f"epoch-{installation}", version=epoch, version_type="external_gte")


def guard_no_more(client: Elasticsearch, world: World) -> None:
    """Somebody's template comes before ours."""
    client.indices.put_index_template(
        name=f"doctor-{world.name}", index_patterns=[f"{world.alias}-*-write"], allow_auto_create=True, priority=900
    )


ILLS = [
    Ill(id="elasticsearch.indices", breaks=lambda c, w: c.indices.close(index=w.index_of()), says="is closed"),
    Ill(
        id="elasticsearch.aliases",
        breaks=aliases({"remove": {"index": "INDEX", "alias": "INDEX-syncer-write"}}),
        says="-syncer-write",
    ),
    Ill(
        id="elasticsearch.aliases",
        breaks=aliases({"remove": {"index": "INDEX", "alias": "ALIAS"}}),
        says="does not lead to",
    ),
    Ill(id="elasticsearch.aliases", breaks=point_elsewhere, says="alone"),
    Ill(id="elasticsearch.gc_deletes", breaks=put(index__gc_deletes="59m"), says="after 59m"),
    Ill(id="elasticsearch.gc_deletes", breaks=put(index__gc_deletes=None), says="after 60s"),
    Ill(id="elasticsearch.durability", breaks=put(index__translog__durability="async"), says="async"),
    Ill(id="elasticsearch.refresh", breaks=put(index__refresh_interval="-1"), says="-1"),
    Ill(id="elasticsearch.pipelines", breaks=pipeline, says="doctor-stamp"),
    Ill(id="elasticsearch.blocks", breaks=put(index__blocks__write=True), says="index.blocks.write"),
    Ill(
        id="elasticsearch.blocks",
        breaks=put(index__blocks__read_only_allow_delete=True, index__blocks__read_only=True),
        says="index.blocks.read_only and index.blocks.read_only_allow_delete",
    ),
    Ill(
        id="elasticsearch.fields",
        breaks=put(index__mapping__total_fields__limit=15),
        says="of 15",
        severity=CONSIDER,
    ),
    Ill(id="elasticsearch.health", breaks=put(index__number_of_replicas=1), says="1 replica", severity=CONSIDER),
    Ill(id="elasticsearch.guard", breaks=guard_no_more, says="doctor-"),
    Ill(id="elasticsearch.left_over", breaks=leave_over(), says="-000099, of page", severity=CONSIDER),
    Ill(
        id="elasticsearch.left_over",
        breaks=leave_over("x", "{index}-syncer-write"),
        says="x-000099, of page",
        severity=CONSIDER,
    ),
    Ill(
        id="elasticsearch.forgotten",
        breaks=leave_over("y", "{alias}y", "{index}-syncer-write"),
        says="y find blog-",
    ),
    Ill(id="elasticsearch.epoch", breaks=forget_epoch, says="remembers none"),
]


@pytest.mark.parametrize("ill", ILLS, ids=lambda ill: f"{ill.id}-{ill.says}")
def test_what_is_broken_is_seen_and_mended(world: World, ill: Ill) -> None:
    """It is well, it is broken and seen, what the doctor says is pasted, and it is well again."""
    with world.elasticsearch() as client:
        if ill.id == "elasticsearch.health":
            client.indices.put_settings(index="syncer-state", settings={"index.number_of_replicas": 0})
        before = look(world, ill.id)
        assert is_well(before), before
        try:
            ill.breaks(client, world)
            found = look(world, ill.id)
            assert [one.severity for one in found] == [ill.severity], found
            assert ill.says in found[0].found
            mend(world, found[0])
            after = look(world, ill.id)
            assert is_well(after), after
        finally:
            client.options(ignore_status=404).indices.delete_index_template(name=f"doctor-{world.name}")


def test_an_index_that_is_gone_or_was_made_by_hand_is_seen_and_mended(world: World) -> None:
    """A mapping other than that which was applied is told of by field, and so is an index that is not there."""
    assert is_well(look(world, "elasticsearch.indices"))
    assert is_well(look(world, "elasticsearch.mapping"))
    name = world.index_of()
    with world.elasticsearch() as client:
        mapping = client.indices.get_mapping(index=name).body[name]["mappings"]
        client.indices.delete(index=name)
        (gone,) = look(world, "elasticsearch.indices")
        assert gone.severity is WRONG
        assert f"{name}, which blogpost is written to, is gone" in gone.found
        mapping["properties"]["title"] = {"type": "keyword"}
        client.indices.create(
            index=name, mappings=mapping, aliases={world.alias: {}, f"{name}-syncer-write": {"is_hidden": True}}
        )
        (other,) = look(world, "elasticsearch.mapping")
        assert other.severity is WRONG
        assert other.found.endswith("of title")
        client.indices.delete(index=name)
    mend(world, gone)
    assert is_well(look(world, "elasticsearch.indices"))
    assert is_well(look(world, "elasticsearch.mapping"))
    assert world.differences() == []


def test_templates_that_reach_for_our_indices_are_told_of(world: World) -> None:
    """A pipeline or a lifecycle from a template is wrong, anything else is to be considered."""
    assert is_well(look(world, "elasticsearch.templates"))
    name = f"doctor-{world.name}"
    with world.elasticsearch() as client:
        for settings, severity in (
            ({"index.default_pipeline": "p"}, WRONG),
            ({"index.gc_deletes": "1s"}, WRONG),
            ({"index.max_result_window": 5}, CONSIDER),
        ):
            client.indices.put_index_template(
                name=name, index_patterns=[f"{world.alias}-*"], template={"settings": settings}, priority=901
            )
            try:
                (found,) = look(world, "elasticsearch.templates")
            finally:
                client.indices.delete_index_template(name=name)
            assert found.severity is severity
            assert next(iter(settings)) in found.found
    assert is_well(look(world, "elasticsearch.templates"))


def test_a_sequence_that_was_set_back_is_seen_and_mended(world: World) -> None:
    """The documents have numbers that are yet to be drawn; the mend makes all that comes greater than all that is."""
    id_ = "elasticsearch.versions"
    assert is_well(look(world, id_))
    with world.index() as index, world.writer(index):
        world.sql("SELECT setval('syncer.version', 1)")
        with world.connect() as connection:
            connection.execute("SET application_name = 'syncer worker-9'")
            (found,) = look(world, id_)
    assert found.severity is WRONG
    assert "the sequence was set back" in found.found
    mend(world, found)
    assert is_well(look(world, id_))
    assert [one.severity for one in look(world, "postgres.incarnation")] == [CONSIDER]
    world.sql("UPDATE posts SET title = 'after'")
    with world.index() as index, world.relay() as relay, world.worker(index) as worker:
        world.drain(relay, worker)
    assert is_well(look(world, "postgres.incarnation"))
    assert is_well(look(world, id_))


def test_a_disk_that_was_restored_is_seen_and_mended(world: World) -> None:
    """Elasticsearch remembers a greater epoch than the database, which takes itself for the one that it was."""
    ((installation, epoch),) = world.sql("SELECT installation, epoch FROM syncer.incarnation")
    assert is_well(look(world, "elasticsearch.epoch"))
    with world.elasticsearch() as client:
        client.index(index="syncer-state", id=f"epoch-{installation}", document={"epoch": epoch + 4}, refresh=True)
    (found,) = look(world, "elasticsearch.epoch")
    assert found.severity is WRONG
    mend(world, found)
    world.backfill()
    assert world.sql("SELECT epoch FROM syncer.incarnation") == [(epoch + 5,)]
    assert is_well(look(world, "elasticsearch.epoch"))


def test_a_stranger_who_writes_to_the_index_is_told_of(world: World) -> None:
    """A version that syncer never draws is somebody else's, and the mend removes what he has made."""
    id_ = "elasticsearch.versions"
    with world.elasticsearch() as client:
        client.index(index=world.index_of(), id="99", document={"title": "mine"}, refresh=True)
        (found,) = look(world, id_)
        assert found.severity is WRONG
        assert "somebody else writes there" in found.found
        mend(world, found)
        client.indices.refresh(index=world.index_of())
        assert is_well(look(world, id_))
        client.index(
            index=world.index_of(),
            id="98",
            document={"title": "mine"},
            refresh=True,
            version=1 << EPOCH_SHIFT + 10,
            version_type="external",
        )
        (found,) = look(world, id_)
        assert found.severity is WRONG
        client.delete(
            index=world.index_of(), id="98", refresh=True, version=(1 << EPOCH_SHIFT + 10) + 1, version_type="external"
        )
        assert is_well(look(world, id_))


def test_what_an_index_cannot_have_here_is_judged_all_the_same(world: World) -> None:
    """Lifecycle policies are not in the sandbox's build: their setting is judged as Elasticsearch says it."""
    with Patient(world.settings, world.config) as patient:
        document = patient.documents[0]
        (found,) = judge_lifecycle(patient, document, {"index.lifecycle.name": "30-days"})
        assert found.severity is WRONG
        assert found.mend.text.endswith(f'/{document.index_name}/_ilm/remove"')
        assert list(judge_lifecycle(patient, document, {})) == []
    assert is_well(look(world, "elasticsearch.lifecycle"))


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A check that holds a figure against a limit.

    Args:
        id: Which check.
        limits: A limit that is passed already.
        worker: Settings that ask for more than there is.
    """

    id: str
    limits: Mapping[str, float] = field(default_factory=dict)
    worker: Mapping[str, Any] = field(default_factory=dict)


BOUNDS = [
    Bound(id="elasticsearch.disk", limits={"disk_free_share": 1.01}),
    Bound(id="elasticsearch.shards", limits={"shards_share": 0.0}),
    Bound(id="elasticsearch.clock", limits={"clock_seconds": -1}),
    Bound(id="elasticsearch.request_size", worker={"bulk_bytes_max": 200 * 1024**2}),
    Bound(id="syncer.threads", worker={"threads": 0}),
]


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.id)
def test_what_passes_its_limit_is_told_of(world: World, bound: Bound) -> None:
    """It is well with the limit that is given, and told of with one that is passed."""
    assert is_well(look(world, bound.id))
    settings = world.settings.model_copy(update={"worker": WorkerSettings(**bound.worker)})
    found = look(world, bound.id, limits=bound.limits, settings=settings)
    assert {one.severity for one in found} == {CONSIDER}


def test_times_fields_and_mappings_are_read_as_elasticsearch_says_them() -> None:
    """A time has a unit; a multi-field is a field; a dot is a step into an object; a default is as good as said."""
    assert [seconds(one) for one in ("3600s", "1h", "60m", "3600000ms", "-1", "0s")] == [3600, 3600, 3600, 3600, 0, 0]
    mapping = {"properties": {"a": {"type": "text", "fields": {"raw": {"type": "keyword"}}}, "b": {"properties": {}}}}
    assert count_fields(mapping) == 3
    wanted = {"properties": {"a.b": {"type": "long"}, "c": {"type": "object", "enabled": True}, "d": {"type": "date"}}}
    there = {"properties": {"a": {"properties": {"b": {"type": "long"}}}, "c": {"properties": {}}}}
    assert list(differences(wanted, there)) == ["d"]
    other = {"properties": {"t": {"type": "text", "analyzer": "english"}}}
    assert list(differences(other, {"properties": {"t": {"type": "text"}}})) == ["t"]
