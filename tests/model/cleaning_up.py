"""Cleaning up: a job writes every document beside live traffic, and then looks for orphans in Elasticsearch.

A TRUNCATE removes a document without naming it. A worker creates a refresh for its event, or lets it join a refresh
whose listing has not begun; the refresh may run beside another job. A job goes through these phases:

1. It announces its listing in a counter that every writer reads.
2. It reads the shards' sequence numbers from Elasticsearch.
3. It lists the ids in Postgres, range by range, and job workers write them chunk by chunk.
4. It cleans up: a document is an orphan if it was not written since phase 2 and is not in Postgres. Job workers write
   orphans like any other id, which deletes them.

The model has one document, so a job has one chunk or none, and only one of its ranges matters. A row that is created
after its range was listed is written because of its change.

A chunk in hand is locked by the session of its job worker. If that stalls for long, Postgres ends the session, and
another job worker takes the chunk; the first one may still write what it has read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Step, processes, put

_COMMITS = 2
_NEW, _TOLD, _COUNTED, _LISTED, _WRITTEN, _CLEANED_UP, _DONE = range(7)
_NO_CHUNK, _FREE, _LOCKED = range(3)
_IDLE, _HOLDS, _READ, _SENT = range(4)


class Job(NamedTuple):
    """A load or a refresh."""

    phase: int = _NEW
    chunk: int = _NO_CHUNK
    is_touched: bool = False  # the document was written since the job read the sequence numbers


class Hand(NamedTuple):
    """What a worker or a job worker is doing."""

    phase: int = _IDLE
    task: int = 0  # the number of its event, or of the job whose chunk it has
    version: int = 0  # that it has assigned
    is_overtaken: bool = False  # a listing was announced since its snapshot
    is_there: bool = False  # the document is in its snapshot
    is_late: bool = False  # its session has ended


class State(NamedTuple):
    """The state of the model."""

    is_there: bool = True  # the document is in Postgres
    events: tuple[tuple[bool, bool], ...] = ()  # for each commit: it was a TRUNCATE, it is saved as handled
    jobs: tuple[Job, ...] = (Job(),)
    version: int = 0  # that Elasticsearch has or remembers
    is_shown: bool = False  # Elasticsearch has the document
    workers: tuple[Hand, ...] = (Hand(),)
    job_workers: tuple[Hand, ...] = (Hand(), Hand())
    has_stalled: bool = False  # a job worker has


class CleaningUp(Model[State]):
    """A job beside live traffic leaves no orphan behind."""

    initial = State()
    identical = ("job_workers",)
    bounds = f"1 worker, 2 job workers, {_COMMITS} commits, a load, any crashes, one stall"

    cleanup_at_the_end: bool
    late_writers_ask_for_listings: bool
    tell_before_counting: bool
    join_only_a_new_refresh: bool
    a_range_is_saved_with_its_chunks: bool
    a_chunk_is_done_when_written: bool
    a_late_job_worker_lives: bool  # an assumption

    def protocol(self, state: State) -> Iterator[Step[State]]:
        yield from self._work(state)
        for slot, job_worker, name in processes(state.job_workers, "job worker"):
            yield from self._work_on_jobs(state, slot, job_worker, name)
        for slot, job in enumerate(state.jobs):
            yield from self._advance(state, slot, job, f"job {slot + 1}")

    # The worker

    def _work(self, state: State) -> Iterator[Step[State]]:
        (hand,) = state.workers
        if hand.phase == _IDLE:
            for number, (is_truncate, is_done) in enumerate(state.events):
                name = f"event {number + 1}"
                if is_done:
                    continue
                if not is_truncate:
                    yield f"the worker receives {name}", _worker(state, Hand(phase=_HOLDS, task=number))
                    continue
                successor = _handled(self._refresh(state), number)
                yield f"the worker creates a refresh for {name}, and saves it as handled", successor
        elif hand.phase == _SENT and not self._has_to_check(hand):
            successor = _worker(_handled(state, hand.task), Hand())
            yield f"the worker saves event {hand.task + 1} as handled", successor
        else:
            action, successor, moved = self._write(state, hand, "the worker")
            yield action, _worker(successor, moved)

    def _refresh(self, state: State) -> State:
        last_joinable = _NEW if self.join_only_a_new_refresh else _CLEANED_UP
        is_joined = any(job.phase <= last_joinable for job in state.jobs)
        return state if is_joined else state._replace(jobs=(*state.jobs, Job()))

    # Job workers

    def _work_on_jobs(self, state: State, slot: int, job_worker: Hand, name: str) -> Iterator[Step[State]]:
        if job_worker.phase == _IDLE:
            for number, job in enumerate(state.jobs):
                if job.chunk == _FREE:
                    chunk = _LOCKED if self.a_chunk_is_done_when_written else _NO_CHUNK
                    locked = put(state, "jobs", number, job._replace(chunk=chunk))
                    hand = Hand(phase=_HOLDS, task=number)
                    yield f"{name} takes the chunk of job {number + 1}", put(locked, "job_workers", slot, hand)
        elif job_worker.phase == _SENT and not self._has_to_check(job_worker):
            successor = put(state, "job_workers", slot, Hand())
            if job_worker.is_late:
                yield f"{name} finds its session ended", successor
            else:
                job = state.jobs[job_worker.task]._replace(chunk=_NO_CHUNK)
                yield f"{name} deletes the chunk", put(successor, "jobs", job_worker.task, job)
        else:
            action, successor, moved = self._write(state, job_worker, name)
            yield action, put(successor, "job_workers", slot, moved)

    def _write(self, state: State, hand: Hand, name: str) -> tuple[str, State, Hand]:
        """Assign, read and write; if a listing has begun meanwhile, start again."""
        if hand.phase == _HOLDS:
            version = 1 + max(state.version, *(worker.version for worker in (*state.workers, *state.job_workers)))
            reading = hand._replace(phase=_READ, version=version, is_there=state.is_there)
            action = (
                f"{name} assigns version {version}, and reads: the document is {'' if state.is_there else 'not '}there"
            )
            return action, state, reading
        if hand.phase == _SENT:
            restarted = Hand(phase=_HOLDS, task=hand.task, is_late=hand.is_late)
            return f"{name} finds that a listing has begun, and starts again", state, restarted
        sent = hand._replace(phase=_SENT, version=0)
        action = f"{name} {'writes' if hand.is_there else 'deletes'} the document as version {hand.version}"
        if hand.version <= state.version:
            return f"{action}, which is rejected", state, sent
        jobs = tuple(
            job._replace(is_touched=True) if self._counts_at < job.phase < _CLEANED_UP else job for job in state.jobs
        )
        return action, state._replace(version=hand.version, is_shown=hand.is_there, jobs=jobs), sent

    def _has_to_check(self, hand: Hand) -> bool:
        return hand.is_there and hand.is_overtaken and self.late_writers_ask_for_listings

    # Jobs

    @property
    def _counts_at(self) -> int:
        return _TOLD if self.tell_before_counting else _NEW

    def _advance(self, state: State, slot: int, job: Job, name: str) -> Iterator[Step[State]]:
        if job.phase <= _TOLD and job.phase != self._counts_at:
            told = put(state, "jobs", slot, job._replace(phase=job.phase + 1))
            workers, job_workers = (
                tuple(hand._replace(is_overtaken=hand.phase >= _READ) for hand in hands)
                for hands in (state.workers, state.job_workers)
            )
            yield f"{name} announces its listing", told._replace(workers=workers, job_workers=job_workers)
        elif job.phase == self._counts_at:
            counted = job._replace(phase=job.phase + 1, is_touched=False)
            yield f"{name} reads the sequence numbers", put(state, "jobs", slot, counted)
        elif job.phase == _COUNTED:
            listed = job._replace(phase=_LISTED, chunk=_FREE if state.is_there else _NO_CHUNK)
            action = f"{name} lists the range of the document"
            yield f"{action}: {'one chunk' if state.is_there else 'no chunk'}", put(state, "jobs", slot, listed)
            if not self.a_range_is_saved_with_its_chunks:
                lost = put(state, "jobs", slot, job._replace(phase=_LISTED))
                yield f"{action}, and the lister dies before it stores the chunk", lost
        elif job.phase == _LISTED and job.chunk == _NO_CHUNK:
            yield f"{name} has written its documents", put(state, "jobs", slot, job._replace(phase=_WRITTEN))
        elif job.phase == _WRITTEN:
            is_orphan = state.is_shown and not state.is_there and not job.is_touched and self.cleanup_at_the_end
            cleaned_up = Job(phase=_CLEANED_UP, chunk=_FREE if is_orphan else _NO_CHUNK)
            action = f"{name} cleans up, and finds {'an orphan' if is_orphan else 'no orphan'}"
            yield action, put(state, "jobs", slot, cleaned_up)
        elif job.phase == _CLEANED_UP and job.chunk == _NO_CHUNK:
            yield f"{name} is done", put(state, "jobs", slot, Job(phase=_DONE))

    # The world

    def world(self, state: State) -> Iterator[Step[State]]:
        if len(state.events) < _COMMITS:
            yield from self._commit(state)
        if state.workers[0].phase:
            yield "the worker is killed", _worker(state, Hand())
        for slot, job_worker, name in processes(state.job_workers, "job worker"):
            if job_worker.is_late:
                if not self.a_late_job_worker_lives:
                    yield f"{name} is killed", put(state, "job_workers", slot, Hand())
            elif job_worker.phase:
                job = state.jobs[job_worker.task]
                chunk = _FREE if job.chunk == _LOCKED else job.chunk
                free = put(state, "jobs", job_worker.task, job._replace(chunk=chunk))
                yield f"{name} is killed, and its chunk is free", put(free, "job_workers", slot, Hand())
                if not state.has_stalled and job_worker.task == 0:
                    late = put(free, "job_workers", slot, job_worker._replace(is_late=True))._replace(has_stalled=True)
                    yield f"{name} stalls, and Postgres ends its session: its chunk is free", late

    def _commit(self, state: State) -> Iterator[Step[State]]:
        number = len(state.events) + 1
        named = (*state.events, (False, False))
        if not state.is_there:
            yield f"the document is inserted: event {number}", state._replace(events=named, is_there=True)
            return
        yield f"the document is changed: event {number}", state._replace(events=named)
        yield f"the document is deleted: event {number}", state._replace(events=named, is_there=False)
        if not any(is_truncate for is_truncate, _ in state.events):
            truncated = state._replace(events=(*state.events, (True, False)), is_there=False)
            yield f"the table is truncated: event {number}", truncated

    def unequal(self, state: State) -> str | None:
        if state.is_shown != state.is_there:
            return f"Elasticsearch {'has' if state.is_shown else 'lacks'} the document for good, unlike Postgres"
        return None


def _handled(state: State, number: int) -> State:
    return put(state, "events", number, (state.events[number][0], True))


def _worker(state: State, hand: Hand) -> State:
    return state._replace(workers=(hand,))
