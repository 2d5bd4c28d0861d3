"""Versions assigned by a test."""

from __future__ import annotations

from syncer.base.postgres import Connection, snapshot
from syncer.indexing import version


def assign(connection: Connection) -> int:
    """Assign one, in a snapshot that nothing is read in."""
    with snapshot(connection):
        connection.execute("SET TRANSACTION READ WRITE", prepare=False)
        answers = connection.execute(version.assign_version(), prepare=False)
        while answers.description is None:
            answers.nextset()
        row = answers.fetchone()
        assert row is not None
        return int(row[0])
