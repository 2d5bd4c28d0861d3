"""Partitions change hands all the time: no change is lost between two workers, and no document goes back."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack

from syncer import topic
from tests.faults.following import refreshes
from tests.faults.writers import SEED, fill, writing
from tests.harness import World, running
from tests.proof import faces

TURNS = 14


@faces("workers join and leave in a storm, beside writers", promises=(1, 2, 3))
def test_workers_come_and_go(world: World) -> None:
    """Whoever has a partition next goes on where the last one had committed."""
    fill(world)
    dice = random.Random(SEED)
    with ExitStack() as stack, world.index() as index:
        stack.enter_context(running(stack.enter_context(world.relay())))
        stack.enter_context(running(stack.enter_context(world.refresher(index))))
        workers: list[ExitStack] = []
        with writing(world):
            for number in range(TURNS):
                if len(workers) < 2 or (len(workers) < 4 and dice.random() < 0.5):
                    comes = ExitStack()
                    comes.enter_context(running(comes.enter_context(world.worker(index, name=f"worker-{number}"))))
                    workers.append(stack.enter_context(comes))
                else:
                    workers.pop(dice.randrange(len(workers))).close()
                time.sleep(dice.uniform(0.1, 0.6))
        world.wait_until_level()
        assert topic.members(world.settings.kafka) == len(workers)
    assert refreshes(world) == 0
