"""What one edit of one document costs: statements and functions, counted, so that a busy machine changes little.

A statement is one SQL command that a client sent to Postgres and that was executed. Of a string of several, each
counts; of a prepared one, each execution; what triggers and functions do inside does not count. Transaction control
(BEGIN, COMMIT, savepoints, SET) is counted apart. A message is what was sent for execution at once: one command, or a
string of several. All of that is read in the server's log.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import psycopg
from rich.markup import escape

from tests.benchmarks.blog import Blog, Blogs
from tests.benchmarks.contest import say
from tests.benchmarks.live import Live
from tests.benchmarks.options import Options
from tests.benchmarks.profile import INSIDE
from tests.benchmarks.report import Figure, Outcome
from tests.support.world import Daemon, wait_until

_POSTS, _PER_SECOND = 1_000, 20
_WARM_UP_SECONDS, _REST_SECONDS = 3.0, 2.0
_IDLE_SECONDS = 20.0
"""A multiple of the daemon's periods of 1, 5 and 10 s: when it begins makes hardly a difference."""
_EDIT = "UPDATE posts SET title = %s WHERE id = %s"
_LOG_STATEMENTS = """ALTER DATABASE "{}" SET log_statement = 'all'"""
_WORKER, _RELAY = "worker", "relay"
_SHOWN_MAX, _RARE = 100, 0.05

_LOGGED = re.compile(
    r"\S+ \S+ \S+ \[\d+\] syncer (\S+) (?:\S+ )*?LOG:  (?:statement|execute (?!fetch from )[^:]*): (.*)"
)
_COMMENT_OR_LITERAL = re.compile(r"--[^\n]*|'(?:[^']|'')*'")
_NUMBER = re.compile(r"(?<![$\w])\d+(?:\.\d+)?\b|(?<=_)\d+")
_CONTROL = re.compile(r"(BEGIN|START|COMMIT|END|ROLLBACK|SAVEPOINT|RELEASE|SET)\b", re.IGNORECASE)

_Function = tuple[str, str]
"""File and name."""
_Called = Mapping[str, Mapping[_Function, int]]
"""How often each function was called, by component."""


@dataclass(slots=True, kw_only=True)
class _Sent:
    """What a daemon has sent to Postgres.

    Args:
        per: The number of edits, or of seconds, that rates are per.
        statements: How often each was executed, by component and normalised text.
        messages: How many, by component.
    """

    per: float = 1
    statements: Counter[tuple[str, str]] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)

    def rate(self, component: str, *, control: bool = False) -> float:
        """Statements of a component per edit or second, or those of its transaction control."""
        found = [n for (one, text), n in self.statements.items() if one == component and _is_control(text) is control]
        return sum(found) / self.per


def _is_control(statement: str) -> bool:
    return _CONTROL.match(statement) is not None


def _component(name: str) -> str:
    """The component that a connection or a thread belongs to: all workers and their writers are one."""
    return name.partition("-")[0]


