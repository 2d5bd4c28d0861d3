"""Writer pool: a few threads that write documents for one component, each with a writer and a connection of its own.

The component submits ids and gets a future. The pool cuts the ids into slices as `syncer.indexing.flow_control` says.
Each thread takes one slice after the other, and brings it from its ids into Elasticsearch. Elasticsearch orders writes
by their versions, not by their arrival, so slices may overtake each other.

If a definition has to be suspended, the thread records it, and the future raises the error.

Guarantees: a future has a result only once each of its documents is written, skipped or dead-lettered. Memory use
depends neither on the number of ids nor on the size of documents. Dropped slices are not begun, and those that have
begun do no harm.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from syncer.base.errors import DocumentError
from syncer.base.lifecycle import join
from syncer.base.postgres import Connection
from syncer.base.write_report import WriteReport
from syncer.elasticsearch.bulk import Index
from syncer.indexing.flow_control import FlowControl
from syncer.indexing.writer import Shared, Writer

_NO_ORIGIN: Mapping[str, int] = {}


@dataclass(slots=True, kw_only=True, eq=False)
class _Submission:
    """Documents that were submitted together.

    Args:
        index_name: The index to write to.
        ids: The ids that no thread has taken.
        options: The options of `Writer.write`.
        is_needed: Whether the result is still wanted.
        open: The number of slices that threads are writing.
        report: The result of the finished slices.
        done: The future of the whole submission.
    """

    index_name: str
    ids: deque[str]
    options: dict[str, Any]
    is_needed: Callable[[], bool]
    open: int = 0
    report: WriteReport = field(default_factory=WriteReport)
    done: Future[WriteReport] = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class _Crew:
    """The threads that write, until they are told to stop.

    Args:
        threads: All of them.
        idle: How many of them are idle.
        is_leaving: Whether they have to stop.
    """

    threads: list[threading.Thread] = field(default_factory=list)
    idle: int = 0
    is_leaving: bool = False


class WriterPool:
    """Writes documents in threads of its own, started on demand. Safe to share between threads.

    Args:
        connect: Opens a connection to Postgres, for each thread.
        index: Elasticsearch.
        pause: Waits before a retry; may raise `Stopping`.
        name: The name of the component, for the log and the names of the threads.
        flow: How much goes into a request, and how many requests are in flight.
        threads: The maximum number of threads.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], Connection],
        index: Index,
        pause: Callable[[float], None],
        name: str,
        flow: FlowControl,
        threads: int,
    ) -> None:
        self._shared = Shared(name=name, flow=flow)
        self._flow = flow
        self._name = name
        self._most = threads
        self._make = partial(
            Writer,
            connect=connect,
            index=index,
            pause=pause,
            name=name,
            shared=self._shared,
        )
        self._changed = threading.Condition()
        self._tasks: deque[_Submission] = deque()
        self._crew = _Crew()
        self._open = self._dropped = 0

    @property
    def has_room(self) -> bool:
        """Whether to submit more: nothing waits for a thread, or a thread is idle or can be started."""
        with self._changed:
            return not self._tasks or self._crew.idle > 0 or len(self._crew.threads) < self._most

    @property
    def documents(self) -> int:
        """The number of documents that are being written or are waiting."""
        with self._changed:
            return self._open + sum(len(one.ids) for one in self._tasks)

    def submit(
        self,
        index_name: str,
        ids: Sequence[str],
        *,
        everywhere: bool = False,
        origin: Mapping[str, int] = _NO_ORIGIN,
        resumes: bool = False,
        is_needed: Callable[[], bool] = lambda: True,
    ) -> Future[WriteReport]:
        """Bring documents up to date in one index: see `Writer.write`.

        Returns:
            A future of the report. It raises what `Writer.write` raises; a definition that has to be suspended is.
        """
        options = {"everywhere": everywhere, "origin": origin, "resumes": resumes}
        with self._changed:
            dropped = self._dropped
            task = _Submission(
                index_name=index_name,
                ids=deque(ids),
                options=options,
                is_needed=lambda: dropped == self._dropped and is_needed(),
            )
            self._tasks.append(task)
            self._call_threads()
        return task.done

    def tell(self) -> None:
        """Log dead letters that are not logged yet, if it is time."""
        self._shared.dead_lettered.tell()

    def drop(self) -> None:
        """Start no more of what was submitted, and retry none of it; its futures are never done."""
        with self._changed:
            self._tasks.clear()
            self._dropped += 1

    def close(self, *, seconds: float | None = None) -> bool:
        """Drop what was submitted, and wait for the slices in progress; the next submission starts new threads.

        Args:
            seconds: How long to wait at most; None for no limit.

        Returns:
            Whether all threads have ended.
        """
        self.drop()
        with self._changed:
            leaving, self._crew = self._crew, _Crew()
            leaving.is_leaving = True
            self._changed.notify_all()
        is_through = join(leaving.threads, seconds=seconds)
        self._shared.dead_lettered.flush()
        return is_through

    # In the pool's threads

    def _call_threads(self) -> None:
        """Wake an idle thread, or start another one."""
        crew = self._crew
        if crew.idle < len(self._tasks) and len(crew.threads) < self._most:
            name = f"{self._name}-writer-{len(crew.threads) + 1}"
            crew.threads.append(threading.Thread(target=self._run, args=(crew,), name=name, daemon=True))
            crew.threads[-1].start()
        self._changed.notify()

    def _run(self, crew: _Crew) -> None:
        writer = self._make()
        try:
            while (taken := self._next(crew)) is not None:
                self._write(writer, *taken)
        finally:
            writer.close()

    def _next(self, crew: _Crew) -> tuple[_Submission, list[str]] | None:
        """Return the next slice, once there is one; None if the thread has to end."""
        with self._changed:
            crew.idle += 1
            while not self._tasks and not crew.is_leaving:
                self._changed.wait()
            crew.idle -= 1
            if crew.is_leaving:
                return None
            task = self._tasks[0]
            size = min(len(task.ids), self._flow.documents(task.index_name))
            ids = [task.ids.popleft() for _ in range(size)]
            if not task.ids:
                self._tasks.popleft()
            task.open += 1
            self._open += len(ids)
            if self._tasks:
                self._call_threads()
            return task, ids

    def _write(self, writer: Writer, task: _Submission, ids: list[str]) -> None:
        """Write one slice, and complete its submission once all of it is done."""
        report, failure = WriteReport(), None
        try:
            try:
                report = writer.write(task.index_name, ids, is_needed=task.is_needed, **task.options)
            except DocumentError as error:
                writer.suspend(error)
                raise
        except BaseException as error:  # noqa: BLE001 - the future passes it on
            failure = error
        with self._changed:
            self._open -= len(ids)
            task.open -= 1
            task.report.add(report)
            if failure is not None and task in self._tasks:
                self._tasks.remove(task)
                task.ids.clear()
            is_done = not task.open and not task.ids
        if failure is not None and not task.done.done():
            task.done.set_exception(failure)
        elif is_done and not task.done.done():
            task.done.set_result(task.report)
