"""A writer's connection: opened on demand, and closed when Postgres has failed; a failure of Elasticsearch keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

from syncer.base.error_policy import Action, decide
from syncer.base.postgres import Connection
from syncer.elasticsearch.bulk import Index
from syncer.indexing import failover
from syncer.indexing.compose import Composer


class Session:
    """A writer's own connection, and what depends on it. Not safe to share between threads.

    Args:
        connect: Opens a connection to Postgres.
        index: Elasticsearch, which records epochs and versions too.
    """

    def __init__(self, *, connect: Callable[[], Connection], index: Index) -> None:
        self._connect = connect
        self._index = index
        self._connection: Connection | None = None
        self._composer: Composer | None = None

    @property
    def composer(self) -> Composer:
        """The composer that builds documents on this connection."""
        if self._connection is None or self._composer is None:
            connection = self._connect()
            try:
                # Before the first version is assigned: check the cluster identity, and skip numbers that a crash may
                # hand out again.
                failover.enter(connection, self._index)
            except BaseException:
                self._close_unentered(connection)
                raise
            self._connection = connection
            self._composer = Composer(connection)
        return self._composer

    @staticmethod
    def _close_unentered(connection: Connection) -> None:
        """Close a connection on which no version was assigned."""
        connection.close()

    @property
    def connection(self) -> Connection:
        """The connection to Postgres."""
        assert self.composer is not None  # this property opens the connection
        assert self._connection is not None  # just opened
        return self._connection

    @contextmanager
    def used(self) -> Iterator[None]:
        """Enclose work on the connection; close it if Postgres fails with an error that can be retried."""
        try:
            yield
        except psycopg.errors.LockNotAvailable:
            raise
        except psycopg.Error as error:
            if decide(error) is Action.RETRY:
                self.close()
            raise

    def close(self) -> None:
        """Close the connection; the next use opens another."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._composer = None
