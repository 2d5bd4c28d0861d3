"""What the status page, the metrics and `syncer status --json` say while a fault lasts, and how soon.

All tests of a deployment share one, with one daemon, and leave it with all well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from syncer.documents import registry
from syncer.jobs import queue
from syncer.jobs.model import JobKind
from tests.faults import harness
from tests.faults.harness import needs_kafka, require_holds
from tests.support.elasticsearch_proxy import Proxy
from tests.support.network import ask
from tests.support.world import DEADLINE_SECONDS, Daemon, World, wait_until

EDIT = "UPDATE posts SET title = title || ' again' WHERE id = 1"
QUICK = {"SYNCER_WORKER_BATCH_DOCUMENTS_MAX": "20"}
Json = dict[str, Any]


@dataclass
class Operator:
    """What a person sees who looks at the page, the metrics and `syncer status`.

    Args:
        world: What is deployed.
        daemon: Its daemon.
        proxy: In front of Elasticsearch, for the daemon and for `status`.
    """

    world: World
    daemon: Daemon
    proxy: Proxy

    def _get(self, path: str) -> str:
        status, text = ask(str(self.daemon.wait_for("web.listening")["address"]), path)
        assert status == 200, text
        return text

    def page(self) -> Json:
        """What the page's API says."""
        status: Json = json.loads(self._get("/api/status"))
        return status

    def metrics(self) -> dict[str, dict[tuple[str, ...], float]]:
        """What Prometheus reads: of each series its values, by those of its labels."""
        values_by_metric: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(self._get("/metrics")):
            for sample in family.samples:
                values_by_metric.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
        return values_by_metric

    def lag(self) -> float:
        """The metric that the alert is about."""
        return self.metrics()["syncer_lag_seconds"]["blogpost",]

    def status(self) -> Json:
        """What `syncer status --json` prints; its exit code tells whether all is well."""
        completed = self.world.syncer("status", "--json", environment={"SYNCER_ELASTICSEARCH_URL": self.proxy.address})
        assert completed.stdout, completed.stderr
        status: Json = json.loads(completed.stdout)
        assert completed.returncode == int(not status["is_well"])
        return status

    def document(self) -> Json:
        """What the page says of the blogpost."""
        document: Json = next(candidate for candidate in self.page()["documents"] if candidate["name"] == "blogpost")
        return document

    def events(self) -> str:
        """What the timeline has."""
        return self.world.prints("events")

    def problem(self, *words: str) -> Json:
        """The problem with these words, once the page has it: once, as `status` does and the metrics count it."""

        def problems() -> list[Json]:
            return [
                candidate
                for candidate in self.page()["problems"]
                if all(word in candidate["message"] for word in words)
            ]

        wait_until(lambda: bool(problems()), what=f"the page says {words}")
        (problem,) = problems()
        assert self.page()["is_well"] is False
        same = [reported for reported in self.status()["problems"] if reported["action"] == problem["action"]]
        assert len(same) == 1, self.status()["problems"]
        expected = 0 if problem["is_passing"] else 1
        wait_until(lambda: self.metrics()["syncer_problems"][()] == expected, what="the metrics count it")
        return problem

    def over(self) -> None:
        """Return once all three say that all is well."""
        wait_until(lambda: "syncer_lag_seconds" in self.metrics(), what="the servers answer")
        wait_until(
            lambda: self.page()["is_well"] is True, what="all is well", detail=lambda: str(self.page()["problems"])
        )
        wait_until(lambda: max(self.metrics()["syncer_lag_seconds"].values()) < 1, what="the lag is gone")
        assert self.metrics()["syncer_problems"] == {(): 0}


@pytest.fixture(scope="module")
def deployment(shared_world: World) -> Iterator[Operator]:
    """Two documents, a daemon at work, and an operator who looks."""
    world = shared_world
    harness.add_posts(world, 40)
    world.define("author", "SELECT id AS _id, name FROM users")
    world.apply()
    world.backfill()
    world.documents = ("blogpost", "author")
    proxy = Proxy(world.endpoints.elasticsearch_url)
    with proxy.running():
        daemon = world.daemon(environment={**QUICK, "SYNCER_ELASTICSEARCH_URL": proxy.address})
        daemon.wait_for_worker()
        yield Operator(world, daemon, proxy)
        daemon.stop()


