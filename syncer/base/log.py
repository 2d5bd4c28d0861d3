"""Logging: renders log lines and decides which of them are logged.

An event is named ``component.past_tense``, and a field ends with its unit. No line contains row values or secrets;
document ids and column names may appear. A line with a ``timeline``, one sentence, is also noted in the timeline,
whatever is logged: see `syncer.base.timeline`.
"""

from __future__ import annotations

import io
import logging
import math
import select
import sys
import threading
import time
from collections.abc import Callable, Hashable, Mapping, MutableMapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, TextIO, cast

import structlog

from syncer.base.formatting import visible
from syncer.base.settings import Level, LogSettings
from syncer.base.timeline import TIMELINE

LEVELS: Final[Mapping[Level, int]] = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_QUIET_SECONDS = 10.0
_KNOWN_MAX = 1000
_BATCH_SLOW_SECONDS = 1.0
_READER_SECONDS = 5.0
"""How long a line waits for the reader of a pipe."""

_least = LEVELS["info"]
_is_json = False


def batch_level(seconds: float) -> int:
    """Return the level at which a batch of changes is logged that took so long."""
    return LEVELS["debug" if seconds < _BATCH_SLOW_SECONDS else "info"]


def _note(_: Any, level: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Note a line that has a sentence for the timeline, whatever is logged. A processor of structlog's."""
    if (message := line.pop("timeline", None)) is not None:
        TIMELINE.note(line["event"], level, message)
    if LEVELS[level] < _least:  # type: ignore[index]  # structlog uses the same level names
        raise structlog.DropEvent
    return line


def _visible(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Make controls in values visible. A processor of structlog's."""
    return {name: visible(value) if isinstance(value, str) else value for name, value in line.items()}


def configure(settings: LogSettings, *, is_command: bool = False) -> None:
    """Send the events of structlog and librdkafka to standard error; a command leaves information to its own output."""
    global _least, _is_json  # noqa: PLW0603 - structlog's configuration is global to the process too
    console = settings.format == "console" or (settings.format == "auto" and sys.stderr.isatty())
    renderers: list[Any] = [structlog.processors.JSONRenderer(ensure_ascii=False), lambda _, __, line: visible(line)]
    if console:  # it writes colours, which must not become visible
        renderers = [_visible, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    _least = LEVELS["warning" if is_command and settings.level == "info" else settings.level]
    _is_json = not console and not is_command
    structlog.configure(
        processors=[
            _note,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            structlog.processors.format_exc_info,
            *renderers,
        ],
        # The timeline is noted whatever the level.
        wrapper_class=structlog.make_filtering_bound_logger(min(_least, LEVELS["info"])),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _Output(sys.stderr))),
        cache_logger_on_first_use=False,
    )


def is_json() -> bool:
    """Whether this process is a daemon whose log is JSON: then its last words are, too."""
    return _is_json


class _Output:
    """A stream that never fails: if a disk is full, or the reader of a pipe hangs or is gone, lines are lost."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._problem = ""
        self._was_noted = False

    def write(self, text: str) -> None:
        """Write a line, or a part of one."""
        self._attempt(partial(self._stream.write, text))

    def flush(self) -> None:
        """Hand what is written to the operating system. If lines begin to be lost, `syncer events` tells."""
        self._attempt(self._stream.flush)
        if self._problem and not self._was_noted:
            TIMELINE.note("log.lines_lost", "warning", f"The log cannot be written: {self._problem}.")
        self._was_noted, self._problem = bool(self._problem), ""

    def _attempt(self, write: Callable[[], object]) -> None:
        try:
            if self._has_room():
                write()
            else:
                self._problem = "its reader hangs"
        except OSError as error:
            self._problem = error.strerror or repr(error)

    def _has_room(self) -> bool:
        """Whether a pipe takes a line; a reader that is slow is waited for, once."""
        with suppress(io.UnsupportedOperation):  # not a file
            seconds = 0 if self._was_noted or self._problem else _READER_SECONDS
            return bool(select.select([], [self._stream], [], seconds)[1])
        return True


class Repeated:
    """Says when to log what may recur for ever: at once, and a count now and then. Safe to share between threads."""

    def __init__(self, *, seconds: float = _QUIET_SECONDS) -> None:
        self._seconds = seconds
        self._counts: dict[Hashable, tuple[float, int]] = {}
        """By key: when it was last logged, and how often it has occurred since."""
        self._turn = threading.Lock()

    def count(self, key: Hashable, number: int = 1) -> int:
        """Count occurrences; return how many there were since the last line, if it is time for another, else 0."""
        now = time.monotonic()
        with self._turn:
            if key not in self._counts and len(self._counts) >= _KNOWN_MAX:
                self._counts.clear()
            logged_at, unlogged = self._counts.get(key, (-math.inf, 0))
            is_due, number = now - logged_at >= self._seconds, unlogged + number
            self._counts[key] = (now, 0) if is_due else (logged_at, number)
            return number if is_due else 0


class _LibraryLog(logging.Handler):
    """Forwards librdkafka's log lines to structlog. A repeated kind is logged every ten minutes."""

    _kinds: Final = Repeated(seconds=600)

    def emit(self, record: logging.LogRecord) -> None:
        """Log or count a line. `logging` calls this under the handler's lock."""
        message = record.getMessage()
        if number := self._kinds.count(message.split("[", 1)[0]):
            structlog.get_logger().warning("topic.troubled", detail=message, repeated=number - 1)


_LIBRARY_LOG: Final = _LibraryLog()


def library_logger() -> logging.Logger:
    """Return a logger for one librdkafka client. Disabling it silences that client only."""
    logger = logging.Logger("syncer.librdkafka")  # noqa: LOG001 - getLogger would keep it for the life of the process
    logger.addHandler(_LIBRARY_LOG)
    return logger
