"""Checks of Postgres: what a crash may lose, what syncer keeps there, and what the daemon's role may do."""

from __future__ import annotations

from collections.abc import Iterator

from psycopg.types.json import Jsonb

from syncer.base import migrations
from syncer.base.errors import SourceError
from syncer.base.formatting import amount
from syncer.base.postgres import LOCK_SECONDS_MAX
from syncer.capture import install, triggers
from syncer.monitoring.doctor.check import Check, Finding, advice, check, consider, shell, sql, wrong
from syncer.monitoring.doctor.deployment import Deployment, Duty

_RELOAD = "SELECT pg_reload_conf();"
_ROLES = advice("Run docs/roles.sql, and make the role a member of the group roles of its duties.")
_NOTE = "If nothing changes, the setting is on the server's command line."

# What a new session of the role gets: our own sessions pin some settings.
_SETTING = "SELECT reset_val FROM pg_settings WHERE name = $1"
_SET_FOR = """
SELECT coalesce(quote_ident(r.rolname), CASE s.setdatabase WHEN 0 THEN 'ALL' ELSE '' END),
       coalesce(quote_ident(d.datname), '')
FROM pg_db_role_setting AS s CROSS JOIN unnest(s.setconfig) AS one
LEFT JOIN pg_roles AS r ON r.oid = s.setrole LEFT JOIN pg_database AS d ON d.oid = s.setdatabase
WHERE one = $1 AND (s.setdatabase = 0 OR d.datname = current_database())
ORDER BY 1, 2
"""
_UNLOGGED = """
SELECT format('%I.%I', n.nspname, c.relname), CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'syncer' AND c.relkind IN ('r', 'S') AND c.relpersistence <> 'p'
ORDER BY 2, 1
"""
_SEQUENCE = """
SELECT seqincrement, seqmin, seqmax, seqcache, seqcycle, seqtypid::regtype::text
FROM pg_sequence WHERE seqrelid = 'syncer.version'::regclass
"""
_SEQUENCE_MAX = (1 << 43) - 1
_RUNS_AS = """
SELECT p.prosecdef, quote_ident(r.rolname),
       has_schema_privilege(p.proowner, 'syncer', 'USAGE')
         AND has_table_privilege(p.proowner, 'syncer.outbox', 'INSERT')
         AND (has_sequence_privilege(p.proowner, 'syncer.outbox_segment', 'USAGE')
              OR has_sequence_privilege(p.proowner, 'syncer.outbox_segment', 'SELECT'))
         AND has_function_privilege(p.proowner, 'syncer.text_of(anyelement,integer)', 'EXECUTE')
FROM pg_proc AS p JOIN pg_roles AS r ON r.oid = p.proowner WHERE p.oid = to_regproc($1)
"""
_MAY_USE = "SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = 'syncer'"
_LACKING = """
SELECT needed.privilege || ' on syncer.' || c.relname
FROM jsonb_each($1) AS asked (name, privileges)
CROSS JOIN jsonb_array_elements_text(asked.privileges) AS needed (privilege)
JOIN pg_class AS c ON c.relnamespace = 'syncer'::regnamespace AND c.relname = asked.name
WHERE NOT CASE WHEN c.relkind = 'S' THEN has_sequence_privilege(c.oid, needed.privilege)
    WHEN needed.privilege IN ('DELETE', 'TRUNCATE') THEN has_table_privilege(c.oid, needed.privilege)
    ELSE has_any_column_privilege(c.oid, needed.privilege) END
ORDER BY 1
"""
_NEEDED = {
    Duty.READER: {
        "document": ["SELECT"],
        "job": ["SELECT"],
        "outbox": ["SELECT"],
        "verification": ["INSERT", "UPDATE"],
    },
    Duty.RELAY: {
        "outbox": ["SELECT", "INSERT", "UPDATE"],
        "outbox_0": ["SELECT", "TRUNCATE"],
        "outbox_segment": ["UPDATE"],
        "cursor": ["INSERT", "UPDATE", "DELETE"],
        "term": ["UPDATE"],
        "document": ["UPDATE"],
        "daemon": ["INSERT", "UPDATE", "DELETE"],
        "job": ["INSERT", "UPDATE", "DELETE"],
        "job_chunk": ["DELETE"],
    },
    Duty.WORKER: {
        "document": ["SELECT", "UPDATE"],
        "dead_letter": ["INSERT", "UPDATE", "DELETE"],
        "daemon": ["INSERT", "UPDATE", "DELETE"],
        "job": ["INSERT", "UPDATE", "DELETE"],
        "job_chunk": ["INSERT", "UPDATE", "DELETE"],
        "cluster_identity": ["UPDATE"],
        "partition": ["INSERT", "UPDATE"],
        "version": ["USAGE"],
        "version_lock": ["UPDATE"],
        "version_time": ["INSERT", "UPDATE", "DELETE"],
    },
}
"""By duty, privileges that a member of the roles in ``docs/roles.sql`` has: on tables, their columns, and sequences."""
_READS = """
SELECT quote_ident(n.nspname), has_schema_privilege(n.oid, 'USAGE'),
       has_table_privilege(c.oid, 'SELECT') OR (SELECT bool_and(has_column_privilege(c.oid, a.attnum, 'SELECT'))
           FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attname = ANY ($2) AND NOT a.attisdropped),
       row_security_active(c.oid)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE format('%I.%I', n.nspname, c.relname) = $1
"""
_CALLED = (
    *("pg_control_system", "pg_current_wal_insert_lsn", "pg_walfile_name", "pg_current_snapshot"),
    *("pg_try_advisory_lock", "pg_advisory_unlock"),
)
_NOT_CALLABLE = """
SELECT oid::regprocedure::text FROM pg_proc
WHERE pronamespace = 'pg_catalog'::regnamespace AND proname = ANY ($1) AND NOT has_function_privilege(oid, 'EXECUTE')
ORDER BY 1
"""


