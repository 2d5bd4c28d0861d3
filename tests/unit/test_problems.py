"""What of a status needs an operator, and what only follows from something else."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from syncer.base.model import Role
from syncer.base.retry import CurrentTrouble
from syncer.jobs.model import JobKind
from syncer.monitoring import problems as problems_module
from syncer.monitoring.daemons import DROP_SECONDS, SILENT_SECONDS, Daemon
from syncer.monitoring.problems import Urgency, as_json, headline, problems, urgency
from syncer.monitoring.status import DocumentStatus, IndexFault, Server, Status, Stored
from tests.support.world import REPOSITORY
from tests.unit.test_render import JOB

INDEX, NEXT = "blogpost-000001", "blogpost-000002"
DOCUMENT = DocumentStatus(
    name="blogpost",
    index="blogpost",
    revision=1,
    is_loaded=True,
    suspended=None,
    lag_seconds=0,
    targets={INDEX: 7, NEXT: 7},
    roles={INDEX: Role.CURRENT, NEXT: Role.BUILDING},
    faults={},
    dead_letters=0,
    drifted=0,
    troubles={},
    searched=(INDEX,),
)
DAEMON = Daemon(
    host="web-1",
    process=42,
    version="0.1.0",
    started_at=datetime(1970, 1, 1, tzinfo=UTC),
    components=("report", "watch", "relay", "worker-1", "worker-2", "job_worker"),
    leads=True,
    written_per_second=5,
    troubles=(),
    silent_seconds=1,
)
STORED = Stored(
    at=100,
    captured=10,
    published=10,
    handled=10,
    epoch=1,
    topic_since=None,
    outbox_waiting=0,
    outbox_since=None,
    outbox_bytes=0,
    outbox_segments=0,
    open_seconds=0,
    prepared_seconds=0,
    daemons=(DAEMON,),
    targets=(),
    dead_letters={},
    verifications=(),
    jobs=(),
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


def messages(found: Status) -> list[str]:
    """What the problems say."""
    return [problem.message for problem in problems(found)]


def test_the_headline_says_what_goes_on() -> None:
    """Nothing, what is in flight and for how long, jobs and how long yet, and that it is behind."""
    assert headline(WELL) == "All is well. Nothing is waiting."
    assert headline(status(outbox_waiting=1, published=12)) == "All is well. 3 changes in flight."
    late = status(outbox_waiting=1, published=12, topic_since=95.8)
    assert headline(late) == "All is well. 3 changes in flight, the oldest for about 4 s."
    assert headline(status(outbox_waiting=1, topic_since=-500)).startswith("Behind. 1 change in flight")
    assert headline(status(jobs=(JOB,))) == "All is well. 1 job running, done in about 8 s."


def test_a_component_that_retries_is_named_with_its_error() -> None:
    """Once for all daemons that meet it, wherever they are; briefly, it is about to pass."""
    other = replace(DAEMON, host="web-2", leads=False, troubles=(replace(TROUBLE, seconds=3),))
    both = status(daemons=(replace(DAEMON, troubles=(TROUBLE,)), other))
    (problem,) = problems(both)
    assert (problem.message, problem.action) == ("Elasticsearch's disk is full, for 12 s.", "Make room")
    assert problem.detail == "worker-1 of web-1, process 42\nworker-1 of web-2, process 42"
    assert urgency(both) is Urgency.BAD
    assert urgency(status(daemons=(DAEMON, other))) is Urgency.BUSY


def test_a_daemon_that_does_not_report_is_named() -> None:
    """Beside others that work; alone, no daemon is running, and nothing else follows from that."""
    silent = replace(DAEMON, silent_seconds=SILENT_SECONDS + 5, troubles=(TROUBLE,))
    heir = replace(DAEMON, host="web-2")
    assert messages(status(daemons=(silent, heir))) == ["The daemon web-1, process 42 has not reported for 12 s."]
    (message,) = messages(status(daemons=(silent,)))
    assert message == "No daemon is running. The last one, web-1, process 42, reported 12 s ago."
    assert messages(status(daemons=())) == ["No daemon is running."]
    assert SILENT_SECONDS < DROP_SECONDS
    # The heir does not lead yet: that passes.
    (_, leaderless) = problems(status(daemons=(silent, replace(heir, leads=False))))
    assert leaderless.is_passing


def test_what_no_daemon_does_is_named() -> None:
    """Unless one of them is about to start, or a server keeps it from that."""
    assert messages(status(daemons=(replace(DAEMON, leads=False),))) == ["No daemon leads: changes stay in the outbox."]
    relay = replace(DAEMON, components=("relay",))
    assert messages(status(daemons=(relay,))) == ["No worker is running: changes are not written."]
    waits = replace(DAEMON, leads=False, components=(), troubles=(TROUBLE,))
    assert messages(status(daemons=(waits,))) == ["Elasticsearch's disk is full, for 12 s."]


def test_what_follows_from_an_outage_is_not_said_beside_it() -> None:
    """Not the missing leader and the retries, if Kafka is down; nothing at all, if Postgres is. The lag goes on."""
    retries = replace(DAEMON, leads=False, troubles=(replace(TROUBLE, server="kafka", error="Kafka is down"),))
    away = status(daemons=(retries,), outbox_waiting=4210, outbox_since=93)
    away = replace(away, servers=(POSTGRES, down(KAFKA), ELASTICSEARCH))
    assert messages(away) == ["Kafka is down, for 3 min 20 s. 4,210 changes are waiting."]
    assert replace(away, at=130).lag_seconds == 37
    suspended = replace(DOCUMENT, suspended="a column is gone")
    blind = replace(away, servers=(down(POSTGRES), KAFKA, ELASTICSEARCH), documents=(suspended,))
    assert messages(blind) == ["Postgres is down, for 3 min 20 s."]


def test_what_matters_most_comes_first() -> None:
    """Several problems: how many, and each below."""
    suspended = replace(DOCUMENT, suspended="the column posts.title is gone\nRun: syncer apply", is_loaded=False)
    paused = replace(JOB, kind=JobKind.FAN_OUT, is_paused=True)
    found = replace(status(daemons=(), jobs=(paused,)), documents=(suspended,))
    assert headline(found) == "3 problems."
    assert messages(found) == [
        "No daemon is running.",
        "blogpost is suspended: the column posts.title is gone.",
        f"Job {JOB.id} is paused, and documents of {JOB.document} are stale until it is done.",
    ]
    filling = replace(status(jobs=(JOB,)), documents=(replace(DOCUMENT, is_loaded=False),))
    assert urgency(filling) is Urgency.BUSY
    assert headline(filling) == "blogpost is being loaded, done in about 8 s."


def test_what_helps_depends_on_what_the_index_is_for() -> None:
    """One that is being built may be given up; a lost index is the cause, not that its document is suspended."""
    suspended = replace(DOCUMENT, troubles={NEXT: "a column is gone\nRun: syncer apply"})
    (problem,) = problems(replace(WELL, documents=(suspended,)))
    assert problem.action == "Run: syncer apply\nTo give it up: syncer index abort blogpost"
    gone = replace(suspended, targets={INDEX: 7, NEXT: None}, faults={NEXT: IndexFault.GONE})
    (problem,) = problems(replace(WELL, documents=(gone,)))
    assert problem.action == "Give it up: syncer index abort blogpost"


def test_what_is_unknown_is_null() -> None:
    """Postgres has never answered: no figure is made up."""
    blind = as_json(Status(at=1, servers=(down(POSTGRES),), stored=None, documents=()))
    assert {name for name, value in blind.items() if value is None} == {
        *("daemons", "leader", "workers", "outbox_waiting", "outbox_lag_seconds", "topic_waiting"),
        *("topic_lag_seconds", "lag_seconds", "totals", "written_per_second", "epoch", "documents", "jobs"),
        "verifications",
    }


def test_each_problem_has_an_entry_in_the_manual() -> None:
    """What the status page links to is there."""
    entries = set(re.findall("^### (.+)$", (REPOSITORY / "docs" / "operating.md").read_text("utf-8"), re.MULTILINE))
    named = set(re.findall('"(Syncer[A-Z][A-Za-z]+)"', Path(problems_module.__file__).read_text("utf-8")))
    assert named
    assert named <= entries
