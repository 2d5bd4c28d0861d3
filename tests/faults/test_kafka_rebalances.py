"""Partitions change hands all the time: no change is lost between two workers, and no document goes back."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack

from structlog.testing import capture_logs

from syncer import topic
from syncer.transport import CLOSE_SECONDS, ChangeConsumer
from tests.faults.following import refreshes
from tests.faults.writers import SEED, fill, writing
from tests.harness import World, running, wait_until
from tests.proof import Rule, faces

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


@faces(
    "a daemon is told to stop in the middle of a rebalance",
    promises=(1,),
    without=Rule(
        "who leaves the group does not wait long for it to hear",
        module="syncer.transport",
        text="closing.end(seconds=CLOSE_SECONDS)",
        instead="closing.end()",
    ),
)
def test_who_leaves_in_the_middle_of_a_rebalance_is_soon_gone(world: World) -> None:
    """It does not wait for a coordinator that hears it only later; nor does its log speak of that."""
    settings = world.settings.kafka
    told: list[tuple[str, list[int]]] = []
    with capture_logs() as logs:
        first = ChangeConsumer(settings, on_change=lambda *event: told.append(event))
        wait_until(lambda: polled(first) and "worker.partitions_assigned" in dict(told), what="it has all partitions")
        second = ChangeConsumer(settings, on_change=lambda *_: None)
        wait_until(
            lambda: polled(second) and polled(first) and "worker.partitions_revoked" in dict(told),
            what="it gives some of them back",
        )
        began = time.monotonic()
        second.close()
        first.close()
        assert time.monotonic() - began < 2 * CLOSE_SECONDS + 0.5
    assert [one for one in logs if one["event"] == "topic.troubled"] == []


def polled(consumer: ChangeConsumer) -> bool:
    """Let it take part in what the group does."""
    return consumer.receive(records_max=1, wait_seconds=0.01) is None
