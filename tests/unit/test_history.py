"""The history of the page's plots is bounded, keeps the peaks, and knows what is not known."""

from __future__ import annotations

from dataclasses import fields

from syncer.monitoring.history import RECENT_SECONDS, SECONDS_MAX, History, Sample

NOTHING = dict.fromkeys(one.name for one in fields(Sample))
BEGAN = 1_800_000_000.0


def sample(at: float, **values: float) -> Sample:
    """A sample of which only this is known."""
    return Sample(**{**NOTHING, "at": BEGAN + at, **values})  # type: ignore[arg-type]  # the rest is None


def test_every_reading_is_kept_for_ten_minutes_and_each_minute_for_a_day() -> None:
    """However long it goes on, and however often it is read."""
    history = History()
    for second in range(0, 3 * SECONDS_MAX, 5):
        history.add(sample(second, lag_seconds=0.0))
    assert len(history.last()) == RECENT_SECONDS / 5 + 1
    assert len(history.last(3600)) == 61
    assert len(history.last(SECONDS_MAX)) == SECONDS_MAX / 60


def test_a_peak_is_kept_and_what_is_not_known_stays_so() -> None:
    """A minute shows the greatest of what is known of it; one of which nothing is known is a gap."""
    history = History()
    for second in range(0, 240, 10):
        known = {"lag_seconds": 90.0 if second == 70 else 1.0} if second < 120 or second >= 180 else {}
        history.add(sample(second, **known))
    assert [one.lag_seconds for one in history.last(3600)] == [1.0, 90.0, None, 1.0]
    assert {one.written_per_second for one in history.last(3600)} == {None}
    assert max(one.lag_seconds or 0 for one in history.last()) == 90


def test_an_empty_history_is_empty() -> None:
    """Before the first reading."""
    assert History().last() == History().last(3600) == []
