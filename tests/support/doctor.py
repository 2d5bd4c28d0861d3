"""What the tests of `syncer doctor` share: make one check, and do its fix as an operator would paste it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.request import Request, urlopen

import psycopg

from syncer.base.settings import Settings
from syncer.monitoring.doctor import CHECKS, CheckSeverity, Finding, How, examine
from tests.support.world import DEADLINE_SECONDS, World

# The sandbox has Kafka's classes and no shell scripts.
_KAFKA_CONFIGS = """#!/bin/sh
exec {java} "$@"
"""
_SYNCER = """#!/bin/sh
[ "$1" = apply ] && set -- "$@" --yes
exec {python} -m syncer "$@"
"""


def look(world: World, id_: str, *, settings: Settings | None = None) -> list[Finding]:
    """What one check finds in a world."""
    (check,) = [check for check in CHECKS if check.id == id_]
    return examine(settings or world.settings, checks=[check])


def is_well(findings: Sequence[Finding]) -> bool:
    """Whether a check found nothing."""
    return {finding.severity for finding in findings} == {CheckSeverity.WELL}


def fix(world: World, finding: Finding, environment: Mapping[str, str] | None = None) -> None:
    """Do what a finding says, to the letter: in psql as the superuser, as a request, or in a shell."""
    assert finding.how in (How.SQL, How.SHELL, How.REQUEST), finding
    if finding.how is How.SQL:
        with psycopg.connect(world.dsn, autocommit=True) as connection:
            for line in finding.fix.splitlines():
                assert line.endswith(";"), line
                connection.execute(line)
        return
    if finding.how is How.REQUEST:
        request, _, body = finding.fix.partition("\n")
        method, _, path = request.partition(" ")
        url, sent = f"{world.endpoints.elasticsearch_url}{path}", {"Content-Type": "application/json"}
        with urlopen(Request(url, body.encode() or None, sent, method=method)):  # noqa: S310 - our own server
            return
    path = f"{_tools(world)}:/usr/local/bin:/usr/bin:/bin"
    completed = subprocess.run(
        ["/bin/bash", "-euc", finding.fix],
        env={**world.environment, **(environment or {}), "PATH": path},
        capture_output=True,
        text=True,
        timeout=3 * DEADLINE_SECONDS,
        check=False,
    )
    assert completed.returncode == 0, (finding.fix, completed.stdout, completed.stderr)


def _tools(world: World) -> Path:
    tools = world.folder / "bin"
    if not tools.exists():
        tools.mkdir()
        java = shlex.join(world.sandbox.kafka._java("kafka.admin.ConfigCommand"))
        (tools / "syncer").write_text(_SYNCER.format(python=sys.executable))
        (tools / "kafka-configs.sh").write_text(_KAFKA_CONFIGS.format(java=java))
        for tool in tools.iterdir():
            tool.chmod(0o755)
    return tools
