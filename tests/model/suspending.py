"""Suspending: a document that cannot be built waits, loses nothing, and does not hold up the others.

While a table is locked or an index is closed, a change of the document joins a fan-out, which waits with it. When a
table is altered, the first revision's SELECT fails, and changes may be made that no trigger captures: so may a fan-out
that has grown too long take up no more. The document is then stale, and is resumed with a refresh. `syncer apply`
activates a second revision, whose SELECT works and reads one more table, which is captured from then on: one commit
activates a revision and creates the job that writes every document. Elasticsearch shows a state of the database in the
form of a revision.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Rule, Step, placed, ranked

JOIN = Rule(
    name="a-change-that-cannot-be-written-joins-a-fan-out",
    says="a change of a suspended document becomes a cause of its waiting fan-out before it is saved as handled",
    kept_by="syncer.worker.resolve",
    otherwise="a worker that dies in between, or a resumption, leaves the document without the change",
)
STALE = Rule(
    name="a-full-fan-out-becomes-a-refresh",
    says="beyond the causes that a fan-out may have, the document is marked stale in the commit that drops the fan-out",
    kept_by="syncer.jobs.queue",
    otherwise="the changes that the fan-out did not take up are never written",
)
READ_AFTER = Rule(
    name="ask-for-revisions-after-receiving",
    says="a worker leaves a change to the load of a revision only if it read which one is active after receiving it",
    kept_by="syncer.documents.affected",
    otherwise="a worker leaves a change to a load that began before the change",
)
REVISION_READ = Rule(
    name="the-revision-is-read-in-the-snapshot",
    says="the active definition is read in the same snapshot as the documents",
    kept_by="syncer.indexing.compose",
    otherwise="a document is written in the old form, with a higher version than the load's",
)
INITIAL_LOAD_AFTER = Rule(
    name="load-after-the-commit",
    says="a load reads the documents after the commit that activates the revision",
    kept_by="syncer.apply.activate",
    otherwise="a document that is skipped or written in the old form after the load has read it stays stale",
)
REFRESHED = Rule(
    name="refresh-with-the-resumption",
    says="one commit ends the suspension of a stale document and creates a refresh",
    kept_by="syncer.recovery.resume",
    otherwise="what was not captured, or not taken up, during the suspension stays stale",
)
CAPTURE_FIRST = Rule(
    name="capture-before-the-revision",
    says="tables are captured before the revision that reads them becomes active",
    kept_by="syncer.apply.activate",
    otherwise="a change between the load and the creation of the triggers produces no event",
)

_IDLE, _RECEIVED, _ASSIGNED, _READ, _FAILED = range(5)
_NONE, _CAPTURED, _APPLIED, _ENDED = range(4)
_AS_APPLIED, _LOCKED, _ALTERED, _ALTERED_BACK = range(4)
_CAUSES_MAX = 1


class Hand(NamedTuple):
    """What a worker is doing.

    Args:
        phase: Its phase.
        task: The number of its event; below 0, that of its job.
        revision: The revision that it takes as active, or has built the document with; 0 if it is yet to read it.
        version: The version that it has assigned.
        state: The state of the database that it has read.
        is_altered: Whether it has failed because a table was altered.
    """

    phase: int = _IDLE
    task: int = 0
    revision: int = 0
    version: int = 0
    state: int = 0
    is_altered: bool = False


class Suspending(NamedTuple):
    """The state of the model.

    Args:
        events: For each commit, whether it is saved as handled; also True if no trigger captured it.
        revision: The active revision.
        is_suspended: Whether it is suspended.
        is_stale: Whether a refresh is needed before the document is as it should be.
        table: Whether the table is as it was applied; while it is altered or locked, the first revision's SELECT fails.
        applying: The phase of `syncer apply`.
        is_captured: Whether the other table is captured.
        jobs: How many jobs were created: loads, refreshes and fan-outs; with one document, each of them writes it.
        job: The number of the one that is still to be written; 0 for none.
        causes: How many changes the waiting fan-out has taken up.
        version: The version that Elasticsearch has.
        shown: The state that Elasticsearch shows, and the revision of its form.
        workers: The two workers.
    """

    events: tuple[bool, ...] = ()
    revision: int = 1
    is_suspended: bool = False
    is_stale: bool = False
    table: int = _AS_APPLIED
    applying: int = _NONE
    is_captured: bool = False
    jobs: int = 0
    job: int = 0
    causes: int = 0
    version: int = 0
    shown: tuple[int, int] = (0, 1)
    workers: tuple[Hand, ...] = (Hand(), Hand())


class SuspendingModel(Model[Suspending]):
    """Suspend a document, resume it, and apply a new revision."""

    name = "suspending"
    about = (
        "a fan-out, a refresh or a load writes what changed while a document was suspended or its definition changed"
    )
    rules = (JOIN, STALE, READ_AFTER, REVISION_READ, INITIAL_LOAD_AFTER, REFRESHED, CAPTURE_FIRST)

    def prepare(self) -> None:
        self._commits = 3 if self.is_large else 2
        self._reads_revision, self._captures_first = self.keeps(REVISION_READ), self.keeps(CAPTURE_FIRST)
        self._initial_loads_after, self._reads_after = self.keeps(INITIAL_LOAD_AFTER), self.keeps(READ_AFTER)

    @property
    def bounds(self) -> str:
        return (
            f"2 workers, {self._commits} commits, a table locked, or altered and altered back, an apply, fan-outs of "
            f"{_CAUSES_MAX} cause, any crashes"
        )

    def initial(self) -> Suspending:
        return Suspending()

    def protocol(self, state: Suspending) -> Iterator[Step[Suspending]]:
        yield from self._apply(state)
        if state.is_suspended and (state.revision == 2 or state.table in (_AS_APPLIED, _ALTERED_BACK)):
            # Rule refresh-with-the-resumption: `resume.resume`.
            resumed = _with_job(state) if state.is_stale and self.keeps(REFRESHED) else state
            yield "the document is resumed", resumed._replace(is_suspended=False, is_stale=False, causes=0)
        if state.table == _ALTERED and state.revision == 1 and not state.is_stale:
            yield "the watch suspends revision 1", state._replace(is_suspended=True, is_stale=True)
        for at, hand in enumerate(state.workers):
            yield from self._work(state, at, hand, f"worker {'AB'[at]}")

    def _apply(self, state: Suspending) -> Iterator[Step[Suspending]]:
        if state.applying == _NONE:
            return
        # Rule capture-before-the-revision: `activate.carry_out`.
        captures_now = state.applying == (_CAPTURED if self._captures_first else _APPLIED) and not state.is_captured
        if captures_now:
            yield "apply captures the other table", state._replace(is_captured=True)
        elif state.applying == _CAPTURED:
            # Rule load-after-the-commit: `activate._activate` creates the job in the same transaction.
            active = _with_job(state) if self._initial_loads_after else state
            active = active._replace(revision=2, is_suspended=False, is_stale=False, causes=0, applying=_APPLIED)
            yield "apply activates revision 2 and creates its load", active
        elif state.applying == _APPLIED:
            yield "apply is done", state._replace(applying=_ENDED)

    def _work(self, state: Suspending, at: int, hand: Hand, name: str) -> Iterator[Step[Suspending]]:
        if hand.phase == _IDLE:
            yield from self._take(state, at, hand, name)
        elif hand.phase == _RECEIVED and not hand.revision:
            known = hand._replace(revision=state.revision)
            yield f"{name} reads that revision {state.revision} is active", _with(state, at, known)
        elif hand.phase == _RECEIVED:
            yield from self._resolve(state, at, hand, name)
        elif hand.phase == _ASSIGNED:
            yield self._read(state, at, hand, name)
        elif hand.phase == _READ:
            said = f"{name} writes state {hand.state} in form {hand.revision} as version {hand.version}"
            after = self._done(state, at, hand)
            if hand.version <= state.version:
                yield f"{said}, which is rejected", after
            else:
                yield said, after._replace(version=hand.version, shown=(hand.state, hand.revision))
        else:
            suspended, said = self._suspend(state, hand, name)
            again = Hand(phase=_RECEIVED, task=hand.task) if hand.task >= 0 else Hand()
            yield said, _with(suspended, at, again)

    def _resolve(self, state: Suspending, at: int, hand: Hand, name: str) -> Iterator[Step[Suspending]]:
        version = max(state.version, *(one.version for one in state.workers)) + 1
        assigned = _with(state, at, hand._replace(phase=_ASSIGNED, version=version))
        if hand.task < 0:
            yield f"{name} assigns version {version}", assigned
        elif hand.revision != state.revision:
            # Whatever is older than the active revision is written by its load: `queue.create_fan_out`.
            yield f"{name} leaves the change to the load of revision {state.revision}", self._done(state, at, hand)
        elif not state.is_suspended:
            yield f"{name} assigns version {version}", assigned
        elif state.is_stale:
            yield f"{name} leaves the change to the refresh to come", self._done(state, at, hand)
        # Rule a-change-that-cannot-be-written-joins-a-fan-out: `Resolver.resolve`.
        elif not self.keeps(JOIN):
            yield f"{name} skips the change of the suspended document", self._done(state, at, hand)
        elif state.causes < _CAUSES_MAX:
            joined = _with_job(state)._replace(causes=state.causes + 1)
            yield f"{name} adds the change to the fan-out", self._done(joined, at, hand)
        else:
            # Rule a-full-fan-out-becomes-a-refresh: `queue.create_fan_out`.
            dropped = state._replace(job=0, causes=0, is_stale=self.keeps(STALE))
            yield f"{name} drops the full fan-out: the document is stale", self._done(dropped, at, hand)

    def _take(self, state: Suspending, at: int, hand: Hand, name: str) -> Iterator[Step[Suspending]]:
        # Without the rule, a worker keeps what it first read about revisions until it dies.
        knows = Hand() if self._reads_after else Hand(revision=hand.revision or state.revision)
        for number, is_done in enumerate(state.events):
            if not is_done:
                received = knows._replace(phase=_RECEIVED, task=number)
                yield f"{name} receives event {number + 1}", _with(state, at, received)
        if state.job and not (state.is_suspended and self._initial_loads_after):
            taken = Hand(phase=_RECEIVED, task=-state.job, revision=0 if self._reads_revision else state.revision)
            yield f"{name} takes the chunk of job {state.job}", _with(state, at, taken)

    def _read(self, state: Suspending, at: int, hand: Hand, name: str) -> Step[Suspending]:
        # Rule the-revision-is-read-in-the-snapshot: `Composer._read`.
        revision = state.revision if self._reads_revision else hand.revision
        if hand.task < 0 and not self._initial_loads_after:
            revision = 2
        elif state.is_suspended:
            failed = hand._replace(phase=_FAILED, revision=revision, is_altered=False)
            return f"{name} finds the document suspended", _with(state, at, failed)
        if state.table in (_LOCKED, _ALTERED) and revision == 1:
            failed = Hand(phase=_FAILED, task=hand.task, revision=1, is_altered=state.table == _ALTERED)
            return f"{name} cannot read: revision 1 fails", _with(state, at, failed)
        read = hand._replace(phase=_READ, revision=revision, state=len(state.events))
        return f"{name} reads state {read.state} in form {revision}", _with(state, at, read)

    @staticmethod
    def _suspend(state: Suspending, hand: Hand, name: str) -> tuple[Suspending, str]:
        if state.revision == hand.revision:
            suspended = state._replace(is_suspended=True, is_stale=state.is_stale or hand.is_altered)
            return suspended, f"{name} suspends revision {state.revision}"
        return state, f"{name} would suspend revision {hand.revision}, which is no longer active"

    def _done(self, state: Suspending, at: int, hand: Hand) -> Suspending:
        after = _with(state, at, Hand() if self._reads_after else Hand(revision=hand.revision))
        if hand.task < 0:
            return after._replace(job=0, causes=0) if hand.task == -state.job else after
        return after._replace(events=placed(state.events, hand.task, one=True))

    def world(self, state: Suspending) -> Iterator[Step[Suspending]]:
        if len(state.events) < self._commits:
            number = len(state.events) + 1
            if state.table != _LOCKED:
                yield f"state {number} is committed", state._replace(events=(*state.events, False))
            if state.table == _ALTERED and state.revision == 1:
                yield f"state {number} is committed, uncaptured", state._replace(events=(*state.events, True))
            if state.is_captured or state.revision == 2:
                told = (*state.events, not state.is_captured)
                yield f"state {number} is committed, in the other table", state._replace(events=told)
        if state.revision == 1:
            yield from self._alter(state)
        if state.applying == _NONE:
            begun = state._replace(applying=_CAPTURED)
            if not self._initial_loads_after:
                begun = _with_job(begun)
            yield "syncer apply begins, with revision 2", begun
        for at, hand in enumerate(state.workers):
            if hand.phase:
                yield f"worker {'AB'[at]} is killed", _with(state, at, Hand())

    def _alter(self, state: Suspending) -> Iterator[Step[Suspending]]:
        if state.table == _AS_APPLIED:
            yield "a table is locked", state._replace(table=_LOCKED)
            yield "a table is altered: revision 1 no longer works", state._replace(table=_ALTERED)
        elif state.table == _LOCKED:
            yield "the lock is released", state._replace(table=_ALTERED_BACK)
        elif state.table == _ALTERED and state.is_stale:  # which the watch sees, also if it looks afterwards
            yield "the table is altered back", state._replace(table=_ALTERED_BACK)

    def unequal(self, state: Suspending) -> str | None:
        if state.is_suspended:
            return "revision 2 is suspended, though it works" if state.revision == 2 else None
        if state.shown != (len(state.events), state.revision):
            return (
                f"Elasticsearch shows state {state.shown[0]} in form {state.shown[1]} for good, Postgres is at state "
                f"{len(state.events)}, and revision {state.revision} is active"
            )
        return None

    def canonical(self, state: Suspending) -> Suspending:
        one, two = state.workers
        rank = ranked((state.version, one.version, two.version))
        one, two = one._replace(version=rank[one.version]), two._replace(version=rank[two.version])
        return state._replace(version=rank[state.version], workers=(one, two) if one <= two else (two, one))


def _with(state: Suspending, at: int, hand: Hand) -> Suspending:
    return state._replace(workers=placed(state.workers, at, hand))


def _with_job(state: Suspending) -> Suspending:
    """With a new job, which takes the place of another one."""
    return state._replace(jobs=state.jobs + 1, job=state.jobs + 1)
