"""What a single edit costs: statements and functions, counted, so that a busy machine changes little.

A statement is one SQL command that a client sent to Postgres and that was executed. Of a string of several, each
counts; of a prepared one, each execution; what triggers and functions do inside does not. Transaction control (BEGIN,
COMMIT, savepoints, SET) is not in the figures. All of that is read in the server's log.

Functions are counted from the inside: ``python -m tests.benchmarks.one_edit run`` is ``syncer run`` that writes which
functions were called, by thread, whenever it gets SIGUSR1, and begins anew.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from rich.markup import escape

from syncer.__main__ import main as syncer
from tests.benchmarks.contest import PROCESS
from tests.benchmarks.edits import Edits
from tests.benchmarks.report import Figure, say
from tests.benchmarks.world import Bench, Blog
from tests.support.world import wait_until

_POSTS, _PER_SECOND = 1_000, 20
_WARM_UP_SECONDS, _REST_SECONDS = 3.0, 2.0
_IDLE_SECONDS = 20.0
"""A multiple of the daemon's periods of 1, 5 and 10 s: when it begins makes hardly a difference."""
_LOG_STATEMENTS = """ALTER DATABASE "{}" SET log_statement = 'all'"""
_GOALS = {"worker": (5, 70, 16), "relay": (4, None, None)}
"""At most so many statements, functions and files."""
_RARE = 0.05
_PACKAGE, _FILE = "/syncer/", "SYNCER_BENCHMARKS_CALLS"
_LOGGED = re.compile(
    r"\S+ \S+ \S+ \[\d+\] syncer (\S+) (?:\S+ )*?LOG:  (?:statement|execute (?!fetch from )[^:]*): (.*)", re.DOTALL
)
_COMMENT_OR_LITERAL = re.compile(r"--[^\n]*|'(?:[^']|'')*'")
_NUMBER = re.compile(r"(?<![$\w])\d+(?:\.\d+)?\b|(?<=_)\d+")
_CONTROL = re.compile(r"(BEGIN|START|COMMIT|END|ROLLBACK|SAVEPOINT|RELEASE|SET)\b", re.IGNORECASE)

_Counts = dict[str, Counter[str]]
"""How often each statement was sent, or function called, by component."""


def one_edit(bench: Bench) -> Iterator[Figure]:
    """Statements and functions of a single edit, and of an idle daemon."""
    edits = int(bench.seconds * _PER_SECOND)
    with bench.blog(posts=_POSTS) as blog:
        say("an idle daemon")
        _warm(blog)
        before = blog.cpu_seconds()
        time.sleep(_IDLE_SECONDS)
        used = {name: seconds - before[name] for name, seconds in blog.cpu_seconds().items()}
        blog.stop()
        blog.sql(_LOG_STATEMENTS.format(blog.name))
        say("statements")
        _warm(blog)
        idle = _sent(blog, lambda: time.sleep(_IDLE_SECONDS))
        busy = _sent(blog, lambda: _edit(blog, edits))
        blog.stop()
        say("functions")
        calls = blog.folder / "calls"
        blog.start(program=("tests.benchmarks.one_edit",), environment={_FILE: str(calls)})
        _warm(blog)
        _called(blog, calls)
        time.sleep(_IDLE_SECONDS)
        called_idle = _called(blog, calls)
        _edit(blog, edits)
        called = _called(blog, calls)
        blog.stop()
    rates = {
        component: {
            text: (round(busy[component][text] / edits, 3), round(idle[component][text] / _IDLE_SECONDS, 3))
            for text, _ in (busy[component] + idle[component]).most_common()
        }
        for component in sorted(idle.keys() | busy.keys())
    }
    counted = {
        component: [sum(pair[number] for text, pair in found.items() if not _CONTROL.match(text)) for number in (0, 1)]
        for component, found in rates.items()
    }
    # What is called only now and then, such as a check of the topic, is not part of an edit.
    functions = {
        component: sorted(
            function
            for function, times in called[component].items()
            if times >= edits / 2 and function not in called_idle[component]
        )
        for component in _GOALS
    }
    bench.report.about = f"{edits} single edits, {_PER_SECOND} a second, after {_IDLE_SECONDS:.0f} s with none"
    rows = [(f"{name}: {text[:100]}", pair) for name, found in rates.items() for text, pair in found.items()]
    bench.report.table(
        ("statements, by component", "an edit", "a second, idle"),
        [[escape(text), *(f"{rate:.2f}" for rate in pair)] for text, pair in rows if max(pair) >= _RARE],
    )
    bench.report.record |= {"statements": rates, "functions": functions}
    for component, (statements, _, _) in _GOALS.items():
        yield Figure(f"{component}: statements an edit", counted[component][0], at_most=statements)
    others = sum(busy for component, (busy, _) in counted.items() if component not in _GOALS)
    yield Figure("rest of the daemon: statements an edit", others)
    yield Figure("idle: statements a second", sum(idle for _, idle in counted.values()))
    for name, part in (("daemon", PROCESS), ("its sessions of Postgres", "Postgres")):
        yield Figure(f"idle: {name}, of a core", 100 * used[part] / _IDLE_SECONDS, unit="%", at_most=1)
    for component, (_, most, files) in _GOALS.items():
        passed = functions[component]
        yield Figure(f"{component}: functions that an edit passes", len(passed), at_most=most)
        different = len({function.split()[0] for function in passed})
        yield Figure(f"{component}: files that an edit passes", different, at_most=files)


