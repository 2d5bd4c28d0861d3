"""The leader: the session that holds the advisory lock of the process that reads the outbox.

Postgres ends the session of a leader that sends no statement for `LEASE_SECONDS`, as if its process were stopped. Its
lock is free then, and it cannot save its cursor any more. A thread of the leader sends one every few seconds, however
long its work takes; it stands still with its process.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass

import psycopg

from syncer.base.postgres import AdvisoryLock, Connection

LEASE_SECONDS = 15.0
"""How long a leader may send nothing to Postgres. Then another process leads."""
LEADS = threading.Event()
"""Whether this process leads; the daemon reports it."""
LEADER = f"""
SELECT a.pid AS process, a.application_name AS name, host(a.client_addr) AS address,
       extract(epoch FROM now() - a.backend_start)::float8 AS seconds
FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
  AND (l.classid::bigint << 32 | l.objid::bigint) = {AdvisoryLock.RELAY:d}
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND has_any_column_privilege(a.usesysid, 'syncer.job', 'UPDATE') -- any login may take the lock, and leads nothing
"""  # noqa: S608 - a constant of ours
"""The query that returns the fields of a `Leader`, if there is one."""
# Not idle_in_transaction_session_timeout: while Kafka keeps a leader from reading what the server has sent, it can send
# nothing either.
_HOLD = "SELECT set_config('idle_session_timeout', $1, false)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """The leading process.

    Args:
        process: The process id of its connection in Postgres.
        name: As ``pg_stat_activity`` shows it.
        address: The address that it connects from; None on a local socket.
        seconds: How long it has been connected; None if this role may not see that.
    """

    process: int
    name: str
    address: str | None
    seconds: float | None


def find(connection: Connection) -> Leader | None:
    """The leading process; None if none leads."""
    row = connection.execute(LEADER).fetchone()
    if row is None:
        return None
    process, name, address, seconds = row
    return Leader(process=process, name=name, address=address, seconds=seconds)


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
