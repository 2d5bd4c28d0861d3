"""Connections to Postgres: one way to open them, with the session that every stage relies on.

Guarantees of a connection from `connect`: autocommit; UTC and ISO output, so that a document's JSON does
not depend on a server's settings; commits that are on disk before they are reported; no row is hidden without an
error; ``json`` columns arrive as the bytes that Postgres wrote; placeholders are the server's own, ``$1``.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import IntEnum
from typing import Any

import psycopg
from psycopg import RawCursor, sql
from psycopg.abc import Buffer
from psycopg.adapt import Loader

from syncer.errors import SourceError
from syncer.settings import PostgresSettings

OLDEST_SUPPORTED_VERSION = 14

# Everything that shapes output or durability is pinned; the rest is the operator's.
_SESSION = {
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "client_encoding": "UTF8",
    "synchronous_commit": "on",
    "idle_session_timeout": "0",
    # What is short for an application may not be for a listing, or a comparison, of everything.
    "statement_timeout": "0",
    "lock_timeout": "0",
    # A policy that hides rows from us raises an error. Obeyed, it would delete their documents.
    "row_security": "off",
    # A statement that waited for a row goes on with what the row is then.
    "default_transaction_isolation": "read\\ committed",
    # And so does the server: until then it would hold our locks, which say that we live.
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "4",
    # What we ask is short, however dear the planner holds it: compiling it would take longer than running it.
    "jit": "off",
}

# The same, of settings that older servers do not know: by the version that brought them.
_SESSION_SINCE = {170000: "SET transaction_timeout = 0"}


class AdvisoryLock(IntEnum):
    """Keys of the advisory locks that syncer takes; the first half spells "sync".

    Those of lanes and jobs spell "synl" and "synj" and have the lane's or the job's number as their second half.
    """

    SCHEMA = 0x73796E63_00000001
    RELAY = 0x73796E63_00000002
    APPLY = 0x73796E63_00000003
    PLAN = 0x73796E63_00000007
    DOORBELL = 0x73796E63_00000008
    LANES = 0x73796E6C_00000000
    JOBS = 0x73796E6A_00000000


Connection = psycopg.Connection[tuple[Any, ...]]


class _BytesLoader(Loader):
    """Hands on the bytes of a ``json`` value; nobody here needs it parsed."""

    def load(self, data: Buffer) -> bytes:
        return bytes(data)


def connect(settings: PostgresSettings, *, name: str, idle_seconds_max: float = 0) -> Connection:
    """Open a connection for one stage.

    Args:
        settings: Where to, and as whom.
        name: The stage; ``pg_stat_activity`` shows it as ``syncer NAME``.
        idle_seconds_max: How long it may do nothing in the middle of a transaction, or take nothing of an answer; then
            the server ends it, so that a process that is stopped, or whose machine is gone, does not keep others
            waiting for its locks. 0 for as long as it likes.

    Raises:
        psycopg.OperationalError: The server cannot be reached or refuses the login.
        SourceError: The server is older than Postgres 14.
    """
    patience = f"{idle_seconds_max * 1000:.0f}"
    session = {**_SESSION, "idle_in_transaction_session_timeout": patience, "tcp_user_timeout": patience}
    connection: Connection = psycopg.connect(
        settings.conninfo,
        autocommit=True,
        cursor_factory=RawCursor,
        application_name=f"syncer {name}",
        connect_timeout=settings.connect_timeout_seconds,
        # A dead peer is noticed within half a minute: not after two hours, nor, if it was asked something when it died,
        # after the quarter of an hour for which that is sent again and again.
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=4,
        tcp_user_timeout=30_000,
        options=" ".join(f"-c {key}={value}" for key, value in session.items()),
    )
    try:
        require_supported(connection.info.server_version)
    except SourceError:
        connection.close()
        raise
    for since, setting in _SESSION_SINCE.items():
        if connection.info.server_version >= since:
            connection.execute(setting)
    connection.adapters.register_loader("json", _BytesLoader)
    return connection


def require_supported(server_version: int) -> None:
    """Refuse a server that lacks what the protocol is built on (``xid8``, ``pg_snapshot``).

    Args:
        server_version: As libpq gives it: 180000 for 18.0.

    Raises:
        SourceError: The server is too old.
    """
    major = server_version // 10000
    if major < OLDEST_SUPPORTED_VERSION:
        raise SourceError(
            f"Postgres {major} is not supported",
            hint=f"syncer needs Postgres {OLDEST_SUPPORTED_VERSION} or newer. Upgrade the server.",
        )


# Taken together: what was inserted into the log by now is on disk when the answer comes.
_KEEP = """
SELECT CASE WHEN pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()
            THEN pg_logical_emit_message(true, 'syncer', '') END
