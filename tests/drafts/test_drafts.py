"""A team keeps what `init` drafts of its schema: ten schemas, and generated ones."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from random import Random
from typing import Any

import pytest

from tests.drafts import random_schema, wanted
from tests.drafts.rows import Rows
from tests.support.world import World

NAMES = sorted(file.stem for file in wanted.SCHEMAS.glob("*.yaml"))
MANY = "SYNCER_TEST_SCHEMAS"
"""How many generated schemas are tried, if it is set."""
STAYING_MIN, ADDED_MAX, SQL_LINES_MAX = 0.8, 10, 120
SEARCHABLE = ("keyword", "boolean", "byte", "short", "integer", "long", "double", "float", "date", "text")


@pytest.fixture
def bare(empty_world: World) -> World:
    """A world without a document."""
    shutil.rmtree(empty_world.document_folder)
    empty_world.uses_kafka = False
    return empty_world


def drafted(world: World, name: str, *arguments: str) -> None:
    """`init` drafts a document, `plan` accepts it, and it is put active."""
    ended = world.syncer("init", *arguments, "--name", name)
    assert ended.returncode == 0, ended.stderr
    folder = world.config / "documents" / name
    (folder / "document.yaml").write_text(f"index: {world.alias_of(name)}\n")
    world.documents = (name,)
    planned = world.syncer("plan", "--json")
    assert planned.returncode == 0, planned.stdout + planned.stderr
    world.migrate()
    world.apply()


def followed(world: World, name: str, rows: Rows) -> None:
    """Random writers go on; no document becomes a dead letter, and all equal their SELECT."""
    with world.index() as index, world.worker(index) as worker:
        rows.write(15)
        world.handle(worker)
        world.refresh(index)
    assert world.sql("SELECT document, id, error FROM syncer.dead_letter") == []
    expected, held = world.expected(name), world.held(name)
    assert expected.keys() == held.keys()
    for id_, document in expected.items():
        # The oracle's session writes intervals in Postgres' own style.
        assert [key for key, value in document.items() if value != held[id_][key] and key != "duration"] == []


def leaves(properties: dict[str, Any], path: str = "", nested: str = "") -> Iterator[tuple[str, str, str]]:
    """The fields of a mapping that a term query finds: path, type, and the nested object around it."""
    for name, mapping in properties.items():
        place, kind = f"{path}{name}", mapping.get("type", "object")
        if "properties" in mapping:
            yield from leaves(mapping["properties"], f"{place}.", place if kind == "nested" else nested)
        elif kind == "flattened" or kind in SEARCHABLE:
            yield place, kind, nested


def values(document: Any, path: list[str]) -> Iterator[Any]:
    """The values at a path, out of arrays."""
    if isinstance(document, list):
        for element in document:
            yield from values(element, path)
    elif not path:
        yield document
    elif isinstance(document, dict):
        yield from values(document.get(path[0]), path[1:])


def found_by_term(world: World, name: str) -> int:
    """Each leaf finds a document by a value of it; how many were tried."""
    mapping = json.loads((world.config / "documents" / name / "index.json").read_text())["mappings"]["properties"]
    documents, tried = world.held(name), 0
    with world.elasticsearch() as client:
        for path, kind, nested in leaves(mapping):
            for id_, document in documents.items():
                shown = [value for value in values(document, path.split(".")) if value not in (None, "", {})]
                if not shown:
                    continue
                value, field = shown[0], f"{path}.keyword" if kind == "text" else path
                if kind == "flattened":
                    inner = [(key, one) for key, one in value.items() if isinstance(one, str | int)]
                    if not inner:
                        continue
                    field, value = f"{path}.{inner[0][0]}", inner[0][1]
                if len(str(value)) > 8191:
                    continue
                term: dict[str, Any] = {"term": {field: value}}
                term = {"nested": {"path": nested, "query": term}} if nested else term
                hits = client.search(index=world.alias_of(name), query=term, size=1000)["hits"]["hits"]
                assert id_ in {hit["_id"] for hit in hits}, (field, str(value)[:100])
                tried += 1
                break
    return tried


@pytest.mark.parametrize("name", NAMES)
def test_a_draft_is_what_a_team_wants(bare: World, name: str) -> None:
    """At least 80 % of its lines stay and at most ten are added; it is accepted, followed, and searched."""
    asked = wanted.read(name)
    bare.sql(asked.schema)
    with closing(Rows(bare.dsn, Random(name))) as rows:
        rows.write(20)
        drafted(bare, name, *asked.init)
        followed(bare, name, rows)
    folder = bare.config / "documents" / name
    figures = wanted.compare(asked, folder)
    assert figures.staying >= STAYING_MIN * figures.drafted, figures
    assert figures.added <= ADDED_MAX, figures
    assert len((folder / "select.sql").read_text().splitlines()) <= SQL_LINES_MAX
    assert found_by_term(bare, name) >= len(asked.mapping) // 2
    assert "Nothing to add" in bare.syncer("init", "--from-select", str(folder / "select.sql")).stdout


@pytest.mark.parametrize("seed", range(int(os.environ.get(MANY, "2"))))
def test_a_draft_of_a_generated_schema_is_followed(bare: World, seed: int) -> None:
    """Any tables, keys, types and references: the draft is accepted, and equals its SELECT after writers."""
    schema, arguments = random_schema.generated(Random(seed))
    bare.sql(schema)
    with closing(Rows(bare.dsn, Random(seed))) as rows:
        rows.write(10)
        drafted(bare, "generated", *arguments)
        followed(bare, "generated", rows)
