"""Versions, and the incarnation of the database that their epoch belongs to.

A version is ``epoch << 43 | nextval``. Guarantees: a version drawn after another was handed out is greater,
across crashes, failover, point-in-time recovery and dump and restore. It rests on two things.

*Within an incarnation* the sequence never goes back: Postgres logs a sequence 32 values ahead, so after a
crash at most 32 values for each connection that was drawing were handed out and not yet on disk. Every new
writer connection skips more than that with `skip_unflushed`, by plain ``nextval``, which cannot run backwards.

*Across incarnations* (system identifier, timeline, and the catalogue's ids of the database and the sequence)
the epoch grows: `enter_incarnation` compares what
Postgres remembers with where it runs, and takes an epoch greater than any that Postgres or Elasticsearch
has seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from syncer.model import EPOCH_SHIFT
from syncer.postgres import Connection

_SEQUENCE_LOGGED_AHEAD = 32  # SEQ_LOG_VALS in Postgres' sequence.c

_SKIP = f"""
SELECT count(nextval('syncer.version'))
FROM generate_series(0, {_SEQUENCE_LOGGED_AHEAD} * current_setting('max_connections')::int)
"""  # noqa: S608 - a constant of ours

# The walfile's name begins with the timeline that is written now; the control file lags behind a promotion.
_CURRENT = """
SELECT system_identifier,
       ('x' || lpad(substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8), 16, '0'))::bit(64)::bigint,
       -- A dump that is restored, be it into the same cluster, makes a new sequence, a template a new database.
       (SELECT oid FROM pg_database WHERE datname = current_database())::bigint << 32
           | 'syncer.version'::regclass::oid::bigint
FROM pg_control_system()
"""
_READ = "SELECT installation, system_identifier, timeline, sequence, epoch FROM syncer.incarnation"
_REMEMBERED = f"{_READ} FOR UPDATE"
_REMEMBER = "UPDATE syncer.incarnation SET system_identifier = $1, timeline = $2, sequence = $3, epoch = $4"
# After a crash, until somebody draws, the sequence may be behind what was handed out.
_HANDED_OUT = f"""
SELECT coalesce(pg_sequence_last_value('syncer.version'), 0)
       + {_SEQUENCE_LOGGED_AHEAD} * current_setting('max_connections')::int
"""
_DRAW = f"SELECT epoch << {EPOCH_SHIFT} | nextval('syncer.version') FROM syncer.incarnation"  # noqa: S608


FLOOR = 1 << EPOCH_SHIFT
"""No version that syncer hands out is smaller: the first epoch is 1."""


class EpochRecord(Protocol):
    """The epoch that is kept outside Postgres, so that no restore of Postgres can take it back."""

    def read_epoch(self, installation: UUID) -> int:
        """The greatest epoch that was written; 0 if none was."""

    def write_epoch(self, installation: UUID, epoch: int) -> None:
        """Return when the epoch is durably kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """Which life of which database this is.

    Args:
        system_identifier: Given to a cluster at initdb; a dump restored elsewhere gets another one.
        timeline: Grows with each promotion and each point-in-time recovery.
        epoch: The epoch in force.
        has_changed: Whether this call found that the database is no longer the one that it was.
    """

    system_identifier: int
    timeline: int
    epoch: int
    has_changed: bool


def enter_incarnation(connection: Connection, record: EpochRecord) -> Incarnation:
    """Make sure that the epoch in force belongs to this incarnation of the database.

    The epoch is written to ``record`` before Postgres: a crash in between costs a number, never an order.
    """
    with connection.transaction():
        installation, system_identifier, timeline, sequence, epoch = _row(connection, _REMEMBERED)
        current = _row(connection, _CURRENT)
        is_same = (system_identifier, timeline, sequence) == current
        had_one = epoch > 0
        if not is_same:
            epoch = max(epoch, record.read_epoch(installation)) + 1
            record.write_epoch(installation, epoch)
            connection.execute(_REMEMBER, (*current, epoch))
    return Incarnation(
        system_identifier=current[0], timeline=current[1], epoch=epoch, has_changed=had_one and not is_same
    )


def skip_unflushed(connection: Connection) -> None:
    """Step over every number that may have been handed out before a crash and was not yet on disk."""
    connection.execute(_SKIP)


def draw(connection: Connection) -> int:
    """Draw one version. Only a snapshot taken after this call may be written with it."""
    version: int = _row(connection, _DRAW)[0]
    return version


def ceiling(connection: Connection, record: EpochRecord) -> int:
    """No version that syncer has handed out, in any life of this database, is greater; none is drawn for it."""
    installation, *remembered, epoch = _row(connection, _READ)
    if tuple(remembered) != _row(connection, _CURRENT):  # nobody has entered this life yet: what was lost is unknown
        epoch, handed_out = max(epoch, record.read_epoch(installation)) + 1, -1
    else:
        (handed_out,) = _row(connection, _HANDED_OUT)
    highest: int = (epoch << EPOCH_SHIFT) + handed_out
    return highest


def _row(connection: Connection, query: str) -> tuple[Any, ...]:
    row = connection.execute(query).fetchone()
    assert row is not None  # noqa: S101 - each of these tables has exactly one row
    return row
