"""The catalogue of log events: the name, level and fields of each, what it means, and what to do.

Event names are ``component.past_tense``; the names of fields end with their unit. No event contains row values or
secrets; document ids and column names may appear. docs/events.md is generated from this module, and the log of every
daemon that a test starts is checked against it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Literal

from syncer.base.formatting import amount, elapsed

Level = Literal["debug", "info", "warning", "error"]

LEVELS: Final[Mapping[Level, int]] = {"debug": 10, "info": 20, "warning": 30, "error": 40}
"""Numeric levels; higher is more severe."""

Told = Callable[[Mapping[str, Any]], str | None]
"""Turns the fields of a log line into one sentence of the timeline; None for a line that does not belong there."""


@dataclass(frozen=True, slots=True)
class Event:
    """One kind of log line: what happened, and what the operator should do, if anything.

    ``timeline`` is what `syncer events` says about it; None for an event that is only logged.
    """

    name: str
    level: Level
    meaning: str
    always_has: Mapping[str, str]
    _: KW_ONLY
    action: str = ""
    may_have: Mapping[str, str] = field(default_factory=dict)
    timeline: Told | None = None

    @property
    def fields(self) -> Mapping[str, str]:
        """Each field with its meaning."""
        return {**self.always_has, **self.may_have}

    @property
    def optional(self) -> frozenset[str]:
        """The fields that are not on every line."""
        return frozenset(self.may_have)


ON_EVERY_LINE: Final = {
    "event": "the event's name",
    "level": "debug, info, warning or error",
    "at": "the time, in UTC",
}
CATALOGUE: Final[dict[str, Event]] = {}
"""Every event, by name."""

WRITE_EVERYTHING: Final = frozenset({"backfill", "initial_load", "refresh"})
"""The kinds of jobs that write every document: those whose `syncer.jobs.model.JobKind.is_whole`."""

_OUTAGE_SECONDS: Final = 1.0
"""What is over sooner is no outage."""
_WHO = {
    "worker": "the worker's name",
    "job_worker": "the job worker's name",
}
_JOB = {
    "job": "the job's id",
    "kind": "why the job was created",
    "document": "the document that it writes",
    "cause": "for a fan-out, the number of changed rows by table; otherwise null",
}
_COUNTS = {
    "documents": "documents to write",
    "indexed": "documents written",
    "deleted": "documents deleted, or already absent",
    "skipped": "documents skipped because the index holds the same or a newer version",
    "dead_lettered": "documents that became dead letters",
}


def _event(name: str, level: Level, meaning: str, fields: Mapping[str, str], **more: Any) -> str:
    """Add an event to the catalogue and return its name."""
    CATALOGUE[name] = Event(name, level, meaning, fields, **more)
    return name


# The daemon

DAEMON_STARTED: Final = _event(
    "daemon.started",
    "info",
    "The daemon started its components.",
    {"components": "their names", "process": "the process id"},
)
WORKERS_LEFT_OUT: Final = _event(
    "daemon.workers_left_out",
    "warning",
    "`worker.threads` is 0: this daemon runs a job worker but handles no changes.",
    {},
    action="If no other daemon runs workers, set `worker.threads` to 1 or more. To run a relay alone, use "
    "`syncer run --only relay`.",
)
DAEMON_STOPPED: Final = _event(
    "daemon.stopped",
    "info",
    "The daemon stopped.",
    {"failed": "whether a component failed", "hanging": "the components that did not stop in time"},
    action="If `failed` is true, see `component.failed`. Hanging components end with the process; nothing is lost.",
)
COMPONENT_RETRIED: Final = _event(
    "component.retried",
    "warning",
    "A server is unavailable or returned a temporary error. The component retries the same work until it succeeds. "
    "Logged at once, then every minute.",
    {"component": "the component", "error": "the error"},
    action="Check the server that `error` names. Nothing is skipped meanwhile.",
    may_have={
        "attempts": "attempts so far",
        "outage_seconds": "time since the first failure",
        "hint": "what to do",
        "job": "the id of the affected job; other jobs continue",
        **_WHO,
    },
)
COMPONENT_RECOVERED: Final = _event(
    "component.recovered",
    "info",
    "The work that failed before has succeeded; the outage is over.",
    {
        "component": "the component",
        "attempts": "attempts in all",
        "outage_seconds": "duration of the outage",
        "error": "the last error that was logged",
    },
    timeline=lambda line: (
        f"{line['component']} was held up for {elapsed(line['outage_seconds'])}: {line['error']}"
        if line["outage_seconds"] >= _OUTAGE_SECONDS
        else None
    ),
)
COMPONENT_GAVE_UP: Final = _event(
    "component.gave_up",
    "warning",
    "The daemon is stopping and a server does not answer. The work in progress was not acknowledged, and will be "
    "done again.",
    {"component": "the component"},
    action="Check why the server hangs. Nothing is lost.",
    may_have=_WHO,
)
COMPONENT_FAILED: Final = _event(
    "component.failed",
    "error",
    "A component hit a non-retryable error and the daemon stops. If the line has `job`, only that job failed.",
    {"component": "the component", "error": "the error"},
    action="Follow `error` and start the daemon again; nothing is lost. A traceback means a bug in syncer: please "
    "report it.",
    may_have={"exception": "the traceback of an unexpected error", "job": "the job's id", **_WHO},
    timeline=lambda line: (
        None if "job" in line else f"{line['component']} failed, and its daemon stopped: {line['error']}"
    ),
)
POLL_FAILED: Final = _event(
    "poll.failed",
    "error",
    "Polling a server's status hit an unexpected error. Metrics and the status page lack that server's figures; "
    "indexing is not affected.",
    {"server": "the server polled", "error": "the error"},
    action="Please report it, with the traceback.",
    may_have={"exception": "the traceback"},
)
DAEMON_FAILED: Final = _event(
    "daemon.failed",
    "error",
    "The daemon could not start, or ended because of an error.",
    {"error": "the error"},
    action="Follow `error` and `hint`, then start the daemon again; nothing is lost. A traceback means a bug in "
    "syncer: please report it.",
    may_have={"hint": "what to do", "exception": "the traceback of an unexpected error"},
)
BATCHES_SUMMARISED: Final = _event(
    "batches.summarised",
    "info",
    "What the relay and the workers of this daemon did in the last ten seconds. Not logged if they did nothing.",
    {
        "published": "changes that the relay published",
        "relay_batches": "in how many batches",
        "handled": "changes that workers finished",
        "worker_batches": "in how many batches",
        **_COUNTS,
        "seconds_max": "duration of the slowest batch",
        "lag_seconds_max": "age of the oldest change when it was finished; null if workers finished none",
    },
    action="None. For a line per batch, set the level of `relay.batch_published` or `worker.batch_indexed` to `debug`.",
)
LAG_EXCEEDED: Final = _event(
    "lag.exceeded",
    "warning",
    "The lag exceeds `metrics.lag_seconds_max`: Elasticsearch is stale. Logged once until the lag recovers.",
    {"lag_seconds": "the lag", "lag_seconds_max": "the limit"},
    action="Run `syncer status` to see where changes wait, then follow SyncerLagging in the runbook.",
)
LAG_RECOVERED: Final = _event(
    "lag.recovered",
    "info",
    "The lag is below `metrics.lag_seconds_max` again.",
    {"lag_seconds": "the lag", "seconds": "for how long the limit was exceeded"},
)

# The relay

RELAY_LED: Final = _event(
    "relay.led",
    "info",
    "This relay became the leader.",
    {"cursor": "the snapshot from which it continues"},
    timeline=lambda _: "This daemon's relay became the leader.",
)
RELAY_STOOD_BY: Final = _event("relay.stood_by", "info", "Another relay is the leader; this one is on standby.", {})
RELAY_PUBLISHED: Final = _event(
    "relay.batch_published",
    "info",
    "Kafka acknowledged a batch of changes and the relay saved its cursor. Logged if the batch was slow.",
    {
        "changes": "changes in the batch",
        "seconds": "from reading the outbox to saving the cursor",
        "cursor": "the snapshot up to which everything is published",
        "ids": "the lowest and highest outbox id",
        "offsets": "by partition, the first and last offset; a partition with a duplicate send is left out",
    },
)
RELAY_TRIMMED: Final = _event(
    "relay.outbox_trimmed", "debug", "The relay removed published rows.", {"segments": "outbox segments truncated"}
)
RELAY_ADOPTED: Final = _event(
    "relay.outbox_adopted",
    "warning",
    "The saved cursor belongs to another cluster, or is ahead of this one. The relay publishes the whole outbox again.",
    {"changes": "changes in the outbox"},
    action="None if you restored the database on purpose: see docs/failover.md.",
    timeline=lambda line: f"The outbox is published again: {amount(line['changes'], 'change')}.",
)
RELAY_SHORTENED: Final = _event(
    "relay.changes_shortened",
    "warning",
    "Changes exceed Kafka's maximum message size. Every document that reads their tables is refreshed.",
    {
        "changes": "changes that were too large",
        "bytes_largest": "size of the largest",
        "relations": "the tables",
    },
    action="If this happens often, raise the topic's `max.message.bytes`.",
)

# The workers

WORKER_ASSIGNED: Final = _event(
    "worker.partitions_assigned",
    "info",
    "Kafka assigned partitions to a worker.",
    {"partitions": "the partitions", "worker": "the worker's name"},
)
WORKER_REVOKED: Final = _event(
    "worker.partitions_revoked",
    "info",
    "Kafka moved partitions from this worker to another.",
    {"partitions": "the partitions", "worker": "the worker's name"},
)
WORKER_INDEXED: Final = _event(
    "worker.batch_indexed",
    "info",
    "A worker finished a batch of changes and committed its offsets. Logged if the batch was slow.",
    {
        "worker": "the worker's name",
        "batch": "batch number within this worker",
        "changes": "changes in the batch",
        **_COUNTS,
        "partitions": "the partitions",
        "offsets": "by partition, the first and last offset",
        "ids": "the lowest and highest outbox id; null if no change was readable",
        "seconds": "from receiving the batch to finishing it",
        "compose_seconds": "time that Postgres took to read documents",
        "index_seconds": "time that Elasticsearch took, summed over concurrent requests",
        "lag_seconds": "age of the oldest change; null if no change was readable",
    },
)
DOCUMENT_WRITTEN: Final = _event(
    "document.written",
    "debug",
    "A document was sent to Elasticsearch. It was written or deleted unless the index holds the same or a newer "
    "version.",
    {
        "component": "the component that sent it",
        "index": "the index",
        "id": "the document's id",
        "version": "the version sent",
        "is_delete": "whether the SELECT does not return the document",
    },
    may_have={"batch": "the batch number, as in `worker.batch_indexed`", "job": "the job's id"},
)
DOCUMENT_DEAD_LETTERED: Final = _event(
    "document.dead_lettered",
    "error",
    "Documents could not be written and became dead letters; other documents continue. The first of a kind is logged "
    "at once, later ones as a count every few seconds.",
    {
        "index": "the index",
        "kind": "the name of the error",
        "documents": "dead letters since the last line",
        "sample_id": "the id of one of them",
        "field": "the field at fault; null if unknown",
    },
    action="Run `syncer dead-letters list` for the errors. If you fix the data, the dead letter clears by itself.",
)
CHANGES_UNRESOLVED: Final = _event(
    "worker.changes_unresolved",
    "error",
    "An affects query failed on the data of some changes, so the affected documents are unknown. Every instance of "
    "the document is refreshed.",
    {
        "worker": "the worker's name",
        "document": "the document",
        "index": "the index",
        "kind": "the name of the error",
        "batches": "batches affected since the last line",
    },
    action="Fix the affects query, then run `syncer apply`.",
)
DOCUMENT_SUSPENDED: Final = _event(
    "document.suspended",
    "error",
    "A document is suspended: it stays stale until the cause is over. Other documents continue.",
    {"document": "the document", "reason": "what happened", "hint": "what to do"},
    action="Follow `hint`. It says whether the document then resumes by itself, or needs `syncer apply`.",
    timeline=lambda line: f"{line['document']} was suspended: {line['reason']}",
)
DOCUMENT_RESUMED: Final = _event(
    "document.resumed",
    "info",
    "What a document was suspended for is over. Its jobs continue, and a refresh writes every document.",
    {"index": "the index", "outage_seconds": "for how long it has been stale"},
    timeline=lambda line: f"{line['index']} is resumed, after {elapsed(line['outage_seconds'])}.",
)
FILES_NOTED: Final = _event(
    "watch.files_noted",
    "info",
    "A table was rewritten or its partitions changed. Documents that read it are refreshed.",
    {"relations": "the tables"},
)

# Jobs

JOB_CREATED: Final = _event(
    "job.created",
    "info",
    "A job was created to write many documents: a fan-out, a truncated or rewritten table, or an index that rejects "
    "writes. A job that has not started takes further causes and is then logged again with all of them.",
    _JOB,
    may_have={"worker": "the worker that created it"},
)
JOB_FINISHED: Final = _event(
    "job.finished",
    "info",
    "Every chunk of a job has been written.",
    {
        "job_worker": "the job worker that wrote the last chunk",
        **_JOB,
        **_COUNTS,
        "seconds": "time since the job was created",
    },
    timeline=lambda line: (
        f"Job {line['job']} ({line['kind']}) wrote every document of {line['document']}: "
        f"{amount(line['documents'], 'document')} in {elapsed(line['seconds'])}."
        if line["kind"] in WRITE_EVERYTHING
        else None
    ),
)

# Commands

APPLY_FINISHED: Final = _event(
    "apply.finished",
    "info",
    "`syncer apply` activated definitions. Commands log information only at `log.level: debug`.",
    {
        "documents": "by document, what changed, as `syncer plan` names it",
        "resumed": "those of them that were suspended",
        "removed": "the documents that were removed",
    },
    timeline=lambda line: (
        " ".join(
            f"{what} {', '.join(names)}."
            for what, names in (
                ("Applied", [f"{name} ({what})" for name, what in line["documents"].items() if what != "suspended"]),
                ("Resumed", line["resumed"]),
                ("Removed", line["removed"]),
            )
            if names
        )
        or "Applied; no definition changed."
    ),
)
VERIFY_FINISHED: Final = _event(
    "verify.finished",
    "info",
    "`syncer verify` compared every document of an index with its SELECT. Logged like `apply.finished`.",
    {
        "index": "the index",
        "documents": "documents compared",
        "drifted": "documents left different from their SELECT",
        "repaired": "documents that differed and were written again",
    },
    timeline=lambda line: (
        f"Verified {line['index']}: {amount(line['documents'], 'document')}, {line['drifted']:,} drifted, "
        f"{line['repaired']:,} repaired."
    ),
)

# The timeline

TIMELINE_FAILED: Final = _event(
    "timeline.write_failed",
    "warning",
    "The timeline could not be written to `syncer.event`. It is kept in memory and tried again; nothing else is "
    "affected. Logged once until it succeeds.",
    {"error": "the error"},
    action="Run `syncer doctor`: it names a missing privilege.",
)

JOB_ORPHANS_LEFT: Final = _event(
    "job.orphans_left",
    "warning",
    "A cleanup left documents in the index that another client wrote: their ids contain a zero byte, which Postgres "
    "cannot store.",
    {
        "job_worker": "the job worker that cleaned up",
        "index": "the index",
        "documents": "how many documents were left",
    },
    action="Run `syncer verify --repair` to remove them.",
)

# Servers

FAILOVER_DETECTED: Final = _event(
    "failover.detected",
    "warning",
    "The database's cluster identity changed: a failover or a restore. Documents may show changes that the database "
    "lost, so every document is refreshed.",
    {"epoch": "the new epoch of versions", "jobs": "the ids of the refresh jobs"},
    action="None if this was planned: see docs/failover.md. Otherwise find out what happened to the database.",
    timeline=lambda line: f"The database failed over or was restored: epoch {line['epoch']}.",
)
TOPIC_TROUBLED: Final = _event(
    "topic.troubled",
    "warning",
    "The Kafka client reported a connection problem. Each kind is logged at once, then every ten minutes.",
    {"detail": "librdkafka's message", "repeated": "messages of this kind since the last line"},
    action="If it persists, check the broker that `detail` names.",
)
TOPIC_LOST: Final = _event(
    "topic.records_lost",
    "error",
    "Kafka lost records before they were handled, a record cannot be read, or the topic was replaced. Every document "
    "is written again.",
    {"cause": "what happened", "jobs": "the ids of the jobs that write them", "documents": "the documents"},
    action="Check whether `retention.ms` is too short or the topic was deleted. If a record cannot be read, check "
    "whether another daemon is newer than this one. Documents need no repair by hand.",
    may_have={
        "partitions": "for each partition: what happened, the expected offset, and the offset to continue at",
        "topic": "the id of the current topic",
        "before": "the id of the previous topic",
    },
    timeline=lambda line: f"Records were lost: {line['cause']}. Written again: {', '.join(line['documents'])}",
)
TOPIC_MADE: Final = _event(
    "topic.made_again",
    "warning",
    "The topic was missing and has been created again. Its records are lost; `topic.records_lost` follows.",
    {"topic": "the topic's name"},
    action="Find out what deleted the topic.",
    timeline=lambda line: f"The topic {line['topic']} was missing and was created again.",
)

# The status page

WEB_LISTENING: Final = _event(
    "web.listening",
    "info",
    "The daemon serves the status page, metrics and health checks.",
    {"address": "the address", "has_token": "whether a token is set; actions require it"},
)
WEB_ABSENT: Final = _event(
    "web.absent",
    "warning",
    "All default ports are in use, perhaps by other daemons. This daemon serves no status page, metrics or health "
    "checks.",
    {"host": "the host", "ports": "the ports tried"},
    action="Set `web.port`: 0 for any free port, none for no page.",
)
WEB_ACTED: Final = _event(
    "web.acted",
    "info",
    "A client with the token paused, resumed or cancelled a job, or retried or discarded dead letters.",
    {"action": "the action", "address": "the client's address"},
    may_have={
        "job": "the job's id",
        "jobs": "the ids of the retry jobs",
        "document": "the document of the dead letters",
        "letters": "number of dead letters",
    },
)
WEB_REFUSED: Final = _event(
    "web.refused",
    "warning",
    "The status page refused requests with a wrong token, for another host, or from another site. The first is logged "
    "at once, later ones as a count.",
    {"reason": "the answer sent", "requests": "requests since the last line", "address": "the last client's address"},
    action="None if it was you: the answer says what is wrong. Otherwise find out where the requests come from.",
)
WEB_FAILED: Final = _event(
    "web.request_failed",
    "error",
    "A request to the status page hit an unexpected error. Nothing else is affected.",
    {"path": "the request's path", "exception": "the traceback"},
    action="Please report it.",
)
