"""What goes on in Postgres: transactions that stay open, slots, room for connections, the age of transaction ids."""

from __future__ import annotations

import time
from collections.abc import Iterator

from syncer.doctor.finding import check
from syncer.doctor.patient import Patient
from syncer.doctor.symptom import Symptom, advice, consider, sql, wrong
from syncer.wording import amount, duration

# Of any database: a transaction is waited for by all.
_OPEN = """
SELECT pid, coalesce(nullif(application_name, ''), backend_type), coalesce(state, ''),
       extract(epoch FROM clock_timestamp() - xact_start)::float8
FROM pg_stat_activity
WHERE clock_timestamp() - xact_start > make_interval(secs => $1) AND pid <> pg_backend_pid()
      AND backend_type IN ('client backend', 'walsender')
ORDER BY xact_start
"""
_PREPARED = """
SELECT quote_literal(gid), quote_ident(database), extract(epoch FROM clock_timestamp() - prepared)::float8
FROM pg_prepared_xacts WHERE clock_timestamp() - prepared > make_interval(secs => $1) ORDER BY prepared
"""
_SLOTS = """
SELECT quote_literal(slot_name), active, coalesce(wal_status, ''), xmin IS NOT NULL OR catalog_xmin IS NOT NULL,
       CASE WHEN NOT pg_is_in_recovery() THEN pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint END
FROM pg_replication_slots
"""
_AGE = "SELECT age(datfrozenxid), quote_ident(datname) FROM pg_database WHERE datname = current_database()"
_ROOM = """
SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
         - (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
       r.rolconnlimit - (SELECT count(*) FROM pg_stat_activity WHERE usename = session_user),
       r.rolconnlimit, d.datconnlimit - (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()),
       d.datconnlimit, r.rolsuper, quote_ident(r.rolname), quote_ident(d.datname),
       (SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name ~ '^syncer (relay|watch|survey|worker-|refresher)')
FROM pg_roles AS r, pg_database AS d WHERE r.rolname = session_user AND d.datname = current_database()
"""


@check(
    "postgres.transactions",
    "No transaction is open for long",
    promises=(4,),
    why="What it changes is followed when it commits, and delays nobody. But until then its segment of the "
    "outbox is not "
    "emptied, no dead row is given back, and apply waits for the tables that it holds.",
)
def _transactions(patient: Patient) -> Iterator[Symptom]:
    for pid, name, state, seconds in patient.rows(_OPEN, patient.limits.transaction_seconds):
        yield consider(
            f"{name} (process {pid}, {state or 'state unknown'}) has had a transaction open for {duration(seconds)}",
            sql(f"SELECT pg_terminate_backend({pid});", "Who is ended loses what he has not committed."),
        )


@check(
    "postgres.prepared",
    "No prepared transaction is left over",
    promises=(1, 4),
    why="What it has changed is in no document until somebody commits it, and it holds what an open transaction holds, "
    "also after a restart.",
)
def _prepared(patient: Patient) -> Iterator[Symptom]:
    for gid, database, seconds in patient.rows(_PREPARED, patient.limits.prepared_seconds):
        yield consider(
            f"Transaction {gid} in {database} has been prepared for {duration(seconds)}, and not committed",
            sql(f"ROLLBACK PREPARED {gid};", f"Or COMMIT PREPARED {gid}; whoever has prepared it knows which."),
        )


@check(
    "postgres.slots",
    "No replication slot holds much back",
    promises=(1,),
    why="A slot that nobody reads keeps WAL until the disk is full, and then nobody can write.",
)
def _slots(patient: Patient) -> Iterator[Symptom]:
    for name, active, status, _, held in patient.rows(_SLOTS):
        if status == "lost" or (held or 0) > patient.limits.slot_bytes:
            used = "is read" if active else "is read by nobody"
            said = f"Slot {name} {used} and holds {(held or 0) / 1024**2:,.0f} MB of WAL"
            yield consider(
                f"Slot {name} has lost what it was to hold" if status == "lost" else said,
                sql(f"SELECT pg_drop_replication_slot({name});", "Who reads it has to begin anew."),
            )


@check(
    "postgres.wraparound",
    "Transaction ids are far from their end",
    promises=(1,),
    why="When they come to their end Postgres takes no more writes until the database is vacuumed.",
)
def _wraparound(patient: Patient) -> Iterator[Symptom]:
    age, database = patient.rows(_AGE)[0]
    if age <= patient.limits.xid_age:
        return
    said = f"The oldest transaction id of {database} is {age:,} old; Postgres stops at 2,147,483,648"
    mend = sql("VACUUM (FREEZE);", "First end what keeps it from doing so: old transactions, prepared ones, slots.")
    yield (wrong if age > patient.limits.xid_age_wrong else consider)(said, mend)


@check(
    "postgres.connections",
    "There is room for a daemon's connections",
    promises=(1,),
    why="A daemon that gets no connection waits for one, and nothing is followed meanwhile.",
)
def _connections(patient: Patient) -> Iterator[Symptom]:
    server, role, role_limit, database, database_limit, is_super, role_name, database_name, ours = patient.rows(_ROOM)[
        0
    ]
    needed = connections(patient)
    if ours:
        return  # they have what they need
    if server < needed:
        yield consider(
            f"The server has room for {amount(max(0, server), 'connection')}, and a daemon takes {needed}",
            sql(
                f"ALTER SYSTEM SET max_connections = {int(patient.plain['max_connections'].value) + 2 * needed};",
                "Takes a restart of Postgres. Or let applications hold fewer.",
            ),
        )
    if role_limit >= 0 and role < needed and not is_super:
        yield consider(
            f"Role {role_name} may have {amount(role_limit, 'connection')}, and a daemon takes {needed}",
            sql(f"ALTER ROLE {role_name} CONNECTION LIMIT -1;"),
        )
    if database_limit >= 0 and database < needed and not is_super:
        yield consider(
            f"Database {database_name} takes {amount(database_limit, 'connection')}, and a daemon takes {needed}",
            sql(f"ALTER DATABASE {database_name} CONNECTION LIMIT -1;"),
        )


def connections(patient: Patient) -> int:
    """How many connections to the primary a daemon of these settings takes."""
    # A worker and the refresher have one for themselves and one for their pipeline; the refresher asks on one more.
    return len(("watch", "survey", "relay", "refresher", "pipeline", "asking")) + 2 * patient.settings.worker.threads


@check(
    "postgres.clock",
    "The clock of Postgres is this machine's",
    promises=(),
    why="No order rests on clocks; but lag is counted from the time that Postgres gives to a change.",
)
def _clock(patient: Patient) -> Iterator[Symptom]:
    before = time.time()
    there = float(patient.value("SELECT extract(epoch FROM clock_timestamp())"))
    after = time.time()
    off = max(before - there, there - after)
    if off > patient.limits.clock_seconds:
        yield consider(
            f"The clock of Postgres and that of this machine are {off:,.1f} s apart",
            advice("Let both follow the same time server (chrony, systemd-timesyncd)."),
        )


CHECKS = (_transactions, _prepared, _slots, _wraparound, _connections, _clock)
