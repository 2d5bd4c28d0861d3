"""Daemons come and go, and partitions come, under load: nothing is lost, and little is redone."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from typing import Any

import psycopg

from syncer.capture import progress
from tests.support.world import DEADLINE_SECONDS, Daemon, World, wait_until
from tests.support.writers import QUICK_FAILOVER, SECONDS, SEED, at_work, fill, writing

BATCH = 20
IN_HAND = 6 * BATCH
"""What a worker has received and not committed, at most: four requests on their way, and what goes with the next."""
WAITING = "SELECT (SELECT max(changes) FROM syncer.cursor), changes FROM syncer.handled"
KINDS = ((), (), ("--only", "relay"), ("--only", "workers"))


def is_alive(daemon: Daemon) -> bool:
    """Whether its process runs."""
    return daemon.process.poll() is None


def said(daemons: Sequence[Daemon], *events: str) -> list[tuple[Daemon, dict[str, Any]]]:
    """What all of them have logged of these events, in the order of time."""
    found = [(one, event) for one in daemons for event in one.events() if event["event"] in events]
    return sorted(found, key=lambda pair: str(pair[1]["at"]))


def held(daemon: Daemon) -> dict[str, set[int]]:
    """The partitions that each of its workers has, if it lives."""
    found: dict[str, set[int]] = {f"worker-{number}": set() for number in (1, 2)}
    for _, event in said([daemon], "worker.partitions_assigned", "worker.partitions_revoked"):
        if event["event"] == "worker.partitions_assigned":
            found[event["worker"]] |= set(event["partitions"])
        else:
            found[event["worker"]] -= set(event["partitions"])
    return found


def wait_until_shared(daemons: Sequence[Daemon], shares: Sequence[int]) -> None:
    """Return once so many partitions are with the workers, each with one of them, the largest share first."""

    def are_shared() -> bool:
        workers = [partitions for one in daemons for partitions in held(one).values()]
        parts = [one for partitions in workers for one in partitions]
        return sorted(map(len, workers), reverse=True) == list(shares) and len(set(parts)) == len(parts) == sum(shares)

    wait_until(
        are_shared,
        what=f"the workers have {shares} partitions",
        detail=lambda: str([held(one) for one in daemons]),
    )


def wait_until_done(world: World) -> int:
    """Return once every change is handled; how many there are."""
    world.wait_until_level(seconds=2 * DEADLINE_SECONDS)
    wait_until(world.is_handled, what="every record is handled")
    with world.connect() as connection:
        return progress.handled(connection).changes


def require_one_leader_at_a_time(daemons: Sequence[Daemon]) -> None:
    """From the moment that a relay leads until the next one does, nobody else publishes."""
    leader: Daemon | None = None
    for daemon, event in said(daemons, "relay.led", "relay.batch_published"):
        if event["event"] == "relay.led":
            leader = daemon
        assert daemon is leader, f"{daemon.log_file.name} publishes while another one leads: {event}"


def test_daemons_of_every_kind_come_and_go(world: World) -> None:
    """Added, stopped and killed at random, whole or in parts, with fan-outs under way: they end level."""
    world.worker_settings = {"SYNCER_KAFKA_PROPERTIES": QUICK_FAILOVER, "SYNCER_WORKER_FAN_OUT_DOCUMENTS_MAX": "5"}
    fill(world)
    dice = random.Random(SEED)
    for _ in range(2):
        world.daemon()
    has_jobs = "SELECT count(*) > 1 FROM syncer.job"
    with writing(world):
        wait_until(lambda: len(said(world.daemons, "relay.batch_published")) > 5, what="changes are published")
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            living = [one for one in world.daemons if is_alive(one)]
            if len(living) > 4 or (living and dice.random() < 0.5):
                victim = dice.choice(living)
                if dice.random() < 0.5:
                    victim.kill()
                else:
                    assert victim.stop() == 0
            else:
                world.daemon(*dice.choice(KINDS))
        world.daemon()
        wait_until(lambda: world.sql(has_jobs) == [(True,)], what="there were fan-outs")
    wait_until_done(world)
    require_one_leader_at_a_time(world.daemons)


def rewrite(stop: threading.Event, connection: psycopg.Connection[Any], _: random.Random) -> None:
    """Always something to do, and never more than a few seconds' worth, however slow the machine is."""
    while not stop.wait(1):
        published, handled = connection.execute(WAITING).fetchall()[0]
        if published - handled < 1200:
            connection.execute("UPDATE posts SET title = title || '.'")
        connection.commit()


def are_handled_after(daemons: Sequence[Daemon], at: str) -> bool:
    """Whether changes were handled after that."""
    return any(event["at"] > at for _, event in said(daemons, "worker.batch_indexed"))


def test_a_rebalance_redoes_little(world: World) -> None:
    """With always something to do, daemons that join and leave cost no more than what was in hand."""
    world.worker_settings = {"SYNCER_WORKER_BATCH_CHANGES_MAX": str(BATCH)}
    fill(world)
    world.sql("INSERT INTO posts (id, user_id, title, body) SELECT g, g % 6, 't', '' FROM generate_series(60, 599) g")
    first = world.daemon()
    with at_work(world, [rewrite]):
        second = world.daemon()
        wait_until_shared([first, second], (1, 1, 1, 1))
        assert second.stop() == 0
        wait_until_shared([first], (2, 2))
        third = world.daemon()
        wait_until_shared([first, third], (1, 1, 1, 1))
        moved_at = said(world.daemons, "worker.partitions_revoked")[-1][1]["at"]
        wait_until(lambda: are_handled_after(world.daemons, moved_at), what="they handle more after that")
    records = wait_until_done(world)
    revoked = said(world.daemons, "worker.partitions_revoked")
    assert [first.stop(), third.stop()] == [0, 0]  # what is committed is told of after that
    indexed = said(world.daemons, "worker.batch_indexed")
    handled = sum(event["changes"] for _, event in indexed)
    moved = sum(len(event["partitions"]) for _, event in revoked)
    assert moved >= 6
    assert records <= handled <= records + moved * IN_HAND
