"""Cleaning up: a job writes every document beside live traffic, and then looks for orphans in Elasticsearch.

A TRUNCATE removes a document without naming it. A worker creates a refresh for its event, or lets it join a refresh
whose listing has not begun; the refresh may run beside another job. A job goes through these phases:

1. It announces its listing in a counter that every writer reads.
2. It reads the shards' sequence numbers from Elasticsearch.
3. It lists the ids in Postgres, and job workers write them chunk by chunk.
4. It cleans up: a document is an orphan if it was not written since phase 2 and is not in Postgres. Job workers write
   orphans like any other id, which deletes them.

The model has one document, so a job has one chunk or none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from tests.model.explorer import Model, Rule, Step, placed, ranked

CLEANED_UP = Rule(
    name="cleanup-at-the-end",
    says="after writing all documents, a job looks for ids that only Elasticsearch has, and writes those too",
    kept_by="syncer.jobs.queue",
    otherwise="a document that a TRUNCATE removed stays in Elasticsearch",
)
LISTINGS_ASKED = Rule(
    name="late-writers-ask-for-listings",
    says="after a write, a writer checks whether a listing has begun since its snapshot; if so, it starts again",
    kept_by="syncer.indexing.writer",
    otherwise="a document that is read before a TRUNCATE and written during the cleanup stays for good",
)
TOLD_FIRST = Rule(
    name="tell-before-counting",
    says="a job announces its listing before it reads the sequence numbers",
    kept_by="syncer.jobs.listing",
    otherwise="a document written between the two is too new to be an orphan, and its writer sees no new listing",
)
JOB_FIRST = Rule(
    name="the-job-before-the-offset",
    says="a worker commits the offset of a TRUNCATE only after it has created the job",
    kept_by="syncer.worker.loop",
    otherwise="a worker that dies in between loses the TRUNCATE",
)
NEW_REFRESH = Rule(
    name="join-only-a-new-refresh",
    says="a TRUNCATE joins a refresh only if its listing has not begun",
    kept_by="syncer.jobs.queue",
    otherwise="it joins a refresh that has already cleaned up, and no job looks for orphans again",
)
WRITTEN_CHUNK = Rule(
    name="a-chunk-is-done-when-written",
    says="a chunk is done only after its documents are written",
    kept_by="syncer.worker.job_loop",
    otherwise="a job worker that dies loses its chunk",
)

_NEW, _TOLD, _COUNTED, _LISTED, _WRITTEN, _CLEANED_UP, _DONE = range(7)
_NONE, _WAITS, _TAKEN = range(3)
_IDLE, _HOLDS, _ASSIGNED, _READ, _SENT = range(5)


class Job(NamedTuple):
    """A refresh or a backfill.

    Args:
        phase: Its phase.
        chunk: Whether it has a chunk, and whether a job worker has taken it.
        is_touched: Whether the document was written since the job read the sequence numbers.
        is_pending: Whether it is a refresh.
    """

    phase: int = _NEW
    chunk: int = _NONE
    is_touched: bool = False
    is_pending: bool = True


class Hand(NamedTuple):
    """What a worker or a job worker is doing.

    Args:
        phase: Its phase.
        task: The number of its event, or of the job whose chunk it has.
        version: The version that it has assigned.
        listings: How many listings had been announced in its snapshot.
        is_there: Whether the document is in its snapshot.
    """

    phase: int = _IDLE
    task: int = 0
    version: int = 0
    listings: int = 0
    is_there: bool = False


class CleaningUp(NamedTuple):
    """The state of the model.

    Args:
        is_there: Whether the document is in Postgres.
        events: For each commit, whether it was a TRUNCATE, and whether its offset is committed.
        listings: How many listings have been announced.
        jobs: All jobs.
        version: The version that Elasticsearch has or remembers.
        is_shown: Whether Elasticsearch has the document.
        worker: What the worker is doing.
        job_workers: What the job workers are doing.
        unmade: Whether the worker has committed an offset without creating the job.
    """

    is_there: bool
    events: tuple[tuple[bool, bool], ...]
    listings: int
    jobs: tuple[Job, ...]
    version: int
    is_shown: bool
    worker: Hand
    job_workers: tuple[Hand, ...]
    unmade: bool = False


class CleaningUpModel(Model[CleaningUp]):
    """A job beside live traffic."""

    name = "cleaning_up"
    about = "a job beside live traffic leaves no orphan behind"
    rules = (CLEANED_UP, LISTINGS_ASKED, TOLD_FIRST, JOB_FIRST, NEW_REFRESH, WRITTEN_CHUNK)
    beyond: ClassVar = {
        "cancel": "a job worker reads a backfill's chunk before a TRUNCATE; the backfill is cancelled; the job worker "
        "writes the chunk during the cleanup of the refresh, and is killed before its re-check",
    }

    def prepare(self) -> None:
        self._commits = 3 if self.is_large else 2
        self._job_workers = 2

    @property
    def bounds(self) -> str:
        return f"1 worker, {self._job_workers} job workers, {self._commits} commits, an earlier job, any crashes"

    def initial(self) -> CleaningUp:
        return CleaningUp(
            is_there=True,
            events=(),
            listings=0,
            jobs=(Job(is_pending="cancel" not in self.allowed),),
            version=1,
            is_shown=True,
            worker=Hand(),
            job_workers=(Hand(),) * self._job_workers,
        )

    def protocol(self, state: CleaningUp) -> Iterator[Step[CleaningUp]]:
        yield from self._work(state)
        for at, job_worker in enumerate(state.job_workers):
            yield from self._job_worker(state, at, job_worker, f"job worker {'AB'[at]}")
        for at, job in enumerate(state.jobs):
            yield from self._advance(state, at, job, f"job {at + 1}")

    # The worker

    def _work(self, state: CleaningUp) -> Iterator[Step[CleaningUp]]:
        hand = state.worker
        if state.unmade:
            yield "the worker creates the job", self._refresh(state)._replace(unmade=False)
        elif hand.phase == _IDLE:
            for number, (is_truncate, is_done) in enumerate(state.events):
                if is_done:
                    continue
                if not is_truncate:
                    yield (
                        f"the worker receives event {number + 1}",
                        state._replace(worker=Hand(phase=_HOLDS, task=number)),
                    )
                # Rule the-job-before-the-offset: `Worker._take`.
                elif self.keeps(JOB_FIRST):
                    yield (
                        f"the worker creates a refresh for event {number + 1}, and commits its offset",
                        _committed(self._refresh(state), number),
                    )
                else:
                    yield (
                        f"the worker commits the offset of event {number + 1}",
                        _committed(state, number)._replace(unmade=True),
                    )
        elif hand.phase == _SENT and not self._is_late(state, hand):
            yield (
                f"the worker commits the offset of event {hand.task + 1}",
                _committed(state, hand.task)._replace(worker=Hand()),
            )
        else:
            said, after, moved = self._write(state, hand, "the worker")
            yield said, after._replace(worker=moved)

    def _refresh(self, state: CleaningUp) -> CleaningUp:
        # Rule join-only-a-new-refresh: `queue._still_new`.
        is_joined = any(
            job.is_pending and (job.phase == _NEW or (not self.keeps(NEW_REFRESH) and job.phase != _DONE))
            for job in state.jobs
        )
        return state if is_joined else state._replace(jobs=(*state.jobs, Job()))

    # Job workers

    def _job_worker(self, state: CleaningUp, at: int, job_worker: Hand, name: str) -> Iterator[Step[CleaningUp]]:
        if job_worker.phase == _IDLE:
            for number, job in enumerate(state.jobs):
                if job.chunk == _WAITS:
                    # Rule a-chunk-is-done-when-written: `JobWorker._done`.
                    chunk = _TAKEN if self.keeps(WRITTEN_CHUNK) else _NONE
                    jobs = placed(state.jobs, number, job._replace(chunk=chunk))
                    yield (
                        f"{name} takes the chunk of job {number + 1}",
                        _laned(state, at, Hand(phase=_HOLDS, task=number))._replace(jobs=jobs),
                    )
        elif job_worker.phase == _SENT and not self._is_late(state, job_worker):
            job = state.jobs[job_worker.task]
            jobs = placed(state.jobs, job_worker.task, job._replace(chunk=_NONE))
            yield f"{name} finishes the chunk", _laned(state, at, Hand())._replace(jobs=jobs)
        else:
            said, after, moved = self._write(state, job_worker, name)
            yield said, _laned(after, at, moved)

    def _write(self, state: CleaningUp, hand: Hand, name: str) -> tuple[str, CleaningUp, Hand]:
        """Assign, read and write; if a listing has begun meanwhile, start again."""
        if hand.phase == _HOLDS:
            version = max(state.version, state.worker.version, *(one.version for one in state.job_workers)) + 1
            return f"{name} assigns version {version}", state, hand._replace(phase=_ASSIGNED, version=version)
        if hand.phase == _ASSIGNED:
            read = hand._replace(phase=_READ, listings=state.listings, is_there=state.is_there)
            return f"{name} reads: the document is {'' if state.is_there else 'not '}there", state, read
        if hand.phase == _SENT:
            again = Hand(phase=_HOLDS, task=hand.task)
            return f"{name} finds that a listing has begun, and starts again", state, again
        sent = hand._replace(phase=_SENT, version=0)
        said = f"{name} {'writes' if hand.is_there else 'deletes'} the document as version {hand.version}"
        if hand.version <= state.version:
            return f"{said}, which is rejected", state, sent
        jobs = tuple(job._replace(is_touched=True) if job.phase < _CLEANED_UP else job for job in state.jobs)
        return said, state._replace(version=hand.version, is_shown=hand.is_there, jobs=jobs), sent

    def _is_late(self, state: CleaningUp, hand: Hand) -> bool:
        # Rule late-writers-ask-for-listings: `Writer._is_listed_since`.
        return hand.is_there and hand.listings != state.listings and self.keeps(LISTINGS_ASKED)

    # Jobs

    def _advance(self, state: CleaningUp, at: int, job: Job, name: str) -> Iterator[Step[CleaningUp]]:
        # Rule tell-before-counting: `listing.list_chunks`.
        tells_at, counts_at = (_NEW, _TOLD) if self.keeps(TOLD_FIRST) else (_TOLD, _NEW)
        if job.phase == tells_at:
            told = _jobbed(state, at, job._replace(phase=job.phase + 1))
            yield f"{name} announces its listing", told._replace(listings=state.listings + 1)
        elif job.phase == counts_at:
            counted = job._replace(phase=job.phase + 1, is_touched=False)
            yield f"{name} reads the sequence numbers", _jobbed(state, at, counted)
        elif job.phase == _COUNTED:
            chunk = _WAITS if state.is_there else _NONE
            said = f"{name} is listed: {'one chunk' if chunk else 'no chunk'}"
            yield said, _jobbed(state, at, job._replace(phase=_LISTED, chunk=chunk))
        elif job.phase == _LISTED and job.chunk == _NONE:
            yield f"{name} has written its documents", _jobbed(state, at, job._replace(phase=_WRITTEN))
        elif job.phase == _WRITTEN:
            # Rule cleanup-at-the-end: `queue.advance`.
            is_orphan = state.is_shown and not state.is_there and not job.is_touched and self.keeps(CLEANED_UP)
            cleaned_up = job._replace(phase=_CLEANED_UP, chunk=_WAITS if is_orphan else _NONE)
            yield (
                f"{name} cleans up, and finds {'an orphan' if is_orphan else 'no orphan'}",
                _jobbed(state, at, cleaned_up),
            )
        elif job.phase == _CLEANED_UP and job.chunk == _NONE:
            yield f"{name} is done", _jobbed(state, at, Job(phase=_DONE, is_pending=job.is_pending))

    def world(self, state: CleaningUp) -> Iterator[Step[CleaningUp]]:
        if len(state.events) < self._commits:
            number = len(state.events) + 1
            named = (*state.events, (False, False))
            if state.is_there:
                yield f"the document is changed: event {number}", state._replace(events=named)
                yield f"the document is deleted: event {number}", state._replace(events=named, is_there=False)
                if not any(is_truncate for is_truncate, _ in state.events):
                    truncated = state._replace(events=(*state.events, (True, False)), is_there=False)
                    yield f"the table is truncated: event {number}", truncated
            else:
                yield f"the document is inserted: event {number}", state._replace(events=named, is_there=True)
        if state.worker.phase or state.unmade:
            yield "the worker is killed", state._replace(worker=Hand(), unmade=False)
        for at, job_worker in enumerate(state.job_workers):
            if job_worker.phase:
                job = state.jobs[job_worker.task]
                chunk = _WAITS if job.chunk == _TAKEN else job.chunk
                after = _laned(_jobbed(state, job_worker.task, job._replace(chunk=chunk)), at, Hand())
                yield f"job worker {'AB'[at]} is killed, and its chunk is given back", after
        if "cancel" in self.allowed and state.jobs[0].phase < _DONE:
            yield "job 1 is cancelled, and its chunks removed", _jobbed(state, 0, Job(phase=_DONE, is_pending=False))

    def unequal(self, state: CleaningUp) -> str | None:
        if state.is_shown != state.is_there:
            return f"Elasticsearch {'has' if state.is_shown else 'lacks'} the document for good, unlike Postgres"
        return None

    def canonical(self, state: CleaningUp) -> CleaningUp:
        hands = (state.worker, *state.job_workers)
        rank = ranked((state.version, *(one.version for one in hands)))
        listings = ranked((state.listings, *(one.listings for one in hands)))
        worker, *job_workers = (
            one._replace(version=rank[one.version], listings=listings[one.listings]) if one.phase else one
            for one in hands
        )
        return state._replace(
            version=rank[state.version],
            listings=listings[state.listings],
            worker=worker,
            job_workers=tuple(sorted(job_workers)),
        )


def _committed(state: CleaningUp, number: int) -> CleaningUp:
    return state._replace(events=placed(state.events, number, (state.events[number][0], True)))


def _laned(state: CleaningUp, at: int, job_worker: Hand) -> CleaningUp:
    return state._replace(job_workers=placed(state.job_workers, at, job_worker))


def _jobbed(state: CleaningUp, at: int, job: Job) -> CleaningUp:
    return state._replace(jobs=placed(state.jobs, at, job))
