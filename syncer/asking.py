"""Asking: a question to a server that may hang, asked in a thread beside, so that nobody hangs with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

from syncer.errors import UnavailableError
from syncer.lifecycle import Stopping
from syncer.threads import Threads
from syncer.wording import duration

PATIENCE_SECONDS = 15.0
"""How long an answer is waited for; it may still be there when it is asked for the next time."""
_GLANCE_SECONDS = 0.2

_Result = TypeVar("_Result")


class Question(Generic[_Result]):
    """One question, asked again and again, and never twice at the same time. Not for sharing between threads.

    Args:
        server: Who is asked.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._threads = Threads(1, name=f"ask-{server}")
        self._answer: Future[_Result] | None = None
        self._began = self._ended = 0.0

    def ask(self, how: Callable[[], _Result]) -> None:
        """Begin to ask, unless an answer is still to come."""
        if self._answer is None:
            self._began = time.monotonic()
            self._answer = self._threads.submit(self._asked, how)

    @property
    def is_open(self) -> bool:
        """Whether an answer is still to come: what is asked with is in use."""
        return self._answer is not None and not self._answer.done()

    @property
    def seconds(self) -> float:
        """How long it took to answer, or has taken so far."""
        return (time.monotonic() if self.is_open else self._ended) - self._began

    def close(self) -> None:
        """Ask no more; what hangs is left to itself."""
        self._threads.end(seconds=0)
        self._threads = Threads(1, name=f"ask-{self._server}")
        self._answer = None

    def _asked(self, how: Callable[[], _Result]) -> _Result:
        try:
            return how()
        finally:
            self._ended = time.monotonic()

    def answer(self, *, is_over: Callable[[], bool]) -> _Result:
        """The answer, once it is there.

        Args:
            is_over: Asked now and then whether anybody wants it any more.

        Raises:
            UnavailableError: It is not there in time.
            Stopping: Nobody wants it.
            Exception: What asking has raised.
        """
        assert self._answer is not None  # noqa: S101 - it was asked
        deadline = time.monotonic() + PATIENCE_SECONDS
        while wait([self._answer], timeout=_GLANCE_SECONDS).not_done:
            if is_over():
                raise Stopping
            if time.monotonic() >= deadline:
                raise UnavailableError(f"{self._server} has not answered for {duration(self.seconds)}")
        answer, self._answer = self._answer, None
        return answer.result()
