"""Gauges: the status as metrics, in one table of what each means and how it follows from the status.

What a server did not answer is left out, so that stale figures never look current; only the lag goes on growing. The
number of series depends only on the documents, daemons, components and unfinished jobs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from syncer.base.metrics import Metric, Question, Values
from syncer.jobs.model import Job
from syncer.monitoring.problems import problems
from syncer.monitoring.status import ELASTICSEARCH, POSTGRES, Status, Stored, at_work

_KEEPING_UP, _STUCK, _WRONG = Question
_JOB = ("job_id", "kind", "document")  # not "job": Prometheus has a label of that name, which hides ours
_Found = Mapping[tuple[str, ...], float]


def _troubles(stored: Stored) -> _Found:
    seconds_by_component: dict[tuple[str, ...], float] = defaultdict(float)
    for daemon in stored.daemons:
        seconds = [("daemon", daemon.silent_seconds if daemon.is_silent else 0.0)]
        if not daemon.is_silent:
            seconds += [(name, 0.0) for name in daemon.components]
            seconds += [(trouble.component, trouble.seconds) for trouble in daemon.troubles]
        for name, lasts in seconds:
            seconds_by_component[daemon.host, name] = max(seconds_by_component[daemon.host, name], lasts)
    return seconds_by_component


def _states(status: Status) -> _Found:
    states: dict[tuple[str, ...], float] = {}
    for document in status.documents:
        states[document.name, "suspended"] = float(document.suspended is not None or bool(document.troubles))
        states[document.name, "incomplete"] = float(not document.is_loaded)
        if document.searched is not None and ELASTICSEARCH not in status.silent:
            states[document.name, "alias_wrong"] = float(not document.is_searched_alone)
    return states


def _jobs(stored: Stored, figure: Callable[[Job], float | None]) -> _Found:
    figures = {(str(job.id), str(job.kind), job.document): figure(job) for job in stored.jobs}
    return {key: number for key, number in figures.items() if number is not None}


_ALWAYS: dict[Metric, Callable[[Status], _Found]] = {
    Metric(
        "syncer_lag_seconds",
        _KEEPING_UP,
        "Age of the oldest committed change that the document's index does not show yet; 0 if there is none. It waits "
        "in the outbox, in the topic, or in a fan-out, refresh or initial load; or the document is suspended. While a "
        "server is silent, what it last reported to wait is taken to wait still.",
        ("document",),
    ): lambda status: {(document.name,): document.lag_seconds for document in status.documents},
    Metric(
        "syncer_server_is_answering",
        _STUCK,
        "1 if a server answers: postgres, elasticsearch, and kafka if it is used. If 0, what it would say is left out.",
        ("server",),
    ): lambda status: {(server.server,): float(server.error is None) for server in status.servers},
    Metric(
        "syncer_problems", _WRONG, "Problems that `syncer status` names and that do not pass by themselves."
    ): lambda status: {(): len([problem for problem in problems(status) if not problem.is_passing])},
}
_FROM_POSTGRES: dict[Metric, Callable[[Status, Stored], _Found]] = {
    Metric(
        "syncer_waiting_changes",
        _KEEPING_UP,
        "Committed changes that wait: in the outbox, unread (100,000 at most are counted); or published, which "
        "workers have not handled.",
        ("place",),
    ): lambda _, stored: {("outbox",): stored.outbox_waiting, ("published",): stored.topic_waiting},
    Metric(
        "syncer_job_documents", _KEEPING_UP, "Documents of an unfinished job; an estimate at first.", _JOB
    ): lambda _, stored: _jobs(stored, lambda job: job.documents_total),
    Metric(
        "syncer_job_done_documents", _KEEPING_UP, "Documents of an unfinished job that are done.", _JOB
    ): lambda _, stored: _jobs(stored, lambda job: job.documents_done),
    Metric(
        "syncer_components",
        _STUCK,
        "Components of all daemons that report: leader (one at most), worker, job_worker.",
        ("kind",),
    ): lambda _, stored: {
        ("leader",): float(stored.leader is not None),
        ("worker",): stored.workers,
        ("job_worker",): sum("job_worker" in daemon.components for daemon in at_work(stored)),
    },
    Metric(
        "syncer_trouble_seconds",
        _STUCK,
        "For how long a component of a daemon has been retrying, or has shown no heartbeat; 0 if it works. The "
        "component daemon stands for the process: it has not reported for so long.",
        ("host", "component"),
    ): lambda _, stored: _troubles(stored),
    Metric(
        "syncer_document_state",
        _STUCK,
        "1 if a document is suspended, incomplete (not every document was written once), or alias_wrong (searches find "
        "other documents than those of its current index).",
        ("document", "state"),
    ): lambda status, _: _states(status),
    Metric(
        "syncer_job_is_paused", _STUCK, "1 if an unfinished job is paused, or its document is suspended.", _JOB
    ): lambda _, stored: _jobs(stored, lambda job: job.is_paused or job.is_suspended),
    Metric(
        "syncer_oldest_transaction_seconds",
        _STUCK,
        "Age of the oldest transaction in the database: kind open, or prepared. Until it commits, no document shows "
        "its changes, its outbox segment is not emptied, and dead rows are not vacuumed. Transactions of other roles "
        "are visible only with pg_read_all_stats.",
        ("kind",),
    ): lambda _, stored: {("open",): stored.open_seconds, ("prepared",): stored.prepared_seconds},
    Metric(
        "syncer_outbox_bytes", _STUCK, "Size of the outbox on disk, including rows that cannot be removed yet."
    ): lambda _, stored: {(): stored.outbox_bytes},
    Metric(
        "syncer_outbox_used_segments",
        _STUCK,
        "How many of the outbox's 8 segments have rows. More than 2: an old transaction holds them.",
    ): lambda _, stored: {(): stored.outbox_segments},
    Metric("syncer_dead_letters", _WRONG, "Documents that could not be written.", ("document",)): lambda status, _: {
        (document.name,): document.dead_letters for document in status.documents
    },
    Metric(
        "syncer_drifted_documents",
        _WRONG,
        "Documents that still differed from their SELECT after the last `syncer verify`, dead letters aside.",
        ("document",),
    ): lambda _, stored: {(verified.document,): verified.drifted for verified in stored.verifications},
    Metric(
        "syncer_verified_timestamp_seconds", _WRONG, "When `syncer verify` last ran; in Unix time.", ("document",)
    ): lambda _, stored: {(verified.document,): verified.finished_at.timestamp() for verified in stored.verifications},
    Metric(
        "syncer_epoch", _WRONG, "The epoch of versions; it grows with each failover and restore."
    ): lambda _, stored: {(): stored.epoch},
}
GAUGES = (*_ALWAYS, *_FROM_POSTGRES)
"""Every metric that follows from the status."""


def values(status: Status) -> Values:
    """The metrics of a status, without those of a server that does not answer."""
    values_by_metric = {metric: value(status) for metric, value in _ALWAYS.items()}
    if status.stored is not None and POSTGRES not in status.silent:
        values_by_metric |= {metric: value(status, status.stored) for metric, value in _FROM_POSTGRES.items()}
    return values_by_metric
