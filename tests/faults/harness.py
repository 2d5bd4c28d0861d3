"""What the fault tests share. A hazard is what happens, to which process or server, at which moment.

What must hold afterwards is the same for all of them: see `require_holds`. A test says only what its hazard adds to
that. Modules are named after the process, the server or the data that the hazard hits.

    at a point of the code    `tests.support.breakpoints`: a process is killed, or stands still
    at a write                `spoilt`: what happens to a request to Elasticsearch
    on the way                `tests.support.elasticsearch_proxy`: what becomes of an answer
    to a server               `tests.support.world.elsewhere`: a world on servers that no other test uses
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import psycopg
import pytest
from elastic_transport import ApiResponseMeta, HttpHeaders, NodeConfig
from elasticsearch import ApiError, Elasticsearch

from syncer.base.model import Composition, Target
from syncer.base.postgres import Connection
from syncer.capture import progress
from syncer.documents import registry
from syncer.documents.registry import Document
from syncer.elasticsearch.bulk import BulkOutcome, Index, Rejection
from syncer.jobs import model, queue
from syncer.jobs.model import Job, JobKind, JobState, find
from tests.support import preloaded
from tests.support.breakpoints import Plan
from tests.support.world import DEADLINE_SECONDS, USES_KAFKA, Daemon, World, wait_until

needs_kafka = pytest.mark.skipif(not USES_KAFKA, reason="needs Kafka")
REPEATS = Plan(constants={"syncer.base.retry:REPEAT_SECONDS": 5})
"""A daemon that says again after some seconds, and not after a minute, what troubles it."""
USER = "INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com') ON CONFLICT DO NOTHING;"
POSTS = "INSERT INTO posts (id, user_id, title, body) SELECT g, 1, 'title', 'body' FROM generate_series(1, {}) AS g"
SUSPENDED = "SELECT name, suspended FROM syncer.document WHERE suspended IS NOT NULL"
DEAD_LETTERS = "SELECT id, kind FROM syncer.dead_letter ORDER BY id"


def add_posts(world: World, number: int) -> None:
    """One user with so many posts."""
    world.sql(USER + POSTS.format(number))


# What follows the application, in this process


@dataclass(frozen=True)
class Follower:
    """A worker and, with Kafka, a relay, which turn only when the test says so; neither knows of a job worker.

    Args:
        turn: Lets each turn once; returns what the worker has handled.
    """

    world: World
    index: Index
    turn: Callable[[], int]

    def handle(self) -> None:
        """Turn until what is committed is handled: written, or noted in a job."""
        with self.world.connect() as connection:
            moment = progress.moment(connection)
            wait_until(
                lambda: self.turn() >= 0 and progress.is_handled(connection, moment), what="every change is handled"
            )

    def drain(self) -> None:
        """Handle what is committed, and do every job; every document equals its SELECT then."""
        self.handle()
        self.world.refresh(self.index)
        assert self.world.differences() == []


@contextmanager
def following(world: World, *, index: Index | None = None, many: int | None = None) -> Iterator[Follower]:
    """What follows the application, in both ways of running; more documents than so many are many to it."""
    with ExitStack() as stack:
        index = index or stack.enter_context(world.index())
        relay = stack.enter_context(world.relay()) if world.uses_kafka else None
        worker = stack.enter_context(world.worker(index, many=many))

        def turn() -> int:
            if relay is not None:
                relay.run_once()
            return worker.run_once()

        yield Follower(world, index, turn)


# What must hold


def require_holds(world: World, *, seconds: float = DEADLINE_SECONDS) -> None:
    """When writes stop: every document equals its SELECT, nothing is dead-lettered or suspended, all is handled."""
    world.wait_until_level(seconds=seconds)
    wait_until(world.is_handled, what="every change is handled")
    with world.connect() as connection:
        wait_until(
            lambda: not model.unfinished(connection),
            what="every job is done",
            detail=lambda: str(model.unfinished(connection)) + world.last_words(),
        )
    assert world.differences() == []
    assert world.sql(DEAD_LETTERS) == []
    assert world.sql(SUSPENDED) == []


def require_quiet(daemon: Daemon, *, lines: int = 6) -> None:
    """However long an outage was, the log has a few lines for each component."""
    troubles = [event["component"] for event in daemon.events("component.retried")]
    assert all(troubles.count(component) <= lines for component in troubles), troubles


OVERTAKEN = "Another database of this installation is in use"
"""What the daemon of a former primary says."""


def wait_for_trouble(daemon: Daemon, words: str) -> None:
    """Return once a daemon has logged trouble in these words."""

    def is_logged() -> bool:
        return any(words in event["error"] for event in daemon.events("component.retried"))

    wait_until(is_logged, what=f"logged: {words}", detail=daemon.log_file.read_text)


# Jobs


def the_document(connection: Connection, name: str = "blogpost") -> Document:
    """The definition of the index that searches use."""
    return registry.named(connection, name)[0]


def create(connection: Connection, kind: JobKind = JobKind.BACKFILL, name: str = "blogpost") -> Job:
    """A job of all documents."""
    job = queue.create(connection, the_document(connection, name), kind)
    assert job is not None
    return job


def wait_done(connection: Connection, job: Job) -> Job:
    """The job once it is done; each document that was listed counts once."""
    wait_until(lambda: find(connection, job.id).state.is_finished, what="the job is finished")
    finished = find(connection, job.id)
    assert finished.state is JobState.DONE, finished
    assert finished.indexed + finished.deleted + finished.skipped + finished.dead_lettered == finished.documents_done
    assert finished.documents_done == finished.documents_total
    return finished


def two_documents(world: World) -> World:
    """The blog's posts, and its users as documents of their own."""
    world.use("blogpost", "user")
    world.apply()
    return world


