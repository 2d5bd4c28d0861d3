"""What of an overview needs a person."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given, strategies as st
from rich.console import Console

from syncer import status_page
from syncer.concern import Mood, as_json, concerns, headline, mood
from syncer.job import JobKind
from syncer.model import Role
from syncer.overview import DocumentOverview, Leader, Overview, Running, Totals, rates
from tests.unit.test_terminal import JOB

INDEX, NEXT = "blogpost-000001", "blogpost-000002"
DOCUMENT = DocumentOverview(
    name="blogpost",
    index="blogpost",
    generation=1,
    is_filled=True,
    halted=None,
    targets={INDEX: 7, NEXT: 7},
    roles={INDEX: Role.SERVING, NEXT: Role.STANDBY},
    dead_letters=0,
    troubles={},
    unwell={},
)
WELL = Overview(
    at=100,
    leader=Leader(process=1, name="syncer relay", address="10.0.0.5", seconds=5),
    running=(
        Running(
            address="10.0.0.5", daemons=2, relays=2, works=True, since=datetime(2026, 11, 21, tzinfo=UTC), leads=True
        ),
    ),
    outbox_waiting=0,
    outbox_lag_seconds=0,
    workers=2,
    topic_waiting=0,
    topic_lag_seconds=0,
    totals=Totals(captured=10, published=10, handled=10, written=10),
    epoch=1,
    documents=(DOCUMENT,),
    jobs=(),
    unreadable_records=0,
)


def shown(seen: Overview, *, columns: int = 100) -> str:
    """What `syncer status` prints."""
    console = Console(file=io.StringIO(), width=columns)
    console.print(status_page.status(seen, rates(WELL, replace(seen, at=102))))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


documents = st.builds(
    DocumentOverview,
    name=st.sampled_from(["blogpost", "file"]),
    index=st.just("blogpost"),
    generation=st.just(1),
    is_filled=st.booleans(),
    halted=st.sampled_from([None, "a column is gone\nMend it", "said\n[in] its [/own] words"]),
    targets=st.fixed_dictionaries({INDEX: st.sampled_from([None, 0, 7]), NEXT: st.sampled_from([None, 7])}),
    roles=st.just({INDEX: Role.SERVING, NEXT: Role.BUILDING}),
    dead_letters=st.integers(0, 2),
    troubles=st.sampled_from([{}, {NEXT: "its disk is full\nMake room"}]),
    unwell=st.sampled_from([{}, {INDEX: "it takes no documents\nGive it a shard"}, {INDEX: "it takes no documents"}]),
).map(lambda one: one if one.halted is None else replace(one, is_filled=False))
jobs = st.builds(
    replace, st.just(JOB), kind=st.sampled_from(list(JobKind)), is_paused=st.booleans(), fills=st.booleans()
)
overviews = st.builds(
    replace,
    st.just(WELL),
    leader=st.sampled_from([None, WELL.leader]),
    workers=st.integers(0, 2),
    outbox_waiting=st.integers(0, 2),
    topic_lag_seconds=st.sampled_from([0, 5, 500]),
    documents=st.lists(documents, max_size=2).map(tuple),
    jobs=st.lists(jobs, max_size=2).map(tuple),
    unreadable_records=st.integers(0, 1),
)


@given(overviews)
def test_there_is_a_concern_if_and_only_if_all_is_not_well(seen: Overview) -> None:
    """Each says what, and what to do; the headline, the colour and the exit code never contradict one another."""
    found = concerns(seen)
    assert bool(found) is not seen.is_well
    assert all(one.says and one.do for one in found)
    assert headline(seen).startswith("All is well") <= seen.is_well
    assert (mood(seen) is Mood.BAD) <= (not seen.is_well)
    assert as_json(seen, None)["concerns"] == as_json(seen, None)["concerns"]
    for columns in (40, 100):
        said = shown(seen, columns=columns)
        assert headline(seen).split()[0] in said
        assert max(map(len, said.splitlines())) <= columns


def test_the_headline_says_what_goes_on() -> None:
    """Nothing, what is on the way and for how long, jobs and how long yet, and that it is behind."""
    assert headline(WELL) == "All is well. Nothing waits."
    waiting = replace(WELL, outbox_waiting=1, topic_waiting=2)
    assert headline(waiting) == "All is well. 3 changes on the way."
    late = replace(waiting, topic_lag_seconds=4.2)
    assert headline(late) == "All is well. 3 changes on the way, the oldest for about 4 s."
    assert headline(replace(late, topic_lag_seconds=600)).startswith("Behind, and at work. 3 changes on the way")
    assert headline(replace(WELL, jobs=(JOB,))) == "All is well. 1 job at work, for about 8 s yet."
    unknown = replace(JOB, documents_total=None)
    assert headline(replace(WELL, jobs=(JOB, unknown))) == "All is well. 2 jobs at work."
    assert headline(replace(WELL, jobs=(JOB, replace(JOB, is_paused=True)))).startswith("All is well. 1 job at work")


def test_what_matters_most_comes_first() -> None:
    """Several things: how many, and each below; what nobody but a person can mend is told before what passes."""
    halted = replace(DOCUMENT, halted="the column posts.title is gone\nRun: syncer apply", is_filled=False)
    seen = replace(WELL, leader=None, documents=(halted,), unreadable_records=2)
    assert headline(seen) == "3 things are not well."
    assert [one.says for one in concerns(seen)] == [
        "No relay leads: changes stay in the outbox.",
        "blogpost is halted: the column posts.title is gone.",
        "2 records of the topic cannot be read as changes.",
    ]
    assert "Run: syncer apply" in shown(seen)
    filling = replace(WELL, documents=(replace(DOCUMENT, is_filled=False),), jobs=(JOB,))
    assert mood(filling) is Mood.BUSY
    assert headline(filling) == "blogpost is being filled, done in about 8 s."
    of_another = replace(filling, jobs=(replace(JOB, index_name=NEXT),))
    assert headline(of_another) == "blogpost is not filled: documents may be missing or stale."


def test_what_helps_depends_on_what_the_index_is_for() -> None:
    """Nothing that is applied makes an index on standby go on; one that is being built may be given up too."""
    halted = replace(DOCUMENT, troubles={NEXT: "a column is gone\nRun: syncer apply"})
    (one,) = concerns(replace(WELL, documents=(halted,)))
    assert "syncer apply" not in one.do
    assert "syncer backfill blogpost --drop-old" in one.do
    building = replace(halted, roles={INDEX: Role.SERVING, NEXT: Role.BUILDING})
    (one,) = concerns(replace(WELL, documents=(building,)))
    assert one.do == "Run: syncer apply\nTo give it up: syncer backfill blogpost --abandon"


def test_rates_follow_from_two_readings() -> None:
    """What a server counts anew, since it was made anew, is no negative rate; of one moment there is none."""
    later = replace(WELL, at=102, totals=Totals(captured=30, published=20, handled=0, written=10))
    measured = rates(WELL, later)
    assert measured is not None
    assert (measured.seconds, measured.captured, measured.published) == (2, 10, 5)
    assert (measured.handled, measured.written) == (0, 0)
    assert rates(WELL, WELL) is None


def test_who_runs_where_is_said_once_for_each_machine() -> None:
    """The leader is among the relays of its machine."""
    said = shown(WELL)
    assert "the relay that leads, 1 relay standing by, workers" in said
    assert "10.0.0.5" in said
