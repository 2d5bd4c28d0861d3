"""Daemons: each makes itself known by one row in Postgres, which a thread of its own writes every second.

Owns ``syncer.daemon``. A row says what the daemon runs, whether it leads, and what its components are retrying. So
every process knows what every daemon does and why it does not, and a daemon that hangs or is gone shows by its silence.

The same thread writes the timeline of its process, and notes there that daemons start, stop and disappear.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.metadata import version

import structlog
from psycopg.types.json import Jsonb

from syncer.base import retry
from syncer.base.formatting import amount, elapsed
from syncer.base.lifecycle import Stop
from syncer.base.postgres import LOCK_SECONDS_MAX, Connection, Link, value
from syncer.base.retry import CurrentTrouble
from syncer.base.timeline import TIMELINE
from syncer.capture.reader import LEADS

REPORT_SECONDS = 1.0
"""How often a daemon reports."""
SILENT_SECONDS = 7.0
"""A daemon that has not reported for so long hangs, or is gone."""
DROP_SECONDS = 60.0
"""How long a silent daemon is listed."""
HANG_SECONDS = 180.0
"""How long a component may show no heartbeat: longer than any wait in it, except for queries that may take any time."""

# While Postgres was away, no daemon could report. One that was killed while it led leads no more once another does.
_HEARD = "greatest(reported_at, pg_postmaster_start_time())"
DAEMONS = f"""
SELECT host, process, version, started_at, components, written_per_second, troubles,
       leads AND reported_at = max(reported_at) FILTER (WHERE leads) OVER () AS leads,
       greatest(0, extract(epoch FROM clock_timestamp() - {_HEARD}))::float8 AS silent_seconds
FROM syncer.daemon
WHERE {_HEARD} > clock_timestamp() - interval '{DROP_SECONDS} s'
ORDER BY host, started_at, id
"""
"""The query that returns the fields of each `Daemon`."""
# A report that a crash takes back is followed by another: it need not wait for the disk.
_SESSION = f"SET lock_timeout = '{LOCK_SECONDS_MAX} s'; SET synchronous_commit = off"
_REPORT = f"""
WITH reported AS (
    INSERT INTO syncer.daemon (id, host, process, version, components, leads, written_per_second, troubles)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
    ON CONFLICT (id) DO UPDATE
    SET reported_at = clock_timestamp(), components = excluded.components, leads = excluded.leads,
        written_per_second = excluded.written_per_second, troubles = excluded.troubles
)
DELETE FROM syncer.daemon WHERE id <> $1 AND {_HEARD} <= clock_timestamp() - interval '{DROP_SECONDS} s'
RETURNING host, process, extract(epoch FROM clock_timestamp() - {_HEARD})::float8
"""
_LEAVE = "DELETE FROM syncer.daemon WHERE id = $1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """A daemon, as it last reported: what its row in ``syncer.daemon`` says.

    It has no components while it waits for its servers.
    """

    host: str
    process: int
    version: str
    started_at: datetime
    components: tuple[str, ...]
    leads: bool
    written_per_second: float
    troubles: tuple[CurrentTrouble, ...]
    silent_seconds: float

    @property
    def is_silent(self) -> bool:
        """Whether it hangs, or is gone."""
        return self.silent_seconds >= SILENT_SECONDS

    @property
    def workers(self) -> int:
        """How many workers it runs."""
        return sum(name.startswith("worker-") for name in self.components)

    @property
    def duties(self) -> str:
        """What it does, in words."""
        duties = [
            "leads" if self.leads else "stands by" if "relay" in self.components else "",
            amount(self.workers, "worker") if self.workers else "",
            "job worker" if "job_worker" in self.components else "",
        ]
        return ", ".join(filter(None, duties)) if self.components else "starting"


def reporting(connection: Connection) -> list[str]:
    """Return the host and the process of each daemon that reports."""
    rows = connection.execute(
        f"SELECT d.host, d.process FROM ({DAEMONS}) AS d WHERE d.silent_seconds < {SILENT_SECONDS}"
    )
    return [f"{host}:{process}" for host, process in rows]


def has_others(connection: Connection) -> bool:
    """Whether a daemon of another version reports."""
    query = f"SELECT EXISTS (SELECT FROM ({DAEMONS}) AS d WHERE d.version <> $1)"
    return bool(value(connection, query, (version("syncer-cdc"),)))


class Reporter:
    """The component that reports what the others do, which call ``stop``; ``count_written`` counts their documents."""

    def __init__(self, *, connect: Callable[[], Connection], stop: Stop, count_written: Callable[[], float]) -> None:
        self.components: Collection[str] = ()
        """The names of the daemon's components; empty until they are started."""
        self._link = Link(self._connected)
        self._connect = connect
        self._stop = stop
        self._identity = (uuid.uuid4(), socket.gethostname(), os.getpid(), version("syncer-cdc"))
        self._count_written = count_written
        self._written = (time.monotonic(), count_written())
        self._log = structlog.get_logger()

    def run(self, stop: Stop) -> None:
        """Report until a stop is requested; then remove the row."""
        self._log.info("daemon.joined", timeline=f"A daemon started, version {self._identity[-1]}.")
        try:
            retry.repeat(self.run_once, reset=self._link.close, stop=stop, component="report")
        finally:
            self._link.close()

    def run_once(self) -> float:
        """Report once, and write what the process has noted for the timeline; return when to report again."""
        with self._link.used() as connection:
            began = time.monotonic()
            disappeared = connection.execute(_REPORT, self._row()).fetchall()
            retry.answered("postgres", seconds=time.monotonic() - began)
            for host, process, seconds in disappeared:
                self._log.warning(
                    "daemon.disappeared",
                    host=host,
                    process=process,
                    timeline=f"The daemon {host}, process {process}, disappeared: no report for {elapsed(seconds)}.",
                )
            TIMELINE.write(connection, prunes=True)
        return REPORT_SECONDS

    def leave(self) -> None:
        """Remove the row, and note that the daemon stopped. Call it once the components have ended."""
        self._log.info("daemon.left", timeline="A daemon stopped.")
        with self._link.used() as connection:
            connection.execute(_LEAVE, self._identity[:1])
            TIMELINE.write(connection)
        self._link.close()

    def _connected(self) -> Connection:
        connection = self._connect()
        connection.execute(_SESSION)
        return connection

    def _row(self) -> tuple[object, ...]:
        now, total = time.monotonic(), self._count_written()
        reported_at, reported_total = self._written
        self._written = now, total
        rate = (total - reported_total) / max(now - reported_at, 0.001)
        # Several threads of a component may meet the same.
        longest = {(trouble.component, trouble.server, trouble.kind): trouble for trouble in reversed(retry.troubles())}
        troubles = [asdict(trouble) for trouble in (*longest.values(), *self.hanging())]
        return (*self._identity, list(self.components), LEADS.is_set(), rate, Jsonb(troubles))

    def hanging(self) -> list[CurrentTrouble]:
        """The components of this process that show no heartbeat."""
        silences = {name: self._stop.silence(name) for name in self.components}
        return [
            CurrentTrouble(
                component=name,
                server="",
                kind="hangs",
                seconds=seconds,
                error=f"{name} has shown no heartbeat for {elapsed(seconds)}",
                hint="Restart the daemon, and report its log.",
            )
            for name, seconds in silences.items()
            if seconds > HANG_SECONDS
        ]
