"""Versions, and the incarnation of the database that their epoch belongs to.

A version is ``epoch << 43 | nextval``. Guarantees: a version drawn after another was handed out is greater,
across crashes, failover, point-in-time recovery and dump and restore. It rests on two things.

*Within an incarnation* the sequence never goes back: Postgres logs a sequence 32 values ahead, so after a
crash at most 32 values for each connection that was drawing were handed out and not yet on disk. Every new
writer connection skips more than that with `skip_unflushed`, by plain ``nextval``, which cannot run backwards.

*Across incarnations* (system identifier, timeline, and the catalogue's ids of the database and the sequence)
the epoch grows: `enter_incarnation` compares what
Postgres remembers with where it runs, and takes an epoch greater than any that Postgres or Elasticsearch
has seen. It does so too if the sequence is behind what was noted, or the epoch behind the record: then the database
was set back in a way that the server does not know of. What to do then: `syncer.incarnation`.

A version carries no time. When one was drawn is known from notes that `DrawLog` takes, which draw nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

from syncer.model import EPOCH_SHIFT
from syncer.postgres import Connection

_SEQUENCE_LOGGED_AHEAD = 32  # SEQ_LOG_VALS in Postgres' sequence.c

_UNFLUSHED = f"{_SEQUENCE_LOGGED_AHEAD} * current_setting('max_connections')::int"
_SKIP = f"SELECT count(nextval('syncer.version')) FROM generate_series(0, {_UNFLUSHED})"  # noqa: S608 - a constant of ours

# The walfile's name begins with the timeline that is written now; the control file lags behind a promotion.
_CURRENT = """
SELECT system_identifier,
       ('x' || lpad(substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8), 16, '0'))::bit(64)::bigint,
       -- A dump that is restored, be it into the same cluster, makes a new sequence, a template a new database.
       (SELECT oid FROM pg_database WHERE datname = current_database())::bigint << 32
           | 'syncer.version'::regclass::oid::bigint
FROM pg_control_system()
"""
_REMEMBERED_ONLY = "SELECT installation, system_identifier, timeline, sequence, epoch FROM syncer.incarnation"
_REMEMBERED = f"{_REMEMBERED_ONLY} FOR UPDATE"
# A note is on disk, and so is the sequence as it was then: no crash can take a number back that was noted.
_NOTED = "SELECT coalesce(max(version), 0) FROM syncer.version_time"
_IS_OF_THIS_LIFE = f"""
SELECT $1::bigint <= i.epoch << {EPOCH_SHIFT} | s.last_value FROM syncer.incarnation AS i, syncer.version AS s
"""  # noqa: S608 - a constant of ours
# Nobody is in it any more; who draws meanwhile is no worse off than before.
_LEAVE = f"""
UPDATE syncer.incarnation SET timeline = 0
WHERE timeline <> 0 AND $1::bigint > epoch << {EPOCH_SHIFT} | (SELECT last_value FROM syncer.version)
"""  # noqa: S608 - a constant of ours
_REMEMBER = "UPDATE syncer.incarnation SET system_identifier = $1, timeline = $2, sequence = $3, epoch = $4"
# Only where the epoch belongs to the database as it runs: a restored one may draw lesser numbers until it has its own.
_LOOK = f"""
SELECT i.epoch << {EPOCH_SHIFT} | s.last_value, statement_timestamp(), clock_timestamp()
FROM syncer.incarnation AS i, syncer.version AS s
WHERE s.is_called AND i.epoch > 0 AND (i.system_identifier, i.timeline, i.sequence) = ({_CURRENT})
"""  # noqa: S608 - constants of ours
_NOTE = """
INSERT INTO syncer.version_time (version, greater_after, drawn_before)
SELECT $1, $2, $3
WHERE coalesce((SELECT version < $1 AND drawn_before <= $3 - $4::interval
                FROM syncer.version_time ORDER BY version DESC LIMIT 1), true)
