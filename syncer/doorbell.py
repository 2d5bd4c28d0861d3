"""Doorbell: wakes the relay when somebody has written to the outbox, and costs next to nothing while it is awake.

NOTIFY takes a lock of the whole database when its transaction commits, so that writers commit one after the other. So
nobody notifies while the relay looks by itself, which it does under traffic. Who has to is told by one advisory lock:

    the relay    holds it, exclusively, exactly while it sleeps; it never waits for it
    a writer     asks for it, shared, after its INSERT; it never waits either
                 got it: nobody sleeps. Nothing is said, and the lock is kept until the transaction ends
                 did not get it: somebody sleeps. NOTIFY, which is sent when the transaction commits

Guarantees that no wake-up is lost: whoever got the lock keeps the relay from going to sleep until its transaction has
ended; and a transaction ends for snapshots first and gives its locks back then, so that the relay, which looks at the
outbox once more when it has the lock, sees what was written. Whoever did not get it notifies, and the relay has been
listening since before. If no relay sleeps, or none is alive, the lock is free, and nobody notifies.

A write never fails for the doorbell's sake:

- a transaction that has notified cannot be prepared (PREPARE TRANSACTION). Where the server allows prepared
  transactions at all the relay does not sleep, so that nobody notifies;
- NOTIFY fails when its queue is full, which a session that listens and never ends its transaction may cause. Long
  before that the relay does not sleep, and no writer notifies;
- the lock is one more in the server's table of locks. If that is full, the writer does without; should the relay be
  going to sleep at that very moment, the look that it takes all the same finds what was written.

Not guaranteed: that a transaction that has notified can commit while the table of locks is full. NOTIFY needs a place
in it; but so does every transaction that writes anything, and none can begin then.

A table whose function is from before there was a doorbell rings none: while there is one the relay does not sleep.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from syncer.postgres import AdvisoryLock, Connection, value

CHANNEL = "syncer_doorbell"

_QUEUE_SHARE_TO_SLEEP = 0.25
_QUEUE_SHARE_TO_RING = 0.5
_PIECE_SECONDS = 0.2

# For whoever has just written to the outbox; it is the same in PL/pgSQL.
_MUST_RING = f"""
    NOT pg_catalog.pg_try_advisory_xact_lock_shared({AdvisoryLock.DOORBELL:d})
    AND pg_catalog.pg_notification_queue_usage() < {_QUEUE_SHARE_TO_RING}
"""
RING = f"SELECT pg_catalog.pg_notify('{CHANNEL}', '') WHERE {_MUST_RING}"
RING_IN_TRIGGER = f"""
    BEGIN
        IF FOUND AND {_MUST_RING} THEN
            PERFORM pg_catalog.pg_notify('{CHANNEL}', '');
        END IF;
    EXCEPTION WHEN out_of_memory THEN
        NULL;
    END;
"""

_LISTEN = f"LISTEN {CHANNEL}"
# The lock is asked for last, and only if all else is well.
_LIE_DOWN = f"""
SELECT CASE
    WHEN current_setting('max_prepared_transactions') <> '0'
      OR pg_notification_queue_usage() >= {_QUEUE_SHARE_TO_SLEEP}
      OR EXISTS (SELECT FROM syncer.capture AS c
                 JOIN pg_trigger AS t ON t.tgrelid = to_regclass(c.relation)
                 JOIN pg_proc AS p ON p.oid = t.tgfoid AND p.pronamespace = 'syncer'::regnamespace
                 WHERE position('{CHANNEL}' IN p.prosrc) = 0)
    THEN false
    ELSE pg_try_advisory_lock({AdvisoryLock.DOORBELL:d})
END
"""  # noqa: S608 - of constants
_GET_UP = f"SELECT pg_advisory_unlock({AdvisoryLock.DOORBELL:d})"


def listen(connection: Connection) -> None:
    """Be told of every ring from now on."""
    connection.execute(_LISTEN)


def lie_down(connection: Connection) -> bool:
    """Have every writer ring from now on.

    What was written before may be visible only now: look once more before you `wait`.

    Returns:
        Whether that is so. If not, somebody is writing who will not ring, or the server, or a table, is not fit for it.
    """
    return bool(value(connection, _LIE_DOWN))


def wait(connection: Connection, *, seconds: float, is_over: Callable[[], bool]) -> bool:
    """Wait for a ring, for so long, or until it is over; whether it rang."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0 and not is_over():
        for _ in connection.notifies(timeout=min(left, _PIECE_SECONDS), stop_after=1):
            return True
    return False


def get_up(connection: Connection) -> None:
    """Have nobody ring; to be done before the outbox is read."""
    connection.execute(_GET_UP)