def _warm(blog: Blog) -> None:
    """Start a daemon, unless one runs, and let it do everything once."""
    blog.start_idle()
    _edit(blog, int(_WARM_UP_SECONDS * _PER_SECOND))


def _edit(blog: Blog, number: int) -> None:
    """Edit so many posts, one after the other, and leave the daemon time to follow."""
    Edits(blog, range(1, _POSTS + 1), _PER_SECOND, watched_of=0).make(number)
    blog.wait_settled()
    time.sleep(_REST_SECONDS)


def _component(name: str) -> str:
    """The component that a connection or a thread belongs to: all workers and their writers are one."""
    return name.partition("-")[0]


def _sent(blog: Blog, act: Callable[[], None]) -> _Counts:
    """The statements that the daemon sends meanwhile, without values."""
    log = blog.sandbox.postgres.log_file
    begin = log.stat().st_size
    act()
    sent: _Counts = defaultdict(Counter)
    messages = re.split(r"\n(?!\t)", log.read_bytes()[begin:].decode(errors="replace"))  # a tab begins a further line
    for logged in filter(None, map(_LOGGED.match, messages)):
        if logged[1] != "test":  # the benchmark itself looks whether all is settled
            text = _COMMENT_OR_LITERAL.sub(lambda found: "" if found[0].startswith("--") else "?", logged[2])
            statements = (" ".join(statement.split()) for statement in _NUMBER.sub("?", text).split(";"))
            sent[_component(logged[1])].update(filter(None, statements))
    if not sent:
        raise RuntimeError(f"{log} has no statement of a daemon: are its lines as `_LOGGED` reads them?")
    return sent


def _called(blog: Blog, file: Path) -> _Counts:
    """How often each function, after its file, was called since this was last asked."""
    file.unlink(missing_ok=True)
    assert blog.pid is not None
    os.kill(blog.pid, signal.SIGUSR1)
    wait_until(file.exists, what="the daemon writes what it has called")
    called: _Counts = defaultdict(Counter)
    for thread, function, calls in json.loads(file.read_text()):
        called[_component(thread)][function] += calls
    return called


def _count_calls(file: Path) -> None:
    called: Counter[tuple[str, str]] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or _PACKAGE not in code.co_filename or "site-packages" in code.co_filename:
            return
        # Comprehensions and the like are parts of the function that they stand in: newer Pythons call none of them.
        if not code.co_name.endswith(("comp>", "expr>")):
            function = f"{code.co_filename.rpartition(_PACKAGE)[2]} {code.co_qualname}"
            called[threading.current_thread().name, function] += 1

    def write(*_: object) -> None:
        found = called.copy()
        called.clear()
        part = file.with_suffix(".part")
        part.write_text(json.dumps([[*what, count] for what, count in found.items()]))
        part.rename(file)

    threading.setprofile(note)
    signal.signal(signal.SIGUSR1, write)


if __name__ == "__main__":
    _count_calls(Path(os.environ.pop(_FILE)))
    syncer()
