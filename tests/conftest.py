"""One sandbox for the whole run; a world of its own for each test that asks for one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from syncer.sandbox import Endpoints, Sandbox
from tests.harness import World

KEPT_SANDBOX = "SYNCER_TEST_SANDBOX"
"""Names the folder of a sandbox that is to be used, and to be left running, for quick runs while developing."""


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """Real Postgres, Kafka and Elasticsearch."""
    kept = os.environ.get(KEPT_SANDBOX)
    if kept:
        yield Sandbox(Path(kept))
        return
    with tempfile.TemporaryDirectory(prefix="syncer-tests-") as folder:
        Path(folder).chmod(0o755)  # for root's servers, which run as nobody
        made = Sandbox(Path(folder) / "servers")
        try:
            yield made
        finally:
            made.stop()


@pytest.fixture(scope="session")
def endpoints(sandbox: Sandbox) -> Endpoints:
    """Where the three servers answer."""
    return sandbox.start()


@pytest.fixture
def empty_world(sandbox: Sandbox, endpoints: Endpoints, tmp_path: Path) -> Iterator[World]:
    """A world with nothing in its database."""
    world = World(sandbox=sandbox, endpoints=endpoints, folder=tmp_path)
    world.make()
    try:
        yield world
    finally:
        world.unmake()


@pytest.fixture
def world(empty_world: World) -> World:
    """A world with the blog's tables, the syncer schema and the blogpost document in force."""
    empty_world.set_up()
    return empty_world
