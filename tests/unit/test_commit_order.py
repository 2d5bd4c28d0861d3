"""Progress is saved in the order in which changes were received, whatever order documents are written in."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, cast

import pytest
from elasticsearch import Elasticsearch
from hypothesis import given, strategies as st

from syncer.base.errors import SourceError
from syncer.base.log_limit import Repeated
from syncer.base.model import Change
from syncer.base.settings import WorkerSettings
from syncer.base.write_report import WriteReport
from syncer.elasticsearch.bulk import Index
from syncer.worker.batch import ChangeBatch, Write
from syncer.worker.loop import Worker
from syncer.worker.source import Delivery

CHANGE = b'{"id":%d,"changed_at":0,"relation":"public.posts","operation":"D","old":{"id":"1"},"new":null}'


def unreachable(*_: object) -> Any:
    """A server that is not to be asked."""
    raise AssertionError("no server is asked")


class Changes:
    """A source of so many changes; each has its number as its mark."""

    def __init__(self, number: int) -> None:
        self.saved = 0
        self._waiting = iter(range(1, number + 1))

    def receive(self, *, records_max: int, wait_seconds: float) -> Delivery[int] | None:
        """Return the next one."""
        del records_max, wait_seconds
        number = next(self._waiting)
        return Delivery(changes=[Change.parse(CHANGE % number)], records=1, mark=number)

    def save(self, delivery: Delivery[int]) -> None:
        """Remember it; they come in order."""
        assert delivery.mark == self.saved + 1
        self.saved = delivery.mark

    def keep_alive(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


class Resolver:
    """Says that each batch touches as many slices of documents as it is told, which the test completes."""

    def __init__(self, slices: list[int]) -> None:
        self.unresolved: Repeated[object, object] = Repeated(unreachable)
        self.writes: list[list[Future[WriteReport]]] = [[Future() for _ in range(one)] for one in slices]

    def resolve(self, batch: ChangeBatch, _: object, *, only: object) -> None:
        """Have the worker wait for the slices of this batch."""
        assert only is None
        batch.writes += [Write(index_name="blog-000001", report=report) for report in self.writes[batch.number - 1]]


def worker_of(slices: list[int]) -> tuple[Worker, Changes, list[list[Future[WriteReport]]]]:
    """A worker that has received one record for each batch, and submitted its slices."""
    source, resolver = Changes(len(slices)), Resolver(slices)
    worker = Worker(
        connect=unreachable,
        source=lambda *_: source,
        index=Index(Elasticsearch("http://127.0.0.1:9"), bulk_bytes_max=1),
        settings=WorkerSettings(),
    )
    worker._resolver = cast("Any", resolver)
    for _ in slices:
        worker._receive(0)
    return worker, source, resolver.writes


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_progress_is_saved_in_order_up_to_the_first_that_is_not_written(slices: list[int], random: Any) -> None:
    """After each write, what is saved is the longest run of batches from the first that are all written."""
    worker, source, writes = worker_of(slices)
    left = [one for batch in writes for one in batch]
    random.shuffle(left)
    for one in [None, *left]:
        if one is not None:
            one.set_result(WriteReport())
        worker._save_done()
        done = [all(each.done() for each in batch) for batch in writes]
        assert source.saved == (done.index(False) if False in done else len(done))


def test_a_batch_that_failed_is_not_saved_nor_what_follows_it() -> None:
    """The error ends the turn: the records come again."""
    worker, source, ((failed,), (written,)) = worker_of([1, 1])
    written.set_result(WriteReport())
    failed.set_exception(SourceError("away"))
    with pytest.raises(SourceError):
        worker._save_done()
    assert source.saved == 0
