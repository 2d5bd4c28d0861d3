"""What the role of the daemon may do in Postgres."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from psycopg.types.json import Jsonb

from syncer import grants
from syncer.doctor.finding import check
from syncer.doctor.patient import Patient
from syncer.doctor.symptom import Symptom, sql, wrong
from syncer.grants import Duty

_ROLE = "SELECT quote_ident(current_user)"
_LACKING = """
SELECT c.relname::text, array_agg(p.privilege)
FROM jsonb_each($1) AS asked (name, privileges)
JOIN pg_class AS c ON c.relnamespace = to_regnamespace('syncer') AND c.relname = asked.name AND c.relkind IN ('r', 'p')
CROSS JOIN jsonb_array_elements_text(asked.privileges) AS p (privilege)
WHERE NOT has_table_privilege(c.oid, p.privilege)
GROUP BY 1 ORDER BY 1
"""
_LACKING_SEQUENCES = """
SELECT c.relname::text, array_agg(p.privilege)
FROM jsonb_each($1) AS asked (name, privileges)
JOIN pg_class AS c ON c.relnamespace = to_regnamespace('syncer') AND c.relname = asked.name AND c.relkind = 'S'
CROSS JOIN jsonb_array_elements_text(asked.privileges) AS p (privilege)
WHERE NOT has_sequence_privilege(c.oid, p.privilege)
GROUP BY 1 ORDER BY 1
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
    why="What relay, workers and jobs may not, ends the daemon. What each of them needs is what `syncer grants` gives.",
)
def _grants(patient: Patient) -> Iterator[Symptom]:
    role = patient.value(_ROLE)
    if not patient.value("SELECT has_schema_privilege('syncer', 'USAGE') FROM pg_namespace WHERE nspname = 'syncer'"):
        if patient.value("SELECT count(*) FROM pg_namespace WHERE nspname = 'syncer'"):
            yield wrong(f"{role} may not use the schema syncer", sql(f"GRANT USAGE ON SCHEMA syncer TO {role};"))
        return
    assert patient.installed  # noqa: S101 - or it has raised
    yield from _lacking(patient, role, _LACKING, grants.ON_TABLES, "")
    yield from _lacking(patient, role, _LACKING_SEQUENCES, grants.ON_SEQUENCES, "SEQUENCE ")


def _lacking(
    patient: Patient, role: str, query: str, by_duty: Mapping[Duty, Mapping[str, str]], kind: str
) -> Iterator[Symptom]:
    wanted = grants.wanted(patient.duties, by_duty)
    rows = patient.rows(query, Jsonb({name: sorted(privileges) for name, privileges in wanted.items()}))
    lacking = {name: frozenset(privileges) for name, privileges in rows}
    if not lacking:
        return
    groups = grants.by_privileges(lacking)
    privileges, names = groups[0]
    others = len(lacking) - 1
    yield wrong(
        f"{role} lacks {', '.join(privileges)} on {kind.lower()}syncer.{names[0]}"
        + (f", and the like on {others} more" if others else ""),
        sql(
            "\n".join(
                f"GRANT {', '.join(some)} ON {kind}{', '.join(f'syncer.{one}' for one in of)} TO {role};"
                for some, of in groups
            ),
            "By the owner of the schema; syncer grants prints all that a role needs.",
        ),
    )


@check(
    "postgres.reads",
    "The role of the daemon may read every table that documents read",
    promises=(3,),
    why="A document whose tables cannot all be read halts.",
)
def _reads(patient: Patient) -> Iterator[Symptom]:
    role = patient.value(_ROLE)
    columns: dict[str, set[str]] = {}
    if not grants.READS & patient.duties:
        return
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
    read = patient.relations if grants.READS & patient.duties else ()
    hidden = [one for one in read if patient.value(_HIDDEN, one)]
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
