"""What can be measured, in a sensible order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.benchmarks import (
    application,
    drain,
    fan_out,
    filling,
    flink,
    growth,
    isolation,
    latency,
    load,
    locking,
    one_edit,
    pgsync,
    recovery,
)
from tests.benchmarks.blog import Blogs
from tests.benchmarks.options import Options
from tests.benchmarks.report import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One measure.

    Args:
        about: What it measures, in a line.
        run: Measures it.
        by_name_only: Whether it takes so long that it is measured only if it is named.
    """

    about: str
    run: Callable[[Blogs, Options], Outcome]
    by_name_only: bool = False


MEASURES = {
    "backfill": Measure(about="every document overwritten by the command", run=filling.backfill),
    "rebuild": Measure(about="a new index loaded, verified, put in place", run=filling.rebuild),
    "verify": Measure(about="every document compared with its SELECT", run=filling.verify),
    "drain": Measure(about="changes that wait for a daemon", run=drain.measure),
    "fan-out": Measure(about="renames of an author, from commit to last document", run=fan_out.measure),
    "latency": Measure(about="single edits, from commit to seen", run=latency.measure),
    "load": Measure(about="what a change costs, and when it is seen, by how many come", run=load.measure),
    "one-edit": Measure(about="statements and functions of a single edit, and of doing nothing", run=one_edit.measure),
    "isolation": Measure(about="single edits while an author of many posts is renamed", run=isolation.measure),
    "application": Measure(about="what triggers and daemon cost those who write", run=application.measure),
    "pgsync": Measure(about="the closest peer, on the same work; if it can be installed", run=pgsync.measure),
    "flink": Measure(about="streaming SQL on the same work: load, rename, edits, drift", run=flink.measure),
    "locks": Measure(about="locks made of documents, and a rename under one", run=locking.measure),
    "recovery": Measure(
        about="an outage of each server and of the daemon, until level", run=recovery.measure, by_name_only=True
    ),
    "growth": Measure(about="ten thousand posts, and a million", run=growth.measure, by_name_only=True),
}
