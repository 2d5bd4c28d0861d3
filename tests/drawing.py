"""Versions drawn by a test."""

from __future__ import annotations

from syncer import version
from syncer.postgres import Connection, snapshot


def draw(connection: Connection) -> int:
    """Draw one, in a snapshot that nothing is read in."""
    with snapshot(connection):
        return version.draw(connection)
