"""Fanning: changes that touch many documents become jobs, which join others, and leave ids to them.

Each change touches one document, through a row that it shows, and its event makes a fan-out, or joins one that nobody
has begun to list. A job begins to list, which is committed; takes a snapshot, in which it finds the document, and
whether it waits in a page that nobody has taken of another job; and commits its page, or none. A lane takes a page,
which is committed; draws and reads; writes, and finishes it. One that is held up for long loses its page to others,
and goes on. What may come between a draw and its snapshot, or a write and what follows it, is the matter of
`tests.model.writing`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Rule, Step, placed, ranked

JOIN_NEW = Rule(
    name="join-only-a-new-fan-out",
    says="a change joins a fan-out only if nobody has begun to list it",
    kept_by="syncer.jobs",
    otherwise="it joins one whose documents have been read already",
)
BEGUN_FIRST = Rule(
    name="begin-before-listing",
    says="that a job is being listed is committed before the snapshot in which it is",
    kept_by="syncer.listing",
    otherwise="a change joins a job whose snapshot does not show it",
)
UNTAKEN = Rule(
    name="leave-only-to-pages-not-taken",
    says="an id is left out only if the page that has it is not taken",
    kept_by="syncer.listing",
    otherwise="it is left to a lane that has read it before the change",
)
OWED = Rule(
    name="leave-only-to-jobs-that-are-owed",
    says="an id is left only to a job that counts as loud if it is cancelled",
    kept_by="syncer.listing",
    otherwise="a backfill is cancelled, and a change that was left to it goes with it",
)
TAKEN_FIRST = Rule(
    name="take-before-drawing",
    says="that a page is taken is committed before anything of it is read",
    kept_by="syncer.job_pages",
    otherwise="an id is left to a page that seems to be free, and has been read before the change",
)
NEW_NUMBER = Rule(
    name="a-page-given-back-gets-another-number",
    says="a page that is given back gets another number, under which the lane that had it cannot finish it",
    kept_by="syncer.job_pages",
    otherwise="a lane that was held up finishes a page to which a change was left after it had read it",
)

_NEW, _LISTING, _READ_IDS, _LISTED, _DONE = range(5)
_NONE, _WAITS, _TAKEN = range(3)
_IDLE, _HOLDS, _READ = range(3)


class Job(NamedTuple):
    """A fan-out, or a backfill.

    Args:
        phase: How far it is.
        page: Whether there is a page, and whether a lane has it.
        number: The page's.
        is_owed: Whether it is a fan-out.
    """

    phase: int = _NEW
    page: int = _NONE
    number: int = 0
    is_owed: bool = True


class Lane(NamedTuple):
    """What a lane has in hand: how far it is, which page of which job, its version, and the state that it has read."""

    phase: int = _IDLE
    job: int = 0
    number: int = 0
    version: int = 0
    state: int = 0


class Fanning(NamedTuple):
    """Everything.

    Args:
        commits: How many there have been: the state of the database.
        asked: How many of their events have been made jobs.
        jobs: All of them.
        version: Which version Elasticsearch has.
        shown: Which state it shows.
        lanes: All of them.
        stalls: How often a page may yet be taken from a lane that is held up.
    """

    commits: int
    asked: int
    jobs: tuple[Job, ...]
    version: int
    shown: int
    lanes: tuple[Lane, ...]
    stalls: int


class FanningModel(Model[Fanning]):
    """Fan-outs that leave documents to one another."""

    name = "fanning"
    about = "fan-outs that join others and leave ids to them reach every document"
    rules = (JOIN_NEW, BEGUN_FIRST, UNTAKEN, OWED, TAKEN_FIRST, NEW_NUMBER)

    def prepare(self) -> None:
        self._commits = 3 if self.is_large else 2
        self._takes_first = self.keeps(TAKEN_FIRST)

    @property
    def bounds(self) -> str:
        return (
            f"{self._commits} changes, beside a fan-out, or a backfill that may be cancelled; 2 lanes, 1 page lost by "
            "a stall, any deaths"
        )

    def initial(self) -> Fanning:
        return Fanning(0, 0, jobs=(Job(),), version=0, shown=0, lanes=(Lane(), Lane()), stalls=1)

    def protocol(self, state: Fanning) -> Iterator[Step[Fanning]]:
        if state.asked < state.commits:
            yield from self._ask(state)
        for at, job in enumerate(state.jobs):
            yield from self._list(state, at, job, f"job {at + 1}")
        for at, lane in enumerate(state.lanes):
            yield from self._write(state, at, lane, f"lane {'AB'[at]}")

    def _ask(self, state: Fanning) -> Iterator[Step[Fanning]]:
        number = state.asked + 1
        after = state._replace(asked=number)
        # Rule join-only-a-new-fan-out: `jobs.create_fan_out`.
        last = _NEW if self.keeps(JOIN_NEW) else _LISTED
        joined = next((at for at, job in enumerate(state.jobs) if job.is_owed and job.phase <= last), None)
        if joined is None:
            made = after._replace(jobs=(*state.jobs, Job()))
            yield f"a worker makes job {len(made.jobs)} of change {number}", made
        else:
            yield f"a worker lets change {number} join job {joined + 1}", after

    def _list(self, state: Fanning, at: int, job: Job, name: str) -> Iterator[Step[Fanning]]:
        if job.phase == _NEW and self.keeps(BEGUN_FIRST):
            # Rule begin-before-listing: `listing._BEGIN`.
            yield f"{name} is being listed, which is committed", _jobbed(state, at, job._replace(phase=_LISTING))
        elif job.phase in (_NEW, _LISTING) and job.page == _NONE and not job.number:
            is_left = job.is_owed and any(self._waits(other) for other in state.jobs if other is not job)
            # Without the rule it is committed only with the page.
            phase = _READ_IDS if self.keeps(BEGUN_FIRST) else _NEW
            read = job._replace(phase=phase, page=_NONE if is_left else _TAKEN, number=1)
            said = f"{name} finds the document" + (", and leaves it to a page that waits" if is_left else "")
            yield said, _jobbed(state, at, read)
        elif job.phase in (_NEW, _READ_IDS):
            page = _WAITS if job.page else _NONE
            listed = job._replace(phase=_LISTED, page=page)
            yield f"{name} is listed: {'one page' if page else 'nothing'}", _jobbed(state, at, listed)
        elif job.phase == _LISTED and job.page == _NONE:
            yield f"{name} is done", _jobbed(state, at, Job(phase=_DONE, is_owed=job.is_owed))

    def _waits(self, job: Job) -> bool:
        """Whether an id may be left to a job, as the lister's snapshot has it."""
        if job.phase != _LISTED:
            return False
        # Rule leave-only-to-jobs-that-are-owed, rule leave-only-to-pages-not-taken: `listing._NOT_WAITING`.
        is_free = job.page == _WAITS or (job.page == _TAKEN and not self.keeps(UNTAKEN))
        return is_free and (job.is_owed or not self.keeps(OWED))

    def _write(self, state: Fanning, at: int, lane: Lane, who: str) -> Iterator[Step[Fanning]]:
        if lane.phase == _IDLE:
            for number, job in enumerate(state.jobs):
                if job.phase == _LISTED and job.page == _WAITS:
                    held = _laned(state, at, Lane(phase=_HOLDS, job=number, number=job.number))
                    # Rule take-before-drawing: `job_pages.take`. Else it is known only once it is finished.
                    after = _jobbed(held, number, job._replace(page=_TAKEN)) if self._takes_first else held
                    yield f"{who} takes the page of job {number + 1}", after
        elif lane.phase == _HOLDS:
            version = max(state.version, *(one.version for one in state.lanes)) + 1
            read = _laned(state, at, lane._replace(phase=_READ, version=version, state=state.commits))
            yield f"{who} draws version {version}, and reads state {state.commits}", read
        else:
            yield self._finish(state, at, lane, f"{who} writes state {lane.state} as version {lane.version}")

    def _finish(self, state: Fanning, at: int, lane: Lane, said: str) -> Step[Fanning]:
        after = _laned(state, at, Lane())
        if lane.version > state.version:
            after = after._replace(version=lane.version, shown=lane.state)
        else:
            said += ", which is refused"
        job = state.jobs[lane.job]
        # Rule a-page-given-back-gets-another-number: `job_pages._FINISH` names job and number.
        is_its_own = job.number == lane.number or not self.keeps(NEW_NUMBER)
        if job.phase == _LISTED and job.page and is_its_own:
            return f"{said}, and finishes the page", _jobbed(after, lane.job, job._replace(page=_NONE))
        return f"{said}; the page is no longer its own", after

    def world(self, state: Fanning) -> Iterator[Step[Fanning]]:
        if state.commits < self._commits:
            number = state.commits + 1
            yield f"a row that the document shows is changed: state {number}", state._replace(commits=number)
        for at, lane in enumerate(state.lanes):
            if not lane.phase:
                continue
            job = state.jobs[lane.job]
            has_it = job.page == _TAKEN and job.number == lane.number and job.phase == _LISTED
            back = _jobbed(state, lane.job, job._replace(page=_WAITS, number=job.number + 1)) if has_it else state
            yield f"lane {'AB'[at]} is killed, and its page given back", _laned(back, at, Lane())
            if has_it and state.stalls:
                said = f"lane {'AB'[at]} is held up for a minute, and its page given to others"
                yield said, back._replace(stalls=state.stalls - 1)
        if state == self.initial():
            yield "job 1 is a backfill", _jobbed(state, 0, Job(is_owed=False))
        if state.jobs[0].phase < _DONE and not state.jobs[0].is_owed:
            yield "job 1 is cancelled", _jobbed(state, 0, Job(phase=_DONE, is_owed=False))

    def unlevel(self, state: Fanning) -> str | None:
        if state.commits and state.shown != state.commits:
            return f"Elasticsearch shows state {state.shown} for good, and Postgres is at state {state.commits}"
        return None

    def canonical(self, state: Fanning) -> Fanning:
        rank = ranked((state.version, *(one.version for one in state.lanes)))
        jobs, lanes = list(state.jobs), list(state.lanes)
        for at, job in enumerate(jobs):
            # Numbers of pages are only ever compared.
            numbers = ranked((job.number, *(one.number for one in lanes if one.phase and one.job == at)))
            jobs[at] = job._replace(number=numbers[job.number])
            for place, one in enumerate(lanes):
                if one.phase and one.job == at:
                    lanes[place] = one._replace(number=numbers[one.number])
        lanes = sorted(one._replace(version=rank[one.version]) for one in lanes)
        return state._replace(version=rank[state.version], jobs=tuple(jobs), lanes=tuple(lanes))


def _laned(state: Fanning, at: int, lane: Lane) -> Fanning:
    return state._replace(lanes=placed(state.lanes, at, lane))


def _jobbed(state: Fanning, at: int, job: Job) -> Fanning:
    return state._replace(jobs=placed(state.jobs, at, job))
