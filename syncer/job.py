"""Job: work on many documents, as a row of ``syncer.job`` says it. How it is made and changed: `syncer.jobs`.

A job goes through these states:

    new ──▶ listing ──▶ listed ──▶ written ──▶ swept ──▶ done
                           └──── of a part ────────────────▲         and, from any: failed, cancelled

    new       nobody has begun to list its ids (one whose ids were given begins as listed); a fan-out takes up others
    listing   somebody has; if he dies, the next one begins again
    listed    its pages are there, and are written
    written   all of them are written; now what only Elasticsearch has is looked for: the sweep
    swept     the pages of those are there, and are written
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any

from psycopg import sql

from syncer.errors import JobError
from syncer.postgres import Connection
from syncer.wording import amount

MEASURED_SECONDS = 5
"""Over how many seconds the rate of a job is measured."""

UNFINISHED = sql.SQL("j.state NOT IN ('done', 'failed', 'cancelled')")
"""A condition on ``syncer.job AS j``."""
_JOBS = """
SELECT j.id, j.kind, j.document, j.index_name, j.generation, j.state, j.is_paused, d.halted IS NOT NULL,
       d.unwell IS NOT NULL,
       j.condition, (SELECT jsonb_object_agg(c.key, jsonb_array_length(c.value)) FROM jsonb_each(j.cause) AS c),
       j.rate, j.fills, j.sequence_numbers, j.documents_total, j.documents_done, j.left_out,
       j.indexed, j.deleted, j.superseded, j.parked, j.compose_seconds, j.index_seconds,
       CASE WHEN j.state NOT IN ('listed', 'swept') OR j.is_paused OR d.halted IS NOT NULL
                 OR d.unwell IS NOT NULL THEN NULL
            WHEN j.measured_rate IS NULL OR clock_timestamp() - j.measured_at > {measured}
            THEN (j.documents_done - j.measured_done)
                 / nullif(extract(epoch FROM clock_timestamp() - j.measured_at)::float8, 0)
            ELSE j.measured_rate END,
       j.created_at, j.started_at, j.finished_at, j.error
FROM syncer.job AS j JOIN syncer.document AS d USING (index_name)
WHERE {which}
"""
_ONE = sql.SQL("j.id = $1")
_OF_INDEX = UNFINISHED + sql.SQL(" AND (j.index_name = $1 OR $1 IS NULL) ORDER BY j.id")
_FIRST_UNFINISHED = UNFINISHED + sql.SQL(" ORDER BY j.id LIMIT $1")
_LOCKED_NEW_OF_INDEX = sql.SQL("j.state = 'new' AND j.index_name = $1 ORDER BY j.id FOR NO KEY UPDATE OF j")
_LOCKED_OF_INDEX = UNFINISHED + sql.SQL(" AND j.index_name = $1 ORDER BY j.id FOR NO KEY UPDATE OF j")
_OF_IDS = sql.SQL("j.id = ANY ($1) ORDER BY j.id")
# A fill may have taken up anything until it is listed; that of an index that is not searched keeps nobody waiting.
_CAUSED_BY = UNFINISHED + sql.SQL("""
 AND j.kind = ANY ($1) AND d.name = ANY ($2) AND d.halted IS NULL
 AND (j.caused_before > $3::xid8 OR j.kind = 'fill' AND j.state = 'new')
 AND (j.kind <> 'fill' OR d.role = 'serving')
ORDER BY j.id""")
_UNFILLED = sql.SQL("""
SELECT d.index_name FROM syncer.document AS d
WHERE d.filled_at IS NULL AND NOT EXISTS (
    SELECT FROM syncer.job AS j WHERE j.index_name = d.index_name AND j.fills AND {unfinished})
""").format(unfinished=UNFINISHED)
_FINISHED = sql.SQL("NOT (") + UNFINISHED + sql.SQL(") ORDER BY j.finished_at DESC, j.id DESC LIMIT $1")
# A load that truncates one table after the other makes two refreshes, not one for each table: the second one waits to
# begin, and is joined by all others, until the first one is through. Those that take least long to list come first.
# While an index is unwell nothing is listed, so that what comes meanwhile is taken up by few jobs.
_DUE = UNFINISHED + sql.SQL("""
 AND NOT (j.kind = 'refresh' AND j.state = 'new' AND EXISTS (
     SELECT FROM syncer.job AS o
     WHERE o.index_name = j.index_name AND o.kind = 'refresh' AND o.id < j.id AND NOT o.is_paused
       AND o.state NOT IN ('done', 'failed', 'cancelled')))
 AND NOT j.is_paused AND d.halted IS NULL AND d.unwell IS NULL AND d.generation = j.generation
 AND (j.state IN ('new', 'listing', 'written') OR j.pages_left = 0)
