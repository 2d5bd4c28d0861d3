"""Relaying: from the outbox to the topic, at least once, however transactions overlap and whichever process dies.

A transaction gets its xid when it begins and its row's id when it writes the row. It becomes visible when it commits.
These are three different orders. The cursor is a snapshot: it has not seen the transactions that had not begun when it
was taken, or were in progress. A database that is dumped and restored elsewhere brings its rows and its cursor along,
but its transaction numbers start again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Rule, Step, placed

BY_SNAPSHOT = Rule(
    name="the-cursor-is-a-snapshot",
    says="the cursor is a snapshot, not the last id or a time",
    kept_by="syncer.capture.outbox",
    otherwise="a transaction that takes its id early and commits late is skipped",
)
ONE_SNAPSHOT = Rule(
    name="the-cursor-is-what-was-read",
    says="the rows and the next cursor come from one snapshot",
    kept_by="syncer.capture.outbox",
    otherwise="a change that commits between reading the rows and taking the cursor is skipped",
)
ACKNOWLEDGED_FIRST = Rule(
    name="save-after-acknowledgement",
    says="the relay saves the cursor only after Kafka has acknowledged every record",
    kept_by="syncer.relay.loop",
    otherwise="a relay that dies in between loses the changes",
)
OWN_CURSOR = Rule(
    name="no-cursor-of-another-cluster",
    says="the relay does not use a cursor that another cluster saved; it treats every row as new",
    kept_by="syncer.capture.outbox",
    otherwise="the new cluster's transactions have lower numbers than the cursor, and are never published",
)
LOCKED_TRIM = Rule(
    name="trim-under-a-lock",
    says="the relay removes rows only while no transaction writes to their segment and the cursor has seen them all",
    kept_by="syncer.capture.outbox",
    otherwise="a row that is not yet committed is removed together with published ones",
)

_OPEN, _WRITTEN, _COMMITTED = range(3)
_DOWN, _LEADS, _READ, _PUBLISHED = range(4)


class Cursor(NamedTuple):
    """A pg_snapshot.

    Args:
        xmax: The first xid that had not begun.
        in_progress: The lower xids that were in progress.
        last_id: The highest id that was read; used only without the rule that the cursor is a snapshot.
    """

    xmax: int
    in_progress: tuple[int, ...]
    last_id: int = 0


class Transaction(NamedTuple):
    """A transaction that writes one change.

    Args:
        xid: Its number; after a restore, still the number from the old cluster.
        id: The id of its row; 0 until it writes the row.
        phase: Its phase.
        is_kept: Whether the row is still in the outbox.
        is_published: Whether the change is in the topic.
    """

    xid: int
    id: int = 0
    phase: int = _OPEN
    is_kept: bool = True
    is_published: bool = False


class Relaying(NamedTuple):
    """The state of the model.

    Args:
        transactions: All transactions, in the order in which they began.
        next_xid: The next xid.
        phase: What the relay does.
        cursor: The cursor that the relay uses.
        seen: The next cursor: what the relay has read and will save.
        rows: The transactions whose rows it has read.
        saved: The cursor in Postgres.
        durable: The cursor that survives a crash of Postgres; every synchronous commit makes the saved one durable.
        is_own: Whether this cluster saved the cursor.
        troubles: How many more times Postgres may crash, or be restored elsewhere.
    """

    transactions: tuple[Transaction, ...]
    next_xid: int
    phase: int
    cursor: Cursor
    seen: Cursor
    rows: tuple[int, ...]
    saved: Cursor
    durable: Cursor
    is_own: bool
    troubles: int


_NOTHING = Cursor(0, ())
_FOREIGN = Cursor(-1, ())


class RelayingModel(Model[Relaying]):
    """Publish, wait for the acknowledgement, save."""

    name = "relaying"
    about = "every committed change is published, however transactions overlap and whichever process dies"
    rules = (BY_SNAPSHOT, ONE_SNAPSHOT, ACKNOWLEDGED_FIRST, OWN_CURSOR, LOCKED_TRIM)

    def prepare(self) -> None:
        self._transactions = 4 if self.is_large else 3

    @property
    def bounds(self) -> str:
        troubles = "2 crashes or restores" if self.is_large else "a crash or a restore"
        return f"{self._transactions} transactions, {troubles} of Postgres, any crashes of the relay"

    def initial(self) -> Relaying:
        start = Cursor(1, ())
        return Relaying(
            transactions=(),
            next_xid=1,
            phase=_DOWN,
            cursor=_NOTHING,
            seen=_NOTHING,
            rows=(),
            saved=start,
            durable=start,
            is_own=True,
            troubles=2 if self.is_large else 1,
        )

    def protocol(self, state: Relaying) -> Iterator[Step[Relaying]]:
        if state.phase == _DOWN:
            yield self._lead(state)
        elif state.phase == _LEADS:
            yield from self._look(state)
        elif state.phase == _READ:
            said = " and ".join(f"transaction {at + 1}" for at in state.rows)
            transactions = tuple(
                one._replace(is_published=one.is_published or at in state.rows)
                for at, one in enumerate(state.transactions)
            )
            published = state._replace(phase=_PUBLISHED, transactions=transactions)
            # Rule save-after-acknowledgement: `Relay._publish`.
            after = published if self.keeps(ACKNOWLEDGED_FIRST) else self._rest(published)
            yield f"Kafka acknowledges the changes of {said}", after
        else:
            yield "the relay saves the cursor", self._rest(state._replace(saved=state.seen, is_own=True))

    def _lead(self, state: Relaying) -> Step[Relaying]:
        # Rule no-cursor-of-another-cluster: `Relay._begin`.
        if state.is_own or not self.keeps(OWN_CURSOR):
            return "the relay leads, from the saved cursor", state._replace(phase=_LEADS, cursor=state.saved)
        # The transaction that saves the cursor gives all visible rows its own xid.
        oldest = min(_in_progress(state), default=state.next_xid)
        cursor = Cursor(oldest, ())
        transactions = tuple(
            one._replace(xid=state.next_xid) if one.phase == _COMMITTED else one for one in state.transactions
        )
        after = state._replace(transactions=transactions, next_xid=state.next_xid + 1, phase=_LEADS, is_own=True)
        return "the relay leads, and makes every row a new change", after._replace(cursor=cursor, saved=cursor)

    def _look(self, state: Relaying) -> Iterator[Step[Relaying]]:
        last_id = max((one.id for one in state.transactions if one.phase == _COMMITTED), default=0)
        seen = Cursor(state.next_xid, _in_progress(state), 0 if self.keeps(BY_SNAPSHOT) else last_id)
        rows = tuple(at for at, one in enumerate(state.transactions) if self._is_new(one, state.cursor))
        if rows:
            said = " and ".join(f"transaction {at + 1}" for at in rows)
            # Rule the-cursor-is-what-was-read: `outbox._NEW` is one statement.
            taken = seen if self.keeps(ONE_SNAPSHOT) else _NOTHING
            after = state._replace(phase=_READ, rows=rows, seen=taken)
            if not self.keeps(ACKNOWLEDGED_FIRST):
                after = after._replace(saved=taken, is_own=True)
            yield f"the relay reads the changes of {said}", after
        elif seen != state.cursor:
            yield "the relay finds nothing new", state._replace(cursor=seen)
        is_written = any(one.phase == _WRITTEN for one in state.transactions)
        kept = [one for one in state.transactions if one.is_kept and one.phase == _COMMITTED]
        # Rule trim-under-a-lock: `outbox._truncate_seen` locks a segment before it looks.
        if kept and not rows and not (is_written and self.keeps(LOCKED_TRIM)):
            transactions = tuple(one._replace(is_kept=one.phase == _OPEN) for one in state.transactions)
            yield "the relay removes seen rows", state._replace(transactions=transactions, durable=_lasting(state))

    def _is_new(self, one: Transaction, cursor: Cursor) -> bool:
        if one.phase != _COMMITTED or not one.is_kept:
            return False
        # Rule the-cursor-is-a-snapshot: `outbox._UNSEEN`.
        if self.keeps(BY_SNAPSHOT):
            return one.xid >= cursor.xmax or one.xid in cursor.in_progress
        return one.id > cursor.last_id

    def _rest(self, state: Relaying) -> Relaying:
        seen = state.seen
        if not self.keeps(ONE_SNAPSHOT):
            seen = Cursor(state.next_xid, _in_progress(state))
        saved = seen if state.saved == state.seen else state.saved
        return state._replace(phase=_LEADS, cursor=seen, saved=saved, seen=_NOTHING, rows=())

    def world(self, state: Relaying) -> Iterator[Step[Relaying]]:
        if len(state.transactions) < self._transactions:
            began = (*state.transactions, Transaction(xid=state.next_xid))
            yield (
                f"transaction {len(began)} begins, as xid {state.next_xid}",
                state._replace(transactions=began, next_xid=state.next_xid + 1),
            )
        for at, one in enumerate(state.transactions):
            if one.phase == _OPEN:
                number = 1 + max(other.id for other in state.transactions)
                written = one._replace(id=number, phase=_WRITTEN)
                yield f"transaction {at + 1} writes row {number}", _with(state, at, written)
            elif one.phase == _WRITTEN:
                committed = _with(state, at, one._replace(phase=_COMMITTED))
                yield f"transaction {at + 1} commits", committed._replace(durable=_lasting(state))
        if state.phase != _DOWN:
            yield "the relay is killed", _down(state)
        if state.troubles:
            crashed = _rolled_back(_down(state))
            said = "Postgres crashes: open transactions are rolled back, and the last cursor may be lost"
            if state.durable == _FOREIGN:
                crashed = crashed._replace(is_own=False)
            else:
                crashed = crashed._replace(saved=state.durable)
            yield said, crashed._replace(troubles=state.troubles - 1)
            restored = _rolled_back(_down(state))._replace(next_xid=1, is_own=False, troubles=state.troubles - 1)
            yield "Postgres is dumped and restored into another cluster", restored._replace(durable=_FOREIGN)

    def unequal(self, state: Relaying) -> str | None:
        for at, one in enumerate(state.transactions):
            if one.phase == _COMMITTED and not one.is_published:
                return f"the change of transaction {at + 1} is never published"
        return None


def _lasting(state: Relaying) -> Cursor:
    """Return the cursor on disk if everything written until now is flushed."""
    return state.saved if state.is_own else _FOREIGN


def _in_progress(state: Relaying) -> tuple[int, ...]:
    return tuple(sorted(one.xid for one in state.transactions if one.phase != _COMMITTED))


def _with(state: Relaying, at: int, one: Transaction) -> Relaying:
    return state._replace(transactions=placed(state.transactions, at, one))


def _down(state: Relaying) -> Relaying:
    return state._replace(phase=_DOWN, cursor=_NOTHING, seen=_NOTHING, rows=())


def _rolled_back(state: Relaying) -> Relaying:
    return state._replace(transactions=tuple(one for one in state.transactions if one.phase == _COMMITTED))
