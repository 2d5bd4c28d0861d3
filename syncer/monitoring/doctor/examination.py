"""Examination: all checks, one after another, and the report.

A check that a missing server, schema or privilege prevents is reported as unseen; the others are still made.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from syncer.base.formatting import amount
from syncer.base.settings import Settings
from syncer.monitoring.doctor import elasticsearch, kafka, postgres
from syncer.monitoring.doctor.check import Check, Finding, Severity
from syncer.monitoring.doctor.deployment import ANSWER_SECONDS, DAEMON, Deployment, Duty, reason

SERVERS = {"postgres": "Postgres", "kafka": "Kafka", "elasticsearch": "Elasticsearch"}
CHECKS: tuple[Check, ...] = (*postgres.CHECKS, *kafka.CHECKS, *elasticsearch.CHECKS)
"""Every check, in the order in which they are made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of an examination.

    Args:
        findings: By check, in order; each has at least one.
        servers: Each server that answers, with its version.
        seconds: How long it took.
    """

    findings: dict[Check, tuple[Finding, ...]]
    servers: dict[str, str]
    seconds: float

    @property
    def numbers(self) -> dict[Severity, int]:
        """How many findings there are of each severity."""
        found = Counter(one.severity for several in self.findings.values() for one in several)
        return {severity: found[severity] for severity in Severity}

    def is_well(self, *, strict: bool) -> bool:
        """Whether nothing is wrong; if strict, whether everything is well."""
        bad = set(Severity) - {Severity.WELL} if strict else {Severity.WRONG}
        return not any(self.numbers[severity] for severity in bad)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "is_well": self.is_well(strict=False),
            **{str(severity): number for severity, number in self.numbers.items()},
            "servers": self.servers,
            "seconds": round(self.seconds, 3),
            "findings": [_plain(check, one) for check, several in self.findings.items() for one in several],
        }


def _plain(check: Check, finding: Finding) -> dict[str, Any]:
    return {
        "id": check.id,
        "severity": str(finding.severity),
        "claim": check.claim,
        "found": finding.found,
        "why": check.why,
        "guarantees": list(check.guarantees),
        "fix": finding.fix and asdict(finding.fix),
    }


def examine(
    settings: Settings,
    config_folder: Path,
    *,
    checks: Sequence[Check] = CHECKS,
    duties: frozenset[Duty] = DAEMON,
) -> Report:
    """Make these checks, or all."""
    began = time.monotonic()
    with Deployment(settings, config_folder, duties) as deployment:
        used = [name for name in SERVERS if name != "kafka" or settings.kafka.is_used]
        findings = {
            check: _made(check, deployment)
            for check in checks
            if (server := check.id.partition(".")[0]) in used or server not in SERVERS
        }
        servers = {name: _version(deployment, name) for name in used if deployment.failure(name) is None}
    return Report(findings=findings, servers=servers, seconds=time.monotonic() - began)


def _made(check: Check, deployment: Deployment) -> tuple[Finding, ...]:
    try:
        return tuple(check.look(deployment)) or (Finding(severity=Severity.WELL),)
    except Exception as error:
        why = reason(error)
        if why is None:
            raise
        return (Finding(severity=Severity.UNSEEN, found=why),)


def _version(deployment: Deployment, server: str) -> str:
    if server == "postgres":
        number = deployment.postgres.info.server_version
        return f"Postgres {number // 10000}.{number % 10000}"
    if server == "kafka":
        return f"Kafka, {amount(len(deployment.kafka.list_topics(timeout=ANSWER_SECONDS).brokers), 'broker')}"
    return f"Elasticsearch {deployment.elasticsearch.info().body['version']['number']}"
