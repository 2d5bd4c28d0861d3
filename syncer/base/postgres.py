"""Postgres connections: one way to open them, with the session settings that every component relies on.

Guarantees of a connection from `connect`:

- Autocommit. Placeholders are the server's own, ``$1``.
- UTC and ISO output, so that a document's JSON does not depend on server settings.
- A commit is on disk before it is reported.
- No row is hidden without an error.
- ``json`` columns arrive as the bytes that Postgres wrote. A text that is not UTF-8 raises no error.
- An unqualified name refers to Postgres' own object. Functions, operators or tables of other schemas cannot replace it.
- The session belongs to the connection alone. A pooler that shares sessions among its clients is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import Any

import psycopg
from psycopg import RawCursor, sql
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.pq import TransactionStatus
from psycopg.types.json import Jsonb
from psycopg.types.string import TextLoader

from syncer.base.error_policy import Action, decide
from syncer.base.errors import SourceError
from syncer.base.retry import answered
from syncer.base.settings import PostgresSettings

OLDEST_SUPPORTED_VERSION = 14

# Everything that affects output or durability is pinned; the rest is left to the operator. A test lists the settings of
# the server that are neither here nor known to change no value.
SESSION = {
    # The temporary schema would be searched first if it were not named.
    "search_path": "pg_catalog, pg_temp",
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "timezone_abbreviations": "Default",
    "lc_monetary": "C",
    "lc_numeric": "C",
    "lc_time": "C",
    "default_text_search_config": "pg_catalog.simple",
    "bytea_output": "hex",
    "xmlbinary": "base64",
    "xmloption": "content",
    "gin_fuzzy_search_limit": "0",
    # Of extensions; without one, its setting has no effect. The operators % of pg_trgm depend on them.
    "pg_trgm.similarity_threshold": "0.3",
    "pg_trgm.word_similarity_threshold": "0.6",
    "pg_trgm.strict_word_similarity_threshold": "0.5",
    "extra_float_digits": "1",
    "quote_all_identifiers": "off",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "array_nulls": "on",
    "client_encoding": "UTF8",
    "synchronous_commit": "on",
    "idle_session_timeout": "0",
    # A timeout that suits an application may be too short to list or compare everything.
    "statement_timeout": "0",
    "lock_timeout": "0",
    # With "off", a policy that hides rows raises an error. Otherwise the documents of those rows would be deleted.
    "row_security": "off",
    # A statement that waited for a row lock continues with the new version of the row.
    "default_transaction_isolation": "read committed",
    # The server, too, must notice a dead client: until then it keeps our locks, which signal that we are alive.
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "4",
    # Our queries are short, whatever cost the planner estimates: compiling them takes longer than running them.
    "jit": "off",
}

_UNANSWERED_MILLISECONDS_MAX = 30_000
_TRANSACTION_TIMEOUT_SINCE = 170000

# The process id guards against changing another client's session. Names are qualified: search_path is not pinned yet.
_BEGIN_SESSION = """
SELECT pg_catalog.set_config(key, value, false) FROM pg_catalog.jsonb_each_text($1::pg_catalog.jsonb)
WHERE pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.=) $2::pg_catalog.int4
"""
_POOLER_ATTEMPTS = 5


class AdvisoryLock(IntEnum):
    """Keys of the advisory locks that syncer takes; the first half spells "sync".

    Those of jobs and chunks spell "synj" and "synk"; their second half is the job's or the chunk's id.
    """

    SCHEMA = 0x73796E63_00000001
    RELAY = 0x73796E63_00000002
    APPLY = 0x73796E63_00000003
    REBUILD = 0x73796E63_00000004
    JOB_WORKERS = 0x73796E63_00000008
    JOBS = 0x73796E6A_00000000
    CHUNKS = 0x73796E6B_00000000


Connection = psycopg.Connection[tuple[Any, ...]]


class _BytesLoader(Loader):
    """Returns the bytes of a ``json`` value unparsed."""

    def load(self, buffer: Buffer) -> bytes:
        return bytes(buffer)


class _AnyTextLoader(TextLoader):
    """Returns a text also if it is not UTF-8: what is not becomes lone surrogates, which no other text has.

    Postgres holds such texts: "char" in Postgres 14 is any byte, and some functions of 17 and 18 make them by mistake.
    """

    def load(self, buffer: Buffer) -> str:
        return bytes(buffer).decode("utf-8", "surrogateescape")


def connect(settings: PostgresSettings, *, name: str, idle_seconds_max: float = 0) -> Connection:
    """Open a connection for one component; ``pg_stat_activity`` shows it as ``syncer NAME``.

    With ``idle_seconds_max``, the server ends a session that is idle in a transaction, or leaves results unread, for so
    long. This frees the locks of a process that is stopped, or whose machine is gone.

    Raises:
        psycopg.OperationalError: The server cannot be reached or refuses the login.
        SourceError: The server is older than Postgres 14, the database has another encoding than UTF8, or a pooler
            shares its sessions among clients.
    """
    connection = _opened(settings, name)
    with closed_on_error(connection):
        version = connection.info.server_version
        encoding = connection.info.parameter_status("server_encoding")
        require_supported(version, encoding, database=connection.info.dbname)
        idle = f"{idle_seconds_max * 1000:.0f}"
        session = {**SESSION, "idle_in_transaction_session_timeout": idle, "tcp_user_timeout": idle}
        if version >= _TRANSACTION_TIMEOUT_SINCE:
            session["transaction_timeout"] = "0"
        if connection.execute(_BEGIN_SESSION, (Jsonb(session), connection.info.backend_pid)).rowcount == 0:
            # Behind a pooler, the process is another than libpq was told.
            connection.execute(_BEGIN_SESSION, (Jsonb(session), _own_process(connection, settings)))
    answered("postgres")
    connection.adapters.register_loader("json", _BytesLoader)
    for type_ in ("text", "varchar", "bpchar", "name", '"char"'):
        connection.adapters.register_loader(type_, _AnyTextLoader)
    return connection


@contextmanager
def closed_on_error(connection: Connection) -> Iterator[None]:
    """Close a connection if the block fails, which decides whether it may be used."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


