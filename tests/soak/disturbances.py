"""What disturbs a soak: decks of disturbances, each dealt by a thread of its own until every one had its turn.

A disturbance undoes what it did, if the servers let it; `heal` makes good what is left.
"""

from __future__ import annotations

import random
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

import elasticsearch
import psycopg
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.cimpl import NewPartitions

from syncer.base.errors import SandboxError
from tests.faults.harness import OVERTAKEN, wait_for_trouble
from tests.soak.fleet import Fleet
from tests.soak.record import Record
from tests.support import preloaded
from tests.support.in_process import admin
from tests.support.network import Direction, Line
from tests.support.standbys import Standbys
from tests.support.world import World, wait_until

_PARTITIONS_MAX = 8
_COMMAND_SECONDS = 180.0
_STARTS_MAX = 3
_AWAY_SECONDS = 2.0
"""How long a deck rests if a server is away."""
_TOO_LONG = "x" * 40_000  # for a keyword
_BLOCK = "index.blocks.read_only_allow_delete"
_SERVERS = ("postgres", "kafka", "elasticsearch")
_HAS_ENTERED = "SELECT count(*) FROM syncer.cluster_identity"


@dataclass(frozen=True, kw_only=True)
class Soak:
    """What is disturbed.

    Args:
        world: The servers and documents.
        standbys: The replicas and backups of Postgres.
        lines: The daemons' lines to Postgres and Elasticsearch, by name.
        fleet: The daemons.
        record: Where each disturbance is recorded.
    """

    world: World
    standbys: Standbys
    lines: Mapping[str, Line]
    fleet: Fleet
    record: Record


class RefusedError(Exception):
    """A command failed by itself: a server is away."""


_AWAY = (
    psycopg.OperationalError,
    psycopg.errors.ReadOnlySqlTransaction,
    elasticsearch.ApiError,
    elasticsearch.TransportError,
    KafkaException,
    KeyError,  # the topic is being created
    TimeoutError,  # Kafka stands still, and does not answer
    RefusedError,
)
"""What a disturbance meets if a server is away."""

Disturbance = Callable[[Soak, random.Random], object]


# Daemons


def _stop(soak: Soak, dice: random.Random) -> None:
    soak.fleet.stop(dice)
    time.sleep(dice.choice((1, 4, 12)))
    soak.fleet.resume()


def _go_deaf(name: str, direction: Direction, soak: Soak, dice: random.Random) -> None:
    with soak.lines[name].deaf(direction):
        time.sleep(dice.choice((0.5, 3, 8)))


# Servers


def _crash(name: str, soak: Soak, dice: random.Random) -> None:
    server = getattr(soak.world.sandbox, name)
    server.kill()
    time.sleep(dice.uniform(0, 3))
    _start(server.start)


def _pause(name: str, soak: Soak, dice: random.Random) -> None:
    server = getattr(soak.world.sandbox, name)
    server.pause()
    time.sleep(dice.choice((1, 4, 12)))
    server.resume()


def _start(start: Callable[[], object]) -> None:
    """Start a server; on a busy machine it may need several attempts."""
    for _ in range(_STARTS_MAX - 1):
        with suppress(SandboxError):
            start()
            return
    start()


def _set_back(keep: Callable[[Standbys], Callable[[], None]], soak: Soak, dice: random.Random) -> None:
    go_back = keep(soak.standbys)
    time.sleep(dice.uniform(1, 4))
    go_back()


def _split_brain(soak: Soak, dice: random.Random) -> None:
    """Let the former primary live on with a daemon of its own, which writes nothing, and says why."""
    split = soak.standbys.keep_both()
    time.sleep(dice.uniform(0, 3))
    former = split()
    try:
        # A promoted database has lost the row, whichever epoch its former primary has entered last.
        wait_until(lambda: soak.world.sql(_HAS_ENTERED) == [(1,)], what="the promoted database is in use")
        there = replace(soak.world, endpoints=replace(soak.world.endpoints, postgres_dsn=former.address))
        there.worker_settings = there.worker_settings | {"SYNCER_POSTGRES_DSN": there.dsn}
        there.sql("UPDATE users SET name = 'of the former primary'; DELETE FROM posts WHERE id % 3 = 0")
        daemon = there.daemon()
        wait_for_trouble(daemon, OVERTAKEN)
        time.sleep(dice.uniform(0, 5))
        soak.fleet.end(daemon)
        if any(event["event"] == "failover.detected" for event in daemon.events()):
            soak.record.find(f"the daemon of the former primary did not wait: {daemon.log_file}")
    finally:
        former.stop("immediate")


# Elasticsearch, by hand


def _block_writes(soak: Soak, dice: random.Random) -> None:
    """What Elasticsearch does to the indices of a node whose disk is full."""
    world = soak.world
    name = f"{world.alias}*" if dice.random() < 0.5 else world.index_of(dice.choice(world.documents))
    with world.elasticsearch() as client:
        client.indices.put_settings(index=name, settings={_BLOCK: True})
        time.sleep(dice.choice((1, 4, 12)))
        client.indices.put_settings(index=name, settings={_BLOCK: None})


