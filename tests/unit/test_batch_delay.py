"""How long changes are waited for, by how fast they come."""

from __future__ import annotations

import pytest

from syncer.capture.leader import LEASE_SECONDS
from syncer.relay import loop
from syncer.relay.batch_delay import Gathering


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """What it shows."""
        return self.now


def waits(per_second: float, *, together: int = 1, seconds: float = 3.0) -> float:
    """How long is waited once changes have come at this pace for a while, so many at a time."""
    clock = Clock()
    gathering = Gathering(most_seconds=0.1, clock=clock)
    found = 0.0
    for _ in range(int(seconds * per_second / together)):
        clock.now += together / per_second
        found = gathering.note(together)
    return found


@pytest.mark.parametrize(
    ("per_second", "expected"),
    [(0.5, 0.0), (5, 0.0), (50, 0.0), (300, 0.03), (600, 0.06), (1000, 0.1), (2000, 0.05), (5000, 0.02)],
)
def test_the_more_come_the_longer_it_waits_until_enough_are_together(per_second: float, expected: float) -> None:
    """Not at all for who comes alone; a tenth of a second at most; never longer than it takes a hundred to come."""
    assert waits(per_second) == pytest.approx(expected, rel=0.1)
    assert waits(per_second) <= 0.1


def test_those_that_come_together_are_followed_by_others() -> None:
    """The relay waits a moment after two that came together, however rarely that is."""
    assert waits(1, together=2) == 0.01
    assert Gathering(most_seconds=0.0).note(2) == 0.01
    assert Gathering(most_seconds=0.0).note(1) == 0.0


def test_what_was_is_forgotten() -> None:
    """A second after a crowd, who comes alone is not waited for any more."""
    clock = Clock()
    gathering = Gathering(most_seconds=0.1, clock=clock)
    gathering.note(500)
    clock.now += 0.5
    assert gathering.note(1) > 0.01
    clock.now += 0.5
    assert gathering.note(1) == 0.0


def test_a_relay_that_sleeps_looks_before_it_is_taken_for_dead() -> None:
    """Several looks may be late: the relay still keeps the lead."""
    assert loop.SAFETY_POLL_SECONDS <= LEASE_SECONDS / 6
    assert loop.POLL_SECONDS <= LEASE_SECONDS / 6
