"""Leftovers: physical indices that are there and not in force, since whoever made them, or was to drop them, died.

An index is noted here before it is made, and in the commit that puts it out of force. The note goes away in the commit
that puts it in force, and once it is dropped. So whatever is noted and not in force is written by nobody and found by
no search, and the next `syncer apply` drops it. All of that is for who is alone: see `syncer.apply.alone`.
"""

from __future__ import annotations

from syncer.indices import Indices
from syncer.model import Target
from syncer.postgres import Connection

_NOTE = "INSERT INTO syncer.leftover (index_name, write_alias) VALUES ($1, $2) ON CONFLICT DO NOTHING"
_FORGET = "DELETE FROM syncer.leftover WHERE index_name = $1"
_FIND = """
SELECT index_name, write_alias FROM syncer.leftover
WHERE index_name NOT IN (SELECT index_name FROM syncer.document) ORDER BY 1
"""


def note(connection: Connection, target: Target) -> None:
    """An index is about to be made, or is no longer in force."""
    connection.execute(_NOTE, (target.index_name, target.write_alias))


def forget(connection: Connection, target: Target) -> None:
    """It is in force now, or gone."""
    connection.execute(_FORGET, (target.index_name,))


def find(connection: Connection) -> tuple[Target, ...]:
    """Those that are noted and not in force."""
    rows = connection.execute(_FIND).fetchall()
    return tuple(Target(index_name=index_name, write_alias=write_alias) for index_name, write_alias in rows)


def drop(connection: Connection, indices: Indices, target: Target) -> None:
    """Drop one; it may be gone already.

    Raises:
        IndexingError: Something besides syncer's own writes has an alias to it.
    """
    indices.drop(target)
    forget(connection, target)
