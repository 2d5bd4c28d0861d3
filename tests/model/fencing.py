"""Fencing: after a failover, late requests of the time before change nothing.

A request names the write alias of its index, whose name ends with the epoch. A node resolves the alias when the request
arrives; the write may wait for its thread long after that, and the request may arrive long after it was sent. A daemon
that enters an epoch renames the aliases of all active indices (the fence), and commits the epoch with a job. An index
with a block is left out: its document is suspended, and fenced when it resumes. The job waits for the fence and for
what was resolved before (the drain), and then writes what was written since the last mark: see `tests.model.marks`.

There is one document. Its definition may get a new index, which replaces the old one. Another primary of the same
installation may record an epoch meanwhile; `tests.model.overtaking` covers what it does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Step, put

_OLD, _NEW = range(2)  # the indices
_GONE = 0  # the alias of an index that does not exist
_EPOCH = 10
_FREE, _BLOCKED, _FREE_AGAIN = range(3)


class Database(NamedTuple):
    """What Postgres has after a commit."""

    value: int = 0
    active: tuple[bool, bool] = (True, False)  # by index
    is_due: bool = False  # a change, or a load, is to be handled
    epoch: int = 1
    has_job: bool = False  # of the epoch


class Request(NamedTuple):
    """A write of the document."""

    number: int  # of the index
    version: int
    value: int
    is_resolved: bool = False


class State(NamedTuple):
    """The state of the model."""

    wal: tuple[Database, ...] = (Database(),)
    is_set_back: bool = False  # no epoch was entered since
    recorded: int = 1  # the epoch
    fenced: int = 0  # the epoch that is being entered, once the aliases have its name
    aliases: tuple[int, ...] = (1, _GONE)  # the epochs in the names of the write aliases
    copies: tuple[tuple[int, int], ...] = ((0, 0), (0, 0))  # the version and the value of the document
    in_doubt: tuple[bool, bool] = (False, False)  # it was written since the last mark
    requests: tuple[Request, ...] = ()
    sent: tuple[int, ...] = ()  # the indices that the worker waits for; none if it does not write
    apply: int = 0  # the epoch of the session that has created an index
    has_changed: bool = False
    block: int = _FREE  # of the old index
    troubles: int = 1


class Fencing(Model[State]):
    """What was sent in an earlier epoch is refused, or done before the job looks for what is in doubt."""

    initial = State()
    bounds = "1 change, an index that replaces another, a block, a failover, or an epoch of another primary"

    aliases_name_the_epoch: bool
    fence_before_listing: bool
    drain_before_listing: bool
    an_index_is_activated_in_the_epoch_of_its_alias: bool
    an_index_that_is_gone_does_not_prevent_the_fence: bool

    def canonical(self, state: State) -> State:
        versions = sorted({*(version for version, _ in state.copies), *(sent.version for sent in state.requests)})
        ranks = {version: version // _EPOCH * _EPOCH + rank for rank, version in enumerate(versions)}
        requests = sorted(sent._replace(version=ranks[sent.version]) for sent in state.requests)
        copies = tuple((ranks[version], value) for version, value in state.copies)
        state = state._replace(requests=tuple(requests), copies=copies)
        if state.troubles:
            return state
        block = _FREE if state.block == _FREE_AGAIN and not self._refusing(state) else state.block
        return state._replace(wal=state.wal[-1:], block=block)

    def protocol(self, state: State) -> Iterator[Step[State]]:
        for slot, request in enumerate(state.requests):
            yield self._deliver(state, slot, request)
        database = state.wal[-1]
        if state.is_set_back or state.recorded > database.epoch or state.fenced:
            yield from self._enter(state)
            return
        is_suspended = state.block == _BLOCKED or bool(self._refusing(state))
        if not state.sent and database.is_due and not is_suspended:
            yield self._send(state)
        elif state.sent and not any(request.version // _EPOCH == database.epoch for request in state.requests):
            yield "the change is saved as handled", _committed(state, is_due=False)._replace(sent=())
        is_fenced = not is_suspended or not self.fence_before_listing
        if database.has_job and is_fenced and not (self.drain_before_listing and _undrained(state)):
            yield self._write_in_doubt(state)
        if state.block == _BLOCKED:
            yield "the block is removed", state._replace(block=_FREE_AGAIN)
        elif is_suspended:
            yield "the document is resumed, and its aliases are renamed", self._renamed(state, database.epoch)
        yield from self._rebuild(state)

    @staticmethod
    def _refusing(state: State) -> list[int]:
        """The active indices whose aliases are not those of the epoch."""
        database = state.wal[-1]
        pairs = enumerate(zip(database.active, state.aliases, strict=True))
        return [index for index, (active, alias) in pairs if active and alias not in (_GONE, database.epoch)]

    # Entering an epoch

    @staticmethod
    def _renamed(state: State, epoch: int) -> State:
        is_active = state.wal[-1].active
        is_left_out = [alias == _GONE or not is_active[index] for index, alias in enumerate(state.aliases)]
        is_left_out[_OLD] |= state.block == _BLOCKED
        pairs = zip(is_left_out, state.aliases, strict=True)
        return state._replace(aliases=tuple(alias if left_out else epoch for left_out, alias in pairs))

    def _enter(self, state: State) -> Iterator[Step[State]]:
        database = state.wal[-1]
        pairs = zip(database.active, state.aliases, strict=True)
        lacks_index = any(active and alias == _GONE for active, alias in pairs)
        if state.fenced:
            entered = _committed(state, epoch=state.fenced, has_job=True)
            yield (
                f"epoch {state.fenced} and its job are committed",
                entered._replace(is_set_back=False, recorded=state.fenced, fenced=0, sent=()),
            )
        elif not lacks_index or self.an_index_that_is_gone_does_not_prevent_the_fence:
            epoch = max(database.epoch, state.recorded) + 1
            fenced = self._renamed(state, epoch)._replace(recorded=epoch, fenced=epoch)
            yield f"epoch {epoch} is recorded, and the aliases are renamed", fenced

    def _write_in_doubt(self, state: State) -> Step[State]:
        database, copies = state.wal[-1], list(state.copies)
        for index, is_active in enumerate(database.active):
            if is_active and state.in_doubt[index] and state.aliases[index] != _GONE:
                copies[index] = (_next(state), database.value)
        return "the job writes what is in doubt", _committed(state, has_job=False)._replace(copies=tuple(copies))

    # Writing

    def _send(self, state: State) -> Step[State]:
        database = state.wal[-1]
        indices = tuple(index for index in (_OLD, _NEW) if database.active[index] and state.aliases[index] != _GONE)
        requests = [Request(index, _next(state), database.value) for index in indices]
        return f"the worker sends {database.value}", state._replace(
            requests=(*state.requests, *requests), sent=indices or (_OLD,)
        )

    def _deliver(self, state: State, slot: int, request: Request) -> Step[State]:
        name, alias = "the old index" if request.number == _OLD else "the new index", state.aliases[request.number]
        without = state._replace(requests=(*state.requests[:slot], *state.requests[slot + 1 :]))
        if request.number == _OLD and state.block == _BLOCKED:
            is_awaited = request.version // _EPOCH == state.wal[-1].epoch
            return f"{request.value} meets a block", without._replace(sent=()) if is_awaited else without
        if request.is_resolved:
            if alias == _GONE or request.version <= state.copies[request.number][0]:
                return f"{request.value} is rejected by {name}", without
            indexed = put(without, "copies", request.number, (request.version, request.value))
            return f"{request.value} is written to {name}", put(indexed, "in_doubt", request.number, item=True)
        if alias == _GONE or (self.aliases_name_the_epoch and alias != request.version // _EPOCH):
            is_awaited = request.version // _EPOCH == state.wal[-1].epoch
            return f"{request.value} is refused by {name}", without._replace(sent=()) if is_awaited else without
        return f"{request.value} is queued for {name}", put(state, "requests", slot, request._replace(is_resolved=True))

    # Replacing the index

    def _rebuild(self, state: State) -> Iterator[Step[State]]:
        database = state.wal[-1]
        if state.apply:
            if state.apply == database.epoch or not self.an_index_is_activated_in_the_epoch_of_its_alias:
                activated = _committed(state, active=(True, True), is_due=True)
                yield "the new index is activated, and its load is due", activated._replace(apply=0, sent=())
            else:
                yield "apply gives up", state._replace(apply=0)
        elif database.active == (True, False) and state.aliases[_NEW] in (_GONE, database.epoch):
            created = state._replace(aliases=(state.aliases[_OLD], database.epoch), apply=database.epoch)
            yield "apply creates the new index", created
        elif database.active == (True, True) and not database.is_due and not database.has_job:
            yield "the new index takes the place of the old one", _committed(state, active=(False, True))
        elif database.active == (False, True) and state.aliases[_OLD] != _GONE:
            yield "the old index is dropped", state._replace(aliases=(_GONE, state.aliases[_NEW]))

    # The world

    def world(self, state: State) -> Iterator[Step[State]]:
        if not state.has_changed:
            changed = _committed(state, value=1, is_due=True)
            yield "the document changes", changed._replace(has_changed=True, sent=())
        if state.block == _FREE and state.requests and state.troubles:  # otherwise it would change nothing
            yield "the old index gets a block", state._replace(block=_BLOCKED)
        if state.troubles:
            cut = state._replace(is_set_back=True, sent=(), apply=0, fenced=0, troubles=0)
            for end in range(1, len(state.wal) + 1):
                yield f"a standby with {end} commits takes over", cut._replace(wal=state.wal[:end])
            yield "another primary records an epoch", state._replace(recorded=state.recorded + 1, troubles=0)

    def wrong(self, state: State) -> str | None:
        database = state.wal[-1]
        if state.is_set_back or state.fenced or state.recorded > database.epoch:
            return None
        is_refused = state.block == _FREE and self._refusing(state)
        return "an active index refuses the writes of the epoch in use" if is_refused else None

    def unequal(self, state: State) -> str | None:
        database = state.wal[-1]
        if state.is_set_back or state.recorded > database.epoch:
            return "no epoch is entered"
        for index, is_active in enumerate(database.active):
            if is_active and state.aliases[index] != _GONE and state.copies[index][1] != database.value:
                return f"an index shows {state.copies[index][1]} for good, and Postgres has {database.value}"
        return None


def _committed(state: State, **changes: object) -> State:
    return state._replace(wal=(*state.wal, state.wal[-1]._replace(**changes)))  # type: ignore[arg-type]


def _next(state: State) -> int:
    """The next version of the epoch."""
    epoch = state.wal[-1].epoch * _EPOCH
    return 1 + max(epoch, *(version for version, _ in state.copies), *(sent.version for sent in state.requests))


def _undrained(state: State) -> bool:
    return any(sent.is_resolved and sent.version // _EPOCH < state.wal[-1].epoch for sent in state.requests)
