"""Logging: renders log lines and decides which of them are logged.

An event is named ``component.past_tense``, and a field ends with its unit. No line contains row values or secrets;
document ids and column names may appear. A line with a ``timeline``, one sentence, is also noted in the timeline,
whatever is logged: see `syncer.base.timeline`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

import structlog

from syncer.base.log_limit import Repeated
from syncer.base.settings import Level, LogSettings
from syncer.base.timeline import TIMELINE

LEVELS: Final[Mapping[Level, int]] = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_REPEAT_SECONDS = 600.0
_BATCH_SLOW_SECONDS = 1.0
"""A batch that took so long is logged by itself."""
_BATCHES: Final = ("relay.batch_published", "worker.batch_indexed")


class Choice:
    """Filters log lines by level. A batch of changes is of level debug, unless it is slow.

    Args:
        level: The lowest level that is logged.
    """

    def __init__(self, level: Level) -> None:
        self.least = LEVELS[level]

    def __call__(self, _: Any, level: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Return the line if it is logged, as a structlog processor.

        Raises:
            structlog.DropEvent: It is not logged.
        """
        if line["event"] in _BATCHES and line["seconds"] < _BATCH_SLOW_SECONDS:
            level = "debug"
        if LEVELS[level] < self.least:  # type: ignore[index]  # structlog uses the same level names
            raise structlog.DropEvent
        return line


_choice = Choice("info")
_is_json = False


def _note(_: Any, level: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Note the line in the timeline if it has a sentence for it, as a structlog processor."""
    if (message := line.pop("timeline", None)) is not None:
        TIMELINE.note(line["event"], level, message)
    return line


def configure(settings: LogSettings, *, is_command: bool = False) -> None:
    """Send the events of structlog and librdkafka to standard error.

    Args:
        settings: The format and the level.
        is_command: Whether a command runs in the foreground; information is then left to the command's own output.
    """
    global _choice, _is_json  # noqa: PLW0603 - structlog's configuration is global to the process too
    console = settings.format == "console" or (settings.format == "auto" and sys.stderr.isatty())
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        if console
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    _choice = Choice("warning" if is_command and settings.level == "info" else settings.level)
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
        # The timeline is noted whatever the level.
        wrapper_class=structlog.make_filtering_bound_logger(min(_choice.least, LEVELS["info"])),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def is_debug() -> bool:
    """Whether events of level debug are logged. Ask this before building many lines."""
    return _choice.least <= LEVELS["debug"]


def is_json() -> bool:
    """Whether this process is a daemon whose log is JSON: then its last words are, too."""
    return _is_json


class _LibraryLog(logging.Handler):
    """Forwards librdkafka's log lines to structlog. A repeated kind is logged every ten minutes."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: Repeated[str, str] = Repeated(self._log, seconds=_REPEAT_SECONDS)

    def emit(self, record: logging.LogRecord) -> None:
        """Log or count a line. `logging` calls this under the handler's lock."""
        message = record.getMessage()
        self._kinds.note(message.split("[", 1)[0], message)

    def _log(self, _: str, number: int, message: str) -> None:
        structlog.get_logger().warning("topic.troubled", detail=message, repeated=number - 1)


_LIBRARY_LOG: Final = _LibraryLog()


def library_logger() -> logging.Logger:
    """Return a logger for one librdkafka client. Disabling it silences that client only."""
    logger = logging.Logger("syncer.librdkafka")  # noqa: LOG001 - getLogger would keep it for the life of the process
    logger.addHandler(_LIBRARY_LOG)
    return logger
