"""Fanning: changes that touch many documents become jobs, which other changes join.

Each change touches a document of its own and one that all changes share. Its event creates a fan-out, or joins one
whose listing has not begun. A lister commits that it has begun; reads the causes and the documents that they touch; and
commits them as one chunk. A job worker sees the chunk, locks it, assigns a version and reads, writes, and deletes the
chunk. The lock ends with the session, also when Postgres ends that of a job worker that has stalled; the job worker may
still write what it has read. A job worker that saw the chunk before it was deleted may lock it afterwards.

A write that shows less than what is there is refused: see `tests.model.writing`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Step, processes, put

_COMMITS = 3
_NEW, _LISTING, _LISTED, _LOCKED, _DELETED = range(5)
_IDLE, _SEES, _HOLDS, _READ = range(4)


class Job(NamedTuple):
    """A fan-out with its chunk."""

    phase: int = _NEW
    causes: frozenset[int] = frozenset()
    documents: frozenset[int] = frozenset()  # that its lister has read
    counted: int = 0  # how often its chunk was counted


class JobWorker(NamedTuple):
    """What a job worker is doing."""

    phase: int = _IDLE
    job: int = 0  # whose chunk it has
    state: int = 0  # of the database that it has read
    is_late: bool = False  # its session has ended


class State(NamedTuple):
    """The state of the model."""

    commits: int = 0
    asked: int = 0  # how many of their events have become part of a job
    jobs: tuple[Job, ...] = ()
    shown: tuple[int, ...] = (0,) * (_COMMITS + 1)  # by each document; all changes touch document 0
    job_workers: tuple[JobWorker, ...] = (JobWorker(), JobWorker())


class Fanning(Model[State]):
    """Fan-outs that others join reach every document."""

    initial = State()
    identical = ("job_workers",)
    bounds = f"{_COMMITS} changes, 2 job workers, any deaths and stalls"

    join_only_a_new_fan_out: bool
    begin_before_listing: bool
    a_chunk_in_hand_is_a_lock: bool
    count_what_you_delete: bool

    def protocol(self, state: State) -> Iterator[Step[State]]:
        if state.asked < state.commits:
            yield self._ask(state)
        for slot, job in enumerate(state.jobs):
            yield from self._list(state, slot, job)
        for slot, job_worker, name in processes(state.job_workers, "job worker"):
            yield from self._work(state, slot, job_worker, name)

    def _ask(self, state: State) -> Step[State]:
        number = state.asked + 1
        successor = state._replace(asked=number)
        last_joinable = _NEW if self.join_only_a_new_fan_out else _LOCKED
        for slot, job in enumerate(state.jobs):
            if job.phase <= last_joinable:
                joined = job._replace(causes=job.causes | {number})
                return f"a worker lets change {number} join job {slot + 1}", put(successor, "jobs", slot, joined)
        jobs = (*state.jobs, Job(causes=frozenset({number})))
        return f"a worker creates job {len(jobs)} for change {number}", successor._replace(jobs=jobs)

    def _list(self, state: State, slot: int, job: Job) -> Iterator[Step[State]]:
        if job.phase == _NEW and self.begin_before_listing:
            yield f"the listing of job {slot + 1} begins", put(state, "jobs", slot, job._replace(phase=_LISTING))
        elif job.phase in (_NEW, _LISTING) and not job.documents:
            reading = job._replace(documents=job.causes | {0})
            yield (
                f"the lister of job {slot + 1} reads its causes and their documents",
                put(state, "jobs", slot, reading),
            )
        elif job.phase in (_NEW, _LISTING):
            yield f"job {slot + 1} is listed", put(state, "jobs", slot, job._replace(phase=_LISTED))

    def _work(self, state: State, slot: int, job_worker: JobWorker, name: str) -> Iterator[Step[State]]:
        job = state.jobs[job_worker.job] if state.jobs else Job()
        if job_worker.phase == _IDLE:
            for number, job in enumerate(state.jobs):
                if job.phase == _LISTED:
                    sees = JobWorker(phase=_SEES, job=number)
                    yield f"{name} sees the chunk of job {number + 1}", put(state, "job_workers", slot, sees)
        elif job_worker.phase == _SEES and job.phase == _LOCKED:
            yield f"{name} finds the chunk locked", put(state, "job_workers", slot, JobWorker())
        elif job_worker.phase == _SEES:
            locked = put(state, "jobs", job_worker.job, job._replace(phase=max(job.phase, _LOCKED)))
            yield f"{name} locks the chunk", put(locked, "job_workers", slot, job_worker._replace(phase=_HOLDS))
        elif job_worker.phase == _HOLDS:
            reading = job_worker._replace(phase=_READ, state=state.commits)
            yield f"{name} assigns a version, and reads state {state.commits}", put(state, "job_workers", slot, reading)
        else:
            shown = tuple(
                max(shown, job_worker.state) if document in job.documents else shown
                for document, shown in enumerate(state.shown)
            )
            successor = put(state._replace(shown=shown), "job_workers", slot, JobWorker())
            action = f"{name} writes state {job_worker.state}"
            if job_worker.is_late:
                yield f"{action}, and finds its session ended", successor
            else:
                counts = job.phase != _DELETED or not self.count_what_you_delete
                deleted = job._replace(phase=_DELETED, counted=job.counted + counts)
                yield f"{action}, and deletes the chunk", put(successor, "jobs", job_worker.job, deleted)

    def world(self, state: State) -> Iterator[Step[State]]:
        if state.commits < _COMMITS:
            yield f"change {state.commits + 1} is committed", state._replace(commits=state.commits + 1)
        for slot, job in enumerate(state.jobs):
            if job.phase <= _LISTING and job.documents:
                begun_anew = job._replace(documents=frozenset())
                yield f"the lister of job {slot + 1} is killed", put(state, "jobs", slot, begun_anew)
        for slot, job_worker, name in processes(state.job_workers, "job worker"):
            if job_worker.phase == _IDLE:
                continue
            job, free = state.jobs[job_worker.job], state
            holds = job_worker.phase > _SEES and not job_worker.is_late
            if holds and job.phase == _LOCKED and self.a_chunk_in_hand_is_a_lock:
                free = put(state, "jobs", job_worker.job, job._replace(phase=_LISTED))
            if holds:
                late = put(free, "job_workers", slot, job_worker._replace(is_late=True))
                yield f"{name} stalls, and Postgres ends its session", late
            yield f"{name} is killed", put(free, "job_workers", slot, JobWorker())

    def wrong(self, state: State) -> str | None:
        for slot, job in enumerate(state.jobs):
            if job.counted > 1:
                return f"the chunk of job {slot + 1} counts {job.counted} times"
        return None

    def unequal(self, state: State) -> str | None:
        for document, shown in enumerate(state.shown):
            newest = state.commits if document == 0 else document
            if document <= state.commits and shown < newest:
                return f"document {document} shows state {shown} for good, and not change {newest}"
        return None
