"""Losing: Kafka loses records that it had acknowledged, and no change is passed over.

One partition. A record is in the log as soon as it is sent, so a worker may handle it before the relay receives the
acknowledgement. Kafka loses a record together with all after it. New records then take their offsets, while the offset
of a worker still counts the lost ones.

The model does not have Kafka's leader epochs, by which a worker often notices that the log was overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Rule, Step

COMPARES_ENDS = Rule(
    name="an-end-that-falls-back-is-a-loss",
    says="a partition that ends before what Kafka had acknowledged has lost records",
    kept_by="syncer.recovery.lost_records",
    otherwise="the lost changes are never handled",
)
NOTICES_OFFSETS = Rule(
    name="an-offset-acknowledged-twice-is-a-loss",
    says="an acknowledgement of an offset that was acknowledged before means that records are lost",
    kept_by="syncer.kafka.producer",
    otherwise="the relay publishes into the gap, and saves that as its new end",
)
COUNTS_ALL = Rule(
    name="what-is-there-counts-as-acknowledged",
    says="for a new leader, the records that it finds in the topic count as acknowledged",
    kept_by="syncer.relay.loop",
    otherwise="records that a relay sent and did not save are lost without notice, and a worker had handled them",
)
MADE_UP_FIRST = Rule(
    name="make-up-before-saving",
    says="every document is due to be written again before the offsets of lost records are filled and saved",
    kept_by="syncer.relay.loop",
    otherwise="a relay that dies in between leaves an end that shows no loss",
)
MADE_UP_BY_POSITION = Rule(
    name="made-up-for-by-position",
    says="a relay that could not fill the offsets of lost records does not make up again for those before the same end",
    kept_by="syncer.relay.loop",
    otherwise="records that are lost later count as made up for",
)
FILLS = Rule(
    name="fill-the-offsets-of-lost-records",
    says="the relay fills the offsets of lost records with empty ones",
    kept_by="syncer.kafka.producer",
    otherwise="a worker that had handled the lost records passes over the changes at their offsets",
)
FILLS_BEYOND = Rule(
    name="fill-what-was-not-acknowledged",
    says="it fills as many offsets beyond as it may have records without an acknowledgement",
    kept_by="syncer.kafka.producer",
    otherwise="a worker that had handled a record before its acknowledgement passes over a change",
)

_DOWN, _LEADS, _SENT, _LOST, _MADE_UP, _FILLED = range(6)
_EMPTY = 0


class Losing(NamedTuple):
    """Everything. Changes are numbered from 1; sets of them are bits.

    Args:
        commits: How many changes are committed.
        log: The change in each record; 0 is an empty one.
        relay: What it does.
        seen: Up to which change it has read the outbox.
        sent: Which of these changes are acknowledged.
        sending: The change whose record is not acknowledged.
        at: The offset of that record.
        end: The offset after the last acknowledged record.
        owes: The offset before which records are known to be lost; 0 if none is.
        cursor: Up to which change everything is saved as published.
        saved_end: The end as saved.
        made: The end before which a relay that still runs has made up for lost records. It is never forgotten, though
            other relays may have led since.
        covered: Up to which change a refresh covers all.
        position: The worker's next offset; -1 if there is no worker.
        committed: The offset that it has committed.
        handled: Which changes were handled.
        losses: How often Kafka may still lose records.
        deaths: How often the relay may still die.
    """

    commits: int
    log: tuple[int, ...]
    relay: int
    seen: int
    sent: int
    sending: int
    at: int
    end: int
    owes: int
    cursor: int
    saved_end: int
    made: int
    covered: int
    position: int
    committed: int
    handled: int
    losses: int
    deaths: int


class LosingModel(Model[Losing]):
    """Nothing is passed over."""

    name = "losing"
    about = "whatever Kafka loses of what it had acknowledged, every change is handled, or a refresh covers it"
    rules = (
        COMPARES_ENDS,
        NOTICES_OFFSETS,
        COUNTS_ALL,
        MADE_UP_FIRST,
        MADE_UP_BY_POSITION,
        FILLS,
        FILLS_BEYOND,
    )
    beyond = {  # noqa: RUF012 - as in every model
        "both-at-once": "Kafka loses records, and the relay dies before it makes up for that, after it has published "
        "into the gap, or before it has saved them as published though a worker has handled them"
    }

    def prepare(self) -> None:
        self._commits, self._losses, self._deaths = (2, 2, 2) if self.is_large else (2, 2, 1)

    @property
    def bounds(self) -> str:
        return (
            f"{self._commits} changes, losses: {self._losses}, deaths of the relay: {self._deaths}, any of the worker"
        )

    def initial(self) -> Losing:
        return Losing(
            commits=0,
            log=(),
            relay=_DOWN,
            seen=0,
            sent=0,
            sending=0,
            at=0,
            end=0,
            owes=0,
            cursor=0,
            saved_end=0,
            made=0,
            covered=0,
            position=-1,
            committed=0,
            handled=0,
            losses=self._losses,
            deaths=self._deaths,
        )

    def protocol(self, state: Losing) -> Iterator[Step[Losing]]:
        if state.relay == _DOWN:
            yield "a relay leads", self._led(state)
        elif state.relay == _LEADS:
            yield from self._lead(state)
        elif state.relay == _SENT:
            yield from self._await(state)
        else:
            yield from self._make_up(state)
        yield from self._work(state)

    # The relay

    def _led(self, state: Losing) -> Losing:
        # Rule what-is-there-counts-as-acknowledged: `Relay._looked_after`.
        is_more = len(state.log) > state.saved_end and self.keeps(COUNTS_ALL)
        end = len(state.log) if is_more else state.saved_end
        # Rule an-end-that-falls-back-is-a-loss: `fallen_back`.
        is_lost = len(state.log) < end and self.keeps(COMPARES_ENDS)
        return state._replace(
            relay=_LOST if is_lost else _LEADS, seen=state.cursor, end=end, owes=end if is_lost else 0
        )

    def _lead(self, state: Losing) -> Iterator[Step[Losing]]:
        if state.seen == state.cursor:
            if len(state.log) < state.end and self.keeps(COMPARES_ENDS):
                yield "the relay looks at the end", state._replace(relay=_LOST, owes=state.end)
            elif state.commits > state.cursor:
                yield "the relay reads the outbox", state._replace(seen=state.commits)
            return
        left = [one for one in range(state.cursor + 1, state.seen + 1) if not state.sent & 1 << one]
        for one in left:
            after = state._replace(relay=_SENT, sending=one, at=len(state.log), log=(*state.log, one))
            yield f"the relay sends change {one}", after
        if not left and state.owes:
            yield "the relay has noticed a loss", state._replace(relay=_LOST)
        elif not left:
            after = state._replace(cursor=state.seen, saved_end=state.end, sent=0)
            yield "the relay saves the cursor", after

    def _await(self, state: Losing) -> Iterator[Step[Losing]]:
        if state.at < len(state.log) and state.log[state.at] == state.sending:
            # Rule an-offset-acknowledged-twice-is-a-loss: `ChangeProducer._delivered`.
            is_loss = state.at < state.end and self.keeps(NOTICES_OFFSETS)
            yield (
                f"change {state.sending} is acknowledged",
                state._replace(
                    relay=_LEADS,
                    sent=state.sent | 1 << state.sending,
                    end=state.at + 1,
                    owes=max(state.owes, state.end) if is_loss else state.owes,
                    sending=0,
                    at=0,
                ),
            )
        else:
            after = state._replace(at=len(state.log), log=(*state.log, state.sending))
            yield f"the relay sends change {state.sending} again", after

    def _make_up(self, state: Losing) -> Iterator[Step[Losing]]:
        # Rule make-up-before-saving: `Relay._heed`.
        if state.relay == _LOST and self.keeps(MADE_UP_FIRST):
            made_up = state._replace(relay=_MADE_UP, made=state.owes, covered=state.commits)
            yield "the relay has all written again", made_up
            # Rule made-up-for-by-position: `Relay._is_made_up`.
            if state.made == state.owes or (state.made and not self.keeps(MADE_UP_BY_POSITION)):
                yield "the relay has made up for that before", state._replace(relay=_MADE_UP)
        elif state.relay in (_LOST, _MADE_UP):
            yield "the relay fills the gap", self._filled(state)._replace(relay=_FILLED)
        else:
            covered = state.covered if self.keeps(MADE_UP_FIRST) else state.commits
            saved = state._replace(saved_end=state.end, owes=0)
            if self.keeps(MADE_UP_FIRST):
                yield "the relay saves the end", saved._replace(relay=_LEADS)
            elif saved.saved_end != state.saved_end:
                yield "the relay saves the end", saved._replace(relay=_FILLED)
            else:
                yield "the relay has all written again", saved._replace(relay=_LEADS, covered=covered)

    def _filled(self, state: Losing) -> Losing:
        # Rules fill-the-offsets-of-lost-records, fill-what-was-not-acknowledged: `ChangeProducer.fill_up`.
        beyond = 1 if self.keeps(FILLS_BEYOND) else 0
        missing = max(0, state.owes + beyond - len(state.log)) if self.keeps(FILLS) else 0
        log = state.log + (_EMPTY,) * missing
        return state._replace(log=log, end=len(log))

    # The worker

    def _work(self, state: Losing) -> Iterator[Step[Losing]]:
        end = len(state.log)
        at = state.committed if state.position < 0 else state.position
        if at > end:
            moved = state._replace(covered=state.commits, position=end, committed=end)
            yield "the worker finds that its offset is gone, and has all written again", moved
        elif state.position < 0:
            yield "a worker begins", state._replace(position=at)
        elif at < end:
            change = state.log[at]
            what = f"change {change}" if change else "an empty record"
            handled = state.handled | 1 << change if change else state.handled
            yield f"the worker handles {what}", state._replace(position=at + 1, handled=handled)
        if state.position >= 0 and state.position != state.committed and at <= end:
            yield "the worker commits its offset", state._replace(committed=state.position)

    # The world

    def world(self, state: Losing) -> Iterator[Step[Losing]]:
        if state.commits < self._commits:
            yield f"change {state.commits + 1} is committed", state._replace(commits=state.commits + 1)
        is_bearable = not self._is_loss_hidden(state) or "both-at-once" in self.allowed
        gone = state._replace(relay=_DOWN, seen=0, sent=0, sending=0, at=0, end=0, owes=0)
        if state.relay != _DOWN and state.deaths and is_bearable:
            yield "the relay dies", gone._replace(deaths=state.deaths - 1)
        if state.relay == _MADE_UP and is_bearable:
            yield "Kafka does not accept the empty records", gone
        if state.position >= 0:
            yield "the worker dies", state._replace(position=-1)
        is_bearable = state.relay != _DOWN or len(state.log) <= state.saved_end or "both-at-once" in self.allowed
        if state.losses and is_bearable:
            for end in range(len(state.log)):
                fewer = state._replace(log=state.log[:end], losses=state.losses - 1)
                yield f"Kafka loses all records from offset {end} on", fewer

    def _is_loss_hidden(self, state: Losing) -> bool:
        """Whether records are lost, and the next relay would not see that: the end is where it was saved, or beyond."""
        is_sent = state.relay == _SENT
        top = max(state.end, state.owes, state.at + 1 if is_sent else 0)
        is_lost = state.owes > 0 or top > len(state.log) or (is_sent and state.at < state.end)
        return is_lost and (top > state.saved_end or len(state.log) >= state.saved_end)

    def unequal(self, state: Losing) -> str | None:
        for one in range(state.covered + 1, state.commits + 1):
            if not state.handled & 1 << one:
                return f"change {one} was never handled, and no refresh covers it"
        return None
