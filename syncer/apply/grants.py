"""Grants: the privileges that a Postgres role needs for its duties, and no others.

Owns which duty reads and writes which table of the syncer schema. Guarantees: every table and sequence of the schema is
named here, which a test compares with the migrations. A script grants what it says and revokes what an earlier script
granted in the syncer schema. Identifiers are quoted.

A role with several duties is named for each of them; their privileges add up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from psycopg import sql

from syncer.base import migrations
from syncer.base.errors import DefinitionError, SourceError
from syncer.base.postgres import Connection, value
from syncer.capture import outbox
from syncer.documents import analyze, registry
from syncer.documents.definition import Definition
from syncer.lineage.dependencies import Dependencies
from syncer.lineage.fingerprint import FUNCTION, Shapes


class Duty(StrEnum):
    """What a role does."""

    MIGRATOR = "migrator"
    """`syncer migrate`, `plan` and `apply`: owns the schema, and is a member of the tables' owners."""
    RELAY = "relay"
    """`syncer run --only relay`: reads no table of an application."""
    WORKER = "worker"
    """`syncer run --only workers`: cannot empty the outbox, nor move the relay's cursor."""
    OPERATOR = "operator"
    """`syncer backfill`, `index`, `jobs`, `dead-letters`, `verify --repair`: a worker by hand."""
    READER = "reader"
    """`syncer status`, `events`, `verify`, `explain`: only records the result of a verification, and adds events."""


ROLE_BYTES_MAX = 63
"""The longest name that Postgres does not truncate."""

_SELECT = "SELECT"
_READ_AND_CHANGE = "SELECT, UPDATE"
_ADD = "SELECT, INSERT"
# syncer.document, syncer.capture and a job's condition hold SQL that other roles run: writing it confers their
# privileges. So relay and workers may write only single columns there, none of which is executed.
_JOB_CAUSE = "kind,document,index_name,revision,rate,completes_load,cause"
_JOB_PROGRESS = (
    "revision,state,is_paused,rate,completes_load,error,cause,caused_before,changed_at,sequence_numbers,started_at,"
    "finished_at,served_at,next_at,chunks_next,chunks_end,chunks_left,documents_total,documents_done,indexed,deleted,skipped,"
    "dead_lettered,compose_seconds,index_seconds,measured_at,measured_done,measured_rate"
)
_JOB = f"SELECT, INSERT({_JOB_CAUSE}), UPDATE({_JOB_PROGRESS}), DELETE"
_ADD_AND_CHANGE = "SELECT, INSERT, UPDATE"
_ALL = "SELECT, INSERT, UPDATE, DELETE"

TABLES = (
    *("capture", "dead_letter", "document", "event", "revision", "cluster_identity", "job", "job_chunk"),
    *("orphan_index", "migration", "outbox", "relay_cursor", "topic", "version_lock"),
    *("verification", "version_time"),
    *(f"outbox_{number}" for number in range(outbox.SEGMENTS)),
)
"""Every table of any version of the schema; grants skip those that do not exist."""
_EVERY_TABLE = dict.fromkeys(TABLES, _SELECT)
_LOOKED_AT = dict.fromkeys(
    (
        *("capture", "dead_letter", "document", "event", "cluster_identity", "job", "migration", "outbox"),
        *("relay_cursor", "topic", "verification", "version_time"),
    ),
    _SELECT,
)
"""What a daemon reads for its status."""
_WATCHED = {"capture": "SELECT, UPDATE(files)", "outbox": _ADD, "event": "SELECT, INSERT, DELETE"}
"""What every daemon maintains: see `syncer.recovery.schema_watch`."""
_WRITTEN = {
    **_WATCHED,
    "dead_letter": _ALL,
    "document": "SELECT, UPDATE(loaded_at,suspended,suspended_by,stale_since,listings)",
    "cluster_identity": _READ_AND_CHANGE,
    "job": _JOB,
    "job_chunk": _ALL,
    "topic": _ADD_AND_CHANGE,
    # Assigning a version locks it.
    "version_lock": _READ_AND_CHANGE,
    "version_time": _ALL,
}

