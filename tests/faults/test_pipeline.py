"""Several requests on their way at once: offsets in order, and a server that wants fewer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from elastic_transport import ApiResponseMeta, HttpHeaders, NodeConfig
from elasticsearch import ApiError, Elasticsearch

from syncer import consumer as consuming, halting, jobs, lifecycle, pace, pipeline, store, worker as live
from syncer.consumer import ChangeConsumer
from syncer.errors import DocumentError, UnwellError
from syncer.index import BulkOutcome, Index, Rejection
from syncer.job import JobKind
from syncer.lifecycle import Stop
from syncer.model import Composition, Target
from syncer.pace import FIRST_DOCUMENTS, LiveTraffic
from syncer.pipeline import Pipeline, Task
from syncer.refresher import Refresher
from syncer.settings import WorkerSettings
from syncer.worker import Worker
from syncer.writer import Writer
from tests.faults.rules import REFUSED_AGAIN
from tests.faults.test_worker_crashes import Killed
from tests.harness import DEADLINE_SECONDS, World, running, wait_until
from tests.proof import Rule, faces

_SOON_SECONDS = 3.0  # a lane has composed its next request by then, on a busy machine, too
POSTS = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com');
INSERT INTO posts (id, user_id, title, body) SELECT g, 1, 'title', 'body' FROM generate_series(1, {}) AS g
"""


