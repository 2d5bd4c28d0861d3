"""Syncer itself: whether daemons run, and whether their settings contradict one another."""

from __future__ import annotations

from collections.abc import Iterator

from syncer import overview, topic
from syncer.doctor.documents import OF_SYNCER
from syncer.doctor.finding import check
from syncer.doctor.patient import Patient
from syncer.doctor.symptom import Symptom, advice, consider, shell, wrong
from syncer.wording import amount

# What our producer and consumer rest on, and kafka.properties may override.
_PINNED = {
    "acks": ("all", "-1"),
    "request.required.acks": ("all", "-1"),
    "enable.idempotence": ("true",),
    "enable.auto.commit": ("false",),
    "enable.auto.offset.store": ("false",),
    "auto.offset.reset": ("error",),
    "partition.assignment.strategy": ("cooperative-sticky",),
}


@check(
    "syncer.relay",
    "A relay leads",
    promises=(1,),
    why="Until one does, changes wait in the outbox: nothing is lost, and nothing is followed.",
)
def _relay(patient: Patient) -> Iterator[Symptom]:
    if overview.leader(patient.installed) is None:
        yield wrong("No relay leads", shell("syncer run"))


@check(
    "syncer.workers",
    "Workers are at work",
    promises=(1,),
    why="Until one is, changes wait in the topic, for no longer than its retention.",
)
def _workers(patient: Patient) -> Iterator[Symptom]:
    assert patient.partitions  # noqa: S101 - or it has raised
    if not topic.members(patient.settings.kafka):
        yield wrong(f"No worker is in the consumer group {patient.settings.kafka.group}", shell("syncer run"))


@check(
    "syncer.threads",
    "A daemon of these settings has workers",
    promises=(1,),
    why="With worker.threads 0 a daemon publishes and writes jobs, and no change is followed unless another one does.",
)
def _threads(patient: Patient) -> Iterator[Symptom]:
    if patient.settings.worker.threads == 0:
        yield consider(
            "worker.threads is 0",
            shell("export SYNCER_WORKER_THREADS=2", "For a relay alone: syncer run --only relay"),
        )


@check(
    "syncer.threads_and_partitions",
    "A daemon has no more workers than the topic has partitions",
    promises=(),
    why="A worker without a partition has nothing to do.",
)
def _threads_and_partitions(patient: Patient) -> Iterator[Symptom]:
    threads, partitions = patient.settings.worker.threads, len(patient.partitions)
    if threads > partitions:
        yield consider(
            f"worker.threads is {threads}, and the topic has {amount(partitions, 'partition')}",
            shell(f"export SYNCER_WORKER_THREADS={partitions}"),
        )


@check(
    "syncer.kafka_properties",
    "kafka.properties leave alone what nothing is lost by",
    promises=(1,),
    why="They are passed to librdkafka last: acknowledgements by all, commits of what is done only, and no "
    "offset skipped "
    "are what at least once rests on.",
)
def _kafka_properties(patient: Patient) -> Iterator[Symptom]:
    for name, allowed in _PINNED.items():
        said = patient.settings.kafka.properties.get(name)
        if said is not None and str(said).lower() not in allowed:
            yield wrong(
                f"kafka.properties has {name}: {said}",
                advice(f"Take {name} out of kafka.properties (SYNCER_KAFKA_PROPERTIES), and restart the daemons."),
            )


CHECKS = (_relay, _workers, _threads, _threads_and_partitions, _kafka_properties, *OF_SYNCER)
