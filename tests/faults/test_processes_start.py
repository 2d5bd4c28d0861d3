"""A daemon is told to end before it has begun: it ends, and leaves nothing half done."""

from __future__ import annotations

import signal

from tests.faults.stopping_at import Plan, Point
from tests.faults.writers import fill
from tests.harness import World

BEFORE_COMPONENTS = Point(at="syncer.recovery.lost_records:require_own_topic", send="SIGTERM")
IN_COMPONENTS = (
    Point(at="syncer.daemon:run", send="SIGTERM"),
    Point(at="syncer.relay.loop:Relay._begin", send="SIGTERM"),
    Point(at="syncer.recovery.lost_records:examine", send="SIGTERM"),
    Point(at="syncer.kafka.consumer:ChangeConsumer._beginnings", send="SIGTERM"),
)


def test_a_daemon_is_told_to_end_while_it_starts(world: World) -> None:
    """Before its components it dies as any program does, then it leaves with exit code 0; the next one does it all."""
    fill(world)

    def ended_at(point: Point) -> int:
        done = world.syncer("run", program=Plan(points=(point,)).program)
        assert "Traceback" not in done.stderr
        return done.returncode

    assert ended_at(BEFORE_COMPONENTS) == -signal.SIGTERM
    assert [ended_at(point) for point in IN_COMPONENTS] == [0] * len(IN_COMPONENTS)
    daemon = world.daemon()
    world.wait_until_level()
    assert daemon.stop() == 0
