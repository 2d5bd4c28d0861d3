"""Waiting: until everything that one transaction has committed is indexed, or searchable.

Public as `syncer.wait`, as ``syncer wait TOKEN``, and over HTTP. Which transaction: `syncer.commit`. What is waited
for, and why it is so then: `syncer.passage`.

It asks Postgres and Kafka again and again, first after 5 ms, then less often, up to four times a second; nothing is
asked of those who write, relay and index. Trouble of the kind that passes is waited out, and all of it begun again: all
but in which life of the database this began. Whoever has but an id is not told of another transaction that was given
the same one after a failover.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Self

from elasticsearch import Elasticsearch

from syncer import commit, index as elastic, outbox, policy, postgres, schema
from syncer.commit import Token
from syncer.errors import WaitTimeoutError
from syncer.holdings import Holdings
from syncer.passage import Clock, Passage, Waited
from syncer.policy import Action
from syncer.postgres import Connection
from syncer.settings import Settings
from syncer.store import Catalogue, Document
from syncer.topic import Observer

TIMEOUT_SECONDS = 30.0
"""How long is waited if nobody says."""
_PATIENCE_SECONDS = 2.0
"""How long an answer of Elasticsearch's may come late."""


@dataclass(frozen=True, slots=True)
class _Session:
    """A connection, and what was read over it."""

    connection: Connection
    catalogue: Catalogue


class Waiter:
    """Waits for transactions. Safe to share between threads: each that waits has a connection to Postgres of its own.

    Args:
        settings: Where the servers are.
        pause: How to rest between two looks; what it raises ends the wait.
    """

    def __init__(self, settings: Settings, *, pause: Callable[[float], None] = time.sleep) -> None:
        self._settings = settings
        self._pause = pause
        self._observer = Observer(settings.kafka)
        self._idle: list[_Session] = []
        self._client: Elasticsearch | None = None

    def __enter__(self) -> Self:
        """Itself, for a with statement."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the servers."""
        self.close()

    def close(self) -> None:
        """Let go of the servers."""
        while self._idle:
            self._idle.pop().connection.close()
        if self._client is not None:
            self._client.close()
        self._client = None

    def wait(self, token: str, *, timeout_seconds: float = TIMEOUT_SECONDS, searchable: bool = False) -> Waited:
        """Return once everything that a transaction has committed is indexed.

        Args:
            token: What ``syncer.token()`` has returned in it, or ``pg_current_xact_id()``.
            timeout_seconds: How long to wait. While Elasticsearch or Kafka does not answer it may be some seconds
                longer; while Postgres does not, as long as it hangs, or half a minute if its machine is gone.
            searchable: Whether searches are to show it too. The indices concerned are refreshed for that.

        Raises:
            TokenError: There is nothing to wait for: it is no token, or of no committed transaction of this database.
            WaitTimeoutError: It has not come to that in time.
            SyncerError, psycopg.Error, elasticsearch.ApiError: The set-up is wrong.
        """
        named = Token.parse(token)
        clock = Clock(seconds=timeout_seconds, pause=self._pause)
        while True:
            try:
                with self._session() as session:
                    named = commit.require_committed(session.connection, named)
                    passage = Passage(
                        connection=session.connection,
                        catalogue=session.catalogue,
                        observer=self._observer,
                        kafka=self._settings.kafka,
                        token=named,
                        clock=clock,
                    )
                    return passage.follow(partial(self._refresh, clock) if searchable else None)
            except Exception as error:
                # Nothing else that was found out is relied upon: another server may answer the next question.
                if policy.decide(error) is not Action.RETRY:
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
        """A connection that nobody else uses meanwhile; one on which something went wrong is not used again."""
        try:
            session = self._idle.pop()
        except IndexError:  # asked before, it might be taken by another thread just then
            session = _Session(self._connect(), Catalogue())
        try:
            yield session
        except BaseException:
            session.connection.close()
            raise
        self._idle.append(session)

    def _connect(self) -> Connection:
        connection = postgres.connect(self._settings.postgres, name="wait")
        try:
            schema.require_current(connection)
            outbox.prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def _unanswered(token: Token, clock: Clock, error: Exception) -> WaitTimeoutError:
    said = policy.explain(error)
    return WaitTimeoutError(
        f"Transaction {token.xid} is not known to be there after {clock.seconds:g} s: "
        f"{said.message if said else repr(error)}",
        hint=said.hint if said else "",
        stage="servers",
    )
