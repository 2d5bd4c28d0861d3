"""What the daemon says: the catalogue of log events, and how they are rendered.

An event is ``thing.past_tense``; its fields carry their unit last. No event carries a row's values or a secret.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

import structlog

from syncer.settings import LogSettings

DAEMON_STARTED: Final = "daemon.started"
DAEMON_STOPPED: Final = "daemon.stopped"
STAGE_RETRIED: Final = "stage.retried"
"""A server did not answer as it should; the same work is tried again until it does."""
STAGE_RECOVERED: Final = "stage.recovered"
STAGE_FAILED: Final = "stage.failed"
"""A stage met what no waiting mends. The daemon ends; nothing is lost."""
RELAY_LED: Final = "relay.led"
"""This relay has become the leader."""
RELAY_STOOD_BY: Final = "relay.stood_by"
RELAY_PUBLISHED: Final = "relay.batch_published"
RELAY_TRIMMED: Final = "relay.outbox_trimmed"
RELAY_ADOPTED: Final = "relay.outbox_adopted"
"""The database has another system identifier than the cursor: all of the outbox is published again."""
WORKER_ASSIGNED: Final = "worker.partitions_assigned"
WORKER_REVOKED: Final = "worker.partitions_revoked"
WORKER_INDEXED: Final = "worker.batch_indexed"
"""The canonical line: one a batch, with counts, timings and lag."""
DOCUMENT_PARKED: Final = "document.parked"
"""Documents could not be written; what the server said of each is in syncer.dead_letter."""
DOCUMENT_HALTED: Final = "document.halted"
"""A document cannot go on until its reason is mended and `syncer apply` has run; the others go on."""
FILES_NOTED: Final = "watch.files_noted"
"""A table was written anew, or has other partitions: the documents that read it are refreshed."""
JOB_CREATED: Final = "job.created"
"""All of a document is to be written again, since a table was truncated or written anew: see `syncer jobs`."""
JOB_FINISHED: Final = "job.finished"
"""Every page of a job has been written."""
INCARNATION_ENTERED: Final = "incarnation.entered"
"""The database is not the one it was: failover, restore. Documents may show what it has lost: verify --repair."""
TOPIC_TROUBLED: Final = "topic.troubled"


def configure(settings: LogSettings, *, is_command: bool = False) -> None:
    """Send structlog's events, and librdkafka's, to standard error; a command says most of it itself.

    Args:
        settings: What is logged, and how.
        is_command: Whether somebody waits for the end of it.
    """
    console = settings.format == "console" or (settings.format == "auto" and sys.stderr.isatty())
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        if console
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    if is_command and level == logging.INFO:
        level = logging.WARNING
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


class LibraryLog(logging.Handler):
    """Hands librdkafka's own log lines to structlog, each distinct text once in a while."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Log a line, unless the same kind was logged within the last minute."""
        message = record.getMessage()
        kind = message.split("[", 1)[0]
        if record.created - self._seen.get(kind, 0) < _REPEAT_SECONDS:
            return
        self._seen[kind] = record.created
        structlog.get_logger().warning(TOPIC_TROUBLED, detail=message)


_REPEAT_SECONDS = 60


def library_logger() -> logging.Logger:
    """The logger to give to librdkafka."""
    logger = logging.getLogger("syncer.librdkafka")
    if not logger.handlers:
        logger.addHandler(LibraryLog())
        logger.propagate = False
    return logger
