"""Failover: notices a restore or failover of the database, starts a new epoch, and has every document written again.

Guarantees: an epoch that is entered is greater than any that Postgres or Elasticsearch has seen. The commit that enters
it creates a refresh of every active document.

After a restore, or a failover to a replica that lagged, the database has lost commits. Documents still show them, jobs
and suspensions recorded in them are gone, and their changes are no longer in flight. The refresh, as after a TRUNCATE,
writes what exists and removes what only Elasticsearch has. You need not do anything.

A *cluster identity* is the system identifier, the timeline, and the catalog's ids of the database and of the sequence.
Every new writer connection compares the one that Postgres remembers with the server that it runs on. They differ after
a promotion, a point-in-time recovery, or a dump and restore. Two set-backs leave no trace there: a copy of the server's
files put back in place, and a sequence that was set by hand. They are detected by their consequences. A number that is
handed out again is lower than a noted one (``syncer.version_time``), or than the version of some document. The latter
is a conflict with a version never assigned in this cluster identity. `doubt` then makes the next writer enter another.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import structlog

from syncer.base.model import EPOCH_SHIFT, NUMBER_SHIFT, is_raised
from syncer.base.postgres import Connection
from syncer.documents import registry
from syncer.elasticsearch.bulk import Index
from syncer.indexing.version import CLUSTER_IDENTITY, NOTED, row, skip_unflushed, split
from syncer.jobs import queue
from syncer.jobs.model import Job, JobKind

_REMEMBERED_ONLY = "SELECT installation, system_identifier, timeline, sequence, epoch FROM syncer.cluster_identity"
_REMEMBERED = f"{_REMEMBERED_ONLY} FOR UPDATE"
_MAY_HAVE_ASSIGNED = f"""
SELECT $1::bigint < i.epoch << {EPOCH_SHIFT} | ((s.last_value + 1) << {NUMBER_SHIFT})
FROM syncer.cluster_identity AS i, syncer.version AS s
"""
# The last note of an earlier cluster identity: notes are taken every few seconds while versions are assigned.
_IS_YOUNG = f"""
SELECT coalesce((SELECT t.assigned_before > now() - $1::interval FROM syncer.version_time AS t
                 WHERE t.version < i.epoch << {EPOCH_SHIFT} ORDER BY t.version DESC LIMIT 1), false)
FROM syncer.cluster_identity AS i
"""
_YOUNG = timedelta(hours=1)
_NO_TIMELINE = 0
"""No server has it."""
# A writer that still assigns meanwhile is no worse off than before.
_LEAVE = f"""
UPDATE syncer.cluster_identity SET timeline = {_NO_TIMELINE}
WHERE timeline <> {_NO_TIMELINE}
  AND $1::bigint >= epoch << {EPOCH_SHIFT} | ((SELECT last_value + 1 FROM syncer.version) << {NUMBER_SHIFT})
"""
_REMEMBER = "UPDATE syncer.cluster_identity SET system_identifier = $1, timeline = $2, sequence = $3, epoch = $4"
_ASSIGNED = f"""
SELECT i.installation, i.epoch, CASE WHEN s.is_called THEN s.last_value ELSE 0 END,
       (i.system_identifier, i.timeline, i.sequence) = ({CLUSTER_IDENTITY})
