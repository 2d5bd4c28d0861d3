"""Relaying: from the outbox to the topic, at least once, however transactions overlap and whichever process dies.

A transaction gets its xid when it begins and its row's id when it writes the row. It becomes visible when it commits.
These are three different orders. The cursor is a snapshot: it has not seen the transactions that had not begun when it
was taken, or were in progress. A database that is dumped and restored elsewhere brings its rows and its cursor along,
but its transaction numbers start again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Step, put

_OPEN, _WRITTEN, _COMMITTED = range(3)
_DOWN, _LEADS, _READ, _PUBLISHED = range(4)
_TRANSACTIONS = 3


class Cursor(NamedTuple):
    """A pg_snapshot; the last id is used only without the rule that the cursor is a snapshot."""

    xmax: int  # the first xid that had not begun
    in_progress: tuple[int, ...]
    last_id: int = 0


_NOTHING = Cursor(0, ())
_FOREIGN = Cursor(-1, ())


class Transaction(NamedTuple):
    """A transaction that writes one change."""

    xid: int  # after a restore, still the number from the old cluster
    id: int = 0  # of its row; 0 until it writes the row
    phase: int = _OPEN
    is_kept: bool = True  # the row, in the outbox
    is_published: bool = False


class State(NamedTuple):
    """The state of the model."""

    transactions: tuple[Transaction, ...] = ()  # in the order in which they began
    next_xid: int = 1
    phase: int = _DOWN  # of the relay
    cursor: Cursor = _NOTHING  # that the relay uses
    next_cursor: Cursor = _NOTHING  # the next cursor: what the relay has read and will save
    rows: tuple[int, ...] = ()  # the transactions whose rows it has read
    saved: Cursor = Cursor(1, ())  # in Postgres
    durable: Cursor = Cursor(1, ())  # survives a crash; every synchronous commit makes the saved one durable
    is_own: bool = True  # whether this cluster saved the cursor
    troubles: int = 1  # how many more times Postgres may crash, or be restored elsewhere


class Relaying(Model[State]):
    """Every committed change is published, however transactions overlap and whichever process dies."""

    initial = State()
    bounds = f"{_TRANSACTIONS} transactions, a crash or a restore of Postgres, any crashes of the relay"

    the_cursor_is_a_snapshot: bool
    the_cursor_is_what_was_read: bool
    save_after_acknowledgement: bool
    no_cursor_of_another_cluster: bool
    trim_under_a_lock: bool

    def protocol(self, state: State) -> Iterator[Step[State]]:
        if state.phase == _DOWN:
            yield self._lead(state)
        elif state.phase == _LEADS:
            yield from self._look(state)
        elif state.phase == _READ:
            transactions = tuple(
                transaction._replace(is_published=transaction.is_published or slot in state.rows)
                for slot, transaction in enumerate(state.transactions)
            )
            published = state._replace(phase=_PUBLISHED, transactions=transactions)
            yield f"Kafka acknowledges the changes of {_names(state.rows)}", published
            if not self.save_after_acknowledgement:
                yield (
                    "the relay saves the cursor, and dies",
                    _down(state._replace(saved=state.next_cursor, is_own=True)),
                )
        else:
            yield "the relay saves the cursor", self._at_rest(state._replace(saved=state.next_cursor, is_own=True))

    def _lead(self, state: State) -> Step[State]:
        if state.is_own or not self.no_cursor_of_another_cluster:
            return "the relay leads, from the saved cursor", state._replace(phase=_LEADS, cursor=state.saved)
        # The transaction that saves the cursor gives all visible rows its own xid.
        cursor = Cursor(min(_in_progress(state), default=state.next_xid), ())
        transactions = tuple(
            transaction._replace(xid=state.next_xid) if transaction.phase == _COMMITTED else transaction
            for transaction in state.transactions
        )
        successor = state._replace(transactions=transactions, next_xid=state.next_xid + 1, phase=_LEADS, is_own=True)
        return "the relay leads, and makes every row a new change", successor._replace(cursor=cursor, saved=cursor)

    def _look(self, state: State) -> Iterator[Step[State]]:
        last_id = max(
            (transaction.id for transaction in state.transactions if transaction.phase == _COMMITTED), default=0
        )
        next_cursor = Cursor(state.next_xid, _in_progress(state), 0 if self.the_cursor_is_a_snapshot else last_id)
        rows = tuple(
            slot for slot, transaction in enumerate(state.transactions) if self._is_new(transaction, state.cursor)
        )
        if rows:
            saved_next = next_cursor if self.the_cursor_is_what_was_read else _NOTHING
            successor = state._replace(phase=_READ, rows=rows, next_cursor=saved_next)
            yield f"the relay reads the changes of {_names(rows)}", successor
        elif next_cursor != state.cursor:
            yield "the relay finds nothing new", state._replace(cursor=next_cursor)
        is_written = any(transaction.phase == _WRITTEN for transaction in state.transactions)
        is_kept = any(transaction.is_kept and transaction.phase == _COMMITTED for transaction in state.transactions)
        if is_kept and not rows and not (is_written and self.trim_under_a_lock):
            transactions = tuple(
                transaction._replace(is_kept=transaction.phase == _OPEN) for transaction in state.transactions
            )
            yield "the relay removes seen rows", state._replace(transactions=transactions, durable=_lasting(state))

    def _is_new(self, transaction: Transaction, cursor: Cursor) -> bool:
        if transaction.phase != _COMMITTED or not transaction.is_kept:
            return False
        if self.the_cursor_is_a_snapshot:
            return transaction.xid >= cursor.xmax or transaction.xid in cursor.in_progress
        return transaction.id > cursor.last_id

    def _at_rest(self, state: State) -> State:
        next_cursor = state.next_cursor
        if not self.the_cursor_is_what_was_read:
            next_cursor = Cursor(state.next_xid, _in_progress(state))
        saved = next_cursor if state.saved == state.next_cursor else state.saved
        return state._replace(phase=_LEADS, cursor=next_cursor, saved=saved, next_cursor=_NOTHING, rows=())

    def world(self, state: State) -> Iterator[Step[State]]:
        if len(state.transactions) < _TRANSACTIONS:
            begun = (*state.transactions, Transaction(xid=state.next_xid))
            successor = state._replace(transactions=begun, next_xid=state.next_xid + 1)
            yield f"transaction {len(begun)} begins, as xid {state.next_xid}", successor
        for slot, transaction in enumerate(state.transactions):
            if transaction.phase == _OPEN:
                number = 1 + max(transaction.id for transaction in state.transactions)
                inserted = put(state, "transactions", slot, transaction._replace(id=number, phase=_WRITTEN))
                yield f"transaction {slot + 1} writes row {number}", inserted
            elif transaction.phase == _WRITTEN:
                committed = put(state, "transactions", slot, transaction._replace(phase=_COMMITTED))
                yield f"transaction {slot + 1} commits", committed._replace(durable=_lasting(state))
        if state.phase != _DOWN:
            yield "the relay is killed", _down(state)
        if state.troubles:
            committed = _down(state)._replace(
                transactions=tuple(
                    transaction for transaction in state.transactions if transaction.phase == _COMMITTED
                ),
                troubles=state.troubles - 1,
            )
            lost = {"is_own": False} if state.durable == _FOREIGN else {"saved": state.durable}
            action = "Postgres crashes: open transactions are rolled back, and the last cursor may be lost"
            yield action, committed._replace(**lost)
            elsewhere = committed._replace(next_xid=1, is_own=False, durable=_FOREIGN)
            yield "Postgres is dumped and restored into another cluster", elsewhere

    def unequal(self, state: State) -> str | None:
        for slot, transaction in enumerate(state.transactions):
            if transaction.phase == _COMMITTED and not transaction.is_published:
                return f"the change of transaction {slot + 1} is never published"
        return None


def _lasting(state: State) -> Cursor:
    """Return the cursor on disk if everything written until now is flushed."""
    return state.saved if state.is_own else _FOREIGN


def _in_progress(state: State) -> tuple[int, ...]:
    return tuple(sorted(transaction.xid for transaction in state.transactions if transaction.phase != _COMMITTED))


def _down(state: State) -> State:
    return state._replace(phase=_DOWN, cursor=_NOTHING, next_cursor=_NOTHING, rows=())


def _names(rows: tuple[int, ...]) -> str:
    return " and ".join(f"transaction {slot + 1}" for slot in rows)
