"""Writes ``docs/doctor.md`` from the checks that there are: ``python -m tests.doctor_page``."""

from __future__ import annotations

from syncer.doctor.examination import CHECKS
from syncer.doctor.finding import Check
from syncer.doctor.symptom import Group
from tests.proof import REPOSITORY

PAGE = REPOSITORY / "docs" / "doctor.md"
_TITLES = {
    Group.POSTGRES: "Postgres",
    Group.KAFKA: "Kafka",
    Group.ELASTICSEARCH: "Elasticsearch",
    Group.SYNCER: "syncer",
}
_HEAD = "| check | if all is well | why, and for which promise |\n|---|---|---|\n"
_INTRODUCTION = """\
# What `syncer doctor` looks at

Each check has a name that stays, what is so if all is well, and what rests on it, with the numbers of the promises in
[the README](../README.md#what-it-promises).
A finding is *wrong* (a promise does not hold, or will not), *to be considered* (the promises hold; somebody should
decide whether it is meant so), or *cannot be seen* (a server is away, the schema is not there, a privilege lacks: the
thing itself may be well).

Nothing is changed: in Postgres every transaction of the doctor's is read-only, no statement runs for longer than 5 s,
and of Kafka and Elasticsearch it is only asked. Run it with the settings of the daemon, since it is the role of the
daemon whose privileges it tells; mends are for whoever may do them.

What makes no difference is not looked at: `wal_level` (nothing but a replica needs more than minimal),
`session_replication_role` (the triggers always fire), `message.timestamp.type` (lag is told from the change's own
time).

This page is written by `python -m tests.doctor_page`, from the checks.
"""


def page() -> str:
    """The page of checks."""
    parts = [_INTRODUCTION]
    for group in Group:
        parts.append(
            f"\n## {_TITLES[group]}\n\n| check | if all is well | why, and for which promise |\n|---|---|---|\n"
        )
        parts += [_row(check) for check in CHECKS if check.group is group]
    return "".join(parts)


def _row(check: Check) -> str:
    promises = f" ({', '.join(map(str, check.promises))})" if check.promises else ""
    return f"| `{check.id}` | {check.claim} | {check.why}{promises} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