ON_TABLES: Mapping[Duty, Mapping[str, str]] = {
    Duty.RELAY: {
        **_LOOKED_AT,
        **_WATCHED,
        # If the cursor is of another cluster, all rows of the outbox get transaction ids of this one.
        "outbox": "SELECT, INSERT, UPDATE(xid)",
        **{f"outbox_{number}": "SELECT, TRUNCATE" for number in range(outbox.SEGMENTS)},
        "relay_cursor": _ADD_AND_CHANGE,
        # Jobs make up for what Kafka has lost; a definition that cannot go on is suspended.
        "topic": _ADD_AND_CHANGE,
        "document": "SELECT, UPDATE(loaded_at,suspended,suspended_by,stale_since)",
        "job": _JOB,
        "job_chunk": "SELECT, DELETE",
    },
    Duty.WORKER: {**_EVERY_TABLE, **_WRITTEN},
    Duty.OPERATOR: {
        **_EVERY_TABLE,
        **_WRITTEN,
        "document": _ALL,
        "revision": _ALL,
        "job": _ALL,
        "orphan_index": _ALL,
        "verification": _ADD_AND_CHANGE,
        "event": _ADD,
    },
    # The result of a verification is recorded, and an event that says so.
    Duty.READER: {**_EVERY_TABLE, "verification": _ADD_AND_CHANGE, "event": _ADD},
}
"""By duty: its privileges on each table, or on columns of it. The schema's owner has all privileges."""

_LOOKED_AT_SEQUENCES = {"outbox_id_seq": _SELECT, "outbox_segment": _SELECT, "version": _SELECT}
_ASSIGNED = {**_LOOKED_AT_SEQUENCES, "version": "USAGE, SELECT", "job_worker": "USAGE, SELECT"}
ON_SEQUENCES: Mapping[Duty, Mapping[str, str]] = {
    Duty.RELAY: {**_LOOKED_AT_SEQUENCES, "outbox_segment": _READ_AND_CHANGE},
    Duty.WORKER: _ASSIGNED,
    Duty.OPERATOR: _ASSIGNED,
    Duty.READER: _LOOKED_AT_SEQUENCES,
}
"""The same for sequences."""

READS = frozenset({Duty.WORKER, Duty.OPERATOR, Duty.READER})
"""The duties that read the tables that documents are made of."""

