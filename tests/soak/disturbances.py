"""What disturbs a soak: a table of things that are done, each by one thread of those that do such things."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from syncer.base.errors import SandboxError
from syncer.sandbox.server import EmbeddedServer
from tests.soak.fleet import Fleet
from tests.soak.journal import Journal
from tests.support.world import World

_PARTITIONS_MAX = 12
_COMMAND_SECONDS = 180.0
_STARTS_MAX = 3
_TOO_LONG = "x" * 40_000  # for a keyword


@dataclass(frozen=True, kw_only=True)
class Soak:
    """What is disturbed.

    Args:
        world: The servers and documents.
        fleet: The daemons.
        journal: Where it is said what was done.
    """

    world: World
    fleet: Fleet
    journal: Journal


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """Something that is done now and then.

    Args:
        act: Does it, and puts right what it took away.
        weight: How often, beside the others of its kind.
    """

    act: Callable[[Soak, random.Random], None]
    weight: int = 1


# Daemons


def _kill(soak: Soak, dice: random.Random) -> None:
    soak.fleet.kill(dice)


def _kill_storm(soak: Soak, dice: random.Random) -> None:
    for _ in range(5):
        soak.fleet.kill(dice)
        time.sleep(1)


def _terminate(soak: Soak, dice: random.Random) -> None:
    soak.fleet.stop(dice)


def _stall(soak: Soak, dice: random.Random) -> None:
    soak.fleet.stall(dice)
    time.sleep(dice.choice((2, 8, 15, 35)))
    soak.fleet.wake()


# Servers


def _server(soak: Soak, dice: random.Random) -> EmbeddedServer:
    return dice.choice(soak.world.sandbox.servers)


def _crash(soak: Soak, dice: random.Random) -> None:
    server = _server(soak, dice)
    soak.journal.note("server crashed", name=server.name)
    server.kill()
    time.sleep(dice.uniform(0, 8))
    bring_back(server.start)


def _restart(soak: Soak, dice: random.Random) -> None:
    server = _server(soak, dice)
    soak.journal.note("server restarted", name=server.name)
    server.stop()
    time.sleep(dice.uniform(0, 8))
    bring_back(server.start)


def bring_back(start: Callable[[], object]) -> None:
    """Start what is to run; on a machine that has much to do, a server may need several attempts."""
    for _ in range(_STARTS_MAX - 1):
        with suppress(SandboxError):
            start()
            return
    start()


def _pause(soak: Soak, dice: random.Random) -> None:
    server = _server(soak, dice)
    soak.journal.note("server paused", name=server.name)
    server.pause()
    time.sleep(dice.choice((1, 5, 12, 30)))
    server.resume()


# Commands, and what an operator does


def _backfill(soak: Soak, dice: random.Random) -> None:
    command(soak, dice, "backfill", dice.choice(soak.world.documents))


def _rebuild(soak: Soak, dice: random.Random) -> None:
    command(soak, dice, "index", "rebuild", dice.choice(soak.world.documents))


def _verify(soak: Soak, dice: random.Random) -> None:
    command(soak, dice, "verify", dice.choice(soak.world.documents), "--repair")


def _status(soak: Soak, dice: random.Random) -> None:
    command(soak, dice, "status")
    command(soak, dice, "jobs", "list")


def _change_definition(soak: Soak, dice: random.Random) -> None:
    """A column comes into the blogpost with its table, or goes."""
    folder = soak.world.document_folder
    select, index = folder / "select.sql", folder / "index.json"
    text = select.read_text()
    if "p.extra" in text:
        select.write_text(text.replace("p.tags, p.extra,", "p.tags,"))
    else:
        soak.world.sql("ALTER TABLE posts ADD COLUMN IF NOT EXISTS extra text DEFAULT 'extra'")
        mapping = index.read_text()
        if '"extra"' not in mapping:
            index.write_text(mapping.replace('"tags": {', '"extra": { "type": "keyword" },\n      "tags": {'))
        select.write_text(text.replace("p.tags,", "p.tags, p.extra,"))
    command(soak, dice, "apply", "--yes")


def _change_mapping(soak: Soak, dice: random.Random) -> None:
    """The blogpost needs another index."""
    index = soak.world.document_folder / "index.json"
    text = index.read_text()
    one, other = '"tags": { "type": "keyword" }', '"tags": { "type": "text" }'
    index.write_text(text.replace(one, other) if one in text else text.replace(other, one))
    command(soak, dice, "apply", "--yes")


def _break_table(soak: Soak, dice: random.Random) -> None:
    """A column that a document shows changes its type, so that the document suspends until somebody applies."""
    soak.world.sql(f"ALTER TABLE comments ALTER COLUMN stars TYPE {dice.choice(('smallint', 'integer'))}")
    time.sleep(dice.uniform(0, 5))
    command(soak, dice, "apply", "--yes")


def _refuse(soak: Soak, dice: random.Random) -> None:
    """Documents that Elasticsearch refuses come, and are fixed."""
    soak.world.sql("UPDATE users SET name = %s WHERE id = %s", _TOO_LONG, dice.randrange(6))
    time.sleep(dice.uniform(0, 10))
    fix_rows(soak.world)


def _switch_kafka(soak: Soak, _: random.Random) -> None:
    soak.fleet.switch_kafka()


def _add_partition(soak: Soak, _: random.Random) -> None:
    settings = soak.world.settings.kafka
    if not settings.is_used:
        return
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    found = len(admin.list_topics(settings.topic, timeout=10).topics[settings.topic].partitions)
    if 0 < found < _PARTITIONS_MAX:
        admin.create_partitions([NewPartitions(settings.topic, found + 1)])[settings.topic].result(30)


def fix_rows(world: World) -> None:
    """Rows that Elasticsearch takes again."""
    world.sql("UPDATE users SET name = 'fixed ' || id WHERE length(name) > 30000")


def command(soak: Soak, dice: random.Random, *arguments: str) -> None:
    """Run a command; sometimes it is killed, or interrupted, in the middle. It may fail, but says why."""
    process = subprocess.Popen(
        [sys.executable, "-m", "syncer", *arguments],
        env={**soak.world.environment, "COLUMNS": "160"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    ends = dice.choice((None, None, signal.SIGKILL, signal.SIGINT, signal.SIGTERM))
    soak.journal.note("command begun", command=arguments, ends=ends)
    try:
        said, _ = process.communicate(timeout=_COMMAND_SECONDS if ends is None else dice.uniform(1, 8))
    except subprocess.TimeoutExpired:
        process.send_signal(ends or signal.SIGINT)
        try:
            said, _ = process.communicate(timeout=_COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            soak.journal.find(f"{arguments} does not end when it is interrupted\n{said[-1500:]}")
    soak.journal.note("command ended", command=arguments, code=process.returncode, said=said[-400:])
    if "Traceback" in said and ends is not signal.SIGINT:  # Python itself shows one while it starts
        soak.journal.find(f"{arguments} shows a traceback\n{said[-3000:]}")


KINDS: dict[str, tuple[tuple[float, float], Sequence[Disturbance]]] = {
    "daemons": (
        (1, 15),
        (
            Disturbance(act=_kill, weight=4),
            Disturbance(act=_kill_storm),
            Disturbance(act=_terminate, weight=2),
            Disturbance(act=_stall, weight=2),
        ),
    ),
    "servers": (
        (10, 45),
        (Disturbance(act=_crash, weight=2), Disturbance(act=_restart), Disturbance(act=_pause, weight=2)),
    ),
    "operator": (
        (1, 15),
        (
            Disturbance(act=_backfill, weight=3),
            Disturbance(act=_rebuild, weight=2),
            Disturbance(act=_verify, weight=3),
            Disturbance(act=_status),
            Disturbance(act=_change_definition, weight=2),
            Disturbance(act=_change_mapping),
            Disturbance(act=_break_table),
            Disturbance(act=_refuse, weight=2),
            Disturbance(act=_add_partition),
            Disturbance(act=_switch_kafka, weight=2),
        ),
    ),
}
"""By who does it: how long is rested in between, from and to, and what is done."""


@contextmanager
def disturbed(soak: Soak, *, seed: str) -> Iterator[None]:
    """Until the block ends; then what is being done is finished, and all that was taken away is there again."""
    over = threading.Event()
    threads = [
        threading.Thread(target=_disturb, args=(soak, kind, random.Random(f"{seed} {kind}"), over), name=kind)
        for kind in KINDS
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _disturb(soak: Soak, kind: str, dice: random.Random, over: threading.Event) -> None:
    (least, most), table = KINDS[kind]
    while not over.wait(dice.uniform(least, most)):
        (chosen,) = dice.choices(table, weights=[one.weight for one in table])
        name = chosen.act.__name__.strip("_").replace("_", " ")
        soak.journal.note(name)
        try:
            chosen.act(soak, dice)
        except (psycopg.OperationalError, KafkaException) as error:
            soak.journal.note(f"{name} failed", error=str(error))  # a server is away
        except BaseException as error:  # noqa: BLE001 - told to the test
            soak.journal.find(f"{name} raised {error!r}")