ON CONFLICT DO NOTHING
"""
_STILL_LAST = "UPDATE syncer.version_time SET greater_after = $2 WHERE version = $1 AND greater_after < $2"
# One note stays of each minute once it is older than an hour, of each hour after a week, of each 30 days after a year:
# that is some 20,000, and one a month.
_THIN = f"""
WITH aged AS (
    SELECT version, drawn_before, now() - drawn_before AS age FROM syncer.version_time
), placed AS (
    SELECT version, row_number() OVER (
        PARTITION BY version >> {EPOCH_SHIFT}, width, date_bin(width, drawn_before, 'epoch') ORDER BY version
    ) AS place
    FROM aged, LATERAL (SELECT CASE WHEN age > '365 days' THEN '30 days' WHEN age > '7 days' THEN '1 hour'
                                    ELSE '1 minute' END::interval AS width) AS w
    WHERE age > '1 hour'
)
DELETE FROM syncer.version_time WHERE version IN (
    SELECT t.version FROM syncer.version_time AS t JOIN placed USING (version) WHERE place > 1
    FOR UPDATE OF t SKIP LOCKED
)
"""  # noqa: S608 - a constant of ours
_THIN_SECONDS = 600
_DRAWN_BETWEEN = f"""
SELECT (SELECT greater_after FROM syncer.version_time WHERE version < $1 ORDER BY version DESC LIMIT 1),
       (SELECT drawn_before FROM syncer.version_time
        WHERE version >= $1 AND version >> {EPOCH_SHIFT} = $1::bigint >> {EPOCH_SHIFT} ORDER BY version LIMIT 1)
"""  # noqa: S608 - a constant of ours
_DRAWN = f"""
SELECT i.installation, i.epoch, CASE WHEN s.is_called THEN s.last_value ELSE 0 END,
       (i.system_identifier, i.timeline, i.sequence) = ({_CURRENT})
FROM syncer.incarnation AS i, syncer.version AS s
"""  # noqa: S608 - a constant of ours
_NEXT_WRITER = f"""
SELECT i.epoch << {EPOCH_SHIFT} | s.last_value + {_UNFLUSHED} FROM syncer.incarnation AS i, syncer.version AS s
"""  # noqa: S608 - constants of ours
# A WITH that is materialized comes before what reads it: the mark is written after the draw, and its commit flushes it.
_DRAW_WITH_MARK = f"""
WITH drawn AS MATERIALIZED (
    SELECT epoch << {EPOCH_SHIFT} | nextval('syncer.version') AS version FROM syncer.incarnation
)
SELECT version, pg_logical_emit_message(true, 'syncer', '')::text, extract(epoch FROM clock_timestamp())::float8
FROM drawn
"""  # noqa: S608 - a constant of ours
_KNOWS = f"""
SELECT i.epoch = $1::bigint >> {EPOCH_SHIFT} AND i.epoch << {EPOCH_SHIFT} | s.last_value >= $1::bigint
FROM syncer.incarnation AS i, syncer.version AS s
"""  # noqa: S608 - a constant of ours
# The first query of a transaction: it takes the snapshot. What it draws is not undone with the savepoint; the lock is.
_DRAW_IN_TURN = f"""
SET TRANSACTION READ WRITE;
SAVEPOINT turn;
LOCK TABLE syncer.turn IN EXCLUSIVE MODE;
SELECT epoch << {EPOCH_SHIFT} | nextval('syncer.version') FROM syncer.incarnation;
ROLLBACK TO SAVEPOINT turn;
SET TRANSACTION READ ONLY;
"""  # noqa: S608 - a constant of ours


class EpochRecord(Protocol):
    """What is kept outside Postgres, so that no restore of Postgres can take it back."""

    def read_epoch(self, installation: UUID) -> int:
        """The greatest epoch that was written; 0 if none was."""

    def write_epoch(self, installation: UUID, epoch: int) -> None:
        """Return when the epoch is durably kept."""

    def read_drawn(self, installation: UUID) -> int:
        """The greatest version that was kept as drawn; 0 if none was."""

    def write_drawn(self, installation: UUID, version: int) -> None:
        """Keep a version that was drawn, if no greater one is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """Which life of which database this is.

    Args:
        system_identifier: Given to a cluster at initdb; a dump restored elsewhere gets another one.
        timeline: Grows with each promotion and each point-in-time recovery.
        epoch: The epoch in force.
        has_changed: Whether this call found that the database is no longer the one that it was, or that documents
            may have been written before there was one.
    """

    system_identifier: int
    timeline: int
    epoch: int
    has_changed: bool


