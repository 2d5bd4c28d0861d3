"""Everything at once, for as long as one likes: whenever writers rest, every document equals its SELECT."""

from __future__ import annotations

import faulthandler
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import KafkaException

from syncer.demo import guide
from syncer.kafka.topic import Observer
from syncer.sandbox import Sandbox
from tests.soak.crowd import Crowd
from tests.soak.disturbances import Soak, bring_back, disturbed, fix_rows
from tests.soak.fleet import Fleet
from tests.soak.journal import Journal
from tests.support import shapes
from tests.support.world import BLOG_SCHEMA, World, made, wait_until
from tests.support.writers import fill

SHIPPED = ("blogpost", "discussion", "post", "user", "file")
ENVIRONMENT = {
    "SYNCER_KAFKA_PROPERTIES": '{"session.timeout.ms": 6000}',
    "SYNCER_WATCH_SECONDS": "1",
    "SYNCER_RELAY_TRIM_SECONDS": "1",
    "SYNCER_WORKER_BATCH_DOCUMENTS_MAX": "50",
    "SYNCER_WORKER_FAN_OUT_DOCUMENTS_MAX": "10",
}
_STORM_SECONDS = (60, 180)
_LEVEL_SECONDS = 180.0


@pytest.fixture
def own_world(tmp_path: Path) -> Iterator[World]:
    """A world on servers of its own, with documents of every shape."""
    with tempfile.TemporaryDirectory(prefix="syncer-soak-") as folder:
        Path(folder).chmod(0o755)  # for root's servers, which run as nobody
        own = Sandbox(Path(folder) / "servers")
        try:
            with made(World(sandbox=own, endpoints=own.start(), folder=tmp_path)) as world:
                world.worker_settings = ENVIRONMENT
                _set_up(world)
                yield world
        finally:
            own.stop()
            for log_file in own.folder.glob("*/server.log"):
                shutil.copy(log_file, tmp_path / f"{log_file.parent.name}.log")


def _set_up(world: World) -> None:
    world.use(*SHIPPED)
    world.documents = (*SHIPPED, *shapes.define(world.config, world.alias_of))
    for schema in (BLOG_SCHEMA.read_text(), guide.schema("filesystem"), guide.models()["files"].rows, shapes.SCHEMA):
        world.sql(schema)
    fill(world)
    with world.application() as connection:
        shapes.fill(connection, random.Random(0))
    world.migrate()
    world.apply()


@pytest.mark.soak
def test_everything_at_once(own_world: World, request: pytest.FixtureRequest) -> None:
    """Killed, stalled, restarted, changed and refused at random: no drift at any checkpoint, nor at the end."""
    faulthandler.cancel_dump_traceback_later()  # this one is meant to take long
    seconds = float(request.config.getoption("--soak-seconds"))
    seed = request.config.getoption("--soak-seed") or random.SystemRandom().randrange(10**6)
    world, dice = own_world, random.Random(seed)
    world.uses_kafka = dice.random() < 0.5
    journal = Journal(world.folder / "soak.jsonl")
    fleet = Fleet(world, journal)
    crowd = Crowd(world, seed=seed, find=journal.find)
    print(f"--soak-seed {seed}, events: {journal.file}", flush=True)  # noqa: T201 - to be seen from the start
    soak = Soak(world=world, fleet=fleet, journal=journal)
    deadline = time.monotonic() + seconds
    try:
        with fleet.running(), crowd.at_work():
            while (left := deadline - time.monotonic()) > 0 and not journal.findings:
                with disturbed(soak, seed=f"{seed} {len(journal.level_seconds)}"):
                    _storm(min(left, dice.uniform(*_STORM_SECONDS)), journal)
                with crowd.resting():
                    _check(soak)
            with crowd.resting():
                verified = world.syncer("verify")
        assert not journal.findings, "\n".join(journal.findings)
        assert verified.returncode == 0, verified.stdout + verified.stderr
    finally:
        print(journal.summary(changes=crowd.transactions, seed=seed), flush=True)  # noqa: T201 - the outcome


def _storm(seconds: float, journal: Journal) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not journal.findings:
        time.sleep(1)


def _check(soak: Soak) -> None:
    """All are well again: an operator applies what is left to apply, and then all must be level by itself."""
    world, journal = soak.world, soak.journal
    soak.fleet.wake()
    bring_back(world.sandbox.start)
    fix_rows(world)
    _apply(world)
    began = time.monotonic()
    journal.note("writers rest")
    wait_until(
        lambda: not _differences(world),
        what="every document equals its SELECT",
        seconds=_LEVEL_SECONDS,
        detail=lambda: "\n".join([_group(world), *_differences(world)[:20]]),
    )
    journal.level_seconds.append(time.monotonic() - began)
    journal.note("level", after_seconds=round(journal.level_seconds[-1], 1))
    assert world.sql("SELECT name, role, suspended FROM syncer.document WHERE suspended <> ''") == []
    wait_until(
        lambda: world.sql("SELECT * FROM syncer.dead_letter AS l JOIN syncer.document USING (index_name)") == [],
        what="dead letters are cleared by themselves",
        detail=lambda: str(world.sql("SELECT * FROM syncer.dead_letter"))[:2000],
    )


def _group(world: World) -> str:
    """What Kafka says of the workers' group: its state, and who has which partitions."""
    if not world.uses_kafka:
        return "Kafka is not used"
    with suppress(KafkaException):
        group = Observer(world.settings.kafka).group()
        has = {one.member_id: [it.partition for it in one.assignment.topic_partitions] for one in group.members}
        return f"the group is {group.state}: {has}"
    return "Kafka does not say how the group is"


def _apply(world: World) -> None:
    done = world.syncer("apply", "--yes")
    wait_until(
        lambda: done.returncode == 0 or _is_applied(world), what="apply", detail=lambda: done.stdout + done.stderr
    )


def _is_applied(world: World) -> bool:
    return world.syncer("apply", "--yes").returncode == 0


def _differences(world: World) -> list[str]:
    try:
        return world.differences()
    except psycopg.OperationalError as error:
        return [repr(error)]
