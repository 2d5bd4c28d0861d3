"""Incarnation: which life of which database this is, and what is to be done when another one has begun.

After a failover to a replica that had not received everything, or a restore, the database has lost commits: documents
show them, jobs and halts that had been recorded are forgotten, and changes that made them are no longer on their way.
So whoever enters a new incarnation makes, in the same transaction, one refresh of every document in force, as after a
TRUNCATE: it writes what is there, and removes what only Elasticsearch has. Nobody has to be told.

Whether a life is a new one is found out by `syncer.version` from what the server says of itself. Two set-backs leave no
trace there: a copy of the server's files put back in its place, and a sequence that was set by hand. They are found by
what they lead to. A number that is handed out again is less than one that was noted (``syncer.version_time``), or than
the version of some document: a conflict with a version that was never drawn in this life. `doubt` then has the next
writer enter another one.
"""

from __future__ import annotations

import structlog

from syncer import events, jobs, store, version
from syncer.job import Job, JobKind
from syncer.postgres import Connection


def enter(connection: Connection, record: version.EpochRecord) -> version.Incarnation:
    """Enter the life of the database that this is, on a new connection, before the first draw.

    Guarantees that every document in force has a refresh that nobody has begun, if it is a new one.
    """
    made: list[Job] = []

    def refresh_all() -> None:
        refreshes = [jobs.create(connection, one, JobKind.REFRESH) for one in store.documents(connection)]
        made.extend(one for one in refreshes if one is not None)

    entered = version.enter_incarnation(connection, record, if_changed=refresh_all)
    version.skip_unflushed(connection)
    if entered.has_changed:
        log = structlog.get_logger()
        log.warning(events.INCARNATION_ENTERED, epoch=entered.epoch, jobs=[one.id for one in made])
        for one in made:
            log.info(events.JOB_CREATED, job=one.id, kind=one.kind, document=one.document, cause=one.cause)
    return entered


def doubt(connection: Connection, record: version.EpochRecord, found: int) -> bool:
    """Have the next writer enter another life, if a version that was found in Elasticsearch is none of this one.

    Returns:
        Whether that is so: then what was drawn is not to be relied on.
    """
    if version.is_of_this_life(connection, found):
        return False
    return version.leave_incarnation(connection, record, found)
