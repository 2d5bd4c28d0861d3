"""Versions assigned by a test."""

from __future__ import annotations

from syncer.base.postgres import Connection, snapshot
from syncer.indexing import version


def assign(connection: Connection) -> int:
    """Assign one, in a snapshot that nothing is read in."""
    with snapshot(connection):
        return version.assign(connection)
