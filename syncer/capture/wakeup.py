"""Wake-up: writers wake a relay that sleeps, and pay next to nothing for it while the relay is awake.

NOTIFY takes a lock of the whole database until its transaction has committed, so transactions that notify commit one
after the other. That is harmless while changes come one by one, and must not happen while writers overlap. One
advisory lock tells writers whether to notify:

    the relay    holds it, exclusively, exactly while it sleeps; it never waits for it
    a writer     asks for it, shared, after its INSERT; it never waits either
                 got it: no relay sleeps. The writer does not notify, and keeps the lock until its transaction ends
                 did not get it: a relay sleeps. The writer notifies, and Postgres delivers that after the commit

Guarantees that no wake-up is lost:

- A writer that got the lock keeps the relay from falling asleep until its transaction has ended. A transaction becomes
  visible before it releases its locks. So the relay, which looks at the outbox between taking the lock and waiting,
  sees what was written.
- A writer that did not get the lock notifies. The relay has been listening since before it took the lock, and looks
  after each notification, however long it keeps the lock. A notification that arrives during a look ends the next wait.
- If no relay sleeps, or none is alive, the lock is free, and no writer notifies.

A write never fails because of the wake-up:

- A transaction that has notified cannot be prepared (PREPARE TRANSACTION). If the server allows prepared
  transactions at all, the relay does not sleep, so no writer notifies.
- NOTIFY fails when its queue is full, which a session that listens and never ends its transaction may cause. Writers
  stop notifying long before that, and the relay no longer falls asleep.
- The lock is one more in the server's lock table. If that is full, the writer does without. If the relay is falling
  asleep at that moment, its next look finds the change.

Not guaranteed: that a transaction that has notified can commit while the lock table is full. NOTIFY needs an entry in
it; but so does every transaction that writes anything, and none can begin then.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from syncer.base.postgres import AdvisoryLock, Connection, value

CHANNEL = "syncer_wakeup"

_QUEUE_SHARE_TO_SLEEP = 0.25
_QUEUE_SHARE_TO_NOTIFY = 0.5
_PIECE_SECONDS = 0.2

# For a transaction that has just written to the outbox; it is the same in PL/pgSQL.
# Rule: the-lock-is-kept-to-the-end.
_MUST_NOTIFY = f"""
    NOT pg_catalog.pg_try_advisory_xact_lock_shared({AdvisoryLock.WAKEUP:d})
    AND pg_catalog.pg_notification_queue_usage() < {_QUEUE_SHARE_TO_NOTIFY}
"""
NOTIFY = f"SELECT pg_catalog.pg_notify('{CHANNEL}', '') WHERE {_MUST_NOTIFY}"
NOTIFY_IN_TRIGGER = f"""
    BEGIN
        IF FOUND AND {_MUST_NOTIFY} THEN
            PERFORM pg_catalog.pg_notify('{CHANNEL}', '');
        END IF;
    EXCEPTION WHEN out_of_memory THEN
        NULL;
    END;
"""

_LISTEN = f"LISTEN {CHANNEL}"
# The lock is taken last, and only if nothing else forbids it.
_SLEEP = f"""
SELECT CASE
    WHEN current_setting('max_prepared_transactions') <> '0'
      OR pg_notification_queue_usage() >= {_QUEUE_SHARE_TO_SLEEP}
    THEN false
    ELSE pg_try_advisory_lock({AdvisoryLock.WAKEUP:d})
END
"""
_WAKE = f"SELECT pg_advisory_unlock({AdvisoryLock.WAKEUP:d})"


def listen(connection: Connection) -> None:
    """Receive every notification from now on."""
    connection.execute(_LISTEN)


def sleep(connection: Connection) -> bool:
    """Make every writer notify from now on.

    What was written before may be visible only now: look at the outbox before you `wait`.

    Returns:
        False if a writer that will not notify is busy, or if the server does not allow it.
    """
    return bool(value(connection, _SLEEP))


def wait(connection: Connection, *, seconds: float, is_over: Callable[[], bool]) -> bool:
    """Wait for a notification, until the time is up or `is_over` returns true; return whether there was one."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0 and not is_over():
        # Rule: notifications-are-kept. Those that came during a query are returned first, all of them.
        if list(connection.notifies(timeout=min(left, _PIECE_SECONDS), stop_after=1)):
            return True
    return False


def wake(connection: Connection) -> None:
    """Make no writer notify from now on."""
    connection.execute(_WAKE)
