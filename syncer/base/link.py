"""Link: a component's Postgres connection, opened on first use and reopened after a retryable error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

from syncer.base.error_policy import Action, decide
from syncer.base.postgres import Connection


class Link:
    """A connection that is opened on demand. Not for sharing between threads."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._connection: Connection | None = None

    @property
    def connection(self) -> Connection:
        """The connection; a new one if the last was closed."""
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    @contextmanager
    def used(self) -> Iterator[Connection]:
        """Use the connection; close it if Postgres fails with a retryable error, other than a lock that is taken."""
        try:
            yield self.connection
        except psycopg.Error as error:
            if decide(error) is Action.RETRY and not isinstance(error, psycopg.errors.LockNotAvailable):
                self.close()
            raise

    def close(self) -> None:
        """Close the connection, if it is open."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
