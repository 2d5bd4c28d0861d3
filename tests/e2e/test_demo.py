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


def test_a_kept_demo_works_until_it_is_ended_as_printed_or_by_the_next(environment: dict[str, str]) -> None:
    """The guide's query finds the old name, then the new one; what is kept works; the next demo takes its place."""
    completed = demo(environment, "--keep")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    answers = re.findall(r"([\d,]+) posts in \d+ ms, by (John \w+) \(([\d,]+)\), Alice John \(1\)", completed.stdout)
    (posts, old_name, written_first), (after_posts, new_name, rewritten) = answers
    assert (old_name, new_name) == ("John Smith", "John Doe")
    assert (posts, written_first) == (after_posts, rewritten)
    assert "6,001 documents equal their SELECT" in completed.stdout
    settings = dict(re.findall(r"export (\w+)=(\S+)", completed.stdout))
    with psycopg.connect(settings["SYNCER_POSTGRES_DSN"]) as connection:
        connection.execute("UPDATE users SET name = 'Johnny Doe' WHERE id = 1")
    with Elasticsearch(settings["SYNCER_ELASTICSEARCH_URL"], request_timeout=60) as client:
        renamed = {"term": {"user.name.raw": "Johnny Doe"}}
        wait_until(
            lambda: bool(client.count(index="blogpost", query=renamed)["count"] == 5000), what="the second rename"
        )
    rerun = demo(environment, "parent-child", "join", "--keep")
    assert rerun.returncode == 0, rerun.stdout + rerun.stderr
    assert "Stopping the demo that is still running" in rerun.stdout
    assert "syncer wrote 1 of 4 documents: user 1." in rerun.stdout
    ending = re.search(r"To end it.*:\n((?:  .*\n?)+)", rerun.stdout)
    assert ending
    subprocess.run(["/bin/bash", "-ec", ending[1]], env=environment, check=True, capture_output=True, timeout=180)
    wait_until(lambda: processes_of(environment["XDG_STATE_HOME"]) == [], what="nothing is left running")


def test_a_killed_demo_is_ended_by_the_next_and_an_interrupted_one_leaves_nothing(environment: dict[str, str]) -> None:
    """Meanwhile there is no other beside it."""
    folder = Path(environment["XDG_STATE_HOME"]) / "syncer" / "demo"
    known_processes: set[psutil.Process] = set()
    for number in (signal.SIGKILL, signal.SIGTERM):
        with subprocess.Popen(
            [*_DEMO, "join"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:

            def is_alone(before: set[psutil.Process] = known_processes) -> bool:
                running = set(processes_of(folder))
                return bool(running) and not running & before

            wait_until(is_alone, what="it starts its servers, and nothing is left of another", seconds=_SECONDS)
            assert "Another demo is running" in demo(environment, "join").stderr
            process.send_signal(number)
        known_processes = set(processes_of(folder))
        assert bool(known_processes) == (number == signal.SIGKILL)


def test_models_are_listed_and_an_unknown_one_is_refused_before_anything_starts(environment: dict[str, str]) -> None:
    """A line for each that there is."""
    listed = demo(environment, "--list").stdout
    assert {line.split()[0] for line in listed.splitlines() if line[:1].islower()} >= models().keys()
    completed = demo(environment, "jion")
    assert (completed.returncode, "There is no model jion" in completed.stderr) == (1, True)
    assert list(Path(environment["XDG_STATE_HOME"]).iterdir()) == []
