"""Everything at once, in short rounds: whenever the applications rest, every document equals its SELECT.

The acceptance test. Each round disturbs everything for some seconds, heals the servers, and waits until Elasticsearch
holds what the plain SELECTs return. `pytest tests/soak` takes three minutes, and `pytest -m soak` thirty.
"""

from __future__ import annotations

import faulthandler
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from syncer.sandbox import Sandbox
from tests.soak import applications
from tests.soak.applications import Applications
from tests.soak.disturbances import Decks, Soak, disturbed, heal
from tests.soak.fleet import Fleet
from tests.soak.record import Record
from tests.support import preloaded
from tests.support.network import line
from tests.support.standbys import Standbys
from tests.support.world import VERSIONS, World, made, wait_until

ENVIRONMENT = {
    "SYNCER_KAFKA_PROPERTIES": '{"session.timeout.ms": 6000}',
    "SYNCER_WORKER_BATCH_DOCUMENTS_MAX": "20",
}
"""Small batches and quick rhythms, so that there is more to interrupt."""
_STORM_SECONDS = (5, 12)
_LEVEL_SECONDS = 180.0


@pytest.fixture
def soak(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Soak]:
    """Documents of every shape, on servers of their own."""
    seed = request.config.getoption("--soak-seed") or random.SystemRandom().randrange(10**6)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="syncer-soak-")))
        folder.chmod(0o755)  # for root's servers, which run as nobody
        sandbox = Sandbox(folder / "servers", versions=VERSIONS)
        stack.callback(_keep_logs, sandbox, tmp_path)
        stack.callback(sandbox.stop)
        world = stack.enter_context(made(World(sandbox=sandbox, endpoints=sandbox.start(), folder=tmp_path)))
        standbys = Standbys(sandbox, folder / "standbys", {}, primary=sandbox.postgres)
        stack.callback(standbys.stop_replicas)
        applications.set_up(world)
        kafka = request.config.getoption("--soak-kafka")
        world.uses_kafka = {"always": True, "never": False}.get(kafka, random.Random(seed).random() < 0.5)
        lines = {
            "postgres": stack.enter_context(line(sandbox.postgres.port)),
            "elasticsearch": stack.enter_context(line(sandbox.elasticsearch.port)),
        }
        world.worker_settings = {
            **ENVIRONMENT,
            "SYNCER_POSTGRES_DSN": world.dsn.replace(f":{sandbox.postgres.port}/", f":{lines['postgres'].port}/"),
            "SYNCER_ELASTICSEARCH_URL": f"http://127.0.0.1:{lines['elasticsearch'].port}",
        }
        preloaded.run("--version", environment=world.environment, seconds=60)  # before several threads use it
        record = Record(tmp_path / "soak.jsonl", seed=seed)
        sabotage = request.config.getoption("--soak-sabotage")
        fleet = Fleet(world, record, switches_kafka=kafka == "switched", sabotage=sabotage)
        yield Soak(world=world, standbys=standbys, lines=lines, fleet=fleet, record=record)


def _keep_logs(sandbox: Sandbox, folder: Path) -> None:
    for log_file in sandbox.folder.glob("*/server.log"):
        shutil.copy(log_file, folder / f"{log_file.parent.name}.log")


def test_three_minutes(soak: Soak) -> None:
    """Killed, stopped, deaf, set back, changed and refused at random: no drift after any round."""
    _soak(soak, seconds=180)


@pytest.mark.soak
def test_half_an_hour(soak: Soak, request: pytest.FixtureRequest) -> None:
    """The same, for longer."""
    _soak(soak, seconds=float(request.config.getoption("--soak-seconds")))


def _soak(soak: Soak, *, seconds: float) -> None:
    faulthandler.cancel_dump_traceback_later()  # it is meant to take long
    record, dice = soak.record, random.Random(soak.record.seed)
    print(f"--soak-seed {record.seed}, events: {record.file}", flush=True)  # noqa: T201 - pytest shows it on failure
    writers = Applications(soak.world, seed=record.seed, find=record.find)
    decks = Decks(dice)
    deadline = time.monotonic() + seconds
    try:
        with soak.fleet.running(), writers.running():
            while time.monotonic() < deadline and not record.findings:
                with disturbed(soak, decks, seed=f"{record.seed} {len(record.level_seconds)}"):
                    time.sleep(dice.uniform(*_STORM_SECONDS))
                with writers.resting():
                    _check(soak)
            with writers.resting():
                verified = soak.world.syncer("verify")
        assert not record.findings, "\n".join(record.findings)
        assert verified.returncode == 0, verified.stdout + verified.stderr
    finally:
        print(record.summary(transactions=writers.transactions), flush=True)  # noqa: T201 - the outcome


def _check(soak: Soak) -> None:
    """The servers are well and an operator applies what is left to apply: then every document becomes equal."""
    world, record = soak.world, soak.record
    heal(soak)
    began = time.monotonic()
    record.note("round over")
    printed = [""]

    def is_applied() -> bool:
        completed = world.syncer("apply", "--yes")
        printed.append(completed.stdout + completed.stderr)
        return completed.returncode == 0

    wait_until(is_applied, what="apply succeeds", detail=printed.pop)
    wait_until(
        lambda: not _differences(world),
        what="every document equals its SELECT",
        seconds=_LEVEL_SECONDS,
        detail=lambda: "\n".join(_differences(world)[:20]),
    )
    record.level_seconds.append(time.monotonic() - began)
    record.note("level", seconds_waited=round(record.level_seconds[-1], 1))
    assert world.sql("SELECT name, suspended FROM syncer.document WHERE suspended IS NOT NULL") == []
    wait_until(
        lambda: world.sql("SELECT * FROM syncer.dead_letter AS l JOIN syncer.document USING (index_name)") == [],
        what="dead letters are removed once their documents are written",
        detail=lambda: str(world.sql("SELECT * FROM syncer.dead_letter"))[:2000],
    )


def _differences(world: World) -> list[str]:
    try:
        return world.differences()
    except psycopg.OperationalError as error:
        return [repr(error)]
