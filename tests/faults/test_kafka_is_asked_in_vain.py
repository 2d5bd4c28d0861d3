"""Kafka hangs or is killed during a request: the client gets an error and tries again."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from syncer.base.errors import TopicError
from syncer.base.settings import KafkaSettings
from syncer.kafka import topic
from syncer.kafka.consumer import ChangeConsumer
from syncer.kafka.producer import ChangeProducer
from syncer.sandbox import Sandbox
from syncer.sandbox.kafka import KafkaServer


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    """A broker of these tests' own, with a topic and a group."""
    with tempfile.TemporaryDirectory(prefix="syncer-tests-") as folder:
        Path(folder).chmod(0o755)  # for root's server, which runs as nobody
        server = Sandbox(Path(folder) / "servers").kafka
        try:
            server.start()
            settings = KafkaSettings(bootstrap_servers=server.address, topic="changes", group="workers")
            topic.ensure_topic(settings)
            consumer = ChangeConsumer(settings, on_change=lambda *_: None)
            consumer.receive(records_max=1, wait_seconds=1)
            consumer.close()
            yield server
        finally:
            server.stop()


def held() -> tuple[int, int]:
    """How many threads and file descriptors this process has."""
    threads, descriptors = (len(list(Path("/proc/self", one).iterdir())) for one in ("task", "fd"))
    return threads, descriptors


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is given back is given back without Python's collector of cycles."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_a_client_that_does_not_answer_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads and connections are given back at once, also while somebody keeps the error."""
    monkeypatch.setattr(topic, "ANSWER_SECONDS", 0.5)
    settings = KafkaSettings(bootstrap_servers="127.0.0.1:1", topic="changes", group="workers")
    before = held()
    with topic.Observer(settings) as observer:
        for ask in (observer.id, observer.extents, observer.lag, observer.members):
            with pytest.raises((KafkaException, TopicError)) as failure:
                ask()
            assert held() == before, failure
    producer = ChangeProducer(settings)
    producer.produce([(b"", b"{}")])
    producer.close()
    assert held() == before, producer
