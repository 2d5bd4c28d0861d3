"""Looks at a process from the inside: where its threads are, fifty times a second, and their names in the kernel.

What a thread waits for counts as much as what it computes: a server's answer is found where it is waited for.
Or it counts which functions are called, by thread, and writes that down whenever it gets SIGUSR1, to begin anew.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType

_NAME_MAX = 15  # the kernel's
_SAMPLE_SECONDS = 0.02
_FILE = "SYNCER_BENCHMARKS_PLACES"
_CALLS_FILE = "SYNCER_BENCHMARKS_CALLS"
_PACKAGE = "/syncer/"
_NOWHERE = "elsewhere"

_bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]  # whatever class a thread is of


def _named_bootstrap(thread: threading.Thread) -> None:
    """Python itself names threads in the kernel from 3.14 on."""
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(thread.name[:_NAME_MAX])
    _bootstrap(thread)


def _is_own(frame: FrameType) -> bool:
    """Whether its function is one of syncer's own."""
    file = frame.f_code.co_filename
    return _PACKAGE in file and "site-packages" not in file


def _place(frame: FrameType | None) -> str:
    """The innermost function of syncer's own that a thread is in."""
    while frame is not None:
        if _is_own(frame):
            return f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_qualname}"
        frame = frame.f_back
    return _NOWHERE


def _sample(found: Counter[tuple[str, str]]) -> None:
    """Count where all threads are, for ever."""
    while True:
        time.sleep(_SAMPLE_SECONDS)
        names = {one.ident: one.name for one in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            if name := names.get(ident):  # one that has just ended has none
                found[name, _place(frame)] += 1


def _begin(file: Path) -> None:
    found: Counter[tuple[str, str]] = Counter()

    def write() -> None:
        file.write_text(json.dumps([[*where, count] for where, count in found.copy().items()]))

    threading.Thread._bootstrap_inner = _named_bootstrap  # type: ignore[attr-defined]
    threading.Thread(target=_sample, args=(found,), name="benchmarks", daemon=True).start()
    atexit.register(write)


def _count_calls(file: Path) -> None:
    called: Counter[tuple[str, str, str]] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        # Comprehensions and the like are parts of the function that they stand in: newer Pythons call none of them.
        if event == "call" and _is_own(frame) and not frame.f_code.co_name.endswith(("comp>", "expr>")):
            code = frame.f_code
            called[threading.current_thread().name, code.co_filename.rpartition(_PACKAGE)[2], code.co_qualname] += 1

    def write(*_: object) -> None:
        found = called.copy()
        called.clear()
        part = file.with_suffix(".part")
        part.write_text(json.dumps([[*what, count] for what, count in found.items()]))
        part.rename(file)

    threading.setprofile(note)
    signal.signal(signal.SIGUSR1, write)


if _FILE in os.environ:
    _begin(Path(os.environ.pop(_FILE)))
if _CALLS_FILE in os.environ:
    _count_calls(Path(os.environ.pop(_CALLS_FILE)))
