"""The demo is what a newcomer sees first: it ends well, shows true figures, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from elasticsearch import Elasticsearch

from syncer.demo.guide import models
from tests.support.world import wait_until

_SECONDS = 600
"""How long a demo may take, with the start and the end of its servers, on a busy machine."""
_DEMO = [sys.executable, "-m", "syncer", "demo"]


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """A home of its own, so that the demo meets no other one; downloads are shared."""
    with tempfile.TemporaryDirectory(prefix="syncer-demo-") as home:
        Path(home).chmod(0o755)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SYNCER_")}
        yield {**clean, "XDG_STATE_HOME": home, "COLUMNS": "400"}


def demo(environment: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    """Run it in a pipe."""
    return subprocess.run(
        [*_DEMO, *options], env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
    )


def processes_of(home: str | Path) -> list[psutil.Process]:
    """The servers and daemons that run below a folder."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "environ"])
        if str(home)
        in " ".join([*(process.info["cmdline"] or ()), (process.info["environ"] or {}).get("SYNCER_CONFIG", "")])
    ]


def test_a_kept_demo_is_left_alone_until_it_is_ended_as_printed(environment: dict[str, str]) -> None:
    """The guide's query finds the old name, then the new one; what is kept works, also after another demo beside it."""
    kept = demo(environment, "--keep")
    assert kept.returncode == 0, kept.stdout + kept.stderr
    try:
        found = re.findall(r"([\d,]+) posts in \d+ ms, by (John \w+) \(([\d,]+)\), Alice John \(1\)", kept.stdout)
        (posts, before, written), (after_posts, after, rewritten) = found
        assert (before, after) == ("John Smith", "John Doe")
        assert (posts, written) == (after_posts, rewritten)
        assert "6,001 documents equal their SELECT" in kept.stdout
        other = demo(environment, "parent-child", "join")
        assert other.returncode == 0, other.stdout + other.stderr
        assert "syncer wrote 1 of 4 documents: user 1." in other.stdout
        assert "An earlier demo is still running" in other.stdout
        settings = dict(re.findall(r"export (\w+)=(\S+)", kept.stdout))
        with psycopg.connect(settings["SYNCER_POSTGRES_DSN"]) as connection:
            connection.execute("UPDATE users SET name = 'Johnny Doe' WHERE id = 1")
        with Elasticsearch(settings["SYNCER_ELASTICSEARCH_URL"], request_timeout=60) as client:
            renamed = {"term": {"user.name.raw": "Johnny Doe"}}
            wait_until(
                lambda: bool(client.count(index="blogpost", query=renamed)["count"] == 5000), what="the second rename"
            )
    finally:
        ending = re.search(r"To end it:\n((?:  .*\n?)+)", kept.stdout)
        assert ending
        subprocess.run(["/bin/bash", "-ec", ending[1]], env=environment, check=True, capture_output=True, timeout=180)
        wait_until(lambda: processes_of(environment["XDG_STATE_HOME"]) == [], what="nothing is left running")


def test_a_killed_demo_is_cleared_away_by_the_next_and_that_ends_when_interrupted(environment: dict[str, str]) -> None:
    """What a demo that was killed has left is ended; one that is interrupted leaves nothing at all."""
    folders = Path(environment["XDG_STATE_HOME"]) / "syncer" / "demos"
    for number in (signal.SIGKILL, signal.SIGTERM):
        before = set(folders.glob("demo-*"))
        with subprocess.Popen(
            [*_DEMO, "join"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:

            def has_taken_over(before: set[Path] = before) -> bool:
                now = list(folders.glob("demo-*"))
                return len(now) == 1 and now[0] not in before and bool(processes_of(now[0]))

            wait_until(has_taken_over, what="only this demo is there, and starts its servers", seconds=_SECONDS)
            process.send_signal(number)
        assert bool(processes_of(folders)) == (number == signal.SIGKILL)
    assert list(folders.glob("demo-*")) == []


def test_models_are_listed_and_an_unknown_one_is_refused_before_anything_starts(environment: dict[str, str]) -> None:
    """One line for each: what it answers, what it costs, when to choose it."""
    listed = demo(environment, "--list").stdout
    for model in models().values():
        line = next(line for line in listed.splitlines() if line.startswith(f"{model.name} "))
        assert all(text in line for text in (model.question, model.price, model.choice))
    done = demo(environment, "jion")
    assert (done.returncode, "There is no model jion" in done.stderr) == (1, True)
    assert list(Path(environment["XDG_STATE_HOME"]).iterdir()) == []
