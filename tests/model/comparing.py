"""Comparing: a refresh leaves out the documents that Elasticsearch has as they are to be written.

A change that no trigger sees, such as a partition that is dropped, has no event. Its refresh writes every document, and
with a new version: a request that was built before the change and arrives late is rejected then. If the refresh leaves
out a document that is equal, such a request is not rejected. So its writer has to come back to that document.

The document has one of two contents, and each commit gives it the other one. A worker may stall with an event until its
partition is another worker's. A process may die while its request is in flight. The request may arrive at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Step, processes, put

_COMMITS, _UNSEEN = 1, 2
_NEW, _TOLD, _DONE = range(3)
_NO_CHUNK, _FREE, _LOCKED = range(3)
_IDLE, _HOLDS, _READ, _SENT = range(4)


class Job(NamedTuple):
    """A refresh."""

    phase: int = _NEW
    chunk: int = _NO_CHUNK
    was_taken: bool = False  # a job worker has had the chunk in hand


class Hand(NamedTuple):
    """What a worker or a job worker is doing."""

    phase: int = _IDLE
    task: int = 0  # the number of its event, or of the job whose chunk it has
    version: int = 0  # that it has assigned
    content: bool = False  # in its snapshot
    is_again: bool = False  # the work was begun before
    is_overtaken: bool = False  # a listing was announced since its snapshot
    is_late: bool = False  # its partition is another worker's


class Request(NamedTuple):
    """What a process had sent when it died; version 0 stands for none."""

    version: int = 0
    content: bool = False


class State(NamedTuple):
    """The state of the model."""

    content: bool = False  # in Postgres
    events: tuple[bool, ...] = ()  # for each captured commit: it is saved as handled
    unseen: int = 0  # how many commits no trigger saw
    noted: int = 0  # how many of them have a refresh
    jobs: tuple[Job, ...] = ()
    version: int = 1  # that Elasticsearch has
    shown: bool = False  # the content that it has
    workers: tuple[Hand, ...] = (Hand(), Hand())
    job_workers: tuple[Hand, ...] = (Hand(),)
    requests: tuple[Request, ...] = (Request(),)
    has_stalled: bool = False  # a worker has


class Comparing(Model[State]):
    """What a refresh finds equal stays equal."""

    initial = State()
    identical = ("workers",)
    bounds = f"2 workers, 1 job worker, {_COMMITS + _UNSEEN} commits, {_UNSEEN} of them unseen, any crashes, one stall"

    only_a_refresh_compares: bool
    what_is_done_again_is_not_compared: bool
    an_overtaken_writer_lives: bool  # an assumption

    def protocol(self, state: State) -> Iterator[Step[State]]:
        for slot, worker, name in processes(state.workers, "worker"):
            yield from self._work(state, slot, worker, name)
        for slot, job_worker, name in processes(state.job_workers, "job worker"):
            yield from self._work_on_jobs(state, slot, job_worker, name)
        for slot, job in enumerate(state.jobs):
            yield from self._advance(state, slot, job, f"refresh {slot + 1}")
        if state.noted < state.unseen:
            is_joined = any(job.phase == _NEW for job in state.jobs)
            jobs = state.jobs if is_joined else (*state.jobs, Job())
            yield "the unseen commits are noted, and have a refresh", state._replace(noted=state.unseen, jobs=jobs)
        (request,) = state.requests
        if request.version:
            successor = _written(state, request.version, content=request.content)
            yield f"the request of version {request.version} arrives", successor._replace(requests=(Request(),))

    def _work(self, state: State, slot: int, worker: Hand, name: str) -> Iterator[Step[State]]:
        if worker.phase == _IDLE:
            tasks_in_hand = {hand.task for hand in state.workers if hand.phase and not hand.is_late}
            for number, is_handled in enumerate(state.events):
                if not is_handled and number not in tasks_in_hand:
                    received = Hand(phase=_HOLDS, task=number)
                    yield f"{name} receives event {number + 1}", put(state, "workers", slot, received)
        elif worker.phase == _SENT and not worker.is_overtaken:
            ended = put(state, "workers", slot, Hand())
            if worker.is_late:
                yield f"{name} finds its partition gone", ended
            else:
                yield f"{name} saves event {worker.task + 1} as handled", put(ended, "events", worker.task, item=True)
        else:
            may_compare = not self.only_a_refresh_compares
            action, successor, moved = self._write(state, worker, name, may_compare=may_compare)
            yield action, put(successor, "workers", slot, moved)

    def _work_on_jobs(self, state: State, slot: int, job_worker: Hand, name: str) -> Iterator[Step[State]]:
        if job_worker.phase == _IDLE:
            for number, job in enumerate(state.jobs):
                if job.chunk == _FREE:
                    hand = Hand(phase=_HOLDS, task=number, is_again=job.was_taken)
                    locked = put(state, "jobs", number, job._replace(chunk=_LOCKED, was_taken=True))
                    yield f"{name} takes the chunk of refresh {number + 1}", put(locked, "job_workers", slot, hand)
        elif job_worker.phase == _SENT and not job_worker.is_overtaken:
            finished = put(state, "jobs", job_worker.task, Job(phase=_DONE))
            yield f"{name} deletes the chunk", put(finished, "job_workers", slot, Hand())
        else:
            action, successor, moved = self._write(state, job_worker, name, may_compare=True)
            yield action, put(successor, "job_workers", slot, moved)

    def _write(self, state: State, hand: Hand, name: str, *, may_compare: bool) -> tuple[str, State, Hand]:
        """Assign, read, perhaps compare, and write; if a listing has begun meanwhile, start again."""
        if hand.phase == _HOLDS:
            hands = (*state.workers, *state.job_workers)
            version = 1 + max(state.version, state.requests[0].version, *(other.version for other in hands))
            reading = hand._replace(phase=_READ, version=version, content=state.content, is_overtaken=False)
            return f"{name} assigns version {version}, and reads {_shown(state.content)}", state, reading
        if hand.phase == _SENT:
            restarted = hand._replace(phase=_HOLDS, version=0, is_again=True)
            return f"{name} finds that a listing has begun, and starts again", state, restarted
        sent = hand._replace(phase=_SENT, version=0)
        compares = may_compare and not (hand.is_again and self.what_is_done_again_is_not_compared)
        if compares and state.shown == hand.content:
            return f"{name} finds that Elasticsearch has {_shown(hand.content)}, and writes nothing", state, sent
        successor = _written(state, hand.version, content=hand.content)
        return f"{name} writes {_shown(hand.content)} as version {hand.version}", successor, sent

    def _advance(self, state: State, slot: int, job: Job, name: str) -> Iterator[Step[State]]:
        if job.phase == _NEW and all(earlier.phase == _DONE for earlier in state.jobs[:slot]):
            told = put(state, "jobs", slot, Job(phase=_TOLD, chunk=_FREE))
            workers, job_workers = (
                tuple(hand._replace(is_overtaken=hand.phase >= _READ) for hand in hands)
                for hands in (state.workers, state.job_workers)
            )
            told = told._replace(workers=workers, job_workers=job_workers)
            yield f"{name} announces its listing, and lists the document", told

    # The world

    def world(self, state: State) -> Iterator[Step[State]]:
        if len(state.events) < _COMMITS:
            changed = state._replace(content=not state.content, events=(*state.events, False))
            yield f"the document is changed: event {len(changed.events)}", changed
        if state.unseen < _UNSEEN:
            yield "the document is changed unseen", state._replace(content=not state.content, unseen=state.unseen + 1)
        for slot, worker, name in processes(state.workers, "worker"):
            if worker.phase and not state.has_stalled:
                late = put(state, "workers", slot, worker._replace(is_late=True))._replace(has_stalled=True)
                yield f"{name} stalls, and its partition moves", late
            if worker.phase and not (worker.is_late and self.an_overtaken_writer_lives):
                yield from self._kill(put(state, "workers", slot, Hand()), worker, name)
        for slot, job_worker, name in processes(state.job_workers, "job worker"):
            if job_worker.phase:
                job = state.jobs[job_worker.task]
                freed = put(state, "jobs", job_worker.task, job._replace(chunk=_FREE))
                yield from self._kill(put(freed, "job_workers", slot, Hand()), job_worker, name)

    def _kill(self, state: State, hand: Hand, name: str) -> Iterator[Step[State]]:
        yield f"{name} is killed", state
        if hand.phase == _READ and not state.requests[0].version:
            request = Request(version=hand.version, content=hand.content)
            yield f"{name} is killed, with its request in flight", state._replace(requests=(request,))

    def unequal(self, state: State) -> str | None:
        if state.shown != state.content:
            return f"Elasticsearch has {_shown(state.shown)} for good, and Postgres {_shown(state.content)}"
        return None


def _written(state: State, version: int, *, content: bool) -> State:
    return state._replace(version=version, shown=content) if version > state.version else state


def _shown(content: bool) -> str:
    return "B" if content else "A"
