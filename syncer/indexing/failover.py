"""Failover: notices that the database was set back, enters another epoch, and has what is in doubt written again.

Guarantees: an epoch that is entered is greater than any that Postgres or the search server has seen. From then on, what
was built before changes nothing. The commit that enters it creates a recovery of every active document: it writes again
what was written since the last mark, which may show commits that the database has lost.

The database is the one that entered the epoch as long as a row of an *unlogged* table is there, as it was written then.
Clean restarts keep it. Promotion, a crash of the server or of one of its processes, and a base backup empty the table.
In a dump that is restored, another transaction has written the row.
Files that are put back have the row, and lack the mark that is recorded in the search server: after each restart, one
is taken before anything is written. A sequence that was set by hand is behind the last mark.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

import psycopg
import structlog

from syncer.base.errors import IndexingError, OvertakenError
from syncer.base.model import is_raised
from syncer.base.postgres import Connection, closed_on_error, row
from syncer.documents import registry
from syncer.elasticsearch.bulk import Index
from syncer.elasticsearch.record import Recorded
from syncer.indexing import marks
from syncer.indexing.version import split
from syncer.jobs import queue

EPOCHS = 1 << 12
"""How many there are."""
SILENT_SECONDS = 60.0
"""How long the record of an epoch is not renewed once no daemon of it is left."""
_READ = f"""
SELECT i.installation, i.epoch, m.number, {marks.IS_SAME} AND s.last_value >= m.last_version,
       c.started_at = pg_postmaster_start_time(),
       CASE WHEN s.is_called THEN s.last_value ELSE 0 END, syncer.identity(of_start => true)
FROM syncer.installation AS i CROSS JOIN syncer.mark AS m CROSS JOIN syncer.version AS s
LEFT JOIN syncer.cluster_identity AS c ON true
"""
_LOCK = "SELECT FROM syncer.installation FOR UPDATE"
_REMEMBER = """
WITH epoch AS (UPDATE syncer.installation SET epoch = $1), last AS (
    UPDATE syncer.mark SET last_version = (SELECT last_value FROM syncer.version)
)
INSERT INTO syncer.cluster_identity AS c (database) SELECT oid FROM pg_database WHERE datname = current_database()
ON CONFLICT (only_row) DO UPDATE
SET database = excluded.database, written_in = excluded.written_in, name = excluded.name,
    started_at = excluded.started_at
"""
_IS_PRIMARY = "SELECT syncer.is_primary()"
_STARTED = """
UPDATE syncer.cluster_identity SET started_at = pg_postmaster_start_time(), written_in = pg_current_xact_id()
"""
_SET_BACK = "the database failed over, crashed or was restored"
_LOST = "syncer-state was lost or set back"


class _Remembered(NamedTuple):
    """What Postgres remembers of the epoch, beside the database as it runs.

    ``is_same`` tells that it is the database that has entered the epoch, and ``is_running_on`` that it has not been
    restarted since. Numbers up to ``last_number`` were assigned. The ``server`` is as it was started.
    """

    installation: UUID
    epoch: int
    mark: int
    is_same: bool
    is_running_on: bool | None
    last_number: int
    server: str


class Entered(NamedTuple):
    """The active epoch, and whether this call has begun it in a database that had another one before."""

    epoch: int
    has_changed: bool


def enter(connection: Connection, index: Index) -> Entered:
    """Make sure of the epoch: on a new connection, before the first version is assigned, and before each mark.

    Guarantees that every active document has a recovery that has not begun, if the epoch is a new one. The connection
    is closed if this fails.

    Raises:
        OvertakenError: Another database of this installation is in use. Try again later.
    """
    with closed_on_error(connection):
        # Without a lock, since its server may hang. An epoch that is recorded after this is in Postgres too, or no
        # version was assigned in it.
        recorded = index.record.read(_read(connection).installation)
        remembered = _read(connection)  # after the record, so that nothing recorded is newer
        if not _is_current(remembered, recorded):
            return _enter_another(connection, index)
        if not remembered.is_running_on:
            # Rule: a-restart-is-marked. Files that were copied while the server was stopped lack this mark.
            installation, epoch = remembered.installation, remembered.epoch
            while index.record.read(installation).epoch == epoch and not marks.take(connection, index, always=True):
                pass  # another process has taken one at the same time
            require_in_use(connection, index)
            connection.execute(_STARTED)
    return Entered(remembered.epoch, has_changed=False)


def require_in_use(connection: Connection, index: Index) -> None:
    """Raise an `OvertakenError` if a later epoch than the database's is recorded, or its own is not."""
    remembered = _read(connection)
    recorded = index.record.read(remembered.installation)
    if recorded.epoch > remembered.epoch:
        raise _overtaken(recorded)
    if recorded.epoch < remembered.epoch:
        raise OvertakenError(f"{_LOST}: it has not recorded epoch {remembered.epoch}", hint="Another one is entered.")


