"""Queries a server that may hang in a background thread, so that the caller does not hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

from syncer.base.errors import UnavailableError
from syncer.base.formatting import duration
from syncer.base.lifecycle import Stopping

PATIENCE_SECONDS = 15.0
"""How long a poll waits for an answer; a later one may be there at the next call."""
_GLANCE_SECONDS = 0.2

_Result = TypeVar("_Result")


class BackgroundQuery(Generic[_Result]):
    """Repeats one query, never twice at the same time. Not for sharing between threads.

    Args:
        server: The name of the server, for errors and threads.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._answer: Future[_Result] | None = None
        self._began = self._ended = 0.0

    def ask(self, how: Callable[[], _Result]) -> None:
        """Start the query, unless an answer is still pending."""
        if self._answer is None:
            self._began = time.monotonic()
            self._answer = Future()
            name = f"ask-{self._server}"
            # A server that hangs must not keep the process from ending, as an executor's thread would.
            threading.Thread(target=self._run, args=(how, self._answer), name=name, daemon=True).start()

    @property
    def is_open(self) -> bool:
        """Whether an answer is still pending, so that the query's connection is in use."""
        return self._answer is not None and not self._answer.done()

    @property
    def seconds(self) -> float:
        """How long the answer took, or has taken so far."""
        return (time.monotonic() if self.is_open else self._ended) - self._began

    def close(self) -> None:
        """Stop asking; a query that hangs is abandoned."""
        self._answer = None

    def _run(self, how: Callable[[], _Result], answer: Future[_Result]) -> None:
        try:
            result = how()
        except BaseException as error:  # noqa: BLE001 - the caller gets it from the future
            self._ended = time.monotonic()
            answer.set_exception(error)
        else:
            self._ended = time.monotonic()
            answer.set_result(result)

    def answer(self, *, is_over: Callable[[], bool], seconds: float) -> _Result:
        """Wait for the answer.

        Args:
            is_over: Called at intervals; true ends the waiting.
            seconds: How long to wait, from when it was asked.

        Raises:
            UnavailableError: There is no answer in time.
            Stopping: The answer is no longer wanted.
            Exception: The error that the query raised.
        """
        assert self._answer is not None  # noqa: S101 - it was asked
        deadline = self._began + seconds
        while wait([self._answer], timeout=_GLANCE_SECONDS).not_done:
            if is_over():
                raise Stopping
            if time.monotonic() >= deadline:
                raise UnavailableError(f"{self._server} has not answered for {duration(self.seconds)}")
        answer, self._answer = self._answer, None
        return answer.result()
