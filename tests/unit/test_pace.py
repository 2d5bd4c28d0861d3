"""A window grows while nothing is in the way, makes room at once, and never closes."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, strategies as st

from syncer import pace
from syncer.pace import FIRST_DOCUMENTS, LEAST_DOCUMENTS, LiveTraffic, Window

MOST = 4000
REQUEST = 1000


def test_a_window_doubles_until_it_is_open() -> None:
    """A job that nothing is in the way of is at full speed after a few answers."""
    window = Window(request=REQUEST, most=MOST)
    answers = 0
    while window.documents < MOST:
        window.grow(window.documents)
        answers += 1
    assert answers == 3  # 500, 1,000, 2,000, 4,000


def test_what_is_in_the_way_halves_the_window_once() -> None:
    """Of ten requests that were on their way together, all of which were refused, the first one counts."""
    window = Window(request=REQUEST, most=MOST)
    window.grow(MOST)
    began = time.monotonic()
    assert [window.shrink(begun_at=began) for _ in range(10)] == [True] + 9 * [False]
    assert window.documents == MOST / 2


def test_after_that_it_stays_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was too much once is not tried again at once, and then by one request more."""
    window = Window(request=REQUEST, most=MOST)
    window.grow(MOST)
    window.shrink(begun_at=time.monotonic())
    window.grow(MOST)
    assert window.documents == MOST / 2
    monkeypatch.setattr(window, "_held_until", 0.0)
    window.grow(MOST)
    window.grow(MOST)
    assert window.documents == MOST / 2 + REQUEST


def test_after_a_pause_it_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What there was room for minutes ago says nothing of now."""
    window = Window(request=REQUEST, most=MOST)
    window.grow(MOST)
    assert not window.resume()
    assert window.documents == MOST
    monkeypatch.setattr(pace, "_FORGOTTEN_SECONDS", 0.0)
    assert window.resume()
    assert window.documents == FIRST_DOCUMENTS


def test_a_limit_holds_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes way for others tries more again only after that; a limit opens no window that is smaller."""
    window = Window(request=REQUEST, most=MOST)
    window.limit(250)
    for _ in range(3):
        window.grow(window.documents)
    assert window.documents == 250
    window.limit(REQUEST)
    assert window.documents == 250
    monkeypatch.setattr(window, "_held_until", 0.0)
    window.grow(250)
    assert window.documents == 500


@given(most=st.integers(min_value=1, max_value=10_000), steps=st.lists(st.none() | st.integers(1, 5000), max_size=60))
def test_a_window_is_never_closed_and_never_too_wide(most: int, steps: list[int | None]) -> None:
    """Whatever happens, there is room for one document, and for no more than the most."""
    window = Window(request=min(REQUEST, most), most=most)
    for written in steps:
        if written is None:
            window.shrink(begun_at=time.monotonic())
        else:
            window.grow(written)
        assert min(most, LEAST_DOCUMENTS) <= window.documents <= most


def test_live_traffic_is_late_only_if_a_batch_took_too_long() -> None:
    """And it is known when that batch began, so that a window shrinks for it once."""
    traffic = LiveTraffic(late_seconds=500)
    assert not traffic.is_flowing
    now = time.monotonic()
    traffic.note(begun_at=now)
    assert traffic.late_begun_at == 0
    assert not traffic.is_flowing
    traffic.note(begun_at=now - 1000)
    traffic.note(begun_at=now - 2000)
    assert traffic.late_begun_at == now - 1000


def test_traffic_flows_if_there_is_more_than_what_a_job_is_made_for() -> None:
    """The rename that makes a fan-out is no traffic to make way for, nor are five of them."""
    traffic = LiveTraffic(late_seconds=5)
    for _ in range(9):
        traffic.note(begun_at=time.monotonic())
        assert not traffic.is_flowing
    traffic.note(begun_at=time.monotonic())
    assert traffic.is_flowing
