"""Failover: notices a restore or failover of the database, starts a new epoch, and has every document written again.

Guarantees: an epoch that is entered is greater than any that Postgres or Elasticsearch has seen. The commit that enters
it creates a refresh of every active document: documents may show commits that the database has lost.

A *cluster identity* is the system identifier, the timeline, and the catalog's ids of the database and of the sequence.
Every new writer connection compares the one that Postgres remembers with the server that it runs on. They differ after
a promotion, a point-in-time recovery, or a dump and restore. Two set-backs leave no trace there: a copy of the server's
files put back in place, and a sequence that was set by hand. A number that is then handed out again is lower than a
noted one (``syncer.version_time``), or than the version of some document: see `doubt`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

import structlog

from syncer.base.model import EPOCH_SHIFT, NUMBER_SHIFT, is_raised
from syncer.base.postgres import Connection, row
from syncer.elasticsearch.bulk import Index
from syncer.indexing.version import CLUSTER_IDENTITY, NOTED, skip_unflushed, split
from syncer.jobs import queue
from syncer.jobs.model import Job

_NO_TIMELINE = 0  # no server has it
_LOCK = "SELECT FROM syncer.cluster_identity FOR UPDATE"
_READ = f"""
SELECT i.installation, i.epoch, (i.system_identifier, i.timeline, i.sequence) = ({CLUSTER_IDENTITY}),
       i.timeline = {_NO_TIMELINE}, CASE WHEN s.is_called THEN s.last_value ELSE 0 END,
       i.epoch << {EPOCH_SHIFT} | ((s.last_value + 1) << {NUMBER_SHIFT}), ({NOTED})
FROM syncer.cluster_identity AS i, syncer.version AS s
"""
# The last note of an earlier cluster identity: notes are taken every few seconds while versions are assigned.
_IS_YOUNG = f"""
SELECT coalesce((SELECT t.assigned_before > now() - $1::interval FROM syncer.version_time AS t
                 WHERE t.version < i.epoch << {EPOCH_SHIFT} ORDER BY t.version DESC LIMIT 1), false)
FROM syncer.cluster_identity AS i
"""
_YOUNG = timedelta(hours=1)
# A writer that still assigns meanwhile is no worse off than before.
_LEAVE = f"""
UPDATE syncer.cluster_identity SET timeline = {_NO_TIMELINE}
WHERE timeline <> {_NO_TIMELINE}
  AND $1::bigint >= epoch << {EPOCH_SHIFT} | ((SELECT last_value + 1 FROM syncer.version) << {NUMBER_SHIFT})
