"""Elasticsearch refuses a document for itself, for its neighbours or for its index: only the first is a dead letter."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from math import ceil, log2
from typing import Any
from unittest.mock import patch

import pytest
from elasticsearch import Elasticsearch
from structlog.testing import capture_logs

from syncer.apply import trial
from syncer.base.errors import DocumentError, IndexingError
from syncer.base.model import WriteReport
from syncer.documents import registry
from syncer.elasticsearch import bulk
from syncer.elasticsearch.indices import Indices
from syncer.jobs import queue
from syncer.jobs.model import JobKind
from syncer.worker import job_loop
from tests.faults.harness import DEAD_LETTERS, SUSPENDED, require_holds
from tests.support.inference import Model, model
from tests.support.world import VERSIONS, World, planned, wait_until

ROWS = 60
TABLE = """
CREATE TABLE things (id int PRIMARY KEY, n int, o json, at text, e float[], t text);
INSERT INTO things SELECT g, 0, '{"a": 1}', '2026', ARRAY[1, 2, 3] FROM generate_series(1, 60) AS g
"""
SELECT = "SELECT id AS _id, n, o, at, e, t FROM things"
MAPPINGS: dict[str, Any] = {
    "dynamic": "strict",
    "properties": {
        "n": {"type": "short"},
        "o": {"type": "object", "enabled": False},
        "at": {"type": "date", "format": "yyyy"},
        "e": {"type": "dense_vector", "dims": 3},
        "t": {"type": "keyword", "ignore_above": 10},
    },
}


def define(world: World, mappings: dict[str, Any], *, name: str = "thing", select: str = SELECT) -> None:
    """Have Elasticsearch 9 return vectors, too."""
    settings = {"index.mapping.exclude_source_vectors": False} if VERSIONS.elasticsearch == "9" else {}
    body = json.dumps({"mappings": mappings, "settings": settings})
    (world.define(name, select) / "index.json").write_text(body)


def make_things(world: World, mappings: dict[str, Any], *, select: str = SELECT, sql: str = "") -> World:
    """Sixty things in Postgres and in Elasticsearch, after this change of theirs."""
    world.use()
    world.documents = ("thing",)
    define(world, mappings, select=select)
    world.sql(TABLE + ";" + sql)
    world.migrate()
    world.apply()
    world.sql("TRUNCATE syncer.outbox")
    return world


@pytest.fixture
def thing_world(empty_world: World) -> World:
    """Sixty things in Postgres and in Elasticsearch."""
    return make_things(empty_world, MAPPINGS)


@pytest.fixture(scope="module")
def shared_things(module_world: World) -> World:
    """The same, for tests that leave all of them written."""
    return make_things(module_world, MAPPINGS)


def write(world: World) -> tuple[WriteReport, int]:
    """Write every thing; also how many bulk requests it took."""
    with world.index() as index, world.writer(index) as writer:
        client = index._client
        with patch.object(client, "bulk", wraps=client.bulk) as sent:
            ids = [str(id_) for (id_,) in world.sql("SELECT id FROM things ORDER BY id")]
            return writer.write(world.index_of("thing"), ids), sent.call_count


@contextmanager
def pipeline(world: World, *processors: Mapping[str, Any], kind: str = "default") -> Iterator[str]:
    """A pipeline before the index."""
    with world.elasticsearch() as client:
        client.ingest.put_pipeline(id=world.name, processors=list(processors))
        index, setting = world.index_of("thing"), f"index.{kind}_pipeline"
        client.indices.put_settings(index=index, settings={setting: world.name})
        try:
            yield f"{setting} of {index} is {world.name}"
        finally:
            client.indices.put_settings(index=index, settings={setting: "_none"})
            client.ingest.delete_pipeline(id=world.name)


# One document is at fault

POISON = {
    "a key twice": 'o = \'{"a": 1, "a": 2}\'',
    "a key of 60,000 letters": "o = ('{\"' || repeat('k', 60000) || '\": 1}')::json",
    "a number of 1,500 digits": "o = ('{\"n\": ' || repeat('1', 1500) || '}')::json",
    "a thousand levels": "o = ('{\"n\": ' || repeat('[', 1100) || repeat(']', 1100) || '}')::json",
    "a number out of range": "n = 70000",
    "another format of dates": "at = '1 May'",
    "a vector of two dimensions": "e = ARRAY[1, 2]",
}


@pytest.mark.parametrize("poison", POISON.values(), ids=POISON.keys())
def test_its_neighbours_are_written(shared_things: World, poison: str) -> None:
    """A document is dead-lettered if it is refused alone and others are not; each costs log2 n requests, and a few.

    If the index has a pipeline, it is not asked. Elasticsearch 8 would refuse a request for what that cannot parse.
    """
    shared_things.sql(f"UPDATE things SET n = 1; UPDATE things SET {poison} WHERE id IN (1, 30)")
    with pipeline(shared_things):
        report, requests = write(shared_things)
    poisoned = {id_ for id_, _ in shared_things.sql(DEAD_LETTERS)}
    if "60,000" not in poison and "60000" not in poison:  # Elasticsearch 9 takes such a name
        assert poisoned == {"1", "30"}
    assert (report.indexed, report.dead_lettered) == (ROWS - len(poisoned), len(poisoned))
    assert requests <= 2 + 2 * (2 * ceil(log2(ROWS)) + 1)
    assert shared_things.sql(SUSPENDED) == []
    shared_things.sql("UPDATE things SET o = '{}', n = 2, at = '2027', e = ARRAY[3, 2, 1]")
    assert write(shared_things)[0].indexed == ROWS
    assert shared_things.differences() == []
    assert shared_things.sql(DEAD_LETTERS) == []


def test_a_document_alone_is_at_fault_if_others_are_taken(thing_world: World) -> None:
    """One that is sent alone is compared with what the index holds; its definition goes on."""
    with thing_world.index() as index, thing_world.writer(index) as writer:
        for poison in POISON.values():
            thing_world.sql(f"UPDATE things SET {poison} WHERE id = 7")
            report = writer.write(thing_world.index_of("thing"), ["7"])
            assert report.dead_lettered + report.indexed == 1
            assert thing_world.sql(SUSPENDED) == []


def test_the_first_rows_of_a_table_may_be_at_fault(thing_world: World) -> None:
    """In an index that holds nothing, what one document holds is its own fault, and later ones are written."""
    thing_world.sql("DELETE FROM things")
    thing_world.backfill("thing")
    thing_world.sql("INSERT INTO things (id, n) VALUES (1, 70000), (2, -70000)")
    assert write(thing_world)[0].dead_lettered == 2
    thing_world.sql("INSERT INTO things (id, n) VALUES (3, 1)")
    assert write(thing_world)[0].indexed == 1


# The index is at fault


@contextmanager
def no_pipeline(world: World) -> Iterator[str]:
    """A pipeline that the index names is gone."""
    with world.elasticsearch() as client:
        name = world.index_of("thing")
        client.indices.put_settings(index=name, settings={"index.final_pipeline": f"{world.name}-gone"})
        yield f"{world.name}-gone"
        client.indices.put_settings(index=name, settings={"index.final_pipeline": "_none"})


@contextmanager
def two_indices(world: World) -> Iterator[str]:
    """Another index has the write alias, as a copy under another name, and none is the one to write to."""
    copy, name = f"{world.alias}-copy", world.index_of("thing")
    alias = {"alias": world.write_alias_of("thing"), "is_hidden": True}
    with world.elasticsearch() as client:
        client.indices.create(index=copy)
        adds = [{"add": {**alias, "index": index, "is_write_index": False}} for index in (name, copy)]
        client.indices.update_aliases(actions=adds)
        yield "leads to"
        client.indices.delete(index=copy)
        client.indices.update_aliases(actions=[{"add": {**alias, "index": name, "is_write_index": True}}])


@contextmanager
def closed_pipeline(world: World) -> Iterator[str]:
    """A pipeline fails for whatever comes."""
    with pipeline(world, {"fail": {"message": "closed for today"}}, kind="final") as words:
        yield words


Fault = Callable[[World], AbstractContextManager[str]]
FAULTS: list[Fault] = [no_pipeline, two_indices, *([closed_pipeline] if VERSIONS.elasticsearch == "9" else [])]


@pytest.mark.parametrize("fault", FAULTS)
def test_an_index_that_refuses_every_document_is_suspended(thing_world: World, fault: Fault) -> None:
    """Its cause is named, and only a row is blamed that is at fault whatever the index is; later no change is lost."""
    thing_world.daemon()
    with fault(thing_world) as words:
        thing_world.sql("UPDATE things SET n = 1 WHERE id < 20")
        wait_until(lambda: bool(thing_world.sql(SUSPENDED)), what="it is suspended")
        ((name, reason),) = thing_world.sql(SUSPENDED)
        assert (name, words in reason) == ("thing", True)
        thing_world.sql("UPDATE things SET n = 70000 WHERE id = 5")
        thing_world.sql("UPDATE things SET n = 2 WHERE id > 50; DELETE FROM things WHERE id = 9")
    wait_until(lambda: [id_ for id_, _ in thing_world.sql(DEAD_LETTERS)] == ["5"], what="the row is dead-lettered")
    thing_world.sql("UPDATE things SET n = 3 WHERE id = 5")
    require_holds(thing_world)


# What is accepted does not reach the index


@contextmanager
def moved_alias(world: World, *, keeps: bool = False) -> Iterator[str]:
    """The write alias leads to another index, alone or beside its own."""
    name, foreign = world.index_of("thing"), f"{world.alias}-other"
    alias = {"alias": world.write_alias_of("thing"), "is_hidden": True}
    with world.elasticsearch() as client:
        client.indices.create(index=foreign)
        alias_change = {"add": {**alias, "index": name, "is_write_index": False}}
        alias_change = alias_change if keeps else {"remove": {"index": name, "alias": alias["alias"]}}
        client.indices.update_aliases(
            actions=[alias_change, {"add": {**alias, "index": foreign, "is_write_index": True}}]
        )
        yield "leads to"
        client.indices.delete(index=foreign)
        client.indices.update_aliases(actions=[{"add": {**alias, "index": name, "is_write_index": True}}])


@pytest.mark.parametrize("keeps", [False, True])
def test_a_success_counts_in_the_index_alone(thing_world: World, *, keeps: bool) -> None:
    """A writer that has written before notices, too: its definition is suspended, and resumes without stale ones."""
    name = thing_world.index_of("thing")
    with thing_world.index() as index, thing_world.writer(index) as writer, thing_world.job_worker(index) as job_worker:
        writer.write(name, ["1"])
        thing_world.sql("UPDATE things SET n = 1")
        with moved_alias(thing_world, keeps=keeps) as words, pytest.raises(DocumentError, match=words):
            writer.write(name, [str(id_) for id_ in range(1, ROWS + 1)])
        wait_until(lambda: job_worker.run_once() >= 0 and not thing_world.sql(SUSPENDED), what="it resumes")
    assert write(thing_world)[0].dead_lettered == 0
    assert thing_world.differences() == []


@pytest.mark.parametrize("keeps", [False, True])
def test_a_delete_counts_in_the_index_alone(thing_world: World, *, keeps: bool) -> None:
    """Another index has no such document, and says so."""
    with thing_world.index() as index, thing_world.writer(index) as writer:
        writer.write(thing_world.index_of("thing"), ["1"])
        thing_world.sql("DELETE FROM things WHERE id IN (7, 8)")
        with moved_alias(thing_world, keeps=keeps), pytest.raises(DocumentError, match="leads to"):
            writer.write(thing_world.index_of("thing"), ["7", "8"])


# A pipeline between the request and the index

PROCESSORS: dict[str, list[dict[str, Any]]] = {"does nothing": []}
REFUSING: dict[str, list[dict[str, Any]]] = {}
if VERSIONS.elasticsearch == "9":  # the reduced build of 8 has no processors
    PROCESSORS |= {
        "sets a field": [{"set": {"field": "at", "value": "1999"}}],
        "removes a field": [{"remove": {"field": "e"}}],
        "renames a field": [{"remove": {"field": "t"}}, {"rename": {"field": "at", "target_field": "t"}}],
        "sets the id": [{"set": {"field": "_id", "value": "other-{{{n}}}"}}],
        "takes the id of another": [{"set": {"field": "_id", "value": "60"}}],
        "drops some": [{"drop": {"if": "ctx.n % 20 == 7"}}],
    }
    REFUSING = {
        "reroutes": [{"reroute": {"destination": "syncer-nowhere"}}],
        "fails": [{"fail": {"message": "closed for today"}}],
    }


@pytest.mark.parametrize("processors", (PROCESSORS | REFUSING).values(), ids=PROCESSORS | REFUSING)
def test_a_default_pipeline_has_no_effect(thing_world: World, processors: list[dict[str, Any]]) -> None:
    """Nothing between the request and the index may change what is sent; it is not even asked, so nothing is late."""
    with pipeline(thing_world, *processors):
        thing_world.sql("UPDATE things SET n = id")
        assert write(thing_world)[0].dead_lettered == 0
        assert (thing_world.differences(), thing_world.sql(SUSPENDED)) == ([], [])
        thing_world.backfill("thing")
    assert (thing_world.differences(), thing_world.sql(DEAD_LETTERS)) == ([], [])


@pytest.mark.parametrize("processors", (PROCESSORS | REFUSING).values(), ids=PROCESSORS | REFUSING)
def test_a_final_pipeline_suspends_and_is_made_up_for(thing_world: World, processors: list[dict[str, Any]]) -> None:
    """A daemon that has written before names it with the next write; once it is lifted, no document stays changed."""
    daemon = thing_world.daemon()
    thing_world.sql("UPDATE things SET n = 1")
    daemon.wait_for("worker.batch_indexed")
    with pipeline(thing_world, *processors, kind="final") as words:
        thing_world.sql("UPDATE things SET n = id WHERE id < 30")
        wait_until(lambda: bool(thing_world.sql(SUSPENDED)), what="it is suspended")
        assert words in thing_world.sql(SUSPENDED)[0][1]
        thing_world.sql("UPDATE things SET n = 3 WHERE id IN (7, 50)")
    daemon.wait_for("job.finished")
    require_holds(thing_world)
    assert thing_world.sql(DEAD_LETTERS) == []


@pytest.mark.parametrize("processors", PROCESSORS.values(), ids=PROCESSORS)
def test_a_pipeline_that_is_lifted_before_the_answer_is_made_up_for(
    thing_world: World, processors: list[dict[str, Any]]
) -> None:
    """The answer itself tells that a pipeline was at work, however short that was: no look at settings would."""
    name = thing_world.index_of("thing")
    thing_world.sql("UPDATE things SET n = id")
    with thing_world.index() as index, thing_world.writer(index) as writer, thing_world.job_worker(index) as job_worker:
        writer.write(name, ["1"])
        bulk = index._client.bulk
        with pipeline(thing_world, *processors, kind="final") as words, thing_world.elasticsearch() as client:

            def lifted(**request: Any) -> Any:
                answer = bulk(**request)
                client.indices.put_settings(index=name, settings={words.split()[0]: "_none"})
                return answer

            with patch.object(index._client, "bulk", lifted), pytest.raises(DocumentError, match="pipeline"):
                writer.write(name, [str(id_) for id_ in range(1, ROWS + 1)])
        wait_until(lambda: job_worker.run_once() >= 0 and not thing_world.sql(SUSPENDED), what="it resumes")
        wait_until(lambda: job_worker.run_once() >= 0 and not thing_world.differences(), what="it is refreshed")
    assert thing_world.sql(DEAD_LETTERS) == []


def test_rows_at_fault_do_not_keep_their_definition_suspended(thing_world: World) -> None:
    """What is tried before it resumes may be at fault itself: it resumes if the index takes others."""
    thing_world.sql("UPDATE things SET n = 70000 WHERE id < 3")
    with thing_world.index() as index, thing_world.writer(index) as writer:
        with no_pipeline(thing_world), pytest.raises(DocumentError):
            writer.write(thing_world.index_of("thing"), ["1", "2"])
        assert writer.write(thing_world.index_of("thing"), ["1", "2"], resumes=True).dead_lettered == 2
    assert [id_ for id_, _ in thing_world.sql(DEAD_LETTERS)] == ["1", "2"]


def test_a_definition_of_one_document_is_suspended_and_resumes(thing_world: World) -> None:
    """Nothing else tells whether the document or its pipeline is at fault."""
    thing_world.sql("DELETE FROM things WHERE id > 1; UPDATE things SET n = 5")
    thing_world.backfill("thing")
    thing_world.sql("UPDATE things SET n = 6")
    with no_pipeline(thing_world) as words, pytest.raises(DocumentError, match=words):
        write(thing_world)
    with thing_world.index() as index, thing_world.job_worker(index) as job_worker:
        wait_until(lambda: job_worker.run_once() >= 0 and not thing_world.sql(SUSPENDED), what="it resumes")
    write(thing_world)
    assert (thing_world.differences(), thing_world.sql(DEAD_LETTERS)) == ([], [])


# A model that embeds a field


@pytest.fixture
def embedded(empty_world: World) -> Iterator[tuple[World, Model]]:
    """Half of the things have a text, which a model of another server embeds."""
    with empty_world.elasticsearch() as client, model(client, empty_world.name) as served:
        fields = mappings(t={"type": "semantic_text", "inference_id": empty_world.name})
        yield make_things(empty_world, fields, sql="UPDATE things SET t = 'text ' || id WHERE id % 2 = 0"), served


def texts(client: Elasticsearch, world: World) -> dict[int, str | None]:
    """What the index shows."""
    client.indices.refresh(index=world.alias_of("thing"))
    hits = client.search(index=world.alias_of("thing"), size=1000).body["hits"]["hits"]
    titles = {int(hit["_id"]): hit["_source"].get("t") for hit in hits}
    return {id_: text["text"] if isinstance(text, dict) else text for id_, text in titles.items()}


@pytest.mark.parametrize("status", [400, 500, 503])
def test_a_model_that_is_away_for_a_while_leaves_no_dead_letter(embedded: tuple[World, Model], status: int) -> None:
    """Neither of documents with a text, in company or alone, nor of others; changes meanwhile are written later."""
    world, served = embedded
    world.daemon()
    served.status = status
    world.sql("UPDATE things SET t = 'now ' || id WHERE id = 2")
    wait_until(lambda: bool(world.sql(SUSPENDED)), what="it is suspended")
    world.sql("UPDATE things SET t = 'later ' || id WHERE id % 3 = 0")
    served.status = 200
    wait_until(lambda: not world.sql(SUSPENDED), what="it resumes")
    with world.elasticsearch() as client:
        expected = dict(world.sql("SELECT id, t FROM things"))
        wait_until(lambda: texts(client, world) == expected, what="every text is written")
    assert world.sql(DEAD_LETTERS) == []


@pytest.mark.skipif(VERSIONS.elasticsearch != "9", reason="before 9, a document is returned with what the model said")
def test_a_refresh_embeds_no_text_that_is_there(embedded: tuple[World, Model]) -> None:
    """Elasticsearch returns the documents of such an index without the spaces with which they were written."""
    world, _ = embedded
    with world.index() as index, world.connect() as connection:
        job = queue.create(connection, registry.named(connection, "thing")[0], JobKind.REFRESH)
        assert job is not None
        world.refresh(index)
    assert world.sql("SELECT skipped, indexed FROM syncer.job WHERE id = %s", job.id) == [(ROWS, 0)]


def test_a_text_that_a_model_refuses_takes_no_neighbour(embedded: tuple[World, Model]) -> None:
    """The model refuses all texts of a request for one of them: that one is dead-lettered, also when tried again."""
    world, served = embedded
    served.refused = "harsh"
    world.sql("UPDATE things SET t = 'mild ' || id; UPDATE things SET t = 'harsh ' || id WHERE id IN (12, 13, 50)")
    for _ in range(2):
        assert write(world)[0].dead_lettered == 3
        assert [id_ for id_, _ in world.sql(DEAD_LETTERS)] == ["12", "13", "50"]
    with world.elasticsearch() as client:
        shown = {id_ for id_, text in texts(client, world).items() if text == f"mild {id_}"}
    assert shown == set(range(1, ROWS + 1)) - {12, 13, 50}
    served.refused = "-"
    assert write(world)[0].dead_lettered == 0
    assert world.sql(DEAD_LETTERS) == []


# What is put right by hand: no change of a row tells

NO_TEXT = "UPDATE things SET t = NULL"
RARE = "UPDATE things SET t = 'rare', o = '{\"b\": 1}' WHERE id > 50"
FAILING = (
    "CREATE OR REPLACE FUNCTION shown(t text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN {} RETURN t; END $$"
)
Repair = Callable[[], object]


def mappings(**changes: Any) -> dict[str, Any]:
    """The mappings of things with other fields, or without one."""
    properties = {**MAPPINGS["properties"], **changes}
    return {**MAPPINGS, "properties": {name: field for name, field in properties.items() if field}}


@contextmanager
def rare_model(world: World) -> Iterator[Repair]:
    """A model is away, and no document that was written has its field."""
    with world.elasticsearch() as client, model(client, world.name) as served:
        make_things(world, mappings(t={"type": "semantic_text", "inference_id": world.name}), sql=NO_TEXT)
        served.status = 400  # Elasticsearch itself would repeat a 503 for half a minute
        yield lambda: setattr(served, "status", 200)


@contextmanager
def few_fields(world: World) -> Iterator[Repair]:
    """An index may have no more fields than it has."""
    make_things(world, mappings(o={"dynamic": True, "properties": {"a": {"type": "long"}}}), sql=NO_TEXT)
    with world.elasticsearch() as client:
        limit = partial(client.indices.put_settings, index=world.index_of("thing"))
        limit(settings={"index.mapping.total_fields.limit": 6})
        yield lambda: limit(settings={"index.mapping.total_fields.limit": 60})


@contextmanager
def strict_mapping(world: World) -> Iterator[Repair]:
    """A mapping lacks a field."""
    make_things(world, mappings(o={"dynamic": "strict", "properties": {"a": {"type": "long"}}}), sql=NO_TEXT)
    with world.elasticsearch() as client:
        properties = {"o": {"properties": {"b": {"type": "long"}}}}
        yield lambda: client.indices.put_mapping(index=world.index_of("thing"), properties=properties)


@contextmanager
def failing_function(world: World) -> Iterator[Repair]:
    """A function of the SELECT fails for some rows."""
    function = FAILING.format("IF t = 'rare' THEN RAISE 'not yet'; END IF;")
    make_things(world, MAPPINGS, select=SELECT.replace(", t ", ", public.shown(t) AS t "), sql=function)
    yield lambda: world.sql(FAILING.format(""))


@contextmanager
def slow_function(world: World) -> Iterator[Repair]:
    """A function of the SELECT does not end in time for some rows, as while a disk hangs."""
    function = FAILING.format("IF t = 'rare' THEN RAISE 'timeout' USING ERRCODE = 'query_canceled'; END IF;")
    make_things(world, MAPPINGS, select=SELECT.replace(", t ", ", public.shown(t) AS t "), sql=function)
    yield lambda: world.sql(FAILING.format(""))


@pytest.mark.parametrize("fault", [rare_model, few_fields, strict_mapping, failing_function, slow_function])
def test_no_dead_letter_is_for_good(
    empty_world: World, fault: Callable[[World], AbstractContextManager[Repair]]
) -> None:
    """Each is tried alone, in turn; a failure changes no dead letter and is not logged, and a success tries more."""
    world = empty_world
    recorded = partial(world.sql, "SELECT *, recorded_in::text FROM syncer.dead_letter ORDER BY id")
    with fault(world) as repair, world.index() as index, world.job_worker(index) as job_worker:
        world.sql(RARE)
        assert write(world)[0].dead_lettered == 10
        letters, turn, submit = recorded(), job_worker.run_once, job_worker._writers.submit
        with (
            patch.object(job_loop, "_LETTERS_SECONDS", 0),
            patch.object(job_loop, "_SLOW_LETTERS_SECONDS", 0),
            patch.object(job_worker._writers, "submit", wraps=submit) as tried,
            capture_logs() as logs,
        ):
            wait_until(lambda: turn() >= 0 and tried.call_count > 12, what="each is tried")
            assert [call.args[1] for call in tried.call_args_list[:10]] == [[letter[1]] for letter in letters]
            assert (recorded(), world.sql(SUSPENDED)) == (letters, [])
            assert [event for event in logs if event["log_level"] == "error"] == []
            repair()
            wait_until(lambda: turn() >= 0 and not recorded(), what="none is left")
        assert max(len(call.args[1]) for call in tried.call_args_list) > 1
        assert write(world)[0].indexed == ROWS


def test_a_trial_blames_no_document_for_its_cluster(thing_world: World) -> None:
    """If no shard is allocated to the scratch index, plan fails with that, and calls no sampled document faulty."""
    define(thing_world, MAPPINGS, name="other")
    nowhere = {"settings": {"index.routing.allocation.require._name": "no-such-node"}}
    template: dict[str, Any] = {"index_patterns": [f"{thing_world.alias_of('other')}*"], "template": nowhere}
    with thing_world.connect() as connection, thing_world.elasticsearch() as client, thing_world.index() as index:
        steps = planned(connection, Indices(client), thing_world.config).steps
        [step] = [step for step in steps if step.document.name == "other"]
        client.indices.put_index_template(name=thing_world.name, priority=400, **template)
        _, rows, _ = trial.take_sample(connection, step.document, ["1"], 1)
        with (
            patch.object(client.indices, "create", partial(client.indices.create, timeout="1s")),
            patch.object(bulk, "_WAIT_FOR_SHARD", "1s"),
            pytest.raises(IndexingError, match="not taken: unavailable_shards_exception"),
        ):
            trial.write_sample(index, Indices(client), step, rows, {})
        client.indices.delete_index_template(name=thing_world.name)
