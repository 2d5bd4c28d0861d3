"""What the tests of `syncer doctor` share: one look, and the mend done as somebody who pastes it would do it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import psycopg

from syncer.doctor.examination import CHECKS, examine
from syncer.doctor.finding import Finding
from syncer.doctor.symptom import How, Limits, Severity
from syncer.settings import Settings
from tests.harness import DEADLINE_SECONDS, World

# Kafka's shell scripts are not in the sandbox; those that are asked for are played by its client, with their arguments.
_KAFKA_TOOL = """#!{python}
import argparse
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka import admin
from confluent_kafka.admin import AdminClient

tool = {tool!r}
parser = argparse.ArgumentParser(tool)
parser.add_argument("--bootstrap-server", required=True)
for flag in {flags!r}:
    parser.add_argument(flag, action="store_true", required=True)
for option in {options!r}:
    parser.add_argument(option, required=True, action="append")
said = parser.parse_args()
client = AdminClient({{"bootstrap.servers": said.bootstrap_server}})
if tool == "kafka-configs.sh":
    assert said.entity_type == ["topics"]
    entries = [admin.ConfigEntry(*one.split("=", 1), incremental_operation=admin.AlterConfigOpType.SET)
               for one in said.add_config]
    resource = admin.ConfigResource(admin.ResourceType.TOPIC, said.entity_name[0], incremental_configs=entries)
    client.incremental_alter_configs([resource])[resource].result()
elif tool == "kafka-topics.sh":
    new = admin.NewPartitions(said.topic[0], int(said.partitions[0]))
    client.create_partitions([new])[said.topic[0]].result()
elif tool == "kafka-acls.sh":
    acls = [
        admin.AclBinding(admin.ResourceType.TOPIC, said.topic[0], admin.ResourcePatternType.LITERAL,
                         said.allow_principal[0], "*", admin.AclOperation[one.upper()],
                         admin.AclPermissionType.ALLOW)
        for one in said.operation
    ]
    for one in client.create_acls(acls).values():
        one.result()
else:
    topic = said.topic[0]
    places = [TopicPartition(topic, one) for one in client.list_topics().topics[topic].partitions]
    begins = client.list_offsets({{place: admin.OffsetSpec.earliest() for place in places}})
    places = [TopicPartition(topic, place.partition, one.result().offset) for place, one in begins.items()]
    asked = client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(said.group[0], places)])
    asked[said.group[0]].result()
"""
_KAFKA_TOOLS = {
    "kafka-configs.sh": (["--alter"], ["--entity-type", "--entity-name", "--add-config"]),
    "kafka-topics.sh": (["--alter"], ["--topic", "--partitions"]),
    "kafka-acls.sh": (["--add"], ["--allow-principal", "--operation", "--topic"]),
    "kafka-consumer-groups.sh": (["--reset-offsets", "--to-earliest", "--execute"], ["--group", "--topic"]),
}
# Nobody is there to say yes.
_SYNCER = """#!/bin/sh
[ "$1" = apply ] && set -- "$@" --yes
exec {python} -m syncer "$@"
"""


def look(
    world: World, id_: str, *, limits: Mapping[str, float] | None = None, settings: Settings | None = None
) -> list[Finding]:
    """What one check finds in a world."""
    checks = [one for one in CHECKS if one.id == id_]
    assert checks, f"there is no check {id_}"
    wanted = replace(Limits(), **(limits or {}))  # type: ignore[arg-type]
    return list(examine(settings or world.settings, world.config, limits=wanted, checks=checks).findings)


def is_well(findings: list[Finding]) -> bool:
    """Whether the check has found nothing."""
    return [one.severity for one in findings] == [Severity.WELL]


def mend(world: World, finding: Finding, environment: Mapping[str, str] | None = None) -> None:
    """Do what a finding says, word for word: in psql as the superuser, or in a shell with this world's settings."""
    assert finding.mend is not None
    assert finding.mend.how is not How.ADVICE, finding
    if finding.mend.how is How.SQL:
        with psycopg.connect(world.dsn, autocommit=True) as connection:
            for line in finding.mend.text.splitlines():
                assert line.endswith(";"), line
                connection.execute(line)
        return
    done = subprocess.run(
        ["/bin/bash", "-euc", finding.mend.text],
        env={
            **world.environment,
            **(environment or {}),
            "PATH": f"{_tools(world.folder)}:/usr/local/bin:/usr/bin:/bin",
        },
        capture_output=True,
        text=True,
        timeout=3 * DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, (finding.mend.text, done.stdout, done.stderr)


def _tools(folder: Path) -> Path:
    tools = folder / "bin"
    if not tools.exists():
        tools.mkdir()
        (tools / "syncer").write_text(_SYNCER.format(python=sys.executable))
        for tool, (flags, options) in _KAFKA_TOOLS.items():
            (tools / tool).write_text(
                _KAFKA_TOOL.format(python=sys.executable, tool=tool, flags=flags, options=options)
            )
        for one in tools.iterdir():
            one.chmod(0o755)
    return tools
