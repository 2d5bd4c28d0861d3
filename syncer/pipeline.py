"""Pipeline: documents are composed while those before them are being written.

Elasticsearch orders writes by their versions, not by when they come: so several requests may be on their way at once,
also with the same document. Whatever does not go smoothly is left to `Writer.write`, which tries again, parks and
halts. Workers and refreshers both write so; what they wait for as a whole is a `Task`.

Guarantees: a task is done only when each of its documents has been written, found superseded, or parked, or its
document is halted, or it was left to whoever has handed it over; who is told of an error may go on: what was on its
way then is not lost, and what was being handed over is to be handed over again; how much is in memory does not depend
on how much there is to write, as long as one document fits into a bulk request; no more is on its way than the window
allows: see `syncer.pace`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from syncer.errors import DocumentError, UnwellError
from syncer.lifecycle import Abandoned, Stopping
from syncer.model import Role
from syncer.pace import LiveTraffic, Window
from syncer.policy import Action, decide
from syncer.threads import Threads
from syncer.traces import OFF, Trace
from syncer.writer import Attempt, Writer, WriteReport

KEEP_SECONDS = 1.0
"""How often to say that we are still at it, and to ask whether to go on."""
_UNKNOWN_DOCUMENTS = 50
"""How many documents are composed together as long as nobody knows how large they are."""
_BESIDE_TRAFFIC_DOCUMENTS = 250
"""How many of a job's documents are composed together while live changes flow, and may be on their way when they begin
to: they wait in Elasticsearch behind whole requests, behind small ones less, and behind one hardly, where it has a
thread left for them."""
_MEAN_OVER = 8

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Last:
    """A document that was written.

    Args:
        index_name: In which index.
        id: Its id.
        routing: What leads to its shard.
        version: Its version.
    """

    index_name: str
    id: str
    routing: str
    version: int


@dataclass(slots=True, kw_only=True, eq=False)
class Task:
    """Documents that somebody waits for as a whole.

    Args:
        is_given: Whether all of them have been handed to the pipeline.
        open: How many slices of them are on their way.
        report: What has become of those that no longer are.
        last: One that was written last.
        origin: What it is, for the log: the fields of each of its documents.
        trace: Who is told how its parts go.
    """

    is_given: bool = False
    open: int = 0
    report: WriteReport = field(default_factory=WriteReport)
    last: Last | None = None
    origin: Mapping[str, int] = field(default_factory=dict)
    trace: Trace = OFF

    @property
    def is_done(self) -> bool:
        """Whether all of it is."""
        return self.is_given and not self.open


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Slice:
    """Documents of a task that are composed and sent together."""

    task: Task
    index_name: str
    ids: Sequence[str]
    everywhere: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Flight:
    """A slice that is being sent.

    Args:
        slice: Which.
        attempt: What was composed.
        size: How many bytes that are.
        begun_at: When it was sent.
    """

    slice: _Slice
    attempt: Attempt
    size: int
    begun_at: float


class Pipeline:
    """Writes tasks. Not for sharing between threads.

    Args:
        writer: Which nobody else uses meanwhile.
        halt: Halts the document of an error; the slice that met it counts as done then.
        keep: Called now and then while something takes long, to say that we are still at it; may raise `Stopping`, so
            that what is on its way is waited for no longer: it is to be dropped then, and the writer too.
        heed: Called before each slice; may raise `Stopping`, so that the rest of the task is left.
        name: For its threads.
        in_flight_max: How many bulk requests are on their way at once.
        batch_documents_max: How many documents are composed together.
        batch_bytes_max: How large together they may be, as far as that is known beforehand.
        traffic: Live changes to make way for; None for who writes them.
    """

    def __init__(
        self,
        *,
        writer: Writer,
        halt: Callable[[DocumentError], object],
        keep: Callable[[], None],
        heed: Callable[[], None],
        leave: Callable[[Task, Sequence[str], UnwellError], None],
        name: str,
        in_flight_max: int,
        batch_documents_max: int,
        batch_bytes_max: int,
        traffic: LiveTraffic | None = None,
    ) -> None:
        self._writer = writer
        self._halt = halt
        self._keep = keep
        self._heed = heed
        self._leave = leave
        self._in_flight_max = in_flight_max
        self._batch_documents_max = batch_documents_max
        self._batch_bytes_max = batch_bytes_max
        self._traffic = traffic
        self._is_beside_traffic = False
        self._window = Window(request=batch_documents_max, most=in_flight_max * batch_documents_max)
        self._name = name
        self._threads = self._new_threads()
        self._flights: dict[Future[None], _Flight] = {}
        self._document_bytes: dict[str, float] = {}
        self.patient_with: Task | None = None
        """Whose slice is being tried again and again; who waits in between may raise `Abandoned`."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is on its way."""
        return not self._flights

    @property
    def documents(self) -> int:
        """How many documents are on their way."""
        return sum(len(one.slice.ids) for one in self._flights.values())

    @property
    def documents_max(self) -> int:
        """How many documents may be on their way now."""
        return self._window.documents

    @property
    def has_room(self) -> bool:
        """Whether a small request may be sent now."""
        return self._has_room_for(1)

    def write(self, task: Task, index_name: str, ids: Sequence[str], *, everywhere: bool = False) -> None:
        """Compose documents, and send them as soon as there is room; returns when the last of them is on its way.

        Raises:
            Stopping: From ``heed``. The task is not done then.
            Exception: What the policy says to HALT for; likewise.
        """
        begun = 0
        while begun < len(ids):
            self._heed()
            self._make_way()
            end = min(len(ids), begun + self._slice_documents(index_name))
            while not self._has_room_for(end - begun):
                self.land()
            self._launch(_Slice(task=task, index_name=index_name, ids=ids[begun:end], everywhere=everywhere))
            begun = end

    def land(self, *, seconds: float | None = None) -> None:
        """Wait for a request, and settle those that have been answered.

        Args:
            seconds: How long to wait at most, if not as long as somebody may be silent.

        Raises:
            Stopping: From ``keep``.
            Exception: What the policy says to HALT for.
        """
        landed, _ = wait(
            self._flights, timeout=KEEP_SECONDS if seconds is None else seconds, return_when=FIRST_COMPLETED
        )
        self._keep()
        for answer in landed:
            flight = self._flights[answer]
            self._settle(answer, flight)
            # Only now: if it could not be settled, it is settled the next time.
            del self._flights[answer]
            flight.slice.task.open -= 1

    def drop(self, *, seconds: float | None = None) -> bool:
        """Wait for what is on its way, and forget it: its tasks are not done.

        Args:
            seconds: How long to wait at most, if not as long as it takes.

        Returns:
            Whether no thread is left. If not, the writer is in use still.
        """
        is_through = self._threads.end(seconds=seconds)
        self._flights.clear()
        self._threads = self._new_threads()
        return is_through

    def _new_threads(self) -> Threads:
        """Once they are needed: for those in flight, and for one that is composed."""
        return Threads(self._in_flight_max + 1, name=f"{self._name}-work")

    def _has_room_for(self, documents: int) -> bool:
        flights = self._flights.values()
        if not flights:
            return True
        return (
            len(flights) < self._in_flight_max
            and self.documents + documents <= self._window.documents
            # Of large documents two at once keep Elasticsearch busy.
            and sum(one.size for one in flights) < 2 * self._batch_bytes_max
        )

    def _make_way(self) -> None:
        """See whether live changes flow, and begin with one request at a time if they now do."""
        was_beside = self._is_beside_traffic
        self._is_beside_traffic = self._traffic is not None and self._traffic.is_flowing
        begins = self.is_empty and self._window.resume()
        if self._is_beside_traffic and (begins or not was_beside):
            self._window.limit(_BESIDE_TRAFFIC_DOCUMENTS)

    def _slice_documents(self, index_name: str) -> int:
        """How many documents to compose together: by what they weighed so far, and as the window allows."""
        weight = self._document_bytes.get(index_name)
        fitting = _UNKNOWN_DOCUMENTS if weight is None else int(self._batch_bytes_max / weight)
        most = min(self._batch_documents_max, self._window.documents, fitting)
        if self._is_beside_traffic:
            most = min(most, _BESIDE_TRAFFIC_DOCUMENTS)
        return max(1, most)

    def _launch(self, one: _Slice) -> None:
        compose = partial(
            self._writer.compose, one.index_name, one.ids, everywhere=one.everywhere, origin=one.task.origin
        )
        try:
            with one.task.trace.stage("compose"):
                attempt = self._meanwhile(compose)
        except Exception as error:
            if decide(error) is Action.HALT:
                raise
            self._write_slowly(one, one.ids)
        else:
            size = self._weigh(one.index_name, attempt)
            answer = self._threads.submit(self._send, one.task.trace, attempt)
            self._flights[answer] = _Flight(slice=one, attempt=attempt, size=size, begun_at=time.monotonic())
            one.task.open += 1

    def _send(self, trace: Trace, attempt: Attempt) -> None:
        with trace.stage("index"):
            self._writer.send(attempt)

    def _weigh(self, index_name: str, attempt: Attempt) -> int:
        """Remember how large documents are; how many bytes these are together."""
        sizes = [len(one.source) for one in attempt.batch.compositions if one.source is not None]
        if sizes:
            now = sum(sizes) / len(sizes)
            mean = self._document_bytes.get(index_name, now)
            # Quick to grow, slow to shrink.
            self._document_bytes[index_name] = max(now, mean + (now - mean) / _MEAN_OVER)
        return sum(sizes)

    def _settle(self, answer: Future[None], flight: _Flight) -> None:
        one, attempt = flight.slice, flight.attempt
        try:
            answer.result()
            again = self._writer.settle(attempt)
        except UnwellError as error:
            self._leave(one.task, one.ids, error)
            return
        except Exception as error:
            if decide(error) is Action.HALT:
                raise
            self._window.shrink(begun_at=flight.begun_at)
            self._write_slowly(one, one.ids)
            return
        self._adapt(flight, is_refused=bool(attempt.refused))
        one.task.report.add(attempt.report)
        if again:
            self._write_slowly(one, again)
        elif not attempt.rejections:
            one.task.last = _last(one, attempt) or one.task.last

    def _adapt(self, flight: _Flight, *, is_refused: bool) -> None:
        if is_refused:
            self._window.shrink(begun_at=flight.begun_at)
        elif self._traffic is None or not self._window.shrink(begun_at=self._traffic.late_begun_at):
            self._window.grow(len(flight.slice.ids))

    def _write_slowly(self, one: _Slice, ids: Sequence[str]) -> None:
        """Write a slice that did not go smoothly: with patience, or to find out what is at fault."""
        self.patient_with = one.task
        try:
            write = partial(self._writer.write, one.index_name, ids, everywhere=one.everywhere, origin=one.task.origin)
            one.task.report.add(self._meanwhile(write))
        except Abandoned:
            return
        except UnwellError as error:
            self._leave(one.task, ids, error)
        except DocumentError as error:
            # What is skipped from here on is made good by the fill of the next generation: `syncer.halting`.
            self._halt(error)
        finally:
            self.patient_with = None

    def _meanwhile(self, work: Callable[[], _Result]) -> _Result:
        """Do something that may take long, while saying that we are still at it."""
        done = self._threads.submit(work)
        while wait([done], timeout=KEEP_SECONDS).not_done:
            self._keep_on(done)
        return done.result()

    def _keep_on(self, done: Future[_Result]) -> None:
        try:
            self._keep()
        except Stopping:
            raise
        except BaseException:
            wait([done])  # the writer is not for two threads at once
            raise


def _last(one: _Slice, attempt: Attempt) -> Last | None:
    """A document of a slice that was written where searches find it; None if there is none, as when all are deleted."""
    if attempt.batch.document is None or attempt.batch.document.role is not Role.SERVING:
        return None
    for composition in attempt.batch.compositions:
        if composition.source is not None:
            return Last(
                index_name=one.index_name,
                id=composition.id,
                routing=composition.routing or composition.id,
                version=composition.version,
            )
    return None
