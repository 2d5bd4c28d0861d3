"""A server that goes away and comes back costs time, never a change."""

from __future__ import annotations

import time

import pytest

from tests.faults.writers import fill, writing
from tests.harness import DEADLINE_SECONDS, World
from tests.proof import faces


@faces("each of the servers is killed under load, and comes back", promises=(1, 2, 3))
@pytest.mark.parametrize("name", ["postgres", "kafka", "elasticsearch"])
def test_the_daemon_outlives_a_crash(world: World, name: str) -> None:
    """SIGKILL of a server under load: the daemon waits, says so once, and goes on by itself."""
    fill(world)
    daemon = world.daemon()
    world.wait_until_level()
    server = getattr(world.sandbox, name)
    if name == "postgres":
        server.kill()
        try:
            daemon.wait_for("stage.retried")
        finally:
            server.start()
        with writing(world):
            time.sleep(3)
    else:
        with writing(world):
            server.kill()
            time.sleep(3)
            server.start()
            time.sleep(2)
    world.wait_until_level(seconds=2 * DEADLINE_SECONDS)
    assert world.syncer("verify").returncode == 0
    retried = [one for one in daemon.events() if one["event"] == "stage.retried"]
    assert len(retried) < 50
    assert daemon.stop() == 0