def _close_index(soak: Soak, dice: random.Random) -> None:
    name = soak.world.index_of(dice.choice(soak.world.documents))
    with soak.world.elasticsearch() as client:
        client.indices.close(index=name)
        time.sleep(dice.choice((1, 4, 12)))
        client.indices.open(index=name)


# Kafka, by hand


def _lose_topic(soak: Soak, _: random.Random) -> None:
    client, topic = admin(soak.world), soak.world.settings.kafka.topic
    client.delete_topics([topic])[topic].result(30)


def _lose_records(soak: Soak, _: random.Random) -> None:
    """What retention does."""
    client, topic = admin(soak.world), soak.world.settings.kafka.topic
    partitions = client.list_topics(topic, timeout=10).topics[topic].partitions
    for deleted in client.delete_records([TopicPartition(topic, partition, -1) for partition in partitions]).values():
        deleted.result(30)


def _add_partition(soak: Soak, _: random.Random) -> None:
    client, topic = admin(soak.world), soak.world.settings.kafka.topic
    number = len(client.list_topics(topic, timeout=10).topics[topic].partitions)
    if 0 < number < _PARTITIONS_MAX:
        client.create_partitions([NewPartitions(topic, number + 1)])[topic].result(30)


# An operator


def _manage(*arguments: str) -> Disturbance:
    """A command that does something to one of the documents."""
    return lambda soak, dice: _run(soak, dice, *arguments, dice.choice(soak.world.documents))


def _look(soak: Soak, dice: random.Random) -> None:
    for command in ("status", "doctor"):
        with suppress(RefusedError):  # they have found a problem
            _run(soak, dice, command)


def _cancel_job(soak: Soak, dice: random.Random) -> None:
    """Cancel a backfill, without which no document is missed."""
    document = dice.choice(soak.world.documents)
    with _command(soak, "backfill", document):
        time.sleep(dice.uniform(0, 0.5))
        unfinished = "SELECT id FROM syncer.job WHERE document = %s AND kind = 'backfill' AND finished_at IS NULL"
        for (job,) in soak.world.sql(unfinished, document):
            with suppress(RefusedError):  # it is done meanwhile
                _run(soak, dice, "jobs", "cancel", str(job), "--yes")


def _apply_select(soak: Soak, dice: random.Random) -> None:
    """Apply another revision of the blogpost: a field comes or goes."""
    select, index = soak.world.document_folder / "select.sql", soak.world.document_folder / "index.json"
    text, mapping = select.read_text(), index.read_text()
    if '"extra"' not in mapping:
        index.write_text(mapping.replace('"tags": {', '"extra": { "type": "keyword" },\n      "tags": {'))
    is_there = "p.extra" in text
    select.write_text(text.replace("p.tags, p.extra,", "p.tags,") if is_there else text.replace("p.tags,", _WITH_EXTRA))
    _run(soak, dice, "apply", "--yes")


_WITH_EXTRA = "p.tags, p.extra,"


def _apply_mapping(soak: Soak, dice: random.Random) -> None:
    """Apply a mapping of the blogpost that needs another index."""
    index = soak.world.document_folder / "index.json"
    text = index.read_text()
    old, new = '"tags": { "type": "keyword" }', '"tags": { "type": "text" }'
    index.write_text(text.replace(old, new) if old in text else text.replace(new, old))
    _run(soak, dice, "apply", "--yes")


def _alter_table(soak: Soak, dice: random.Random) -> None:
    """Change the type of a column that a document shows: it is suspended until somebody applies."""
    soak.world.sql(f"ALTER TABLE comments ALTER COLUMN stars TYPE {dice.choice(('smallint', 'integer'))}")
    time.sleep(dice.uniform(0, 3))
    _run(soak, dice, "apply", "--yes")


def _refuse(soak: Soak, dice: random.Random) -> None:
    """Write rows whose documents Elasticsearch refuses, and fix them."""
    soak.world.sql("UPDATE users SET name = %s WHERE id = %s", _TOO_LONG, dice.randrange(6))
    time.sleep(dice.uniform(0, 5))
    fix_rows(soak.world)


def fix_rows(world: World) -> None:
    """Make rows acceptable to Elasticsearch."""
    world.sql("UPDATE users SET name = 'fixed ' || id WHERE length(name) > 30000")


