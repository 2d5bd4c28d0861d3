"""A server that goes away and comes back costs time, never a change."""

from __future__ import annotations

from tests.support.world import DEADLINE_SECONDS, World, wait_until
from tests.support.writers import fill, writing


def test_the_daemon_outlives_a_crash_of_each_server(world: World) -> None:
    """After SIGKILL of a server under load, the daemon waits, says so once, and goes on by itself."""
    fill(world)
    daemon = world.daemon()
    world.wait_until_level()

    def retries() -> int:
        return len([one for one in daemon.events() if one["event"] == "component.retried"])

    for server in (world.sandbox.postgres, world.sandbox.kafka, world.sandbox.elasticsearch):
        before = retries()
        with writing(world, outlive=True):
            server.kill()
            wait_until(lambda before=before: retries() > before, what="the daemon says so")  # type: ignore[misc]
        server.start()
        world.wait_until_level(seconds=2 * DEADLINE_SECONDS)
    assert retries() < 100
    assert daemon.stop() == 0
