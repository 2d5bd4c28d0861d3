"""What a job has yet to write is on its way: it has not drifted, and a new index does not serve without it."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from rich.console import Console

from syncer import filling, jobs, listing, owing, rebuild, store, verify as verifying
from syncer.apply import Fill
from syncer.comparing import compared
from syncer.drift import Cause
from syncer.job import Job, JobKind, JobState, find, unfinished
from syncer.model import Role
from syncer.postgres import Connection
from syncer.store import Document
from syncer.verify import VerifyReport, verify
from tests.faults.rules import OWED_UNFILLED, OWED_WAITED_FOR
from tests.faults.test_rebuild import begin, require_done
from tests.harness import DEADLINE_SECONDS, World, wait_until
from tests.lane import Lane
from tests.proof import Rule, faces
from tests.scenarios.test_fan_outs import BLOG, OTHER, fan_out, follow, list_, the_document

FAR_AHEAD = 1 << 62


@pytest.fixture
def connection(world: World) -> Iterator[Connection]:
    """To a blog in which two users have many posts, all of which are written."""
    world.sql(BLOG)
    with world.connect() as made:
        world.backfill()
        with world.index() as index:
            follow(world, index, many=1000)
        world.sql("DELETE FROM syncer.job")
        yield made


@pytest.fixture
def late(world: World, connection: Connection) -> Job:
    """A rename of the user with the posts 1 to 120, as far as the job that nobody has begun."""
    return rename(world, connection, the_document(connection).index_name)


def rename(world: World, connection: Connection, index_name: str) -> Job:
    """Rename the user with the posts 1 to 120; what is to be done about it in one of the indices."""
    world.sql("UPDATE users SET name = 'renamed' WHERE id = 1")
    with world.index() as index:
        follow(world, index)
    (job,) = unfinished(connection, index_name)
    assert job.kind is JobKind.FAN_OUT
    return job


def run(world: World, *, repair: bool = False, sample: int | None = None) -> VerifyReport:
    """Verify in small pages, and without patience."""
    with ExitStack() as stack:
        index = stack.enter_context(world.index())
        writer = stack.enter_context(world.writer(index)) if repair else None
        document = stack.enter_context(world.connect())
        return verify(
            world.connect,
            the_document(document),
            index=index,
            kafka=world.settings.kafka,
            page=7,
            settle_seconds=0,
            repair=writer,
            sample=sample,
        )


def summary(report: VerifyReport) -> tuple[list[str], list[str], int, list[int]]:
    """What drifted, what was repaired, how much is owed, and by which jobs."""
    return [one.id for one in report.drifts], [one.id for one in report.repaired], report.owed, report.owed_by


# Verify


@faces(
    "verify runs before a fan-out is written",
    promises=(3,),
    without=Rule(
        "what a job has yet to write is no drift",
        module="syncer.looking",
        text="return [one for one in drifts if not self._is_owed(one, coming.get(one.id, ()), seen)]",
        instead="return drifts",
    ),
)
@pytest.mark.parametrize("state", ["new", "paused", "listing", "listed", "in hand"])
def test_what_a_fan_out_has_yet_to_write_is_no_drift(
    world: World, connection: Connection, late: Job, state: str
) -> None:
    """However far it is; what drifted beside it is found and repaired, and what is owed is left to the job."""
    match state:
        case "paused":
            jobs.pause(connection, late.id)
        case "listing":
            world.sql("UPDATE syncer.job SET state = 'listing'")
        case "listed" | "in hand":
            list_(connection, late)
    with world.elasticsearch() as client, world.connect() as lane:
        if state == "in hand":
            Lane(lane).take()
        client.delete(index=world.alias, id="300")
        assert summary(run(world)) == (["300"], [], 120, [late.id])
        report = run(world, repair=True)
    assert report.holds
    assert summary(report) == ([], ["300"], 120, [late.id])
    assert len(world.differences()) == 120


def test_nothing_is_owed_once_it_is_written(world: World, late: Job) -> None:
    """What is wrong then has drifted."""
    with world.index() as index:
        world.refresh(index)
    assert summary(run(world)) == ([], [], 0, [])
    with world.elasticsearch() as client:
        client.delete(index=world.alias, id="1")
    assert [one.id for one in run(world).drifts] == ["1"]
    assert late.id


@faces(
    "a fan-out is through just when verify would ask for it",
    promises=(3,),
    without=Rule(
        "jobs are asked for before the last look",
        module="syncer.looking",
        text="coming = self.owed.coming(ids)\n        last = self._look(suspects, ids)",
        instead="last = self._look(suspects, ids)\n        coming = self.owed.coming(ids)",
    ),
)
@pytest.mark.usefixtures("late")
def test_a_job_that_ends_while_verify_looks_leaves_no_drift(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is through just when it would be asked for: what was seen before that is looked at again."""
    ended: list[bool] = []

    def once_it_is_through(connection: Connection, index_name: str | None = None) -> list[Job]:
        with world.index() as index:
            world.refresh(index)
        ended.append(True)
        return unfinished(connection, index_name)

    monkeypatch.setattr(owing, "unfinished", once_it_is_through)
    assert summary(run(world)) == ([], [], 0, [])
    assert ended


