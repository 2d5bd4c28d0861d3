"""Examination: all checks, one after the other, and what came of them.

Guarantees that a server that is away, a schema that is not there and a privilege that is lacking keep no check from
being made that does not need them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from syncer.doctor import (
    cluster,
    daemon,
    documents,
    forgotten,
    indices_checks,
    privileges,
    readers,
    schema_checks,
    server_settings,
    sessions,
    standby,
    templates,
    topic_checks,
    versions,
)
from syncer.doctor.finding import Check, Finding
from syncer.doctor.patient import OF_DAEMON, Patient, reason
from syncer.doctor.symptom import Group, Limits, Severity
from syncer.grants import Duty
from syncer.settings import Settings

CHECKS: tuple[Check, ...] = (
    *server_settings.CHECKS,
    *sessions.CHECKS,
    *schema_checks.CHECKS,
    *privileges.CHECKS,
    *versions.CHECKS,
    *documents.CHECKS,
    *standby.CHECKS,
    *topic_checks.CHECKS,
    *readers.CHECKS,
    *cluster.CHECKS,
    *indices_checks.CHECKS,
    *templates.CHECKS,
    *forgotten.CHECKS,
    *versions.OF_ELASTICSEARCH,
    *daemon.CHECKS,
)
"""Every check, in the order in which they are made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of an examination.

    Args:
        findings: By check, in the order of `CHECKS`.
        servers: What each server says that it is; without those that are away.
        seconds: How long it took.
    """

    findings: tuple[Finding, ...]
    servers: dict[Group, str]
    seconds: float

    @property
    def numbers(self) -> dict[Severity, int]:
        """How many findings there are of each severity."""
        found = Counter(one.severity for one in self.findings)
        return {severity: found[severity] for severity in Severity}

    def is_well(self, *, strict: bool) -> bool:
        """Whether nothing is wrong; strictly, whether nothing is to be considered or unseen either."""
        bad = (Severity.WRONG, Severity.CONSIDER, Severity.UNSEEN) if strict else (Severity.WRONG,)
        return not any(self.numbers[severity] for severity in bad)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "is_well": self.is_well(strict=False),
            **{str(severity): many for severity, many in self.numbers.items()},
            "servers": {str(group): said for group, said in self.servers.items()},
            "seconds": round(self.seconds, 3),
            "findings": [_plain(one) for one in self.findings],
        }


def _plain(one: Finding) -> dict[str, Any]:
    mend = one.mend
    return {
        "id": one.check.id,
        "severity": str(one.severity),
        "claim": one.check.claim,
        "found": one.found,
        "why": one.check.why,
        "promises": list(one.check.promises),
        "mend": None if mend is None else {"how": str(mend.how), "text": mend.text, "note": mend.note},
    }


def examine(
    settings: Settings,
    config_folder: Path,
    *,
    limits: Limits | None = None,
    checks: Sequence[Check] = CHECKS,
    duties: frozenset[Duty] = OF_DAEMON,
) -> Report:
    """Make these checks; all of them, if nobody says which."""
    began = time.monotonic()
    with Patient(settings, config_folder, limits, duties) as patient:
        findings = [finding for check in checks for finding in _findings(check, patient)]
        servers = dict(_servers(patient))
    return Report(findings=tuple(findings), servers=servers, seconds=time.monotonic() - began)


def _findings(check: Check, patient: Patient) -> list[Finding]:
    try:
        symptoms = list(check.look(patient))
    except Exception as error:
        why = reason(error)
        if why is None:
            raise
        return [Finding(check=check, severity=Severity.UNSEEN, found=why)]
    if not symptoms:
        return [Finding(check=check, severity=Severity.WELL)]
    return [Finding(check=check, severity=one.severity, found=one.found, mend=one.mend) for one in symptoms]


def _servers(patient: Patient) -> Iterator[tuple[Group, str]]:
    if patient.failure(Group.POSTGRES) is None:
        number = patient.postgres.info.server_version
        yield Group.POSTGRES, f"Postgres {number // 10000}.{number % 10000}"
    if patient.failure(Group.KAFKA) is None:
        brokers = len(patient.kafka.list_topics(timeout=5).brokers)
        yield Group.KAFKA, f"Kafka, {brokers} broker{'' if brokers == 1 else 's'}"
    if patient.failure(Group.ELASTICSEARCH) is None:
        yield Group.ELASTICSEARCH, f"Elasticsearch {patient.elasticsearch.info().body['version']['number']}"