# Commands and transactions


def begin_rebuild(world: World) -> preloaded.Command:
    """``syncer index rebuild blogpost`` in a process of its own."""
    log_file = world.folder / "rebuild.log"
    return preloaded.Command(["index", "rebuild", "blogpost"], environment=world.environment, log_file=log_file)


def require_done(world: World, process: preloaded.Command) -> None:
    """It ends, and well."""
    assert process.wait(2 * DEADLINE_SECONDS) == 0, (world.folder / "rebuild.log").read_text()


def committed(world: World, query: str, *parameters: object) -> str:
    """Commit a transaction; its token."""
    with psycopg.connect(world.dsn) as connection:
        connection.execute(query, parameters or None)
        row = connection.execute("SELECT syncer.token()").fetchone()
    assert row is not None
    return str(row[0])


# What happens to a write

Write = Callable[[Target, Sequence[Composition]], BulkOutcome]
"""Sends documents to Elasticsearch."""
Spoil = Callable[[Write, Target, Sequence[Composition]], BulkOutcome]
"""What happens instead."""


class _Spoilt(Index):
    def __init__(self, client: Elasticsearch, spoil: Spoil) -> None:
        super().__init__(client, bulk_bytes_max=8_000_000)
        self._spoil = spoil

    def write(self, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        return self._spoil(super().write, target, compositions)


@contextmanager
def spoilt(world: World, spoil: Spoil) -> Iterator[Index]:
    """Elasticsearch, as a writer sees it to whose requests this happens."""
    with world.elasticsearch() as client:
        yield _Spoilt(client, spoil)


def after(act: Callable[[], object]) -> Spoil:
    """Before the first request, whose documents have been read, something happens: its writer is late."""
    acts = iter([act])

    def write_late(write: Write, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        for remaining_act in acts:
            remaining_act()
        return write(target, compositions)

    return write_late


def too_many_requests() -> ApiError:
    """What the client raises if Elasticsearch refuses a request as a whole."""
    node = NodeConfig(scheme="http", host="127.0.0.1", port=9200)
    meta = ApiResponseMeta(status=429, http_version="1.1", headers=HttpHeaders(), duration=0.0, node=node)
    return ApiError("es_rejected_execution_exception", meta=meta, body={"error": {"reason": "queue is full"}})


def refused(compositions: Sequence[Composition], kind: str, *, status: int = 429) -> list[Rejection]:
    """What Elasticsearch answers to single documents of a request."""
    return [Rejection(composition=composition, status=status, kind=kind, reason=kind) for composition in compositions]


# Servers


GRANTS = """
GRANT USAGE ON SCHEMA syncer TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA syncer TO {role};
GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA syncer TO {role};
GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role};
"""
"""What a role needs that owns nothing, and does the work of a daemon."""


def is_forgotten(world: World, id_: str, *, routing: str | None = None) -> bool:
    """Whether Elasticsearch no longer knows that it deleted the document: the least version could be written."""
    with world.elasticsearch() as client:
        client.indices.refresh(index=world.index_of())
        answer = client.options(ignore_status=[404, 409]).delete(
            index=world.index_of(), id=id_, routing=routing, version=1, version_type="external"
        )
    return bool(answer.meta.status == 404)


@contextmanager
def index_settings(world: World, settings: Mapping[str, object]) -> Iterator[None]:
    """The index that searches use has these settings until the block ends."""
    name = world.index_of()
    with world.elasticsearch() as client:
        client.indices.put_settings(index=name, settings=dict(settings))
        try:
            yield
        finally:
            client.indices.put_settings(index=name, settings=dict.fromkeys(settings))