@pytest.fixture
def operator(deployment: Operator) -> Operator:
    """The operator of a deployment with which all is well."""
    deployment.world.sql("UPDATE posts SET body = body || '.' WHERE id = (SELECT min(id) FROM posts)")
    require_holds(deployment.world)
    deployment.over()
    return deployment


# The lag is the age of the oldest change that the index does not show


def test_changes_that_wait_in_a_job_are_lag(operator: Operator) -> None:
    """A fan-out and a TRUNCATE's refresh, held up: the lag is theirs, though outbox and topic are empty."""
    for change in ("UPDATE users SET name = 'Jane Doe' WHERE id = 1", "TRUNCATE comments"):
        with operator.world.connect() as holder, holder.transaction():
            # The listing waits for this; then the job is there, and stands still.
            holder.execute("LOCK TABLE syncer.job_chunk IN EXCLUSIVE MODE")
            operator.world.sql(change)
            wait_until(lambda: bool(operator.page()["jobs"]), what="there is a job")
            wait_until(lambda: operator.lag() > 1, what="it lags")
            wait_until(
                lambda: (operator.page()["outbox_waiting"], operator.page()["topic_waiting"]) == (0, 0),
                what="nothing waits but the job",
            )
            assert operator.lag() > 1
            if change.startswith("TRUNCATE"):
                problem = operator.problem("Every document of blogpost is being refreshed")
                assert (problem["is_passing"], "public.comments was truncated" in problem["message"]) == (True, True)
        operator.over()


HOUR = 3600.0


@pytest.mark.parametrize("is_stale", [False, True], ids=["waits in a fan-out", "waits for a refresh"])
def test_a_change_in_hand_at_a_suspension_is_as_old_as_its_commit(world: World, *, is_stale: bool) -> None:
    """The worker has received it when the document is suspended: the lag does not go back to zero."""
    harness.add_posts(world, 3)
    world.backfill()
    with harness.following(world) as follower, world.connect() as connection:
        follower.drain()
        document = harness.the_document(connection)
        world.sql(EDIT)
        world.sql("UPDATE syncer.outbox SET changed_at = changed_at - interval '1 hour'")
        registry.suspend(connection, document.name, document.revision, reason="a test", ids=(), is_stale=is_stale)
        follower.handle()
        world.sql("UPDATE posts SET title = 'later' WHERE id = 2")
        follower.handle()
        assert HOUR <= lag_seconds(world) < HOUR + DEADLINE_SECONDS


def lag_seconds(world: World) -> float:
    """What `syncer status` says of the blogpost."""
    [document] = json.loads(world.syncer("status", "--json").stdout)["documents"]
    return float(document["lag_seconds"])


def test_the_lag_grows_once_a_fan_out_is_cancelled(world: World) -> None:
    """The status does not call the document level: what the job would have written stays stale, until a backfill."""
    harness.add_posts(world, 3)
    world.backfill()
    with world.connect() as connection, world.index() as index:
        document = harness.the_document(connection)
        world.sql("DELETE FROM syncer.outbox")
        job = queue.create_fan_out(connection, document, {"public.users": [{"id": "1"}]})
        assert job is not None
        queue.cancel(connection, job.id)
        first = lag_seconds(world)
        assert 0 < first < lag_seconds(world)
        assert queue.create(connection, document, JobKind.BACKFILL) is not None
        world.refresh(index)
    assert lag_seconds(world) == 0


# One cause, one sentence, one correct fix


def test_an_index_that_is_lost_is_one_problem(operator: Operator) -> None:
    """One sentence, whether a write has met it yet or not; and what it says to do is the fix."""
    world, name = operator.world, operator.world.index_of()
    with world.elasticsearch() as client:
        client.indices.delete(index=name)
    operator.problem(f"The index {name} (of blogpost) is gone.")
    world.sql(EDIT)
    wait_until(lambda: operator.document()["suspended"] is not None, what="a write has met it")
    problem = operator.problem(f"The index {name} (of blogpost) is gone.")
    command = problem["action"].removeprefix("Run: syncer ").split()
    world.prints(*command, "--yes")
    operator.over()
    require_holds(world)