def _opened(settings: PostgresSettings, name: str) -> Connection:
    return psycopg.connect(
        settings.conninfo,
        autocommit=True,
        cursor_factory=RawCursor,
        application_name=f"syncer {name}",
        # Notice a dead peer within half a minute. The defaults are two hours for an idle connection, and a quarter
        # of an hour of retransmissions after a query.
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=4,
        tcp_user_timeout=_UNANSWERED_MILLISECONDS_MAX,
    )


def _own_process(connection: Connection, settings: PostgresSettings) -> int:
    """Return the server process that runs the session of this connection, and no other's; raise if others share it."""
    # A pooler that shares sessions hands out the one that was returned last, or the one idle longest. If other clients
    # connect in between, one attempt can miss it.
    processes, foreign_processes = set[int](), set[int]()
    with _opened(settings, "pooler") as second:
        try:
            for _ in range(_POOLER_ATTEMPTS):
                processes |= {_process(connection), _process(connection)}
                with second.transaction():
                    foreign_processes.add(_process(second))
                    processes.add(_process(connection))
        except psycopg.errors.ProtocolViolation:  # PgBouncer's error in statement mode
            processes.clear()
    if len(processes) != 1 or processes & foreign_processes:
        raise SourceError(
            "Postgres is behind a pooler that shares sessions among its clients",
            hint="Use session pooling (PgBouncer: pool_mode = session) for syncer's database and role, or let\n"
            "SYNCER_POSTGRES_DSN name the server itself.",
        )
    _require_reset(settings)
    return processes.pop()


def _require_reset(settings: PostgresSettings) -> None:
    """Refuse a pooler that hands out sessions as their last client left them.

    Another client would get syncer's settings and locks, and syncer its prepared statements.
    """
    # The session that was returned last is handed out, as a rule. Of a pooler that rotates them, this cannot tell.
    process = 0
    for _ in range(2 * _POOLER_ATTEMPTS):
        with _opened(settings, "pooler") as session:
            if row(session, "SELECT pg_catalog.current_setting('syncer.is_left', true)") == ("yes",):
                session.execute("DISCARD ALL", prepare=False)
                raise SourceError(
                    "Postgres is behind a pooler that does not reset a session before another client gets it",
                    hint="PgBouncer: server_reset_query = DISCARD ALL. Odyssey: pool_discard yes. Or let\n"
                    "SYNCER_POSTGRES_DSN name the server itself.",
                )
            previous, process = process, _process(session)
            if process == previous:
                return
            session.execute("SELECT pg_catalog.set_config('syncer.is_left', 'yes', false)", prepare=False)


def _process(connection: Connection) -> int:
    # Never prepared: behind a pooler, the next execution may meet a session that does not have the statement.
    return int(connection.execute("SELECT pg_catalog.pg_backend_pid()", prepare=False).fetchall()[0][0])