@pytest.mark.usefixtures("late")
def test_more_than_fits_may_be_owed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room is for suspects: one that drifted is found behind many that are owed; so it is with those to be swept."""
    monkeypatch.setattr(verifying, "SUSPECTS_MAX", 10)
    with world.elasticsearch() as client:
        client.delete(index=world.alias, id="300")
    report = run(world)
    assert report.is_complete
    assert [one.id for one in report.drifts] == ["300"]
    assert report.owed == 120


@faces(
    "verify runs before a TRUNCATE is swept",
    promises=(3,),
    without=Rule(
        "what a job has yet to sweep is no drift",
        module="syncer.owing",
        text="if job.kind.is_whole and job.state is not JobState.SWEPT:",
        instead="if False:",
    ),
)
@pytest.mark.parametrize("state", [JobState.NEW, JobState.LISTED, JobState.WRITTEN, JobState.SWEPT])
def test_what_a_refresh_has_yet_to_sweep_is_no_drift(
    world: World, connection: Connection, monkeypatch: pytest.MonkeyPatch, state: JobState
) -> None:
    """After a TRUNCATE all documents are too many, until they are swept."""
    monkeypatch.setattr(verifying, "SUSPECTS_MAX", 10)
    world.sql("TRUNCATE posts CASCADE")
    with world.index() as index, world.refresher(index) as refresher:
        follow(world, index)
        (job,) = unfinished(connection)
        assert job.kind is JobKind.REFRESH
        document = the_document(connection)
        numbers = index.holdings.sequence_numbers(document.target)
        if state is not JobState.NEW:
            assert listing.list_pages(connection, job, document, page=10, sequence_numbers=lambda: numbers)
        if state in (JobState.WRITTEN, JobState.SWEPT):
            assert jobs.advance(connection, job.id).state is JobState.WRITTEN
        if state is JobState.SWEPT:
            strays = refresher._strays(document, numbers)
            assert listing.sweep(connection, find(connection, job.id), strays, page=10)
        assert find(connection, job.id).state is state
        report = run(world)
        assert report.holds, report
        assert (report.owed, report.owed_by) == (360, [job.id])
        world.refresh(index)
    assert summary(run(world)) == ([], [], 0, [])


@faces(
    "documents drift that a backfill would come to",
    promises=(3,),
    without=Rule(
        "what may be cancelled without harm excuses no drift",
        module="syncer.owing",
        text="if one.job.kind.is_owed and (is_stray or",
        instead="if (is_stray or",
    ),
)
def test_only_what_is_owed_is_left_to_a_job(world: World, connection: Connection) -> None:
    """What somebody may cancel without harm excuses nothing; nor does a fan-out that leads elsewhere."""
    jobs.create(connection, the_document(connection), JobKind.BACKFILL)
    fan_out(connection, OTHER)
    with world.elasticsearch() as client:
        client.delete(index=world.alias, id="1")
    assert summary(run(world)) == (["1"], [], 0, [])


def test_what_a_refresh_is_through_with_is_left_to_nobody(world: World, connection: Connection) -> None:
    """Before it sweeps it excuses what only Elasticsearch has, and no more what should be there."""
    job = jobs.create(connection, the_document(connection), JobKind.REFRESH)
    assert job is not None
    with world.index() as index, world.connect() as lane:
        numbers = index.holdings.sequence_numbers(the_document(connection).target)
        document = the_document(connection)
        assert listing.list_pages(connection, job, document, page=100, sequence_numbers=lambda: numbers)
        Lane(lane).drain()
    assert jobs.advance(connection, job.id).state is JobState.WRITTEN
    world.sql("DELETE FROM posts WHERE id = 2")
    with world.elasticsearch() as client:
        client.delete(index=world.alias, id="1")
    world.sql("TRUNCATE syncer.outbox")  # nothing else is on its way
    assert summary(run(world)) == (["1"], [], 1, [job.id])


@pytest.mark.usefixtures("late")
def test_what_no_job_can_replace_is_drift(world: World) -> None:
    """A version of somebody else's that none of ours surpasses stays, whoever will write."""
    with world.elasticsearch() as client:
        client.index(index=world.alias, id="7", document={}, version=FAR_AHEAD, version_type="external")
    report = run(world)
    assert [(one.id, one.cause) for one in report.drifts] == [("7", Cause.FOREIGN_AHEAD)]
    assert report.owed == 119


