"""ServerPoll: one server as the poller sees it: its client, the query under way, and its last answer.

A query runs in a background thread, and is waited for only so long: a server that hangs neither hangs the poller nor
keeps the process from ending. It is not asked again before that query has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, Protocol, TypeVar

import structlog

from syncer.base.error_policy import explain, kind
from syncer.base.errors import UnavailableError
from syncer.base.formatting import duration
from syncer.base.lifecycle import Stop, Stopping
from syncer.monitoring import outage
from syncer.monitoring.outage import Places
from syncer.monitoring.status import Server, ServerAnswer

_BRIEF_SECONDS = 2.0
_GLANCE_SECONDS = 0.2
_DETAIL_CHARACTERS_MAX = 2000


class Client(Protocol):
    """A client of a server."""

    def close(self) -> None:
        """Close its connections."""


_Client = TypeVar("_Client", bound=Client)
_Result = TypeVar("_Result")


class ServerPoll(Generic[_Client, _Result]):
    """Asks one server again and again, never twice at the same time. Only the poller's thread uses it.

    Args:
        server: The server.
        connect: Opens a client; it is kept until a query fails.
        places: Where the server listens, to say why it does not answer.
    """

    def __init__(self, server: Server, connect: Callable[[], _Client], places: Places) -> None:
        self.answer: _Result | None = None
        """What it answered in this turn; None if it did not."""
        self._server = server
        self._connect = connect
        self._places = places
        self._client: _Client | None = None
        self._pending: Future[_Result] | None = None
        self._began = self._ended = 0.0
        self._answered_at: float | None = None
        self._failure = ""

    def ask(self, query: Callable[[_Client], _Result]) -> None:
        """Start a query, unless the answer to the last one is still pending."""
        self.answer = None
        if self._pending is None:
            self._began = time.monotonic()
            self._pending = Future()
            # Not a thread of an executor: the process would wait for it when it ends.
            args, name = (query, self._pending), f"ask-{self._server}"
            threading.Thread(target=self._run, args=args, name=name, daemon=True).start()

    def _run(self, query: Callable[[_Client], _Result], pending: Future[_Result]) -> None:
        try:
            if self._client is None:
                self._client = self._connect()
            result = query(self._client)
        except BaseException as error:  # noqa: BLE001 - the poller gets it from the future
            self._ended = time.monotonic()
            pending.set_exception(error)
        else:
            self._ended = time.monotonic()
            pending.set_result(result)

    def take(self, stop: Stop, patience_seconds: float) -> ServerAnswer:
        """Wait for the answer so long from when it was asked, and say how it went; a later one is taken next time.

        Raises:
            Stopping: A stop is requested.
        """
        said, hint, detail = None, "", ""
        try:
            self.answer = self._awaited(stop, patience_seconds)
            self._answered_at = time.monotonic()
            self._failure = ""
        except Stopping:
            raise
        except Exception as error:  # noqa: BLE001 - one server's failure must not stop the others
            self._note_failure(error)
            said, hint = outage.describe(self._server, error, self._places)
            detail = f"{type(error).__name__}: {error}"[:_DETAIL_CHARACTERS_MAX]
            self._disconnect()
        return ServerAnswer(
            server=self._server,
            error=said,
            hint=hint,
            detail=detail,
            seconds=self._seconds,
            age_seconds=time.monotonic() - at if (at := self._answered_at) else None,
        )

    def _awaited(self, stop: Stop, patience_seconds: float) -> _Result:
        """The answer; a server that accepts no connection is waited for only briefly.

        Raises:
            UnavailableError: There is no answer in time.
            Stopping: A stop is requested.
            Exception: The error that the query raised.
        """
        assert self._pending is not None  # noqa: S101 - it was asked
        deadline = min(_BRIEF_SECONDS, patience_seconds)
        while wait([self._pending], timeout=_GLANCE_SECONDS).not_done:
            if stop.is_requested:
                raise Stopping
            if self._seconds >= deadline:
                if deadline == patience_seconds or outage.refusals(self._places):
                    raise UnavailableError(f"{self._server} has not answered for {duration(self._seconds)}")
                deadline = patience_seconds
        answered, self._pending = self._pending, None
        return answered.result()

    @property
    def _is_pending(self) -> bool:
        """Whether a query is under way, so that the client is in use."""
        return self._pending is not None and not self._pending.done()

    @property
    def _seconds(self) -> float:
        """How long the answer took, or has taken so far."""
        return (time.monotonic() if self._is_pending else self._ended) - self._began

    def _note_failure(self, error: Exception) -> None:
        """Log a failure if it is unexpected: the other components log that a server is down."""
        what = kind(error)
        if explain(error) is None and self._failure != what:
            structlog.get_logger().error("poll.failed", server=self._server, error=repr(error), exc_info=error)
        self._failure = what

    def _disconnect(self) -> None:
        """Close the client, unless a query that hangs uses it; the next query opens another one."""
        if not self._is_pending and self._client is not None:
            self._client.close()
            self._client = None

    def close(self) -> None:
        """Close the client; a query that hangs is abandoned with it."""
        self._disconnect()
        self._client, self._pending = None, None
