"""Threads that do a stage's work beside it, and never keep the process from ending.

Those of the standard library are waited for at the end of the process, however long a server lets them wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class Threads:
    """A few threads, started when they are needed. Work is to be given by one thread only.

    Args:
        most: How many.
        name: For their names.
    """

    def __init__(self, most: int, *, name: str) -> None:
        self._most = most
        self._name = name
        self._given: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []

    def submit(self, work: Callable[..., _Result], *arguments: Any) -> Future[_Result]:
        """Do this as soon as a thread is free."""
        answer: Future[_Result] = Future()
        self._given.put((answer, partial(work, *arguments)))
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._most:
            name = f"{self._name}-{len(self._threads) + 1}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        return answer

    def end(self, *, seconds: float | None = None) -> bool:
        """Wait until all that was given is done; whether it is, and no thread is left.

        Args:
            seconds: How long at most, if not as long as it takes.
        """
        for _ in self._threads:
            self._given.put(None)
        deadline = None if seconds is None else time.monotonic() + seconds
        for thread in self._threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (given := self._given.get()) is not None:
            answer, work = given
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - it is told to who asks for the answer
                answer.set_exception(error)
            else:
                answer.set_result(result)
            del given, answer, work
            self._idle.release()
