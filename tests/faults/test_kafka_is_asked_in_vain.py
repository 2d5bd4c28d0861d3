"""Kafka stands still, and is killed, while it is asked: who asks is told so, and goes on asking."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from syncer import topic
from syncer.consumer import ChangeConsumer
from syncer.errors import TopicError
from syncer.sandbox import Sandbox
from syncer.sandbox.kafka import KafkaServer
from syncer.settings import KafkaSettings
from tests.harness import wait_until
from tests.proof import Rule, faces

QUESTIONS = {"members", "id", "extents", "lag"}


@pytest.fixture
def broker() -> Iterator[KafkaServer]:
    """A broker of the test's own, with a topic and a group."""
    with tempfile.TemporaryDirectory(prefix="syncer-tests-") as folder:
        Path(folder).chmod(0o755)  # for root's server, which runs as nobody
        server = Sandbox(Path(folder) / "servers").kafka
        try:
            server.start()
            settings = KafkaSettings(bootstrap_servers=server.address)
            topic.ensure_topic(settings)
            consumer = ChangeConsumer(settings, on_change=lambda *_: None)
            consumer.receive(records_max=1, wait_seconds=1)
            consumer.close()
            yield server
        finally:
            server.stop()


@faces(
    "Kafka stands still, and is killed, while it is asked about the workers' group",
    promises=(1,),
    without=Rule(
        "a question to the group's coordinator does not end by itself",
        module="syncer.topic",
        text="request_timeout=_NEVER_SECONDS",
        instead="request_timeout=ANSWER_SECONDS",
    ),
)
def test_a_process_outlives_questions_that_are_not_answered(broker: KafkaServer, tmp_path: Path) -> None:
    """A fault of the client's library would end it; it lives, and has all answers again once Kafka is there."""
    said = tmp_path / "said"
    command = [sys.executable, "-m", "tests.faults.asking_in_vain", broker.address]
    with said.open("w") as out, subprocess.Popen(command, stdout=out) as asking:
        try:

            def wait_for_answers() -> None:
                before = Counter(said.read_text().split())

                def answered() -> Counter[str]:
                    return Counter(said.read_text().split()) - before

                wait_until(
                    lambda: asking.poll() is not None or answered().keys() >= QUESTIONS,
                    what="everything is answered",
                    detail=lambda: f"answered so far: {answered()}",
                )
                assert asking.poll() is None, f"it has ended with {asking.returncode}"

            wait_for_answers()
            for is_killed in (False, True):
                broker.pause()
                time.sleep(5)  # the fault: nobody is answered for so long
                if is_killed:
                    broker.kill()
                    broker.start()
                else:
                    broker.resume()
                wait_for_answers()
        finally:
            asking.kill()


@faces(
    "Kafka does not answer a question, and the client that asked stays silent for good",
    promises=(1,),
    without=Rule(
        "a client of Kafka's that has not answered is not asked again",
        module="syncer.topic",
        text="is_silent and self._admin is asked",
        instead="False",
    ),
)
def test_a_client_that_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next question is asked by another client: one that went silent in an outage may stay so."""
    monkeypatch.setattr(topic, "ANSWER_SECONDS", 0.5)
    observer = topic.Observer(KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    for ask in (observer.id, observer.extents, observer.ends, observer.lag):
        asked = observer._admin
        with pytest.raises((KafkaException, TopicError)):
            ask()
        assert observer._admin is not asked
    question = observer.soon_id()
    wait_until(lambda: question.is_over, what="the question is over")
    assert observer.said(question) is None
    assert observer._admin is not question.client
