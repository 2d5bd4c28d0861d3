"""Kafka: the topic of changes, and how safe a record is in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka.admin._metadata import PartitionMetadata

from syncer import topic
from syncer.doctor.finding import check
from syncer.doctor.patient import ANSWER_SECONDS, Patient
from syncer.doctor.symptom import Group, Symptom, advice, consider, shell, wrong
from syncer.wording import amount

_RECORD_BYTES_MIN = 1_000_000


@check(
    "kafka.reach",
    "Kafka answers",
    promises=(1,),
    why="Changes go from the outbox to the workers through it.",
)
def _reach(patient: Patient) -> Iterator[Symptom]:
    failure = patient.failure(Group.KAFKA)
    if failure is not None:
        yield wrong(failure.message, advice(failure.hint))


@check(
    "kafka.topic",
    "The topic of changes is there",
    promises=(1,),
    why="Without it nothing is published, and the outbox grows.",
)
def _topic(patient: Patient) -> Iterator[Symptom]:
    name = patient.settings.kafka.topic
    if name not in patient.kafka.list_topics(timeout=ANSWER_SECONDS).topics:
        yield wrong(
            f"Kafka has no topic {name}",
            shell("syncer apply", "If it was there before, changes that were in it are lost: syncer backfill DOCUMENT"),
        )


@check(
    "kafka.partitions",
    "The topic has as many partitions as are wanted, and at least one for each worker",
    promises=(),
    why="A worker without a partition has nothing to do.",
)
def _partitions(patient: Patient) -> Iterator[Symptom]:
    wanted, there = patient.settings.kafka.partitions, len(patient.partitions)
    name = patient.settings.kafka.topic
    if there < wanted:
        yield consider(
            f"{name} has {amount(there, 'partition')}, and kafka.partitions says {wanted}",
            patient.kafka_tool("kafka-topics.sh", f"--alter --topic {name} --partitions {wanted}"),
        )
    elif there > wanted:
        yield consider(
            f"{name} has {amount(there, 'partition')}, and kafka.partitions says {wanted}",
            shell(f"export SYNCER_KAFKA_PARTITIONS={there}", "A topic never has fewer again."),
        )
    workers = topic.members(patient.settings.kafka)
    if workers > there:
        yield consider(
            f"{amount(workers, 'worker')} share {amount(there, 'partition')}",
            patient.kafka_tool("kafka-topics.sh", f"--alter --topic {name} --partitions {workers}"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Where a partition lies."""

    partition: int
    leader: int
    replicas: int
    in_sync: int


def _copies(partitions: Mapping[int, PartitionMetadata]) -> list[Copies]:
    return [
        Copies(partition=number, leader=one.leader, replicas=len(one.replicas), in_sync=len(one.isrs))
        for number, one in sorted(partitions.items())
    ]


@check(
    "kafka.replication",
    "Every record is on two brokers at least before it is acknowledged",
    promises=(1,),
    why="The outbox gives back what Kafka has acknowledged; a broker that is lost with the only copy takes it along.",
)
def _replication(patient: Patient) -> Iterator[Symptom]:
    least = min(one.replicas for one in _copies(patient.partitions))
    if least == 1:
        yield consider(
            "The topic has one replica: a broker that is lost takes its changes along",
            advice(
                "Have three brokers; kafka-reassign-partitions.sh gives a topic that is there more replicas, "
                "kafka.replication_factor one that is yet to be created."
            ),
        )
    elif int(patient.topic_config["min.insync.replicas"]) == 1:
        yield consider(
            f"min.insync.replicas is 1 of {least} replicas: a record may be acknowledged by one broker alone",
            patient.topic_mend("min.insync.replicas=2"),
        )


@check(
    "kafka.in_sync",
    "Every partition has a leader, and all of its replicas",
    promises=(1,),
    why="A partition without a leader, or with fewer replicas than min.insync.replicas, takes no record.",
)
def _in_sync(patient: Patient) -> Iterator[Symptom]:
    yield from judge_copies(patient, _copies(patient.partitions), int(patient.topic_config["min.insync.replicas"]))


def judge_copies(patient: Patient, copies: Sequence[Copies], wanted: int) -> Iterator[Symptom]:
    """What is wrong with where partitions lie."""
    down = advice("Bring the broker back that is down: kafka-topics.sh --describe names it.")
    without = [str(one.partition) for one in copies if one.leader < 0]
    if without:
        yield wrong(f"Partition {', '.join(without)} has no leader", down)
    short = [one for one in copies if one.leader >= 0 and one.in_sync < wanted]
    if short:
        said = (
            f"{amount(len(short), 'partition')} has {short[0].in_sync} of the {wanted} replicas of min.insync.replicas"
        )
        if short[0].replicas < wanted:
            yield wrong(f"{said}, and can have no more", patient.topic_mend(f"min.insync.replicas={short[0].replicas}"))
        else:
            yield wrong(said, down)
    behind = [one for one in copies if one.leader >= 0 and wanted <= one.in_sync < one.replicas]
    if behind:
        yield consider(f"{amount(len(behind), 'partition')} has replicas that are behind", down)


@check(
    "kafka.cleanup_policy",
    "The topic deletes by age, and does not compact",
    promises=(1,),
    why="Changes of one document share a key: compaction keeps the last one of them, and loses the old images of the "
    "others, which lead to documents that no longer show the row.",
)
def _cleanup_policy(patient: Patient) -> Iterator[Symptom]:
    policy = patient.topic_config["cleanup.policy"]
    if "compact" in policy:
        yield wrong(f"cleanup.policy is {policy}", patient.topic_mend("cleanup.policy=delete"))


@check(
    "kafka.unclean_election",
    "No broker that lacks records may lead",
    promises=(1,),
    why="It would take back what was acknowledged, and the outbox has given it back by then.",
)
def _unclean_election(patient: Patient) -> Iterator[Symptom]:
    name = "unclean.leader.election.enable"
    if patient.topic_config[name] == "true":
        yield wrong(f"{name} is true", patient.topic_mend(f"{name}=false"))


@check(
    "kafka.record_size",
    "The topic takes records of a megabyte",
    promises=(1,),
    why="A change that is larger than the topic takes stops the relay, and all changes behind it.",
)
def _record_size(patient: Patient) -> Iterator[Symptom]:
    found = int(patient.topic_config["max.message.bytes"])
    if found < _RECORD_BYTES_MIN:
        yield wrong(f"max.message.bytes is {found:,}", patient.topic_mend("max.message.bytes=1048588"))


@check(
    "kafka.auto_create",
    "A topic that is deleted does not come back by itself",
    promises=(1,),
    why="It would come back empty, with other partitions, and nothing would tell that changes are lost.",
)
def _auto_create(patient: Patient) -> Iterator[Symptom]:
    if patient.broker_config["auto.create.topics.enable"] == "true":
        yield consider(
            "auto.create.topics.enable is true",
            advice(
                "Set auto.create.topics.enable=false in the brokers' server.properties, and restart them one by one."
            ),
        )


CHECKS = (
    _reach,
    _topic,
    _partitions,
    _replication,
    _in_sync,
    _cleanup_policy,
    _unclean_election,
    _record_size,
    _auto_create,
)