class OvertakenIndex(Index):
    """Lets every other document be written before the first, and dies with that one."""

    def __init__(self, client: Elasticsearch, *, others: int) -> None:
        super().__init__(client, bulk_bytes_max=1_000_000)
        self._left = others
        self._turn = threading.Lock()
        self._is_overtaken = threading.Event()

    def write(self, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        """Write, or wait for all others and die."""
        if any(one.id == "1" for one in compositions):
            assert self._is_overtaken.wait(DEADLINE_SECONDS)
            raise Killed
        outcome = super().write(target, compositions)
        with self._turn:
            self._left -= len(compositions)
            if self._left == 0:
                self._is_overtaken.set()
        return outcome


@faces(
    "a worker dies over a batch that all later ones have overtaken",
    promises=(1,),
    without=Rule(
        "offsets are committed in the order in which batches came",
        module="syncer.worker",
        text="done = list(takewhile(lambda one: one.is_done, self._batches))",
        instead="done = [one for one in self._batches if one.is_done]",
    ),
)
def test_what_is_written_out_of_order_is_committed_in_order(world: World) -> None:
    """Batches that have overtaken an earlier one of their partition do not take its offset along."""
    world.sql(POSTS.format(30))
    with world.relay() as relay:
        relay.run_once()
        with world.elasticsearch() as client:
            worker = Worker(
                connect=world.connect,
                consume=lambda on_change: ChangeConsumer(world.settings.kafka, on_change=on_change),
                index=OvertakenIndex(client, others=29),
                settings=WorkerSettings(batch_changes_max=1),
            )
            try:
                with pytest.raises(Killed):
                    wait_until(lambda: bool(worker.run_once() and False), what="the worker dies")
            finally:
                worker.close()
        with world.index() as index, world.worker(index) as successor:
            world.drain(relay, successor)


class NarrowIndex(Index):
    """Has room for one request at a time, as an Elasticsearch whose queue is full."""

    def __init__(self, client: Elasticsearch) -> None:
        super().__init__(client, bulk_bytes_max=1_000_000)
        self._room = threading.Semaphore(1)
        self.written = 0
        self.refused = 0

    def write(self, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        """Write, or refuse."""
        if not self._room.acquire(blocking=False):
            self.refused += 1
            raise _too_many_requests()
        try:
            self.written += 1
            return super().write(target, compositions)
        finally:
            self._room.release()


def _too_many_requests() -> ApiError:
    node = NodeConfig(scheme="http", host="127.0.0.1", port=9200)
    meta = ApiResponseMeta(status=429, http_version="1.1", headers=HttpHeaders(), duration=0.0, node=node)
    return ApiError("es_rejected_execution_exception", meta=meta, body={"error": {"reason": "queue is full"}})


@faces(
    "Elasticsearch has room for one request at a time",
    promises=(1, 4),
    without=Rule(
        "a window halves when Elasticsearch refuses",
        module="syncer.pace",
        text="self._size = self._bound = max(self._least, self._size / 2)",
        instead="pass",
    ),
)
def test_a_lane_sends_as_much_as_elasticsearch_takes(world: World) -> None:
    """Refused requests are sent again, none is lost, and soon no more are on their way than there is room for."""
    world.sql(POSTS.format(30_000))
    with world.connect() as connection, world.elasticsearch() as client:
        jobs.create(connection, store.served(connection)["blogpost"], JobKind.BACKFILL)
        index = NarrowIndex(client)
        with running(Refresher(connect=world.connect, index=index)):
            world.wait_until_level()
    assert 0 < index.refused < index.written / 4


def handle(worker: Worker, changes: int) -> None:
    """Turn a worker until it has handled so many changes."""
    handled = 0

    def is_through() -> bool:
        nonlocal handled
        handled += worker.run_once().changes
        return handled >= changes

    wait_until(is_through, what="all changes are handled")


class LosingIndex(Index):
    """Asks to try every document again the first time that it sees it, each by itself, as a full queue does."""

    def __init__(self, client: Elasticsearch) -> None:
        super().__init__(client, bulk_bytes_max=1_000_000)
        self._seen: set[str] = set()

    def write(self, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        """Write those that were refused before."""
        new = [one for one in compositions if one.id not in self._seen]
        self._seen.update(one.id for one in new)
        outcome = super().write(target, [one for one in compositions if one not in new])
        outcome.rejections += [Rejection(composition=one, status=429, kind="rejected", reason="full") for one in new]
        return outcome


@faces("single documents of a request are refused with 429", promises=(1, 4), without=REFUSED_AGAIN)
def test_what_is_refused_by_itself_is_sent_again(world: World) -> None:
    """Documents that are refused in a request that is answered are not counted as written, by workers and by lanes."""
    world.sql(POSTS.format(30))
    with world.relay() as relay, world.elasticsearch() as client:
        relay.run_once()
        with world.worker(LosingIndex(client)) as worker:
            handle(worker, 31)
        assert world.differences() == []
        world.sql("TRUNCATE posts CASCADE")
        world.sql(
            "INSERT INTO posts (id, user_id, title, body) SELECT g, 1, 'new', 'new' FROM generate_series(1, 99) g"
        )
        with world.connect() as connection:
            jobs.create(connection, store.served(connection)["blogpost"], JobKind.BACKFILL)
        world.refresh(LosingIndex(client))
    assert world.differences() == []


@contextmanager
def writing(
    world: World,
    index: Index,
    *,
    keep: Callable[[], None] = lambda: None,
    halt: Callable[[DocumentError], object] | None = None,
    batch_documents_max: int = 1000,
    traffic: LiveTraffic | None = None,
) -> Iterator[Pipeline]:
    """A pipeline by itself."""
    with world.connect() as connection:
        writer = Writer(
            connect=lambda: world.connect(name="composing"), index=index, pause=Stop().pause, name="composing"
        )
        made = Pipeline(
            writer=writer,
            halt=halt or (lambda error: halting.halt(connection, error)),
            keep=keep,
            heed=lambda: None,
            leave=left_to_nobody,
            name="test",
            in_flight_max=4,
            batch_documents_max=batch_documents_max,
            batch_bytes_max=8_000_000,
            traffic=traffic,
        )
        try:
            yield made
        finally:
            made.drop()
            writer.close()


def left_to_nobody(_: Task, ids: Sequence[str], error: UnwellError) -> None:
    """For tests in which every index is well."""
    raise AssertionError(ids) from error


def numbers(end: int, *, begin: int = 1) -> list[str]:
    """Ids of posts."""
    return [str(one) for one in range(begin, end + 1)]


def land_all(made: Pipeline) -> None:
    """Wait for all that is on its way."""
    while not made.is_empty:
        made.land()


class Interrupted:
    """Halts documents, but that Postgres is away the first time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.calls = 0

    def __call__(self, error: DocumentError) -> None:
        """Halt, or fail."""
        self.calls += 1
        if self.calls == 1:
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        with self._world.connect() as connection:
            halting.halt(connection, error)


@faces(
    "Postgres is away just when a document is to halt",
    promises=(1,),
    without=Rule(
        "a request is forgotten only once it is settled",
        module="syncer.pipeline",
        text="self._settle(answer, flight)",
        instead="self._flights.pop(answer)\n"
        "            self._settle(answer, flight)\n"
        "            self._flights[answer] = flight",
    ),
)
def test_a_slice_whose_halt_cannot_be_written_down_is_settled_later(world: World) -> None:
    """Postgres goes away just then: its task is not done before the halt is there, and is done after that.

    Else the offsets of its changes, and of all that come after them, would never be committed.
    """
    world.sql(POSTS.format(3))
    name = world.index_of()
    halt = Interrupted(world)
    with world.index() as index, world.elasticsearch() as client, writing(world, index, halt=halt) as made:
        client.indices.delete(index=name)
        task = Task()
        made.write(task, name, numbers(3))
        task.is_given = True
        with pytest.raises(psycopg.OperationalError):
            land_all(made)
        assert not task.is_done
        land_all(made)
    assert task.is_done
    assert halt.calls == 2


@faces(
    "Postgres is away while a batch is handed over",
    promises=(1,),
    without=Rule(
        "only what is on its way counts as on its way",
        module="syncer.pipeline",
        text="def _launch(self, one: _Slice) -> None:\n",
        instead="def _launch(self, one: _Slice) -> None:\n        one.task.open += 1\n",
    ),
)
def test_what_is_handed_over_again_counts_once(world: World) -> None:
    """A worker hands a batch over again when Postgres was away in the middle of it: it is done once that is."""
    world.sql(POSTS.format(3))
    name = world.index_of()
    halt = Interrupted(world)
    world.sql("ALTER TABLE posts DROP COLUMN body CASCADE")
    with world.index() as index, writing(world, index, halt=halt) as made:
        task = Task()
        with pytest.raises(psycopg.OperationalError):
            made.write(task, name, numbers(3))
        made.write(task, name, numbers(3))
        task.is_given = True
        assert task.is_done
    assert halt.calls == 2


@faces(
    "something fails while documents are composed",
    promises=(2,),
    without=Rule(
        "whoever is told of an error finds the writer at rest",
        module="syncer.pipeline",
        text="wait([done])  # the writer is not for two threads at once",
        instead="pass",
    ),
)
def test_a_writer_is_let_go_of_before_anybody_else_has_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something fails while documents are composed: whoever is told so may compose again at once.

    In the middle of the transaction of the first, the second would read a snapshot from before its own draw.
    """
    world.sql(POSTS.format(3))
    monkeypatch.setattr(pipeline, "KEEP_SECONDS", 0.05)

    def fail() -> None:
        raise RuntimeError

    busy = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'syncer composing' AND state <> 'idle'"
    name = world.index_of()
    with world.index() as index, writing(world, index, keep=fail) as made, world.application() as other:
        other.execute("LOCK TABLE posts")
        with pytest.raises(RuntimeError):
            made.write(Task(), name, numbers(3))
        assert world.sql(f"{busy} AND datname = current_database()") == [(0,)]


class HangingIndex(Index):
    """Does not answer the first request, as long as the test lasts, and the others slowly."""

    def __init__(self, client: Elasticsearch) -> None:
        super().__init__(client, bulk_bytes_max=1_000_000)
        self.has_one, self.goes_on, self.go_on = threading.Event(), threading.Event(), threading.Event()

    def write(self, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        """Hang, or be slow."""
        if not self.has_one.is_set():
            self.has_one.set()
            self.go_on.wait(DEADLINE_SECONDS)
        self.goes_on.set()
        time.sleep(0.1)
        return super().write(target, compositions)


@faces(
    "one of several requests hangs while a worker is told to stop in the middle of a long batch",
    promises=(1,),
    without=Rule(
        "what hangs is not waited for longer than what is in hand may take",
        module="syncer.worker",
        text="self._pipeline.drop(seconds=self._stop.seconds_left)",
        instead="self._pipeline.drop(seconds=0 if self._stop.is_overdue else None)",
    ),
)
def test_a_stop_in_a_long_batch_waits_for_no_hung_request(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves the rest of the batch at once, and what hangs soon after."""
    monkeypatch.setattr(lifecycle, "GRACE_SECONDS", 1)
    monkeypatch.setattr(live, "_LONG_BATCH_SECONDS", 0)
    world.sql(POSTS.format(500))
    with world.relay() as relay, world.elasticsearch() as client:
        relay.run_once()
        index = HangingIndex(client)
        worker = Worker(
            connect=world.connect,
            consume=lambda on_change: ChangeConsumer(world.settings.kafka, on_change=on_change),
            index=index,
            settings=WorkerSettings(batch_documents_max=10),
        )
        try:
            with running(worker, seconds=10):
                assert index.goes_on.wait(DEADLINE_SECONDS)
        finally:
            index.go_on.set()
            wait_until(lambda: "worker-work" not in str(threading.enumerate()), what="it is through")
            worker._writer.close()


@faces("a stage begins afresh after every trouble, for months", promises=())
def test_no_thread_is_left_by_who_has_closed(world: World) -> None:
    """A stage begins afresh after every trouble, for months."""
    world.sql(POSTS.format(30))
    with world.index() as index, world.relay() as relay, world.worker(index, name="leaving") as worker:
        relay.run_once()
        handle(worker, 31)
        assert any(one.name.startswith("leaving-work") for one in threading.enumerate())
        worker.close()
        assert not any(one.name.startswith("leaving-work") for one in threading.enumerate())


class HeldIndex(Index):
    """Holds what it is to write until the test has seen too much, or for a while; counts what is held."""

    def __init__(self, client: Elasticsearch, *, too_much: threading.Event | None = None, most: int = 0) -> None:
        super().__init__(client, bulk_bytes_max=1_000_000)
        self.too_much = too_much or threading.Event()
        self._most = most
        self._held = 0
        self._turn = threading.Lock()

    def write(self, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        """Write, when it is time."""
        with self._turn:
            self._held += len(compositions)
            if self._held > self._most > 0:
                self.too_much.set()
        self.too_much.wait(1)
        outcome = super().write(target, compositions)
        with self._turn:
            self._held -= len(compositions)
        return outcome


@faces(
    "more documents come than there is room for",
    promises=(4,),
    without=Rule(
        "no more is on its way than the window allows",
        module="syncer.pipeline",
        text="and self.documents + documents <= self._window.documents",
        instead="",
    ),
)
def test_no_more_is_on_its_way_than_the_window_allows(world: World) -> None:
    """Of documents in flight at once: as many as a window has at first, until an answer has come."""
    world.sql(POSTS.format(2000))
    name = world.index_of()
    with world.elasticsearch() as client:
        index = HeldIndex(client, most=FIRST_DOCUMENTS)
        with writing(world, index) as made:
            made.write(Task(), name, numbers(400))
            made.write(Task(), name, numbers(900, begin=401))
            land_all(made)
    assert not index.too_much.is_set()


@faces(
    "live changes are late beside a job",
    promises=(4,),
    without=Rule(
        "a lane halves its window when live changes are late",
        module="syncer.pipeline",
        text="elif self._traffic is None or not self._window.shrink(begun_at=self._traffic.late_begun_at):",
        instead="elif True:",
    ),
)
def test_a_lane_makes_way_for_live_changes_that_are_late(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While batches take too long its window shrinks with each answer; after a while without it grows again."""
    monkeypatch.setattr(pace, "HOLD_SECONDS", 0.0)
    world.sql(POSTS.format(2000))
    name = world.index_of()
    traffic = LiveTraffic(late_seconds=0)
    with world.index() as index, writing(world, index, traffic=traffic) as made:
        made.write(Task(), name, numbers(2000))
        land_all(made)
        open_ = made._window.documents
        assert open_ > FIRST_DOCUMENTS
        for _ in range(3):
            traffic.note(begun_at=time.monotonic())
            made.write(Task(), name, numbers(50))
            land_all(made)
        assert made._window.documents == open_ // 8
        made.write(Task(), name, numbers(50))
        land_all(made)
        assert made._window.documents > open_ // 8


@faces(
    "single edits come beside a job",
    promises=(4,),
    without=Rule(
        "while live changes flow, requests of jobs are small",
        module="syncer.pipeline",
        text="most = min(most, _BESIDE_TRAFFIC_DOCUMENTS)",
        instead="pass",
    ),
)
def test_requests_of_a_lane_are_small_while_live_changes_flow(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single edit that comes meanwhile waits in Elasticsearch behind hundreds of documents, not behind thousands."""
    monkeypatch.setattr(pace, "HOLD_SECONDS", 0.0)
    monkeypatch.setattr(pace, "_STEP_SECONDS", 0.0)
    world.sql(POSTS.format(2000))
    traffic = LiveTraffic(late_seconds=60)
    flow(traffic)
    with world.index() as index, writing(world, index, traffic=traffic) as made:
        seen = Requests(index, monkeypatch)
        made.write(Task(), world.index_of(), numbers(50))  # by these it is known how large they are
        land_all(made)
        for flows in (True, False):
            seen.forget()
            monkeypatch.setattr(pace, "_FLOWING_SECONDS", DEADLINE_SECONDS if flows else 0)
            made.write(Task(), world.index_of(), numbers(2000))
            land_all(made)
            assert sum(seen.sizes) == 2000
            assert (max(seen.sizes) <= 250) is flows


@faces(
    "single edits begin to come beside a job",
    promises=(4,),
    without=Rule(
        "once live changes flow, a lane begins with one request at a time",
        module="syncer.pipeline",
        text="self._window.limit(_BESIDE_TRAFFIC_DOCUMENTS)",
        instead="pass",
    ),
)
def test_a_lane_has_one_request_on_its_way_once_live_changes_flow(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elasticsearch has a thread left for single edits; after a while that goes well the lane tries more again."""
    monkeypatch.setattr(pace, "HOLD_SECONDS", DEADLINE_SECONDS)
    monkeypatch.setattr(pace, "_STEP_SECONDS", 0.0)
    monkeypatch.setattr(pace, "_FLOWING_SECONDS", DEADLINE_SECONDS)
    world.sql(POSTS.format(2000))
    traffic = LiveTraffic(late_seconds=60)
    with world.index() as index, writing(world, index, batch_documents_max=250, traffic=traffic) as made:
        seen = Requests(index, monkeypatch, wait_seconds=_SOON_SECONDS)
        made.write(Task(), world.index_of(), numbers(2000))
        assert seen.most_at_once > 1
        land_all(made)
        flow(traffic)
        seen.forget()
        for is_held in (True, False):
            seen.wait_seconds = 0.2 if is_held else _SOON_SECONDS
            if not is_held:
                made._window._held_until = 0.0
            made.write(Task(), world.index_of(), numbers(2000))
            land_all(made)
            assert (seen.most_at_once == 1) is is_held


class Requests:
    """Notes bulk requests that an index is sent: how many documents each has, how many are on their way at once.

    Args:
        index: Which.
        wait_seconds: How long each waits for another one, as long as none has met another one.
    """

    def __init__(self, index: Index, monkeypatch: pytest.MonkeyPatch, *, wait_seconds: float = 0) -> None:
        self.forget()
        self.wait_seconds = wait_seconds
        self._write = index.write
        monkeypatch.setattr(index, "write", self._noted)

    def forget(self) -> None:
        """Begin anew."""
        self.sizes: list[int] = []
        self.most_at_once = 0
        self._now = 0
        self._changed = threading.Condition()

    def _noted(self, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        with self._changed:
            self.sizes.append(len(compositions))
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most_at_once > 1, timeout=self.wait_seconds)
        try:
            return self._write(target, compositions)
        finally:
            with self._changed:
                self._now -= 1


def flow(traffic: LiveTraffic) -> None:
    """As many live changes as are more than the few that a job is made for."""
    for _ in range(20):
        traffic.note(begun_at=time.monotonic())


def put_users(world: World) -> None:
    """Changes that touch no document."""
    world.sql("INSERT INTO users (id, name, email) SELECT g, 'John', g::text FROM generate_series(2, 3000) AS g")
    with world.relay() as relay:
        relay.run_once()


def put_garbage(world: World) -> None:
    """Records that are no changes, in every partition."""
    kafka = world.settings.kafka
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(3000):
        producer.produce(kafka.topic, b"garbage", partition=number % kafka.partitions)
    producer.flush()


@pytest.mark.parametrize("put", [put_users, put_garbage])
@faces(
    "thousands of changes that touch nothing, or of records that are none, come behind a slow one",
    promises=(1,),
    without=Rule(
        "a worker that has enough in hand receives no more",
        module="syncer.worker",
        text="and sum(len(one.received.values) for one in self._batches) < _RECORDS_IN_HAND",
        instead="",
    ),
)
def test_what_is_in_hand_is_bounded_though_it_touches_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, put: Callable[[World], None]
) -> None:
    """Batches without documents wait in memory for the one before them that is slow: so many, and no more."""
    monkeypatch.setattr(live, "_RECORDS_IN_HAND", 500)
    world.sql(POSTS.format(1))
    too_much = threading.Event()

    class Watched(Worker):
        def _receive(self, wait_seconds: float) -> None:
            super()._receive(wait_seconds)
            if sum(len(one.received.values) for one in self._batches) >= 500 + 100:
                too_much.set()

    with world.relay() as relay:
        relay.run_once()
    put(world)
    with world.elasticsearch() as client:
        worker = Watched(
            connect=world.connect,
            consume=lambda on_change: ChangeConsumer(world.settings.kafka, on_change=on_change),
            index=HeldIndex(client, too_much=too_much),
            settings=WorkerSettings(batch_changes_max=100),
        )
        try:
            handle(worker, 2 if put is put_garbage else 3001)
        finally:
            worker.close()
    assert not too_much.is_set()
    assert world.differences() == []


@faces(
    "a worker says that it is there while fetched records wait",
    promises=(1,),
    without=Rule(
        "a worker that only says that it is there fetches nothing",
        module="syncer.consumer",
        text="self._consumer.pause(assigned)",
        instead="self._consumer.poll(0)",
    ),
)
def test_staying_in_the_group_skips_nothing_that_was_fetched(world: World) -> None:
    """Records wait in the client's memory while a worker says that it is there: none is lost, none comes twice."""
    world.sql("INSERT INTO users (id, name, email) SELECT g, 'John', g::text FROM generate_series(1, 1000) AS g")
    with world.relay() as relay:
        relay.run_once()
    consumer = ChangeConsumer(world.settings.kafka, on_change=lambda *_: None)
    try:
        offsets: dict[int, int] = {}
        values: list[bytes] = []

        def receive() -> bool:
            received = consumer.receive(records_max=50, wait_seconds=0.05)
            consumer.keep_alive()
            if received is not None:
                values.extend(received.values)
                offsets.update(received.next_offsets)
            return len(values) >= 1000

        wait_until(receive, what="all records have come")
        assert len(values) == len(set(values)) == sum(offsets.values()) == 1000
    finally:
        consumer.close()


class UnwillingConsumer(Consumer):
    """Cannot pause."""

    def pause(self, *_: object) -> None:
        """Fail."""
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


@faces(
    "saying that it is there fails",
    promises=(1,),
    without=Rule(
        "who may have skipped something joins anew",
        module="syncer.consumer",
        text="self._stay()\n        except KafkaException as error:\n            self._failure = error",
        instead="self._stay()\n        except KafkaException:\n            pass",
    ),
)
def test_a_consumer_that_could_not_stay_receives_nothing_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Composing goes on; but what may have been skipped is not passed over: only who joins anew gets it for sure."""
    monkeypatch.setattr(consuming, "Consumer", UnwillingConsumer)
    consumer = ChangeConsumer(world.settings.kafka, on_change=lambda *_: None)
    try:
        consumer.keep_alive()
        with pytest.raises(KafkaException):
            consumer.receive(records_max=1, wait_seconds=0)
    finally:
        consumer.close()
