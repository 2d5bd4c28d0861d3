"""Whatever happens, in whatever order: once writers rest, every document equals its SELECT."""

from __future__ import annotations

import random
import time

from tests.faults.rules import COMMITTED_LAST, CURSOR_IS_A_SNAPSHOT, ONE_LEADER
from tests.faults.writers import SECONDS, SEED, fill, writing
from tests.harness import DEADLINE_SECONDS, Daemon, World, wait_until
from tests.proof import faces

QUICK_FAILOVER = {"SYNCER_KAFKA_PROPERTIES": '{"session.timeout.ms": 6000}'}


def living(world: World) -> list[Daemon]:
    """The daemons that run."""
    return [one for one in world.daemons if one.process.poll() is None]


def has_written(daemon: Daemon) -> bool:
    """Whether one of its workers has had something to do."""
    return any(event["event"] == "worker.batch_indexed" for event in daemon.events())


@faces("two daemons run at once", promises=(1, 2, 3), without=ONE_LEADER)
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


@faces("daemons are killed at random moments", promises=(1, 2, 3), without=COMMITTED_LAST)
def test_daemons_are_killed_at_random(world: World) -> None:
    """SIGKILL at random moments, again and again, and of all at once when the writers rest, loses nothing."""
    world.worker_settings = QUICK_FAILOVER
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


@faces("a transaction that wrote first commits last", promises=(1, 3), without=CURSOR_IS_A_SNAPSHOT)
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