"""
_REMEMBER = "UPDATE syncer.cluster_identity SET system_identifier = $1, timeline = $2, sequence = $3, epoch = $4"
_FAILED_OVER = "the database failed over or was restored"
_DOUBTED = (
    "Elasticsearch has a version that this database did not assign: another client wrote it, or an old copy of the "
    "database was put in place"
)


class _Remembered(NamedTuple):
    """What Postgres remembers of the identity of the database cluster, beside the database as it runs.

    ``is_doubted`` is as `doubt` has left it. Versions of the epoch are less than ``next_version``.
    """

    installation: UUID
    epoch: int
    is_same: bool
    is_doubted: bool
    last_number: int
    next_version: int
    noted: int


class Entered(NamedTuple):
    """The active epoch, and whether this call has begun it in a database that had another one before."""

    epoch: int
    has_changed: bool


def enter(connection: Connection, record: Index) -> Entered:
    """Enter the current cluster identity on a new connection, before the first version is assigned.

    Guarantees that every active document has a refresh that has not begun, if the identity is a new one. The connection
    is closed if this fails. The record is Elasticsearch's, which a restore of Postgres cannot take back.
    """
    try:
        # Without a lock, since its server may hang. An epoch that is recorded after this is in Postgres too, or no
        # version was assigned in it.
        installation = _read(connection).installation
        recorded, assigned = record.read_epoch(installation), record.read_assigned(installation)
        remembered = _read(connection)  # after the record, so that nothing recorded is newer
        entered = Entered(remembered.epoch, has_changed=False)
        if not _is_current(remembered, recorded, assigned):
            entered = _enter_another(connection, record, recorded, assigned)
        skip_unflushed(connection)
    except BaseException:
        connection.close()
        raise
    return entered


def _read(connection: Connection) -> _Remembered:
    return _Remembered(*row(connection, _READ))


def _is_current(remembered: _Remembered, recorded: int, assigned: int) -> bool:
    """Return whether the active epoch is that of the database as it runs, and of what is recorded outside."""
    is_latest = max(assigned, remembered.noted) < remembered.next_version
    return remembered.is_same and recorded <= remembered.epoch and is_latest


def _enter_another(connection: Connection, record: Index, recorded: int, assigned: int) -> Entered:
    """Enter another cluster identity, unless another process has done so meanwhile."""
    jobs: list[Job] = []
    with connection.transaction():
        connection.execute(_LOCK)
        remembered = _read(connection)
        if _is_current(remembered, recorded, assigned):
            return Entered(remembered.epoch, has_changed=False)
        # Rules: a-new-identity-has-a-greater-epoch, the-epoch-is-kept-in-elasticsearch.
        epoch, has_changed = max(remembered.epoch, recorded) + 1, remembered.epoch > 0 or recorded > 0
        occasion = _DOUBTED if remembered.is_doubted else _FAILED_OVER
        # Rule: the-record-comes-first. A crash in between costs a number, and never the order.
        record.write_epoch(remembered.installation, epoch)
        connection.execute(_REMEMBER, (*row(connection, CLUSTER_IDENTITY), epoch))
        if has_changed:
            # Rule: a-new-identity-refreshes-all.
            jobs = queue.refresh_all(connection, occasion)
    if has_changed:
        log = structlog.get_logger()
        timeline = f"{occasion[0].upper()}{occasion[1:]}: epoch {epoch}."
        log.warning("failover.detected", epoch=epoch, jobs=[job.id for job in jobs], timeline=timeline)
        for job in jobs:
            log.info("job.created", job=job.id, kind=job.kind, document=job.document, cause=job.occasion)
    return Entered(epoch, has_changed)


def doubt(connection: Connection, record: Index, version: int) -> bool:
    """Make the next writer enter a greater epoch, if a version in Elasticsearch was not assigned in this one.

    Return whether it will: the versions assigned on this connection are then not reliable.
    """
    remembered = _read(connection)
    if version < remembered.next_version:
        return False
    if split(version)[0] > max(remembered.epoch, record.read_epoch(remembered.installation)):
        return False  # no epoch as great was ever entered: it is foreign
    # Any user who may write to an index can make a version up, and another epoch rewrites every document. So in the
    # first hour of an epoch it is believed only if one as great was noted as assigned.
    noted = max(record.read_assigned(remembered.installation), remembered.noted)
    if noted < _read(connection).next_version and row(connection, _IS_YOUNG, (_YOUNG,))[0]:
        return False
    connection.execute(_LEAVE, (version,))
    return True


def is_forgotten(connection: Connection, record: Index) -> bool:
    """Return whether the database has an epoch that the record outside does not know."""
    remembered = _read(connection)
    return remembered.epoch > 0 and not record.read_epoch(remembered.installation)


def is_entered(connection: Connection) -> bool:
    """Return whether the active epoch belongs to the database as it runs; if not, the next writer enters another."""
    return _read(connection).is_same


def is_foreign(connection: Connection, record: Index, version: int) -> bool:
    """Return whether syncer has not assigned a version that was in Elasticsearch before this call, as far as known."""
    epoch, number = split(version)
    remembered = _read(connection)
    if is_raised(version) or epoch == 0:  # every writer enters an epoch before it assigns
        return True
    if (epoch, number) <= (remembered.epoch, remembered.last_number):
        return False
    # Before the first writer after a restore, versions of the cluster identity that was lost are greater than any.
    is_lost = epoch > remembered.epoch or not remembered.is_same
    return not (is_lost and epoch <= record.read_epoch(remembered.installation))
