"""Slices make room at once and grow again; jobs make way for live changes."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, strategies as st

from syncer.indexing import flow_control
from syncer.indexing.flow_control import BESIDE_TRAFFIC_DOCUMENTS, FlowControl, LiveTraffic
from tests.support.world import wait_until

MOST = 1000
INDEX = "blog-000001"


def flowing() -> LiveTraffic:
    """Live changes that flow."""
    traffic = LiveTraffic()
    for _ in range(20):
        traffic.note()
    return traffic


def test_beside_traffic_a_job_has_two_small_slices() -> None:
    """Otherwise it has all that it may."""
    flow = FlowControl(slices_max=4, documents_max=MOST)
    assert (flow.slices, flow.documents(INDEX)) == (4, MOST)
    flow = FlowControl(slices_max=4, documents_max=MOST, traffic=flowing())
    assert (flow.slices, flow.documents(INDEX)) == (2, BESIDE_TRAFFIC_DOCUMENTS)


def test_a_refused_slice_is_halved_and_grows_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only of its own index; a refusal of a smaller one does not make it larger; and not at once."""
    flow = FlowControl(documents_max=MOST)
    flow.halve(INDEX, MOST)
    flow.halve(INDEX, MOST)
    flow.restore(INDEX)
    assert (flow.documents(INDEX), flow.documents("another")) == (MOST // 2, MOST)
    flow.halve(INDEX, 100)
    assert flow.documents(INDEX) == 50
    monkeypatch.setattr(flow_control, "HALVED_SECONDS", 0.0)
    sizes = []
    for _ in range(6):
        flow.restore(INDEX)
        sizes.append(flow.documents(INDEX))
    assert sizes == [100, 200, 400, 800, MOST, MOST]


@given(most=st.integers(1, 5000), steps=st.lists(st.integers(0, 5000), max_size=60))
def test_it_never_stops_and_is_never_too_much(most: int, steps: list[int]) -> None:
    """Whatever happens, a slice has a document, and never more than the most."""
    flow = FlowControl(documents_max=most)
    for documents in steps:
        if documents:
            flow.halve(INDEX, documents)
        else:
            flow.restore(INDEX)
        assert 1 <= flow.documents(INDEX) <= most


def test_no_more_are_in_hand_than_may_be() -> None:
    """Who comes too early waits until another one is done."""
    flow = FlowControl(slices_max=2)
    entered: list[int] = []
    leave = threading.Event()

    def write(number: int) -> None:
        with flow.in_hand():
            entered.append(number)
            leave.wait(10)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(entered) == 2, what="two are in hand")
    leave.set()
    for thread in threads:
        thread.join(10)
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
