"""What of a status needs an operator, and what only follows from something else."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from psycopg import OperationalError

from syncer.base.model import Role
from syncer.base.retry import CurrentTrouble
from syncer.jobs.model import Job, JobKind, JobState
from syncer.monitoring import problems as problems_module
from syncer.monitoring.daemons import SILENT_SECONDS, Daemon
from syncer.monitoring.problems import Urgency, as_json, problems, urgency
from syncer.monitoring.status import DocumentStatus, IndexFault, Reader, Server, Status, Stored, describe
from syncer.monitoring.web.api import KEPT_SECONDS, History
from tests.support.world import REPOSITORY


def example(of: Any, **facts: Any) -> Any:
    """One of that class; what is not given is 0, which is no and nothing, too."""
    return of(**dict.fromkeys(of.__dataclass_fields__, 0) | facts)


INDEX, NEXT = "blogpost-000001", "blogpost-000002"
JOB: Job = example(Job, id=7, kind=JobKind.BACKFILL, document="blogpost", index_name=INDEX, state=JobState.WRITING)
DOCUMENT: DocumentStatus = example(
    DocumentStatus,
    name="blogpost",
    index="blogpost",
    is_loaded=True,
    suspended=None,
    held_back_since=None,
    roles={INDEX: Role.CURRENT, NEXT: Role.BUILDING},
    troubles={},
    faults={},
    targets={INDEX: 7, NEXT: 7},
    searched=(INDEX,),
)
DAEMON: Daemon = example(
    Daemon,
    host="web-1",
    process=42,
    started_at=datetime(1970, 1, 1, tzinfo=UTC),
    components=("report", "watch", "relay", "worker-1", "worker-2", "job_worker"),
    leads=True,
    troubles=(),
)
STORED: Stored = example(
    Stored,
    at=100,
    totals={"captured": 10, "published": 10, "handled": 10},
    topic_since=None,
    outbox_since=None,
    is_rebuilt=True,
    daemons=(DAEMON,),
    **dict.fromkeys(("documents", "verifications", "jobs"), ()),
)
POSTGRES, KAFKA, ELASTICSEARCH = (
    Server(server=name, error=None, age_seconds=0) for name in ("postgres", "kafka", "elasticsearch")
)
WELL = Status(at=100, servers=(POSTGRES, KAFKA, ELASTICSEARCH), stored=STORED, documents=(DOCUMENT,))
TROUBLE = CurrentTrouble(
    component="worker-1",
    server="elasticsearch",
    kind="429",
    seconds=12,
    error="Elasticsearch's disk is full",
    hint="Make room",
)


def status(**facts: Any) -> Status:
    """A status in which all is well, but Postgres says this."""
    return replace(WELL, stored=replace(STORED, **facts))


def down(server: Server) -> Server:
    """The same server, which does not answer."""
    return replace(
        server, error=f"{server.server.title()} is down", hint="Start it", silent_seconds=200, age_seconds=300
    )


SUSPENDED = replace(DOCUMENT, suspended="the column posts.title is gone\nRun: syncer apply", is_loaded=False)
BUILT_BADLY = replace(DOCUMENT, troubles={NEXT: "a column is gone\nRun: syncer apply"})
PAUSED = replace(JOB, kind=JobKind.FAN_OUT, is_paused=True)
SILENT = replace(DAEMON, silent_seconds=SILENT_SECONDS + 5, troubles=(TROUBLE,))
HEIR = replace(DAEMON, host="web-2")
RETRIES = replace(DAEMON, leads=False, troubles=(replace(TROUBLE, server="kafka", error="Kafka is down"),))
WAITING = status(daemons=(RETRIES,), outbox_waiting=4210, outbox_since=93)
WITHOUT_KAFKA = replace(WAITING, servers=(POSTGRES, down(KAFKA), ELASTICSEARCH))


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        (WELL, []),
        # A daemon that does not report, beside others; alone, nothing else follows from that.
        (status(daemons=()), ["No daemon is running."]),
        (status(daemons=(SILENT, HEIR)), ["The daemon web-1, process 42 has not reported for 12 s."]),
        (status(daemons=(SILENT,)), ["No daemon is running. The last one, web-1, process 42, reported 12 s ago."]),
        # What no daemon does, unless a server keeps it from that.
        (status(daemons=(replace(DAEMON, leads=False),)), ["No daemon leads: changes stay in the outbox."]),
        (
            status(daemons=(replace(DAEMON, components=("relay",)),)),
            ["No worker is running: changes are not written."],
        ),
        (
            status(daemons=(replace(DAEMON, leads=False, components=(), troubles=(TROUBLE,)),)),
            ["Elasticsearch's disk is full, for 12 s."],
        ),
        # What follows from an outage is not beside it: no missing leader while Kafka is down.
        (WITHOUT_KAFKA, ["Kafka is down, for 3 min 20 s. 4,210 changes are waiting."]),
        (
            replace(WITHOUT_KAFKA, servers=(down(POSTGRES), KAFKA, ELASTICSEARCH), documents=(SUSPENDED,)),
            ["Postgres is down, for 3 min 20 s."],
        ),
        # The most important first.
        (
            replace(status(daemons=(), jobs=(PAUSED,)), documents=(SUSPENDED,)),
            [
                "No daemon is running.",
                "blogpost is suspended: the column posts.title is gone.",
                f"Job {JOB.id} is paused, and documents of {JOB.document} are stale until it is done.",
            ],
        ),
        (replace(WELL, documents=(BUILT_BADLY,)), [f"{NEXT} (building) is suspended: a column is gone."]),
        # A new index that nobody goes on with, unless a job does.
        (status(is_rebuilt=False), [f"{NEXT} is being built, but no command goes on with it. Searches use {INDEX}."]),
        (status(is_rebuilt=False, jobs=(replace(JOB, index_name=NEXT),)), []),
        # Who has never had an answer does not know since when there is none.
        (
            replace(WELL, servers=(POSTGRES, KAFKA, replace(down(ELASTICSEARCH), age_seconds=None))),
            ["Elasticsearch is down."],
        ),
        # A lost index is the cause, not that its document is suspended.
        (
            replace(WELL, documents=(replace(BUILT_BADLY, faults={NEXT: IndexFault.GONE}),)),
            [f"The index {NEXT} (of blogpost, building) is gone."],
        ),
        (
            replace(WELL, documents=(replace(DOCUMENT, searched=(INDEX, NEXT)),)),
            [f"Searches of blogpost find {INDEX} and {NEXT} instead of {INDEX} alone."],
        ),
        (
            replace(WELL, documents=(replace(DOCUMENT, drifted=2, dead_letters=1),)),
            [
                "2 documents of blogpost differed from the SELECT at the last verify.",
                "1 document of blogpost could not be written.",
            ],
        ),
    ],
)
def test_each_problem_is_named_once(reading: Status, expected: list[str]) -> None:
    """In one sentence, with an action."""
    assert [problem.message for problem in problems(reading)] == expected
    assert all(problem.action for problem in problems(reading))


def test_a_component_that_retries_is_named_with_its_error() -> None:
    """Once for all daemons that meet it, wherever they are; briefly, it is about to pass. The lag goes on."""
    second = replace(HEIR, leads=False, troubles=(replace(TROUBLE, seconds=3),))
    both = status(daemons=(replace(DAEMON, troubles=(TROUBLE,)), second))
    (problem,) = problems(both)
    assert (problem.message, problem.action) == ("Elasticsearch's disk is full, for 12 s.", "Make room")
    assert problem.detail == "worker-1 of web-1, process 42\nworker-1 of web-2, process 42"
    assert urgency(both) is Urgency.BAD
    assert urgency(status(daemons=(DAEMON, second))) is Urgency.BUSY
    assert replace(WITHOUT_KAFKA, at=130).lag_seconds == 37


def test_what_is_unknown_is_null() -> None:
    """Postgres has never answered: no figure is made up."""
    blind = as_json(Status(at=1, servers=(down(POSTGRES),), stored=None, documents=()))
    still_there = {"is_well", "headline", "status", "problems", "at", "servers"}
    assert blind.keys() == as_json(WELL).keys()
    assert {name for name, value in blind.items() if value is not None} == still_there


def test_each_problem_has_an_entry_in_the_manual() -> None:
    """What the status page links to is there."""
    entries = set(re.findall("^### (.+)$", (REPOSITORY / "docs" / "operating.md").read_text("utf-8"), re.MULTILINE))
    named = set(re.findall('"(Syncer[A-Z][A-Za-z]+)"', Path(problems_module.__file__).read_text("utf-8")))
    assert named
    assert named <= entries


def test_of_several_hosts_the_one_that_refuses_is_named() -> None:
    """Libpq says a line for each, and another one may be a replica that answers."""
    libpq_message = 'connection to server at "10.0.0.1", port 5432 failed: session is read-only\n'
    libpq_message += 'connection to server at "10.0.0.2", port 5433 failed: Connection refused'
    described, _ = describe("postgres", OperationalError(libpq_message))
    assert described == "Postgres refuses connections at 10.0.0.2:5433"


def sampled(*readings: Status) -> list[tuple[float | None, ...]]:
    """What the charts get of these readings."""
    reader = Mock(spec=Reader)
    reader.read.side_effect = readings
    history = History(reader)
    for _ in readings:
        history.read()
    return [(sample["at"], sample["lag_seconds"], sample["captured_per_second"]) for sample in history.since(0)]


def at(seconds: float, captured: int = 10, **facts: Any) -> Status:
    """A reading of this time."""
    totals = {"captured": captured, "published": 10, "handled": 10}
    return replace(status(at=seconds, totals=totals, **facts), at=seconds)


def silent(status: Status, seconds: float) -> Status:
    """A reading of this time, at which Postgres does not answer."""
    return replace(status, at=seconds, servers=(down(POSTGRES),))


@pytest.mark.parametrize(
    ("readings", "samples"),
    [
        ([at(100), at(102, 30), at(112, 80)], [(100, 0, None), (102, 0, 10), (112, 0, 5)]),
        ([at(100), at(100), at(99), at(104, 14)], [(100, 0, None), (104, 0, 1)]),  # read twice, a clock set back
        ([at(100, 50), at(105, 20, outbox_since=95)], [(100, 0, None), (105, 10, 0)]),  # restored to an earlier time
        ([at(100), silent(at(100), 105), at(110, 30)], [(100, 0, None), (105, None, None), (110, 0, 2)]),
        ([silent(replace(at(0), stored=None), 7), at(9)], [(7, None, None), (9, 0, None)]),
    ],
    ids=["rates", "once each", "restored", "silent", "never answered"],
)
def test_a_sample_of_each_reading_is_kept(readings: list[Status], samples: list[tuple[float | None, ...]]) -> None:
    """Rule: a chart shows each reading once, in order; while Postgres is silent the figures are unknown, not zero."""
    assert sampled(*readings) == samples


def test_samples_of_more_than_an_hour_are_dropped() -> None:
    """However often the status is read, memory is bounded."""
    samples = sampled(*(at(100 + 2.0 * number) for number in range(6000)))
    assert (len(samples), samples[0][0]) == (KEPT_SECONDS / 2 + 1, 100 + 2 * 5999 - KEPT_SECONDS)
