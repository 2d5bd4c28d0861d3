"""Marks: a failover writes again what was written since the last mark.

A mark is a row in the database with numbers of Elasticsearch: each write gets a greater one. WAL is sequential, so a
database that has the mark has whatever the documents up to these numbers show. A deleted document has no number: its id
is in a log of deletes, which has numbers of its own. The epoch and its last mark are also recorded in Elasticsearch.

There are two documents: A, and B, whose routing leads to the near shard or to the far one. The shards share one count
here. A write takes effect at once, but the primary of its shard may die before it is acknowledged; then it is undone,
and its number is given to another. `tests.model.fencing` covers requests that arrive late.

Another cluster may take over, with the index as it was once and with the record of that time or none; or the record is
lost alone. The index, or the log, is another one then, which a mark notices. None is taken in an epoch that is not the
recorded one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Step

_MARKS, _DEATHS, _SETBACKS = 2, 1, 1
_A, _NEAR, _FAR = range(3)  # where copies of the documents may be
_NOWHERE = -1
_CHANGES = (("changes A", _A), ("deletes B", _NOWHERE), ("moves B to the far shard", _FAR))
_ABSENT = (_NOWHERE, 0)
_OTHER = 100
"""What another index adds to its numbers: a mark of the former one tells nothing of it."""
_REFRESH = 50
"""The number of the job by which a mark has every document written to another index."""

Commit = tuple[str, int, int, int]
"""What a commit is, and up to three numbers: see `_Wal`."""
Copies = tuple[tuple[int, int], ...]
"""What each copy of a document shows, as the number of a change, and its number in Elasticsearch."""


class State(NamedTuple):
    """The state of the model. Changes are numbered from 1, and none is used twice."""

    wal: tuple[Commit, ...] = (("mark", 1, 2, 0), ("change", 1, _NEAR, 0))
    has_identity: bool = True  # whether the unlogged row is there, which a failover loses
    is_restarted: bool = False  # since that row was written
    files: tuple[Commit, ...] = ()  # a copy of the files of the server, made while it was stopped
    has_changed: bool = False  # a second time
    # Elasticsearch
    copies: Copies = ((0, 1), (0, 2), _ABSENT)
    greatest: int = 2  # the greatest number
    unacknowledged: tuple[Copies, int] | None = None  # what is left if the last write is undone
    deletes: int = 0  # how many records of B the log of deletes has
    epoch: int = 1  # that is recorded
    mark: int = 1  # that is recorded
    # syncer
    is_connected: bool = True
    entering: int = 0  # the epoch that is being entered
    change: int = 0  # that is in hand
    settled: tuple[int, ...] = ()  # the changes that are, in any order
    requests: tuple[tuple[int, int], ...] = ()  # what is left to send for it: a place, and what it will show
    has_read: tuple[int, int] | None = None  # the numbers for the next mark
    deaths: int = _DEATHS
    setbacks: int = _SETBACKS  # of the database, or of Elasticsearch


_LOG = 3  # the place of a request that adds to the log of deletes


class Marks(Model[State]):
    """What a failover or a restore has taken back is found by the last mark, and written again."""

    initial = State()
    bounds = (
        f"2 changes, {_MARKS} marks, a failover to a standby that lags, files put back, a restore, or another cluster"
    )

    numbers_are_read_before_the_mark: bool
    a_mark_has_the_global_checkpoint: bool
    deletes_are_logged: bool
    moves_are_logged: bool
    logged_before_it_is_sent: bool
    the_job_is_committed_with_the_epoch: bool
    a_mark_that_is_recorded_outside_counts: bool
    a_restart_is_marked: bool
    an_epoch_that_is_not_recorded_ends: bool
    a_mark_is_of_the_same_database: bool

    def canonical(self, state: State) -> State:
        # The order of commits matters only to a server that may be set back.
        return state if state.setbacks else state._replace(wal=tuple(sorted(state.wal)))

    def protocol(self, state: State) -> Iterator[Step[State]]:
        if state.unacknowledged is not None:
            yield "the last write is acknowledged", state._replace(unacknowledged=None)
        if not state.is_connected:
            yield self._connect(state)
            return
        is_recorded = state.epoch == self._epoch(state)
        if not is_recorded and not state.entering and self.an_epoch_that_is_not_recorded_ends:
            yield "syncer finds an earlier epoch recorded, or none, and connects anew", _cut(state)
        if not state.has_identity and not state.entering:
            yield "syncer finds that the database was set back, and connects anew", _cut(state)
        if (state.setbacks or state.has_read) and is_recorded:  # another mark would be of no use
            yield from self._mark(state)
        if is_recorded and not state.entering and _newest(state, "mark")[2] < _OTHER <= state.greatest:
            number = _newest(state, "mark")[1] + 1
            yield f"mark {number} finds another index", _marked(state, number, *self._numbers(state))
        if state.entering:
            job = _committed(state, "job", state.entering, *_newest(state, "mark")[2:])
            yield "the job of the epoch is committed", job._replace(entering=0)
        yield from self._write(state)
        for commit in _open_jobs(state):
            if state.unacknowledged is None:
                yield "the job writes what is in doubt", _job_done(state, commit)

    # Connecting

    def _epoch(self, state: State) -> int:
        return max(1, _newest(state, "epoch")[1])

    def _connect(self, state: State) -> Step[State]:
        epoch = self._epoch(state)
        is_as_recorded = (state.epoch, state.mark) <= (epoch, _newest(state, "mark")[1])
        if self.an_epoch_that_is_not_recorded_ends:
            is_as_recorded &= state.epoch == epoch
        if state.entering:
            mark = _newest(state, "mark")
            entered = _committed(state, "epoch", state.entering)
            entered = entered._replace(is_connected=True, has_identity=True, is_restarted=False)
            if not self.the_job_is_committed_with_the_epoch:
                return f"epoch {state.entering} is committed", entered
            entered = _committed(entered, "job", state.entering, *mark[2:])._replace(entering=0)
            return f"epoch {state.entering} and its job are committed", entered
        if state.has_identity and (is_as_recorded or not self.a_mark_that_is_recorded_outside_counts):
            connected = state._replace(is_connected=True, is_restarted=False)
            if not state.is_restarted or not self.a_restart_is_marked:
                return "syncer connects", connected
            number = _newest(state, "mark")[1] + 1
            marked = _marked(connected, number, *self._numbers(state))._replace(mark=number)
            return f"syncer connects after a restart, and takes mark {number}", marked
        epoch = max(epoch, state.epoch) + 1
        return f"epoch {epoch} is recorded", state._replace(epoch=epoch, mark=0, entering=epoch)

    # Marks

    def _numbers(self, state: State) -> tuple[int, int]:
        is_checkpoint = self.a_mark_has_the_global_checkpoint and state.unacknowledged is not None
        return state.greatest - is_checkpoint, state.deletes

    def _mark(self, state: State) -> Iterator[Step[State]]:
        newest = _newest(state, "mark")
        number = newest[1] + 1
        if newest[1] > state.mark:
            yield f"mark {newest[1]} is recorded", state._replace(mark=newest[1])
        elif self.numbers_are_read_before_the_mark:
            if state.has_read is not None:
                if state.has_identity or not self.a_mark_is_of_the_same_database:
                    marked = _marked(state, number, *state.has_read)
                    yield f"mark {number} is committed", marked._replace(has_read=None)
            elif number <= _MARKS:
                yield "numbers are read for a mark", state._replace(has_read=self._numbers(state))
        elif state.has_read is not None:
            numbers = self._numbers(state)
            wal = tuple((*commit[:2], *numbers) if commit == newest else commit for commit in state.wal)
            yield "numbers are read for the mark", state._replace(wal=wal, has_read=None)
        elif number <= _MARKS:
            marked = _marked(state, number, *self._numbers(state))
            yield f"mark {number} is committed", marked._replace(has_read=(0, 0))

    # Writing

    def _write(self, state: State) -> Iterator[Step[State]]:
        handled = _newest(state, "handled")[1]
        if state.requests:
            yield "syncer sends a request", _sent(state)
        elif state.change and state.unacknowledged is None:
            settled = tuple(sorted((*state.settled, state.change)))
            yield f"change {state.change} is written", state._replace(change=0, settled=settled)
        elif handled + 1 in state.settled:
            yield f"change {handled + 1} is saved as handled", _committed(state, "handled", handled + 1)
        elif not state.change:
            for kind, change, copy, _ in state.wal:
                if kind == "change" and change > handled and change not in state.settled:
                    built = state._replace(change=change, requests=self._requests(state, is_of_a=copy == _A))
                    yield f"syncer builds what change {change} touches", built

    def _requests(self, state: State, *, is_of_a: bool) -> tuple[tuple[int, int], ...]:
        a, b, shard = _shown(state)
        if is_of_a:
            return ((_A, a),)
        writes = [(shard, b)] if shard != _NOWHERE else []
        strays = [copy for copy in (_NEAR, _FAR) if copy != shard and state.copies[copy] != _ABSENT]
        requests = [*((copy, _NOWHERE) for copy in strays), *writes]
        if self.moves_are_logged if writes else self.deletes_are_logged:
            requests.insert(0 if self.logged_before_it_is_sent else len(requests), (_LOG, 0))
        return tuple(requests)

    # The world

    def world(self, state: State) -> Iterator[Step[State]]:
        if not state.has_changed:
            for action, copy in _CHANGES:
                yield f"change 2 {action}", _committed(state, "change", 2, copy)._replace(has_changed=True)
        if state.unacknowledged is not None and state.deaths:
            copies, greatest = state.unacknowledged
            undone = state._replace(
                copies=copies, greatest=greatest, unacknowledged=None, change=0, requests=(), deaths=0
            )
            yield "the primary of a shard dies, with the last write", undone
        if state.is_connected and state.entering:
            yield "syncer dies", _cut(state)
        if state.is_connected and state.setbacks and not state.files:
            stopped = _cut(state)._replace(files=state.wal, is_restarted=True)
            yield "the server is stopped, copied and started", stopped
        if state.setbacks:
            yield from self._setback(state)

    def _setback(self, state: State) -> Iterator[Step[State]]:
        back = _cut(state)._replace(setbacks=state.setbacks - 1, files=())
        if state.files:
            yield "the copy is put back", back._replace(wal=state.files, has_identity=True, is_restarted=True)
        is_idle = not (state.change or state.settled or state.unacknowledged)
        for end in range(len(state.wal) + 1):
            commits = state.wal[:end]
            yield f"a standby with {end} commits takes over", back._replace(wal=commits, has_identity=False)
            if is_idle:
                restored = state._replace(wal=commits, has_identity=False, setbacks=state.setbacks - 1, files=())
                yield f"a dump with {end} commits is restored, and no session ends", restored
        if is_idle and state.has_read is None:  # what is sent meanwhile is refused: see `tests.model.fencing`
            yield from _loss(state)

    def unequal(self, state: State) -> str | None:
        a, b, shard = _shown(state)
        shown = tuple(change for change, _ in state.copies)
        expected = (a, b if shard == _NEAR else _NOWHERE, b if shard == _FAR else _NOWHERE)
        return None if shown == expected else f"Elasticsearch shows {shown} for good, and Postgres has {expected}"


def _cut(state: State) -> State:
    return state._replace(is_connected=False, entering=0, change=0, requests=(), settled=(), has_read=None)


def _loss(state: State) -> Iterator[Step[State]]:
    deletes = state.deletes + _OTHER
    lost = state._replace(deletes=deletes, epoch=0, mark=0, deaths=0, setbacks=state.setbacks - 1, files=())
    yield "syncer-state is lost", lost
    before = State()
    copies = tuple((change, number + _OTHER) if change != _NOWHERE else _ABSENT for change, number in before.copies)
    other = lost._replace(copies=copies, greatest=before.greatest + _OTHER)
    yield "another cluster takes over, with the index of a snapshot", other
    yield "another cluster takes over, with index and record of a snapshot", other._replace(epoch=1, mark=1)


def _committed(state: State, kind: str, number: int, second: int = 0, third: int = 0) -> State:
    return state._replace(wal=(*state.wal, (kind, number, second, third)))


def _marked(state: State, number: int, greatest: int, deletes: int) -> State:
    if _newest(state, "mark")[2] < _OTHER <= greatest:  # they are one commit: no mark is without its job
        state = _committed(state, "job", _REFRESH)
    return _committed(state, "mark", number, greatest, deletes)


def _newest(state: State, kind: str) -> Commit:
    return next((commit for commit in reversed(state.wal) if commit[0] == kind), (kind, 0, 0, 0))


def _shown(state: State) -> tuple[int, int, int]:
    """What Postgres has: the last changes of A and of B, and the place of B."""
    a, b, shard = 0, 0, _NEAR
    for kind, number, shard_of_change, _ in state.wal:
        if kind == "change" and shard_of_change == _A:
            a = number
        elif kind == "change":
            b, shard = number, shard_of_change
    return a, b, shard


def _put(state: State, copy: int, change: int) -> State:
    copies = list(state.copies)
    copies[copy] = _ABSENT if change == _NOWHERE else (change, state.greatest + 1)
    return state._replace(copies=tuple(copies), greatest=state.greatest + (change != _NOWHERE))


def _sent(state: State) -> State:
    (copy, change), *requests = state.requests
    sent = state._replace(requests=tuple(requests))
    if copy == _LOG:
        return sent._replace(deletes=state.deletes + 1)
    undo = state.unacknowledged if change == _NOWHERE else (state.copies, state.greatest)
    return _put(sent, copy, change)._replace(unacknowledged=undo)


def _open_jobs(state: State) -> list[Commit]:
    finished = {number for kind, number, _, _ in state.wal if kind == "done"}
    return [commit for commit in state.wal if commit[0] == "job" and commit[1] not in finished]


def _job_done(state: State, job: Commit) -> State:
    """Write what has greater numbers than the mark of a job, or everything if it has none."""
    _, epoch, number, deletes = job
    a, b, shard = _shown(state)
    if not number or state.copies[_A][1] > number:
        state = _put(state, _A, a)
    if not number or state.deletes > deletes or max(state.copies[_NEAR][1], state.copies[_FAR][1]) > number:
        for copy in (_NEAR, _FAR):
            state = _put(state, copy, b if copy == shard else _NOWHERE)
        state = state._replace(deletes=state.deletes + 1)
    return _committed(state, "done", epoch)
