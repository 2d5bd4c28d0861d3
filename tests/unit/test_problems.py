"""What of an overview needs a person."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import given, strategies as st
from rich.console import Console

from syncer.base.model import Role
from syncer.capture.leader import Leader
from syncer.capture.outbox import Room
from syncer.cli import status_output
from syncer.jobs.model import JobKind
from syncer.monitoring import problems as problems_module
from syncer.monitoring.problems import Urgency, as_json, headline, problems, urgency
from syncer.monitoring.status import (
    DocumentOverview,
    Flow,
    IndexFault,
    Overview,
    Running,
    Server,
    ServerAnswer,
    Stored,
    rates,
)
from tests.support.world import REPOSITORY
from tests.unit.test_render import JOB

INDEX, NEXT = "blogpost-000001", "blogpost-000002"
DOCUMENT = DocumentOverview(
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
STORED = Stored(
    at=100,
    leader=Leader(process=1, name="syncer relay", address="10.0.0.5", seconds=5),
    running=(
        Running(
            host="web-1",
            process=42,
            version="0.1.0",
            address="10.0.0.5",
            has_relay=True,
            worker_threads=2,
            has_job_worker=True,
            since=datetime(2026, 11, 21, tzinfo=UTC),
            leads=True,
        ),
    ),
    captured=10,
    outbox_waiting=0,
    outbox_lag_seconds=0,
    published=10,
    handled=10,
    waiting_since=None,
    epoch=1,
    active=(),
    held_back={},
    dead_letters={},
    jobs=(),
    room=Room(bytes=0, segments=0),
    open_seconds=0,
    prepared_seconds=0,
    verifications=(),
)
ANSWERED = tuple(ServerAnswer(server=one, error=None, seconds=0.1, age_seconds=0) for one in Server)
WELL = Overview(at=100, servers=ANSWERED, stored=STORED, documents=(DOCUMENT,), written=10)


def stored(seen: Overview = WELL, **facts: Any) -> Overview:
    """The same, if Postgres says this."""
    return replace(seen, stored=replace(STORED, **facts))


def shown(seen: Overview, *, columns: int = 100) -> str:
    """What `syncer status` prints."""
    console = Console(file=io.StringIO(), width=columns)
    console.print(status_output.status(seen, rates(WELL, replace(seen, at=102))))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


documents = st.builds(
    DocumentOverview,
    name=st.sampled_from(["blogpost", "file"]),
    index=st.just("blogpost"),
    revision=st.just(1),
    is_loaded=st.booleans(),
    suspended=st.sampled_from([None, "a column is gone\nFix it", "said\n[in] its [/own] words"]),
    targets=st.fixed_dictionaries({INDEX: st.sampled_from([None, 0, 7]), NEXT: st.sampled_from([None, 7])}),
    roles=st.just({INDEX: Role.CURRENT, NEXT: Role.BUILDING}),
    lag_seconds=st.sampled_from([0, 500]),
    faults=st.dictionaries(st.sampled_from([INDEX, NEXT]), st.sampled_from(IndexFault)),
    dead_letters=st.integers(0, 2),
    drifted=st.integers(0, 1),
    troubles=st.sampled_from([{}, {NEXT: "its disk is full\nMake room"}]),
    searched=st.sampled_from([None, (INDEX,), (), (NEXT,), (INDEX, NEXT)]),
).map(lambda one: one if one.suspended is None else replace(one, is_loaded=False))
jobs = st.builds(
    replace, st.just(JOB), kind=st.sampled_from(list(JobKind)), is_paused=st.booleans(), completes_load=st.booleans()
)
silent = st.builds(
    ServerAnswer,
    server=st.sampled_from(Server),
    error=st.sampled_from([None, "it is down: connection refused at 127.0.0.1:9"]),
    hint=st.just("Start it"),
    seconds=st.just(0.1),
    age_seconds=st.sampled_from([None, 40]),
)
overviews = st.builds(
    Overview,
    at=st.just(100),
    servers=st.tuples(*(silent.map(partial(replace, server=one)) for one in Server)),
    stored=st.none()
    | st.builds(
        replace,
        st.just(STORED),
        leader=st.sampled_from([None, STORED.leader]),
        outbox_waiting=st.integers(0, 2),
        running=st.sampled_from([(), STORED.running]),
        jobs=st.lists(jobs, max_size=2).map(tuple),
    ),
    documents=st.lists(documents, max_size=2).map(tuple),
    written=st.none() | st.just(10),
)


@given(overviews)
def test_there_is_a_problem_if_and_only_if_all_is_not_well(seen: Overview) -> None:
    """Each says what, and what to do; the headline, the colour and the exit code never contradict one another."""
    found = problems(seen)
    said = as_json(seen, None)
    assert said["is_well"] is not bool(found)
    assert len(found) >= len(seen.silent)
    assert all(one.message and one.action for one in found)
    assert headline(seen).startswith("All is well") <= (not found)
    assert (urgency(seen) is Urgency.BAD) == any(not one.is_passing for one in found)
    for columns in (40, 100):
        output = shown(seen, columns=columns)
        assert headline(seen).split()[0] in output
        assert max(map(len, output.splitlines())) <= columns


def test_the_headline_says_what_goes_on() -> None:
    """Nothing, what is in flight and for how long, jobs and how long yet, and that it is behind."""
    assert headline(WELL) == "All is well. Nothing is waiting."
    both = stored(outbox_waiting=1, published=12)
    assert headline(both) == "All is well. 3 changes in flight."
    late = stored(outbox_waiting=1, published=12, waiting_since=95.8)
    assert headline(late) == "All is well. 3 changes in flight, the oldest for about 4 s."
    behind = headline(stored(outbox_waiting=1, published=12, waiting_since=-500))
    assert behind.startswith("Behind. 3 changes in flight")
    assert headline(stored(jobs=(JOB,))) == "All is well. 1 job running, done in about 8 s."
    unknown = replace(JOB, documents_total=None)
    assert headline(stored(jobs=(JOB, unknown))) == "All is well. 2 jobs running."
    assert headline(stored(jobs=(JOB, replace(JOB, is_paused=True)))).startswith("All is well. 1 job running")


def test_what_matters_most_comes_first() -> None:
    """Several things: how many, and each below; what nobody but a person can fix is told before what passes."""
    suspended = replace(DOCUMENT, suspended="the column posts.title is gone\nRun: syncer apply", is_loaded=False)
    paused = replace(JOB, kind=JobKind.FAN_OUT, is_paused=True)
    seen = replace(stored(leader=None, jobs=(paused,)), documents=(suspended,))
    assert headline(seen) == "3 problems."
    assert [one.message for one in problems(seen)] == [
        "No daemon leads: changes stay in the outbox.",
        "blogpost is suspended: the column posts.title is gone.",
        f"Job {JOB.id} is paused, and documents of {JOB.document} are stale until it is done.",
    ]
    assert "Run: syncer apply" in shown(seen)
    filling = replace(stored(jobs=(JOB,)), documents=(replace(DOCUMENT, is_loaded=False),))
    assert urgency(filling) is Urgency.BUSY
    assert headline(filling) == "blogpost is being loaded, done in about 8 s."
    of_another = replace(stored(jobs=(replace(JOB, index_name=NEXT),)), documents=filling.documents)
    assert headline(of_another) == "blogpost is not loaded: documents may be missing or stale."


def test_what_helps_depends_on_what_the_index_is_for() -> None:
    """One that is being built may be given up."""
    suspended = replace(DOCUMENT, troubles={NEXT: "a column is gone\nRun: syncer apply"})
    (one,) = problems(replace(WELL, documents=(suspended,)))
    assert one.action == "Run: syncer apply\nTo give it up: syncer index abort blogpost"
    gone = replace(suspended, targets={INDEX: 7, NEXT: None}, faults={NEXT: IndexFault.GONE})
    (one,) = problems(replace(WELL, documents=(gone,)))
    assert one.action == "Give it up: syncer index abort blogpost"
    both = "it takes no documents\nGive it a shard"
    away = replace(DOCUMENT, targets={INDEX: None}, faults={INDEX: IndexFault.SHARDS_AWAY}, suspended=both)
    (one,) = problems(replace(WELL, documents=(away,)))
    assert one.action == "Give it a shard"


def test_what_follows_from_an_outage_is_not_said_beside_it() -> None:
    """If Kafka is down, the missing leader and workers are not reported too; the known lag continues to grow."""
    down = ServerAnswer(server=Server.KAFKA, error="Kafka is down", hint="Start it", seconds=3, age_seconds=200)
    seen = replace(stored(leader=None, outbox_waiting=4210, outbox_lag_seconds=7), servers=(*ANSWERED[:1], down))
    (one,) = problems(seen)
    assert one.message == "Kafka is down, for 3 min 20 s. 4,210 changes are waiting."
    assert replace(seen, at=130).lag_seconds == 37
    assert rates(WELL, replace(seen, at=130)) is not None


def test_rates_follow_from_two_readings() -> None:
    """What a server counts anew, since it was made anew, is no negative rate; of one moment there is none."""
    later = replace(stored(captured=30, published=20, handled=0), at=102)
    measured = rates(WELL, later)
    assert measured == Flow(captured=10, published=5, handled=0, written=0)
    assert rates(WELL, WELL) is None


def test_each_daemon_is_shown_with_its_components() -> None:
    """The leader is told from a standby, and it is said how many worker threads are connected."""
    said = shown(WELL, columns=200)
    assert "web-1, 42" in said
    assert "leading relay, 2 worker threads, job worker" in said
    assert "10.0.0.5" in said
    (one,) = STORED.running
    assert "standby relay" in shown(stored(running=(replace(one, leads=False),)), columns=200)


def test_each_problem_has_an_entry_in_the_runbook() -> None:
    """What the status page links to is there."""
    entries = set(re.findall("^### (.+)$", (REPOSITORY / "docs" / "runbook.md").read_text("utf-8"), re.MULTILINE))
    named = set(re.findall('"(Syncer[A-Z][A-Za-z]+)"', Path(problems_module.__file__).read_text("utf-8")))
    assert named
    assert named <= entries
