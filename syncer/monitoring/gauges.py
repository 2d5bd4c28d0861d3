"""Gauges: the status as metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from syncer.base import metrics
from syncer.base.metrics import Metric
from syncer.monitoring.problems import problems
from syncer.monitoring.status import ELASTICSEARCH, POSTGRES, Status, Stored

Values = dict[Metric, Mapping[tuple[str, ...], float]]


def values(status: Status) -> Values:
    """The metrics of a status, without those of a server that does not answer; only the lag goes on growing."""
    found: Values = {
        metrics.SERVER: {(server.server,): float(server.error is None) for server in status.servers},
        metrics.LAG: {(document.name,): document.lag_seconds for document in status.documents},
        metrics.PROBLEMS: {(): len([problem for problem in problems(status) if not problem.is_passing])},
    }
    stored = status.stored
    if stored is None or POSTGRES in status.silent:
        return found
    states: dict[tuple[str, ...], float] = {}
    for document in status.documents:
        states[document.name, "suspended"] = float(document.suspended is not None or bool(document.troubles))
        states[document.name, "incomplete"] = float(not document.is_loaded)
        if document.searched is not None and ELASTICSEARCH not in status.silent:
            states[document.name, "alias_wrong"] = float(not document.is_searched_alone)
    jobs = {(str(job.id), str(job.kind), job.document): job for job in stored.jobs}
    return found | {
        metrics.WAITING: {("outbox",): stored.outbox_waiting, ("published",): stored.topic_waiting},
        metrics.COMPONENTS: {
            ("leader",): float(stored.leader is not None),
            ("worker",): stored.workers,
            ("job_worker",): sum("job_worker" in daemon.components for daemon in stored.at_work),
        },
        metrics.TROUBLE: _troubles(stored),
        metrics.TRANSACTION: {("open",): stored.open_seconds, ("prepared",): stored.prepared_seconds},
        metrics.OUTBOX_BYTES: {(): stored.outbox_bytes},
        metrics.OUTBOX_SEGMENTS: {(): stored.outbox_segments},
        metrics.EPOCH: {(): stored.epoch},
        metrics.VERIFIED_AT: {(last.document,): last.finished_at.timestamp() for last in stored.verifications},
        metrics.DRIFTED: {(last.document,): last.drifted for last in stored.verifications},
        metrics.STATE: states,
        metrics.DEAD_LETTERS: {(document.name,): document.dead_letters for document in status.documents},
        metrics.JOB_TOTAL: {key: job.documents_total for key, job in jobs.items() if job.documents_total is not None},
        metrics.JOB_DONE: {key: job.documents_done for key, job in jobs.items()},
        metrics.JOB_PAUSED: {key: float(job.is_paused or job.is_suspended) for key, job in jobs.items()},
    }


def _troubles(stored: Stored) -> dict[tuple[str, ...], float]:
    """How long each component has been retrying, and each daemon silent."""
    found: dict[tuple[str, ...], float] = defaultdict(float)
    for daemon in stored.daemons:
        found[daemon.host, "daemon"] = max(
            found[daemon.host, "daemon"], daemon.silent_seconds if daemon.is_silent else 0.0
        )
        if daemon.is_silent:
            continue
        for name in daemon.components:
            found[daemon.host, name] += 0.0
        for trouble in daemon.troubles:
            key = daemon.host, trouble.component
            found[key] = max(found[key], trouble.seconds)
    return found
