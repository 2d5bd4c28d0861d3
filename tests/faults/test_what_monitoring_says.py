"""What `syncer status --json`, the metrics and the status page's API say while a fault lasts, and how soon.

Every test asserts all three, and leaves a deployment with which all is well: all share one, with one daemon. What each
took is printed: ``pytest -rP`` shows it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.request import urlopen

import pytest
import structlog
from elasticsearch import ApiError
from prometheus_client.parser import text_string_to_metric_families

from syncer.base.error_policy import explain
from tests.support.capture import define
from tests.support.elasticsearch_proxy import Proxy
from tests.support.world import DEADLINE_SECONDS, Daemon, World, wait_until

BLOG = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com');
INSERT INTO posts (id, user_id, title, body) SELECT i, 1, 'title ' || i, 'body' FROM generate_series(1, 40) AS i;
"""
EDIT = "UPDATE posts SET title = title || ' again' WHERE id = 1"
QUICK = {"SYNCER_WORKER_FAN_OUT_DOCUMENTS_MAX": "20"}
LOG = structlog.get_logger()
Said = dict[str, Any]


@dataclass
class Operator:
    """What a person sees who looks at the page, the metrics and `syncer status`."""

    world: World
    daemon: Daemon
    proxy: Proxy
    """In front of Elasticsearch, for the daemon and for `status`."""
    began: float = field(default_factory=time.monotonic)

    def _got(self, path: str) -> bytes:
        address = str(self.daemon.wait_for("web.listening")["address"]).rstrip("/")
        with urlopen(address + path, timeout=DEADLINE_SECONDS) as answer:  # noqa: S310 - our own
            return bytes(answer.read())

    def page(self) -> Said:
        """What the page's API says."""
        said: Said = json.loads(self._got("/api/status"))
        return said

    def metrics(self) -> dict[str, dict[tuple[str, ...], float]]:
        """What Prometheus reads: of each series its values, by those of its labels."""
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(self._got("/metrics").decode()):
            for sample in family.samples:
                found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
        return found

    def lag(self, document: str = "blogpost") -> float:
        """The metric that the alert is about."""
        return self.metrics()["syncer_lag_seconds"][document,]

    def status(self) -> Said:
        """What `syncer status --json` prints; its exit code tells whether all is well."""
        done = self.world.syncer("status", "--json", environment={"SYNCER_ELASTICSEARCH_URL": self.proxy.address})
        assert done.stdout, done.stderr
        said: Said = json.loads(done.stdout)
        assert done.returncode == int(not said["is_well"])
        return said

    def document(self, said: Said | None = None) -> Said:
        """What the page, or another, says of the blogpost."""
        found: Said = next(one for one in (said or self.page())["documents"] if one["name"] == "blogpost")
        return found

    def named(self, *parts: str) -> Said:
        """The problem that the page names with these words; it is told once, by `status` too, and by the metrics."""
        found: list[Said] = []

        def is_named() -> bool:
            found[:] = [one for one in self.page()["problems"] if all(part in one["message"] for part in parts)]
            return bool(found)

        wait_until(is_named, what=f"the page says {parts}", detail=lambda: str(self.page()["problems"]))
        LOG.info("named", seconds=round(time.monotonic() - self.began, 1), **found[0])
        assert self.page()["is_well"] is False
        assert len(found) == 1
        return found[0]

    def is_alone(self, problem: Said) -> None:
        """It is the only one, for `status` too, up to the time that it names; and counted by the metrics."""
        (other,) = self.status()["problems"]
        assert other["action"] == problem["action"], other
        expected = 0 if problem["is_passing"] else 1
        wait_until(lambda: self.metrics()["syncer_problems"][()] == expected, what="the metrics count it")

    def over(self) -> None:
        """Return once all three say that all is well."""
        began = self.began = time.monotonic()
        wait_until(lambda: "syncer_lag_seconds" in self.metrics(), what="the servers answer")
        wait_until(
            lambda: self.page()["is_well"] is True, what="all is well", detail=lambda: str(self.page()["problems"])
        )
        wait_until(lambda: max(self.metrics()["syncer_lag_seconds"].values()) < 1, what="the lag is gone")
        LOG.info("over", seconds=round(time.monotonic() - began, 1))
        assert self.metrics()["syncer_problems"] == {(): 0}


@pytest.fixture(scope="module")
def deployment(shared_world: World) -> Iterator[Operator]:
    """Two documents, a daemon at work, and an operator who looks."""
    world = shared_world
    world.sql(BLOG)
    define(world, "author", "SELECT id AS _id, name FROM users")
    world.apply()
    world.backfill()
    world.documents = ("blogpost", "author")
    proxy = Proxy(world.endpoints.elasticsearch_url)
    with proxy.running():
        daemon = world.daemon(environment={**QUICK, "SYNCER_ELASTICSEARCH_URL": proxy.address})
        daemon.wait_for_workers()
        yield Operator(world, daemon, proxy)
        daemon.stop()


@pytest.fixture
def operator(deployment: Operator) -> Operator:
    """The operator of a deployment with which all is well."""
    deployment.world.sql("UPDATE posts SET body = body || '.' WHERE id = (SELECT min(id) FROM posts)")
    deployment.world.wait_until_level()  # so this change, and all before it, are published
    wait_until(deployment.world.is_handled, what="no change is in flight")
    deployment.over()
    return deployment


@pytest.fixture
def blog(operator: Operator) -> World:
    """Where it is deployed."""
    return operator.world


# The lag


