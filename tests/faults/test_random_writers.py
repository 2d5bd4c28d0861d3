"""Whatever happens, in whatever order: once writers rest, every document equals its SELECT."""

from __future__ import annotations

import random
import time

from tests.support.world import DEADLINE_SECONDS, Daemon, World, wait_until
from tests.support.writers import QUICK_FAILOVER, SECONDS, SEED, fill, writing


def living(world: World) -> list[Daemon]:
    """The daemons that run."""
    return [one for one in world.daemons if one.process.poll() is None]


def has_written(daemon: Daemon) -> bool:
    """Whether one of its workers has had something to do."""
    return any(event["event"] == "worker.batch_indexed" for event in daemon.events())


def test_daemons_are_killed_at_random(world: World) -> None:
    """SIGKILL at random moments, again and again, and of all at once when the writers rest, loses nothing."""
    world.worker_settings = {"SYNCER_KAFKA_PROPERTIES": QUICK_FAILOVER}
    fill(world)
    dice = random.Random(SEED)
    for _ in range(2):
        world.daemon()
    deadline = time.monotonic() + SECONDS
    with writing(world):
        while time.monotonic() < deadline:
            time.sleep(dice.uniform(0.2, 1.5))
            dice.choice(living(world)).kill()
            world.daemon()
        wait_until(lambda: any(has_written(one) for one in living(world)), what="one of them is at work")
    for one in living(world):
        one.kill()
    world.daemon()
    world.wait_until_level(seconds=2 * DEADLINE_SECONDS)
    assert world.syncer("verify").returncode == 0
