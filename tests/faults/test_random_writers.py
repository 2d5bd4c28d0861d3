"""Whatever happens, in whatever order: once writers rest, every document equals its SELECT."""

from __future__ import annotations

import random
import time

from tests.faults.writers import SECONDS, SEED, fill, writing
from tests.harness import World

QUICK_FAILOVER = {"SYNCER_KAFKA_PROPERTIES": '{"session.timeout.ms": 6000}'}


def test_two_daemons_share_the_work(world: World) -> None:
    """Two relays and four workers at once, under concurrent writers, end level."""
    fill(world)
    for _ in range(2):
        world.daemon()
    with writing(world):
        time.sleep(SECONDS)
    world.wait_until_level()
    assert world.syncer("verify").returncode == 0
    leaders = [one for one in world.daemons if any(event["event"] == "relay.led" for event in one.events())]
    assert len(leaders) == 1
    assert [daemon.stop() for daemon in world.daemons] == [0, 0]


def test_daemons_are_killed_at_random(world: World) -> None:
    """SIGKILL at random moments, again and again, loses nothing."""
    world.worker_settings = QUICK_FAILOVER
    fill(world)
    dice = random.Random(SEED)
    for _ in range(2):
        world.daemon()
    deadline = time.monotonic() + SECONDS
    with writing(world):
        while time.monotonic() < deadline:
            time.sleep(dice.uniform(0.2, 1.5))
            victim = dice.choice([one for one in world.daemons if one.process.poll() is None])
            victim.kill()
            world.daemon()
    world.wait_until_level(seconds=120)
    assert world.syncer("verify").returncode == 0


def test_a_transaction_is_open_during_everything(world: World) -> None:
    """A transaction that wrote first and commits last delays nobody, and is not lost."""
    fill(world)
    world.daemon(environment={"SYNCER_RELAY_TRIM_SECONDS": "0.2"})
    with world.application() as slow:
        slow.execute("INSERT INTO posts (id, user_id, title, body) VALUES (1000, 1, 'slow', '')")
        slow.execute("INSERT INTO comments (id, post_id, name, comment) VALUES (1000, 1000, 'c', 'slow')")
        with writing(world):
            time.sleep(SECONDS / 2)
        world.wait_until_level()
        assert "1000" not in world.held()
        slow.commit()
    world.wait_until_level()
    assert world.held()["1000"]["comments"][0]["comment"] == "slow"
