"""The servers are of the versions that were asked for."""

from __future__ import annotations

import psutil
import psycopg

from syncer.elasticsearch.client import open_client
from syncer.sandbox import Endpoints, Sandbox
from tests.support.world import VERSIONS


def test_servers_are_of_the_wanted_versions(sandbox: Sandbox, endpoints: Endpoints) -> None:
    """Each server itself says so; of Kafka, its class path does."""
    postgres = VERSIONS.postgres or sandbox.postgres.default_version
    kafka = VERSIONS.kafka or sandbox.kafka.default_version
    search = VERSIONS.opensearch or VERSIONS.elasticsearch or sandbox.elasticsearch.default_version
    with psycopg.connect(endpoints.postgres_dsn) as connection:
        assert connection.info.server_version // 10_000 == int(postgres)
    with open_client(endpoints.elasticsearch_url, request_timeout=60) as client:
        assert client.info()["version"]["number"].startswith(f"{search}.")
    assert sandbox.kafka.pid is not None
    assert f"/kafka_2.13-{kafka}." in " ".join(psutil.Process(sandbox.kafka.pid).cmdline())
    assert [server.version for server in sandbox.servers] == [postgres, kafka, search]
