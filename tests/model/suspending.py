"""Suspending: a document that cannot be built is skipped and loses nothing; the load of a new revision catches up.

One commit activates a revision and creates the job that writes every document. Each worker reads in its own snapshot
which revision is active, and whether it is suspended. When a table is altered, the first revision's SELECT fails.
`syncer apply` activates a second revision, whose SELECT works and reads one more table, which is captured from then on.
If the table is altered back first, the first revision is resumed with a refresh.
Elasticsearch shows a state of the database in the form of a revision.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Rule, Step, placed, ranked

BY_REVISION = Rule(
    name="suspend-a-revision",
    says="a suspension names the revision that failed, not the document",
    kept_by="syncer.documents.registry",
    otherwise="a late worker suspends the revision that fixes the document",
)
SUSPEND_FIRST = Rule(
    name="suspend-before-the-offset",
    says="a document is suspended before the offset of a skipped change is committed",
    kept_by="syncer.indexing.pool",
    otherwise="a worker that dies in between skips a change, and the document is not suspended",
)
SUSPEND_SEEN = Rule(
    name="skip-what-the-snapshot-says",
    says="a worker skips a change only if it finds the document suspended after it has received the change",
    kept_by="syncer.documents.affected",
    otherwise="a worker keeps skipping changes of a document that has been fixed and loaded meanwhile",
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
    says="one commit ends a suspension whose cause is over and creates a refresh",
    kept_by="syncer.jobs.resume",
    otherwise="what was skipped during the suspension stays stale",
)
CAPTURE_FIRST = Rule(
    name="capture-before-the-revision",
    says="tables are captured before the revision that reads them becomes active",
    kept_by="syncer.apply.activate",
    otherwise="a change between the load and the creation of the triggers produces no event",
)

_IDLE, _RECEIVED, _ASSIGNED, _READ, _FAILED, _SUSPENDED = range(6)
_NONE, _CAPTURED, _APPLIED, _ENDED = range(4)
_AS_APPLIED, _ALTERED, _ALTERED_BACK = range(3)


class Hand(NamedTuple):
    """What a worker is doing.

    Args:
        phase: Its phase.
        task: The number of its event; below 0, that of its load or refresh.
        revision: The revision that it takes as active, or has built the document with.
        is_suspended: Whether it takes that revision as suspended.
        version: The version that it has assigned.
        state: The state of the database that it has read.
    """

    phase: int = _IDLE
    task: int = 0
    revision: int = 0
    is_suspended: bool = False
    version: int = 0
    state: int = 0


class Suspending(NamedTuple):
    """The state of the model.

    Args:
        events: For each commit, whether its offset is committed; also True if no trigger captured it.
        revision: The active revision.
        is_suspended: Whether it is suspended.
        table: Whether the table is as it was applied; while it is altered, the first revision's SELECT fails.
        applying: The phase of `syncer apply`.
        is_captured: Whether the other table is captured.
        loads: How many loads and refreshes were created.
        loading: The number of the one that is still to be written; 0 for none.
        version: The version that Elasticsearch has.
        shown: The state that Elasticsearch shows, and the revision of its form.
        workers: The two workers.
    """

    events: tuple[bool, ...]
    revision: int
    is_suspended: bool
    table: int
    applying: int
    is_captured: bool
    loads: int
    loading: int
    version: int
    shown: tuple[int, int]
    workers: tuple[Hand, ...]


class SuspendingModel(Model[Suspending]):
    """Suspend a document, and apply a new revision."""

    name = "suspending"
    about = "a load or refresh writes what was skipped during a suspension, and what a new definition changes"
    rules = (BY_REVISION, SUSPEND_FIRST, SUSPEND_SEEN, REVISION_READ, INITIAL_LOAD_AFTER, REFRESHED, CAPTURE_FIRST)

    def prepare(self) -> None:
        self._commits = 3 if self.is_large else 2
        self._reads_revision, self._captures_first = self.keeps(REVISION_READ), self.keeps(CAPTURE_FIRST)
        self._initial_loads_after = self.keeps(INITIAL_LOAD_AFTER)

    @property
    def bounds(self) -> str:
        return f"2 workers, {self._commits} commits, a table altered and altered back, an apply, any crashes"

    def initial(self) -> Suspending:
        return Suspending(
            events=(),
            revision=1,
            is_suspended=False,
            table=_AS_APPLIED,
            applying=_NONE,
            is_captured=False,
            loads=0,
            loading=0,
            version=0,
            shown=(0, 1),
            workers=(Hand(), Hand()),
        )

    def protocol(self, state: Suspending) -> Iterator[Step[Suspending]]:
        yield from self._apply(state)
        if state.is_suspended and state.revision == 1 and state.table == _ALTERED_BACK:
            # Rule refresh-with-the-resumption: `resume.resume`.
            resumed = _loading(state) if self.keeps(REFRESHED) else state
            yield "the watch resumes revision 1, with a refresh", resumed._replace(is_suspended=False)
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
            active = _loading(state) if self._initial_loads_after else state
            active = active._replace(revision=2, is_suspended=False, applying=_APPLIED)
            yield "apply activates revision 2 and creates its load", active
        elif state.applying == _APPLIED:
            yield "apply is done", state._replace(applying=_ENDED)

    def _work(self, state: Suspending, at: int, hand: Hand, name: str) -> Iterator[Step[Suspending]]:
        if hand.phase == _IDLE:
            yield from self._take(state, at, hand, name)
        elif hand.phase == _RECEIVED:
            is_suspended = hand.is_suspended if hand.revision else state.is_suspended
            if is_suspended and hand.task >= 0:
                # Rule skip-what-the-snapshot-says: `AffectedReader.documents`, `Composer._read`.
                yield f"{name} skips it, since the document is suspended", self._done(state, at, hand)
            else:
                version = max(state.version, *(one.version for one in state.workers)) + 1
                assigned = hand._replace(phase=_ASSIGNED, version=version)
                yield f"{name} assigns version {version}", _with(state, at, assigned)
        elif hand.phase == _ASSIGNED:
            yield self._read(state, at, hand, name)
        elif hand.phase == _READ:
            said = f"{name} writes state {hand.state} in form {hand.revision} as version {hand.version}"
            after = self._done(state, at, hand)
            if hand.version <= state.version:
                yield f"{said}, which is rejected", after
            else:
                yield said, after._replace(version=hand.version, shown=(hand.state, hand.revision))
        elif hand.phase == _FAILED:
            suspended, said = self._suspend(state, hand, name)
            yield said, _with(suspended, at, Hand(phase=_SUSPENDED, task=hand.task))
        else:
            yield f"{name} skips the document that it could not read", self._done(state, at, hand)

    def _take(self, state: Suspending, at: int, hand: Hand, name: str) -> Iterator[Step[Suspending]]:
        # Without the rule, a worker keeps what it first read about revisions until it dies.
        knows = Hand() if self.keeps(SUSPEND_SEEN) else Hand(revision=hand.revision, is_suspended=hand.is_suspended)
        if not knows.revision and not self.keeps(SUSPEND_SEEN):
            knows = Hand(revision=state.revision, is_suspended=state.is_suspended)
        if not self._reads_revision:
            knows = Hand(revision=state.revision, is_suspended=state.is_suspended)
        for number, is_done in enumerate(state.events):
            if not is_done:
                yield (
                    f"{name} receives event {number + 1}",
                    _with(state, at, knows._replace(phase=_RECEIVED, task=number)),
                )
        if state.loading and not (state.is_suspended and self._initial_loads_after):
            taken = Hand(phase=_RECEIVED, task=-state.loading, revision=0 if self._reads_revision else state.revision)
            yield f"{name} takes the load's chunk", _with(state, at, taken)

    def _read(self, state: Suspending, at: int, hand: Hand, name: str) -> Step[Suspending]:
        # Rule the-revision-is-read-in-the-snapshot: `Composer._read`.
        revision = state.revision if self._reads_revision or not hand.revision else hand.revision
        if hand.task < 0 and not self._initial_loads_after:
            revision = 2
        elif state.is_suspended:
            return f"{name} finds the document suspended, and skips it", self._done(state, at, hand)
        if state.table == _ALTERED and revision == 1:
            failed = Hand(phase=_FAILED, task=hand.task, revision=1)
            if self.keeps(SUSPEND_FIRST):
                return f"{name} cannot read: revision 1 fails", _with(state, at, failed)
            done = self._done(state, at, hand)
            # The offset is committed first, the document suspended afterwards.
            return f"{name} cannot read, and commits the offset", _with(done, at, failed)
        read = hand._replace(phase=_READ, revision=revision, is_suspended=False, state=len(state.events))
        return f"{name} reads state {read.state} in form {revision}", _with(state, at, read)

    def _suspend(self, state: Suspending, hand: Hand, name: str) -> tuple[Suspending, str]:
        # Rule suspend-a-revision: `registry.suspend`.
        if state.revision == hand.revision or not self.keeps(BY_REVISION):
            return state._replace(is_suspended=True), f"{name} suspends revision {state.revision}"
        return state, f"{name} would suspend revision {hand.revision}, which is no longer active"

    def _done(self, state: Suspending, at: int, hand: Hand) -> Suspending:
        knows = Hand() if self.keeps(SUSPEND_SEEN) else Hand(revision=hand.revision, is_suspended=hand.is_suspended)
        if not self._reads_revision:
            knows = Hand()
        after = _with(state, at, knows)
        if hand.task < 0:
            # If the document is suspended, the chunk is skipped and waits. A chunk that is written is done.
            is_done = hand.phase == _READ and hand.task == -state.loading
            return after._replace(loading=0) if is_done else after
        return after._replace(events=placed(state.events, hand.task, one=True))

    def world(self, state: Suspending) -> Iterator[Step[Suspending]]:
        if len(state.events) < self._commits:
            number = len(state.events) + 1
            yield f"state {number} is committed", state._replace(events=(*state.events, False))
            if state.is_captured or state.revision == 2:
                told = (*state.events, not state.is_captured)
                yield f"state {number} is committed, in the other table", state._replace(events=told)
        if state.table == _AS_APPLIED and state.revision == 1:
            yield "a table is altered: revision 1 no longer works", state._replace(table=_ALTERED)
        if state.table == _ALTERED and state.revision == 1:
            yield "the table is altered back", state._replace(table=_ALTERED_BACK)
        if state.applying == _NONE:
            begun = state._replace(applying=_CAPTURED)
            if not self._initial_loads_after:
                begun = _loading(begun)
            yield "syncer apply begins, with revision 2", begun
        for at, hand in enumerate(state.workers):
            if hand.phase:
                yield f"worker {'AB'[at]} is killed", _with(state, at, Hand())

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


def _loading(state: Suspending) -> Suspending:
    """With a new load or refresh, which takes the place of another one."""
    return state._replace(loads=state.loads + 1, loading=state.loads + 1)