@contextmanager
def frozen(server: Any) -> Iterator[None]:
    """A server stands still while the block lasts."""
    server.pause()
    try:
        yield
    finally:
        server.resume()


@dataclass(frozen=True, kw_only=True)
class Outage:
    """A server is away while a change waits.

    Args:
        away: While this lasts.
        event: What the timeline says afterwards.
        says: Words of the problem; none if nothing has failed yet.
        lags: How long the change waits.
    """

    away: Callable[[Operator], AbstractContextManager[None]]
    event: str
    says: tuple[str, ...] = ()
    lags: float = 2


OUTAGES = {
    "Elasticsearch refuses connections": Outage(
        away=lambda operator: operator.proxy.closed(),
        says=("Elasticsearch refuses connections at 127.0.0.1:", ", for", "1 change is waiting."),
        event="Elasticsearch did not answer for",
    ),
    # The only request waits, and succeeds: nothing is retried, and yet the outage is an event.
    "Elasticsearch answers late": Outage(
        away=lambda operator: frozen(operator.world.sandbox.elasticsearch),
        lags=11,
        event="Elasticsearch did not answer for",
    ),
    # It is named long before a record that was sent to it fails.
    "Kafka is frozen": Outage(
        away=lambda operator: frozen(operator.world.sandbox.kafka),
        says=("Kafka", "not acknowledged"),
        lags=5,
        event="Kafka did not answer for",
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs_kafka if name.startswith("Kafka") else ()) for name in OUTAGES]
)
def test_a_server_is_away(operator: Operator, name: str) -> None:
    """The sentence names it, how long it has been away, and how many changes wait; the outage becomes an event."""
    outage = OUTAGES[name]
    earlier = operator.events().count(outage.event)
    with outage.away(operator):
        operator.world.sql(EDIT)
        if outage.says:
            operator.problem(*outage.says)
        wait_until(lambda: operator.lag() > outage.lags, what="it lags")
        if "refuses" in name:
            status = operator.status()
            assert [problem["message"].startswith(outage.says[0]) for problem in status["problems"]] == [True]
            assert status["workers"] == 1
            assert operator.document()["targets"] == {operator.world.index_of(): 40}
    operator.over()
    wait_until(lambda: operator.events().count(outage.event) > earlier, what="the outage is an event")


def test_postgres_is_away(operator: Operator) -> None:
    """The lag that was known goes on growing; the outage is an event once it is over."""
    world = operator.world
    world.sql("ALTER TABLE posts RENAME title TO headline")
    operator.problem("blogpost is suspended")
    lag = operator.lag()
    world.sandbox.postgres.stop()
    try:
        wait_until(
            lambda: operator.page()["problems"][0]["message"].startswith("Postgres refuses connections at"),
            what="the page says so",
        )
        wait_until(lambda: operator.lag() > lag + 2, what="the lag grows")
        status = operator.status()
        assert status["problems"][0]["message"].startswith("Postgres refuses connections at 127.0.0.1")
        assert status["outbox_waiting"] is status["documents"] is status["jobs"] is status["workers"] is None
    finally:
        world.sandbox.postgres.start()
    wait_until(lambda: "Postgres did not answer for" in operator.events(), what="the outage is an event")
    operator.problem("blogpost is suspended")  # every component is at work again
    events = operator.events()
    sentences = re.findall("Postgres did not answer|held up .*(?:cannot be reached|terminating|closed)", events)
    assert len(sentences) == 1, events
    world.sql("ALTER TABLE posts RENAME headline TO title")
    operator.over()


def test_no_daemon(operator: Operator) -> None:
    """`status` says so as soon as the last one is killed; it is the last test, since the others need the daemon."""
    operator.daemon.kill()
    wait_until(lambda: operator.status()["headline"].startswith("No daemon is running."), what="it is said")
