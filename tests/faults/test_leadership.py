"""The lead passes from one relay to another soon, and never for nothing."""

from __future__ import annotations

import signal
import time
from typing import Any

import structlog

from syncer.capture.leader import LEASE_SECONDS
from tests.support.world import Daemon, World, wait_until
from tests.support.writers import fill

LOG = structlog.get_logger()
CHANGE = "UPDATE posts SET title = title || '.' WHERE id = (SELECT min(id) FROM posts)"


def said(daemon: Daemon, *names: str) -> list[dict[str, Any]]:
    """What it has logged of these events, of the relay alone."""
    return [one for one in daemon.events() if one["event"] in names and one.get("component", "relay") == "relay"]


def test_a_leader_that_is_stopped_is_replaced_soon(world: World) -> None:
    """The next one leads, the stopped one stands by once it goes on, and leads again when the other ends."""
    fill(world)
    world.daemon("--only", "workers")
    stopped = world.daemon("--only", "relay")
    stopped.wait_for("relay.led")
    heir = world.daemon("--only", "relay")
    heir.wait_for("relay.stood_by")
    began = time.monotonic()
    stopped.process.send_signal(signal.SIGSTOP)
    try:
        led = heir.wait_for("relay.led")
        seconds = time.monotonic() - began
        LOG.info("replaced", after_seconds=round(seconds, 1), led=led)
        assert seconds < 2 * LEASE_SECONDS
        world.sql(CHANGE)
        world.wait_until_level()
    finally:
        stopped.process.send_signal(signal.SIGCONT)
    wait_until(lambda: said(stopped, "relay.stood_by") != [], what="it finds out")
    assert heir.stop() == 0
    wait_for_last(stopped, "relay.led", 2)
    assert stopped.stop() == 0


def wait_for_last(daemon: Daemon, event: str, number: int) -> dict[str, Any]:
    """That event, once it was logged so many times."""
    wait_until(lambda: len(said(daemon, event)) == number, what=f"{event}, {number} times")
    return said(daemon, event)[-1]
