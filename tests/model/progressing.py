"""Progressing: whatever Kafka loses, and whichever process dies, only what is handled or refreshed counts as handled.

One partition. Each record carries a number and the number of the record before it. The relay saves a note with its
cursor: the last number that belongs to it. The worker saves the greatest number that it has handled. A note counts as
handled once its number is. Kafka loses a record together with all after it; new records then take their offsets.

Kafka may be turned off, so that the leader writes the documents itself and saves the cursor, and on again.

A leader may give up the backlog: it saves a cursor that has seen every change, and leaves the changes to a refresh.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Step

_COMMITS, _LOSSES, _DEATHS, _SWITCHES, _BACKLOGS = 2, 2, 1, 1, 1


class Record(NamedTuple):
    """A record: its number, the number before it, and its change; 0 is none."""

    number: int
    previous: int
    change: int


class State(NamedTuple):
    """The state of the model. Changes are numbered from 1; sets of them are bits."""

    commits: int = 0
    log: tuple[Record, ...] = ()
    has_kafka: bool = True
    # The leader
    leads: bool = False
    read_to: int = 0  # up to which change it has read the outbox
    sent: int = 0  # up to which change it has sent, or written without Kafka
    last_number: int = 0  # the number that its last record has, or that was saved
    used: int = 0  # the greatest number that was ever used
    cursor: int = 0  # up to which change the saved cursor is
    saved: int = 0  # the last number that was saved with it
    notes: tuple[tuple[int, int], ...] = ()  # the cursors that were saved, each with its number
    # The worker
    position: int = -1  # its next offset; -1 if there is no worker
    number: int = 0  # the greatest number that it has handled
    offset: int = 0  # the next offset that is saved
    handled: int = 0  # the number that is saved
    written_changes: int = 0  # which changes were written
    covered: int = 0  # up to which change a refresh covers all
    # What may still happen
    losses: int = _LOSSES
    deaths: int = _DEATHS  # of a leader
    switches: int = _SWITCHES  # of Kafka, off or on
    backlogs: int = _BACKLOGS  # that a leader gives up


class Progressing(Model[State]):
    """Whatever Kafka loses, and whichever process dies, what counts as handled is written, or a refresh covers it."""

    initial = State()
    bounds = (
        f"{_COMMITS} changes, losses: {_LOSSES}, deaths of a leader: {_DEATHS}, any of the worker, "
        f"Kafka turned off and on, backlogs given up: {_BACKLOGS}"
    )

    numbers_are_never_reused: bool
    a_record_names_the_one_before: bool
    a_new_leader_names_what_was_saved: bool
    a_quiet_partition_gets_an_empty_record: bool
    the_refresh_is_committed_with_the_number: bool
    off_refreshes_what_is_not_handled: bool
    the_refresh_is_committed_with_the_cursor: bool

    def protocol(self, state: State) -> Iterator[Step[State]]:
        if not state.leads:
            yield "a process leads", self._led(state)
        elif state.has_kafka:
            yield from self._publish(state)
        elif state.sent < state.commits:
            change = state.sent + 1
            successor = state._replace(read_to=change, sent=change, written_changes=state.written_changes | 1 << change)
            yield f"the leader writes change {change}", successor
        elif state.sent > state.cursor:
            notes = (*state.notes, (state.sent, 0))
            yield "the leader saves the cursor", state._replace(cursor=state.sent, notes=notes)
        if state.has_kafka:
            yield from self._work(state)

    # The leader

    def _led(self, state: State) -> State:
        led = state._replace(leads=True, read_to=state.cursor, sent=state.cursor, last_number=state.saved)
        if state.has_kafka or state.saved <= state.handled:
            return led
        # The note without numbers counts as handled.
        covered = state.commits if self.off_refreshes_what_is_not_handled else state.covered
        return led._replace(covered=covered, saved=state.handled, last_number=state.handled)

    def _publish(self, state: State) -> Iterator[Step[State]]:
        if state.read_to == state.cursor == state.sent and state.commits > state.cursor:
            yield "the relay reads the outbox", state._replace(read_to=state.commits)
        elif state.sent < state.read_to:
            yield f"the relay sends change {state.sent + 1}", self._sent(state, state.sent + 1)
        elif state.read_to > state.cursor or state.last_number > state.saved:
            notes = (*state.notes, (state.read_to, state.last_number))
            yield (
                "the relay saves the cursor",
                state._replace(cursor=state.read_to, saved=state.last_number, notes=notes),
            )
        elif self._is_quiet(state) and self.a_quiet_partition_gets_an_empty_record:
            yield "the relay sends an empty record", self._sent(state, 0)

    @staticmethod
    def _is_quiet(state: State) -> bool:
        """Whether an empty record would show something new; others would only make more states."""
        return state.number == state.handled < state.saved and state.position == len(state.log)

    def _sent(self, state: State, change: int) -> State:
        is_first = state.last_number == state.saved
        number = (state.used if self.numbers_are_never_reused else state.last_number) + 1
        previous = 0 if is_first and not self.a_new_leader_names_what_was_saved else state.last_number
        return state._replace(
            log=(*state.log, Record(number, previous, change)),
            sent=change or state.sent,
            last_number=number,
            used=max(number, state.used),
        )

    # The worker

    def _work(self, state: State) -> Iterator[Step[State]]:
        if state.position < 0:
            yield "a worker begins", state._replace(position=state.offset, number=state.handled)
        elif state.position > len(state.log):
            yield "the worker finds that its offset is gone, and begins with the oldest", state._replace(position=0)
        elif state.position < len(state.log):
            yield self._handle(state, state.log[state.position])
        if state.position >= 0 and state.number > state.handled:
            saved = state._replace(offset=state.position, handled=state.number)
            yield "the worker saves its progress", saved

    def _handle(self, state: State, record: Record) -> Step[State]:
        if record.previous > state.number and self.a_record_names_the_one_before:
            # All that was published so far is covered, also what other partitions have lost.
            number = max(record.previous, state.saved)
            counted = state._replace(number=number, handled=max(state.handled, number))
            if self.the_refresh_is_committed_with_the_number:
                return "the worker meets a gap, and creates a refresh", counted._replace(covered=state.commits)
            return "the worker meets a gap, and dies", counted._replace(position=-1, number=0)
        action = f"change {record.change}" if record.change else "an empty record"
        return f"the worker handles {action}", state._replace(
            position=state.position + 1,
            number=max(state.number, record.number),
            written_changes=state.written_changes | 1 << record.change if record.change else state.written_changes,
        )

    # The world

    def world(self, state: State) -> Iterator[Step[State]]:
        if state.commits < _COMMITS:
            yield f"change {state.commits + 1} is committed", state._replace(commits=state.commits + 1)
        without_leader = state._replace(leads=False, read_to=0, sent=0, last_number=0)
        if state.leads and state.deaths:
            yield "the leader dies", without_leader._replace(deaths=state.deaths - 1)
        if state.leads and state.backlogs and state.commits > state.cursor:
            # What it had in hand is dropped, so it is as if it died and led again.
            cursor = without_leader._replace(
                cursor=state.commits, notes=(*state.notes, (state.commits, state.saved)), backlogs=state.backlogs - 1
            )
            if self.the_refresh_is_committed_with_the_cursor:
                yield "the leader gives up the backlog, and creates a refresh", cursor._replace(covered=state.commits)
            else:
                yield "the leader gives up the backlog, and dies", cursor
        if state.position >= 0:
            yield "the worker dies", state._replace(position=-1, number=0)
        if state.losses:
            for end in range(len(state.log)):
                fewer = state._replace(log=state.log[:end], losses=state.losses - 1)
                yield f"Kafka loses all records from offset {end} on", fewer
        if state.switches:
            restarted = without_leader._replace(position=-1, number=0)
            switched = restarted._replace(has_kafka=not state.has_kafka, switches=state.switches - 1)
            yield f"Kafka is turned {'off' if state.has_kafka else 'on'}", switched

    def wrong(self, state: State) -> str | None:
        for cursor, number in state.notes:
            if number <= state.handled and (missing := _missing(state, cursor)):
                return f"change {missing} counts as handled, and is neither written nor covered by a refresh"
        return None

    def unequal(self, state: State) -> str | None:
        missing = _missing(state, state.commits)
        return f"change {missing} was never handled, and no refresh covers it" if missing else None


def _missing(state: State, cursor: int) -> int:
    return next(
        (change for change in range(state.covered + 1, cursor + 1) if not state.written_changes & 1 << change), 0
    )