def test_changes_that_wait_in_a_job_are_lag(operator: Operator, blog: World) -> None:
    """A fan-out and a TRUNCATE's refresh, paused: the lag is theirs, though outbox and topic are empty."""
    for change in ("UPDATE users SET name = 'Jane Doe' WHERE id = 1", "TRUNCATE comments"):
        with blog.connect() as holder, holder.transaction():
            # The listing waits for this; then the job is there, and stands still.
            holder.execute("LOCK TABLE syncer.job_chunk IN EXCLUSIVE MODE")
            blog.sql(change)
            wait_until(lambda: bool(operator.page()["jobs"]), what="there is a job")
            wait_until(lambda: operator.lag() > 2, what="it lags")
            said = operator.page()
            assert (said["outbox_waiting"], said["topic_waiting"]) == (0, 0)
            assert said["lag_seconds"] > 2
            assert operator.status()["lag_seconds"] > 2
            if change.startswith("TRUNCATE"):
                problem = operator.named("Every document of blogpost is being written again")
                assert problem["is_passing"] is True
                assert operator.status()["is_well"] is False
        operator.over()


# Known problems


# One cause, one sentence, one correct fix


def test_an_index_that_is_lost_is_one_problem(operator: Operator, blog: World) -> None:
    """One sentence, whether a write has met it yet or not; and what it says to do is the fix."""
    name = blog.index_of()
    with blog.elasticsearch() as client:
        client.indices.delete(index=name)
        operator.is_alone(operator.named(f"The index {name} (of blogpost) is gone."))
        blog.sql(EDIT)
        wait_until(lambda: operator.document()["suspended"] is not None, what="a write has met it")
        problem = operator.named(f"The index {name} (of blogpost) is gone.")
        operator.is_alone(problem)
        do(blog, problem, "--yes")
    operator.over()
    blog.wait_until_level()


def test_a_full_disk_is_called_one(shared_world: World) -> None:
    """Not a missing master."""
    with shared_world.elasticsearch() as client:
        name = f"{shared_world.alias}-full"
        client.indices.create(index=name, settings={"index.blocks.read_only_allow_delete": True})
        with pytest.raises(ApiError) as refused:
            client.index(index=name, document={})
    said = explain(refused.value)
    assert said is not None
    assert said.message.startswith("Elasticsearch's disk is full: ")
    assert "master" not in said.hint


def do(world: World, problem: Said, *options: str) -> None:
    """Follow the action of a problem."""
    command = problem["action"].removeprefix("Run: syncer ").split()
    done = world.syncer(*command, *options)
    assert done.returncode == 0 or command[0] == "verify", done.stderr


# A component retries


def test_a_full_disk_is_named_at_once(operator: Operator, blog: World) -> None:
    """By every process, with Elasticsearch's words; the daemon is not ready, and the other document is not held up."""
    name = blog.index_of()
    block = "index.blocks.read_only_allow_delete"
    with blog.elasticsearch() as client:
        client.indices.put_settings(index=name, settings={block: True})
        blog.sql(EDIT)
        began = time.monotonic()
        operator.named("disk")
        assert time.monotonic() - began < 8
        assert not json.loads(operator._got("/api/status"))["is_well"]
        assert [one for one in operator.status()["problems"] if "disk" in one["message"]]
        client.indices.put_settings(index=name, settings={block: None})
    operator.over()
    blog.wait_until_level()


# A server is away


def test_elasticsearch_is_away(operator: Operator, blog: World) -> None:
    """The sentence names its address, how long it has been away, and how many changes wait."""
    down = f"Elasticsearch is down: connection refused at 127.0.0.1:{operator.proxy.address.rpartition(':')[2]}"
    with operator.proxy.closed():
        blog.sql(EDIT)
        operator.named(f"{down}, for", "1 change is waiting.")
        wait_until(lambda: operator.lag() > 2, what="it lags")
        said = operator.status()
        (message,) = [one["message"] for one in said["problems"]]
        assert message.startswith(down)
        assert message.endswith("1 change is waiting.")
        assert said["workers"] == 2
        assert operator.document(said)["targets"] == {blog.index_of(): None}
        assert operator.document()["targets"] == {blog.index_of(): 40}
    operator.over()


def test_postgres_is_away(operator: Operator, blog: World) -> None:
    """The lag that was known goes on growing."""
    blog.sql("ALTER TABLE posts RENAME title TO headline")
    operator.named("blogpost is suspended")
    before = operator.lag()
    blog.sandbox.postgres.stop()
    try:
        operator.named("Postgres is down: connection refused at 127.0.0.1")
        wait_until(lambda: operator.lag() > before + 2, what="the lag grows")
        said = operator.status()
        assert said["problems"][0]["message"].startswith("Postgres is down: connection refused at 127.0.0.1")
        assert said["outbox_waiting"] is said["documents"] is said["jobs"] is said["workers"] is None
    finally:
        blog.sandbox.postgres.start()
    wait_until(lambda: not any("down" in one["message"] for one in operator.page()["problems"]), what="it is back")
    wait_until(lambda: "was held up for" in blog.syncer("events").stdout, what="the outage is an event once it is over")
    blog.sql("ALTER TABLE posts RENAME headline TO title")
    operator.over()


def test_no_daemon(operator: Operator) -> None:
    """`status` says so as soon as the last one is killed; it is the last test, since the others need the daemon."""
    operator.daemon.kill()
    wait_until(lambda: operator.status()["headline"].startswith("No daemon is running."), what="it is said")