def enter_incarnation(
    connection: Connection, record: EpochRecord, *, if_changed: Callable[[], object] = lambda: None
) -> Incarnation:
    """Make sure that the epoch in force belongs to this incarnation of the database.

    The record is asked while no lock is held: its server may hang. What it says may be out of date when it is compared:
    an epoch that was recorded since either is in Postgres too, or nobody has drawn in it. Only whoever enters another
    incarnation holds one, while the epoch is written: to the record before Postgres, so that a crash in between costs a
    number, never an order.

    Args:
        connection: In no transaction.
        record: What is kept outside.
        if_changed: What to do in the transaction that enters another incarnation.
    """
    installation = _row(connection, _REMEMBERED_ONLY)[0]
    recorded, drawn = record.read_epoch(installation), record.read_drawn(installation)
    found, is_same = _compared(connection, _REMEMBERED_ONLY, recorded, drawn)
    if is_same:
        return found
    with connection.transaction():
        found, is_same = _compared(connection, _REMEMBERED, recorded, drawn)
        if is_same:  # somebody else has entered it meanwhile
            return found
        had_one = found.epoch > 0 or recorded > 0
        epoch = max(found.epoch, recorded) + 1
        record.write_epoch(installation, epoch)
        connection.execute(_REMEMBER, (*_row(connection, _CURRENT), epoch))
        if had_one:
            if_changed()
    return replace(found, epoch=epoch, has_changed=had_one)


def _compared(connection: Connection, query: str, recorded: int, drawn: int) -> tuple[Incarnation, bool]:
    """What Postgres remembers, and whether that is the life in which it runs."""
    _, system_identifier, timeline, sequence, epoch = _row(connection, query)
    current = _row(connection, _CURRENT)
    known = max(drawn, _row(connection, _NOTED)[0])
    is_same = (system_identifier, timeline, sequence) == current and recorded <= epoch
    is_same = is_same and is_of_this_life(connection, known)
    found = Incarnation(system_identifier=current[0], timeline=current[1], epoch=epoch, has_changed=False)
    return found, is_same


def is_of_this_life(connection: Connection, version: int) -> bool:
    """Whether a version that was found in Elasticsearch before this call may have been drawn in the life that this is.

    If not, what is drawn now may be less than what was drawn before.
    """
    is_less: bool = _row(connection, _IS_OF_THIS_LIFE, (version,))[0]
    return is_less


def leave_incarnation(connection: Connection, record: EpochRecord, version: int) -> bool:
    """Have whoever enters next take a greater epoch, because of a version that was found and not drawn in this life.

    Returns:
        Whether that helps: not if nobody has ever entered an epoch as great, so that it is none of ours.
    """
    installation, _, _, _, epoch = _row(connection, _REMEMBERED_ONLY)
    if split(version)[0] > max(epoch, record.read_epoch(installation)):
        return False
    connection.execute(_LEAVE, (version,))
    return True


def skip_unflushed(connection: Connection) -> None:
    """Step over every number that may have been handed out before a crash and was not yet on disk."""
    connection.execute(_SKIP)


def draw(connection: Connection) -> int:
    """Draw one version and take the snapshot that may be written with it, in turn with all others who do.

    Nobody else draws or takes his snapshot between the two, so a greater version has a snapshot that shows at least as
    much. The turn is a lock that is held for a moment on the server, whatever becomes of the client meanwhile.

    Args:
        connection: In a transaction of `syncer.postgres.snapshot`, in which nothing has been asked yet.

    Raises:
        psycopg.errors.LockNotAvailable: It was not its turn for as long as the transaction waits for locks.
    """
    # One round trip; never prepared: it is several statements.
    answers = connection.execute(_DRAW_IN_TURN, prepare=False)
    while answers.description is None:
        answers.nextset()
    row = answers.fetchone()
    assert row is not None  # noqa: S101 - one incarnation
    return int(row[0])


def draw_with_mark(connection: Connection) -> tuple[int, str, float]:
    """Draw one version; with a place in the WAL that is behind every commit that was visible then, and is flushed.

    Only a snapshot taken after this call may be written with it. The last is when that was, by the server's clock.
    """
    drawn, mark, seconds = _row(connection, _DRAW_WITH_MARK)
    return drawn, mark, seconds