ORDER BY j.kind NOT IN ('fan-out', 'catch-up'), j.id
""")


class JobKind(StrEnum):
    """Why a job is done."""

    BACKFILL = "backfill"
    """The whole document, since somebody asked for it."""
    FILL = "fill"
    """The whole document, since it was put in force."""
    REFRESH = "refresh"
    """The whole document, since a table of it was truncated, or changes of it may be lost: see `syncer.loss`."""
    FAN_OUT = "fan-out"
    """The documents that a change leads to, since they are many."""
    CATCH_UP = "catch-up"
    """The documents that changed while their index took none: see `syncer.unwell`."""
    PART = "part"
    """Some documents, by a condition or by their ids, since somebody asked for it."""
    REPAIR = "repair"
    """Some documents that were found to differ."""

    @property
    def is_whole(self) -> bool:
        """Whether it writes every document, and deletes what only Elasticsearch has."""
        return self in _WHOLE

    @property
    def is_owed(self) -> bool:
        """Whether documents may be stale until it is done."""
        return self in OWED

    def covers(self, other: JobKind) -> bool:
        """Whether a new job of this kind does all that one of the other kind would, and is owed if that is."""
        if other in {JobKind.FAN_OUT, JobKind.CATCH_UP}:
            return self is other or (self.is_whole and self.is_owed)
        return self.is_whole and other.is_whole and _WHOLE.index(self) >= _WHOLE.index(other)


_WHOLE = (JobKind.BACKFILL, JobKind.REFRESH, JobKind.FILL)
"""Each does what those before it do."""
OWED = (JobKind.FILL, JobKind.REFRESH, JobKind.FAN_OUT, JobKind.CATCH_UP)
"""Until they are done documents may be stale."""


class JobState(StrEnum):
    """How far it is: see the module."""

    NEW = "new"
    LISTING = "listing"
    LISTED = "listed"
    WRITTEN = "written"
    SWEPT = "swept"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_finished(self) -> bool:
        """Whether nothing more is done for it."""
        return self in (JobState.DONE, JobState.FAILED, JobState.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as it was when it was read.

    Args:
        id: Its number.
        kind: Why it is done.
        document: The document's name.
        index_name: The index that it writes.
        generation: The generation that it is for; it is cancelled when another one is put in force.
        state: How far it is.
        is_paused: Whether no page of it is taken.
        is_halted: Whether the document is halted, so that it waits.
        is_unwell: Whether its index takes no documents for now, so that it waits.
        where: The condition on the root's columns that selects its part, if that is how it was asked for.
        cause: Of a fan-out: how many changed rows, by table, lead to its documents.
        rate: Documents per second that it may write at most, over all lanes; None for as many as it can.
        fills: Whether its end makes the document filled.
        sequence_numbers: The greatest ``_seq_no`` of each shard before the first document was written.
        documents_total: How many documents it has to write; None until they are listed. The sweep adds to it.
        documents_done: How many of them are done.
        left_out: Of a fan-out: how many further documents it leaves to other jobs, which had them listed already.
        indexed: Written.
        deleted: Deleted, or known to be absent.
        superseded: Not written since something at least as new was there.
        parked: Left as dead letters.
        compose_seconds: Spent in Postgres, by all lanes together.
        index_seconds: Spent in Elasticsearch.
        documents_per_second: As of the last seconds; None if it is not known, or nothing is being written.
        created_at: When it was made.
        started_at: When its first page was taken.
        finished_at: When it was done, failed or cancelled.
        error: Why it failed, or was cancelled; what to do in further lines.
    """

    id: int
    kind: JobKind
    document: str
    index_name: str
    generation: int
    state: JobState
    is_paused: bool
    is_halted: bool
    is_unwell: bool
    where: str | None
    cause: dict[str, int] | None
    rate: float | None
    fills: bool
    sequence_numbers: dict[int, int] | None
    documents_total: int | None
    documents_done: int
    left_out: int
    indexed: int
    deleted: int
    superseded: int
    parked: int
    compose_seconds: float
    index_seconds: float
    documents_per_second: float | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None

    @property
    def reason(self) -> str:
        """Its kind, and what caused it: which tables, and how many changed rows; never what is in them."""
        caused = [f"{relation}, {amount(rows, 'row')}" for relation, rows in sorted((self.cause or {}).items())]
        return f"{self.kind}: {', '.join(caused)}" if caused else self.kind

    @property
    def documents_left(self) -> int | None:
        """How many documents are listed and not done; None until they are listed."""
        return None if self.documents_total is None else max(0, self.documents_total - self.documents_done)

    @property
    def eta_seconds(self) -> float | None:
        """How long the rest will take, as far as it is listed; None if that is not known."""
        if not self.documents_per_second or self.documents_left is None:
            return None
        return self.documents_left / self.documents_per_second

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        plain = {name: one.isoformat() if isinstance(one, datetime) else one for name, one in asdict(self).items()}
        return {**plain, "documents_left": self.documents_left, "eta_seconds": self.eta_seconds}


