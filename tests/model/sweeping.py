"""Sweeping: a job writes every document beside live traffic, and then looks for what only Elasticsearch has.

A TRUNCATE removes a document and names none: its event makes a refresh, which joins one that nobody has begun to list,
and may run beside another job. A job begins to list, which is told to all in a counter; asks Elasticsearch for its
sequence numbers; lists ids; writes them, page by page; and sweeps: what has not been touched since the sequence
numbers were read, and is not in Postgres, is a stray, and is written like any other id. There is one document, so that
a page is that or nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from tests.model.explorer import Model, Rule, Step, placed, ranked

SWEPT = Rule(
    name="sweep-at-the-end",
    says="once all is written, what only Elasticsearch has is looked for, and written too",
    kept_by="syncer.refresher",
    otherwise="what a TRUNCATE has removed stays in Elasticsearch",
)
LISTINGS_ASKED = Rule(
    name="late-writers-ask-for-listings",
    says="who has written asks whether somebody has begun to list since it read; then it does it all again",
    kept_by="syncer.writer",
    otherwise="a document that was read before a TRUNCATE, and is written while the sweep goes by, stays for good",
)
TOLD_FIRST = Rule(
    name="tell-before-counting",
    says="sequence numbers are asked for once it is known that the job lists",
    kept_by="syncer.listing",
    otherwise="who writes between the two counts as too new to be a stray, and sees no listing to be late for",
)
JOB_FIRST = Rule(
    name="the-job-before-the-offset",
    says="the offset of a TRUNCATE is committed once its job is there",
    kept_by="syncer.worker",
    otherwise="a worker that dies in between takes the TRUNCATE with it",
)
NEW_REFRESH = Rule(
    name="join-only-a-new-refresh",
    says="a TRUNCATE joins a job only if nobody has begun to list it",
    kept_by="syncer.jobs",
    otherwise="it joins one that has swept already, and nobody looks again",
)
WRITTEN_PAGE = Rule(
    name="a-page-is-done-when-written",
    says="a page is finished once what it names is written",
    kept_by="syncer.refresher",
    otherwise="a lane that dies with it takes it with it",
)

_NEW, _TOLD, _COUNTED, _LISTED, _WRITTEN, _SWEPT, _DONE = range(7)
_NONE, _WAITS, _TAKEN = range(3)
_IDLE, _HOLDS, _DRAWN, _READ, _SENT = range(5)


class Job(NamedTuple):
    """A refresh or a backfill.

    Args:
        phase: How far it is.
        page: Whether there is a page, and whether a lane has it.
        is_touched: Whether the document was written since the sequence numbers were read.
        is_owed: Whether it is a refresh.
    """

    phase: int = _NEW
    page: int = _NONE
    is_touched: bool = False
    is_owed: bool = True


class Hand(NamedTuple):
    """What a worker or a lane has in hand.

    Args:
        phase: How far it is.
        task: Which event, or which job's page.
        version: What it has drawn.
        listings: How often it has been told of a listing in its snapshot.
        is_there: Whether the document is in its snapshot.
    """

    phase: int = _IDLE
    task: int = 0
    version: int = 0
    listings: int = 0
    is_there: bool = False


class Sweeping(NamedTuple):
    """Everything.

    Args:
        is_there: Whether the document is in Postgres.
        events: For each commit whether it was a TRUNCATE, and whether its offset is committed.
        listings: How often somebody has begun to list.
        jobs: All of them.
        version: Which version Elasticsearch has or remembers.
        is_shown: Whether it has the document.
        worker: What the worker has in hand.
        lanes: What the lanes have.
        unmade: Whether a worker has yet to make a job whose event is committed.
    """

    is_there: bool
    events: tuple[tuple[bool, bool], ...]
    listings: int
    jobs: tuple[Job, ...]
    version: int
    is_shown: bool
    worker: Hand
    lanes: tuple[Hand, ...]
    unmade: bool = False


class SweepingModel(Model[Sweeping]):
    """A job beside live traffic."""

    name = "sweeping"
    about = "a job beside live traffic leaves no document behind that nobody names"
    rules = (SWEPT, LISTINGS_ASKED, TOLD_FIRST, JOB_FIRST, NEW_REFRESH, WRITTEN_PAGE)
    beyond: ClassVar = {
        "cancel": "a backfill is cancelled; a lane that had read a page of it before a TRUNCATE writes it while the "
        "refresh goes by, and is killed before it looks whether it is late",
    }

    def prepare(self) -> None:
        self._commits = 3 if self.is_large else 2
        self._lanes = 2

    @property
    def bounds(self) -> str:
        return f"1 worker, {self._lanes} lanes, {self._commits} commits, a job that is there already, any deaths"

    def initial(self) -> Sweeping:
        return Sweeping(
            is_there=True,
            events=(),
            listings=0,
            jobs=(Job(is_owed="cancel" not in self.allowed),),
            version=1,
            is_shown=True,
            worker=Hand(),
            lanes=(Hand(),) * self._lanes,
        )

    def protocol(self, state: Sweeping) -> Iterator[Step[Sweeping]]:
        yield from self._work(state)
        for at, lane in enumerate(state.lanes):
            yield from self._lane(state, at, lane, f"lane {'AB'[at]}")
        for at, job in enumerate(state.jobs):
            yield from self._advance(state, at, job, f"job {at + 1}")

    # The worker

    def _work(self, state: Sweeping) -> Iterator[Step[Sweeping]]:
        hand = state.worker
        if state.unmade:
            yield "the worker makes the job", self._refresh(state)._replace(unmade=False)
        elif hand.phase == _IDLE:
            for number, (is_truncate, is_done) in enumerate(state.events):
                if is_done:
                    continue
                if not is_truncate:
                    yield (
                        f"the worker receives event {number + 1}",
                        state._replace(worker=Hand(phase=_HOLDS, task=number)),
                    )
                # Rule the-job-before-the-offset: `Worker._refresh`.
                elif self.keeps(JOB_FIRST):
                    yield (
                        f"the worker makes a refresh of event {number + 1}, and commits its offset",
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

    def _refresh(self, state: Sweeping) -> Sweeping:
        # Rule join-only-a-new-refresh: `jobs.create`.
        is_joined = any(
            job.is_owed and (job.phase == _NEW or (not self.keeps(NEW_REFRESH) and job.phase != _DONE))
            for job in state.jobs
        )
        return state if is_joined else state._replace(jobs=(*state.jobs, Job()))

    # Lanes

    def _lane(self, state: Sweeping, at: int, lane: Hand, who: str) -> Iterator[Step[Sweeping]]:
        if lane.phase == _IDLE:
            for number, job in enumerate(state.jobs):
                if job.page == _WAITS:
                    # Rule a-page-is-done-when-written: `Refresher._finish`.
                    page = _TAKEN if self.keeps(WRITTEN_PAGE) else _NONE
                    jobs = placed(state.jobs, number, job._replace(page=page))
                    yield (
                        f"{who} takes the page of job {number + 1}",
                        _laned(state, at, Hand(phase=_HOLDS, task=number))._replace(jobs=jobs),
                    )
        elif lane.phase == _SENT and not self._is_late(state, lane):
            job = state.jobs[lane.task]
            jobs = placed(state.jobs, lane.task, job._replace(page=_NONE))
            yield f"{who} finishes the page", _laned(state, at, Hand())._replace(jobs=jobs)
        else:
            said, after, moved = self._write(state, lane, who)
            yield said, _laned(after, at, moved)

    def _write(self, state: Sweeping, hand: Hand, who: str) -> tuple[str, Sweeping, Hand]:
        """Draw, read, write, and again if it is late."""
        if hand.phase == _HOLDS:
            version = max(state.version, state.worker.version, *(one.version for one in state.lanes)) + 1
            return f"{who} draws version {version}", state, hand._replace(phase=_DRAWN, version=version)
        if hand.phase == _DRAWN:
            read = hand._replace(phase=_READ, listings=state.listings, is_there=state.is_there)
            return f"{who} reads: the document is {'' if state.is_there else 'not '}there", state, read
        if hand.phase == _SENT:
            again = Hand(phase=_HOLDS, task=hand.task)
            return f"{who} finds that somebody has begun to list, and begins again", state, again
        sent = hand._replace(phase=_SENT, version=0)
        said = f"{who} {'writes' if hand.is_there else 'deletes'} it as version {hand.version}"
        if hand.version <= state.version:
            return f"{said}, which is refused", state, sent
        jobs = tuple(job._replace(is_touched=True) if job.phase < _SWEPT else job for job in state.jobs)
        return said, state._replace(version=hand.version, is_shown=hand.is_there, jobs=jobs), sent

    def _is_late(self, state: Sweeping, hand: Hand) -> bool:
        # Rule late-writers-ask-for-listings: `syncer.writer._is_overtaken`.
        return hand.is_there and hand.listings != state.listings and self.keeps(LISTINGS_ASKED)

    # Jobs

    def _advance(self, state: Sweeping, at: int, job: Job, name: str) -> Iterator[Step[Sweeping]]:
        # Rule tell-before-counting: `listing.list_pages`.
        tells_at, counts_at = (_NEW, _TOLD) if self.keeps(TOLD_FIRST) else (_TOLD, _NEW)
        if job.phase == tells_at:
            told = _jobbed(state, at, job._replace(phase=job.phase + 1))
            yield f"{name} is being listed, which is known now", told._replace(listings=state.listings + 1)
        elif job.phase == counts_at:
            counted = job._replace(phase=job.phase + 1, is_touched=False)
            yield f"{name} asks for the sequence numbers", _jobbed(state, at, counted)
        elif job.phase == _COUNTED:
            page = _WAITS if state.is_there else _NONE
            said = f"{name} is listed: {'one page' if page else 'nothing'}"
            yield said, _jobbed(state, at, job._replace(phase=_LISTED, page=page))
        elif job.phase == _LISTED and job.page == _NONE:
            yield f"{name} is written", _jobbed(state, at, job._replace(phase=_WRITTEN))
        elif job.phase == _WRITTEN:
            # Rule sweep-at-the-end: `listing.sweep`.
            is_stray = state.is_shown and not state.is_there and not job.is_touched and self.keeps(SWEPT)
            swept = job._replace(phase=_SWEPT, page=_WAITS if is_stray else _NONE)
            yield f"{name} sweeps, and finds {'a stray' if is_stray else 'nothing'}", _jobbed(state, at, swept)
        elif job.phase == _SWEPT and job.page == _NONE:
            yield f"{name} is done", _jobbed(state, at, Job(phase=_DONE, is_owed=job.is_owed))

    def world(self, state: Sweeping) -> Iterator[Step[Sweeping]]:
        if len(state.events) < self._commits:
            number = len(state.events) + 1
            named = (*state.events, (False, False))
            if state.is_there:
                yield f"the document is changed: event {number}", state._replace(events=named)
                yield f"it is deleted: event {number}", state._replace(events=named, is_there=False)
                if not any(is_truncate for is_truncate, _ in state.events):
                    truncated = state._replace(events=(*state.events, (True, False)), is_there=False)
                    yield f"its table is truncated: event {number}", truncated
            else:
                yield f"it is inserted: event {number}", state._replace(events=named, is_there=True)
        if state.worker.phase or state.unmade:
            yield "the worker is killed", state._replace(worker=Hand(), unmade=False)
        for at, lane in enumerate(state.lanes):
            if lane.phase:
                job = state.jobs[lane.task]
                page = _WAITS if job.page == _TAKEN else job.page
                after = _laned(_jobbed(state, lane.task, job._replace(page=page)), at, Hand())
                yield f"lane {'AB'[at]} is killed, and its page given back", after
        if "cancel" in self.allowed and state.jobs[0].phase < _DONE:
            yield "job 1 is cancelled, and its pages go away", _jobbed(state, 0, Job(phase=_DONE, is_owed=False))

    def unlevel(self, state: Sweeping) -> str | None:
        if state.is_shown != state.is_there:
            return f"Elasticsearch {'has' if state.is_shown else 'lacks'} the document for good, unlike Postgres"
        return None

    def canonical(self, state: Sweeping) -> Sweeping:
        hands = (state.worker, *state.lanes)
        rank = ranked((state.version, *(one.version for one in hands)))
        listings = ranked((state.listings, *(one.listings for one in hands)))
        worker, *lanes = (
            one._replace(version=rank[one.version], listings=listings[one.listings]) if one.phase else one
            for one in hands
        )
        return state._replace(
            version=rank[state.version], listings=listings[state.listings], worker=worker, lanes=tuple(sorted(lanes))
        )


def _committed(state: Sweeping, number: int) -> Sweeping:
    return state._replace(events=placed(state.events, number, (state.events[number][0], True)))


def _laned(state: Sweeping, at: int, lane: Hand) -> Sweeping:
    return state._replace(lanes=placed(state.lanes, at, lane))


def _jobbed(state: Sweeping, at: int, job: Job) -> Sweeping:
    return state._replace(jobs=placed(state.jobs, at, job))
