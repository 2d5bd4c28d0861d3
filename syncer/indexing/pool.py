"""Writer pool: a few threads that write documents for one component, each with a writer and a connection of its own.

The component submits ids and gets a future. One thread brings all of them into Elasticsearch, slice by slice: see
`syncer.indexing.writer`. What was submitted later may overtake what was submitted before: versions order them.

Guarantees: a future has a result only once each of its documents is written, skipped or dead-lettered. Memory use
depends neither on the number of ids nor on the size of documents.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import TypeAlias, Unpack

from syncer.base.lifecycle import Stopping, join
from syncer.base.model import WriteReport
from syncer.base.postgres import Connection
from syncer.elasticsearch.bulk import Index
from syncer.indexing.flow_control import FlowControl
from syncer.indexing.writer import Options, Writer

_Tasks: TypeAlias = "SimpleQueue[Callable[[Writer], None] | None]"


class WriterPool:
    """Writes documents in threads of its own, started on demand, as many as ``flow`` allows. For one submitting thread.

    ``pause`` waits before a retry; it may raise `Stopping`.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], Connection],
        index: Index,
        pause: Callable[[float], None],
        name: str,
        flow: FlowControl,
    ) -> None:
        self._name = name
        self._pause = pause
        self._flow = flow
        self._make = partial(Writer, connect=connect, index=index, name=name, flow=flow)
        self._threads: list[threading.Thread] = []
        self._tasks: _Tasks = SimpleQueue()
        self._open: set[Future[WriteReport]] = set()
        """What was submitted and is not done."""

    @property
    def has_room(self) -> bool:
        """Whether to submit more: nothing waits for a thread, and live changes have room."""
        return len(self._open) < self._flow.open_max

    def submit(self, index_name: str, ids: Sequence[str], **options: Unpack[Options]) -> Future[WriteReport]:
        """Bring documents up to date in one index; return a future of what `Writer.write` returns or raises."""
        done, opened = Future[WriteReport](), self._open

        def write(writer: Writer) -> None:
            try:
                tell = partial(done.set_result, writer.write(index_name, ids, **options))
            except BaseException as error:  # noqa: BLE001 - the future passes it on
                tell = partial(done.set_exception, error)
            opened.discard(done)
            tell()

        opened.add(done)
        self._tasks.put(write)
        if len(self._threads) < min(len(opened), self._flow.slices_max):
            name = f"{self._name}-writer-{len(self._threads) + 1}"
            self._threads.append(threading.Thread(target=self._run, args=(self._tasks,), name=name, daemon=True))
            self._threads[-1].start()
        return done

    def close(self, *, seconds: float | None = None) -> bool:
        """Drop what was submitted, and wait for the slices in progress, whose failures are not retried.

        Return whether all threads have ended in this time. The next submission starts new ones.
        """
        leaving, tasks = self._threads, self._tasks
        self._threads, self._tasks, self._open = [], SimpleQueue(), set()
        for _ in leaving:
            tasks.put(None)
        return join(leaving, seconds=seconds)

    def _run(self, tasks: _Tasks) -> None:
        def pause(seconds: float) -> None:
            self._pause(seconds)
            if tasks is not self._tasks:  # closed
                raise Stopping

        writer = self._make(pause=pause)
        try:
            while (write := tasks.get()) is not None:
                if tasks is self._tasks:
                    write(writer)
        finally:
            writer.close()
