"""Asks Kafka about a consumer group and a topic, again and again, and says so of each answer.

python -m tests.faults.asking_in_vain BOOTSTRAP_SERVERS
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from confluent_kafka import KafkaException

from syncer.base.errors import TopicError
from syncer.base.settings import KafkaSettings
from syncer.kafka import topic

_IMPATIENT_SECONDS = 2
_OBSERVERS = 12


def main(servers: str) -> None:
    """Ask until the process is ended, with little patience."""
    topic.ANSWER_SECONDS = _IMPATIENT_SECONDS
    settings = KafkaSettings(bootstrap_servers=servers, topic="changes", group="workers")
    observer = topic.Observer(settings)
    questions: tuple[Callable[[], object], ...] = (observer.id, observer.extents, observer.lag)
    for ask in (*questions, *(topic.Observer(settings).members for _ in range(_OBSERVERS))):
        threading.Thread(target=_ask, args=(ask,)).start()


def _ask(question: Callable[[], object]) -> None:
    pause = threading.Event()
    while True:
        with suppress(KafkaException, TopicError):
            question()
            os.write(sys.stdout.fileno(), f"{question.__name__}\n".encode())  # in one piece: others speak too
        pause.wait(0.05)


if __name__ == "__main__":
    main(sys.argv[1])
