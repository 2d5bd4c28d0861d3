"""Gauges: the poller's results as metrics."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from syncer.base import metrics
from syncer.base.collectors import Metric
from syncer.base.model import Role
from syncer.monitoring.problems import problems
from syncer.monitoring.status import DocumentOverview, Held, Overview, Stored

Values = dict[Metric, Mapping[tuple[str, ...], float]]


def of_poll(seen: Overview) -> Values:
    """The metrics that are exported whichever servers answer."""
    return {
        metrics.POLLED_AT: {(): time.time()},
        metrics.ANSWERED: {(one.server,): float(one.error is None) for one in seen.servers},
        metrics.ANSWER_SECONDS: {(one.server,): one.seconds for one in seen.servers},
        metrics.LAG: {(one.name,): one.lag_seconds for one in seen.documents},
        metrics.PROBLEMS: {(): len([one for one in problems(seen) if not one.is_passing])},
    }


def of_postgres(stored: Stored, *, topic_lag_seconds: float) -> Values:
    """The metrics that Postgres's answer yields, except those of jobs."""
    current = [one for one in stored.active if one.role is Role.CURRENT]
    return {
        metrics.OUTBOX_WAITING: {(): stored.outbox_waiting},
        metrics.OUTBOX_LAG: {(): stored.outbox_lag_seconds},
        metrics.TOPIC_WAITING: {(): stored.topic_waiting},
        metrics.TOPIC_LAG: {(): topic_lag_seconds},
        metrics.WORKERS: {(): stored.workers},
        metrics.OUTBOX_BYTES: {(): stored.room.bytes},
        metrics.OUTBOX_SEGMENTS: {(): stored.room.segments},
        metrics.LEADERS: {(): float(stored.leader is not None)},
        metrics.TRANSACTION: {("open",): stored.open_seconds, ("prepared",): stored.prepared_seconds},
        metrics.EPOCH: {(): stored.epoch},
        metrics.SUSPENDED: {(one.name, one.index_name): float(one.suspended is not None) for one in stored.active},
        metrics.INCOMPLETE: {(one.name,): float(not one.is_loaded) for one in current},
        metrics.DEAD_LETTERS: {(one.name,): stored.dead_letters_of(one.name) for one in current},
        metrics.DRIFTED: {(one.document,): one.drifted for one in stored.verifications},
        metrics.VERIFIED_AT: {(one.document,): one.finished_at.timestamp() for one in stored.verifications},
    }


def of_jobs(stored: Stored) -> Values:
    """The metrics of unfinished jobs, from Postgres's answer."""
    jobs = {(str(one.id), str(one.kind), one.document): one for one in stored.jobs}
    return {
        metrics.JOB_TOTAL: {key: one.documents_total for key, one in jobs.items() if one.documents_total is not None},
        metrics.JOB_DONE: {key: one.documents_done for key, one in jobs.items()},
        metrics.JOB_RATE: {
            key: one.documents_per_second for key, one in jobs.items() if one.documents_per_second is not None
        },
        metrics.JOB_ETA: {key: eta for key, one in jobs.items() if (eta := one.eta_seconds) is not None},
        metrics.JOB_PAUSED: {key: float(one.is_paused or one.is_suspended) for key, one in jobs.items()},
    }


def of_elasticsearch(stored: Stored, held: Held, documents: Sequence[DocumentOverview]) -> Values:
    """The metrics that Elasticsearch's answer yields, for the definitions in Postgres."""
    return {
        metrics.SEARCHED_ALONE: {(one.name,): float(one.is_searched_alone) for one in documents},
        metrics.INDEX_DOCUMENTS: {
            (one.name, one.index_name, one.role): number
            for one in stored.active
            if (number := held.counts.get(one.index_name)) is not None
        },
    }