def find(connection: Connection, job_id: int) -> Job:
    """One job.

    Raises:
        JobError: There is none with that id, or no longer.
    """
    found = _read(connection, _ONE, job_id)
    if not found:
        raise JobError(
            f"There is no job {job_id}, or no longer",
            hint="A finished job is remembered for a while, and no longer than its index. To see all: syncer jobs list",
        )
    return found[0]


def unfinished(connection: Connection, index_name: str | None = None) -> list[Job]:
    """All that are not finished, oldest first; of one index, or of all."""
    return _read(connection, _OF_INDEX, index_name)


def some(connection: Connection, ids: Sequence[int]) -> list[Job]:
    """Those of these jobs that are remembered."""
    return _read(connection, _OF_IDS, list(ids))


def caused_by(connection: Connection, xid: int, documents: Sequence[str]) -> list[Job]:
    """The unfinished ones of these documents that a transaction may have caused; to be asked once it was handled.

    A job that was made before the transaction had its id is not among them, unless something has joined it since.
    """
    return _read(connection, _CAUSED_BY, list(OWED), list(documents), str(xid))


def unfilled(connection: Connection) -> set[str]:
    """The indices of which documents may be stale, and no job is at work that makes up for it."""
    return {row[0] for row in connection.execute(_UNFILLED)}


def recent(connection: Connection, *, unfinished_max: int | None = None, finished_max: int | None = None) -> list[Job]:
    """The unfinished, oldest first, and then the finished that are remembered, last first; all, or so many of each."""
    return _read(connection, _FIRST_UNFINISHED, unfinished_max) + _read(connection, _FINISHED, finished_max)


def locked_unfinished(connection: Connection, index_name: str) -> list[Job]:
    """All of one index that are not finished; they stay as they are until the caller's transaction ends."""
    return _read(connection, _LOCKED_OF_INDEX, index_name)


def locked_new(connection: Connection, index_name: str) -> list[Job]:
    """Those of one index that nobody has begun to list; nobody does until the caller's transaction ends."""
    return _read(connection, _LOCKED_NEW_OF_INDEX, index_name)


def due(connection: Connection) -> list[Job]:
    """Those that wait for a step other than writing a page: fan-outs first, then the oldest.

    What is to be done with each: NEW and LISTING: `listing.list_pages`. WRITTEN: `listing.sweep`. LISTED and SWEPT:
    `jobs.advance`. Not in it: jobs that are paused, whose document is halted, or
    whose index is unwell.
    """
    return _read(connection, _DUE)


def _read(connection: Connection, which: sql.Composable, *parameters: object) -> list[Job]:
    query = sql.SQL(_JOBS).format(which=which, measured=sql.Literal(f"{MEASURED_SECONDS} s"))
    return [_job(row) for row in connection.execute(query, parameters)]


def _job(row: Sequence[Any]) -> Job:
    values: dict[str, Any] = dict(zip(_NAMES, row, strict=True))
    numbers: dict[str, int] | None = values["sequence_numbers"]
    return Job(
        **values
        | {
            "kind": JobKind(values["kind"]),
            "state": JobState(values["state"]),
            "sequence_numbers": None if numbers is None else {int(shard): one for shard, one in numbers.items()},
        }
    )


_NAMES = [one.name for one in fields(Job)]
