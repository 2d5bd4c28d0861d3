"""Versions: the SQL that assigns one together with a snapshot, serialised against every other writer.

A version is an epoch and a number of a sequence: see `syncer.base.model.EPOCH_SHIFT`. Guarantee: a version assigned
after another was handed out is greater, across crashes, failover, point-in-time recovery and dump and restore.
`syncer.indexing.failover` provides the epoch, which grows if the database is no longer the one that assigned the
versions before.

The latest version is noted from time to time, with the time, together with the sequence: no crash can take back a noted
version. By the notes, `syncer.indexing.failover` recognises a database that was set back.
"""

from __future__ import annotations

from uuid import UUID

from syncer.base.model import EPOCH_SHIFT, NUMBER_SHIFT
from syncer.base.postgres import Connection, row

_UNFLUSHED = "32 * current_setting('max_connections')::int"  # SEQ_LOG_VALS in Postgres' sequence.c
_SKIP = f"SELECT count(nextval('syncer.version')) FROM generate_series(0, {_UNFLUSHED})"

_NEXT_WRITER = f"""
SELECT i.epoch << {EPOCH_SHIFT} | ((s.last_value + {_UNFLUSHED}) << {NUMBER_SHIFT})
FROM syncer.cluster_identity AS i, syncer.version AS s
"""
# Rule: assign-and-read-in-turn. The lock is held from before the assign until the snapshot is taken.
_TAKE_TURN = "LOCK TABLE syncer.version_lock IN EXCLUSIVE MODE"
# This is the transaction's first query, so it takes the snapshot. Rolling back the savepoint releases the lock but
# keeps the assigned version.
# Rule: gaps-between-versions.
_ASSIGN = f"SELECT epoch << {EPOCH_SHIFT} | (nextval('syncer.version') << {NUMBER_SHIFT}) FROM syncer.cluster_identity"

# The WAL file's name begins with the current timeline; the control file lags behind a promotion.
CLUSTER_IDENTITY = """
SELECT system_identifier,
       ('x' || lpad(substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8), 16, '0'))::bit(64)::bigint,
       -- A dump that is restored, be it into the same cluster, makes a new sequence, a template a new database.
       (SELECT oid FROM pg_database WHERE datname = current_database())::bigint << 32
           | 'syncer.version'::regclass::oid::bigint
FROM pg_control_system()
"""
"""The query for what identifies the database as it runs: see `syncer.indexing.failover`."""
# The version is returned only if the epoch belongs to the database as it runs: a restored one may assign lower versions
# until it has its own.
NOTED = "SELECT coalesce(max(version), 0) FROM syncer.version_time"
_LOOK = f"""
SELECT i.installation, ({NOTED}),
       CASE WHEN s.is_called AND i.epoch > 0 AND (i.system_identifier, i.timeline, i.sequence) = ({CLUSTER_IDENTITY})
            THEN i.epoch << {EPOCH_SHIFT} | (s.last_value << {NUMBER_SHIFT}) END,
       clock_timestamp()
FROM syncer.cluster_identity AS i, syncer.version AS s
"""
# Only the last note of an epoch counts.
_NOTE = f"""
WITH older AS (
    DELETE FROM syncer.version_time WHERE version < $1 AND version >> {EPOCH_SHIFT} = $1::bigint >> {EPOCH_SHIFT}
)
INSERT INTO syncer.version_time (version, assigned_before) VALUES ($1, $2) ON CONFLICT DO NOTHING
"""


def skip_unflushed(connection: Connection) -> None:
    """Skip every number that may have been handed out before a crash without being on disk."""
    # Rule: skip-unflushed-numbers. Each assigning connection may have used what Postgres logs ahead. By plain nextval,
    # which cannot run backwards.
    connection.execute(_SKIP)


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
    return int(row(connection, _NEXT_WRITER)[0])


def note(connection: Connection) -> tuple[UUID, int]:
    """Note the latest version, if it is new; return the installation, and the latest noted version or 0."""
    installation, noted, version, at = row(connection, _LOOK)
    if version is None or version <= noted:
        return installation, noted
    connection.execute(_NOTE, (version, at))
    return installation, version
