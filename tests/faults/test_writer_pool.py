"""Several writers at once: offsets in order, a server that wants fewer or refuses, documents of any size."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer
from elastic_transport import ApiResponseMeta, HttpHeaders, NodeConfig
from elasticsearch import ApiError, Elasticsearch

from syncer.base import lifecycle
from syncer.base.errors import DocumentError
from syncer.base.lifecycle import Stop
from syncer.base.model import Composition, Target
from syncer.base.settings import WorkerSettings
from syncer.base.write_report import WriteReport
from syncer.documents import registry
from syncer.elasticsearch.bulk import BulkOutcome, Index, Rejection
from syncer.indexing import compose as indexing_compose, flow_control
from syncer.indexing.compose import Composer
from syncer.indexing.flow_control import FlowControl, LiveTraffic
from syncer.indexing.pool import WriterPool
from syncer.jobs import queue
from syncer.jobs.model import JobKind
from syncer.kafka import topic
from syncer.kafka.consumer import ChangeConsumer
from syncer.worker import loop as live
from syncer.worker.loop import Worker
from tests.faults.test_worker_crashes import Killed
from tests.support.world import DEADLINE_SECONDS, World, running, wait_until

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


def test_what_is_written_out_of_order_is_committed_in_order(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that have overtaken an earlier one of their partition do not take its offset along."""
    monkeypatch.setattr(live, "_BATCH_CHANGES_MAX", 1)
    world.sql(POSTS.format(30))
    with world.relay() as relay:
        relay.run_once()
        with world.elasticsearch() as client:
            worker = Worker(
                connect=world.connect,
                source=world.source,
                index=OvertakenIndex(client, others=29),
                settings=WorkerSettings(),
            )
            try:
                with pytest.raises(Killed):
                    wait_until(lambda: bool(worker.run_once() and False), what="the worker dies")
            finally:
                worker.close()
        with world.index() as index, world.worker(index) as successor:
            world.drain(relay, successor)


def _too_many_requests() -> ApiError:
    node = NodeConfig(scheme="http", host="127.0.0.1", port=9200)
    meta = ApiResponseMeta(status=429, http_version="1.1", headers=HttpHeaders(), duration=0.0, node=node)
    return ApiError("es_rejected_execution_exception", meta=meta, body={"error": {"reason": "queue is full"}})


def handle(worker: Worker, changes: int) -> None:
    """Turn a worker until it has handled so many changes."""
    handled = 0

    def is_through() -> bool:
        nonlocal handled
        handled += worker.run_once()
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


def test_what_is_refused_by_itself_is_sent_again(world: World) -> None:
    """Neither workers nor job workers count as written what one item of a request refuses."""
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
            queue.create(connection, registry.current(connection)["blogpost"], JobKind.BACKFILL)
        world.refresh(LosingIndex(client))
    assert world.differences() == []


@contextmanager
def pool(
    world: World,
    index: Index,
    *,
    threads: int = 4,
    documents_max: int = 1000,
    bytes_max: int = 8_000_000,
    traffic: LiveTraffic | None = None,
) -> Iterator[WriterPool]:
    """Writers by themselves."""
    flow = FlowControl(slices_max=threads, documents_max=documents_max, bytes_max=bytes_max, traffic=traffic)
    made = WriterPool(
        connect=lambda: world.connect(name="building"),
        index=index,
        pause=Stop().pause,
        name="test",
        flow=flow,
        threads=threads,
    )
    try:
        yield made
    finally:
        assert made.close(seconds=DEADLINE_SECONDS)


def numbers(end: int, *, begin: int = 1) -> list[str]:
    """Ids of posts."""
    return [str(one) for one in range(begin, end + 1)]


def result(of: Future[WriteReport]) -> WriteReport:
    """What has become of documents, once that is known."""
    return of.result(DEADLINE_SECONDS)


# A definition that cannot go on


def test_a_definition_is_suspended_before_its_documents_are_done(world: World) -> None:
    """Who gets the error finds the definition suspended."""
    world.sql(POSTS.format(3))
    name = world.index_of()
    with world.index() as index, world.elasticsearch() as client, pool(world, index) as made:
        client.indices.delete(index=name)
        with pytest.raises(DocumentError):
            result(made.submit(name, numbers(3)))
        assert world.sql("SELECT count(*) FROM syncer.document WHERE suspended IS NOT NULL") == [(1,)]


# An Elasticsearch that refuses


