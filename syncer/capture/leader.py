"""The leading relay: the session that holds the relay's advisory lock, and which process led before it.

Postgres ends the session of a leader that sends no statement for `LEASE_SECONDS`, as if its process were stopped. Its
lock is free then, and it cannot save its cursor any more. So a leader sends one at least every sixth of that, also
while it waits for Kafka.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass

import psycopg
from psycopg.types.json import Jsonb

from syncer.base.postgres import AdvisoryLock, Connection
from syncer.capture import outbox

LEASE_SECONDS = 15.0
"""How long a leader may send nothing to Postgres. Then another relay leads."""
STOPPED = "it was stopped"
"""Why a leader ended if it was told to."""
LEADER = f"""
SELECT a.pid AS process, a.application_name AS name, host(a.client_addr) AS address,
       extract(epoch FROM now() - a.backend_start)::float8 AS seconds,
       CASE WHEN a.state = 'active' THEN 0
            ELSE extract(epoch FROM clock_timestamp() - a.state_change)::float8 END AS idle_seconds
FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
  AND (l.classid::bigint << 32 | l.objid::bigint) = {AdvisoryLock.RELAY:d}
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND has_any_column_privilege(a.usesysid, 'syncer.job', 'UPDATE') -- any login may take the lock, and leads nothing
"""  # noqa: S608 - a constant of ours
"""The query that returns the fields of a `Leader`, if there is one."""
_SILENT_SECONDS = LEASE_SECONDS / 2
"""A leader that was idle for longer when it was last seen has not ended by itself."""
# Not idle_in_transaction_session_timeout: while Kafka keeps a leader from reading what the server has sent, it can send
# nothing either.
_HOLD = "SELECT set_config('idle_session_timeout', $1, false)"
_SUCCEED = f"""
UPDATE syncer.relay_cursor AS c SET leader = $1 FROM {outbox.CURSOR} AS before
WHERE c.number = before.number RETURNING before.leader
"""  # noqa: S608 - a constant of ours
_RETIRE = f"""
UPDATE syncer.relay_cursor AS c SET leader = c.leader || $1 FROM {outbox.CURSOR} AS last
WHERE c.number = last.number
"""  # noqa: S608 - a constant of ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """The leading relay.

    Args:
        process: The process id of its connection in Postgres.
        name: As ``pg_stat_activity`` shows it.
        address: The address that it connects from; None on a local socket.
        seconds: How long it has been connected; None if this role may not see that.
        idle_seconds: How long ago its last statement ended; None likewise.
    """

    process: int
    name: str
    address: str | None
    seconds: float | None
    idle_seconds: float | None


def find(connection: Connection) -> Leader | None:
    """The leading relay; None if none leads."""
    row = connection.execute(LEADER).fetchone()
    if row is None:
        return None
    process, name, address, seconds, idle_seconds = row
    return Leader(process=process, name=name, address=address, seconds=seconds, idle_seconds=idle_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Predecessor:
    """The relay that led before.

    Args:
        name: Its host and process.
        ended: Why it leads no longer.
    """

    name: str
    ended: str


def hold(connection: Connection, *, seconds: float = LEASE_SECONDS) -> None:
    """Have Postgres end the session of this leader once it has sent nothing for so long."""
    connection.execute(_HOLD, (f"{seconds * 1000:.0f}ms",))


def succeed(connection: Connection, seen: Leader | None) -> Predecessor | None:
    """Record that this process leads; return the one that led before, if any did. There must be a cursor.

    Args:
        connection: The leader's.
        seen: The leader that this relay saw last while it stood by.
    """
    name = f"{socket.gethostname()}:{os.getpid()}"
    row = connection.execute(_SUCCEED, (Jsonb({"name": name, "process": connection.info.backend_pid}),)).fetchone()
    if row is None or row[0] is None:
        return None
    before = row[0]
    if seen and seen.process == before["process"] and (seen.idle_seconds or 0) > _SILENT_SECONDS:
        ended = f"it sent Postgres nothing for {LEASE_SECONDS:.0f} s: its process was stopped, hung or cut off"
    else:
        ended = "its connection to Postgres ended"
    return Predecessor(name=before["name"], ended=before.get("ended", ended))


def retire(connection: Connection, ended: str) -> None:
    """Record why this process ceases to lead, if Postgres still answers it."""
    if not connection.closed:
        with suppress(psycopg.Error):
            connection.execute(_RETIRE, (Jsonb({"ended": ended}),))
