"""Checks of Kafka: that no change is lost between the relay and the workers."""

from __future__ import annotations

from collections.abc import Iterator

from confluent_kafka.admin._metadata import TopicMetadata

from syncer.base.formatting import amount, duration
from syncer.kafka import topic
from syncer.kafka.topic import Observer
from syncer.monitoring.doctor.check import Check, Finding, Fix, advice, check, consider, shell, wrong
from syncer.monitoring.doctor.deployment import ANSWER_SECONDS, Deployment, UnseenError

_DAY_SECONDS = 86_400


@check("kafka.reach", "Kafka answers, and has the topic of changes", 1)
def _reach(deployment: Deployment) -> Iterator[Finding]:
    """Changes go from the outbox to the workers through it."""
    if (failure := deployment.failure("kafka")) is not None:
        yield wrong(failure.message, advice(failure.hint))
    elif deployment.settings.kafka.topic and _topic(deployment) is None:
        yield wrong(f"Kafka has no topic {deployment.settings.kafka.topic}", shell("syncer apply"))


@check("kafka.replication", "Every record is on at least two brokers before it is acknowledged", 1)
def _replication(deployment: Deployment) -> Iterator[Finding]:
    """The relay deletes what Kafka has acknowledged from the outbox. A broker that is lost may hold the only copy."""
    config = _config(deployment)
    replicas = min(len(one.replicas) for one in _existing_topic(deployment).partitions.values())
    if replicas == 1:
        yield consider(
            "The topic has one replica: if its broker is lost, so are its changes",
            advice(
                "Use three brokers. kafka.replication_factor applies to a topic that syncer creates; "
                "kafka-reassign-partitions.sh adds replicas to an existing one."
            ),
        )
    elif int(config["min.insync.replicas"]) == 1:
        found = f"min.insync.replicas is 1 of {replicas} replicas: a single broker may acknowledge a record"
        yield consider(found, _set(deployment, "min.insync.replicas=2"))


@check("kafka.cleanup_policy", "The topic is not compacted", 1)
def _cleanup_policy(deployment: Deployment) -> Iterator[Finding]:
    """Compaction keeps the last change of a key only. Old images are lost that lead to documents a row has left."""
    policy = _config(deployment)["cleanup.policy"]
    if "compact" in policy:
        yield wrong(f"cleanup.policy is {policy}", _set(deployment, "cleanup.policy=delete"))


@check("kafka.unclean_election", "No broker that lacks records can lead", 1)
def _unclean_election(deployment: Deployment) -> Iterator[Finding]:
    """It would drop records that were acknowledged, and that the outbox no longer has."""
    name = "unclean.leader.election.enable"
    if _config(deployment)[name] == "true":
        yield wrong(f"{name} is true", _set(deployment, f"{name}=false"))


@check("kafka.retention", "The topic keeps changes for longer than an outage lasts", 1)
def _retention(deployment: Deployment) -> Iterator[Finding]:
    """If changes expire before a worker has read them, every document must be written again."""
    config = _config(deployment)
    seconds = int(config["retention.ms"]) / 1000
    if 0 <= seconds < _DAY_SECONDS:
        yield consider(f"The topic keeps changes for {duration(seconds)}", _set(deployment, "retention.ms=604800000"))
    if int(config["retention.bytes"]) >= 0:
        found = f"retention.bytes is {config['retention.bytes']}: a burst of changes deletes unread ones"
        yield consider(found, _set(deployment, "retention.bytes=-1"))


@check("kafka.group", "Only syncer's workers are in the consumer group", 1)
def _group(deployment: Deployment) -> Iterator[Finding]:
    """Any other member receives part of the changes, which no worker then handles."""
    settings = deployment.settings.kafka
    _existing_topic(deployment)
    with Observer(settings) as observer:
        others = [one for one in observer.group().members if one.client_id != topic.common(settings)["client.id"]]
    if others:
        first = f"{others[0].client_id} at {others[0].host}"
        yield wrong(
            f"The consumer group {settings.group} has {amount(len(others), 'foreign member')}: {first}",
            advice(
                "Give it a group of its own, or set SYNCER_KAFKA_GROUP. Then write again what it took: "
                "syncer backfill DOCUMENT"
            ),
        )


def _topic(deployment: Deployment) -> TopicMetadata | None:
    found: TopicMetadata | None = deployment.kafka.list_topics(timeout=ANSWER_SECONDS).topics.get(
        deployment.settings.kafka.topic
    )
    return found


def _existing_topic(deployment: Deployment) -> TopicMetadata:
    name = deployment.settings.kafka.topic
    found = _topic(deployment)
    if not name:
        raise UnseenError("kafka.topic is not set, and the id of the database, which names it, is not known")
    if found is None:
        raise UnseenError(f"Kafka has no topic {name}")
    return found


def _config(deployment: Deployment) -> dict[str, str]:
    """The topic's settings, with the broker's where the topic has none."""
    _existing_topic(deployment)
    return topic.configuration(deployment.kafka, deployment.settings.kafka.topic, seconds=ANSWER_SECONDS)


def _set(deployment: Deployment, setting: str) -> Fix:
    """A fix that changes a setting of the topic, with credentials named rather than shown."""
    settings = deployment.settings.kafka
    credentials = " --command-config client.properties" if settings.properties else ""
    return shell(
        f"kafka-configs.sh --bootstrap-server {settings.bootstrap_servers}{credentials} "
        f"--alter --entity-type topics --entity-name {settings.topic} --add-config {setting}",
        "client.properties holds the credentials, as Java clients read them." if credentials else "",
    )


CHECKS = tuple(one for one in globals().values() if isinstance(one, Check))