def require_supported(server_version: int, encoding: str | None = "UTF8", *, database: str = "") -> None:
    """Refuse a server or a database on which the protocol cannot be built."""
    major = server_version // 10000
    if major < OLDEST_SUPPORTED_VERSION:  # it lacks xid8 and pg_snapshot
        raise SourceError(
            f"Postgres {major} is not supported",
            hint=f"syncer needs Postgres {OLDEST_SUPPORTED_VERSION} or newer. Upgrade the server.",
        )
    if encoding != "UTF8":  # a key that has no UTF-8 form would end every relay that reads it
        raise SourceError(
            f"The database {database} has the encoding {encoding}; syncer needs UTF8",
            hint="Dump it, create a database with ENCODING 'UTF8', and restore it there.",
        )


def row(connection: Connection, query: str | sql.Composed, parameters: Sequence[object] = ()) -> tuple[Any, ...]:
    """Return the only row of a query that always returns one row, unless tables of syncer's were emptied.

    Raises:
        SourceError: It returns none.
    """
    only_row = connection.execute(query, parameters).fetchone()
    if only_row is None:
        hint = "If a dump is being restored, wait until it is. Otherwise run: syncer migrate"
        raise SourceError("The syncer schema lacks a row that it always has", hint=hint)
    return only_row


def value(connection: Connection, query: str | sql.Composed, parameters: Sequence[object] = ()) -> object:
    """Return the first column of the only row of a query, as `row` does."""
    return row(connection, query, parameters)[0]


# A prepared transaction holds its locks without a process.
_BLOCKERS = """
WITH RECURSIVE tree (oid) AS (
    SELECT to_regclass(name)::oid FROM unnest($1::text[]) AS name
    UNION
    SELECT i.inhrelid FROM tree AS t JOIN pg_inherits AS i ON i.inhparent = t.oid
)
SELECT coalesce(format('process %s %s for %s s', l.pid, a.application_name,
                       extract(epoch FROM now() - a.xact_start)::bigint),
                'a prepared transaction')
FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a USING (pid)
WHERE l.relation IN (SELECT t.oid FROM tree AS t)
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
ORDER BY l.mode = 'AccessShareLock', a.xact_start LIMIT 1
"""
_BRIEFLY_SECONDS_MAX = 0.2
"""How long to request a lock: a transaction that queues behind ours waits no longer."""
_PAUSE_SECONDS = 0.5


def without_blocking(
    connection: Connection,
    relations: Sequence[str],
    change: Callable[[], object],
    timeout_seconds: float,
    waiting: Callable[[str], None],
    *,
    subject: str = "",
) -> None:
    """Run DDL in a transaction that waits for a lock only briefly, and begins again until it has them all.

    So no application waits behind a transaction that this one waits for. ``relations`` are those that it locks;
    ``waiting`` is called with the holder of the lock after each failed request.

    Raises:
        SourceError: The locks were not available in time.
    """
    deadline, subject = time.monotonic() + timeout_seconds, subject or relations[0]
    while True:
        try:
            with connection.transaction():
                connection.execute(lock_timeout(_BRIEFLY_SECONDS_MAX, local=True))
                change()
                return
        except psycopg.errors.LockNotAvailable as error:
            blocking = connection.execute(_BLOCKERS, (list(relations),)).fetchone()
            blocker = f", held by {blocking[0]}" if blocking else ""
            if time.monotonic() > deadline:
                raise SourceError(
                    f"{subject} is in use: its lock was not to be had in {timeout_seconds:.0f} s{blocker}",
                    hint="Nothing was changed. Wait for that transaction to end, or end it, and run this again.",
                ) from error
            waiting(f"waiting for {subject}{blocker}")
            time.sleep(_PAUSE_SECONDS)


RESOLVE_AS_WRITTEN = "SET LOCAL search_path TO DEFAULT"
RESOLVE_AS_PINNED = f"SET LOCAL search_path = {SESSION['search_path']}"


@contextmanager
def names_as_written(connection: Connection) -> Iterator[None]:
    """Resolve unqualified names by the role's search_path inside the block: for SQL that a person wrote."""
    with connection.transaction():
        connection.execute(RESOLVE_AS_WRITTEN)
        yield
        # The block may be part of a longer transaction.
        connection.execute(RESOLVE_AS_PINNED)


LOCK_SECONDS_MAX = 0.5
"""How long one attempt waits for a table that is being altered.

Must stay below ``deadlock_timeout`` (1 s). A migration may alter one table and then another that is locked here. If
this side waited for the first table longer, Postgres would end the migration as a deadlock.
"""