_ABOUT = """
SELECT rolsuper, oid = (SELECT nspowner FROM pg_namespace WHERE nspname = 'syncer') FROM pg_roles WHERE rolname = $1
"""
_THERE = "SELECT relname::text FROM pg_class WHERE relnamespace = to_regnamespace('syncer')"
_OWNERS = """
SELECT format('%I.%I', n.nspname, c.relname), r.rolname::text, r.rolsuper
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace JOIN pg_roles AS r ON r.oid = c.relowner
WHERE format('%I.%I', n.nspname, c.relname) = ANY ($1) ORDER BY 1
"""
_SCHEMAS = """
SELECT n.nspname::text FROM pg_namespace AS n
WHERE n.nspname NOT IN ('pg_catalog', 'information_schema')
  AND n.oid IN (SELECT relnamespace FROM pg_class JOIN unnest($1::text[]) AS one ON oid = to_regclass(one)
                UNION ALL
                SELECT pronamespace FROM pg_proc JOIN unnest($2::text[]) AS one ON oid = to_regprocedure(one))
ORDER BY 1
"""
# Functions of the syncer schema and named others; functions that PUBLIC may execute are left out.
_CLOSED_FUNCTIONS = """
SELECT format('%I.%I(%s)', n.nspname, p.proname, oidvectortypes(p.proargtypes))
FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
WHERE (n.nspname = 'syncer' AND p.prorettype <> 'trigger'::regtype
       OR p.oid IN (SELECT to_regprocedure(one) FROM unnest($1::text[]) AS one))
  AND NOT has_function_privilege('public', p.oid, 'EXECUTE')
ORDER BY 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """What documents read.

    Args:
        tables: Relations, quoted.
        views: Views through which relations are read, quoted.
        functions: Functions that SELECTs call, with argument types, except Postgres' own.
        left_out: Definitions that are refused, and why.
    """

    tables: tuple[str, ...] = ()
    views: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def of_documents(connection: Connection, definitions: Iterable[Definition]) -> Reads:
    """Return what active documents and documents yet to be applied read."""
    found: list[Dependencies] = []
    left_out: list[str] = []
    for one in definitions:
        try:
            found.append(analyze.analyse(connection, one))
        except DefinitionError as error:
            left_out.append(f"{one.name} is left out: {error.message}")
    if migrations.exists(connection):
        found += [one.dependencies for one in registry.documents(connection)]
    shapes: Shapes = {name: shape for one in found for name, shape in one.shapes.items()}
    return Reads(
        tables=tuple(sorted({relation for one in found for relation in one.tables})),
        views=tuple(sorted({str(view) for one in found for view in one.views})),
        functions=tuple(sorted(name for name, shape in shapes.items() if shape.kind == FUNCTION)),
        left_out=tuple(left_out),
    )


def wanted(duties: Collection[Duty], by_duty: Mapping[Duty, Mapping[str, str]]) -> dict[str, frozenset[str]]:
    """Return the combined privileges of these duties, by name of the table or sequence."""
    found: dict[str, frozenset[str]] = {}
    for duty in duties:
        for name, privileges in by_duty.get(duty, {}).items():
            found[name] = found.get(name, frozenset()) | frozenset(privileges.split(", "))
    return found


def script(connection: Connection, roles: Mapping[str, Collection[Duty]], reads: Reads) -> str:
    """Return SQL that grants these roles what their duties need, for the schema's owner or a superuser to run.

    It can be run again. Run it again after `syncer migrate` and `syncer apply`.

    Raises:
        SourceError: There is no syncer schema, and a role other than a migrator is asked for.
    """
    is_installed = migrations.exists(connection)
    if not is_installed and any(set(duties) - {Duty.MIGRATOR} for duties in roles.values()):
        raise SourceError(
            "The database has no syncer schema to grant privileges on",
            hint="First run syncer grants --migrator ROLE alone; then, as that role: syncer migrate",
        )
    lines = ["BEGIN;", *(f"-- {_one_line(one)}" for one in reads.left_out)]
    for role, duties in roles.items():
        lines.append(f"\n-- {_one_line(role)}: {', '.join(duties)}")
        lines += [f"{one.as_string(connection)};" for one in _of_role(connection, role, duties, reads)]
        lines += [f"-- {_one_line(one)}" for one in _remarks(connection, role, duties, reads)]
    return "\n".join((*lines, "\nCOMMIT;"))


def _one_line(text: str) -> str:
    """Put a text on one line, so that no part of it leaves the comment."""
    return " ".join(text.split())


def _of_role(connection: Connection, role: str, duties: Collection[Duty], reads: Reads) -> Iterator[sql.Composed]:
    name = sql.Identifier(role)
    is_super, is_owner = _standing(connection, role)
    if is_super is None:
        yield sql.SQL("CREATE ROLE {} LOGIN").format(name)
    elif is_super:
        return
    if Duty.MIGRATOR in duties:
        yield from _of_migrator(connection, name, role, reads)
    rest = set(duties) - {Duty.MIGRATOR}
    if rest and not is_owner:
        yield from _on_schema(connection, name, rest)
    if rest:
        yield from _on_functions(connection, name, reads.functions if rest & READS else ())
    if Duty.OPERATOR in rest:
        # Checking a condition creates a temporary view: see `syncer.documents.predicate`.
        yield sql.SQL("GRANT TEMPORARY ON DATABASE {} TO {}").format(sql.Identifier(connection.info.dbname), name)
    if rest & READS:
        yield from _on_relations(connection, name, reads)
    elif rest:
        # The relay only has to know that a table exists, which needs no right to read it.
        yield from _on_schemas(connection, name, reads)


def _of_migrator(connection: Connection, name: sql.Identifier, role: str, reads: Reads) -> Iterator[sql.Composed]:
    database = sql.Identifier(connection.info.dbname)
    yield sql.SQL("GRANT CREATE, TEMPORARY ON DATABASE {} TO {}").format(database, name)
    owners = {owner for _, owner, is_super in _owners(connection, reads) if not is_super and owner != role}
    for owner in sorted(owners):
        yield sql.SQL("GRANT {} TO {}").format(sql.Identifier(owner), name)
    yield from _on_schemas(connection, name, reads)


def _on_schema(connection: Connection, name: sql.Identifier, duties: Collection[Duty]) -> Iterator[sql.Composed]:
    yield sql.SQL("REVOKE ALL ON ALL TABLES IN SCHEMA syncer FROM {}").format(name)
    yield sql.SQL("REVOKE ALL ON ALL SEQUENCES IN SCHEMA syncer FROM {}").format(name)
    yield sql.SQL("GRANT USAGE ON SCHEMA syncer TO {}").format(name)
    there = {one for (one,) in connection.execute(_THERE)}
    for kind, by_duty in ((sql.SQL(""), ON_TABLES), (sql.SQL("SEQUENCE "), ON_SEQUENCES)):
        for one, privileges in sorted(wanted(duties, by_duty).items()):
            if one in there:
                yield sql.SQL("GRANT {} ON {}{} TO {}").format(
                    sql.SQL(", ").join(map(sql.SQL, sorted(privileges))), kind, sql.Identifier("syncer", one), name
                )


def _on_functions(connection: Connection, name: sql.Identifier, named: Collection[str]) -> Iterator[sql.Composed]:
    for (one,) in connection.execute(_CLOSED_FUNCTIONS, (list(named),)).fetchall():
        yield sql.SQL("GRANT EXECUTE ON FUNCTION {} TO {}").format(sql.SQL(one), name)  # quoted by Postgres itself


def _on_relations(connection: Connection, name: sql.Identifier, reads: Reads) -> Iterator[sql.Composed]:
    yield from _on_schemas(connection, name, reads)
    relations = (*reads.tables, *reads.views)
    if relations:
        # Quoted by Postgres itself, with format('%I.%I').
        listed = sql.SQL(", ").join(sql.SQL(one) for one in relations)
        yield sql.SQL("GRANT SELECT ON {} TO {}").format(listed, name)


def _on_schemas(connection: Connection, name: sql.Identifier, reads: Reads) -> Iterator[sql.Composed]:
    asked = ([*reads.tables, *reads.views], list(reads.functions))
    for (one,) in connection.execute(_SCHEMAS, asked).fetchall():
        yield sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(one), name)


def _standing(connection: Connection, role: str) -> tuple[bool | None, bool]:
    """Return whether a role is a superuser (None if there is no such role), and whether it owns the syncer schema."""
    row = connection.execute(_ABOUT, (role,)).fetchone()
    return (None, False) if row is None else (row[0], bool(row[1]))


def _owners(connection: Connection, reads: Reads) -> list[tuple[str, str, bool]]:
    """Return each table with its owner, and whether the owner is a superuser."""
    return [
        (relation, owner, is_super) for relation, owner, is_super in connection.execute(_OWNERS, ([*reads.tables],))
    ]


def _remarks(connection: Connection, role: str, duties: Collection[Duty], reads: Reads) -> Iterator[str]:
    is_super, is_owner = _standing(connection, role)
    if is_super:
        yield f"{role} is a superuser and may do everything already."
    elif is_owner and Duty.MIGRATOR not in duties:
        yield f"{role} owns the schema syncer and may do everything in it already."
    if is_super is None:
        quoted = value(connection, "SELECT quote_ident($1)", (role,))
        yield f"Allow it to log in, for example in psql: \\password {quoted}"
    if Duty.MIGRATOR in duties and not is_super:
        owned = [relation for relation, _, of_super in _owners(connection, reads) if of_super]
        for relation in owned:
            yield f"{relation} belongs to a superuser: apply as one, or ALTER TABLE {relation} OWNER TO another role."
