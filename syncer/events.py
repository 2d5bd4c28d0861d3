"""Events: everything that the log says, as a catalogue: its name, level and fields, what it means, and what to do.

An event is ``thing.past_tense``; its fields carry their unit last. No event carries a row's values or a secret: ids of
documents and names of columns are no values. docs/events.md is written from here, and every daemon that a test starts
is held to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Level = Literal["debug", "info", "warning", "error"]

LEVELS: Final[Mapping[Level, int]] = {"debug": 10, "info": 20, "warning": 30, "error": 40}
"""As numbers, the graver the greater."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One kind of line.

    Args:
        name: Its name.
        level: How grave it is.
        meaning: What has happened.
        action: What to do about it; empty if nothing is to be done.
        fields: Its fields, each with what it means.
        optional: Those of them that not every line has.
    """

    name: str
    level: Level
    meaning: str
    action: str
    fields: Mapping[str, str]
    optional: frozenset[str]


ON_EVERY_LINE: Final = {
    "event": "which event it is",
    "level": "how grave: debug, info, warning, error",
    "at": "when, in UTC",
}
CATALOGUE: Final[dict[str, Event]] = {}
"""Every event, by its name."""

_WHO = {
    "worker": "which worker",
    "lane": "which refresher",
}
_JOB = {
    "job": "the job's number",
    "kind": "why it is done",
    "document": "of which document",
    "cause": "of a fan-out: how many changed rows, by table; else null",
}
_COUNTS = {
    "documents": "how many documents were to be written",
    "indexed": "how many of them were written",
    "deleted": "deleted, or known to be absent",
    "superseded": "not written, since something at least as new was there",
    "parked": "left as dead letters",
}


def _event(
    name: str,
    level: Level,
    meaning: str,
    fields: Mapping[str, str],
    *,
    action: str = "",
    may_have: Mapping[str, str] | None = None,
) -> str:
    """Put an event into the catalogue; its name."""
    optional = may_have or {}
    CATALOGUE[name] = Event(
        name=name,
        level=level,
        meaning=meaning,
        action=action,
        fields={**fields, **optional},
        optional=frozenset(optional),
    )
    return name


# The daemon

DAEMON_STARTED: Final = _event(
    "daemon.started",
    "info",
    "The stages of a daemon begin.",
    {"stages": "their names", "process": "its process id"},
)
WORKERS_LEFT_OUT: Final = _event(
    "daemon.workers_left_out",
    "warning",
    "`worker.threads` is 0: this daemon writes jobs, and handles no changes.",
    {},
    action="If no other daemon has workers, set it to 1 or more. A daemon that has no part in either: "
    "`syncer run --only relay`.",
)
DAEMON_STOPPED: Final = _event(
    "daemon.stopped",
    "info",
    "All of them have ended.",
    {"failed": "whether a stage has failed", "hanging": "the stages that did not end in time"},
    action="If `failed`, `stage.failed` says why. What hangs is ended with the process; nothing is lost.",
)
STAGE_RETRIED: Final = _event(
    "stage.retried",
    "warning",
    "A server did not answer as it should; the same work is tried again until it does. Told once, then each minute.",
    {"stage": "whose work", "error": "what was said"},
    action="See to the server that `error` names. Nothing is skipped meanwhile.",
    may_have={
        "attempts": "how often it was tried",
        "outage_seconds": "for how long",
        "hint": "what to do",
        "job": "the number of the job that is in trouble; the others go on",
        **_WHO,
    },
)
STAGE_RECOVERED: Final = _event(
    "stage.recovered",
    "info",
    "That trouble is over.",
    {"stage": "whose it was", "attempts": "how often it was tried", "outage_seconds": "how long it has lasted"},
)
STAGE_GAVE_UP: Final = _event(
    "stage.gave_up",
    "warning",
    "A server hangs while the daemon is told to stop. What was in hand is not acknowledged, and will be done again.",
    {"stage": "whose it was"},
    action="See why the server hangs. Nothing is lost.",
    may_have=_WHO,
)
STAGE_FAILED: Final = _event(
    "stage.failed",
    "error",
    "A stage met what no waiting mends, and the daemon ends; or, with `job`, a job met it, and has failed.",
    {"stage": "which stage", "error": "what was said"},
    action="Do what `error` says and start the daemon again: nothing is lost. With a traceback it is a defect of "
    "syncer's: please report it.",
    may_have={"exception": "the traceback, of an error that nobody foresaw", "job": "which job", **_WHO},
)
SURVEY_FAILED: Final = _event(
    "survey.failed",
    "error",
    "The survey met an error that nobody foresaw: metrics and the status page lack what that server says. "
    "Documents are not concerned.",
    {"server": "which server was asked", "error": "what was said"},
    action="Please report it, with the traceback.",
    may_have={"exception": "the traceback"},
)
LAG_EXCEEDED: Final = _event(
    "lag.exceeded",
    "warning",
    "Documents are further behind than `metrics.lag_seconds_max`. Told once, until it is over.",
    {"lag_seconds": "how far behind", "lag_seconds_max": "how far they may be"},
    action="`syncer status` says where changes wait: the runbook has what to look at.",
)
LAG_RECOVERED: Final = _event(
    "lag.recovered",
    "info",
    "They no longer are.",
    {"lag_seconds": "how far behind", "seconds": "how long it has lasted"},
)

# The relay

RELAY_LED: Final = _event(
    "relay.led", "info", "This relay has become the leader.", {"cursor": "the snapshot from which it goes on"}
)
RELAY_STOOD_BY: Final = _event("relay.stood_by", "info", "Another relay leads; this one stands by.", {})
RELAY_DEPOSED: Final = _event(
    "relay.leader_deposed",
    "warning",
    "The leader has done nothing for long, as if its process were stopped: its connection was ended, another one "
    "leads.",
    {"idle_seconds": "for how long it had asked nothing, at least"},
    action="See what has become of the process that led.",
)
RELAY_PUBLISHED: Final = _event(
    "relay.batch_published",
    "info",
    "Changes are in the topic, acknowledged, and the cursor is saved. One line a batch.",
    {
        "changes": "how many changes",
        "seconds": "from the query until the cursor was saved",
        "cursor": "the snapshot up to which everything is published",
        "ids": "the least and the greatest id of them in the outbox",
        "offsets": "by partition, the first and the last offset of their records, unless one was sent twice",
    },
)
RELAY_TRIMMED: Final = _event(
    "relay.outbox_trimmed", "debug", "Published rows were given back.", {"segments": "how many segments were emptied"}
)
RELAY_ADOPTED: Final = _event(
    "relay.outbox_adopted",
    "warning",
    "The saved cursor is of another cluster, or ahead of this one: all of the outbox is published again.",
    {"changes": "how many changes are in it"},
    action="Nothing, if the database was restored on purpose: see docs/failover.md.",
)
RELAY_SHORTENED: Final = _event(
    "relay.changes_shortened",
    "warning",
    "Changes are larger than Kafka takes: the documents that read their tables are refreshed, all of them.",
    {
        "changes": "how many changes",
        "bytes_largest": "how large the largest of them is",
        "relations": "the tables",
    },
    action="If it comes often, raise `max.message.bytes` of the topic.",
)

# The workers

WORKER_ASSIGNED: Final = _event(
    "worker.partitions_assigned",
    "info",
    "A worker has been given partitions.",
    {"partitions": "which", "worker": "which worker"},
)
WORKER_REVOKED: Final = _event(
    "worker.partitions_revoked",
    "info",
    "Partitions go to another worker.",
    {"partitions": "which", "worker": "which worker"},
)
WORKER_INDEXED: Final = _event(
    "worker.batch_indexed",
    "info",
    "A batch of changes is done, and its offsets are committed. One line a batch.",
    {
        "worker": "which worker",
        "batch": "the how-manieth of this worker",
        "changes": "how many changes",
        **_COUNTS,
        "partitions": "of which partitions",
        "offsets": "by partition, the first and the last offset",
        "ids": "the least and the greatest id of the changes in the outbox; null if none was readable",
        "seconds": "from its receipt until it was done",
        "compose_seconds": "how much of that Postgres took to read documents",
        "index_seconds": "what Elasticsearch took, by all requests together: they go side by side",
        "lag_seconds": "how old the oldest change is; null if none was readable",
    },
)
DOCUMENT_WRITTEN: Final = _event(
    "document.written",
    "debug",
    "One document was sent to Elasticsearch, and written or deleted unless something at least as new was there.",
    {
        "stage": "who did",
        "index": "into which index",
        "id": "the document's id",
        "version": "with which version",
        "is_delete": "whether its SELECT does not return it",
    },
    may_have={"batch": "of which `worker.batch_indexed`", "job": "of which job"},
)
DOCUMENT_PARKED: Final = _event(
    "document.parked",
    "error",
    "Documents could not be written; their siblings are. The first of a kind is told of at once, further ones as a "
    "number every few seconds.",
    {
        "index": "of which index",
        "kind": "the name of the error",
        "documents": "how many since the last line",
        "sample_id": "the id of one of them",
        "field": "the field that is at fault; null if that was not said",
    },
    action="`syncer dead-letters list` says what was said of each. Who mends the data need do nothing more.",
)
RECORDS_PARKED: Final = _event(
    "worker.records_parked",
    "error",
    "Records of the topic are no changes that this version can read. Told of as parked documents are.",
    {
        "worker": "which worker",
        "records": "how many since the last line",
        "are_kept": "whether they are kept; beyond a bound they are only counted",
        "partition": "where the last of them was",
        "offset": "where the last of them was",
    },
    action="Find out who writes to the topic; then `syncer dead-letters retry --records`, or `discard --records`.",
)
CHANGES_UNPLACED: Final = _event(
    "worker.changes_unplaced",
    "error",
    "An affects query failed on the data of changes, so nobody knows whom they touch: all of the document is "
    "refreshed.",
    {
        "worker": "which worker",
        "document": "of which document",
        "index": "of which index",
        "kind": "the name of the error",
        "batches": "in how many batches since the last line",
    },
    action="Mend the affects query, then `syncer apply`.",
)
DOCUMENT_HALTED: Final = _event(
    "document.halted",
    "error",
    "A document cannot go on until its reason is mended and `syncer apply` has run; the others go on.",
    {"document": "which", "reason": "what happened", "hint": "what to do"},
    action="Do what `hint` says, then `syncer apply`.",
)
DOCUMENT_POSTPONED: Final = _event(
    "document.postponed",
    "error",
    "An index takes no documents, and has not for a minute: a shard has no primary, or a disk is full. What changes is "
    "left to a job until the index is well, and the others go on.",
    {"index": "which", "reason": "what Elasticsearch says", "hint": "what to do"},
    action="Mend the index as `hint` says; syncer notices by itself.",
)
DOCUMENT_RESUMED: Final = _event(
    "document.resumed",
    "info",
    "An index takes documents again: the jobs that have waited for it go on.",
    {"index": "which", "outage_seconds": "for how long it was left"},
)
FILES_NOTED: Final = _event(
    "watch.files_noted",
    "info",
    "A table was written anew, or has other partitions: the documents that read it are refreshed.",
    {"relations": "the tables"},
)

# Jobs

JOB_CREATED: Final = _event(
    "job.created",
    "info",
    "Many documents are to be written again: a change touches many, or a table was truncated, or written anew, or an "
    "index takes none for now. A job "
    "that nobody has begun takes up further causes, and is then told of once more, with all of them.",
    _JOB,
    may_have={"worker": "who found that out"},
)
JOB_FINISHED: Final = _event(
    "job.finished",
    "info",
    "Every page of a job has been written.",
    {
        "lane": "who wrote the last one",
        **_JOB,
        **_COUNTS,
        "left_out": "how many further documents it has left to other jobs",
        "seconds": "since it was made",
    },
)

# What servers do to it

INCARNATION_ENTERED: Final = _event(
    "incarnation.entered",
    "warning",
    "The database is not the one it was: failover, restore. Documents may show what it has lost: they are refreshed.",
    {"epoch": "the epoch of versions from now on", "jobs": "the numbers of the jobs that refresh them"},
    action="Nothing, if that was on purpose: see docs/failover.md. Else find out what has become of the database.",
)
TOPIC_TROUBLED: Final = _event(
    "topic.troubled",
    "warning",
    "What librdkafka says of its connections: each kind at once, and while it goes on less and less often.",
    {"detail": "what it said", "repeated": "how often it has said that kind of thing since the last line"},
    action="See to the broker that `detail` names, if it lasts.",
)
TRACES_TROUBLED: Final = _event(
    "traces.troubled",
    "warning",
    "What OpenTelemetry says of who collects traces. Spans are dropped; documents are not concerned.",
    {"detail": "what it said", "repeated": "how often it has said that kind of thing since the last line"},
    action="See whether something listens at `traces.endpoint`.",
)
TOPIC_LOST: Final = _event(
    "topic.records_lost",
    "error",
    "Records are gone from the topic before they were handled, or it is another one: every document is written again.",
    {"cause": "what happened", "jobs": "the jobs that write them", "documents": "which documents"},
    action="See whether `retention.ms` is too short, or who has deleted the topic. Documents mend by themselves.",
    may_have={
        "partitions": "of each partition: what happened, where it was to go on, and what it has",
        "topic": "the id of the topic that is there",
        "before": "the id of the one that was",
    },
)
TOPIC_MADE: Final = _event(
    "topic.made_again",
    "warning",
    "The topic was gone. What was in it is lost, which is told of next.",
    {"topic": "its name"},
    action="Find out who has deleted it.",
)

# The status page

WEB_LISTENING: Final = _event(
    "web.listening",
    "info",
    "The status page, metrics and health are served.",
    {"address": "where", "has_token": "whether a token is set, so that who has it may act"},
)
WEB_ABSENT: Final = _event(
    "web.absent",
    "warning",
    "No status page is served: each port that is tried without being asked for is taken, as by other daemons.",
    {"host": "where", "ports": "which were tried"},
    action="Set `web.port`: 0 for any that is free, none for no page.",
)
WEB_ACTED: Final = _event(
    "web.acted",
    "info",
    "Somebody with the token has paused, resumed or cancelled a job, or has retried or discarded dead letters.",
    {"action": "what was done", "address": "where the request came from"},
    may_have={
        "job": "the job's number",
        "jobs": "the jobs that try again",
        "document": "whose dead letters",
        "letters": "how many",
    },
)
WEB_REFUSED: Final = _event(
    "web.refused",
    "warning",
    "Requests came with another token, for another host, or from the page of another site; the first is told of at "
    "once, further ones as a number.",
    {"reason": "what the answer said", "requests": "how many", "address": "where the last one came from"},
    action="Nothing, if it was you: the answer says what is wrong. Else find out who asks.",
)
WEB_FAILED: Final = _event(
    "web.request_failed",
    "error",
    "A request met an error that nobody foresaw. Nothing else is affected.",
    {"path": "of the request", "exception": "the traceback"},
    action="Please report it.",
)
