"""Symptom: what is not well, how bad that is, and how it is mended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Group(StrEnum):
    """Whose checks they are."""

    POSTGRES = "postgres"
    KAFKA = "kafka"
    ELASTICSEARCH = "elasticsearch"
    SYNCER = "syncer"


class Severity(StrEnum):
    """How bad it is."""

    WRONG = "wrong"
    """A promise does not hold, or will not."""
    CONSIDER = "consider"
    """The promises hold; somebody should decide whether it is meant so."""
    UNSEEN = "unseen"
    """It could not be looked at."""
    WELL = "well"


class How(StrEnum):
    """How a mend is done."""

    SQL = "sql"
    """In psql, in the database that syncer follows, by who may do it: a statement on each line."""
    SHELL = "shell"
    """In a shell."""
    ADVICE = "advice"
    """By somebody who decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mend:
    """What to do.

    Args:
        how: How it is done.
        text: To be pasted, unless it is an advice.
        note: What to know before.
    """

    how: How
    text: str
    note: str = ""


def sql(text: str, note: str = "") -> Mend:
    """A mend in SQL."""
    return Mend(how=How.SQL, text=text, note=note)


def shell(text: str, note: str = "") -> Mend:
    """A mend in a shell."""
    return Mend(how=How.SHELL, text=text, note=note)


def advice(text: str) -> Mend:
    """A mend that somebody has to think of."""
    return Mend(how=How.ADVICE, text=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """What a check has found that is not well.

    Args:
        severity: How bad it is.
        found: What was found, in one sentence without a full stop.
        mend: What to do.
    """

    severity: Severity
    found: str
    mend: Mend


def wrong(found: str, mend: Mend) -> Symptom:
    """A promise does not hold."""
    return Symptom(severity=Severity.WRONG, found=found, mend=mend)


def consider(found: str, mend: Mend) -> Symptom:
    """Somebody should decide."""
    return Symptom(severity=Severity.CONSIDER, found=found, mend=mend)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """From where on a number is worth a word."""

    transaction_seconds: float = 3600
    prepared_seconds: float = 3600
    slot_bytes: int = 10 * 1024**3
    outbox_bytes: int = 1024**3
    outbox_seconds: float = 60
    xid_age_wrong: int = 1_500_000_000
    xid_age: int = 1_000_000_000
    job_seconds: float = 600
    standby_days: float = 14
    clock_seconds: float = 5
    replay_seconds: float = 5
    retention_seconds: float = 86_400
    retention_left_share: float = 0.5
    disk_free_share: float = 0.1
    shards_share: float = 0.9
    fields_share: float = 0.9
    written_last: int = 200
