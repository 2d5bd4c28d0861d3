"""Jobs: work on many documents, kept in Postgres, done by all lanes of all daemons together.

A job is a row of ``syncer.job``; what it has yet to write are its pages of ids: see `syncer.listing`, which makes
them, and `syncer.job_pages`, by which they are taken and finished. A job goes through these states:

    new ──▶ listing ──▶ listed ──▶ written ──▶ swept ──▶ done        failed, cancelled
     │                    ▲           │                    ▲
     │ its ids are given ─┘           └ if it is of a part ┘

    new       nobody has begun to list its ids
    listing   somebody has; if he dies, the next one begins again
    listed    its pages are there, and are written
    written   all of them are written; now what only Elasticsearch has is looked for: the sweep
    swept     the pages of those are there, and are written

Guarantees: what is done is counted exactly once, in the transaction in which the page goes away; a job goes on from
where it was, whoever dies; whoever locks several rows locks the document's first, then jobs, then pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from syncer.postgres import Connection
from syncer.store import Document


class JobKind(StrEnum):
    """Why a job is done."""

    BACKFILL = "backfill"
    """The whole document, since somebody asked for it."""
    FILL = "fill"
    """The whole document, since it was put in force."""
    REFRESH = "refresh"
    """The whole document, since a table of it was truncated."""
    PART = "part"
    """Some documents, by a condition or by their ids, since somebody asked for it."""
    REPAIR = "repair"
    """Some documents that were found to differ."""

    @property
    def is_whole(self) -> bool:
        """Whether it writes every document, and deletes what only Elasticsearch has."""

    @property
    def is_owed(self) -> bool:
        """Whether documents may be stale until it is done."""


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
        where: The condition on the root's columns that selects its part, if that is how it was asked for.
        rate: Documents per second that it may write at most, over all lanes; None for as many as it can.
        fills: Whether its end makes the document filled.
        sequence_numbers: The greatest ``_seq_no`` of each shard before the first document was written.
        documents_total: How many documents it has to write; None until they are listed. The sweep adds to it.
        documents_done: How many of them are done.
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
    where: str | None
    rate: float | None
    fills: bool
    sequence_numbers: dict[int, int] | None
    documents_total: int | None
    documents_done: int
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
    def eta_seconds(self) -> float | None:
        """How long the rest will take, as far as it is listed; None if that is not known."""

    def as_json(self) -> dict[str, Any]:
        """Plain data."""


def create(
    connection: Connection,
    document: Document,
    kind: JobKind,
    *,
    where: str | None = None,
    rate: float | None = None,
    resume: bool = False,
) -> Job | None:
    """Make a job whose ids are yet to be listed, in the caller's transaction if there is one.

    One that is still new does what this one would, if it is of at least the same standing, not paused and not slower:
    then that is the job (two TRUNCATEs cost one refresh). A fill takes the place of all unfinished whole jobs of
    its index, and of all jobs of older generations; these are cancelled.

    Args:
        connection: Postgres.
        document: Which, as it was last read; the job is for the generation that is in force now.
        kind: Any whole one, or PART.
        where: For PART: a condition on the columns of the document's root.
        rate: Documents per second at most.
        resume: Whether an unfinished job of the same kind and condition is taken up again instead: no longer
            paused, and with this rate.

    Returns:
        The job; None if the document's index is no longer in force.

    Raises:
        JobError: The condition is refused, by us or by Postgres.
    """


def find(connection: Connection, job_id: int) -> Job:
    """One job.

    Raises:
        JobError: There is none with that id, or no longer.
    """


def unfinished(connection: Connection, index_name: str | None = None) -> list[Job]:
    """All that are not finished, oldest first; of one index, or of all."""


def recent(connection: Connection) -> list[Job]:
    """The unfinished, oldest first, and then the finished that are remembered, last first."""


def due(connection: Connection) -> list[Job]:
    """Those that wait for a step other than writing a page, oldest first.

    What is to be done with each: NEW and LISTING: `listing.list_pages`. WRITTEN: `listing.sweep`. LISTED and SWEPT:
    `advance`. Not in it: jobs that are paused, or whose document is halted.
    """


def advance(connection: Connection, job_id: int) -> Job:
    """Let a job whose pages are all done go on to its next state; if it is not as far as that, nothing happens.

    At the end of a whole job the document is filled, in the same transaction, if the job's generation is still in force
    and not halted, and if no change may have been missed since the job was made.

    Raises:
        JobError: There is no such job, or no longer.
    """


def fail(connection: Connection, job_id: int, error: str) -> None:
    """End a job that cannot be done; nothing happens if it is finished already."""


def pause(connection: Connection, job_id: int) -> Job:
    """Take no more pages of a job from now on; what is in hand is finished.

    Raises:
        JobError: There is no such job, or it is finished.
    """


def resume(connection: Connection, job_id: int) -> Job:
    """Go on with a job that is paused.

    Raises:
        JobError: There is no such job, or it is finished.
    """


def set_rate(connection: Connection, job_id: int, rate: float | None) -> Job:
    """Let a job write so many documents per second at most, from now on.

    Raises:
        JobError: There is no such job, or it is finished.
    """


def cancel(connection: Connection, job_id: int, reason: str = "by hand") -> Job:
    """End a job: pages that are not yet written are dropped, what is written stays.

    If documents may be stale without it (FILL, REFRESH), the document counts as not filled from then on, until
    `syncer apply` or `syncer backfill` has written all of it.

    Raises:
        JobError: There is no such job, or it is finished.
    """


def mark_unfilled(connection: Connection, index_names: Sequence[str]) -> None:
    """Remember that changes of these documents may have been missed: no job that is there now makes up for it."""
