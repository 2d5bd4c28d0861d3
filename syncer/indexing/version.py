"""Versions: the SQL that assigns one together with a snapshot, serialised against every other writer.

A version is an epoch and a number of a sequence: see `syncer.base.model.EPOCH_SHIFT`. Guarantee: a version assigned
after another was handed out is greater, across crashes, failover, point-in-time recovery and dump and restore.
`syncer.indexing.failover` provides the epoch, which grows if the database is no longer the one that assigned the
versions before. A crash, which can take back numbers that were handed out, is such a case.
"""

from __future__ import annotations

from syncer.base.model import EPOCH_SHIFT, NUMBER_SHIFT
from syncer.base.postgres import Connection, row

_NEXT = f"""
SELECT i.epoch << {EPOCH_SHIFT} | ((s.last_value + 1) << {NUMBER_SHIFT})
FROM syncer.installation AS i, syncer.version AS s
"""
# Rule: assign-and-read-in-turn. The lock is held from before the assign until the snapshot is taken.
_TAKE_TURN = "LOCK TABLE syncer.version_lock IN EXCLUSIVE MODE"
# This is the transaction's first query, so it takes the snapshot. Rolling back the savepoint releases the lock but
# keeps the assigned version.
# Rule: gaps-between-versions.
_ASSIGN = f"SELECT epoch << {EPOCH_SHIFT} | (nextval('syncer.version') << {NUMBER_SHIFT}) FROM syncer.installation"


def assign_version() -> str:
    """Return the statements that assign one version and take the snapshot that may be written with it, serialised.

    No other transaction assigns a version or takes its snapshot between the two. So a greater version has a snapshot
    that shows at least as much. Send them before the first query of a transaction that is ``REPEATABLE READ``, writable
    and has a ``lock_timeout``, in one round trip: the lock is held for a moment only, whatever happens to the client.
    They return the version as their only row, and make the transaction read-only.
    """
    return f"SAVEPOINT turn; {_TAKE_TURN}; {_ASSIGN}; ROLLBACK TO SAVEPOINT turn; SET TRANSACTION READ ONLY"


def split(version: int) -> tuple[int, int]:
    """Return a version's epoch, and its number in the sequence."""
    return version >> EPOCH_SHIFT, (version & ((1 << EPOCH_SHIFT) - 1)) >> NUMBER_SHIFT


def least_next(connection: Connection) -> int:
    """Return the least version that a writer which starts now may assign."""
    return int(row(connection, _NEXT)[0])