def lock_timeout(seconds: float, *, local: bool = False) -> sql.Composed:
    """The statement that limits how long a session, or the rest of one transaction, waits for a lock."""
    scope = sql.SQL("LOCAL" if local else "SESSION")
    return sql.SQL("SET {} lock_timeout = {}").format(scope, sql.Literal(f"{seconds * 1000:.0f}ms"))


def locking(lock: Sequence[str]) -> sql.Composed:
    """Return the statement that takes the locks of `snapshot`; empty if there are none to take."""
    return sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE" if lock else "").format(sql.SQL(", ").join(map(sql.SQL, lock)))


_BEGIN = "BEGIN ISOLATION LEVEL {}"


@contextmanager
def snapshot(
    connection: Connection,
    *,
    lock: Sequence[str] = (),
    lock_seconds: float = 0,
    stores: bool = False,
    statement_seconds: float = 0,
) -> Iterator[None]:
    """Open a read-only transaction whose statements share one snapshot, taken by the first of them.

    Args:
        connection: Must not be used for anything else meanwhile.
        lock: Quoted relations to lock in ACCESS SHARE mode before the snapshot, until the end. This prevents ALTER
            TABLE: some forms rewrite the table, and an older snapshot then sees it empty. The lock itself takes no
            snapshot and blocks no reader or writer.
        lock_seconds: How long to wait for the locks. 0 for no limit; all of them are released between attempts.
        stores: Whether the transaction may write. Then each statement sees a snapshot of its own, so that a concurrent
            update of a row is no serialization failure.
        statement_seconds: How long a statement may run. 0 for no other limit than the session's.

    Raises:
        psycopg.errors.QueryCanceled: A statement runs for longer than ``statement_seconds``.
        psycopg.errors.LockNotAvailable: A relation is being altered for longer than ``lock_seconds``.
    """
    mode = sql.SQL("READ COMMITTED" if stores else "REPEATABLE READ, READ ONLY")
    is_nested = connection.info.transaction_status is not TransactionStatus.IDLE
    begin: list[sql.Composable] = [sql.SQL("SET TRANSACTION ISOLATION LEVEL {}" if is_nested else _BEGIN).format(mode)]
    if lock:
        begin += [lock_timeout(lock_seconds or LOCK_SECONDS_MAX, local=True), locking(lock)]
    if statement_seconds:
        limit = sql.Literal(max(1, int(statement_seconds * 1000)))
        begin.append(sql.SQL("SET LOCAL statement_timeout = {}").format(limit))
    has_begun = False
    while not has_begun:
        try:
            with connection.transaction() if is_nested else _ending(connection):
                # One round trip; several statements cannot be prepared.
                connection.execute(sql.SQL("; ").join(begin), prepare=False)
                has_begun = True
                yield
        except psycopg.errors.LockNotAvailable:
            if has_begun or lock_seconds:
                raise


@contextmanager
def _ending(connection: Connection) -> Iterator[None]:
    """End the transaction that the block begins, as `psycopg.Connection.transaction` does."""
    try:
        yield
    except psycopg.Rollback:
        connection.rollback()
    except BaseException:
        with suppress(psycopg.Error):  # the connection may be lost
            connection.rollback()
        raise
    else:
        connection.commit()


def copied(connection: Connection, query: sql.Composable) -> Generator[tuple[bytes | None, ...]]:
    """Stream the rows of a query without parameters, whose columns must be text or ``json``; never whole in memory.

    Faster than a cursor: Postgres continues while the client is busy, and plans for the whole result instead of its
    first rows. The connection is in use until the iterator is exhausted or closed.
    """
    command = sql.SQL("COPY ({}) TO STDOUT (FORMAT binary)").format(query)
    with connection.cursor() as cursor, cursor.copy(command) as copy:
        yield from copy.rows()


class Link:
    """A connection that is opened on demand. Not for sharing between threads."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._connection: Connection | None = None

    @property
    def connection(self) -> Connection:
        """The connection; a new one if the last was closed."""
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    @contextmanager
    def used(self) -> Iterator[Connection]:
        """Use the connection; close it if Postgres fails with a retryable error, other than a lock that is taken."""
        try:
            yield self.connection
        except psycopg.Error as error:
            if decide(error) is Action.RETRY and not isinstance(error, psycopg.errors.LockNotAvailable):
                self.close()
            raise

    def close(self) -> None:
        """Close the connection, if it is open."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
