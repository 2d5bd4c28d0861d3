"""Wait: returns once everything that one transaction has committed is indexed, or searchable.

Available as ``syncer.wait``, ``syncer wait TOKEN`` and over HTTP. `syncer.capture.transaction_token` names the
transaction; `syncer.verify.progress` says what is waited for and why that is enough.

It polls Postgres, first after 5 ms, then at growing intervals up to 0.25 s; the relay, workers and clients
are not involved. After a transient error everything starts over, except for the epoch of the database in which the wait
began. So a wait for a bare transaction id never reports another transaction that got the same id after a failover.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Self

from elasticsearch import Elasticsearch

from syncer.base import error_policy, migrations, postgres
from syncer.base.error_policy import Action
from syncer.base.errors import WaitTimeoutError
from syncer.base.postgres import Connection
from syncer.base.settings import Settings
from syncer.capture import outbox, transaction_token
from syncer.capture.transaction_token import Token
from syncer.documents.registry import Catalogue, Document
from syncer.elasticsearch import client as elastic
from syncer.elasticsearch.reader import Holdings
from syncer.verify.progress import Clock, TransactionProgress, Waited

TIMEOUT_SECONDS = 30.0
"""The default timeout."""
_PATIENCE_SECONDS = 2.0
"""How much longer than the timeout Elasticsearch may take to answer."""


@dataclass(frozen=True, slots=True)
class _Session:
    """A connection, and the definitions read over it."""

    connection: Connection
    catalogue: Catalogue


class Waiter:
    """Waits for transactions. Safe to share between threads: each wait uses a Postgres connection of its own.

    Args:
        pause: Called to wait between two polls; an exception from it ends the wait.
    """

    def __init__(self, settings: Settings, *, pause: Callable[[float], None] = time.sleep) -> None:
        self._settings = settings
        self._pause = pause
        self._idle: list[_Session] = []
        self._client: Elasticsearch | None = None

    def __enter__(self) -> Self:
        """Return the waiter, for a with statement."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close all connections."""
        self.close()

    def close(self) -> None:
        """Close all connections."""
        while self._idle:
            self._idle.pop().connection.close()
        if self._client is not None:
            self._client.close()
        self._client = None

    def wait(self, token: str, *, timeout_seconds: float = TIMEOUT_SECONDS, searchable: bool = False) -> Waited:
        """Return once everything that a transaction has committed is indexed.

        Args:
            token: The result of ``syncer.token()`` or ``pg_current_xact_id()`` in that transaction.
            timeout_seconds: How long to wait. It may take some seconds longer if Elasticsearch does not
                answer. If Postgres hangs, it takes as long; if its machine is gone, half a minute longer.
            searchable: Whether searches must show it too; the indices concerned are refreshed for that.

        Raises:
            TokenError: The token is invalid, or is not of a committed transaction of this database.
            WaitTimeoutError: The transaction is not indexed in time.
            SyncerError, psycopg.Error, elasticsearch.ApiError: The configuration is wrong.
        """
        named = Token.parse(token)
        clock = Clock(seconds=timeout_seconds, pause=self._pause)
        while True:
            try:
                with self._session() as session:
                    named = transaction_token.require_committed(session.connection, named)
                    progress = TransactionProgress(
                        connection=session.connection,
                        catalogue=session.catalogue,
                        token=named,
                        clock=clock,
                    )
                    return progress.follow(partial(self._refresh, clock) if searchable else None)
            except Exception as error:
                # Start over: another server may answer the next query, so earlier results do not count.
                if not _may_pass(error):
                    raise
                clock.rest(partial(_unanswered, named, clock, error))

    def _refresh(self, clock: Clock, documents: Sequence[Document]) -> None:
        settings = self._settings.elasticsearch
        patience = min(max(0.0, clock.left) + _PATIENCE_SECONDS, settings.request_timeout_seconds)
        if self._client is None:
            self._client = elastic.connect(settings.model_copy(update={"request_timeout_seconds": patience}))
        holdings = Holdings(self._client.options(request_timeout=patience))
        for one in documents:
            holdings.refresh(one.target)

    @contextmanager
    def _session(self) -> Iterator[_Session]:
        """Lend an idle session, or a new one; after an error it is closed."""
        try:
            session = self._idle.pop()
        except IndexError:  # no check before the pop: another thread might take the session in between
            session = self._opened()
        try:
            yield session
        except BaseException:
            session.connection.close()
            raise
        self._idle.append(session)

    def _opened(self) -> _Session:
        connection = postgres.connect(self._settings.postgres, name="wait")
        try:
            migrations.require_current(connection)
            outbox.prepare(connection)
        except BaseException:
            connection.close()
            raise
        return _Session(connection, Catalogue())


def _may_pass(error: Exception) -> bool:
    """Whether the error is transient."""
    return error_policy.decide(error) is Action.RETRY


def _unanswered(token: Token, clock: Clock, error: Exception) -> WaitTimeoutError:
    explanation = error_policy.explain(error)
    return WaitTimeoutError(
        f"Transaction {token.xid} is not known to be indexed after {clock.seconds:g} s: "
        f"{explanation.message if explanation else repr(error)}",
        hint=explanation.hint if explanation else "",
        component="servers",
    )