@check("postgres.reach", "Postgres answers, takes writes and has the syncer schema of this version", 1)
def _reach(deployment: Deployment) -> Iterator[Finding]:
    """Everything that syncer follows and remembers is there."""
    if (failure := deployment.failure("postgres")) is not None:
        yield wrong(failure.message, advice(failure.hint))
        return
    if deployment.value("SELECT pg_is_in_recovery()"):
        yield wrong(
            "The server at postgres.dsn is a standby",
            advice(
                "Set SYNCER_POSTGRES_DSN to the primary. To choose it from several hosts, add "
                "target_session_attrs=read-write."
            ),
        )
        return
    try:
        migrations.require_current(deployment.postgres)
    except SourceError as error:
        yield wrong(error.message, advice(error.hint) if "newer" in error.message else shell("syncer migrate"))


@check("postgres.durability", "fsync and full_page_writes are on", 1, 2)
def _durability(deployment: Deployment) -> Iterator[Finding]:
    """A crash of the machine may lose any commit, or leave the outbox and the sequence of versions damaged."""
    for name in ("fsync", "full_page_writes"):
        if deployment.value(_SETTING, name) == "off":
            yield wrong(f"{name} is off", sql(f"ALTER SYSTEM SET {name} = on;\n{_RELOAD}", _NOTE))


@check("postgres.synchronous_commit", "No application commits with synchronous_commit off", 3)
def _synchronous_commit(deployment: Deployment) -> Iterator[Finding]:
    """A change is followed at once. If a crash takes back its commit, its documents show what the database lost."""
    name = "synchronous_commit"
    found = deployment.rows(_SET_FOR, f"{name}=off")
    for role, database in found:
        where = " IN ".join(filter(None, (role and f"ROLE {role}", database and f"DATABASE {database}")))
        yield consider(f"{name} is off for {role or database}", sql(f"ALTER {where} RESET {name};"))
    if not found and deployment.value(_SETTING, name) == "off":
        yield consider(f"{name} is off", sql(f"ALTER SYSTEM SET {name} = on;\n{_RELOAD}", _NOTE))


@check("postgres.deadlock_timeout", f"deadlock_timeout is longer than {LOCK_SECONDS_MAX:g} s", 5)
def _deadlock_timeout(deployment: Deployment) -> Iterator[Finding]:
    """A migration may wait that long for syncer to release a table. A shorter timeout may end the migration instead."""
    milliseconds = int(deployment.value(_SETTING, "deadlock_timeout"))
    if milliseconds <= LOCK_SECONDS_MAX * 1000:
        fix = sql(f"ALTER SYSTEM SET deadlock_timeout = '1s';\n{_RELOAD}", _NOTE)
        yield consider(f"deadlock_timeout is {milliseconds} ms", fix)


@check("postgres.logged", "Every table and sequence of the syncer schema is logged", 1, 2)
def _logged(deployment: Deployment) -> Iterator[Finding]:
    """A crash of Postgres empties an unlogged table, and resets an unlogged sequence."""
    for name, kind in deployment.schema.execute(_UNLOGGED):
        yield wrong(f"{name} is unlogged", sql(f"ALTER {kind} {name} SET LOGGED;"))


