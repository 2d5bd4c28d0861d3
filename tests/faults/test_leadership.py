"""The lead passes from one relay to another soon, and never for nothing."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from urllib.request import urlopen

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from syncer.capture.leader import LEASE_SECONDS
from tests.faults.stopping_at import Plan
from tests.faults.writers import fill
from tests.harness import DEADLINE_SECONDS, Daemon, World, wait_until

LOG = structlog.get_logger()
CHANGE = "UPDATE posts SET title = title || '.' WHERE id = (SELECT min(id) FROM posts)"
CLAIMS = ("relay.led", "component.recovered")


def retries(daemon: Daemon) -> tuple[float, bool]:
    """How often its relay has tried in vain, and whether it is in trouble now."""
    address = str(daemon.wait_for("web.listening")["address"]).rstrip("/")
    with urlopen(f"{address}/metrics", timeout=DEADLINE_SECONDS) as answer:  # noqa: S310 - our own
        families = text_string_to_metric_families(answer.read().decode())
    values = {
        sample.name: sample.value
        for family in families
        for sample in family.samples
        if sample.labels.get("component") == "relay"
    }
    tried = values.get("syncer_component_retries_total", 0)
    return tried, values.get("syncer_component_is_troubled") == 1


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


@contextmanager
def down(world: World) -> Iterator[None]:
    """Kafka refuses connections."""
    world.sandbox.kafka.stop()
    try:
        yield
    finally:
        world.sandbox.kafka.start()


@pytest.mark.thorough
def test_the_lead_does_not_rotate_while_kafka_is_away(world: World) -> None:
    """Neither relay claims that it leads or has recovered before Kafka takes records; then one leads."""
    keep_the_lead(world, down)


def keep_the_lead(world: World, outage: Callable[[World], AbstractContextManager[None]]) -> None:
    """Run two relays through an outage of Kafka: neither claims anything before it is over, and then one leads."""
    fill(world)
    quick = Plan(constants={"syncer.kafka.producer:_DELIVERY_SECONDS": 5}).program
    relays = [world.daemon("--only", "relay", program=quick)]
    relays[0].wait_for("relay.led")
    relays.append(world.daemon("--only", "relay", program=quick))
    relays[1].wait_for("relay.stood_by")
    world.daemon("--only", "workers")
    world.wait_until_level()
    before = [len(said(one, "component.recovered")) for one in relays]
    with outage(world):

        def have_tried() -> bool:
            world.sql(CHANGE)
            return all(retries(one)[0] > 0 for one in relays)

        wait_until(
            have_tried,
            what="both have tried",
            detail=lambda: "\n".join(one.log_file.read_text() for one in relays),
        )
        logged = [said(one, *CLAIMS) for one in relays]
        tried = [retries(one)[0] for one in relays]
        wait_until(
            lambda: all(retries(one)[0] > earlier + 2 for one, earlier in zip(relays, tried, strict=True)),
            what="both go on trying",
            detail=lambda: str([one.events()[-3:] for one in relays]),
        )
        assert [said(one, *CLAIMS) for one in relays] == logged
        assert all(retries(one)[1] for one in relays)
    world.wait_until_level()
    wait_until(
        lambda: all(len(said(one, "component.recovered")) == n + 1 for one, n in zip(relays, before, strict=True)),
        what="both say once that it is over",
    )
    led = [event for one in relays for event in said(one, "relay.led")]
    assert len(led) <= 3
    LOG.info("led", lines=led)
    assert all(one.stop() == 0 for one in relays)
