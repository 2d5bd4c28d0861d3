"""The API of a real daemon, and what a second one on the same machine does."""

from __future__ import annotations

import http.client
import json
import re
import socket
from contextlib import closing
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from tests.support.job_worker import held_backfill
from tests.support.world import DEADLINE_SECONDS, REPOSITORY, Daemon, World, wait_until

TOKEN = "a token that is long enough"  # noqa: S105 - of this test
BLOG = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com');
INSERT INTO posts (id, user_id, title, body)
SELECT i, 1, 'title ' || i, 'body' FROM generate_series(1, 5) AS i;
INSERT INTO comments (id, post_id, name, comment, age) VALUES (1, 1, 'Alice', 'more', 5), (2, 2, 'Bob', 'less', 5);
"""
SECRET = "123456789"  # noqa: S105 - a value of a row
DOCUMENTED = dict(
    re.findall(r"^\| `(syncer_\w+)` \| (\w+) \|", (REPOSITORY / "docs" / "metrics.md").read_text(), re.MULTILINE)
)


class Api:
    """What a client asks a daemon, with a token or without."""

    def __init__(self, daemon: Daemon, *, token: str | None = None) -> None:
        self.address = str(daemon.wait_for("web.listening")["address"])
        self._token = token

    def ask(self, path: str) -> tuple[int, str]:
        """The status of the answer, and its text."""
        with closing(http.client.HTTPConnection(urlsplit(self.address).netloc, timeout=DEADLINE_SECONDS)) as connection:
            headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def get(self, path: str, *, status: int = 200) -> Any:
        """The answer as data; it must have this status."""
        found, text = self.ask(path)
        assert found == status, text
        return json.loads(text)

    def wait_until_well(self, documents: int) -> Any:
        """The status, once all is well and so many documents are there."""

        def is_well() -> bool:
            seen = json.loads(self.ask("/api/status")[1])
            return bool(seen.get("is_well")) and sum(seen["documents"][0]["targets"].values()) == documents

        wait_until(is_well, what=f"all is well, with {documents} documents", detail=lambda: self.ask("/api/status")[1])
        return self.get("/api/status")


def test_the_api_has_what_the_commands_print(world: World) -> None:
    """Status, jobs, dead letters and explain are those of the commands; without the token no value is shown."""
    world.sql("ALTER TABLE comments ALTER age TYPE bigint")
    world.apply()
    world.sql(BLOG)
    daemon = world.daemon(environment={"SYNCER_WEB_TOKEN": TOKEN})
    reader, operator = Api(daemon), Api(daemon, token=TOKEN)
    seen = reader.wait_until_well(5)
    printed = json.loads(world.syncer("status", "--json").stdout)
    assert printed.keys() <= seen.keys()
    assert seen["documents"] == printed["documents"]
    assert seen["access"] == {"takes_token": True, "sees_values": False}
    assert operator.get("/api/status")["access"]["sees_values"]

    world.sql(f"UPDATE comments SET age = {SECRET} WHERE id = 1")  # its mapping is short
    daemon.wait_for("document.dead_lettered")
    letters = reader.get("/api/dead-letters")
    assert (letters["letters"], letters["kinds"][0]["example"]) == (1, "1")
    assert reader.get("/api/explain/blogpost?id=1&values=true", status=401)["hint"]
    (explained,) = reader.get("/api/explain/blogpost?id=1")["indices"]
    assert (explained["state"], explained["dead_letter"]["error"]) == ("different", None)
    (explained,) = operator.get("/api/explain/blogpost?id=1&values=true")["indices"]
    assert SECRET in explained["dead_letter"]["error"]
    assert explained["postgres"]["source"]["comments"][0]["age"] == int(SECRET)
    assert operator.get("/api/explain/absent?id=1", status=404)["hint"] == "Active documents: blogpost"
    with world.connect() as connection:
        held_backfill(connection)
        world.sql(f"UPDATE syncer.job SET error = 'unforeseen {SECRET}'")
        for path in ("/api/jobs", "/api/status"):
            shows = partial(lambda path: SECRET in operator.ask(path)[1], path)
            wait_until(shows, what=f"{path} shows the error")
            assert SECRET not in reader.ask(path)[1]
    assert SECRET not in daemon.log_file.read_text()
    assert daemon.stop() == 0


def test_monitoring_finds_what_it_looks_for(world: World) -> None:
    """Health, and each documented metric once a daemon has done work of every kind; no value without a token."""
    world.sql(BLOG)
    daemon = world.daemon()
    api = Api(daemon)
    api.wait_until_well(5)
    assert {"web", "report", "relay"} <= {check["name"] for check in api.get("/healthz")["checks"]}
    wait_until(lambda: api.ask("/readyz")[0] == 200, what="it is ready", detail=lambda: api.ask("/readyz")[1])
    assert api.get("/api/dead-letters")["letters"] == 0
    assert api.get("/api/explain/blogpost?id=1&values=true", status=403)["hint"]
    assert api.get("/api/explain/blogpost?id=99")["indices"][0]["state"] == "absent"

    world.sql("UPDATE posts SET title = 'another' WHERE id < 4")
    assert world.syncer("verify").returncode == 0
    exported: dict[str, str] = {}

    def has_all() -> bool:
        families = list(text_string_to_metric_families(api.ask("/metrics")[1]))
        ours = [family for family in families if family.name.startswith("syncer_")]
        named = {family.name + ("_total" if family.type == "counter" else ""): family for family in ours}
        assert {name: family.type for name, family in named.items()} == DOCUMENTED
        exported.update({name: family.type for name, family in named.items() if family.samples})
        return exported == DOCUMENTED

    with world.connect() as connection:
        held_backfill(connection)
        world.sql("UPDATE syncer.job SET documents_expected = 3")
        wait_until(has_all, what="all have a value", detail=lambda: str(DOCUMENTED.keys() - exported.keys()))
    silent = socket.create_connection(("127.0.0.1", urlsplit(api.address).port or 0))
    taken = world.syncer("run", environment={"SYNCER_WEB_PORT": str(urlsplit(api.address).port)})
    assert (taken.returncode, "SYNCER_WEB_PORT" in taken.stderr, "daemon.started" in taken.stderr) == (1, True, False)
    assert daemon.stop() == 0  # which it is not, if a component has not ended in time
    silent.close()