def test_the_command_says_what_is_on_its_way(world: World, late: Job) -> None:
    """And by which job; it ends well, and claims not that all are equal."""
    ended = world.syncer("verify", "--settle", "0")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "nothing has drifted" in ended.stdout
    assert f"120 documents are on the way: job {late.id} will write what differs" in ended.stdout
    (said,) = json.loads(world.syncer("verify", "--settle", "0", "--json").stdout)
    assert (said["owed"], said["owed_by"], said["drifts"]) == (120, [late.id], [])


# A new index


@pytest.fixture
def building(world: World, connection: Connection) -> Document:
    """A new index that is filled, and does not serve yet."""
    with world.indices() as indices, world.index() as index:
        rebuild.begin(connection, indices, "blogpost", tell=lambda _: None)
        world.refresh(index)
    return store.by_role(connection, "blogpost")[Role.BUILDING]


def done_where_it_serves(world: World, connection: Connection, building: Document) -> Job:
    """A rename that searches find already; the job by which it will be in the new index."""
    late = rename(world, connection, building.index_name)
    jobs.pause(connection, late.id)
    with world.index() as index, world.refresher(index) as refresher:
        while unfinished(connection, the_document(connection).index_name):
            refresher.run_once()
    assert world.held() == world.expected()
    return jobs.resume(connection, late.id)


def fill_on(world: World, building: Document) -> str:
    """What the command does about a new index that is filled, here; and what it says."""
    said = io.StringIO()
    out = Console(file=said, width=160)
    with world.elasticsearch() as client, world.connect() as own:
        filling.Filling(world.parts(own, client), out=out, err=out).fill(Fill(document=building, job=None))
    return said.getvalue()


@faces(
    "a rename is through in the index that serves, and waits in the new one", promises=(2, 4), without=OWED_WAITED_FOR
)
def test_a_search_never_goes_back_to_an_older_name(world: World, connection: Connection, building: Document) -> None:
    """The new index waits, visibly, for its own part of the rename, which the command does where no daemon is."""
    late = done_where_it_serves(world, connection, building)
    ended = world.syncer("backfill", "blogpost", "--rebuild")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{building.index_name} waits for job {late.id} (fan-out: public.users, 1 row)" in ended.stdout
    assert world.index_of() == building.index_name
    assert find(connection, late.id).state is JobState.DONE
    assert world.held() == world.expected()


