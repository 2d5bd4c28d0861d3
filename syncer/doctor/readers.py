"""Kafka: who reads the topic of changes and who writes to it, how far they are, and how long it waits for them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin._acl import AclOperation

from syncer import records, topic
from syncer.doctor.finding import check
from syncer.doctor.patient import ANSWER_SECONDS, Patient, UnseenError
from syncer.doctor.symptom import Symptom, advice, consider, wrong
from syncer.grants import Duty
from syncer.model import Change
from syncer.records import Span
from syncer.topic import Observer
from syncer.wording import amount, duration

_LOOK_RECORDS = 20


@check(
    "kafka.lost",
    "Nothing has left the topic before it was read",
    promises=(1,),
    why="What retention has taken before a worker had it is in no document.",
)
def _lost(patient: Patient) -> Iterator[Symptom]:
    lost = sum(max(0, one.begin - one.committed) for one in patient.lags)
    if lost:
        yield wrong(
            f"{amount(lost, 'change')} left the topic before the workers had them",
            advice(
                "Run a daemon: whoever takes the partitions up has every document written again, by itself. And give "
                "the topic a longer retention: see kafka.retention."
            ),
        )


@check(
    "kafka.retention",
    "The topic keeps changes for longer than an outage lasts",
    promises=(1,),
    why="What is not read in that time is lost.",
)
def _retention(patient: Patient) -> Iterator[Symptom]:
    keeps = int(patient.topic_config["retention.ms"]) / 1000
    limits = patient.limits
    if 0 <= keeps < limits.retention_seconds:
        yield consider(
            f"The topic keeps changes for {duration(keeps)}: workers that are away for longer lose them",
            patient.topic_mend("retention.ms=604800000"),
        )
    if int(patient.topic_config["retention.bytes"]) >= 0:
        yield consider(
            f"retention.bytes is {patient.topic_config['retention.bytes']}: a burst of changes pushes out what "
            "is not read",
            patient.topic_mend("retention.bytes=-1"),
        )
    age = _oldest_unread(patient)
    if age is not None and keeps >= 0 and keeps - age < keeps * limits.retention_left_share:
        left = max(0.0, keeps - age)
        yield (wrong if left < limits.outbox_seconds else consider)(
            f"The oldest change that no worker has done is there for {duration(age)}, and is kept for "
            f"{duration(left)} more",
            patient.topic_mend(
                f"retention.ms={int(max(4 * age, 7 * 86_400) * 1000)}",
                "And see why the workers do not get on.",
            ),
        )


def _oldest_unread(patient: Patient) -> float | None:
    """How long ago the oldest change was made that no worker has done; None if there is none, or none can be read."""
    spans = [
        Span(partition=one.partition, begin=max(one.begin, one.committed), end=max(one.begin, one.committed) + 1)
        for one in patient.lags
        if one.records
    ]
    times = [change.changed_at for change in _changes(patient, spans) if change is not None]
    return max(0.0, time.time() - min(times)) if times else None


def _changes(patient: Patient, spans: Sequence[Span]) -> Iterator[Change | None]:
    """What is in these spans; None for what is not a change."""
    for page in records.look(patient.settings.kafka, spans, seconds=ANSWER_SECONDS):
        for one in page:
            try:
                yield Change.parse(one.value)
            except ValueError:
                yield None


@check(
    "kafka.records",
    "Only the relay writes to the topic",
    promises=(1,),
    why="A record that is none of ours is set aside, and nobody but a person can say whether it was a change. Looked "
    "at are the last ones.",
)
def _records(patient: Patient) -> Iterator[Symptom]:
    spans = [
        Span(partition=one.partition, begin=max(one.begin, one.end - _LOOK_RECORDS), end=one.end)
        for one in patient.lags
    ]
    foreign = sum(one is None for one in _changes(patient, spans))
    if foreign:
        yield wrong(
            f"{amount(foreign, 'record')} of the last in {patient.settings.kafka.topic} are no changes of syncer's",
            advice("Find out who writes there, and give him a topic of his own: this one is syncer's alone."),
        )


@check(
    "kafka.offsets_retention",
    "Kafka remembers for a day at least how far the workers were",
    promises=(1,),
    why="What is forgotten is read again from its beginning: nothing is lost, but that takes long, and nobody can tell "
    "any more whether retention has taken something.",
)
def _offsets_retention(patient: Patient) -> Iterator[Symptom]:
    minutes = int(patient.broker_config["offsets.retention.minutes"])
    if minutes * 60 < patient.limits.retention_seconds:
        yield consider(
            f"offsets.retention.minutes is {minutes}",
            advice(
                "Set offsets.retention.minutes=20160 in the brokers' server.properties, and restart them one by one."
            ),
        )


@check(
    "kafka.group",
    "Only syncer's workers are in the consumer group",
    promises=(1,),
    why="Who else is in it gets a part of the changes, and commits them as done.",
)
def _group(patient: Patient) -> Iterator[Symptom]:
    group = patient.settings.kafka.group
    ours = topic.common(patient.settings.kafka)["client.id"]
    others = [one for one in Observer(patient.settings.kafka).group().members if one.client_id != ours]
    if others:
        one = others[0]
        yield wrong(
            f"{amount(len(others), 'member')} of the group {group} is not syncer's: {one.client_id} at {one.host}",
            advice(
                "Give it a group of its own, or syncer another: SYNCER_KAFKA_GROUP. Then, for what it has taken: "
                "syncer backfill DOCUMENT"
            ),
        )


_DESCRIBE = {AclOperation.DESCRIBE: "Describe"}
_ON_TOPIC = {Duty.RELAY: {AclOperation.WRITE: "Write"}, Duty.WORKER: {AclOperation.READ: "Read"}}
_ON_GROUP = {Duty.WORKER: {AclOperation.READ: "Read"}}


def _wanted(patient: Patient, by_duty: dict[Duty, dict[AclOperation, str]]) -> dict[AclOperation, str]:
    needed = [by_duty.get(duty, {}) for duty in sorted(patient.duties)]
    return {operation: said for one in (*needed, _DESCRIBE) for operation, said in one.items()}


@check(
    "kafka.privileges",
    "The principal of the daemon may read and write the topic, and read in its group",
    promises=(1,),
    why="What it may not, ends the daemon.",
)
def _privileges(patient: Patient) -> Iterator[Symptom]:
    assert patient.partitions  # noqa: S101 - or it has raised
    settings = patient.settings.kafka
    try:
        topics = patient.kafka.describe_topics(
            TopicCollection([settings.topic]), include_authorized_operations=True, request_timeout=ANSWER_SECONDS
        )
        on_topic = topic.answer(topics[settings.topic]).authorized_operations
        on_group = Observer(settings).group().authorized_operations
    except KafkaException as error:
        raise UnseenError(f"Kafka does not say what may be done: {error.args[0].str()}") from error
    for kind, name, wanted, found in (
        ("topic", settings.topic, _wanted(patient, _ON_TOPIC), on_topic),
        ("group", settings.group, _wanted(patient, _ON_GROUP), on_group),
    ):
        lacking = [said for operation, said in wanted.items() if operation not in (found or ())]
        if found and lacking:
            operations = " ".join(f"--operation {one}" for one in lacking)
            principal = settings.properties.get("sasl.username", "ANONYMOUS")
            yield wrong(
                f"{' and '.join(lacking)} is not allowed on the {kind} {name}",
                patient.kafka_tool(
                    "kafka-acls.sh", f"--add --allow-principal User:{principal} {operations} --{kind} {name}"
                ),
            )


CHECKS = (_lost, _retention, _records, _offsets_retention, _group, _privileges)
