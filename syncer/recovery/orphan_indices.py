"""Orphan indices: physical indices that exist but are not active, because a command died before activating or dropping.

An index is noted here before it is created, and in the commit that withdraws it. The note is removed in the commit that
activates the index, and once it is dropped. So an index that is noted and not active is neither written nor searched,
and the next `syncer apply` drops it. All functions need the lock `syncer.apply.activate.alone`.
"""

from __future__ import annotations

from syncer.base.model import Target
from syncer.base.postgres import Connection
from syncer.elasticsearch.indices import Indices

_NOTE = "INSERT INTO syncer.orphan_index (index_name) VALUES ($1) ON CONFLICT DO NOTHING"
_FORGET = "DELETE FROM syncer.orphan_index WHERE index_name = $1"
_FIND = """
SELECT index_name FROM syncer.orphan_index
WHERE index_name NOT IN (SELECT index_name FROM syncer.document) ORDER BY 1
"""


def note(connection: Connection, target: Target) -> None:
    """Note an index that is about to be created, or is no longer active."""
    connection.execute(_NOTE, (target.index_name,))


def forget(connection: Connection, target: Target) -> None:
    """Remove the note of an index that is active now, or gone."""
    connection.execute(_FORGET, (target.index_name,))


def find(connection: Connection) -> tuple[Target, ...]:
    """Return the indices that are noted and not active."""
    return tuple(Target.of_index(index_name) for (index_name,) in connection.execute(_FIND).fetchall())


def drop(connection: Connection, indices: Indices, target: Target) -> None:
    """Drop an index, which may be gone already.

    Raises:
        IndexingError: The index has an alias that is not syncer's.
    """
    indices.drop(target)
    forget(connection, target)
