"""What a single edit costs: statements and functions, counted, so that a busy machine changes little.

Both are counted from the inside: ``python -m tests.benchmarks.one_edit run`` is ``syncer run`` that writes what each
thread called, whenever it gets SIGUSR1, and begins anew. A statement is one SQL command that psycopg is to execute; of
a string of several, each counts. Transaction control (BEGIN, COMMIT, savepoints, SET) is not in the figures.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from psycopg.sql import Composable

from syncer.__main__ import main as syncer
from tests.benchmarks.edits import Edits
from tests.benchmarks.gauges import difference
from tests.benchmarks.report import PROCESS, Figure, say
from tests.benchmarks.world import QUIET, Bench, Blog
from tests.support.world import wait_until

_POSTS, _PER_SECOND = 1_000, 20
_WARM_UP_SECONDS, _REST_SECONDS = 3.0, 2.0
_IDLE_SECONDS = 20.0
"""A multiple of the daemon's periods of 1, 5 and 10 s: when it begins makes hardly a difference."""
_GOALS = {"worker": (5, 70, 16), "relay": (4, None, None)}
"""At most so many statements, functions and files."""
_RARE = 0.05
_PACKAGE, _FILE = "/syncer/", "SYNCER_BENCHMARKS_CALLS"
_EXECUTES = re.compile(r"/psycopg/\w*cursor\.py$")
_CONTROL = re.compile(r"(BEGIN|START|COMMIT|END|ROLLBACK|SAVEPOINT|RELEASE|SET)\b", re.IGNORECASE)

_Counts = dict[str, dict[str, Counter[str]]]
"""By kind, "statement" or "function", and by component: how often each was called."""


def one_edit(bench: Bench) -> Iterator[Figure]:
    """Statements and functions of a single edit, and of an idle daemon."""
    edits, report = int(bench.seconds * _PER_SECOND), bench.report
    with bench.blog(posts=_POSTS) as blog:
        say("an idle daemon")
        _warm(blog)
        cpu_before = blog.cpu_seconds()
        time.sleep(_IDLE_SECONDS)
        used = difference(blog.cpu_seconds(), cpu_before)
        blog.stop()
        say("statements and functions")
        calls = blog.folder / "calls"
        environment = {**QUIET, _FILE: str(calls)}
        blog.process = blog.daemon(program=("tests.benchmarks.one_edit",), environment=environment).process
        _warm(blog)
        _called(blog, calls)
        time.sleep(_IDLE_SECONDS)
        idle = _called(blog, calls)
        _edit(blog, edits)
        busy = _called(blog, calls)
        blog.stop()
    report.about = f"{edits} single edits, {_PER_SECOND} a second, after {_IDLE_SECONDS:.0f} s with none"
    statements: dict[str, tuple[float, float]] = {}
    for component in sorted(busy["statement"].keys() | idle["statement"].keys()):
        totals = [0.0, 0.0]
        sent, sent_idle = busy["statement"][component], idle["statement"][component]
        for text in sent | sent_idle:
            pair = round(sent[text] / edits, 3), round(sent_idle[text] / _IDLE_SECONDS, 3)
            if max(pair) >= _RARE:
                report.rows[f"{component}: {text[:100]}"] = {"an edit": pair[0], "a second, idle": pair[1]}
            if not _CONTROL.match(text):
                totals = [total + count for total, count in zip(totals, pair, strict=True)]
        statements[component] = totals[0], totals[1]
    for component, (at_most, _, _) in _GOALS.items():
        yield Figure(f"{component}: statements an edit", statements[component][0], at_most=at_most)
    other_statements = sum(an_edit for component, (an_edit, _) in statements.items() if component not in _GOALS)
    yield Figure("rest of the daemon: statements an edit", other_statements)
    yield Figure("idle: statements a second", sum(a_second for _, a_second in statements.values()))
    for name, part in (("daemon", PROCESS), ("its sessions of Postgres", "Postgres")):
        yield Figure(f"idle: {name}, of a core", 100 * used[part] / _IDLE_SECONDS, unit="%", at_most=1)
    for component, (_, functions_max, files_max) in _GOALS.items():
        called, called_idle = busy["function"][component], idle["function"][component]
        # What is called only now and then, such as a check of the topic, is not part of an edit.
        passed = {name: times for name, times in called.items() if times >= edits / 2 and name not in called_idle}
        for name, times in sorted(passed.items()):
            report.rows[f"{component}: {name}"] = {"an edit": round(times / edits, 3)}
        yield Figure(f"{component}: functions that an edit passes", len(passed), at_most=functions_max)
        files = len({name.split()[0] for name in passed})
        yield Figure(f"{component}: files that an edit passes", files, at_most=files_max)


def _warm(blog: Blog) -> None:
    """Start a daemon, unless one runs, and let it do everything once."""
    blog.start_idle()
    _edit(blog, int(_WARM_UP_SECONDS * _PER_SECOND))


def _edit(blog: Blog, number: int) -> None:
    """Edit so many posts, one after the other, and leave the daemon time to follow."""
    Edits(blog, range(1, _POSTS + 1), _PER_SECOND, watched_of=0).make(number)
    blog.wait_settled()
    time.sleep(_REST_SECONDS)


def _called(blog: Blog, file: Path) -> _Counts:
    """What was called since this was last asked; all workers and their writers are one component."""
    file.unlink(missing_ok=True)
    assert blog.pid is not None
    os.kill(blog.pid, signal.SIGUSR1)
    wait_until(file.exists, what="the daemon writes what it has called")
    called: _Counts = {"statement": defaultdict(Counter), "function": defaultdict(Counter)}
    for kind, thread, name, calls in json.loads(file.read_text()):
        called[kind][thread.partition("-")[0]][name] += calls
    return called


def _count_calls(file: Path) -> None:
    called: Counter[tuple[str, str, str]] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call":
            return
        thread = threading.current_thread().name
        if code.co_name == "execute" and _EXECUTES.search(code.co_filename):
            query = frame.f_locals["query"]
            text = query.as_string() if isinstance(query, Composable) else query
            for statement in (text.decode() if isinstance(text, bytes) else text).split(";"):
                if words := " ".join(re.sub(r"--[^\n]*", "", statement).split()):
                    called["statement", thread, words] += 1
        # Comprehensions and the like are parts of the function that they stand in: newer Pythons call none of them.
        elif (
            _PACKAGE in code.co_filename
            and "site-packages" not in code.co_filename
            and not code.co_name.endswith(("comp>", "expr>"))
        ):
            called["function", thread, f"{code.co_filename.rpartition(_PACKAGE)[2]} {code.co_qualname}"] += 1

    def write(*_: object) -> None:
        calls = called.copy()
        called.clear()
        part = file.with_suffix(".part")
        part.write_text(json.dumps([[*what, count] for what, count in calls.items()]))
        part.rename(file)

    threading.setprofile(note)
    signal.signal(signal.SIGUSR1, write)


if __name__ == "__main__":
    _count_calls(Path(os.environ.pop(_FILE)))
    syncer()
