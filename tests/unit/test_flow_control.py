"""Slices are as large as they may be, make room at once, and never stop; jobs make way for live changes."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given, strategies as st

from syncer.indexing import flow_control
from syncer.indexing.flow_control import FlowControl, LiveTraffic

MOST = 1000
INDEX = "blog-000001"


def flowing() -> LiveTraffic:
    """Live changes that flow."""
    traffic = LiveTraffic()
    for _ in range(20):
        traffic.note()
    return traffic


def test_without_traffic_everything_is_at_full_speed() -> None:
    """Four requests of a thousand documents, from the first one on."""
    flow = FlowControl(requests_max=4, documents_max=MOST)
    assert (flow.requests, flow.documents(INDEX)) == (4, MOST)


def test_a_slice_has_as_many_documents_as_fit_into_a_request() -> None:
    """By what they weighed so far: the latest count most."""
    flow = FlowControl(requests_max=4, documents_max=MOST, bytes_max=1_000_000)
    flow.built(INDEX, documents=100, size=100 * 10_000, seconds=0.1)
    assert flow.documents(INDEX) == 100
    assert flow.documents("another") == MOST
    for _ in range(50):
        flow.built(INDEX, documents=100, size=100 * 2_000, seconds=0.1)
    assert 450 < flow.documents(INDEX) <= 500


def test_a_slice_has_as_many_documents_as_postgres_builds_in_a_moment() -> None:
    """A SELECT that takes 0.1 s for each document is asked for 20 of them."""
    flow = FlowControl(requests_max=4, documents_max=MOST)
    flow.built(INDEX, documents=100, size=1000, seconds=10)
    assert flow.documents(INDEX) == 20


def test_one_that_was_slow_among_many_changes_little() -> None:
    """A single document that waited for a lock is a single one."""
    flow = FlowControl(requests_max=4, documents_max=MOST)
    flow.built(INDEX, documents=1000, size=1000, seconds=0.1)
    flow.built(INDEX, documents=1, size=1, seconds=0.5)
    assert flow.documents(INDEX) == MOST


def test_beside_traffic_a_job_has_two_small_requests() -> None:
    """As many documents as are answered in 50 ms, once it is known how many that are."""
    flow = FlowControl(requests_max=4, documents_max=MOST, traffic=flowing())
    assert (flow.requests, flow.documents(INDEX)) == (2, 250)
    flow.answered(INDEX, documents=250, seconds=0.1)
    assert flow.documents(INDEX) == 125
    flow.answered(INDEX, documents=1, seconds=5)  # what any request costs, says nothing of a document
    assert flow.documents(INDEX) == 125


def test_what_is_refused_halves_what_is_in_flight_once() -> None:
    """Of ten requests that were sent together and all refused, the first one counts."""
    flow = FlowControl(requests_max=4, documents_max=MOST)
    began = time.monotonic()
    for _ in range(10):
        flow.refused(begun_at=began)
    assert (flow.requests, flow.documents(INDEX)) == (2, MOST)
    flow.refused(begun_at=time.monotonic())
    flow.refused(begun_at=time.monotonic())
    assert (flow.requests, flow.documents(INDEX)) == (1, MOST / 2)


def test_after_a_while_it_tries_more_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at once; and then it doubles."""
    flow = FlowControl(requests_max=4, documents_max=MOST)
    flow.refused(begun_at=time.monotonic())
    flow.answered(INDEX, documents=10, seconds=0.1)
    assert flow.requests == 2
    monkeypatch.setattr(flow, "_held_until", 0.0)
    flow.answered(INDEX, documents=10, seconds=0.1)
    assert flow.requests == 4


@given(
    requests=st.integers(1, 8),
    most=st.integers(1, 5000),
    steps=st.lists(st.booleans(), max_size=60),
    flows=st.booleans(),
)
def test_it_never_stops_and_is_never_too_much(requests: int, most: int, steps: list[bool], flows: bool) -> None:
    """Whatever happens, one request of one document may be sent, and never more than the most."""
    traffic = flowing() if flows else None
    flow = FlowControl(requests_max=requests, documents_max=most, traffic=traffic)
    for is_refused in steps:
        if is_refused:
            flow.refused(begun_at=time.monotonic())
        else:
            flow.answered(INDEX, documents=100, seconds=1)
        assert 1 <= flow.requests <= requests
        assert 1 <= flow.documents(INDEX) <= most


def test_no_more_are_in_flight_than_may_be() -> None:
    """Who comes too early waits until another one is answered."""
    flow = FlowControl(requests_max=2)
    entered: list[int] = []
    leave = threading.Event()

    def send(number: int) -> None:
        with flow.in_flight():
            entered.append(number)
            leave.wait(10)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for one in threads:
        one.start()
    deadline = time.monotonic() + 10
    while len(entered) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(entered) == 2
    leave.set()
    for one in threads:
        one.join(10)
    assert sorted(entered) == [0, 1, 2, 3]


def test_traffic_flows_if_there_is_more_than_what_a_job_is_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rename that makes a fan-out is no traffic to make way for, nor are five of them; nor is what was long ago."""
    traffic = LiveTraffic()
    for _ in range(9):
        traffic.note()
        assert not traffic.is_flowing
    traffic.note()
    assert traffic.is_flowing
    monkeypatch.setattr(flow_control, "_FLOWING_SECONDS", 0.0)
    assert not traffic.is_flowing
