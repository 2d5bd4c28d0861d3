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

from syncer.demo.guide import MODELS
from tests.harness import DEADLINE_SECONDS, wait_until

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


@pytest.mark.thorough
def test_a_demo_leaves_nothing_behind(environment: dict[str, str]) -> None:
    """Without --keep, no process and no data are left once it has ended."""
    done = demo(environment, "--posts", str(POSTS))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{POSTS:,} posts show the new name" in done.stdout
    assert processes_of(environment) == []
    assert list(Path(environment["XDG_STATE_HOME"]).glob("syncer/demo*")) == []


def end_as_printed(environment: dict[str, str], said: str) -> None:
    """Paste the lines that end what was kept; nothing is left running."""
    ending = re.search(r"To end it:\n((?:  .*\n?)+)", said)
    assert ending is not None
    subprocess.run(["/bin/bash", "-ec", ending[1]], env=environment, check=True, capture_output=True, timeout=180)
    wait_until(lambda: processes_of(environment) == [], what="nothing is left running")


@pytest.mark.thorough
def test_every_model_of_the_guide_is_shown_on_the_same_servers(environment: dict[str, str]) -> None:
    """Each asks the guide's questions, says what its change cost and when to choose it; the pasted lines work."""
    done = demo(environment, *MODELS, "--keep")
    assert done.returncode == 0, done.stdout + done.stderr
    try:
        for model in MODELS.values():
            assert f"# The guide's model: {model.name}\n{model.question}" in done.stdout
            assert f"Its price: {model.price}\n{model.choice}" in done.stdout
        assert "For that change syncer wrote 1 of 4 documents: user 1." in done.stdout
        assert "For that change syncer wrote 3,003 of 3,004 documents." in done.stdout
        assert "3,004 documents equal their SELECT" in done.stdout
        assert "\x1b[" not in done.stdout
        pasted = re.search(r"  export SYNCER_POSTGRES_DSN(?:.*\n)*?  curl .*\n", done.stdout)
        assert pasted is not None
        last = subprocess.run(
            ["/bin/bash", "-ec", pasted[0]], env=environment, capture_output=True, text=True, timeout=180, check=True
        )
        assert "UPDATE 1" in last.stdout
        assert '"timed_out" : false' in last.stdout
    finally:
        end_as_printed(environment, done.stdout)


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


@pytest.mark.thorough
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
        assert run.wait(_SECONDS) == 130, "".join(said)
    assert "Traceback" not in "".join(said)
    assert processes_of(environment) == []