@contextmanager
def _command(soak: Soak, *arguments: str, ends: signal.Signals = signal.SIGINT) -> Iterator[preloaded.Command]:
    """A command that runs beside the block, and gets a signal after it."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as nothing:
        environment = {**soak.world.environment, "COLUMNS": "160", "SYNCER_LOG_FORMAT": "console"}
        process = preloaded.Command(arguments, environment=environment, streams=[nothing, output, output])
        try:
            yield process
        finally:
            ended = _end(process, ends)
            output.seek(0)
            text = output.read().decode(errors="replace")
            if not ended:
                soak.record.find(f"{arguments} does not end when it is interrupted\n{text[-6000:]}")
            soak.record.note("command ended", command=arguments, code=process.returncode, output=text[-400:])
            if "Traceback" in text:  # it may fail, but it explains why
                soak.record.find(f"{arguments} shows a traceback\n{text[-3000:]}")


def _run(soak: Soak, dice: random.Random, *arguments: str) -> None:
    """Run a command; sometimes it is killed, or interrupted, in the middle.

    Raises:
        RefusedError: It failed.
    """
    ends = dice.choice((None, None, None, signal.SIGKILL, signal.SIGINT, signal.SIGTERM))
    command = _command(soak, *arguments, ends=ends or signal.SIGINT)
    with command as process, suppress(subprocess.TimeoutExpired):
        process.wait(_COMMAND_SECONDS if ends is None else dice.uniform(0.5, 5))
    if process.returncode == 1:
        raise RefusedError(" ".join(arguments))


def _end(process: preloaded.Command, how: signal.Signals) -> bool:
    """Send a command a signal, and wait until it has ended; if it does not, it is aborted and prints where it stood."""
    process.send_signal(how)
    try:
        process.wait(_COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        process.wait()
        return False
    return True


DECKS: dict[str, dict[str, Disturbance]] = {
    "daemons": {
        "kill": lambda soak, dice: soak.fleet.kill(dice),
        "kill all": lambda soak, _: soak.fleet.kill_all(),
        "terminate": lambda soak, dice: soak.fleet.terminate(dice),
        "stop and continue": _stop,
        "switch Kafka on or off": lambda soak, _: soak.fleet.switch_kafka(),
        **{
            f"{name} deaf towards the {direction}": partial(_go_deaf, name, direction)
            for name in ("postgres", "elasticsearch")
            for direction in Direction
        },
    },
    "servers": {
        **{
            f"{verb} {name}": partial(act, name)
            for verb, act in {"crash": _crash, "pause": _pause}.items()
            for name in _SERVERS
        },
        "fail over": partial(_set_back, Standbys.keep_standby),
        "restore a backup": partial(_set_back, Standbys.keep_backup),
        "split brain": _split_brain,
    },
    "definitions": {
        "rebuild": _manage("index", "rebuild"),
        "apply another SELECT": _apply_select,
        "apply another mapping": _apply_mapping,
        "alter a table": _alter_table,
        "refused documents": _refuse,
        "disk full": _block_writes,
        "close an index": _close_index,
    },
    "jobs": {
        "backfill": _manage("backfill"),
        "verify and repair": _manage("verify", "--repair"),
        "status and doctor": _look,
        "cancel a job": _cancel_job,
        "lose the topic": _lose_topic,
        "lose records": _lose_records,
        "add a partition": _add_partition,
    },
}


class Decks:
    """Deals every disturbance of a deck once, in random order, before any of them again."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._left: dict[str, list[str]] = {name: [] for name in DECKS}

    def deal(self, deck: str) -> str:
        """The name of the next disturbance."""
        if not self._left[deck]:
            self._left[deck] = self._dice.sample(list(DECKS[deck]), len(DECKS[deck]))
        return self._left[deck].pop()

    def put_back(self, deck: str, name: str) -> None:
        """Deal a disturbance again that was not possible."""
        self._left[deck].insert(0, name)


@contextmanager
def disturbed(soak: Soak, decks: Decks, *, seed: str) -> Iterator[None]:
    """One disturbance after the other from each deck while the block lasts; those that have begun are finished."""
    over = threading.Event()
    threads = [
        threading.Thread(target=_disturb, args=(soak, decks, name, random.Random(f"{seed} {name}"), over), name=name)
        for name in DECKS
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _disturb(soak: Soak, decks: Decks, deck: str, dice: random.Random, over: threading.Event) -> None:
    while not over.wait(dice.uniform(0, 2)):
        name = decks.deal(deck)
        soak.record.note(name)
        try:
            DECKS[deck][name](soak, dice)
        except _AWAY as error:
            soak.record.note("disturbance failed", name=name, error=str(error)[:300])
            decks.put_back(deck, name)
            over.wait(_AWAY_SECONDS)
        except BaseException as error:  # noqa: BLE001 - reported by the test
            soak.record.find(f"{name} raised {error!r}")


def heal(soak: Soak) -> None:
    """End what a disturbance may have left: everything runs, every index takes writes, and every row is acceptable."""
    world = soak.world
    soak.fleet.resume()
    _start(world.sandbox.start)
    wait_until(lambda: _is_open(world), what="every index is open")
    fix_rows(world)


def _is_open(world: World) -> bool:
    with suppress(elasticsearch.ApiError, elasticsearch.TransportError), world.elasticsearch() as client:
        names = ",".join(client.indices.get(index=f"{world.alias}*", expand_wildcards="all").body)
        client.indices.put_settings(index=names, settings={_BLOCK: None})
        client.indices.open(index=names)  # OpenSearch opens none that has a block
        return True
    return False
