"""What the role of the daemon may do in Postgres."""

from __future__ import annotations

from collections.abc import Iterator

from syncer.doctor.finding import check
from syncer.doctor.patient import Patient
from syncer.doctor.symptom import Symptom, sql, wrong

_ROLE = "SELECT quote_ident(current_user)"
# What yoyo keeps is read, and written by migrate alone.
_LACKING = """
SELECT format('%I.%I', n.nspname, c.relname), array_to_string(array_agg(p ORDER BY p), ', ')
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
CROSS JOIN unnest(CASE WHEN c.relname = '_yoyo_migration' THEN '{SELECT}'::text[]
                       WHEN c.relname ~ '^outbox_[0-9]+$' THEN '{SELECT,INSERT,UPDATE,DELETE,TRUNCATE}'
                       ELSE '{SELECT,INSERT,UPDATE,DELETE}' END) AS p
WHERE n.nspname = 'syncer' AND c.relkind IN ('r', 'p') AND (c.relname = '_yoyo_migration' OR c.relname !~ 'yoyo')
      AND NOT has_table_privilege(c.oid, p)
GROUP BY 1 ORDER BY 1
"""
_LACKING_SEQUENCES = """
SELECT format('%I.%I', n.nspname, c.relname)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'syncer' AND c.relkind = 'S'
      AND NOT (has_sequence_privilege(c.oid, 'USAGE') AND has_sequence_privilege(c.oid, 'SELECT')
               AND has_sequence_privilege(c.oid, 'UPDATE'))
ORDER BY 1
"""
_HIDDEN = "SELECT to_regclass($1) IS NOT NULL AND row_security_active(to_regclass($1)::oid)"
_READS = """
SELECT has_schema_privilege(c.relnamespace, 'USAGE'), quote_ident(n.nspname),
       has_table_privilege(c.oid, 'SELECT') OR (SELECT bool_and(has_column_privilege(c.oid, a.attnum, 'SELECT'))
           FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attname = ANY ($2) AND NOT a.attisdropped)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE format('%I.%I', n.nspname, c.relname) = $1
"""
_FUNCTIONS = """
SELECT p.oid::regprocedure::text FROM pg_proc AS p
WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname = ANY ($1)
      AND NOT has_function_privilege(p.oid, 'EXECUTE')
ORDER BY 1
"""
_CALLED = (
    *("pg_control_system", "pg_current_wal_insert_lsn", "pg_walfile_name", "pg_current_snapshot", "pg_notify"),
    *("pg_try_advisory_lock", "pg_try_advisory_xact_lock_shared", "pg_advisory_unlock", "pg_notification_queue_usage"),
)
_CALLED_WITH_REPLICA = ("pg_logical_emit_message", "pg_last_wal_replay_lsn")


@check(
    "postgres.grants",
    "The role of the daemon may use the syncer schema",
    promises=(1,),
    why="Relay, workers and jobs read and write all of it; what one of them may not, ends the daemon.",
)
def _grants(patient: Patient) -> Iterator[Symptom]:
    role = patient.value(_ROLE)
    if not patient.value("SELECT has_schema_privilege('syncer', 'USAGE') FROM pg_namespace WHERE nspname = 'syncer'"):
        if patient.value("SELECT count(*) FROM pg_namespace WHERE nspname = 'syncer'"):
            yield wrong(f"{role} may not use the schema syncer", sql(f"GRANT USAGE ON SCHEMA syncer TO {role};"))
        return
    assert patient.installed  # noqa: S101 - or it has raised
    tables = patient.rows(_LACKING)
    if tables:
        names = ", ".join(name for name, _ in tables)
        yield wrong(
            f"{role} lacks {tables[0][1]} on {tables[0][0]}{_others(len(tables))}",
            sql(
                f"GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON {names} TO {role};",
                "By the owner of the schema; README.md has the grants that also hold for later migrations.",
            ),
        )
    sequences = [name for (name,) in patient.rows(_LACKING_SEQUENCES)]
    if sequences:
        yield wrong(
            f"{role} may not use the sequence {sequences[0]}{_others(len(sequences))}",
            sql(f"GRANT USAGE, SELECT, UPDATE ON SEQUENCE {', '.join(sequences)} TO {role};"),
        )


def _others(many: int) -> str:
    return f", and the like on {many - 1} more" if many > 1 else ""


@check(
    "postgres.reads",
    "The role of the daemon may read every table that documents read",
    promises=(3,),
    why="A document whose tables cannot all be read halts.",
)
def _reads(patient: Patient) -> Iterator[Symptom]:
    role = patient.value(_ROLE)
    columns: dict[str, set[str]] = {}
    for document in patient.documents:
        for relation, use in document.dependencies.tables.items():
            columns.setdefault(relation, set()).update(use.watched | use.routing)
        for view in document.dependencies.views:
            columns.setdefault(str(view), set())
    for relation, read in sorted(columns.items()):
        for may_enter, schema_name, may_read in patient.rows(_READS, relation, sorted(read)):
            if not may_enter:
                yield wrong(
                    f"{role} may not use the schema {schema_name}",
                    sql(f"GRANT USAGE ON SCHEMA {schema_name} TO {role};"),
                )
            if not may_read:
                yield wrong(f"{role} may not read {relation}", sql(f"GRANT SELECT ON {relation} TO {role};"))


@check(
    "postgres.row_security",
    "No row is hidden from the role of the daemon",
    promises=(3,),
    why="A hidden row would delete its document; so that it does not, Postgres raises an error, and the document "
    "halts.",
)
def _row_security(patient: Patient) -> Iterator[Symptom]:
    role = patient.value(_ROLE)
    hidden = [one for one in patient.relations if patient.value(_HIDDEN, one)]
    if hidden:
        yield wrong(
            f"Row-level security applies to {role} in {', '.join(hidden)}", sql(f"ALTER ROLE {role} BYPASSRLS;")
        )


@check(
    "postgres.calls",
    "The role of the daemon may call what it needs of Postgres",
    promises=(1, 2),
    why="Which life of which database this is, who leads and who is to be woken, is asked of these functions.",
)
def _calls(patient: Patient) -> Iterator[Symptom]:
    role = patient.value(_ROLE)
    called = _CALLED + (_CALLED_WITH_REPLICA if patient.settings.postgres.read_dsn else ())
    for (name,) in patient.rows(_FUNCTIONS, list(called)):
        yield wrong(f"{role} may not call {name}", sql(f"GRANT EXECUTE ON FUNCTION pg_catalog.{name} TO {role};"))


CHECKS = (_grants, _reads, _row_security, _calls)
