"""The version log: notes the latest assigned version from time to time, and when that was.

A note is on disk together with the sequence as it was then, so no crash can take back a noted version. By it
`syncer.indexing.failover` recognises a database that was set back, and one whose epoch has ended just now.
"""

from __future__ import annotations

from uuid import UUID

from syncer.base.model import EPOCH_SHIFT, NUMBER_SHIFT
from syncer.base.postgres import Connection
from syncer.indexing.version import row

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
# until it has its own. A note is on disk, with the sequence as it was then: no crash can take back a noted version.
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


def note(connection: Connection) -> tuple[UUID, int]:
    """Note the latest version, if it is new: this assigns and skips none. Any number of processes may do it.

    Returns:
        The installation, and the latest noted version; 0 if there is none. If it is also kept in Elasticsearch,
        `syncer.indexing.failover` detects that the database was set back together with its notes.
    """
    installation, noted, version, at = row(connection, _LOOK)
    if version is None or version <= noted:
        return installation, noted
    connection.execute(_NOTE, (version, at))
    return installation, version