def _read(connection: Connection) -> _Remembered:
    # A standby has no unlogged tables. It may be promoted soon, or was while it answered.
    with suppress(psycopg.errors.FeatureNotSupported):
        return _Remembered(*row(connection, _READ))
    connection.execute(_IS_PRIMARY)
    return _Remembered(*row(connection, _READ))


def _is_current(remembered: _Remembered, recorded: Recorded) -> bool:
    """Return whether the active epoch is that of the database as it runs, and of what is recorded outside."""
    # Rules: a-mark-that-is-recorded-outside-counts, an-epoch-that-is-not-recorded-ends. An epoch is recorded before it
    # is entered. So if an earlier one is, or none, the record is that of another cluster or a snapshot, which may lack
    # any write; and no mark would be taken, which notices that.
    return remembered.is_same and recorded.epoch == remembered.epoch and recorded.mark <= remembered.mark


def _enter_another(connection: Connection, index: Index) -> Entered:
    """Enter another epoch, unless another process has done so meanwhile."""
    with connection.transaction():
        connection.execute(_LOCK)
        remembered = _read(connection)
        installation = remembered.installation
        recorded = index.record.read(installation)
        if _is_current(remembered, recorded):
            return Entered(remembered.epoch, has_changed=False)
        # Rule: an-overtaken-daemon-waits. It does not wait for an epoch that its own server has failed to enter.
        is_renewed = recorded.entered_by != remembered.server and recorded.silent_seconds < SILENT_SECONDS
        if recorded.epoch > remembered.epoch and is_renewed:
            raise _overtaken(recorded)
        # Rules: a-new-identity-has-a-greater-epoch, the-epoch-is-kept-in-elasticsearch.
        epoch, has_changed = max(remembered.epoch, recorded.epoch) + 1, remembered.epoch > 0 or recorded.epoch > 0
        if epoch >= EPOCHS:
            hint = "Begin anew: syncer migrate --anew, and then: syncer apply --take-over '*'"
            raise IndexingError(f"All {EPOCHS - 1} epochs are used, one for each failover or crash", hint=hint)
        occasion = _LOST if remembered.is_same and recorded.epoch < remembered.epoch else _SET_BACK
        # Rule: the-record-comes-first. A crash in between costs a number, and never the order.
        index.record.enter(installation, epoch, remembered.server)
        documents = registry.documents(connection)
        # Rule: fence-before-listing. See also `syncer.worker.job_loop`.
        index.fence([document.index_name for document in documents], epoch)
        # Rule: a-late-fence-is-not-committed. It may have undone the fence of an epoch that was recorded meanwhile.
        if (recorded := index.record.read(installation)).epoch != epoch:
            raise _overtaken(recorded)
        positions = marks.last(connection).positions
        connection.execute(_REMEMBER, (epoch,))
        # Rule: the-job-is-committed-with-the-epoch.
        recoveries = [
            queue.create_recovery(connection, document, marks.position(positions, document.index_name), occasion)
            for document in (documents if has_changed else ())
        ]
        jobs = [job for job in recoveries if job is not None]
    index.record.renew(installation, epoch, remembered.mark)
    if has_changed:
        log = structlog.get_logger()
        timeline = f"{occasion[0].upper()}{occasion[1:]}: epoch {epoch}. What was written last is written again."
        log.warning("failover.detected", epoch=epoch, jobs=[job.id for job in jobs], timeline=timeline)
        for job in jobs:
            log.info("job.created", job=job.id, kind=job.kind, document=job.document, cause=job.occasion)
    return Entered(epoch, has_changed)


def _overtaken(recorded: Recorded) -> OvertakenError:
    problem = "Another database of this installation is in use, or was until this one was restored: "
    problem += f"epoch {recorded.epoch} is recorded"
    hint = "If both are primaries after a failover, stop the daemons of the one that is not to be followed. "
    hint += f"This one is followed {SILENT_SECONDS:.0f} s after the last daemon of the other."
    return OvertakenError(problem, hint=hint)


def is_forgotten(connection: Connection, index: Index) -> bool:
    """Return whether the database has an epoch that the record outside does not know."""
    remembered = _read(connection)
    return remembered.epoch > 0 and not index.record.read(remembered.installation).epoch


def is_foreign(connection: Connection, index: Index, version: int) -> bool:
    """Return whether syncer has not assigned a version that was in Elasticsearch before this call, as far as known."""
    epoch, number = split(version)
    remembered = _read(connection)
    if is_raised(version) or epoch == 0:  # every writer enters an epoch before it assigns
        return True
    if (epoch, number) <= (remembered.epoch, remembered.last_number):
        return False
    # Before the first writer after a failover, versions of what was lost are greater than any.
    is_lost = epoch > remembered.epoch or not remembered.is_same
    return not (is_lost and epoch <= index.record.read(remembered.installation).epoch)
