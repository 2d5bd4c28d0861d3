"""Rules of syncer's that protect more than one test, each with the mutation that takes it out: see `tests.proof`."""

from __future__ import annotations

from tests.model import cleaning_up, cluster_identities, relaying, routing, suspending, wakeup, writing
from tests.mutations import DOES_NOTHING, SAYS_NO, SAYS_YES, Is, Lacks, Replaces, Returns
from tests.mutations.base import suspends_on_bad_rows, waits_for_tables
from tests.mutations.capture import at_its_own_level, from_the_oldest_on, nothing_in_progress, only_the_new_image
from tests.mutations.documents import as_if_never_suspended, only_current
from tests.mutations.jobs import gives_up_silently, resumes_without_a_refresh
from tests.mutations.relay import only_says_that_it_lives, saves_before_acknowledgement, waits_without_a_look
from tests.mutations.verify import nothing_too_many, takes_all_as_due
from tests.mutations.version import one_more_than_remembered
from tests.mutations.writing import (
    assigns_the_version_last,
    commits_first,
    forgets_what_is_refused,
    is_tried_again_at_once,
    reads_at_once,
    with_the_time,
)
from tests.proof import Rule

# Capture

OLD_IMAGES = Rule(routing.BOTH_IMAGES, patch="syncer.base.model:Change.parse", instead=only_the_new_image)
KEY_CHANGES = Rule(
    "a key that changes is a delete and an insert",
    patch="syncer.capture.triggers:_TWO_SIDED",
    instead=Replaces("FULL JOIN", "RIGHT JOIN"),
)
TRUNCATED = Rule(
    "a change that names no row touches every document",
    patch="syncer.documents.affected:_names_no_row",
    instead=SAYS_NO,
)
FILES_NOTED = Rule(
    "a table that lies in other files than before counts as truncated",
    patch="syncer.capture.table_files:_note",
    instead=SAYS_NO,
)

GONE_IS_NULL = Rule(
    "a trigger finds a column that is gone one level up, and does not fail",
    patch="syncer.capture.triggers:_found",
    instead=at_its_own_level,
)
ROW_TRIGGERS = Rule(
    "a partitioned table has triggers for each row, in every partition",
    patch="syncer.capture.install:_is_by_row",
    instead=SAYS_NO,
)
WRITERS_WAITED_FOR = Rule(
    "a definition that reads more is activated after earlier writers have ended",
    patch="syncer.capture.install:_wait_for_writers",
    instead=DOES_NOTHING,
)

# Relay

ONE_LEADER = Rule(
    "one relay leads, by a lock of the connection that saves the cursor",
    patch="syncer.relay.loop:_LEAD",
    instead=Is("SELECT true"),
)
DEPOSED = Rule(
    "a leader that sends nothing loses its session",
    patch="syncer.capture.leader:_HOLD",
    instead=Is("SELECT $1::text"),
)
STOP_HEEDED = Rule(
    "who publishes for long heeds a stop", patch="syncer.relay.loop:Relay._heed_stop", instead=only_says_that_it_lives
)
CURSOR_IS_A_SNAPSHOT = Rule(relaying.BY_SNAPSHOT, patch="syncer.capture.outbox:_bounds", instead=nothing_in_progress)
SAVED_LAST = Rule(
    relaying.ACKNOWLEDGED_FIRST, patch="syncer.relay.loop:Relay._produce_new", instead=saves_before_acknowledgement
)

TRUNCATED_WHOLE = Rule(
    "rows go away by TRUNCATE, which no snapshot keeps from giving room back",
    patch="syncer.capture.outbox:_TRUNCATE",
    instead=Replaces("TRUNCATE", "DELETE FROM"),
)
SEEN_BY_SNAPSHOT = Rule(
    "what a cursor has seen is told by its snapshot, not by the oldest transaction that is open",
    patch="syncer.capture.outbox:_bounds",
    instead=from_the_oldest_on,
)

NOTIFIED = Rule(
    "writers notify while the relay sleeps",
    patch="syncer.capture.wakeup:NOTIFY_IN_TRIGGER",
    instead=Replaces("', '');", "_of_others', '');"),
)
KEPT_TO_THE_END = Rule(
    wakeup.KEPT_TO_THE_END,
    patch="syncer.capture.wakeup:NOTIFY_IN_TRIGGER",
    instead=Replaces(
        "NOT pg_catalog.pg_try_advisory_xact_lock_shared(",
        "EXISTS (SELECT FROM pg_catalog.pg_locks WHERE mode = 'ExclusiveLock' AND objid::bigint = 4294967295 & ",
    ),
)
LOOKED_ONCE_ASLEEP = Rule(wakeup.LOOK_ONCE_ASLEEP, patch="syncer.relay.loop:Relay._rest", instead=waits_without_a_look)

# Worker

COMMITTED_LAST = Rule(
    "an offset is committed only for what is done",
    patch="syncer.worker.loop:Worker._take",
    instead=commits_first,
)
LATE_AGAIN = Rule(writing.LATE_AGAIN, patch="syncer.indexing.writer:Writer._gone", instead=Returns([]))
REFUSED_AGAIN = Rule(
    "documents that Elasticsearch refuses for now are written again",
    patch="syncer.indexing.writer:Writer.settle",
    instead=forgets_what_is_refused,
)
BUSY_IS_RETRIED = Rule(
    "a request that Elasticsearch has no room for is sent again",
    patch="syncer.base.error_policy:_RETRIED_STATUSES",
    instead=Lacks(frozenset({429})),
)

