"""Fakes of syncer's own interfaces, for unit tests. tests/scenarios/test_fakes.py holds each of them to the real one.

A fake never stands for a server in a test that claims something about that server.
"""

from __future__ import annotations

from collections.abc import Sequence

from syncer.base.model import Change
from syncer.kafka.consumer import Received


class FakeMembership:
    """A `syncer.worker.group.Membership` without Kafka: the only member of a group, with one partition.

    Args:
        records: The values in the partition, each of a change.
    """

    def __init__(self, records: Sequence[bytes]) -> None:
        self.committed = 0
        """The offset that the next member begins at."""
        self._records = records
        self._position = 0

    def receive(self, *, records_max: int, wait_seconds: float) -> tuple[Received, list[Change]] | None:
        """Return the records that follow; never waits, since no more will arrive."""
        del wait_seconds
        begin, end = self._position, min(self._position + records_max, len(self._records))
        if begin == end:
            return None
        self._position = end
        values = tuple(self._records[begin:end])
        received = Received(
            values=values,
            next_offsets={0: end},
            places=tuple((0, offset) for offset in range(begin, end)),
        )
        return received, [Change.parse(one) for one in values]

    def commit(self, received: Received) -> None:
        """Commit these records and all before them; never an offset behind one that is committed."""
        assert received.next_offsets[0] > self.committed
        self.committed = received.next_offsets[0]

    def keep_alive(self) -> None:
        """Stay in the group: nothing to do."""

    def pause(self, seconds: float) -> None:
        """Wait before a retry: nothing to wait for."""

    def leave(self) -> None:
        """Leave the group; the next `receive` rejoins, and begins at the committed offset."""
        self._position = self.committed

    def flush(self) -> None:
        """Log what is not logged yet: nothing."""