FROM syncer.cluster_identity AS i, syncer.version AS s
"""
_FAILED_OVER = "the database failed over or was restored"
_DOUBTED = (
    "Elasticsearch has a version that this database did not assign: another client wrote it, or an old copy of the "
    "database was put in place"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterIdentity:
    """What was found of the identity of the database cluster.

    Args:
        epoch: The active epoch.
        has_changed: Whether this call found that the identity has changed, or that documents may have been written
            before there was one.
        is_doubted: Whether only a version in Elasticsearch speaks for another identity: see `doubt`.
    """

    epoch: int
    has_changed: bool
    is_doubted: bool = False


def enter(connection: Connection, record: Index) -> ClusterIdentity:
    """Enter the current cluster identity on a new connection, before the first version is assigned.

    Guarantees that every active document has a refresh that has not begun, if the identity is a new one.

    The record is read without holding a lock, since its server may hang. It may be out of date when it is compared. An
    epoch recorded since then is either in Postgres too, or no version was assigned in it. A lock is held only to enter
    another cluster identity, while the epoch is written. It is written to the record before Postgres, so that a crash
    in between costs a number but never the order.

    Args:
        connection: A connection that is not in a transaction.
        record: Elasticsearch, which keeps epochs and versions too: a restore of Postgres cannot take them back.
    """
    installation = row(connection, _REMEMBERED_ONLY)[0]
    recorded, assigned = record.read_epoch(installation), record.read_assigned(installation)
    found, is_same = _compared(connection, _REMEMBERED_ONLY, recorded, assigned)
    if not is_same:
        found = _enter_another(connection, record, installation, recorded, assigned)
    skip_unflushed(connection)
    return found


def _enter_another(
    connection: Connection, record: Index, installation: UUID, recorded: int, assigned: int
) -> ClusterIdentity:
    """Enter another cluster identity, unless another process has done so meanwhile."""
    made: list[Job] = []
    with connection.transaction():
        found, is_same = _compared(connection, _REMEMBERED, recorded, assigned)
        if is_same:
            return found
        # Rules: a-new-identity-has-a-greater-epoch, the-epoch-is-kept-in-elasticsearch.
        epoch, has_changed = max(found.epoch, recorded) + 1, found.epoch > 0 or recorded > 0
        occasion = _DOUBTED if found.is_doubted else _FAILED_OVER
        # Rule: the-record-comes-first.
        record.write_epoch(installation, epoch)
        connection.execute(_REMEMBER, (*row(connection, CLUSTER_IDENTITY), epoch))
        if has_changed:
            # Rule: a-new-identity-refreshes-all.
            jobs = (
                queue.create(connection, document, JobKind.REFRESH, occasion=occasion)
                for document in registry.documents(connection)
            )
            made = [job for job in jobs if job is not None]
    if has_changed:
        log = structlog.get_logger()
        log.warning(
            "failover.detected",
            epoch=epoch,
            jobs=[job.id for job in made],
            timeline=f"{occasion[0].upper()}{occasion[1:]}: epoch {epoch}.",
        )
        for job in made:
            log.info("job.created", job=job.id, kind=job.kind, document=job.document, cause=job.occasion)
    return ClusterIdentity(epoch=epoch, has_changed=has_changed)


def _compared(connection: Connection, query: str, recorded: int, assigned: int) -> tuple[ClusterIdentity, bool]:
    """Return what Postgres remembers, and whether that is its current cluster identity."""
    _, system_identifier, timeline, sequence, epoch = row(connection, query)
    current = row(connection, CLUSTER_IDENTITY)
    known = max(assigned, row(connection, NOTED)[0])
    is_same = (system_identifier, timeline, sequence) == current and recorded <= epoch
    is_same = is_same and may_have_assigned(connection, known)
    is_doubted = timeline == _NO_TIMELINE
    return ClusterIdentity(epoch=epoch, has_changed=False, is_doubted=is_doubted), is_same


def may_have_assigned(connection: Connection, version: int) -> bool:
    """Return whether this database may have assigned a version that was found in Elasticsearch before this call.

    If not, versions that it assigns now may be lower than earlier ones.
    """
    is_less: bool = row(connection, _MAY_HAVE_ASSIGNED, (version,))[0]
    return is_less


def doubt(connection: Connection, record: Index, version: int) -> bool:
    """Make the next writer enter a greater epoch, if a version in Elasticsearch was not assigned in this one.

    Any user who may write to an index can make such a version up, and another epoch rewrites every document. So in
    the first hour of an epoch a version is believed only if one as great was noted as assigned.

    Returns:
        Whether it will: the versions assigned on this connection are then not reliable. It will not if no epoch as
        great was ever entered: the version is then foreign.
    """
    if may_have_assigned(connection, version):
        return False
    installation, _, _, _, epoch = row(connection, _REMEMBERED_ONLY)
    if split(version)[0] > max(epoch, record.read_epoch(installation)):
        return False
    known = max(record.read_assigned(installation), row(connection, NOTED)[0])
    if may_have_assigned(connection, known) and row(connection, _IS_YOUNG, (_YOUNG,))[0]:
        return False
    connection.execute(_LEAVE, (version,))
    return True


def is_forgotten(connection: Connection, record: Index) -> bool:
    """Return whether the database has an epoch that the record outside does not know."""
    installation, _, _, _, epoch = row(connection, _REMEMBERED_ONLY)
    return epoch > 0 and not record.read_epoch(installation)


def is_entered(connection: Connection) -> bool:
    """Return whether the active epoch belongs to the database as it runs; if not, the next writer enters another."""
    return bool(row(connection, _ASSIGNED)[3])


def is_foreign(connection: Connection, record: Index, version: int) -> bool:
    """Return whether syncer has not assigned a version that was found in Elasticsearch before this call.

    A foreign version that equals one of syncer's cannot be told from it.
    """
    epoch, number = split(version)
    installation, epoch_now, last_number, is_same = row(connection, _ASSIGNED)
    if is_raised(version) or epoch == 0:  # every writer enters an epoch before it assigns
        return True
    if epoch < epoch_now or (epoch == epoch_now and number <= last_number):
        return False
    # Before the first writer after a restore, versions of the cluster identity that was lost are greater than any.
    is_lost = epoch > epoch_now or not is_same
    return not (is_lost and epoch <= record.read_epoch(installation))
