"""Link: a stage's own connection to Postgres, opened when it is needed, let go of when it is to be had anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from syncer.policy import Action, decide
from syncer.postgres import Connection


class Link:
    """A connection, or none. Not for sharing between threads.

    Args:
        connect: Opens one.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._connection: Connection | None = None

    @property
    def connection(self) -> Connection:
        """The connection; another one once it was let go of."""
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    @contextmanager
    def used(self) -> Iterator[Connection]:
        """Work on it; if that fails with what is to be tried again, let go of it."""
        try:
            yield self.connection
        except Exception as error:
            if decide(error) is Action.RETRY:
                self.close()
            raise

    def close(self) -> None:
        """Let go of it."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
