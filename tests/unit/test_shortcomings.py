"""An index is judged by one answer about it: each shortcoming once, with a remedy; what is harmless is none."""

from __future__ import annotations

from typing import Any

import pytest

from syncer.base.model import Target
from syncer.elasticsearch import shortcomings
from syncer.elasticsearch.shortcomings import Effect

TARGET = Target.of_index("blog-1")
WRITES = {TARGET.write_alias: {"is_hidden": True}}


def judged(settings: dict[str, Any], mappings: dict[str, Any] | None = None, **index_facts: Any) -> list[Effect]:
    """The effects of what is found of an index that remembers deletes."""
    settings = {"index.gc_deletes": "1h"} | settings
    answer = {"blog-1": {"aliases": WRITES, "settings": settings, "mappings": mappings or {}} | index_facts}
    return [
        shortcoming.effect for shortcoming in shortcomings.find(TARGET, answer, searched_as="blog", has_routing=False)
    ]


VECTOR = {"properties": {"a": {"type": "nested", "properties": {"b": {"type": "dense_vector"}}}}}


@pytest.mark.parametrize(
    ("settings", "mappings", "others", "effects"),
    [
        ({}, {}, {}, []),
        ({"index.lifecycle.name": "hot-warm"}, {}, {}, [Effect.ENDANGERS]),
        ({"index.lifecycle.name": ""}, {}, {}, []),
        ({"index.refresh_interval": "-1"}, {}, {}, [Effect.ENDANGERS]),
        ({"index.mode": "lookup"}, {}, {}, []),
        ({"index.mode": "TIME_SERIES"}, {}, {}, [Effect.REFUSES]),
        ({"index.gc_deletes": "59m"}, {}, {}, [Effect.ALTERS]),
        ({"index.gc_deletes": "1d"}, {}, {}, []),
        ({"index.verified_before_close": "true"}, {}, {}, [Effect.REFUSES]),
        ({"index.blocks.write": "true", "index.blocks.read": "true"}, {}, {}, [Effect.REFUSES, Effect.REFUSES]),
        ({}, {}, {"defaults": {"index.mapping.exclude_source_vectors": "true"}}, []),
        ({}, VECTOR, {"defaults": {"index.mapping.exclude_source_vectors": "true"}}, [Effect.ALTERS]),
        ({"index.mapping.exclude_source_vectors": "false"}, VECTOR, {}, []),
        ({"index.mapping.source.mode": "SYNTHETIC"}, {"_source": {"mode": "stored"}}, {}, []),
        ({"index.mapping.source.mode": "STORED"}, {"_source": {"mode": "synthetic"}}, {}, [Effect.ALTERS]),
        ({}, {"_source": {"enabled": True}}, {}, []),
        ({}, {"_routing": {"required": True}}, {}, [Effect.REFUSES]),
        ({}, {}, {"aliases": {}}, [Effect.REFUSES]),
        ({}, {}, {"aliases": {TARGET.write_alias: {"is_write_index": False}}}, [Effect.REFUSES]),
        ({}, {}, {"aliases": WRITES | {"blog": {"search_routing": "1"}}}, [Effect.HIDES]),
        ({}, {}, {"aliases": WRITES | {"team": {"filter": {}}, "blog": {}}}, []),
    ],
)
def test_each_shortcoming_is_found_once(
    settings: dict[str, Any], mappings: dict[str, Any], others: dict[str, Any], effects: list[Effect]
) -> None:
    """Values as Elasticsearch returns them, of the index and by default."""
    assert judged(settings, mappings, **others) == effects


def test_an_index_that_is_gone_or_not_alone_is_named() -> None:
    """What else its write alias leads to is named, with the request that takes it out."""
    (absence,) = shortcomings.find(TARGET, {})
    index = {"aliases": WRITES, "settings": {}, "mappings": {}}
    (shortcoming,) = shortcomings.find(TARGET, {"blog-1": index, "blog-1-copy": index})
    (renamed,) = shortcomings.find(TARGET, {"another": index})
    assert ("is gone" in absence.problem, "syncer apply" in absence.hint) == (True, True)
    assert renamed.problem.endswith("another has its name or its write alias")
    assert ("blog-1-copy" in shortcoming.problem, shortcoming.remedy.startswith("POST /_aliases")) == (True, True)
