"""Replica: reads documents on a streaming replica of Postgres, with the wait that the version rule then requires.

The rule requires of a reader that what its snapshot missed was not visible when its version was assigned. (On the
primary both steps are serialised, see `syncer.indexing.version`. That guarantees a little more: greater versions have
later snapshots.) A replica shows an earlier state of the primary. Assigning on the primary and then taking a
snapshot of the replica would break the rule. Hence, in order:

1. The version is assigned on the primary. After it, in the same transaction, an empty record is written to the WAL. The
   position where that record ends is the *mark* of the version.
2. The writer waits until the replica has replayed the WAL up to the mark.
3. Only then is the snapshot taken, on the same connection.

Why that is enough: a commit is in the WAL before it is visible. So each change that was visible when the version was
assigned has its commit before the mark, and is in a snapshot taken behind it. What that snapshot misses became visible
after the version was assigned, as the rule requires.

This also holds for whatever else is read in that snapshot: the active revision, suspensions, dead letters, listings. A
replica replays them all in one order, so a snapshot that shows one of them shows all that was committed before it. A
replica may show a commit before the primary does, if the commit waits for a synchronous standby. That does no harm: it
is newer, never older.

Why a record of its own, and not just the end of the WAL: the commit of the assigning transaction follows the record and
flushes all of it. Otherwise the replica might wait for WAL in the primary's memory until another process flushes it.

A WAL position says nothing about a server with another history: a promoted standby and those that follow it, or one
that a failover left behind. So the snapshot of the replica must include the assigned version: it must have the same
epoch, and its sequence must have reached the version. A server of another cluster is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

from syncer.base import postgres
from syncer.base.errors import ReplicaError, SourceError
from syncer.base.postgres import Connection, value
from syncer.base.settings import PostgresSettings
from syncer.indexing import version

REPLAY_SECONDS_MAX = 10.0
"""How long to wait for a replica that is behind, before reporting it and assigning a new version."""
_FIRST_PAUSE_SECONDS = 0.001
_LONGEST_PAUSE_SECONDS = 0.02

_SYSTEM = """
SELECT format('%s %s', (SELECT system_identifier FROM pg_control_system()),
              (SELECT oid FROM pg_database WHERE datname = current_database()))
"""
_IS_STANDBY = "SELECT pg_is_in_recovery()"
_REPLAYED = "SELECT pg_is_in_recovery(), coalesce(pg_last_wal_replay_lsn() >= $1::pg_lsn, false)"


class Replica:
    """A connection to a replica that shows, on demand, all that was visible on the primary when a version was assigned.

    Args:
        connection: Directly to the replica, not to a pool of servers nor through a session pooler.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._is_known = False

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def assign(self, primary: Connection) -> int:
        """Assign one version on the primary; snapshots taken on the replica from now on may be written with it.

        Raises:
            ReplicaError: The replica is too far behind, or not a standby.
            SourceError: It belongs to another cluster, or is another database.
        """
        self.require_cluster_of(primary)
        assigned, mark = version.assign_with_mark(primary)
        self._wait_for(mark)  # Rule: wait-for-the-mark.
        return assigned

    def require_cluster_of(self, primary: Connection) -> None:
        """Refuse a server of another cluster, and another database.

        Raises:
            SourceError: The server belongs to another cluster, or the database is another one.
        """
        if not self._is_known and value(primary, _SYSTEM) != value(self.connection, _SYSTEM):
            raise SourceError(
                "The server at postgres.read_dsn is not a replica of the one at postgres.dsn",
                hint="They are different clusters, or different databases of one. Check SYNCER_POSTGRES_READ_DSN.",
            )
        self._is_known = True

    def require_standby(self) -> None:
        """Refuse a server that accepts writes.

        Raises:
            ReplicaError: The server accepts writes.
        """
        if value(self.connection, _IS_STANDBY) is not True:
            raise _no_standby()

    def require_known(self, *, is_known: bool) -> None:
        """Refuse a snapshot that was found not to include the assigned version.

        Raises:
            ReplicaError: The snapshot does not include the version.
        """
        if not is_known:
            raise ReplicaError(
                "The server at postgres.read_dsn follows another primary than the one at postgres.dsn",
                hint="Was one of them promoted? Let SYNCER_POSTGRES_READ_DSN name a standby that follows it.",
            )

    @staticmethod
    def _require_replaying(*, is_standby: bool) -> None:
        if not is_standby:
            raise _no_standby()

    def _wait_for(self, mark: str) -> None:
        deadline = time.monotonic() + REPLAY_SECONDS_MAX
        pause = _FIRST_PAUSE_SECONDS
        while True:
            is_standby, is_replayed = self.connection.execute(_REPLAYED, (mark,)).fetchone() or (False, False)
            self._require_replaying(is_standby=is_standby)
            if is_replayed:
                return
            if time.monotonic() > deadline:
                raise ReplicaError(
                    f"The replica at postgres.read_dsn is more than {REPLAY_SECONDS_MAX:.0f} s behind the primary",
                    hint="Is its replay paused, held up by a query, or its connection to the primary gone?",
                )
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)


def _no_standby() -> ReplicaError:
    return ReplicaError(
        "The server at postgres.read_dsn is not a standby, or no longer",
        hint="Was it promoted? Let SYNCER_POSTGRES_READ_DSN name a standby of the one at postgres.dsn.",
    )


def require(settings: PostgresSettings, primary: Connection) -> None:
    """Refuse to start with a server that is not a replica, or belongs to another cluster.

    Raises:
        psycopg.OperationalError: It cannot be reached or refuses the login.
        SourceError: It belongs to another cluster, or is another database.
    """
    if (opened := opener(settings, name="run")) is not None:
        with closing(opened()) as reads:
            reads.require_cluster_of(primary)
            reads.require_standby()


def opener(settings: PostgresSettings, *, name: str) -> Callable[[], Replica] | None:
    """Return a function that opens the replica to read documents on; None if they are read on the primary."""
    there = settings.replica
    if there is None:
        return None
    return lambda: Replica(postgres.connect(there, name=name))
