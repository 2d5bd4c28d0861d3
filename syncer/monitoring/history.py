"""The history of the poller's readings, for the plots of the status page.

Every reading of the last ten minutes is kept, and the greatest figures of each minute of the last day. It lives in the
daemon's memory, so it begins when the daemon starts.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields
from typing import Final

RECENT_SECONDS: Final = 600.0
"""How far back every reading is kept."""
SECONDS_MAX: Final = 86_400
"""How far back minutes are kept."""
_MINUTE: Final = 60
# Readings are more frequent than a second only if the settings say so.
_RECENT_MAX: Final = 1200


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What a plot shows of one reading; None where a server did not answer, or there is no earlier reading.

    Args:
        at: The time of the reading, in Unix time.
        lag_seconds: As in `syncer.monitoring.status.Overview`; None also while Postgres is silent.
        captured_per_second: Changes that triggers have written to the outbox since the previous reading.
        written_per_second: Documents that Elasticsearch has written or deleted since then, for any client.
    """

    at: float
    lag_seconds: float | None
    captured_per_second: float | None
    written_per_second: float | None


class History:
    """The samples of the last day. One thread adds; any thread may read."""

    def __init__(self) -> None:
        self._recent: deque[Sample] = deque(maxlen=_RECENT_MAX)
        self._minutes: deque[Sample] = deque(maxlen=SECONDS_MAX // _MINUTE)

    def add(self, sample: Sample) -> None:
        """Add the latest sample."""
        self._recent.append(sample)
        while self._recent[0].at < sample.at - RECENT_SECONDS:
            self._recent.popleft()
        if self._minutes and self._minutes[-1].at // _MINUTE == sample.at // _MINUTE:
            self._minutes[-1] = _greatest(self._minutes[-1], sample)
        else:
            self._minutes.append(sample)

    def last(self, seconds: float = RECENT_SECONDS) -> list[Sample]:
        """The samples of so many last seconds, the oldest first; by minute beyond `RECENT_SECONDS`."""
        samples = tuple(self._recent if seconds <= RECENT_SECONDS else self._minutes)
        return [one for one in samples if one.at >= samples[-1].at - seconds]


def _greatest(one: Sample, other: Sample) -> Sample:
    """The greatest value of each field that is known."""
    known = {
        field.name: [each for sample in (one, other) if (each := getattr(sample, field.name)) is not None]
        for field in fields(Sample)
    }
    return Sample(**{name: max(values, default=None) for name, values in known.items()})  # type: ignore[arg-type]  # at is known
