"""Fanning: changes that touch many documents become jobs, which other changes join.

Each change touches a document of its own and one that all changes share. Its event creates a fan-out, or joins one
whose listing has not begun. A lister commits that it has begun; reads the causes and the documents that they touch; and
commits them as one chunk. A job worker takes the chunk, assigns a version and reads, writes, and finishes the chunk. A
chunk whose holder stalls is given to another job worker, and its first holder continues with it.

A write that shows less than what is there is refused: see `tests.model.writing`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Rule, Step, placed

JOIN_NEW = Rule(
    name="join-only-a-new-fan-out",
    says="a change joins a fan-out only if its listing has not begun",
    kept_by="syncer.jobs.queue",
    otherwise="it joins a fan-out that does not list its documents any more",
)
BEGUN_FIRST = Rule(
    name="begin-before-listing",
    says="that a listing has begun is committed before the snapshot in which it reads the causes and their documents",
    kept_by="syncer.jobs.listing",
    otherwise="a change joins a fan-out whose listing has read the causes already",
)

_NEW, _LISTING, _LISTED, _TAKEN, _DONE = range(5)
_IDLE, _HOLDS, _READ = range(3)


class Job(NamedTuple):
    """A fan-out: how far it is, the changes that caused it, and the documents that its lister has read."""

    phase: int = _NEW
    causes: frozenset[int] = frozenset()
    documents: frozenset[int] = frozenset()


class JobWorker(NamedTuple):
    """How far a job worker is, which job it has the chunk of, and the state that it has read."""

    phase: int = _IDLE
    job: int = 0
    state: int = 0


class Fanning(NamedTuple):
    """Everything.

    Args:
        commits: How many changes are committed: the state of the database.
        asked: How many of their events have become part of a job.
        jobs: All of them.
        shown: The state that each document shows in Elasticsearch; document 0 is the one that all changes touch.
        job_workers: All of them.
    """

    commits: int
    asked: int
    jobs: tuple[Job, ...]
    shown: tuple[int, ...]
    job_workers: tuple[JobWorker, ...]


class FanningModel(Model[Fanning]):
    """Fan-outs that other changes join."""

    name = "fanning"
    about = "fan-outs that others join reach every document"
    rules = (JOIN_NEW, BEGUN_FIRST)

    def prepare(self) -> None:
        self._commits = 4 if self.is_large else 3

    @property
    def bounds(self) -> str:
        return f"{self._commits} changes, 2 job workers, any deaths and stalls"

    def initial(self) -> Fanning:
        return Fanning(0, 0, jobs=(), shown=(0,) * (self._commits + 1), job_workers=(JobWorker(), JobWorker()))

    def protocol(self, state: Fanning) -> Iterator[Step[Fanning]]:
        if state.asked < state.commits:
            yield self._ask(state)
        for at, job in enumerate(state.jobs):
            yield from self._list(state, at, job)
        for at, job_worker in enumerate(state.job_workers):
            yield from self._write(state, at, job_worker, f"job worker {'AB'[at]}")

    def _ask(self, state: Fanning) -> Step[Fanning]:
        number = state.asked + 1
        after = state._replace(asked=number)
        # Rule join-only-a-new-fan-out: `queue.create_fan_out`.
        last = _NEW if self.keeps(JOIN_NEW) else _TAKEN
        for at, job in enumerate(state.jobs):
            if job.phase <= last:
                joined = job._replace(causes=job.causes | {number})
                return f"a worker lets change {number} join job {at + 1}", _with_job(after, at, joined)
        made = Job(causes=frozenset({number}))
        return f"a worker creates job {len(state.jobs) + 1} for change {number}", after._replace(
            jobs=(*state.jobs, made)
        )

    def _list(self, state: Fanning, at: int, job: Job) -> Iterator[Step[Fanning]]:
        if job.phase == _NEW and self.keeps(BEGUN_FIRST):
            # Rule begin-before-listing: `listing._BEGIN`.
            yield f"the listing of job {at + 1} begins", _with_job(state, at, job._replace(phase=_LISTING))
        elif job.phase in (_NEW, _LISTING) and not job.documents:
            read = job._replace(documents=job.causes | {0})
            yield f"the lister of job {at + 1} reads its causes and their documents", _with_job(state, at, read)
        elif job.phase in (_NEW, _LISTING):
            yield f"job {at + 1} is listed", _with_job(state, at, job._replace(phase=_LISTED))

    def _write(self, state: Fanning, at: int, job_worker: JobWorker, who: str) -> Iterator[Step[Fanning]]:
        if job_worker.phase == _IDLE:
            for number, job in enumerate(state.jobs):
                if job.phase == _LISTED:
                    taken = _with_job(state, number, job._replace(phase=_TAKEN))
                    held = JobWorker(phase=_HOLDS, job=number)
                    yield f"{who} takes the chunk of job {number + 1}", _with_job_worker(taken, at, held)
        elif job_worker.phase == _HOLDS:
            read = job_worker._replace(phase=_READ, state=state.commits)
            yield f"{who} assigns a version, and reads state {state.commits}", _with_job_worker(state, at, read)
        else:
            documents = state.jobs[job_worker.job].documents
            shown = tuple(
                max(one, job_worker.state) if document in documents else one for document, one in enumerate(state.shown)
            )
            after = _with_job_worker(state._replace(shown=shown), at, JobWorker())
            done = state.jobs[job_worker.job]._replace(phase=_DONE)
            yield (
                f"{who} writes state {job_worker.state}, and finishes the chunk",
                _with_job(after, job_worker.job, done),
            )

    def world(self, state: Fanning) -> Iterator[Step[Fanning]]:
        if state.commits < self._commits:
            yield f"change {state.commits + 1} is committed", state._replace(commits=state.commits + 1)
        for at, job in enumerate(state.jobs):
            if job.phase <= _LISTING and job.documents:
                begun_anew = job._replace(documents=frozenset())
                yield f"the lister of job {at + 1} is killed", _with_job(state, at, begun_anew)
        for at, job_worker in enumerate(state.job_workers):
            if job_worker.phase == _IDLE:
                continue
            job = state.jobs[job_worker.job]
            given_back = state
            if job.phase == _TAKEN:
                given_back = _with_job(state, job_worker.job, job._replace(phase=_LISTED))
                yield f"job worker {'AB'[at]} stalls, and its chunk is given back", given_back
            killed = _with_job_worker(given_back, at, JobWorker())
            yield f"job worker {'AB'[at]} is killed, and its chunk given back", killed

    def unequal(self, state: Fanning) -> str | None:
        for document, shown in enumerate(state.shown):
            wanted = state.commits if document == 0 else document
            if document <= state.commits and shown < wanted:
                return f"document {document} shows state {shown} for good, and not change {wanted}"
        return None

    def canonical(self, state: Fanning) -> Fanning:
        return state._replace(job_workers=tuple(sorted(state.job_workers)))


def _with_job(state: Fanning, at: int, job: Job) -> Fanning:
    return state._replace(jobs=placed(state.jobs, at, job))


def _with_job_worker(state: Fanning, at: int, job_worker: JobWorker) -> Fanning:
    return state._replace(job_workers=placed(state.job_workers, at, job_worker))
