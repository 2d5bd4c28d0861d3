"""The API of a real daemon, and what a second one on the same machine does."""

from __future__ import annotations

import http.client
import json
import re
import socket
from contextlib import closing
from functools import partial
from importlib.metadata import version
from typing import Any
from urllib.parse import quote, urlsplit

from prometheus_client.parser import text_string_to_metric_families

from syncer.documents import registry
from syncer.jobs.model import JobKind
from syncer.jobs.queue import create, pause
from tests.support.world import DEADLINE_SECONDS, REPOSITORY, Daemon, World, wait_until

TOKEN = "a token that is long enough"  # noqa: S105 - nobody else's
BLOG = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com');
INSERT INTO posts (id, user_id, title, body)
SELECT i, 1, 'title ' || i, 'body' FROM generate_series(1, 5) AS i;
INSERT INTO comments (id, post_id, name, comment, age) VALUES (1, 1, 'Alice', 'more', 5), (2, 2, 'Bob', 'less', 5);
"""
SECRET = 123456789
DOCUMENTED = re.findall(
    r"^\| `(syncer_\w+)` \| (\w+) \|", (REPOSITORY / "docs" / "metrics.md").read_text(), re.MULTILINE
)


class Api:
    """What a monitor asks a daemon.

    Args:
        daemon: Which.
        token: What it sends.
    """

    def __init__(self, daemon: Daemon, *, token: str | None = None) -> None:
        self.address = str(daemon.wait_for("web.listening")["address"])
        self._token = token

    def get(self, path: str, *, status: int = 200) -> Any:
        """The answer, which must have this status."""
        return json.loads(self.ask("GET", path, status=status))

    def post(self, path: str, body: Any = None, *, status: int = 200) -> Any:
        """Likewise."""
        return json.loads(self.ask("POST", path, json.dumps(body) if body is not None else None, status=status))

    def ask(self, method: str, path: str, body: str | None = None, *, status: int) -> str:
        """Likewise, as text."""
        with closing(self._connection()) as connection:
            headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            said = answer.read().decode()
        assert answer.status == status, said
        return said

    def wait_until_well(self, documents: int) -> dict[str, Any]:
        """The status, once all is well and so many documents are there."""
        seen: dict[str, Any] = {}

        def is_well() -> bool:
            answer = self.look("/api/status")
            seen.clear()
            seen.update(answer)
            return bool(answer.get("is_well")) and sum(answer["documents"][0]["targets"].values()) == documents

        wait_until(is_well, what=f"all is well, with {documents} documents", detail=lambda: json.dumps(seen))
        return seen

    def look(self, path: str) -> dict[str, Any]:
        """What it answers now, whatever the status."""
        with closing(self._connection()) as connection:
            connection.request("GET", path)
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(urlsplit(self.address).netloc, timeout=DEADLINE_SECONDS)


def test_the_api_says_what_the_commands_say(world: World) -> None:
    """Status, jobs, dead letters and explain are those of the commands; who has no token sees no value."""
    world.sql("ALTER TABLE comments ALTER age TYPE bigint")
    world.apply()
    world.sql(BLOG)
    daemon = world.daemon(environment={"SYNCER_WEB_TOKEN": TOKEN})
    anybody, operator = Api(daemon), Api(daemon, token=TOKEN)
    seen = anybody.wait_until_well(5)
    printed = json.loads(world.syncer("status", "--json").stdout)
    assert printed.keys() <= seen.keys()
    assert seen["documents"] == printed["documents"]
    assert seen["headline"].startswith("All is well")
    assert seen["access"] == {"can_act": False, "takes_token": True, "sees_rows": False, "sees_values": False}
    assert operator.get("/api/status")["access"]["can_act"]
    wait_until(lambda: anybody.look("/api/status")["daemons"][0]["components"] != [], what="it has reported them")
    (running,) = anybody.get("/api/status")["daemons"]
    assert (running["process"], running["version"]) == (daemon.process.pid, version("syncer-cdc"))
    assert {"report", "web", "watch", "relay", "worker-1", "worker-2", "job_worker"} == set(running["components"])

    world.sql(f"UPDATE comments SET age = {SECRET} WHERE id = 1")  # its mapping is short
    daemon.wait_for("document.dead_lettered")
    assert anybody.get("/api/dead-letters", status=401)["message"]
    letters = operator.get("/api/dead-letters?limit=5")
    assert letters["letters"] == 1
    assert letters["kinds"][0]["example"] == "1"
    assert str(SECRET) in letters["shown"][0]["error"]
    assert anybody.get("/api/explain/blogpost?id=1", status=401)["hint"]
    explained = operator.get("/api/explain/blogpost?id=1&values=true")
    assert explained["indices"][0]["state"] == "different"
    assert str(SECRET) in explained["indices"][0]["dead_letter"]["error"]
    assert explained["indices"][0]["postgres"]["source"]["comments"][0]["age"] == SECRET
    assert operator.get("/api/explain/nothing?id=1", status=404)["hint"] == "Active documents: blogpost"
    assert operator.get("/api/explain/blogpost", status=400)["message"] == "Missing parameter: id"
    assert "cannot be an id" in operator.get(f"/api/explain/blogpost?id={quote('../x')}", status=404)["message"]

    retries(world, operator)
    assert operator.get("/api/jobs")["has_more"] is (world.sql(FINISHED)[0][0] > 3)
    world.sql(f"UPDATE syncer.job SET error = 'nobody foresaw {SECRET}'")
    assert str(SECRET) in operator.ask("GET", "/api/jobs", status=200)
    where = f"id = {SECRET} + 1"
    with world.connect() as connection, connection.transaction():
        made = create(connection, registry.current(connection)["blogpost"], JobKind.PARTIAL, where=where)
        assert made is not None
        pause(connection, made.id)
    for path in ("/api/jobs", "/api/status"):
        wait_until(partial(is_said, operator, path, str(made.where)), what=f"{path} says the condition of a job")
        assert not is_said(anybody, path, str(SECRET))
    assert str(SECRET) not in daemon.log_file.read_text()
    assert daemon.stop() == 0


FINISHED = "SELECT count(*) FROM syncer.job WHERE finished_at IS NOT NULL"


def is_said(api: Api, path: str, what: str) -> bool:
    """Whether an answer has it."""
    return what in api.ask("GET", path, status=200)


def retries(world: World, operator: Api) -> None:
    """Dead letters are tried again as a job; one that is not fixed stays."""
    assert operator.post("/api/dead-letters/retry", {}, status=400)["message"] == "Missing parameter: document"
    tried = operator.post("/api/dead-letters/retry", {"document": "blogpost"})
    assert tried["letters"] == 1
    wait_until(
        lambda: any(one["id"] in tried["jobs"] and one["state"] == "done" for one in operator.get("/api/jobs")["jobs"]),
        what="the job is done",
    )
    assert operator.get("/api/dead-letters")["letters"] == 1
    world.sql("DELETE FROM syncer.dead_letter")


def test_monitoring_finds_what_it_looks_for(world: World) -> None:
    """Metrics and health are where they are looked for; a daemon with a server away is alive and not ready."""
    daemon = world.daemon()
    api = Api(daemon)
    api.wait_until_well(0)
    assert "syncer_" in api.ask("GET", "/metrics", status=200)
    alive = api.get("/healthz")
    assert {"web", "report", "relay"} <= {one["name"] for one in alive["checks"]}
    wait_until(lambda: api.look("/readyz")["is_well"], what="it is ready", detail=lambda: str(api.look("/readyz")))
    assert api.get("/readyz")["checks"]
    # Without a token nobody may act, and rows are without their values.
    assert api.post("/api/jobs/1/pause", status=403)["hint"]
    assert api.get("/api/dead-letters")["letters"] == 0
    assert api.get("/api/explain/blogpost?id=1&values=true", status=403)["hint"]
    assert api.get("/api/explain/blogpost?id=1")["indices"][0]["state"] == "absent"
    held_up = socket.create_connection(("127.0.0.1", urlsplit(api.address).port or 0))  # says nothing, ever
    assert daemon.stop() == 0  # which it is not, if a component has not ended in time
    held_up.close()


def test_a_daemon_exports_what_is_documented(world: World) -> None:
    """Each metric of docs/metrics.md has a value once a daemon has done work of every kind, and there is no other."""
    world.sql(BLOG)
    world.apply()
    daemon = world.daemon()
    api = Api(daemon)
    api.wait_until_well(5)
    world.sql("UPDATE posts SET title = 'another' WHERE id < 4")
    assert world.syncer("verify").returncode == 0
    with world.connect() as connection:
        # It is to be seen at work, however rarely somebody looks.
        assert create(connection, registry.current(connection)["blogpost"], JobKind.BACKFILL, rate=0.05)
    exported: dict[str, str] = {}

    def are_all_there() -> bool:
        families = list(text_string_to_metric_families(api.ask("GET", "/metrics", status=200)))
        ours = [one for one in families if one.name.startswith("syncer_")]
        assert {_named(one.name, one.type) for one in ours} == set(DOCUMENTED)
        exported.update(_named(one.name, one.type) for one in ours if one.samples)
        return exported.keys() == dict(DOCUMENTED).keys()

    wait_until(are_all_there, what="all have a value", detail=lambda: str(dict(DOCUMENTED).keys() - exported.keys()))
    assert daemon.stop() == 0


def _named(name: str, kind: str) -> tuple[str, str]:
    """A metric as the page has it."""
    return (f"{name}_total" if kind == "counter" else name), kind


def test_a_port_that_is_taken_ends_only_who_asked_for_it(world: World) -> None:
    """Who names a port that somebody has is told so at once, and nothing has begun."""
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        refused = world.syncer("run", environment={"SYNCER_WEB_PORT": str(port)})
        assert refused.returncode == 1
        assert f"port {port}" in refused.stderr
        assert "SYNCER_WEB_PORT" in refused.stderr
        assert "daemon.started" not in refused.stderr