"""


def keep(connection: Connection) -> None:
    """Return once all that has ever been visible on this connection is on the server's disk.

    A commit with ``synchronous_commit = off`` is visible before, and a crash takes it back.

    Raises:
        psycopg.OperationalError: The server is gone, and may come back without what was visible.
    """
    connection.execute(_KEEP)


def value(connection: Connection, query: str | sql.Composed, parameters: Sequence[object] = ()) -> object:
    """The first column of the only row of a query that always returns one."""
    row = connection.execute(query, parameters).fetchone()
    assert row is not None  # noqa: S101 - said above
    return row[0]


@contextmanager
def names_in_full(connection: Connection) -> Iterator[None]:
    """Inside, Postgres spells every name that is not its own with its schema, whatever search_path whoever asks has."""
    with connection.transaction():
        connection.execute("SET LOCAL search_path = pg_catalog")
        yield
        connection.execute("SET LOCAL search_path TO DEFAULT")  # the transaction may be a part of another


_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
_STATEMENTS = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
_GIVE_UP = "SET LOCAL lock_timeout = {}"
_LOCK = "LOCK TABLE {} IN ACCESS SHARE MODE"


LOCK_SECONDS_MAX = 0.5
"""How long to wait at once for a table that is being altered.

Shorter than ``deadlock_timeout`` (1 s): a migration that alters one table, and then another one that is locked here
while the first is waited for, would else be what Postgres ends.
"""


@contextmanager
def snapshot(connection: Connection, *, lock: Sequence[str] = (), lock_seconds: float = 0) -> Iterator[None]:
    """A read-only transaction whose statements all see one snapshot, taken by the first of them.

    Args:
        connection: Nothing else is done on it meanwhile.
        lock: Relations, quoted, that nobody may alter from before the snapshot until the end. Some forms of ALTER
            TABLE write the table anew, and to a snapshot from before that commit it is empty from then on.
            Taking the lock takes no snapshot, and keeps no reader and no writer waiting.
        lock_seconds: How long to wait for those locks; 0 for as long as it takes, giving all of them up in between.

    Raises:
        psycopg.errors.LockNotAvailable: One of them is being altered for longer than that.
    """
    with _begun(connection, _SNAPSHOT, lock, lock_seconds):
        yield


@contextmanager
def holding(connection: Connection, *, lock: Sequence[str], lock_seconds: float) -> Iterator[None]:
    """A transaction that may write, and in which nobody alters these relations from before its first snapshot on.

    Each of its statements sees a snapshot of its own, so that a row that somebody else has changed meanwhile is
    no conflict. The locks are as those of `snapshot`.
    """
    with _begun(connection, _STATEMENTS, lock, lock_seconds):
        yield


@contextmanager
def _begun(connection: Connection, mode: str, lock: Sequence[str], lock_seconds: float) -> Iterator[None]:
    begin: list[sql.Composable] = [sql.SQL(mode)]
    if lock:
        begin.append(sql.SQL(_GIVE_UP).format(sql.Literal(f"{(lock_seconds or LOCK_SECONDS_MAX) * 1000:.0f}ms")))
        begin.append(sql.SQL(_LOCK).format(sql.SQL(", ").join(sql.SQL(one) for one in lock)))
    while True:
        try:
            opened = _opened(connection, sql.SQL("; ").join(begin))
        except psycopg.errors.LockNotAvailable:
            if lock_seconds:
                raise
        else:
            break
    with opened:
        yield


def _opened(connection: Connection, begin: sql.Composed) -> ExitStack:
    """A transaction that has begun so, to be ended by whoever gets it."""
    with ExitStack() as stack:
        stack.enter_context(connection.transaction())
        connection.execute(begin, prepare=False)  # one round trip; never prepared: it is several statements
        return stack.pop_all()


@contextmanager
def bounded(connection: Connection, *, seconds: float) -> Iterator[None]:
    """The same, in which no statement runs for longer than that: psycopg.errors.QueryCanceled is raised instead."""
    with snapshot(connection):
        limit = sql.SQL("SET LOCAL statement_timeout = {}").format(sql.Literal(max(1, int(seconds * 1000))))
        connection.execute(limit)
        yield


def copied(connection: Connection, query: sql.Composable) -> Generator[tuple[bytes | None, ...]]:
    """The rows of a query as it finds them, never whole in memory; for columns that are text or ``json``.

    Faster than a cursor: Postgres goes on while we are busy, and plans for the whole answer, not for its first rows.

    Args:
        connection: Taken until the iterator is exhausted or closed.
        query: What to ask, without parameters.
    """
    command = sql.SQL("COPY ({}) TO STDOUT (FORMAT binary)").format(query)
    with connection.cursor() as cursor, cursor.copy(command) as copy:
        yield from copy.rows()
