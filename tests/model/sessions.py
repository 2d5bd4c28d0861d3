"""Sessions: a failover to a standby that lags, while a worker lives on.

Kafka shares the changes, so a worker knows more than the database: how far it has received, and which changes it has
resolved. Here, each change is a fan-out: resolving it commits a job. A failover keeps the first commits, in the order
of the WAL, and cuts every session. The topic keeps its records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Step

_COMMITS, _FAILOVERS = 2, 1
_CHANGE, _CURSOR, _JOB, _HANDLED = "change", "cursor", "job", "handled"


class State(NamedTuple):
    """The state of the model. Changes are numbered from 1; none is used twice, though it may be lost."""

    wal: tuple[tuple[str, int], ...] = ()  # the commits that the database has
    topic: tuple[int, ...] = ()  # the changes that were published; a record's number is its place, from 1
    commits: int = 0
    relay_saves: int = 0  # the change up to which the relay has published, and is about to save
    is_begun: bool = False  # whether the worker has read where to begin
    is_cut: bool = False  # whether its session, on which it has begun, has ended
    received: int = 0  # up to which record it has resolved
    saved: int = 0  # up to which record it knows that it has saved
    failovers: int = _FAILOVERS


class Sessions(Model[State]):
    """After a failover, what counts as handled has a job in the database, also if the worker lives on."""

    initial = State()
    bounds = f"{_COMMITS} fan-outs, a failover to a standby that lags, any deaths of the worker"

    what_is_resolved_on_a_session_is_saved_on_it: bool
    a_new_session_begins_where_the_database_is: bool

    def protocol(self, state: State) -> Iterator[Step[State]]:
        unpublished = [change for change in _of(state, _CHANGE) if change > _greatest(state, _CURSOR)]
        if state.relay_saves:
            yield "the relay saves the cursor", _committed(state, _CURSOR, state.relay_saves)._replace(relay_saves=0)
        elif unpublished:
            published = state._replace(topic=(*state.topic, *unpublished), relay_saves=unpublished[-1])
            yield f"the relay publishes changes {unpublished}", published
        if not state.is_begun:
            handled = _greatest(state, _HANDLED)
            begun = state._replace(is_begun=True, received=handled, saved=handled)
            yield f"the worker begins after record {handled}", begun
        elif state.is_cut and (state.received == state.saved or self.what_is_resolved_on_a_session_is_saved_on_it):
            # It notices when it uses the session.
            dropped = state._replace(is_cut=False, received=state.saved)
            if self.a_new_session_begins_where_the_database_is:
                dropped = _without_worker(state)
            yield "the worker drops what it has in hand, and opens another session", dropped
        else:
            yield from self._work(state)

    @staticmethod
    def _work(state: State) -> Iterator[Step[State]]:
        if state.received < len(state.topic) and not state.is_cut:
            change = state.topic[state.received]
            resolved = _committed(state, _JOB, change)._replace(received=state.received + 1)
            yield f"the worker creates a job for change {change}", resolved
        if state.received > state.saved:
            saved = _committed(state, _HANDLED, state.received)
            action = f"the worker saves that record {state.received} is handled"
            yield action, saved._replace(is_cut=False, saved=state.received)

    def world(self, state: State) -> Iterator[Step[State]]:
        if state.commits < _COMMITS:
            change = state.commits + 1
            yield f"change {change} is committed", _committed(state, _CHANGE, change)._replace(commits=change)
        if state.is_begun:
            yield "the worker dies", _without_worker(state)
        if state.failovers:
            cut = state._replace(is_cut=state.is_begun, relay_saves=0, failovers=state.failovers - 1)
            for end in range(len(state.wal) + 1):
                yield f"a standby with the first {end} commits takes over", cut._replace(wal=state.wal[:end])

    def wrong(self, state: State) -> str | None:
        handled = state.topic[: _greatest(state, _HANDLED)]
        missing = (set(handled) & {*_of(state, _CHANGE)}) - {*_of(state, _JOB)}
        return f"change {min(missing)} counts as handled, and has no job" if missing else None

    def unequal(self, state: State) -> str | None:
        missing = {*_of(state, _CHANGE)} - {*_of(state, _JOB)}
        return f"change {min(missing)} has no job" if missing else None


def _without_worker(state: State) -> State:
    return state._replace(is_begun=False, is_cut=False, received=0, saved=0)


def _committed(state: State, kind: str, number: int) -> State:
    commit = (kind, number)
    return state if commit in state.wal else state._replace(wal=(*state.wal, commit))


def _of(state: State, kind: str) -> list[int]:
    return [number for committed, number in state.wal if committed == kind]


def _greatest(state: State, kind: str) -> int:
    return max(_of(state, kind), default=0)