class RefusingIndex(Index):
    """Refuses the first requests, each of them as a whole."""

    def __init__(self, client: Elasticsearch, *, times: int) -> None:
        super().__init__(client, bulk_bytes_max=1_000_000)
        self.left = times

    def write(self, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        """Refuse, or write."""
        if self.left:
            self.left -= 1
            raise _too_many_requests()
        return super().write(target, compositions)


def test_what_elasticsearch_refuses_is_written_in_smaller_slices(world: World) -> None:
    """A request that is refused is halved, and each document counts once."""
    world.sql(POSTS.format(20))
    with world.elasticsearch() as client, pool(world, RefusingIndex(client, times=3), documents_max=10) as made:
        report = result(made.submit(world.index_of(), numbers(20)))
    assert (report.documents, report.indexed) == (20, 20)
    assert world.differences() == []


# Documents of any size


@pytest.fixture
def unindexed(empty_world: World) -> World:
    """A world whose bodies may be as large as they like."""
    file = empty_world.document_folder / "index.json"
    file.write_text(
        file.read_text().replace('"body": { "type": "text" }', '"body": { "type": "object", "enabled": false }')
    )
    empty_world.set_up()
    return empty_world


def test_what_is_fetched_at_once_is_bounded_by_its_bytes(unindexed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large rows among small ones: none is left out, and no slice has many of them in memory."""
    world = unindexed
    world.sql(POSTS.format(60))
    world.sql("UPDATE posts SET body = repeat('x', 400000) WHERE id % 3 = 0")
    most: list[int] = []
    compose = Composer.compose

    def weighed(self: Composer, index_name: str, ids: Sequence[str], **options: object) -> indexing_compose.Batch:
        batch = compose(self, index_name, ids, **options)  # type: ignore[arg-type]
        most.append(sum(len(one.source or b"") for one in batch.compositions))
        return batch

    monkeypatch.setattr(Composer, "compose", weighed)
    with world.index() as index, pool(world, index, bytes_max=1_000_000) as made:
        assert result(made.submit(world.index_of(), numbers(60))).indexed == 60
    assert max(most) < 2_000_000
    assert world.differences() == []


def test_what_is_too_large_for_its_slice_is_written_after_a_refusal(unindexed: World) -> None:
    """It is not left out because the others are sent again."""
    world = unindexed
    world.sql(POSTS.format(60))
    world.sql("UPDATE posts SET body = repeat('x', 400000) WHERE id = 2")
    with world.elasticsearch() as client, pool(world, LosingIndex(client), bytes_max=1_000_000) as made:
        report = result(made.submit(world.index_of(), numbers(60)))
    assert (report.documents, report.indexed) == (60, 60)
    assert world.differences() == []


def test_a_row_that_is_too_large_is_set_aside_by_itself(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is never fetched, and one that Postgres fails at: both are dead letters, and nothing is suspended."""
    monkeypatch.setattr(indexing_compose, "DOCUMENT_BYTES_MAX", 1_000_000)
    half = "repeat(repeat(p.body, 1000), 100000)"  # of six letters: more than any value may have, if there are two
    file = world.document_folder / "select.sql"
    file.write_text(
        file.read_text().replace("p.body,", f"CASE WHEN p.views = 13 THEN {half} || {half} ELSE p.body END AS body,")
    )
    world.apply()
    world.sql(POSTS.format(4))
    world.sql("UPDATE posts SET body = repeat('x', 2000000) WHERE id = 2")
    world.sql("UPDATE posts SET body = 'xxxxxx', views = 13 WHERE id = 3")
    with world.index() as index, pool(world, index) as made:
        report = result(made.submit(world.index_of(), numbers(4)))
        assert (report.indexed, report.dead_lettered) == (2, 2)
        found = world.sql("SELECT id, kind FROM syncer.dead_letter ORDER BY id")
        assert found == [("2", "document_too_large"), ("3", "InternalError_")]
        assert world.sql("SELECT suspended FROM syncer.document") == [(None,)]
        world.sql("UPDATE posts SET body = 'short now', views = 0")
        assert result(made.submit(world.index_of(), numbers(4))).indexed == 4
    assert world.sql("SELECT id FROM syncer.dead_letter") == []
    assert world.differences() == []


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


def test_a_stop_in_a_long_batch_waits_for_no_hung_request(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes on is finished, as far as there is time; what hangs is given up."""
    monkeypatch.setattr(lifecycle, "GRACE_SECONDS", 1)
    world.sql(POSTS.format(500))
    with world.relay() as relay, world.elasticsearch() as client:
        relay.run_once()
        index = HangingIndex(client)
        worker = Worker(
            connect=world.connect,
            source=world.source,
            index=index,
            settings=WorkerSettings(batch_documents_max=10),
        )
        try:
            with running(worker, seconds=10):
                assert index.goes_on.wait(DEADLINE_SECONDS)
        finally:
            index.go_on.set()
            wait_until(lambda: "worker-writer" not in str(threading.enumerate()), what="it is through")


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


def test_requests_of_a_job_are_small_and_few_while_live_changes_flow(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single edit waits in Elasticsearch behind two small requests, not behind four large ones."""
    world.sql(POSTS.format(2000))
    traffic = LiveTraffic()
    with world.index() as index, pool(world, index, documents_max=500, traffic=traffic) as made:
        for flows in (True, False):
            for _ in range(20 * flows):
                traffic.note()
            monkeypatch.setattr(flow_control, "_FLOWING_SECONDS", DEADLINE_SECONDS if flows else 0.0)
            with monkeypatch.context() as patch:
                seen = Requests(index, patch, wait_for=3)
                result(made.submit(world.index_of(), numbers(2000)))
            assert sum(seen.sizes) == 2000
            assert (max(seen.sizes[1:]) <= flow_control.BESIDE_TRAFFIC_DOCUMENTS) is flows
            assert (seen.most_at_once <= 2) is flows


class Requests:
    """Notes bulk requests that an index is sent: how many documents each has, how many are in flight at once.

    Args:
        index: Which.
        wait_for: Each waits a moment for so many to be in flight, as long as there never were.
    """

    def __init__(self, index: Index, monkeypatch: pytest.MonkeyPatch, *, wait_for: int) -> None:
        self.sizes: list[int] = []
        self.most_at_once = 0
        self._now = 0
        self._wait_for = wait_for
        self._changed = threading.Condition()
        self._write = index.write
        monkeypatch.setattr(index, "write", self._noted)

    def _noted(self, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        with self._changed:
            self.sizes.append(len(compositions))
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most_at_once >= self._wait_for, timeout=0.3)
        try:
            return self._write(target, compositions)
        finally:
            with self._changed:
                self._now -= 1


def put_users(world: World) -> None:
    """Changes that touch no document."""
    world.sql("INSERT INTO users (id, name, email) SELECT g, 'John', g::text FROM generate_series(2, 3000) AS g")
    with world.relay() as relay:
        relay.run_once()


def put_garbage(world: World) -> None:
    """Records of this database that cannot be read, in every partition."""
    kafka = world.settings.kafka
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(3000):
        ours: list[tuple[str, str | bytes | None]] = [(topic.INSTALLATION, kafka.installation)]
        producer.produce(kafka.topic, b"garbage", partition=number % kafka.partitions, headers=ours)
    producer.flush()


@pytest.mark.parametrize("put", [put_users, put_garbage])
def test_what_is_in_hand_is_bounded_though_it_touches_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, put: Callable[[World], None]
) -> None:
    """Batches without documents wait in memory for the one before them that is slow: so many, and no more."""
    monkeypatch.setattr(live, "_RECORDS_IN_HAND", 500)
    monkeypatch.setattr(live, "_BATCH_CHANGES_MAX", 100)
    world.sql(POSTS.format(1))
    too_much = threading.Event()

    class Watched(Worker):
        def _receive(self, wait_seconds: float) -> bool:
            has_received = super()._receive(wait_seconds)
            if sum(one.delivery.records for one in self._batches) >= 500 + 100:
                too_much.set()
            return has_received

    with world.relay() as relay:
        relay.run_once()
    put(world)
    with world.elasticsearch() as client:
        worker = Watched(
            connect=world.connect,
            source=world.source,
            index=HeldIndex(client, too_much=too_much),
            settings=WorkerSettings(),
        )
        try:
            handle(worker, 2 if put is put_garbage else 3001)
        finally:
            worker.close()
    assert not too_much.is_set()
    assert world.differences() == []


def test_staying_in_the_group_skips_nothing_that_was_fetched(world: World) -> None:
    """Records wait in the client's memory while a worker says that it is there: none is lost, none comes twice."""
    world.sql("INSERT INTO users (id, name, email) SELECT g, 'John', g::text FROM generate_series(1, 1000) AS g")
    with world.relay() as relay:
        relay.run_once()
    consumer = ChangeConsumer(world.settings.kafka, begin=dict, on_change=lambda *_: None)
    try:
        offsets: dict[int, int] = {}
        values: list[bytes] = []

        def receive() -> bool:
            received = consumer.receive(records_max=50, wait_seconds=0.05)
            consumer.keep_alive()
            if received is not None:
                values.extend(received.values)
                offsets.update({one: place.next_offset or 0 for one, place in received.reached.items()})
            return len(values) >= 1000

        wait_until(receive, what="all records have come")
        assert len(values) == len(set(values)) == sum(offsets.values()) == 1000
    finally:
        consumer.close()
