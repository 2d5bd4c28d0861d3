"""The demo is what a stranger sees first: it ends well, says true things, and leaves nothing behind."""

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

from tests.harness import wait_until

POSTS = 300


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """A home of its own, so that the demo meets no other one; downloads are shared."""
    with tempfile.TemporaryDirectory(prefix="syncer-demo-") as home:
        Path(home).chmod(0o755)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SYNCER_")}
        yield {**clean, "XDG_STATE_HOME": home, "COLUMNS": "200"}


def demo(environment: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    """Run it in a pipe."""
    command = [sys.executable, "-m", "syncer", "demo", "--posts", str(POSTS), *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)


def processes_of(environment: dict[str, str]) -> list[psutil.Process]:
    """What still runs below the demo's own home."""
    home = environment["XDG_STATE_HOME"]
    return [one for one in psutil.process_iter(["cmdline"]) if home in " ".join(one.info["cmdline"] or ())]


def test_the_question_is_answered_before_and_after_the_rename(environment: dict[str, str]) -> None:
    """The guide's query finds the old name, then the new one, on as many posts; verify finds no drift."""
    done = demo(environment)
    assert done.returncode == 0, done.stdout + done.stderr
    before = re.search(r"(\d+) posts in \d+ ms, by John Smith \((\d+)\), Alice John \(1\)", done.stdout)
    after = re.search(r"(\d+) posts in \d+ ms, by John Doe \((\d+)\), Alice John \(1\)", done.stdout)
    assert before is not None
    assert after is not None
    assert before.groups() == after.groups()
    assert f"{POSTS} posts show the new name" in done.stdout
    assert f"{POSTS + 1 + POSTS // 5} documents equal their SELECT" in done.stdout
    assert "\x1b[" not in done.stdout
    assert processes_of(environment) == []
    assert list(Path(environment["XDG_STATE_HOME"]).glob("syncer/demo*")) == []


def test_what_is_kept_can_be_played_with(environment: dict[str, str]) -> None:
    """With --keep, the printed commands work, and the printed ending ends it all."""
    done = demo(environment, "--keep")
    assert done.returncode == 0, done.stdout + done.stderr
    settings = dict(re.findall(r"export (\w+)=(\S+)", done.stdout))
    try:
        with psycopg.connect(settings["SYNCER_POSTGRES_DSN"]) as connection:
            connection.execute("UPDATE users SET name = 'Johnny Doe' WHERE id = 1")
        with Elasticsearch(settings["SYNCER_ELASTICSEARCH_URL"]) as client:
            renamed = {"term": {"user.name.raw": "Johnny Doe"}}
            wait_until(
                lambda: bool(client.count(index="blogpost", query=renamed)["count"] == POSTS), what="the second rename"
            )
    finally:
        ending = re.search(r"To end it:\n((?:  .*\n?)+)", done.stdout)
        assert ending is not None
        subprocess.run(["/bin/bash", "-ec", ending[1]], env=environment, check=True, capture_output=True, timeout=60)
    wait_until(lambda: processes_of(environment) == [], what="nothing is left running")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl_c", "sigterm"])
def test_an_interrupted_demo_stops_everything(environment: dict[str, str], number: signal.Signals) -> None:
    """Ctrl-C or SIGTERM in the middle leaves no server, no daemon and no traceback."""
    command = [sys.executable, "-m", "syncer", "demo", "--posts", str(POSTS)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        assert run.stdout is not None
        said = []
        for line in run.stdout:
            said.append(line)
            if "syncer run" in line:
                run.send_signal(number)
                break
        said += run.stdout.readlines()
        assert run.wait(60) == 130, "".join(said)
    assert "Traceback" not in "".join(said)
    assert processes_of(environment) == []