DATA_IS_DEAD_LETTERED = Rule(
    "a row that makes the SELECT raise is found out, and dead_lettered",
    patch="syncer.base.error_policy:_POSTGRES",
    instead=suspends_on_bad_rows,
)
REFUSED_IS_DEAD_LETTERED = Rule(
    "a document that Elasticsearch refuses is dead-lettered by itself",
    patch="syncer.base.error_policy:_DEAD_LETTERED_STATUSES",
    instead=Is(frozenset()),
)

# The version rule

ASSIGNED_WITH_THE_SNAPSHOT = Rule(
    "a version is assigned with the snapshot of what is written with it, and not later",
    patch="syncer.indexing.compose:Composer._read",
    instead=assigns_the_version_last,
)
ASSIGNED_IN_TURN = Rule(
    writing.IN_TURN,
    patch="syncer.indexing.version:_TAKE_TURN",
    instead=Is("DO 'BEGIN PERFORM pg_sleep(random() / 50); END'"),
)
WRITTEN_WITH_THE_ASSIGN = Rule(
    "documents are written with the version of their assign, not with one of their writing",
    patch="syncer.elasticsearch.bulk:_lines",
    instead=with_the_time,
)
ON_ALL_SHARDS = Rule(
    "a document with a routing is deleted from all other shards with the version that it is written with",
    patch="syncer.elasticsearch.bulk:Index._elsewhere",
    instead=Returns(()),
)
REPLAYED = Rule(
    "a replica is read only once it has replayed the assign",
    patch="syncer.indexing.replica:Replica._wait_for",
    instead=reads_at_once,
)
SAME_CLUSTER = Rule(
    "only a server of the same cluster and database is read",
    patch="syncer.indexing.replica:Replica.require_cluster_of",
    instead=DOES_NOTHING,
)

EPOCH_RECORDED = Rule(
    cluster_identities.RECORDED, patch="syncer.indexing.failover:_next_epoch", instead=one_more_than_remembered
)

# Jobs

RECLAIMED = Rule(
    "chunks of a job worker that is dead or stalled are given to another",
    patch="syncer.jobs.chunks:reclaim",
    instead=Returns(0),
)
COUNTED_ONCE = Rule(
    "a chunk is counted and removed in one statement",
    patch="syncer.jobs.chunks:_FINISH",
    instead=Replaces(
        "DELETE FROM syncer.job_chunk AS p USING job WHERE p.job = job.id AND p.number = ANY ($2)\n"
        "    RETURNING p.job, p.number, cardinality(p.ids) AS documents",
        "SELECT p.job, p.number, cardinality(p.ids) AS documents\n"
        "    FROM syncer.job_chunk AS p JOIN job ON p.job = job.id AND p.number = ANY ($2)",
    ),
)
RENUMBERED = Rule(
    "a chunk that is given back gets another number, so that its previous job worker cannot finish it",
    patch="syncer.jobs.chunks:_GIVE_BACK",
    instead=Replaces("SET number = job.chunks_end, taken_by = NULL", "SET taken_by = NULL"),
)
CLEANED_UP = Rule(cleaning_up.CLEANED_UP, patch="syncer.jobs.queue:_has_yet_to_cleanup", instead=SAYS_NO)
LATE_READ_AGAIN = Rule(
    "a writer reads again if all documents were listed since it read",
    patch="syncer.indexing.writer:Writer._is_listed_since",
    instead=SAYS_NO,
)
PENDING_INCOMPLETE = Rule(
    "a document counts as not loaded once a job that is pending is given up",
    patch="syncer.jobs.queue:_give_up",
    instead=gives_up_silently,
)

DEFERRED = Rule(
    "a job that is in trouble is left for a while",
    patch="syncer.jobs.steps:JobSteps._defer",
    instead=is_tried_again_at_once,
)

# Definitions and indices

PENDING_WAITED_FOR = Rule(
    "an index serves once the jobs that would leave it stale are done",
    patch="syncer.cli.follow_jobs:LoadProgress._wait_for_pending",
    instead=DOES_NOTHING,
)

FOLLOWED = Rule(
    "an index that is built, or on standby, is followed like the one that serves",
    patch="syncer.documents.affected:AffectedReader.documents",
    instead=only_current,
)
NOT_NEEDED = Rule(
    "an index that no search needs suspends when it takes nothing",
    patch="syncer.indexing.bulk_errors:is_needed",
    instead=SAYS_YES,
)
SHAPE_COMPARED = Rule(
    "a document is read only from what its definition was applied to",
    patch="syncer.documents.snapshot:require_shape",
    instead=DOES_NOTHING,
)
REFRESHED = Rule(suspending.REFRESHED, patch="syncer.jobs.resume:resume", instead=resumes_without_a_refresh)
SUSPEND_ENDS_ANEW = Rule(
    "a suspension ends with a revision of its own, under which every document is written once",
    patch="syncer.apply.plan:_is_changed",
    instead=as_if_never_suspended,
)
SHORT_WAITS = Rule(
    "a component gives up a table that is being altered, and looks whether it is to stop",
    patch="syncer.base.postgres:_begun",
    instead=waits_for_tables,
)

# Verify

LOOKED_AT_AGAIN = Rule(
    "what differs is checked again until it has stayed so for a while, and what came before is handled",
    patch="syncer.verify.recheck:Recheck._settle_due",
    instead=takes_all_as_due,
)
EXTRAS_COUNTED = Rule(
    "what only Elasticsearch has is found by counting",
    patch="syncer.verify.compare:_Pass._extras",
    instead=nothing_too_many,
)
