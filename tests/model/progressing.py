"""Progressing: whatever Kafka loses, and whichever process dies, only what is handled or refreshed counts as handled.

One partition. Each record carries a number and the number of the record before it. The relay saves a note with its
cursor: the last number that belongs to it. The worker saves the greatest number that it has handled. A note counts as
handled once its number is. Kafka loses a record together with all after it; new records then take their offsets.

Kafka may be turned off, so that the leader writes the documents itself and saves the cursor, and on again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Rule, Step

NEVER_REUSED = Rule(
    name="numbers-are-never-reused",
    says="a leader takes numbers that no leader before it has used, saved or not",
    kept_by="syncer.capture.progress",
    otherwise="a record of a dead leader stands for another change, which counts as handled and is not",
)
CHAIN = Rule(
    name="a-record-names-the-one-before",
    says="a record whose predecessor has a greater number than the worker has handled means that records are lost",
    kept_by="syncer.kafka.consumer",
    otherwise="records that others replaced are passed over",
)
FROM_SAVED = Rule(
    name="a-new-leader-names-what-was-saved",
    says="the first record of a leader names the last one that was saved",
    kept_by="syncer.relay.loop",
    otherwise="a loss before a change of the leader is not noticed",
)
EMPTY_RECORD = Rule(
    name="a-quiet-partition-gets-an-empty-record",
    says="the relay sends an empty record if a partition has been quiet for a while",
    kept_by="syncer.relay.loop",
    otherwise="the loss of the last records is noticed only with the next change",
)
REFRESH_FIRST = Rule(
    name="the-refresh-is-committed-with-the-number",
    says="the number of what was lost counts as handled in the transaction that creates the refresh",
    kept_by="syncer.recovery.lost_records",
    otherwise="a worker that dies in between leaves a loss that is never noticed",
)
OFF_REFRESHES = Rule(
    name="off-refreshes-what-is-not-handled",
    says="if Kafka is turned off before all that was published is handled, every document is refreshed",
    kept_by="syncer.worker.source",
    otherwise="changes that only the topic has are never handled",
)


class Record(NamedTuple):
    """A record: its number, the number before it, and its change; 0 is none."""

    number: int
    previous: int
    change: int


class Progressing(NamedTuple):
    """Everything. Changes are numbered from 1; sets of them are bits.

    Args:
        commits: How many changes are committed.
        log: The records.
        has_kafka: Whether Kafka is used.
        leads: Whether a process leads.
        seen: Up to which change it has read the outbox.
        sent: Up to which change it has sent, or written without Kafka.
        last: The number that its last record has, or that was saved.
        used: The greatest number that was ever used.
        cursor: Up to which change the saved cursor is.
        saved: The last number that was saved with it.
        notes: The cursors that were saved, each with its number.
        position: The worker's next offset; -1 if there is no worker.
        number: The greatest number that it has handled.
        offset: The next offset that is saved.
        handled: The number that is saved.
        done: Which changes were written.
        covered: Up to which change a refresh covers all.
        owes: Whether a worker has yet to create a refresh.
        losses: How often Kafka may still lose records.
        deaths: How often a leader may still die.
        switches: How often Kafka may still be turned off or on.
    """

    commits: int = 0
    log: tuple[Record, ...] = ()
    has_kafka: bool = True
    leads: bool = False
    seen: int = 0
    sent: int = 0
    last: int = 0
    used: int = 0
    cursor: int = 0
    saved: int = 0
    notes: tuple[tuple[int, int], ...] = ()
    position: int = -1
    number: int = 0
    offset: int = 0
    handled: int = 0
    done: int = 0
    covered: int = 0
    owes: bool = False
    losses: int = 0
    deaths: int = 0
    switches: int = 0


class ProgressingModel(Model[Progressing]):
    """What counts as handled is written, or refreshed."""

    name = "progressing"
    about = (
        "whatever Kafka loses, and whichever process dies, what counts as handled is written, or a refresh covers it"
    )
    rules = (NEVER_REUSED, CHAIN, FROM_SAVED, EMPTY_RECORD, REFRESH_FIRST, OFF_REFRESHES)

    def prepare(self) -> None:
        self._commits, self._losses, self._deaths, self._switches = (3, 2, 2, 2) if self.is_large else (2, 2, 1, 1)

    @property
    def bounds(self) -> str:
        return (
            f"{self._commits} changes, losses: {self._losses}, deaths of a leader: {self._deaths}, any of the worker, "
            "Kafka turned off and on"
        )

    def initial(self) -> Progressing:
        return Progressing(losses=self._losses, deaths=self._deaths, switches=self._switches)

    def protocol(self, state: Progressing) -> Iterator[Step[Progressing]]:
        if not state.leads:
            yield "a process leads", self._led(state)
        elif state.has_kafka:
            yield from self._publish(state)
        else:
            yield from self._write(state)
        if state.has_kafka:
            yield from self._work(state)

    # The leader

    def _led(self, state: Progressing) -> Progressing:
        led = state._replace(leads=True, seen=state.cursor, sent=state.cursor, last=state.saved)
        if state.has_kafka or state.saved <= state.handled:
            return led
        # Rule off-refreshes-what-is-not-handled: the note without numbers counts as handled.
        covered = state.commits if self.keeps(OFF_REFRESHES) else state.covered
        return led._replace(covered=covered, saved=state.handled, last=state.handled)

    def _publish(self, state: Progressing) -> Iterator[Step[Progressing]]:
        if state.seen == state.cursor == state.sent and state.commits > state.cursor:
            yield "the relay reads the outbox", state._replace(seen=state.commits)
        elif state.sent < state.seen:
            yield f"the relay sends change {state.sent + 1}", self._sent(state, state.sent + 1)
        elif state.seen > state.cursor or state.last > state.saved:
            note = (state.seen, state.last)
            yield (
                "the relay saves the cursor",
                state._replace(cursor=state.seen, saved=state.last, notes=(*state.notes, note)),
            )
        # Rule a-quiet-partition-gets-an-empty-record. One that shows nothing new would only make more states.
        elif (
            state.number == state.handled < state.saved
            and state.position == len(state.log)
            and self.keeps(EMPTY_RECORD)
        ):
            yield "the relay sends an empty record", self._sent(state, 0)

    def _sent(self, state: Progressing, change: int) -> Progressing:
        is_first = state.last == state.saved
        # Rule numbers-are-never-reused: a term is never given twice.
        number = (state.used if self.keeps(NEVER_REUSED) else state.last) + 1
        # Rule a-new-leader-names-what-was-saved.
        previous = 0 if is_first and not self.keeps(FROM_SAVED) else state.last
        return state._replace(
            log=(*state.log, Record(number, previous, change)),
            sent=change or state.sent,
            last=number,
            used=max(number, state.used),
        )

    def _write(self, state: Progressing) -> Iterator[Step[Progressing]]:
        if state.sent < state.commits:
            change = state.sent + 1
            after = state._replace(seen=change, sent=change, done=state.done | 1 << change)
            yield f"the leader writes change {change}", after
        elif state.sent > state.cursor:
            yield (
                "the leader saves the cursor",
                state._replace(cursor=state.sent, notes=(*state.notes, (state.sent, 0))),
            )

    # The worker

    def _work(self, state: Progressing) -> Iterator[Step[Progressing]]:
        if state.owes:
            yield "the worker creates a refresh", state._replace(owes=False, covered=state.commits)
        elif state.position < 0:
            yield "a worker begins", state._replace(position=state.offset, number=state.handled)
        elif state.position > len(state.log):
            yield "the worker finds that its offset is gone, and begins with the oldest", state._replace(position=0)
        elif state.position < len(state.log):
            yield from self._handle(state, state.log[state.position])
        if state.position >= 0 and state.number > state.handled:
            saved = state._replace(offset=state.position, handled=state.number)
            yield "the worker saves its progress", saved

    def _handle(self, state: Progressing, record: Record) -> Iterator[Step[Progressing]]:
        # Rule a-record-names-the-one-before.
        if record.previous > state.number and self.keeps(CHAIN):
            counted = state._replace(number=record.previous, handled=max(state.handled, record.previous))
            # Rule the-refresh-is-committed-with-the-number.
            if self.keeps(REFRESH_FIRST):
                yield "the worker meets a gap, and creates a refresh", counted._replace(covered=state.commits)
            else:
                yield "the worker meets a gap", counted._replace(owes=True)
            return
        what = f"change {record.change}" if record.change else "an empty record"
        done = state.done | 1 << record.change if record.change else state.done
        yield (
            f"the worker handles {what}",
            state._replace(position=state.position + 1, number=max(state.number, record.number), done=done),
        )

    # The world

    def world(self, state: Progressing) -> Iterator[Step[Progressing]]:
        if state.commits < self._commits:
            yield f"change {state.commits + 1} is committed", state._replace(commits=state.commits + 1)
        if state.leads and state.deaths:
            yield "the leader dies", state._replace(leads=False, seen=0, sent=0, last=0, deaths=state.deaths - 1)
        if state.position >= 0:
            yield "the worker dies", state._replace(position=-1, number=0, owes=False)
        if state.losses:
            for end in range(len(state.log)):
                fewer = state._replace(log=state.log[:end], losses=state.losses - 1)
                yield f"Kafka loses all records from offset {end} on", fewer
        if state.switches:
            switched = state._replace(
                has_kafka=not state.has_kafka,
                leads=False,
                seen=0,
                sent=0,
                last=0,
                position=-1,
                number=0,
                owes=False,
                switches=state.switches - 1,
            )
            yield f"Kafka is turned {'off' if state.has_kafka else 'on'}", switched

    def wrong(self, state: Progressing) -> str | None:
        for cursor, number in state.notes:
            if number <= state.handled and (missing := self._missing(state, cursor)):
                return f"change {missing} counts as handled, and is neither written nor covered by a refresh"
        return None

    def unequal(self, state: Progressing) -> str | None:
        missing = self._missing(state, state.commits)
        return f"change {missing} was never handled, and no refresh covers it" if missing else None

    def _missing(self, state: Progressing, cursor: int) -> int:
        return next((one for one in range(state.covered + 1, cursor + 1) if not state.done & 1 << one), 0)
