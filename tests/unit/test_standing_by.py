"""When a relay that could not publish, and stands by now, counts as recovered: without servers."""

from __future__ import annotations

import time

import pytest

from syncer.base.lifecycle import Stop, Stopping
from syncer.base.postgres import Connection
from syncer.kafka.producer import ChangeProducer
from syncer.relay import loop
from syncer.relay.loop import Relay, RelayReport


def not_needed() -> Connection:
    """No connection is opened here."""
    raise AssertionError


def no_producer() -> ChangeProducer:
    """Nor a producer."""
    raise AssertionError


@pytest.mark.parametrize(("led_seconds", "is_over"), [(0.0, False), (60.0, True)])
def test_standing_by_ends_no_trouble_before_the_other_relay_proves_to_lead(
    monkeypatch: pytest.MonkeyPatch, led_seconds: float, *, is_over: bool
) -> None:
    """Else two relays that fail in turn would each say that it is over whenever the other one tries."""
    relay = Relay(connect=not_needed, produce=no_producer)
    report = RelayReport(is_leader=False)
    monkeypatch.setattr(relay, "run_once", lambda: report)
    monkeypatch.setattr(loop, "STANDBY_SECONDS", 0)
    relay._trouble.met(OSError("Kafka is away"))
    relay._seen_since = time.monotonic() - led_seconds
    relay._stop = Stop()
    relay._stop.request()
    if is_over:
        assert relay._turn() is report
    else:
        with pytest.raises(Stopping):
            relay._turn()