def knows(connection: Connection, version: int) -> bool:
    """Whether a server, which may be a replica, is of the epoch of this version and has replayed its draw."""
    is_known: bool = connection.execute(_KNOWS, (version,)).fetchone() == (True,)
    return is_known


def split(version: int) -> tuple[int, int]:
    """A version's epoch, and its number in the sequence."""
    return version >> EPOCH_SHIFT, version & ((1 << EPOCH_SHIFT) - 1)


def is_entered(connection: Connection) -> bool:
    """Whether the epoch in force belongs to the database as it runs; if not, the next writer enters another."""
    return bool(_row(connection, _DRAWN)[3])


class Origin(StrEnum):
    """Who made a version."""

    DRAWN = "drawn"
    """Drawn in the epoch that is in force."""
    EARLIER = "earlier"
    """Drawn in an earlier epoch, before a failover or a restore."""
    LOST = "lost"
    """Drawn in a life that the database has lost to a restore; the next writer enters a greater epoch."""
    FOREIGN = "foreign"
    """Not drawn by syncer: somebody else made it up."""


def origin(connection: Connection, record: EpochRecord, version: int) -> Origin:
    """Who made a version that was found in Elasticsearch before this call.

    A lesser version than one that was drawn may have been made up too: that cannot be told.
    """
    epoch, number = split(version)
    installation, epoch_now, last_number, is_entered = _row(connection, _DRAWN)
    if epoch == 0:
        return Origin.FOREIGN  # every writer enters an epoch before it draws
    if epoch < epoch_now:
        return Origin.EARLIER
    if epoch == epoch_now and number <= last_number:
        return Origin.DRAWN
    is_of_a_lost_life = epoch > epoch_now or not is_entered
    return Origin.LOST if is_of_a_lost_life and epoch <= record.read_epoch(installation) else Origin.FOREIGN


def is_surpassed(connection: Connection, version: int) -> bool:
    """Whether a writer that begins now draws a greater version than this one."""
    least_drawn: int = _row(connection, _NEXT_WRITER)[0]
    return version < least_drawn


def keep_noted(connection: Connection, record: EpochRecord) -> None:
    """Keep the last version that `DrawLog` has noted where no restore can take it back.

    So whoever enters finds out that the database was set back, also if all that it remembers was set back with it.
    """
    installation = _row(connection, _REMEMBERED_ONLY)[0]
    record.write_drawn(installation, _row(connection, _NOTED)[0])


class DrawLog:
    """Notes, now and then, which version was the last one drawn, so that versions can be dated.

    Draws and skips nothing; costs a look at the sequence each time, and writes only if versions were drawn since.
    Any number of processes may note: the table stays as small as with one.

    Args:
        apart: How much time is between two notes, at least.
    """

    def __init__(self, *, apart: timedelta = timedelta(seconds=9)) -> None:
        self._apart = apart
        self._last: tuple[int, datetime] | None = None
        self._thinned_at: float | None = None

    def note(self, connection: Connection) -> None:
        """Look once, and note what was seen if that is news."""
        row = connection.execute(_LOOK).fetchone()
        if row is None:
            self._last = None
            return
        version, began_at, ended_at = row
        if self._last is not None and self._last[0] != version:
            connection.execute(_STILL_LAST, self._last)
        self._last = version, began_at
        connection.execute(_NOTE, (version, began_at, ended_at, self._apart))
        if self._thinned_at is None or time.monotonic() - self._thinned_at > _THIN_SECONDS:
            connection.execute(_THIN)
            self._thinned_at = time.monotonic()


def drawn_between(connection: Connection, version: int) -> tuple[datetime | None, datetime | None]:
    """After and before which time a version was drawn, if it was, by the clock of the database; None if unknown.

    A crash of the database may blur this: numbers of its last moment may seem to have been drawn after it.
    """
    after, before = connection.execute(_DRAWN_BETWEEN, (version,)).fetchone() or (None, None)
    return after, before


def _row(connection: Connection, query: str, parameters: Sequence[object] = ()) -> tuple[Any, ...]:
    row = connection.execute(query, parameters).fetchone()
    assert row is not None  # noqa: S101 - each of these tables has exactly one row
    return row
