"""Gauges: what the survey was told, as the values of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from syncer import metrics, outbox, overview, verification
from syncer.collectors import Metric
from syncer.model import Role
from syncer.outbox import Room
from syncer.overview import Held, Queued, Stored
from syncer.postgres import Connection
from syncer.verification import Verification

Values = dict[Metric, Mapping[tuple[str, ...], float]]

_OLDEST = """
SELECT coalesce(extract(epoch FROM clock_timestamp() - (
           SELECT min(xact_start) FROM pg_stat_activity
           WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend')), 0),
       coalesce(extract(epoch FROM clock_timestamp() - (
           SELECT min(prepared) FROM pg_prepared_xacts WHERE database = current_database())), 0)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What Postgres says.

    Args:
        stored: Of syncer.
        room: Of the outbox.
        open_seconds: The age of the oldest open transaction; 0 if there is none.
        prepared_seconds: The age of the oldest prepared one.
        verifications: What the last `syncer verify` of each document has found.
    """

    stored: Stored
    room: Room
    open_seconds: float
    prepared_seconds: float
    verifications: tuple[Verification, ...]


def ask_postgres(connection: Connection) -> Known:
    """Ask it."""
    open_seconds, prepared_seconds = connection.execute(_OLDEST).fetchall()[0]
    return Known(
        stored=overview.ask_postgres(connection),
        room=outbox.room(connection),
        open_seconds=float(open_seconds),
        prepared_seconds=float(prepared_seconds),
        verifications=tuple(verification.last(connection)),
    )


def of_postgres(known: Known) -> Values:
    """What it says, of all but jobs."""
    stored = known.stored
    serving = [one for one in stored.in_force if one.role is Role.SERVING]
    return {
        metrics.OUTBOX_WAITING: {(): stored.outbox_waiting},
        metrics.OUTBOX_LAG: {(): stored.outbox_lag_seconds},
        metrics.OUTBOX_BYTES: {(): known.room.bytes},
        metrics.OUTBOX_SEGMENTS: {(): known.room.segments},
        metrics.LEADERS: {(): float(stored.leader is not None)},
        metrics.TRANSACTION: {("open",): known.open_seconds, ("prepared",): known.prepared_seconds},
        metrics.EPOCH: {(): stored.epoch},
        metrics.UNREADABLE: {(): stored.unreadable_records},
        metrics.HALTED: {(one.name, one.index_name): float(one.halted is not None) for one in stored.in_force},
        metrics.UNWELL: {(one.name, one.index_name): float(one.unwell is not None) for one in stored.in_force},
        metrics.UNFILLED: {(one.name,): float(not one.is_filled) for one in serving},
        metrics.DEAD_LETTERS: {(one.name,): stored.dead_letters_of(one.name) for one in serving},
        metrics.DRIFTED: {(one.document,): one.drifted for one in known.verifications},
        metrics.VERIFIED_AT: {(one.document,): one.finished_at.timestamp() for one in known.verifications},
    }


def of_jobs(stored: Stored) -> Values:
    """What it says of jobs that are not finished."""
    jobs = {(str(one.id), str(one.kind), one.document): one for one in stored.jobs}
    return {
        metrics.JOB_TOTAL: {key: one.documents_total for key, one in jobs.items() if one.documents_total is not None},
        metrics.JOB_DONE: {key: one.documents_done for key, one in jobs.items()},
        metrics.JOB_RATE: {
            key: one.documents_per_second for key, one in jobs.items() if one.documents_per_second is not None
        },
        metrics.JOB_ETA: {key: eta for key, one in jobs.items() if (eta := one.eta_seconds) is not None},
        metrics.JOB_PAUSED: {key: float(one.is_paused or one.is_halted or one.is_unwell) for key, one in jobs.items()},
    }


def of_kafka(queued: Queued, *, lag_seconds: float) -> Values:
    """What Kafka says."""
    return {
        metrics.TOPIC_WAITING: {(str(one.partition),): one.records for one in queued.partitions},
        metrics.TOPIC_LAG: {(): lag_seconds},
        metrics.WORKERS: {(): queued.workers},
    }


def of_elasticsearch(stored: Stored, held: Held) -> Values:
    """What Elasticsearch says, of what Postgres says that there is."""
    return {
        metrics.INDEX_DOCUMENTS: {
            (one.name, one.index_name, one.role): number
            for one in stored.in_force
            if (number := held.counts.get(one.index_name)) is not None
        }
    }
