"""Vectors are drafted as dense_vector, and a field that would run a model on every write is said."""

from __future__ import annotations

import json

from tests.scenarios.test_init import drafted, followed
from tests.support.world import World


def test_vectors_are_drafted_and_searched(empty_world: World) -> None:
    """Types of pgvector and arrays of real, if all sampled ones are equally long; others stay numbers."""
    world = empty_world
    (world.config / "documents" / "blogpost").rename(world.folder / "unused")
    world.sql("""
        CREATE EXTENSION vector;
        CREATE TABLE texts (
            id integer PRIMARY KEY, given vector(3), any_size vector, half halfvec(2), plain real[], ragged real[],
            single real
        );
        INSERT INTO texts VALUES (1, '[1,0,0]', '[1,2]', '[1,2]', '{1,2,3}', '{1}', 1.5),
                                 (2, '[0,1,0]', '[3,4]', '[3,4]', '{4,5,6}', '{1,2}', 2);
        INSERT INTO texts VALUES (3)
    """)
    said = drafted(world, "--table", "texts")
    properties = json.loads((world.config / "documents" / "texts" / "index.json").read_text())["mappings"]["properties"]
    assert {name: (one["type"], one.get("dims")) for name, one in properties.items()} == {
        "id": ("integer", None),
        "given": ("dense_vector", 3),
        "any_size": ("dense_vector", 2),
        "half": ("dense_vector", 2),
        "plain": ("dense_vector", 3),
        "ragged": ("float", None),
        "single": ("float", None),
    }
    guessed = {line.strip().partition(":")[0] for line in said.splitlines() if "is a guess" in line}
    assert guessed == {"given", "any_size", "half", "plain"}
    followed(world)
    with world.elasticsearch() as client:
        knn = {"field": "given", "query_vector": [0, 1, 0], "k": 1, "num_candidates": 10}
        [hit] = client.search(index=world.alias_of("texts"), knn=knn)["hits"]["hits"]
    assert hit["_id"] == "2"
