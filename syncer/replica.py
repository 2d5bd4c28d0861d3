"""Replica: documents read on a streaming replica of Postgres, with the wait that the version rule then needs.

The rule asks of a reader: what its snapshot missed was not visible when it drew. (On the primary both are done in
turn, see `syncer.version.draw`, which shows a little more: that greater versions have later snapshots.) A replica
shows what the primary showed some time ago, so a draw on the primary followed by a snapshot of the replica would
break it. Hence, in order:

1. The version is drawn on the primary, and after it, in the same transaction, a record without content is written to
   the WAL. The place where that record ends is the draw's *mark*.
2. The replica is waited for until it has replayed the WAL up to the mark.
3. Only then is the snapshot taken, on the same connection.

Why that is enough: a commit is in the WAL before anybody sees it. So each change that was visible at the draw has its
commit before the mark, and is in a snapshot taken behind it. What that snapshot misses became visible after the draw,
which is all that the rule asks for. It holds for whatever else is read in that snapshot as well, the generation in
force, the halt, the dead letters, the listings, since a replica replays all of them in one order: a snapshot that
shows one of them shows all that was committed before it. That a replica may show a commit before the primary does (one
that waits for a synchronous standby) does no harm: it is newer, never older.

Why a record of our own, and not merely the place where the WAL ends: behind it comes the commit of the draw, which
flushes all of it. Otherwise the replica might wait for what lies in the primary's memory until somebody flushes it.

A place in the WAL says nothing about a server that has another history: a standby that was promoted and those that
follow it, or one that was left behind by a failover. So in the snapshot the replica must know of the draw:
its epoch must be the one that was drawn in, and its sequence must have come as far. Another cluster is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

from syncer import postgres, version
from syncer.errors import ReplicaError, SourceError
from syncer.postgres import Connection, value
from syncer.settings import PostgresSettings

REPLAY_SECONDS_MAX = 10.0
"""How long to wait at once for a replica that is behind, before saying so, and drawing anew."""
_FIRST_PAUSE_SECONDS = 0.001
_LONGEST_PAUSE_SECONDS = 0.02

_SYSTEM = """
SELECT format('%s %s', (SELECT system_identifier FROM pg_control_system()),
              (SELECT oid FROM pg_database WHERE datname = current_database()))
"""
_IS_STANDBY = "SELECT pg_is_in_recovery()"
_REPLAYED = "SELECT pg_is_in_recovery(), coalesce(pg_last_wal_replay_lsn() >= $1::pg_lsn, false)"


class Replica:
    """A connection to a replica that shows, on demand, all that was visible on the primary at a draw.

    Args:
        connection: To the replica itself: neither to a pool of servers nor through one of sessions.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._is_known = False

    def close(self) -> None:
        """Let go of it."""
        self.connection.close()

    def draw(self, primary: Connection) -> tuple[int, float]:
        """Draw one version on the primary; a snapshot that is taken here from now on may be written with it.

        Returns:
            The version, and when it was drawn, by the primary's clock: that of this server may show another time.

        Raises:
            ReplicaError: The replica is too far behind, or not a standby.
            SourceError: It belongs to another cluster, or is another database.
        """
        self.require_cluster_of(primary)
        drawn, mark, seconds = version.draw_with_mark(primary)
        self._wait_for(mark)
        return drawn, seconds

    def require_cluster_of(self, primary: Connection) -> None:
        """Refuse a server of another cluster, and another database.

        Raises:
            SourceError: It is one.
        """
        if not self._is_known and value(primary, _SYSTEM) != value(self.connection, _SYSTEM):
            raise SourceError(
                "The server at postgres.read_dsn is not a replica of the one at postgres.dsn",
                hint="They are different clusters, or different databases of one. Check SYNCER_POSTGRES_READ_DSN.",
            )
        self._is_known = True

    def require_standby(self) -> None:
        """Refuse a server that takes writes.

        Raises:
            ReplicaError: It does.
        """
        if value(self.connection, _IS_STANDBY) is not True:
            raise _no_standby()

    def require_draw(self, drawn: int) -> None:
        """Refuse a snapshot that does not know of the draw: it belongs to another life of the database.

        Raises:
            ReplicaError: The caller's snapshot, on this connection, is such a one.
        """
        if not version.knows(self.connection, drawn):
            raise ReplicaError(
                "The server at postgres.read_dsn follows another primary than the one at postgres.dsn",
                hint="Was one of them promoted? Let SYNCER_POSTGRES_READ_DSN name a standby that follows it.",
            )

    def _wait_for(self, mark: str) -> None:
        deadline = time.monotonic() + REPLAY_SECONDS_MAX
        pause = _FIRST_PAUSE_SECONDS
        while True:
            is_standby, is_replayed = self.connection.execute(_REPLAYED, (mark,)).fetchone() or (False, False)
            if not is_standby:
                raise _no_standby()
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
    """Refuse to begin with a replica that is none, or of another cluster.

    Raises:
        psycopg.OperationalError: It cannot be reached or refuses the login.
        SourceError: It is.
    """
    if (opened := opener(settings, name="run")) is not None:
        with closing(opened()) as reads:
            reads.require_cluster_of(primary)
            reads.require_standby()


def opener(settings: PostgresSettings, *, name: str) -> Callable[[], Replica] | None:
    """What opens the replica that documents are read on; None if they are read on the primary."""
    if settings.read_dsn is None:
        return None
    there = settings.model_copy(update={"dsn": settings.read_dsn})
    return lambda: Replica(postgres.connect(there, name=name))
