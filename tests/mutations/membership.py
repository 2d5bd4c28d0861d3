"""Rules of a worker's membership in its group, taken out."""

from __future__ import annotations

from syncer.base.model import Change
from syncer.kafka.consumer import Received
from syncer.worker.group import Membership
from tests.mutations import Instead


def only_waits(original: Instead, self: Membership, seconds: float) -> None:
    """Whoever waits does not stay in the group."""
    self._pause(seconds)


def takes_all_for_changes(original: Instead, self: Membership, received: Received) -> list[Change]:
    """A record that is no change raises an error."""
    return [Change.parse(value) for value in received.values]
