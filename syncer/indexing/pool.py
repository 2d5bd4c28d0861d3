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
from syncer.base.model import WriteReport
from syncer.base.postgres import Connection
from syncer.elasticsearch.bulk import Index
from syncer.indexing.flow_control import FlowControl
from syncer.indexing.writer import Shared, Writer

_NO_ORIGIN: Mapping[str, int] = {}


@dataclass(slots=True, kw_only=True, eq=False)
class _Submission:
    """Documents that were submitted together.

    Args:
        index_name: The index to write to.
        options: The options of `Writer.write`.
        left: How many of its slices are not done.
        report: The result of the finished slices.
        done: The future of the whole submission.
    """

    index_name: str
    options: dict[str, Any]
    left: int
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
        flow: How much goes into a request, and how many requests are in flight; a thread for each.
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
        self._shared = Shared(name=name, flow=flow)
        self._flow = flow
        self._name = name
        self._make = partial(Writer, connect=connect, index=index, pause=pause, name=name, shared=self._shared)
        self._changed = threading.Condition()
        self._slices: deque[tuple[_Submission, Sequence[str]]] = deque()
        """Those that no thread has taken."""
        self._crew = _Crew()
        self._dropped = 0

    @property
    def has_room(self) -> bool:
        """Whether to submit more: nothing waits for a thread, or a thread is idle or can be started."""
        with self._changed:
            return not self._slices or self._crew.idle > 0 or len(self._crew.threads) < self._flow.slices_max

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
        size = self._flow.documents(index_name)
        slices = [ids[begin : begin + size] for begin in range(0, max(1, len(ids)), size)]
        with self._changed:
            dropped = self._dropped
            options = {
                "everywhere": everywhere,
                "origin": origin,
                "resumes": resumes,
                "is_needed": lambda: dropped == self._dropped and is_needed(),
            }
            submission = _Submission(index_name=index_name, options=options, left=len(slices))
            self._slices.extend((submission, part) for part in slices)
            self._call_threads()
        return submission.done

    def report_dead_letters(self) -> None:
        """Log dead letters that are not logged yet, if it is time."""
        self._shared.dead_lettered.report()

    def drop(self) -> None:
        """Start no more of what was submitted, and retry none of it; its futures are never done."""
        with self._changed:
            self._slices.clear()
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
        if crew.idle < len(self._slices) and len(crew.threads) < self._flow.slices_max:
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

    def _next(self, crew: _Crew) -> tuple[_Submission, Sequence[str]] | None:
        """Return the next slice, once there is one; None if the thread has to end."""
        with self._changed:
            crew.idle += 1
            while not self._slices and not crew.is_leaving:
                self._changed.wait()
            crew.idle -= 1
            if crew.is_leaving:
                return None
            taken = self._slices.popleft()
            if self._slices:
                self._call_threads()
            return taken

    def _write(self, writer: Writer, submission: _Submission, ids: Sequence[str]) -> None:
        """Write one slice, and complete its submission once all of it is done, or with the first error."""
        report, failure = WriteReport(), None
        try:
            try:
                report = writer.write(submission.index_name, ids, **submission.options)
            except DocumentError as error:
                writer.suspend(error)
                raise
        except BaseException as error:  # noqa: BLE001 - the future passes it on
            failure = error
        with self._changed:
            submission.left -= 1
            submission.report.add(report)
            if failure is not None:
                self._slices = deque(each for each in self._slices if each[0] is not submission)
            if submission.done.done():
                pass
            elif failure is not None:
                submission.done.set_exception(failure)
            elif not submission.left:
                submission.done.set_result(submission.report)
