"""Telemetry: how the events of `syncer.events` are rendered, which of them are logged, and what librdkafka says."""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final

import structlog

from syncer import events
from syncer.events import LEVELS
from syncer.repeated import Repeated
from syncer.settings import LogSettings

_REPEAT_SECONDS = 60.0
_REPEAT_SECONDS_MAX = 3600.0
_SAMPLED: Final = frozenset({events.RELAY_PUBLISHED, events.WORKER_INDEXED})


class Choice:
    """Which lines are logged: those that are grave enough, and of the lines of batches some.

    Args:
        settings: What was set.
        is_command: Whether somebody waits for the end of it, so that information is left to what it prints.
    """

    def __init__(self, settings: LogSettings, *, is_command: bool = False) -> None:
        general = "warning" if is_command and settings.level == "info" else settings.level
        self._general = LEVELS[general]
        self._own = {name: LEVELS[level] for name, level in settings.levels.items()}
        self._sample = settings.batch_sample
        self._slow_seconds = settings.batch_slow_seconds
        self._batches = {name: itertools.count() for name in _SAMPLED}
        self.least = min([self._general, *self._own.values()])
        """The least grave level that anything is logged at."""

    def is_logged(self, name: str, level: str) -> bool:
        """Whether an event of that name is, at that level: its own, its stage's or the general one decides."""
        least = self._own.get(name)
        if least is None:
            least = self._own.get(name.partition(".")[0], self._general)
        return LEVELS[level] >= least  # type: ignore[index]  # structlog's names of levels are ours

    def __call__(self, _: Any, level: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """What is logged goes on; as a processor of structlog.

        Raises:
            structlog.DropEvent: It is not.
        """
        name = line["event"]
        if not self.is_logged(name, level) or (name in _SAMPLED and not self._is_taken(name, line)):
            raise structlog.DropEvent
        return line

    def _is_taken(self, name: str, line: MutableMapping[str, Any]) -> bool:
        """Whether the line of a batch is logged: each slow one, and one of so many others."""
        slowest = max(line["seconds"], line.get("lag_seconds") or 0.0)
        return slowest >= self._slow_seconds or next(self._batches[name]) % self._sample == 0


_choice = Choice(LogSettings())


def configure(settings: LogSettings, *, is_command: bool = False) -> None:
    """Send structlog's events, and librdkafka's, to standard error; a command says most of it itself.

    Args:
        settings: What is logged, and how.
        is_command: Whether somebody waits for the end of it.
    """
    global _choice  # noqa: PLW0603 - structlog is configured once for the process too
    console = settings.format == "console" or (settings.format == "auto" and sys.stderr.isatty())
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        if console
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    _choice = Choice(settings, is_command=is_command)
    structlog.configure(
        processors=[
            _choice,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_choice.least),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def is_logged(name: str) -> bool:
    """Whether an event is logged at its own level: for who would have to make many lines of it."""
    return _choice.is_logged(name, events.CATALOGUE[name].level)


class LibraryLog(logging.Handler):
    """Hands a library's own log lines to structlog: each kind at once, and while it goes on less and less often.

    Args:
        event: As which event.
    """

    def __init__(self, event: str = events.TOPIC_TROUBLED) -> None:
        super().__init__(logging.WARNING if event != events.TOPIC_TROUBLED else logging.NOTSET)
        self._event = event
        self._kinds: Repeated[str, str] = Repeated(self._tell, seconds=_REPEAT_SECONDS, seconds_max=_REPEAT_SECONDS_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        """Log a line, or count it; one at a time, under the handler's lock."""
        message = record.getMessage()
        self._kinds.note(message.split("[", 1)[0], message)

    def _tell(self, _: str, number: int, message: str) -> None:
        structlog.get_logger().warning(self._event, detail=message, repeated=number - 1)


_LIBRARY_LOG: Final = LibraryLog()


def library_logger() -> logging.Logger:
    """A logger for one client of librdkafka: who disables it hears no more of that client."""
    logger = logging.Logger("syncer.librdkafka")  # noqa: LOG001 - one that is known by its name is kept for ever
    logger.addHandler(_LIBRARY_LOG)
    return logger
