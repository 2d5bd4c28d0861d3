"""The leading relay: the session that holds the relay's advisory lock.

Postgres ends the session of a leader that sends no statement for `LEASE_SECONDS`, as if its process were stopped. Its
lock is free then, and it cannot save its cursor any more. So a leader sends one at least every sixth of that, also
while it waits for Kafka.
"""

from __future__ import annotations

from dataclasses import dataclass

from syncer.base.postgres import AdvisoryLock, Connection

LEASE_SECONDS = 15.0
"""How long a leader may send nothing to Postgres. Then another relay leads."""
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
    """The leading relay.

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
    """The leading relay; None if none leads."""
    row = connection.execute(LEADER).fetchone()
    if row is None:
        return None
    process, name, address, seconds = row
    return Leader(process=process, name=name, address=address, seconds=seconds)


def hold(connection: Connection, *, seconds: float = LEASE_SECONDS) -> None:
    """Have Postgres end the session of this leader once it has sent nothing for so long."""
    connection.execute(_HOLD, (f"{seconds * 1000:.0f}ms",))
