"""The leader: the session that holds the advisory lock of the process that reads the outbox.

Postgres ends the session of a leader that sends no statement for `LEASE_SECONDS`, as if its process were stopped. Its
lock is free then, and it cannot save its cursor any more. A thread of the leader sends one every few seconds, however
long its work takes; it stands still with its process.
"""

from __future__ import annotations

import threading
from contextlib import suppress

import psycopg

from syncer.base.postgres import AdvisoryLock, Connection

LEASE_SECONDS = 15.0
"""How long a leader may send nothing to Postgres. Then another process leads."""
LEADS = threading.Event()
"""Whether this process leads; the daemon reports it."""
_FIND = f"""
SELECT a.pid FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
  AND (l.classid::bigint << 32 | l.objid::bigint) = {AdvisoryLock.RELAY:d}
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND has_any_column_privilege(a.usesysid, 'syncer.job', 'UPDATE') -- any login may take the lock, and leads nothing
"""
# Not idle_in_transaction_session_timeout: while Kafka keeps a leader from reading what the server has sent, it can send
# nothing either.
_HOLD = "SELECT set_config('idle_session_timeout', $1, false)"


def find(connection: Connection) -> int | None:
    """The session of the leading process; None if none leads."""
    row = connection.execute(_FIND).fetchone()
    return None if row is None else int(row[0])


class Lease:
    """Keeps a session alive that leads.

    Args:
        connection: The session. The thread uses it between the statements of its owner.
        seconds: How long Postgres waits for a statement before it ends the session.
    """

    def __init__(self, connection: Connection, *, seconds: float = LEASE_SECONDS) -> None:
        connection.execute(_HOLD, (f"{seconds * 1000:.0f}ms",))
        self._connection = connection
        self._is_over = threading.Event()
        self._every_seconds = seconds / 6
        threading.Thread(target=self._renew, name="lease", daemon=True).start()

    def end(self) -> None:
        """Renew it no more."""
        self._is_over.set()

    def _renew(self) -> None:
        while not self._is_over.wait(self._every_seconds):
            with suppress(psycopg.Error):  # its owner meets it too
                self._connection.execute("SELECT")
