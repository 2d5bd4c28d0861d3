"""Each server has several addresses, of which the first is dead, and the one in use dies: the others are used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from syncer.base.settings import ElasticsearchSettings
from syncer.elasticsearch.client import connect
from syncer.sandbox import Endpoints, Sandbox
from syncer.sandbox.postgres import PostgresServer
from tests.support.elasticsearch_proxy import Forward, Proxy
from tests.support.standbys import Standbys, ask, standbys
from tests.support.world import World, made
from tests.support.writers import fill

DEAD = "127.0.0.1:1"
CONNECTIONS = 10
"""How many clients are opened: each begins with a node that it assigns by lot."""


@pytest.fixture
def servers(sandbox: Sandbox) -> Iterator[Standbys]:
    """A Postgres of the test's own."""
    with standbys(sandbox) as opened:
        yield opened


@pytest.fixture
def standby(servers: Standbys) -> PostgresServer:
    """What follows it."""
    return servers.follow()


@pytest.fixture
def several(
    sandbox: Sandbox, endpoints: Endpoints, servers: Standbys, standby: PostgresServer, tmp_path: Path
) -> Iterator[World]:
    """The blog, with several addresses of Postgres and of Kafka."""
    primary, other = (urlsplit(one.address).netloc.rpartition("@")[2] for one in (servers.primary, standby))
    there = replace(
        endpoints,
        postgres_dsn=f"postgresql://postgres@{DEAD},{primary},{other}/postgres",
        kafka_bootstrap_servers=f"{DEAD},{endpoints.kafka_bootstrap_servers}",
    )
    with made(World(sandbox=sandbox, endpoints=there, folder=tmp_path)) as world:
        world.set_up()
        yield world


def gone(_: Forward) -> None:
    """The connection is closed, and nothing is done."""


def test_the_next_address_is_used(several: World, servers: Standbys, standby: PostgresServer) -> None:
    """Commands and the daemon pass over what is dead, and over a standby, also after a failover."""
    primary, other = (urlsplit(one.address).netloc.rpartition("@")[2] for one in (servers.primary, standby))
    with Proxy(several.endpoints.elasticsearch_url).running() as node:
        addresses = {
            "SYNCER_POSTGRES_DSN": f"postgresql://postgres@{DEAD},{other},{primary}/{several.name}",
            "SYNCER_ELASTICSEARCH_URL": f"http://{DEAD}, {node.address}, {several.endpoints.elasticsearch_url}",
        }
        fill(several)
        daemon = several.daemon(environment=addresses)
        several.wait_until_level()
        with node.spoiling(gone, path="/"):
            several.sql("UPDATE users SET name = 'a node is gone'")
            several.wait_until_level()
            servers.primary.kill()
            ask(standby, "SELECT pg_promote(true, 120)")
            several.sql("UPDATE users SET name = 'the primary is gone'")
            several.wait_until_level()
            assert several.syncer("verify", environment=addresses).returncode == 0
        assert daemon.stop() == 0


def test_any_node_is_enough(endpoints: Endpoints) -> None:
    """Whichever is asked first, there is an answer."""
    dead = ",".join(f"http://127.0.0.1:{port}" for port in (1, 2, 3))
    settings = ElasticsearchSettings(url=f"{dead},{endpoints.elasticsearch_url}")
    for _ in range(CONNECTIONS):
        with closing(connect(settings)) as client:
            assert client.info()["version"]
