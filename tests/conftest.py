"""One sandbox for the whole run; a world of its own for each test that asks for one."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import structlog
from elasticsearch import Elasticsearch

from syncer.elasticsearch.client import open_client
from syncer.sandbox import Endpoints, Sandbox
from tests.support.breakpoints import HASTY
from tests.support.world import World, made, sandbox_in, sandbox_of_its_own

hypothesis.settings.register_profile("syncer", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("syncer")  # no test fails by the clock of a machine that has much to do

_OF_TERMINALS = frozenset(
    {
        *("CLICOLOR", "CLICOLOR_FORCE", "COLORTERM", "COLUMNS", "FORCE_COLOR", "GITHUB_ACTIONS", "LINES", "NO_COLOR"),
        *("PY_COLORS", "TERMINAL_WIDTH", "TTY_COMPATIBLE", "TTY_INTERACTIVE"),
    }
)
"""Environment variables that describe a terminal."""
KEPT_SANDBOX = "SYNCER_TEST_SANDBOX"
"""Names the folder of a sandbox that is to be used, and to be left running, for quick runs while developing."""


def pytest_configure() -> None:
    """What a test meets is what it says: no other terminal, no other login, and no proxy before this machine."""
    for name in [name for name in os.environ if name in _OF_TERMINALS or name.startswith("PG")]:
        del os.environ[name]
    os.environ["TERM"] = "xterm"
    # On a busy machine, a worker in this process would leave more to jobs, and a writer send smaller requests.
    for limit in ("documents.affected.SECONDS_MAX", "indexing.writer.BUILD_SECONDS_MAX"):
        pytest.MonkeyPatch().setattr(f"syncer.{limit}", 60.0)
    HASTY.carry_out()
    # Else a line is printed for each document that a test writes in this process.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1")))


def pytest_addoption(parser: pytest.Parser) -> None:
    """What is asked of a run."""
    parser.addoption("--soak-seconds", type=float, default=1800, help="how long the long soak takes (-m soak)")
    parser.addoption(
        "--soak-kafka", choices=("switched", "always", "never"), default="switched", help="how changes go in a soak"
    )
    parser.addoption("--soak-sabotage", metavar="NAME", help="which of tests.sabotages the soak is to find")
    parser.addoption("--soak-seed", type=int, help="repeats the choices of a soak, which has printed it")


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """Real Postgres, Kafka and Elasticsearch."""
    kept_folder = os.environ.get(KEPT_SANDBOX)
    if kept_folder:
        yield sandbox_in(Path(kept_folder))
        return
    with sandbox_of_its_own() as fresh:
        yield fresh


@pytest.fixture(scope="session")
def endpoints(sandbox: Sandbox) -> Endpoints:
    """Where the three servers answer."""
    return sandbox.start()


@pytest.fixture
def client(endpoints: Endpoints) -> Iterator[Elasticsearch]:
    """A plain client."""
    with open_client(endpoints.elasticsearch_url, request_timeout=60) as client:
        yield client


@pytest.fixture
def empty_world(sandbox: Sandbox, endpoints: Endpoints, tmp_path: Path) -> Iterator[World]:
    """A world with nothing in its database."""
    with made(World(sandbox=sandbox, endpoints=endpoints, folder=tmp_path)) as world:
        yield world


@pytest.fixture(scope="module")
def module_world(sandbox: Sandbox, endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world like `empty_world`, for all tests of a module."""
    with made(World(sandbox=sandbox, endpoints=endpoints, folder=tmp_path_factory.mktemp("module"))) as world:
        yield world


@pytest.fixture(scope="session")
def template(sandbox: Sandbox, endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """What every `world` is a copy of; no test uses it."""
    with made(World(sandbox=sandbox, endpoints=endpoints, folder=tmp_path_factory.mktemp("template"))) as world:
        world.set_up()
        yield world


@pytest.fixture
def world(sandbox: Sandbox, endpoints: Endpoints, template: World, tmp_path: Path) -> Iterator[World]:
    """A world with the blog's tables, the syncer schema and the blogpost document active."""
    with made(World(sandbox=sandbox, endpoints=endpoints, folder=tmp_path), template=template) as world:
        yield world


@pytest.fixture(scope="module")
def shared_world(
    sandbox: Sandbox, endpoints: Endpoints, template: World, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """A world like `world`, for all tests of a module that leave it as they found it."""
    folder = tmp_path_factory.mktemp("shared")
    with made(World(sandbox=sandbox, endpoints=endpoints, folder=folder), template=template) as world:
        yield world
