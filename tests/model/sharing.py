"""Sharing: two primaries of one database publish to one topic, and their workers share its partition.

A standby was promoted while the primary went on. It has what the primary had committed at some moment. Each database
has a relay, a worker and its progress. A relay leads in a term: a number that its database knows to be greater than all
before it, and a name. A record has the term, and a number that begins with the number of the term.

A worker takes the partition only while its database is in use. One that has it may keep it for longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Step, processes, put

_COMMITS, _LOSSES, _RELAYS = 2, 1, 3
_NUMBERS = 100  # in a term, at most


class Term(NamedTuple):
    """A leadership. No two have one name, though two databases may give one number."""

    number: int
    name: int


class Record(NamedTuple):
    """A record of a term: its number, the number before it, and its change; 0 is none."""

    term: Term
    number: int
    previous: int
    change: int


class Database(NamedTuple):
    """What a primary has committed, and its relay."""

    changes: tuple[int, ...] = ()
    terms: tuple[Term, ...] = ()
    notes: tuple[tuple[int, int], ...] = ((0, 0),)  # saved cursors: how many changes, and the last number
    offset: int = 0  # of the next record
    handled: int = 0  # the greatest number that is handled
    written: tuple[int, ...] = ()  # the changes that a worker of it has handled
    covered: int = 0  # how many changes a refresh covers
    refreshes: int = 0
    # The relay
    term: Term | None = None
    sent: int = 0  # how many changes
    last_number: int = 0


class State(NamedTuple):
    """The state of the model. Changes and terms are numbered from 1, and no number is used twice."""

    databases: tuple[Database, ...] = (Database(), Database())  # the second one is a standby until it is promoted
    is_behind: bool = False  # whether it receives no more
    is_promoted: bool = False
    in_use: int = 0  # the database whose epoch is recorded
    log: tuple[Record, ...] = ()
    holder: int = 0  # the database whose worker has the partition
    # What has happened
    changes: int = 0
    terms: int = 0
    losses: int = 0


class Sharing(Model[State]):
    """Of two primaries that publish to one topic, each counts as handled what its own relay has published."""

    initial = State()
    bounds = f"{_COMMITS} changes, terms of relays: {_RELAYS}, a failover to a standby that lags, losses: {_LOSSES}"

    a_record_of_another_history_does_not_count: bool
    a_term_has_a_name: bool
    a_term_is_committed_before_its_records: bool
    an_overtaken_worker_gives_up_its_partition: bool

    def canonical(self, state: State) -> State:
        # A note that is handled stays so.
        waiting = [[note for note in database.notes[:-1] if note[1] > database.handled] for database in state.databases]
        databases = [
            database._replace(notes=(*notes, database.notes[-1]))
            for database, notes in zip(state.databases, waiting, strict=True)
        ]
        if state.holder == 1:  # the worker of primary A takes the partition no more
            databases[0] = databases[0]._replace(offset=0, handled=0, written=(), covered=0, refreshes=0)
        return state._replace(databases=tuple(databases))

    def protocol(self, state: State) -> Iterator[Step[State]]:
        for slot, database, name in processes(state.databases[: 1 + state.is_promoted], "primary"):
            yield from self._publish(state, slot, database, name)
        if state.is_promoted and state.in_use == 0:
            yield "primary B enters an epoch", state._replace(in_use=1)
        if state.holder < 0:
            successor = state._replace(holder=state.in_use)
            yield f"the worker of primary {'AB'[state.in_use]} takes the partition", successor
        else:
            yield from self._work(state, state.holder, state.databases[state.holder])

    def _publish(self, state: State, slot: int, database: Database, name: str) -> Iterator[Step[State]]:
        cursor, saved = database.notes[-1]
        if database.term is None:
            if state.terms < _RELAYS and cursor < len(database.changes):
                number = 1 + max([term.number for term in database.terms], default=0)
                term = Term(number, state.terms + 1)
                led = database._replace(term=term, sent=cursor, last_number=saved)
                if self.a_term_is_committed_before_its_records:
                    led = led._replace(terms=(*database.terms, term))
                change = database.changes[cursor]
                sent = _sent(state._replace(terms=term.name), slot, led, change)
                yield f"the relay of {name} leads in term {number}, named {term.name}, and sends change {change}", sent
        elif database.sent < len(database.changes):
            change = database.changes[database.sent]
            yield f"the relay of {name} sends change {change}", _sent(state, slot, database, change)
        elif database.last_number > saved:
            noted = database._replace(notes=(*database.notes, (database.sent, database.last_number)))
            if database.term not in database.terms:
                noted = noted._replace(terms=(*database.terms, database.term))
            yield f"the relay of {name} saves the cursor", put(state, "databases", slot, noted)
        elif self._is_quiet(state, slot):
            yield f"the relay of {name} sends an empty record", _sent(state, slot, database, 0)

    @staticmethod
    def _is_quiet(state: State, slot: int) -> bool:
        """Whether an empty record would show something new; others would only make more states."""
        database, reader = state.databases[slot], state.databases[state.holder]
        if state.log and state.log[-1].change == 0 and state.log[-1].number == database.last_number:
            return False
        return slot == state.in_use and reader.offset == len(state.log) and database.handled < database.notes[-1][1]

    def _work(self, state: State, slot: int, database: Database) -> Iterator[Step[State]]:
        """Handle a record and save that; what may happen in between, `tests.model.progressing` shows."""
        name = f"the worker of primary {'AB'[slot]}"
        if database.offset > len(state.log):
            begun = put(state, "databases", slot, database._replace(offset=0))
            yield f"{name} finds that its offset is gone, and begins with the oldest", begun
            return
        if database.offset == len(state.log):
            return
        record, passed = state.log[database.offset], database._replace(offset=database.offset + 1)
        is_overtaken = slot != state.in_use
        if not self._is_own(database, record):
            if is_overtaken and self.an_overtaken_worker_gives_up_its_partition:
                given_up = state._replace(holder=-1)
                yield f"{name} meets a record of another history, and gives up the partition", given_up
            else:
                yield f"{name} passes over a record of another history", put(state, "databases", slot, passed)
        elif record.previous > database.handled:
            number = max(record.previous, database.notes[-1][1])
            covered = database._replace(handled=number, covered=len(database.changes), refreshes=database.refreshes + 1)
            yield f"{name} meets a gap, and creates a refresh", put(state, "databases", slot, covered)
        elif record.change and is_overtaken:
            yield f"{name} is refused a write, and gives up the partition", state._replace(holder=-1)
        else:
            written = tuple(sorted({*database.written, record.change} & {*database.changes}))
            handled = passed._replace(handled=max(record.number, database.handled), written=written)
            yield f"{name} handles number {record.number}", put(state, "databases", slot, handled)

    def _is_own(self, database: Database, record: Record) -> bool:
        if not self.a_record_of_another_history_does_not_count:
            return True
        if not self.a_term_has_a_name:
            return record.term.number in [term.number for term in database.terms]
        return record.term in database.terms

    # The world

    def world(self, state: State) -> Iterator[Step[State]]:
        for slot, database, name in processes(state.databases[: 1 + state.is_promoted], "primary"):
            if state.changes < _COMMITS:
                change = state.changes + 1
                committed = put(state, "databases", slot, database._replace(changes=(*database.changes, change)))
                yield f"change {change} is committed in {name}", committed._replace(changes=change)
        former = state.databases[0]
        if former.term is not None and state.terms < _RELAYS:
            yield "the relay of primary A dies", put(state, "databases", 0, former._replace(term=None))
        if not state.is_promoted:
            copy = state.databases[0]._replace(term=None, sent=0, last_number=0)
            if state.changes and not state.is_behind:
                copied = put(state, "databases", 1, copy)._replace(is_behind=True)
                yield "the standby has received all, and receives no more", copied
            if state.is_behind and state.terms < _RELAYS:
                yield "the standby is promoted as primary B", state._replace(is_promoted=True)
        if 0 <= state.holder < state.in_use:
            yield "the worker of primary A dies", state._replace(holder=-1)
        if state.holder == 1 and state.losses < _LOSSES and state.log:
            yield "Kafka loses the last record", state._replace(log=state.log[:-1], losses=state.losses + 1)

    def wrong(self, state: State) -> str | None:
        for database, name in zip(state.databases, "AB", strict=True):
            for cursor, number in database.notes:
                if number <= database.handled and (missing := _missing(database, cursor)):
                    return f"change {missing} counts as handled in primary {name}, and is not"
            if database.refreshes > state.losses:
                return f"every document of primary {name} is refreshed, and nothing was lost"
        return None

    def unequal(self, state: State) -> str | None:
        database = state.databases[state.in_use]
        missing = _missing(database, len(database.changes)) if database.term else 0
        return f"change {missing} is never handled" if missing else None


def _missing(database: Database, cursor: int) -> int:
    uncovered = database.changes[database.covered : cursor]
    return next((change for change in uncovered if change not in database.written), 0)


def _sent(state: State, slot: int, database: Database, change: int) -> State:
    assert database.term is not None
    number = max(database.last_number, database.term.number * _NUMBERS) + 1
    record = Record(database.term, number, database.last_number, change)
    sent = database._replace(sent=database.sent + bool(change), last_number=number)
    return put(state, "databases", slot, sent)._replace(log=(*state.log, record))