@check("postgres.sequence", "The sequence of versions counts by one, without a cache or a cycle", 2)
def _sequence(deployment: Deployment) -> Iterator[Finding]:
    """A later version must be greater. Sessions that cache numbers assign them out of order."""
    for found in deployment.schema.execute(_SEQUENCE):
        if found != (1, 1, _SEQUENCE_MAX, 1, False, "bigint"):
            increment, least, greatest, cache, cycles, kind = found
            said = f"INCREMENT {increment} MINVALUE {least} MAXVALUE {greatest} CACHE {cache}"
            yield wrong(
                f"syncer.version is {kind} {said} {'CYCLE' if cycles else 'NO CYCLE'}",
                sql(
                    f"ALTER SEQUENCE syncer.version AS bigint INCREMENT 1 MINVALUE 1 MAXVALUE {_SEQUENCE_MAX} "
                    "CACHE 1 NO CYCLE;"
                ),
            )


@check("postgres.triggers", "Every table that documents read has its triggers, as this version makes them", 1, 5)
def _triggers(deployment: Deployment) -> Iterator[Finding]:
    """A change that no trigger captures reaches no document. One that cannot write the outbox makes writes fail."""
    captures = install.captured(deployment.schema)
    again = shell("syncer apply", "It installs them, and writes the documents again that may have missed changes.")
    for relation in deployment.relations:
        capture, name = captures.get(relation), triggers.function(relation).as_string()
        if capture is None or not install.is_installed(deployment.postgres, relation):
            yield wrong(f"{relation} lacks its triggers, or they are disabled", again)
            continue
        if not install.is_current(deployment.postgres, capture):
            yield wrong(f"The function {name} is not the one that this version makes", again)
            continue
        for is_definer, owner, may_write in deployment.rows(_RUNS_AS, name):
            if not is_definer:
                found = f"The function {name} runs with the privileges of the role that writes {relation}"
                yield wrong(found, sql(f"ALTER FUNCTION {name}() SECURITY DEFINER;"))
            if not may_write:
                yield wrong(
                    f"{owner}, which owns the function {name}, may not write the outbox",
                    sql(
                        f"GRANT USAGE ON SCHEMA syncer TO {owner};\n"
                        f"GRANT INSERT ON syncer.outbox TO {owner};\n"
                        f"GRANT USAGE ON SEQUENCE syncer.outbox_segment TO {owner};\n"
                        f"GRANT EXECUTE ON FUNCTION syncer.text_of(anyelement,integer) TO {owner};"
                    ),
                )


@check("postgres.privileges", "The role may use the syncer schema, and read every row that documents show", 1, 3)
def _privileges(deployment: Deployment) -> Iterator[Finding]:
    """A component without a privilege stops, and a document that cannot be read is suspended."""
    role = deployment.value("SELECT quote_ident(current_user)")
    if deployment.rows(_MAY_USE) == [(False,)]:
        yield wrong(f"{role} may not use the schema syncer", _ROLES)
        return
    for duty in sorted(deployment.duties):
        lacking = [name for (name,) in deployment.schema.execute(_LACKING, (Jsonb(_NEEDED[duty]),))]
        if lacking:
            yield wrong(f"{role} has no {', '.join(lacking)}", _ROLES)
            return
    statements = dict(_refused(deployment))
    if statements:
        first, *others = statements
        more = f", nor {amount(len(others), 'thing')} more" if others else ""
        fix = "\n".join(statement.format(role=role) for statement in dict.fromkeys(statements.values()))
        yield wrong(f"{role} may not {first}{more}", sql(fix))


def _refused(deployment: Deployment) -> Iterator[tuple[str, str]]:
    """Return what else the role may not do, and the statement that allows it."""
    for (name,) in deployment.rows(_NOT_CALLABLE, list(_CALLED)):
        yield f"call {name}", f"GRANT EXECUTE ON FUNCTION pg_catalog.{name} TO {{role}};"
    if deployment.duties != {Duty.RELAY}:
        yield from _unreadable(deployment)


def _unreadable(deployment: Deployment) -> Iterator[tuple[str, str]]:
    columns: dict[str, set[str]] = {}
    for document in deployment.documents:
        for relation, use in document.dependencies.tables.items():
            columns.setdefault(relation, set()).update(use.watched | use.routing)
        for view in document.dependencies.views:
            columns.setdefault(str(view), set())
    for relation, read in sorted(columns.items()):
        for schema, may_enter, may_read, is_filtered in deployment.rows(_READS, relation, sorted(read)):
            if not may_enter:
                yield f"use the schema {schema}", f"GRANT USAGE ON SCHEMA {schema} TO {{role}};"
            if not may_read:
                yield f"read {relation}", f"GRANT SELECT ON {relation} TO {{role}};"
            if is_filtered:
                yield f"bypass row-level security of {relation}", "ALTER ROLE {role} BYPASSRLS;"


CHECKS = tuple(one for one in globals().values() if isinstance(one, Check))
