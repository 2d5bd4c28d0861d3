"""Servers that the protocol cannot rest on are refused, with what is needed instead."""

from __future__ import annotations

from typing import Any

import pytest

from syncer.base import postgres
from syncer.base.errors import IndexingError, SourceError
from syncer.elasticsearch import client


@pytest.mark.parametrize("version", [90624, 120022, 130000, 130021, 139999])
def test_an_old_postgres_is_refused(version: int) -> None:
    """Before Postgres 14 syncer does not begin."""
    with pytest.raises(SourceError, match=rf"Postgres {version // 10000} is not supported") as refused:
        postgres.require_supported(version)
    assert "14 or newer" in refused.value.hint


@pytest.mark.parametrize("version", [140000, 140019, 150000, 160004, 170000, 180000, 190000])
def test_a_postgres_from_14_on_is_taken(version: int) -> None:
    """Postgres 14 and everything after it will do."""
    postgres.require_supported(version)


def info(number: str, **more: Any) -> dict[str, Any]:
    """What ``GET /`` answers."""
    return {"name": "node", "version": {"number": number, "lucene_version": "9", **more}, "tagline": "…"}


@pytest.mark.parametrize("number", ["1.7.5", "6.8.23", "7.17.29", "7.17.0-SNAPSHOT"])
def test_an_old_elasticsearch_is_refused(number: str) -> None:
    """Before Elasticsearch 8 syncer does not begin."""
    with pytest.raises(IndexingError, match=rf"Elasticsearch {number} is not supported") as refused:
        client.require_supported(info(number))
    assert "8 or newer" in refused.value.hint


@pytest.mark.parametrize("number", ["8.0.0", "8.16.6", "8.19.0-SNAPSHOT", "9.0.0", "9.2.1", "10.0.0"])
def test_an_elasticsearch_from_8_on_is_taken(number: str) -> None:
    """Elasticsearch 8, 9 and everything after will do."""
    client.require_supported(info(number, build_flavor="default"))


@pytest.mark.parametrize("number", ["1.3.20", "2.19.0", "3.0.0", "8.0.0"])
def test_opensearch_is_refused(number: str) -> None:
    """A relative is not Elasticsearch, whatever its number."""
    with pytest.raises(IndexingError, match=f"opensearch {number}, not Elasticsearch") as refused:
        client.require_supported(info(number, distribution="opensearch"))
    assert "Elasticsearch 8 or newer" in refused.value.hint


@pytest.mark.parametrize("answer", [{}, {"version": {}}, {"ok": True}])
def test_an_answer_without_a_version_is_refused(answer: dict[str, Any]) -> None:
    """Something that does not say what it is will not do."""
    with pytest.raises(IndexingError):
        client.require_supported(answer)
