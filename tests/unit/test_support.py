"""Servers that the protocol cannot rest on are refused, with what is needed instead."""

from __future__ import annotations

import json
from typing import Any

import pytest
from elasticsearch import ApiError, SerializationError

from syncer.base import postgres
from syncer.base.error_policy import explain
from syncer.base.errors import IndexingError, SourceError
from syncer.base.settings import ElasticsearchSettings
from syncer.elasticsearch import client
from tests.support.elasticsearch_proxy import Answer, Proxy


def test_postgres_elasticsearch_and_opensearch_are_supported_from_a_version_on() -> None:
    """Also what comes after the newest that is known. An older Postgres is refused."""
    for version in (140000, 180000, 190000):
        postgres.require_supported(version)
    for number in ("8.0.0", "8.19.0-SNAPSHOT", "9.2.1", "10.0.0"):
        client.require_supported(info(number, build_flavor="default"))
    for number in ("2.19.0", "2.19.6", "3.0.0-SNAPSHOT", "3.8.0", "4.0.0"):
        client.require_supported(info(number, distribution="opensearch"))
    with pytest.raises(SourceError, match="Postgres 13 is not supported") as refused:
        postgres.require_supported(139999)
    assert "14 or newer" in refused.value.hint


def info(number: str, **more: Any) -> dict[str, Any]:
    """What ``GET /`` answers."""
    return {"name": "node", "version": {"number": number, "lucene_version": "9", **more}, "tagline": "…"}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (info("7.17.29"), "Elasticsearch 7.17.29 is not supported"),
        (info("7.17.0-SNAPSHOT"), "Elasticsearch 7.17.0-SNAPSHOT is not supported"),
        (info("2.18.9", distribution="opensearch"), "OpenSearch 2.18.9 is not supported"),
        (info("1.3.20", distribution="opensearch"), "OpenSearch 1.3.20 is not supported"),
        (info("8.0.0", distribution="elassandra"), "elassandra 8.0.0 is not supported"),
        ({}, "."),
        ({"version": {}}, "."),
    ],
)
def test_older_and_other_servers_are_refused(answer: dict[str, Any], message: str) -> None:
    """A relative of Elasticsearch too, whatever its number, and what does not say what it is."""
    with pytest.raises(IndexingError, match=message):
        client.require_supported(answer)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (info("7.10.2") | {"tagline": "You Know, for Search"}, "Elasticsearch 7.10.2 is not supported"),
        (info("1.0.0", distribution="opensearch"), "OpenSearch 1.0.0 is not supported"),
        (info("9.0.0"), "does not say that it is a search server"),
        ({"version": "3.8.0"}, "does not say that it is a search server"),
        (["version"], "does not say that it is a search server"),
        ("{", "something other than JSON"),
    ],
)
def test_what_answers_without_the_header_is_told_apart(answer: Any, message: str) -> None:
    """Servers of before 7.14, and OpenSearch, name themselves in the body alone; other programs also have versions."""
    body = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
    told = Answer(status=200, body=body, headers={"Content-Type": "application/json"})
    proxy = Proxy("http://127.0.0.1:1")
    with (
        proxy.running(),
        proxy.spoiling(lambda _: told, path="/"),
        pytest.raises((IndexingError, ApiError, SerializationError)) as refused,
    ):
        client.connect(ElasticsearchSettings(url=proxy.address))
    explained = explain(refused.value)
    assert explained is not None
    assert message in explained.message


@pytest.mark.parametrize(
    ("realm", "message"),
    [("OpenSearch Security", " refuses the login: Unauthorized"), ("proxy", "does not say that it is a search server")],
)
def test_the_security_plugin_of_opensearch_2_is_no_proxy(realm: str, message: str) -> None:
    """It refuses a login in plain text, and names itself in the realm alone, as 2.19.4 does; a proxy has another."""
    headers = {"Content-Type": "text/plain; charset=UTF-8", "WWW-Authenticate": f'Basic realm="{realm}"'}
    told = Answer(status=401, body=b"Unauthorized", headers=headers)
    proxy = Proxy("http://127.0.0.1:1")
    with proxy.running(), proxy.spoiling(lambda _: told, path="/"), pytest.raises(ApiError) as refused:
        client.connect(ElasticsearchSettings(url=proxy.address))
    explained = explain(refused.value)
    assert explained is not None
    assert message in explained.message
