"""How Postgres is set up: what a crash may lose, what ends a session of the daemon's, what keeps it from writing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from psycopg.conninfo import conninfo_to_dict

from syncer.doctor.finding import check
from syncer.doctor.patient import Patient, Setting
from syncer.doctor.symptom import Group, Mend, Symptom, advice, consider, shell, sql, wrong
from syncer.postgres import LOCK_SECONDS_MAX

_WHO = "SELECT quote_ident(session_user), quote_ident(current_database())"
_ENCODING = "SELECT pg_encoding_to_char(encoding)::text FROM pg_database WHERE datname = current_database()"
# Of all roles and of this database; the first that says so.
_OF_OTHERS = """
SELECT coalesce(quote_ident(r.rolname), ''), coalesce(quote_ident(d.datname), '')
FROM pg_db_role_setting AS s CROSS JOIN unnest(s.setconfig) AS one
LEFT JOIN pg_roles AS r ON r.oid = s.setrole LEFT JOIN pg_database AS d ON d.oid = s.setdatabase
WHERE one = $1 AND (s.setdatabase = 0 OR d.datname = current_database())
ORDER BY 1, 2
"""
_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "min": 60.0}


@check(
    "postgres.reach",
    "Postgres answers, and is 14 or newer",
    promises=(1,),
    why="Everything that syncer follows and remembers is there.",
)
def _reach(patient: Patient) -> Iterator[Symptom]:
    failure = patient.failure(Group.POSTGRES)
    if failure is not None:
        yield wrong(failure.message, advice(failure.hint))


@check(
    "postgres.primary",
    "postgres.dsn names a server that takes writes",
    promises=(1,),
    why="Triggers write the outbox, and versions are drawn, where the truth is written; a standby can do neither.",
)
def _primary(patient: Patient) -> Iterator[Symptom]:
    if patient.value("SELECT pg_is_in_recovery()"):
        yield wrong(
            "The server at postgres.dsn is a standby",
            advice(
                "Let SYNCER_POSTGRES_DSN name the primary: postgresql://user@one,two/database?target_session_attrs="
                "read-write finds it among several. A standby to read on is named by SYNCER_POSTGRES_READ_DSN."
            ),
        )


@check(
    "postgres.fsync",
    "fsync is on",
    promises=(1, 2),
    why="Without it a crash of the machine may lose any commit, and leave a database that contradicts itself.",
)
def _fsync(patient: Patient) -> Iterator[Symptom]:
    yield from _must_be_on(patient, "fsync")


@check(
    "postgres.full_page_writes",
    "full_page_writes is on",
    promises=(1, 2),
    why="Without it a crash of the machine may leave torn pages: outbox and sequence may be anything.",
)
def _full_page_writes(patient: Patient) -> Iterator[Symptom]:
    yield from _must_be_on(patient, "full_page_writes")


def _must_be_on(patient: Patient, name: str) -> Iterator[Symptom]:
    found = patient.plain[name]
    if found.value == "off":
        yield wrong(f"{name} is off", _mend(patient, name, found, "on"))


@check(
    "postgres.synchronous_commit",
    "No application commits with synchronous_commit off",
    promises=(3,),
    why="What such a commit wrote is followed at once, and a crash within the next moment takes it back in Postgres "
    "alone: a document shows what the database has lost, and nothing tells of it.",
)
def _synchronous_commit(patient: Patient) -> Iterator[Symptom]:
    name = "synchronous_commit"
    found = patient.plain[name]
    of_others = patient.rows(_OF_OTHERS, f"{name}=off")
    if found.value == "off" and not of_others:
        yield consider(
            f"{name} is off for every session that does not say otherwise", _mend(patient, name, found, "on")
        )
    for role, database in of_others:
        whose = f"of role {role}" if role else f"of database {database}"
        yield consider(f"{name} is off for sessions {whose}", sql(f"{_alter(role, database)} RESET {name};"))


def _alter(role: str, database: str) -> str:
    if not role:
        return f"ALTER DATABASE {database}"
    return f"ALTER ROLE {role} IN DATABASE {database}" if database else f"ALTER ROLE {role}"


@check(
    "postgres.read_only",
    "The daemon's sessions may write",
    promises=(1,),
    why="The relay saves its cursor, and a worker draws versions; neither goes in a read-only transaction.",
)
def _read_only(patient: Patient) -> Iterator[Symptom]:
    name = "default_transaction_read_only"
    found = patient.plain[name]
    if found.value == "on":
        mend = _mend(patient, name, found, "off")
        # Else the mend itself may not be written.
        yield wrong(f"{name} is on", replace(mend, text=f"SET {name} = off;\n{mend.text}"))


@check(
    "postgres.timeouts",
    "Nothing ends a session or a transaction of the daemon's that takes long",
    promises=(4,),
    why="A listing, a comparison and a relay that sleeps take as long as they take; whoever is ended begins again, and "
    "may never come to an end.",
)
def _timeouts(patient: Patient) -> Iterator[Symptom]:
    for name in ("transaction_timeout", "idle_session_timeout"):  # the others are set by each of our sessions
        found = patient.plain.get(name)
        if found is not None and found.value != "0":
            said = f"{name} is {_seconds(found):g} s for the role of postgres.dsn"
            role, database = patient.rows(_WHO)[0]
            yield consider(said, sql(f"ALTER ROLE {role} IN DATABASE {database} SET {name} = 0;"))


@check(
    "postgres.deadlock_timeout",
    f"deadlock_timeout is more than {LOCK_SECONDS_MAX:g} s",
    promises=(5,),
    why="For so long a reader of syncer's may wait for a table that a migration alters; a shorter deadlock_timeout may "
    "end the migration instead.",
)
def _deadlock_timeout(patient: Patient) -> Iterator[Symptom]:
    name = "deadlock_timeout"
    found = patient.plain[name]
    if _seconds(found) <= LOCK_SECONDS_MAX:
        yield consider(f"{name} is {_seconds(found):g} s", _mend(patient, name, found, "'1s'"))


@check(
    "postgres.autovacuum",
    "autovacuum is on",
    promises=(4,),
    why="Jobs and dead letters leave dead rows; what nobody vacuums and analyses becomes slow, and in the end "
    "Postgres stops taking writes.",
)
def _autovacuum(patient: Patient) -> Iterator[Symptom]:
    for name in ("autovacuum", "track_counts"):
        found = patient.plain[name]
        if found.value == "off":
            yield consider(f"{name} is off", _mend(patient, name, found, "on"))


@check(
    "postgres.encoding",
    "The database has an encoding",
    promises=(3,),
    why="In a database with SQL_ASCII a text may be no text: JSON cannot carry it, and its document is parked.",
)
def _encoding(patient: Patient) -> Iterator[Symptom]:
    if patient.value(_ENCODING) == "SQL_ASCII":
        yield consider(
            "The database's encoding is SQL_ASCII",
            advice("Dump it, and restore it into a database with ENCODING 'UTF8'; what is refused there is no text."),
        )


@check(
    "postgres.session",
    "The daemon's sessions are Postgres's own",
    promises=(1, 2),
    why="One relay leads by a lock of its session, and is woken in it; a pool that hands a session to others "
    "breaks both.",
)
def _session(patient: Patient) -> Iterator[Symptom]:
    connection = patient.postgres
    if connection.info.backend_pid != patient.value("SELECT pg_backend_pid()"):
        there = conninfo_to_dict(patient.settings.postgres.dsn.get_secret_value())
        yield wrong(
            f"Between syncer and Postgres is a pool of connections, at {there.get('host')}:{there.get('port', 5432)}",
            advice("Let SYNCER_POSTGRES_DSN name the server itself, past pgbouncer and the like."),
        )


# Mends


def _seconds(found: Setting) -> float:
    return float(found.value) * _UNITS[found.unit]


def _mend(patient: Patient, name: str, found: Setting, value: str) -> Mend:
    """Set it right where it was set wrong."""
    role, database = patient.rows(_WHO)[0]
    match found.source:
        case "user":
            return sql(f"ALTER ROLE {role} RESET {name};")
        case "database":
            return sql(f"ALTER DATABASE {database} RESET {name};")
        case "database user":
            return sql(f"ALTER ROLE {role} IN DATABASE {database} RESET {name};")
        case "client":
            return shell("unset PGOPTIONS", f"{name} may also be in the options of SYNCER_POSTGRES_DSN.")
        case _:
            return sql(
                f"ALTER SYSTEM SET {name} = {value};\nSELECT pg_reload_conf();",
                "If that changes nothing, it stands in the server's command line.",
            )


CHECKS = (
    _reach,
    _primary,
    _fsync,
    _full_page_writes,
    _synchronous_commit,
    _read_only,
    _timeouts,
    _deadlock_timeout,
    _autovacuum,
    _encoding,
    _session,
)