def _messages(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Application name and text of each logged message; Postgres begins its further lines with a tab."""
    name, text = "", ""
    for line in lines:
        if line.startswith("\t"):
            text += line
            continue
        if name:
            yield name, text
        found = _LOGGED.match(line)
        name, text = (found[1], f"{found[2]}\n") if found else ("", "")
    if name:
        yield name, text


def _statements(message: str) -> Iterator[str]:
    """The statements of a message, without values."""
    text = _COMMENT_OR_LITERAL.sub(lambda found: "" if found[0].startswith("--") else "?", message)
    for one in _NUMBER.sub("?", text).split(";"):
        if one.strip():
            yield " ".join(one.split())


def _sent(log: Path, act: Callable[[], float]) -> _Sent:
    """What the daemon sends during an action, which returns the number that rates are per."""
    begin = log.stat().st_size
    sent = _Sent(per=act())
    with log.open(encoding="utf-8", errors="replace") as lines:
        lines.seek(begin)
        for name, message in _messages(lines):
            sent.messages[_component(name)] += 1
            sent.statements.update((_component(name), one) for one in _statements(message))
    if not sent.statements:
        raise RuntimeError(f"{log} has no statement of a daemon: are its lines as `_LOGGED` reads them?")
    return sent


@dataclass(slots=True)
class _Calls:
    """Asks a daemon that was started with this environment which functions it called.

    Args:
        file: Where it says so.
    """

    file: Path

    @property
    def environment(self) -> dict[str, str]:
        """What makes it count."""
        return {"PYTHONPATH": f"{INSIDE}:{Path.cwd()}", "SYNCER_BENCHMARKS_CALLS": str(self.file)}

    def take(self, daemon: Daemon) -> _Called:
        """How often each function was called since the last time this was asked."""
        self.file.unlink(missing_ok=True)
        daemon.process.send_signal(signal.SIGUSR1)
        wait_until(self.file.exists, what="the daemon says what it has called")
        called: dict[str, Counter[_Function]] = {}
        for thread, file, function, calls in json.loads(self.file.read_text()):
            called.setdefault(_component(thread), Counter())[file, function] += calls
        return called


def _edit(blog: Blog, seconds: float) -> int:
    """Edit one post after the other, at an even pace; returns the number of edits, once the last has had time."""
    edits = int(seconds * _PER_SECOND)
    began = time.monotonic()
    with psycopg.connect(blog.world.dsn, autocommit=True) as connection:
        for number, post in zip(range(edits), cycle(range(1, _POSTS + 1)), strict=False):
            time.sleep(max(0.0, began + number / _PER_SECOND - time.monotonic()))
            connection.execute(_EDIT, (f"Post {post} at {time.time()}", post))
    time.sleep(_REST_SECONDS)
    return edits


def _rest(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def _idle_daemon(blog: Blog, environment: Mapping[str, str]) -> Daemon:
    """A daemon that is warmed up and has nothing to do."""
    daemon = blog.world.daemon(environment=environment)
    daemon.wait_for_workers()
    _edit(blog, _WARM_UP_SECONDS)
    Live(blog).wait_settled()
    time.sleep(_REST_SECONDS)
    return daemon


def _batches(daemon: Daemon) -> list[int]:
    """The number of changes in each batch that the workers have finished so far."""
    return [one["changes"] for one in daemon.events() if one["event"] == "worker.batch_indexed" and one["changes"]]


def measure(blogs: Blogs, options: Options) -> Outcome:
    """Count statements, then functions in a second daemon: idle, and under a trickle of edits."""
    with blogs.blog(posts=_POSTS) as blog:
        blog.world.sql(_LOG_STATEMENTS.format(blog.world.name))
        log = blog.world.sandbox.postgres.log_file
        say("statements")
        daemon = _idle_daemon(blog, {})
        idle = _sent(log, lambda: _rest(_IDLE_SECONDS))
        before = len(_batches(daemon))
        busy = _sent(log, lambda: _edit(blog, options.seconds))
        batches = _batches(daemon)[before:]
        daemon.stop()
        if sum(batches) != busy.per:
            raise RuntimeError(f"{sum(batches)} changes were handled in time, not {busy.per}")
        say("functions")
        calls = _Calls(blog.world.folder / "calls")
        daemon = _idle_daemon(blog, calls.environment)
        calls.take(daemon)
        time.sleep(_IDLE_SECONDS)
        called_idle = calls.take(daemon)
        edits = _edit(blog, options.seconds)
        called = calls.take(daemon)
        daemon.stop()
    # What is called only now and then, like a check of the topic, is not part of an edit.
    passed = {
        component: {one for one, times in called[component].items() if times >= edits / 2}
        for component in (_WORKER, _RELAY)
    }
    return _outcome(idle, busy, len(batches), passed, called_idle)


def _outcome(
    idle: _Sent, busy: _Sent, batches: int, passed: Mapping[str, set[_Function]], called_idle: _Called
) -> Outcome:
    components = sorted({component for component, _ in idle.statements | busy.statements})
    others = [one for one in components if one not in passed]
    rates = {one: _rates(idle, busy, one) for one in components}
    awake = {component: functions - called_idle[component].keys() for component, functions in passed.items()}
    return Outcome(
        about=f"{busy.per} edits of single posts, {_PER_SECOND} a second, after {idle.per:.0f} s with none",
        columns=("statements, by component", "an edit", "a second, idle"),
        rows=[row for one in components for row in _rows(idle, busy, one, rates[one])],
        figures=[
            Figure(what="worker: statements an edit", value=busy.rate(_WORKER), at_most=5),
            Figure(what="relay: statements an edit", value=busy.rate(_RELAY), at_most=4),
            Figure(what="rest of the daemon: statements an edit", value=sum(map(busy.rate, others))),
            Figure(what="idle: statements a second", value=sum(map(idle.rate, components)), at_most=6),
            Figure(what="worker: functions that an edit passes", value=len(awake[_WORKER]), at_most=70),
            Figure(what="worker: files that an edit passes", value=_files(awake[_WORKER]), at_most=16),
            Figure(what="relay: functions that an edit passes", value=len(awake[_RELAY])),
            Figure(what="relay: files that an edit passes", value=_files(awake[_RELAY])),
        ],
        record={
            "batches": batches,
            "statements": rates,
            "functions": {component: sorted(map(" ".join, functions)) for component, functions in awake.items()},
        },
        remarks=[
            f"the edits reached the workers in {batches} batches; transaction control is not in the figures",
            *(
                f"counting those that are also called while idle, an edit passes {len(functions)} functions"
                f" in {_files(functions)} files of the {component}"
                for component, functions in passed.items()
            ),
        ],
    )


def _files(functions: set[_Function]) -> int:
    return len({file for file, _ in functions})


def _rates(idle: _Sent, busy: _Sent, component: str) -> dict[str, tuple[float, float]]:
    """Executions of each statement per edit and per idle second; the most frequent first, transaction control last."""
    texts = {text for one, text in idle.statements | busy.statements if one == component}
    rates = {
        one: (
            round(busy.statements[component, one] / busy.per, 3),
            round(idle.statements[component, one] / idle.per, 3),
        )
        for one in texts
    }
    return dict(sorted(rates.items(), key=lambda one: (_is_control(one[0]), -one[1][0], -one[1][1], one[0])))


def _rows(idle: _Sent, busy: _Sent, component: str, rates: Mapping[str, tuple[float, float]]) -> Iterator[list[str]]:
    """The totals of a component, and each statement that is not rare."""
    both = (busy, idle)
    yield [component, *(f"{one.rate(component):.2f}" for one in both)]
    yield ["  transaction control", *(f"{one.rate(component, control=True):.2f}" for one in both)]
    yield ["  messages", *(f"{one.messages[component] / one.per:.2f}" for one in both)]
    for text, found in rates.items():
        if max(found) >= _RARE:
            shown = text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
            yield [f"    {escape(shown)}", *(f"{one:.2f}" for one in found)]