@faces(
    "a rename comes while a new index is compared",
    promises=(2, 4),
    without=Rule(
        "a new index serves once nothing is owed to it",
        module="syncer.filling",
        text="self._wait_for_owed(building)\n        older =",
        instead="older =",
    ),
)
def test_what_comes_while_a_new_index_is_compared_is_waited_for(
    world: World, connection: Connection, building: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was owed before that is written first, and so compared; what came meanwhile is written before it serves."""
    rename(world, connection, building.index_name)
    owed: list[int] = []

    def compared_late(*some: Any, **more: Any) -> VerifyReport:
        report = compared(*some, **more)
        owed.append(report.owed)
        world.sql("UPDATE users SET name = 'renamed again' WHERE id = 2")
        with world.index() as index:
            follow(world, index)
        return report

    monkeypatch.setattr(filling, "compared", compared_late)
    fill_on(world, building)
    assert owed == [0]
    assert world.index_of() == building.index_name
    assert world.held() == world.expected()


def test_what_differs_in_a_new_index_is_not_said_to_be_unfilled(world: World, building: Document) -> None:
    """By the time that it is compared it is filled, and what it lacks then has another cause."""
    with world.elasticsearch() as client:
        client.delete(index=building.index_name, id="7")
    begun = dataclasses.replace(building, is_filled=False)  # as it was put in force
    said = fill_on(world, begun)
    assert "1 document differed and is equal now" in said
    assert "not filled" not in said
    assert world.held() == world.expected()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_no_new_index_waits_for_what_is_paused(
    world: World, connection: Connection, building: Document, when: str
) -> None:
    """It says which job, and what to do; searches stay where they are, and afterwards it goes on."""
    before = world.index_of()
    late = done_where_it_serves(world, connection, building)
    jobs.set_rate(connection, late.id, 0.1)
    log = world.folder / "backfill.log"
    if when == "before":
        jobs.pause(connection, late.id)
    process = begin(world, "--rebuild")
    if when == "meanwhile":
        wait_until(lambda: f"waits for job {late.id}" in log.read_text(), what="it waits")
        jobs.pause(connection, late.id)
    assert process.wait(DEADLINE_SECONDS) == 1
    assert f"syncer jobs resume {late.id}" in log.read_text()
    assert world.index_of() == before
    jobs.set_rate(connection, late.id, None)
    jobs.resume(connection, late.id)
    require_done(world, begin(world, "--rebuild"))
    assert world.index_of() == building.index_name
    assert world.held() == world.expected()


@faces("a fan-out of a new index is cancelled", promises=(3, 4), without=OWED_UNFILLED)
def test_a_fan_out_that_is_cancelled_lets_no_index_serve(
    world: World, connection: Connection, building: Document
) -> None:
    """It counts as not filled then: the same command fills it once more."""
    before = world.index_of()
    late = done_where_it_serves(world, connection, building)
    jobs.set_rate(connection, late.id, 0.1)
    process = begin(world, "--rebuild")
    log = world.folder / "backfill.log"
    wait_until(lambda: f"waits for job {late.id}" in log.read_text(), what="it waits")
    cancelled = world.syncer("jobs", "cancel", str(late.id)).stdout
    way_on = "To fill it and go on: syncer backfill blogpost --rebuild"
    assert f"{building.index_name} counts as not filled. {way_on}" in cancelled
    assert process.wait(DEADLINE_SECONDS) == 1
    assert f"Job {late.id} was cancelled" in log.read_text()
    assert world.index_of() == before
    require_done(world, begin(world, "--rebuild"))
    assert world.held() == world.expected()


def test_fan_outs_without_end_hold_no_index_up(
    world: World, connection: Connection, building: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only those are waited for that are there when it begins to wait, though another comes during each."""
    done_where_it_serves(world, connection, building)
    followed: list[int] = []
    follow_one = filling.Filling.follow

    def and_another(self: filling.Filling, document: Document, job_id: int, *, is_part: bool, is_owed: bool) -> None:
        assert len(followed) < 20
        followed.append(job_id)
        follow_one(self, document, job_id, is_part=is_part, is_owed=is_owed)
        assert jobs.create_fan_out(connection, building, OTHER) is not None

    monkeypatch.setattr(filling.Filling, "follow", and_another)
    fill_on(world, building)
    assert len(set(followed)) == len(followed) <= 4
    assert world.index_of() == building.index_name


def test_what_a_fan_out_has_left_to_a_younger_job_is_waited_for(
    world: World, connection: Connection, building: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The younger one is listed first, and has the pages: the index does not serve with the older one's end."""
    late = done_where_it_serves(world, connection, building)
    follow_one = filling.Filling.follow
    left_out: list[int] = []

    def after_a_younger_one(
        self: filling.Filling, document: Document, job_id: int, *, is_part: bool, is_owed: bool
    ) -> None:
        if not left_out:
            world.sql("UPDATE syncer.job SET state = 'listing' WHERE id = %s", late.id)  # so that it is not joined
            younger = jobs.create_fan_out(connection, building, {"public.users": [{"id": 1}]})
            assert younger is not None
            assert listing.list_pages(connection, younger, building, page=10)
            world.sql("UPDATE syncer.job SET next_at = now() + interval '5 s' WHERE id = %s", younger.id)
            assert listing.list_pages(connection, find(connection, late.id), building, page=10)
            left_out.append(find(connection, late.id).left_out)
        follow_one(self, document, job_id, is_part=is_part, is_owed=is_owed)

    monkeypatch.setattr(filling.Filling, "follow", after_a_younger_one)
    out = Console(file=io.StringIO())
    with world.elasticsearch() as client, world.connect() as own:
        filling.Filling(world.parts(own, client), out=out, err=out)._wait_for_owed(building)
    assert left_out == [120]
    assert world.held_in(building.index_name) == world.expected()
