"""What the daemon says: the catalogue of log events, and how they are rendered.

An event is ``thing.past_tense``; its fields carry their unit last. No event carries a row's values or a secret.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import Any, Final

import structlog

from syncer.settings import LogSettings

DAEMON_STARTED: Final = "daemon.started"
DAEMON_STOPPED: Final = "daemon.stopped"
STAGE_RETRIED: Final = "stage.retried"
"""A server did not answer as it should; the same work is tried again until it does. Told once, then each minute."""
STAGE_RECOVERED: Final = "stage.recovered"
STAGE_GAVE_UP: Final = "stage.gave_up"
"""A server hangs while the daemon is told to stop. What was in hand is not acknowledged, and will be done again."""
STAGE_FAILED: Final = "stage.failed"
"""A stage met what no waiting mends. The daemon ends; nothing is lost."""
RELAY_LED: Final = "relay.led"
"""This relay has become the leader."""
RELAY_STOOD_BY: Final = "relay.stood_by"
RELAY_DEPOSED: Final = "relay.leader_deposed"
"""The leader has done nothing for long, as if its process were stopped: its connection was ended, another one leads."""
RELAY_PUBLISHED: Final = "relay.batch_published"
RELAY_TRIMMED: Final = "relay.outbox_trimmed"
RELAY_ADOPTED: Final = "relay.outbox_adopted"
"""The saved cursor is of another cluster, or ahead of this one: all of the outbox is published again."""
RELAY_SHORTENED: Final = "relay.changes_shortened"
"""Changes are larger than Kafka takes: the documents that read their tables are refreshed, all of them."""
WORKER_ASSIGNED: Final = "worker.partitions_assigned"
WORKER_REVOKED: Final = "worker.partitions_revoked"
WORKER_INDEXED: Final = "worker.batch_indexed"
"""The canonical line: one a batch, with counts, timings and lag."""
DOCUMENT_PARKED: Final = "document.parked"
"""Documents could not be written; what was said of each: `syncer dead-letters list`.

The first of a kind is told of at once, further ones as a number every few seconds."""
RECORDS_PARKED: Final = "worker.records_parked"
"""Records of the topic are no changes that this version can read: `syncer dead-letters list`.

Told of as parked documents are. Beyond a bound they are not kept, but counted."""
CHANGES_UNPLACED: Final = "worker.changes_unplaced"
"""An affects query failed on the data of changes, so nobody knows whom they touch: all of the document is refreshed."""
DOCUMENT_HALTED: Final = "document.halted"
"""A document cannot go on until its reason is mended and `syncer apply` has run; the others go on."""
FILES_NOTED: Final = "watch.files_noted"
"""A table was written anew, or has other partitions: the documents that read it are refreshed."""
JOB_CREATED: Final = "job.created"
"""Many documents are to be written again: a change touches many, or a table was truncated, or written anew.

A job that nobody has begun takes up further causes, and is then told of once more, with all of them."""
JOB_FINISHED: Final = "job.finished"
"""Every page of a job has been written: counts, and the seconds since it was made."""
INCARNATION_ENTERED: Final = "incarnation.entered"
"""The database is not the one it was: failover, restore. Documents may show what it has lost: they are refreshed."""
TOPIC_TROUBLED: Final = "topic.troubled"
"""What librdkafka says of its connections; `repeated` counts what it has said of that kind since the last line."""
TOPIC_LOST: Final = "topic.records_lost"
"""Records are gone from the topic before they were handled, or it is another one: every document is written again."""
TOPIC_MADE: Final = "topic.made_again"
"""The topic was gone. What was in it is lost, which is told of next."""
WEB_LISTENING: Final = "web.listening"
"""The status page is served: where, and whether a token is set."""
WEB_ABSENT: Final = "web.absent"
"""No status page is served: every port that it tries by itself is taken, as by other daemons on this machine."""
WEB_ACTED: Final = "web.acted"
"""Somebody who has the token has paused, resumed, cancelled, retried or discarded something."""
WEB_REFUSED: Final = "web.refused"
"""A request came with a wrong token, or for another host. Told once, then counted."""
WEB_FAILED: Final = "web.request_failed"
"""A request met an error that nobody foresaw; nothing else is affected."""

_REPEAT_SECONDS = 60.0
_REPEAT_SECONDS_MAX = 3600.0


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
    """Hands librdkafka's own log lines to structlog: each kind at once, and while it goes on less and less often."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[str, _Kind] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Log a line, or count it."""
        message = record.getMessage()
        kind = self._kinds.setdefault(message.split("[", 1)[0], _Kind())
        repeated = kind.repeated(record.created)
        if repeated is not None:
            structlog.get_logger().warning(TOPIC_TROUBLED, detail=message, repeated=repeated)


@dataclass(slots=True)
class _Kind:
    """Lines of one kind.

    Args:
        last_at: When the last one came.
        next_at: Before this, they are counted only.
        seconds: How long they are counted then.
        counted: How many have been.
    """

    last_at: float = 0.0
    next_at: float = 0.0
    seconds: float = _REPEAT_SECONDS
    counted: int = 0

    def repeated(self, now: float) -> int | None:
        """How many have come since one was logged; None if this one is only counted."""
        if now - self.last_at > _REPEAT_SECONDS:  # that trouble is over, and this is another one
            self.next_at, self.seconds, self.counted = 0.0, _REPEAT_SECONDS, 0
        self.last_at = now
        if now < self.next_at:
            self.counted += 1
            return None
        repeated, self.counted = self.counted, 0
        self.next_at, self.seconds = now + self.seconds, min(2 * self.seconds, _REPEAT_SECONDS_MAX)
        return repeated


def library_logger() -> logging.Logger:
    """The logger to give to librdkafka."""
    logger = logging.getLogger("syncer.librdkafka")
    if not logger.handlers:
        logger.addHandler(LibraryLog())
        logger.propagate = False
    return logger
