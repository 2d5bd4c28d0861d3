"""Session: what a writer has of Postgres: a connection to draw on, and a replica to read, if there is one.

It is opened when it is needed, and let go of when something has failed that is to be tried again. What follows then is
another *life*: what was composed in the one before may have been taken back by a crash of Postgres that it did not see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from syncer import incarnation, postgres
from syncer.compose import Composer
from syncer.index import Index
from syncer.policy import Action, decide
from syncer.postgres import Connection
from syncer.replica import Replica


class Session:
    """A connection of a writer's own, and what hangs on it. Not for sharing between threads.

    Args:
        connect: Opens a connection to Postgres.
        connect_replica: Opens the replica to read documents on, if not on that connection.
        index: Elasticsearch, which has seen versions too.
    """

    def __init__(
        self, *, connect: Callable[[], Connection], connect_replica: Callable[[], Replica] | None, index: Index
    ) -> None:
        self._connect = connect
        self._connect_replica = connect_replica
        self._index = index
        self._connection: Connection | None = None
        self._replica: Replica | None = None
        self._composer: Composer | None = None
        self._life = 0

    @property
    def life(self) -> int:
        """How many connections have been let go of."""
        return self._life

    @property
    def composer(self) -> Composer:
        """Composes documents on it."""
        if self._connection is None or self._composer is None:
            if self._replica is None and self._connect_replica is not None:
                self._replica = self._connect_replica()
            connection = self._connect()
            try:
                # Before the first draw: whose life this is, and past whatever a crash may hand out again.
                incarnation.enter(connection, self._index)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            self._composer = Composer(connection, replica=self._replica)
        return self._composer

    @property
    def connection(self) -> Connection:
        """The connection itself."""
        assert self.composer is not None  # noqa: S101 - opens it
        assert self._connection is not None  # noqa: S101 - it has just been opened
        return self._connection

    @contextmanager
    def used(self) -> Iterator[None]:
        """Work on it; if that fails with what is to be tried again, let go of it."""
        try:
            yield
        except Exception as error:
            if decide(error) is Action.RETRY:
                self.close()
            raise

    def keep(self) -> None:
        """Return once what was composed in this `life` is on Postgres's disk, so that no crash takes it back.

        Raises:
            psycopg.Error: Postgres is away: it may have been taken back.
        """
        if self._connection is not None:
            postgres.keep(self._connection)

    def close(self) -> None:
        """Let go of the connection; whoever needs one next opens another."""
        if self._connection is not None:
            self._connection.close()
            self._life += 1
        if self._replica is not None:
            self._replica.close()
        self._connection = self._replica = self._composer = None
