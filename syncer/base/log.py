"""Logging: renders log lines and decides which of them are logged.

An event is named ``component.past_tense``, and a field ends with its unit. No line contains row values or secrets;
document ids and column names may appear. A line with a ``timeline``, one sentence, is also noted in the timeline,
whatever is logged: see `syncer.base.timeline`.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

import structlog

from syncer.base.log_limit import Repeated
from syncer.base.settings import Level, LogSettings
from syncer.base.timeline import TIMELINE
from syncer.base.write_report import OUTCOMES

LEVELS: Final[Mapping[Level, int]] = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_REPEAT_SECONDS = 600.0
_SUMMARY_SECONDS = 10.0
_BATCH_SLOW_SECONDS = 1.0
"""A batch that took so long is logged by itself."""
_BATCHES: Final = frozenset({"relay.batch_published", "worker.batch_indexed"})
_COUNTED: Final = ("documents", *OUTCOMES)


class Summary:
    """Counts batches until they are logged in one line. Safe to share between threads."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._began = 0.0
        self._sums: Counter[str] = Counter()
        self._seconds_max = 0.0
        self._lag_seconds_max: float | None = None

    def count(self, line: Mapping[str, Any]) -> None:
        """Count the batch of this line."""
        is_relay = line["event"] == "relay.batch_published"
        with self._turn:
            self._began = self._began or time.monotonic()
            self._sums["published" if is_relay else "handled"] += line["changes"]
            self._sums["relay_batches" if is_relay else "worker_batches"] += 1
            self._sums.update({name: line.get(name, 0) for name in _COUNTED})
            self._seconds_max = max(self._seconds_max, line["seconds"])
            if (lag := line.get("lag_seconds")) is not None:
                self._lag_seconds_max = max(lag, self._lag_seconds_max or 0.0)

    def take(self, *, at_once: bool = False) -> dict[str, object] | None:
        """Return what was counted and start over; None if there is nothing, or it is too early."""
        with self._turn:
            if not self._began or not (at_once or time.monotonic() - self._began >= _SUMMARY_SECONDS):
                return None
            names = ("published", "relay_batches", "handled", "worker_batches", *_COUNTED)
            found: dict[str, object] = {name: self._sums[name] for name in names}
            found |= {"seconds_max": self._seconds_max, "lag_seconds_max": self._lag_seconds_max}
            self._began, self._seconds_max, self._lag_seconds_max = 0.0, 0.0, None
            self._sums.clear()
            return found


class Choice:
    """Filters log lines by level. A batch is logged if it is slow; each is counted for the summary.

    Args:
        settings: The levels.
        is_command: Whether a command runs in the foreground; information is then left to the command's own output.
    """

    def __init__(self, settings: LogSettings, *, is_command: bool = False) -> None:
        general = "warning" if is_command and settings.level == "info" else settings.level
        self._general = LEVELS[general]
        self._own = {name: LEVELS[level] for name, level in settings.levels.items()}
        self.summary = Summary()
        self.least = min([self._general, *self._own.values()])
        """The lowest level at which anything is logged."""

    def is_logged(self, name: str, level: str) -> bool:
        """Whether an event is logged at a level. Its own setting decides, then its component's, then the general."""
        least = self._own.get(name)
        if least is None:
            least = self._own.get(name.partition(".")[0], self._general)
        return LEVELS[level] >= least  # type: ignore[index]  # structlog uses the same level names

    def __call__(self, _: Any, level: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Return the line if it is logged, as a structlog processor.

        Raises:
            structlog.DropEvent: It is not logged.
        """
        name = line["event"]
        if name in _BATCHES:
            self.summary.count(line)
            if line["seconds"] < _BATCH_SLOW_SECONDS:
                level = "debug"
        if not self.is_logged(name, level):
            raise structlog.DropEvent
        return line


_choice = Choice(LogSettings())
_is_json = False


def _note(_: Any, level: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Note the line in the timeline if it has a sentence for it, as a structlog processor."""
    if (message := line.pop("timeline", None)) is not None:
        TIMELINE.note(line["event"], level, message)
    return line


def configure(settings: LogSettings, *, is_command: bool = False) -> None:
    """Send the events of structlog and librdkafka to standard error; for ``is_command`` see `Choice`."""
    global _choice, _is_json  # noqa: PLW0603 - structlog's configuration is global to the process too
    console = settings.format == "console" or (settings.format == "auto" and sys.stderr.isatty())
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        if console
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    _choice = Choice(settings, is_command=is_command)
    _is_json = not console and not is_command
    structlog.configure(
        processors=[
            _note,
            _choice,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(min(_choice.least, LEVELS["info"])),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def is_logged(name: str, level: Level) -> bool:
    """Whether an event is logged at this level. Ask this before building many lines of it."""
    return _choice.is_logged(name, level)


def is_json() -> bool:
    """Whether this process is a daemon whose log is JSON: then its last words are, too."""
    return _is_json


def summarise(*, at_once: bool = False) -> None:
    """Log what the batches since the last summary did, if there were any, every ten seconds or at once."""
    counted = _choice.summary.take(at_once=at_once)
    if counted is not None:
        structlog.get_logger().info("batches.summarised", **counted)


class LibraryLog(logging.Handler):
    """Forwards librdkafka's log lines to structlog. A repeated kind is logged every ten minutes."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: Repeated[str, str] = Repeated(self._tell, seconds=_REPEAT_SECONDS)

    def emit(self, record: logging.LogRecord) -> None:
        """Log or count a line. `logging` calls this under the handler's lock."""
        message = record.getMessage()
        self._kinds.note(message.split("[", 1)[0], message)

    def _tell(self, _: str, number: int, message: str) -> None:
        structlog.get_logger().warning("topic.troubled", detail=message, repeated=number - 1)


_LIBRARY_LOG: Final = LibraryLog()


def library_logger() -> logging.Logger:
    """Return a logger for one librdkafka client. Disabling it silences that client only."""
    logger = logging.Logger("syncer.librdkafka")  # noqa: LOG001 - getLogger would keep it for the life of the process
    logger.addHandler(_LIBRARY_LOG)
    return logger
