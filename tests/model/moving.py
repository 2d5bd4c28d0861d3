"""Moving: a document with a ``_routing`` is on one of two shards, and a write deletes elsewhere only after a move.

A change *moves* the document if it touches what decides whether there is a document, and on which shard: each insert,
delete and new routing does, an edit of its content does not. The first change may *spoil* the document: the SELECT
fails on it until another change corrects it, so nothing is sent for it, and it becomes a dead letter. Shards know
nothing of each other, so each operation of a write is a step of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Step, processes, put

_IDLE, _RECEIVED, _FAILED, _READ = range(4)
_SHARDS = (1, 2)
_COMMITS = 2


class Copy(NamedTuple):
    """What a shard has: the version that it has or remembers, and the state that it shows; 0 if there is no copy."""

    version: int = 0
    state: int = 0


class Event(NamedTuple):
    """The event of a commit."""

    moves: bool  # the document
    is_repeated: bool = False  # a worker has received it
    is_saved: bool = False  # as handled


class Worker(NamedTuple):
    """A worker and the event that it handles."""

    phase: int = _IDLE
    event: int = 0
    moves: bool = False  # its write deletes elsewhere
    is_recorded: bool = False  # its dead letter is
    version: int = 0  # 0 if the SELECT has failed
    state: int = 0  # that it has read
    shard: int = 0  # where the document belongs in that state; 0 if there is none
    unsent: tuple[int, ...] = ()  # the shards that its write is still to reach
    created: bool = False  # its write created a copy
    is_late: bool = False  # Elasticsearch has forgotten deletes since it assigned its version


class State(NamedTuple):
    """The state of the model."""

    events: tuple[Event, ...] = ()
    shard: int = 1  # where the document belongs; 0 if there is none
    is_spoilt: bool = False
    last_version: int = 1
    failed_version: int = 0  # of the dead letter; 0 if there is none
    copies: tuple[Copy, ...] = (Copy(version=1, state=1), Copy())
    workers: tuple[Worker, ...] = (Worker(), Worker())
    forgets: int = 1


class Moving(Model[State]):
    """A document is on its own shard and on no other, although most writes leave the other shards alone."""

    initial = State()
    identical = ("workers",)
    bounds = (
        f"2 workers, 2 shards, {_COMMITS} commits, deletes forgotten once or the SELECT fails after the first commit; "
        "any number of crashes and deliveries"
    )

    moves_delete_elsewhere: bool
    absence_is_deleted_everywhere: bool
    what_is_done_again_deletes_elsewhere: bool
    what_is_received_again_deletes_elsewhere: bool
    what_has_failed_deletes_elsewhere: bool
    what_has_failed_is_tried_again: bool
    a_late_creator_lives_or_is_repeated: bool  # an assumption

    def protocol(self, state: State) -> Iterator[Step[State]]:
        for slot, worker, name in processes(state.workers, "worker"):
            if worker.phase == _IDLE:
                for number, event in enumerate(state.events, 1):
                    if not event.is_saved:
                        yield self._receive(state, slot, name, number, event)
            elif worker.phase == _RECEIVED:
                yield self._read_snapshot(state, slot, worker, name)
            elif worker.phase == _FAILED:
                version = state.last_version + 1
                anew = worker._replace(phase=_RECEIVED, is_recorded=True)
                if not self.what_has_failed_is_tried_again:
                    anew = worker._replace(phase=_READ)
                recorded = put(state, "workers", slot, anew)._replace(last_version=version, failed_version=version)
                yield f"{name} records a dead letter of version {version}", recorded
            elif worker.unsent:
                for shard in worker.unsent:
                    yield self._send(state, slot, worker, name, shard)
            else:
                yield self._settle(state, slot, worker, name)

    def _receive(self, state: State, slot: int, name: str, number: int, event: Event) -> Step[State]:
        moves = event.moves and self.moves_delete_elsewhere
        moves |= event.is_repeated and self.what_is_received_again_deletes_elsewhere
        received = put(state, "events", number - 1, event._replace(is_repeated=True))
        action = f"{name} receives event {number}{' again' if event.is_repeated else ''}"
        return action, put(received, "workers", slot, Worker(phase=_RECEIVED, event=number, moves=moves))

    def _read_snapshot(self, state: State, slot: int, worker: Worker, name: str) -> Step[State]:
        if state.is_spoilt:
            failed = worker._replace(phase=_READ if worker.is_recorded else _FAILED)
            return f"the SELECT fails for {name}", put(state, "workers", slot, failed)
        deletes = worker.moves if state.shard else self.absence_is_deleted_everywhere
        unsent = _SHARDS if deletes else (state.shard or _SHARDS[0],)
        version, number = state.last_version + 1, len(state.events) + 1
        reading = worker._replace(phase=_READ, version=version, state=number, shard=state.shard, unsent=unsent)
        place = f"the document belongs on shard {reading.shard}" if reading.shard else "there is no document"
        action = f"{name} reads state {number} as version {version}: {place}"
        return action, put(state, "workers", slot, reading)._replace(last_version=version)

    def _send(self, state: State, slot: int, worker: Worker, name: str, shard: int) -> Step[State]:
        sent = worker._replace(unsent=tuple(other for other in worker.unsent if other != shard))
        copy, is_there = state.copies[shard - 1], worker.shard == shard
        action = f"{name} {'writes' if is_there else 'deletes'} version {worker.version} on shard {shard}"
        if worker.version <= copy.version:
            return f"{action}, which is rejected", put(state, "workers", slot, sent)
        sent = sent._replace(created=sent.created or (is_there and not copy.state))
        written = Copy(version=worker.version, state=worker.state if is_there else 0)
        return action, put(put(state, "copies", shard - 1, written), "workers", slot, sent)

    def _settle(self, state: State, slot: int, worker: Worker, name: str) -> Step[State]:
        anew = Worker(phase=_RECEIVED, event=worker.event, moves=True, is_late=worker.is_late)
        if worker.created and worker.shard != state.shard:
            anew = anew._replace(moves=worker.moves or self.what_is_done_again_deletes_elsewhere)
            return f"{name} finds that it does not belong there, and starts again", put(state, "workers", slot, anew)
        if state.failed_version and worker.version and not worker.moves and self.what_has_failed_deletes_elsewhere:
            return f"{name} finds a dead letter, and starts again", put(state, "workers", slot, anew)
        if 0 < state.failed_version < worker.version:
            return f"{name} removes the dead letter", state._replace(failed_version=0)
        saved = put(state, "events", worker.event - 1, state.events[worker.event - 1]._replace(is_saved=True))
        return f"{name} saves that event {worker.event} is handled", put(saved, "workers", slot, Worker())

    def world(self, state: State) -> Iterator[Step[State]]:
        if len(state.events) < _COMMITS:
            for shard in (*_SHARDS, *([0] if state.shard else [])):
                moves = shard != state.shard
                action = f"moves to shard {shard}" if shard and moves else "is edited" if shard else "is deleted"
                for spoils in (False, True) if shard and not state.events else (False,):
                    changed = state._replace(events=(*state.events, Event(moves)), shard=shard, is_spoilt=spoils)
                    # One of the two, for fewer states.
                    changed = changed._replace(forgets=0 if spoils else state.forgets)
                    yield f"the document {action}{' and spoilt' * spoils}: state {len(changed.events) + 1}", changed
        for slot, worker, name in processes(state.workers, "worker"):
            is_alone = [other.event for other in state.workers].count(worker.event) == 1
            is_repeated = is_alone and not (worker.phase and state.events[worker.event - 1].is_saved)
            if worker.phase and (not worker.is_late or is_repeated or not self.a_late_creator_lives_or_is_repeated):
                yield f"{name} is killed", put(state, "workers", slot, Worker())
        if state.forgets and any(copy.version and not copy.state for copy in state.copies):
            copies = tuple(copy if copy.state else Copy() for copy in state.copies)
            workers = tuple(worker._replace(is_late=worker.phase == _READ) for worker in state.workers)
            yield "Elasticsearch forgets deletes", state._replace(forgets=0, copies=copies, workers=workers)

    def unequal(self, state: State) -> str | None:
        if state.is_spoilt:
            return None if state.failed_version else "the document cannot be written, and has no dead letter"
        for shard, copy in zip(_SHARDS, state.copies, strict=True):
            expected = len(state.events) + 1 if shard == state.shard else 0
            if copy.state != expected:
                return f"shard {shard} shows state {copy.state} for good, and not {expected}; 0 is none"
        return None
