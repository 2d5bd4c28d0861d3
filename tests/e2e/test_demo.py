"""The demo is what a stranger sees first: it ends well, says true things, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from elasticsearch import Elasticsearch

from syncer.demo.guide import MODELS
from tests.support.world import DEADLINE_SECONDS, wait_until

POSTS = 1200
"""More than a worker writes by itself: the rename is a job."""
_SECONDS = 4 * DEADLINE_SECONDS
"""How long a demo may take, with the start and the end of its servers."""


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """A home of its own, so that the demo meets no other one; downloads are shared."""
    with tempfile.TemporaryDirectory(prefix="syncer-demo-") as home:
        Path(home).chmod(0o755)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SYNCER_")}
        yield {**clean, "XDG_STATE_HOME": home, "COLUMNS": "200"}


def demo(environment: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    """Run it in a pipe."""
    command = [sys.executable, "-m", "syncer", "demo", *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)


def processes_of(environment: dict[str, str]) -> list[psutil.Process]:
    """What still runs below the demo's own home."""
    home = environment["XDG_STATE_HOME"]
    return [one for one in psutil.process_iter(["cmdline"]) if home in " ".join(one.info["cmdline"] or ())]


def test_the_question_is_answered_before_and_after_the_rename(environment: dict[str, str]) -> None:
    """The guide's query finds the old name, then the new one; with --keep, the printed commands work and end it all."""
    done = demo(environment, "--posts", str(POSTS), "--keep")
    assert done.returncode == 0, done.stdout + done.stderr
    settings = dict(re.findall(r"export (\w+)=(\S+)", done.stdout))
    try:
        before = re.search(r"([\d,]+) posts in \d+ ms, by John Smith \(([\d,]+)\), Alice John \(1\)", done.stdout)
        after = re.search(r"([\d,]+) posts in \d+ ms, by John Doe \(([\d,]+)\), Alice John \(1\)", done.stdout)
        assert before is not None
        assert after is not None
        assert before.groups() == after.groups()
        assert f"{POSTS + 1 + POSTS // 5:,} documents equal their SELECT" in done.stdout
        assert "\x1b[" not in done.stdout
        with psycopg.connect(settings["SYNCER_POSTGRES_DSN"]) as connection:
            connection.execute("UPDATE users SET name = 'Johnny Doe' WHERE id = 1")
        with Elasticsearch(settings["SYNCER_ELASTICSEARCH_URL"], request_timeout=60) as client:
            renamed = {"term": {"user.name.raw": "Johnny Doe"}}
            wait_until(
                lambda: bool(client.count(index="blogpost", query=renamed)["count"] == POSTS), what="the second rename"
            )
    finally:
        end_as_printed(environment, done.stdout)


def end_as_printed(environment: dict[str, str], said: str) -> None:
    """Paste the lines that end what was kept; nothing is left running."""
    ending = re.search(r"To end it:\n((?:  .*\n?)+)", said)
    assert ending is not None
    subprocess.run(["/bin/bash", "-ec", ending[1]], env=environment, check=True, capture_output=True, timeout=180)
    wait_until(lambda: processes_of(environment) == [], what="nothing is left running")


def test_the_list_says_what_each_model_is_for(environment: dict[str, str]) -> None:
    """One line for each: what it answers, what it costs, when to choose it."""
    lines = demo({**environment, "COLUMNS": "400"}, "--list").stdout.splitlines()
    for model in MODELS.values():
        assert [
            line
            for line in lines
            if all(said in line for said in (model.name, model.question, model.price, model.choice))
        ]


def test_an_unknown_model_is_refused_before_anything_starts(environment: dict[str, str]) -> None:
    """A clear error that lists the models; no server has been started."""
    done = demo(environment, "jion")
    assert done.returncode == 1
    assert "There is no model jion" in done.stderr
    assert list(Path(environment["XDG_STATE_HOME"]).iterdir()) == []
