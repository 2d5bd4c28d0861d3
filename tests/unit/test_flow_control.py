"""Slices are halved at once and grow again; jobs make way for live changes."""

from __future__ import annotations

import pytest

from syncer.base.settings import WorkerSettings
from syncer.indexing import flow_control
from syncer.indexing.flow_control import BESIDE_TRAFFIC_DOCUMENTS, FlowControl, LiveTraffic

MOST = 1000
INDEX = "blog-000001"


def test_jobs_make_way_only_for_more_changes_than_a_job_is_made_for() -> None:
    """Beside traffic a job has two small slices; the rename that makes a fan-out is no traffic."""
    traffic = LiveTraffic()
    flow = FlowControl(WorkerSettings(in_flight_max=4), traffic=traffic)
    for _ in range(9):
        traffic.note()
    assert (flow.open_max, flow.documents(INDEX)) == (5, MOST)
    traffic.note()
    assert (flow.open_max, flow.documents(INDEX)) == (2, BESIDE_TRAFFIC_DOCUMENTS)


def test_a_refused_slice_is_halved_and_grows_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only of its own index; a refusal of a smaller one does not make it larger; and not at once."""
    flow = FlowControl(WorkerSettings())
    flow.halve(INDEX, MOST)
    flow.halve(INDEX, MOST)
    flow.restore(INDEX)
    assert (flow.documents(INDEX), flow.documents("another")) == (MOST // 2, MOST)
    flow.halve(INDEX, 100)
    monkeypatch.setattr(flow_control, "HALVED_SECONDS", 0.0)
    sizes = [flow.documents(INDEX)]
    for _ in range(6):
        flow.restore(INDEX)
        sizes.append(flow.documents(INDEX))
    assert sizes == [50, 100, 200, 400, 800, MOST, MOST]
