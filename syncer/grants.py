"""Grants: what a role of Postgres needs for what it does, and nothing else.

Owns which duty reads and writes which table of the syncer schema. Guarantees that every table and every sequence of the
schema is named here, which a test holds against the migrations; that a script gives what it says and takes back what a
script before gave in the syncer schema; and that identifiers are quoted, whatever is in them.

Duties add up: a role that has several is named for each of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from psycopg import sql

from syncer import dependency, outbox, schema, store
from syncer.definition import Definition
from syncer.errors import DefinitionError, SourceError
from syncer.postgres import Connection, names_in_full, value
from syncer.shape import FUNCTION, Shapes
from syncer.uses import Dependencies


class Duty(StrEnum):
    """What a role is for."""

    MIGRATOR = "migrator"
    """`syncer migrate`, `plan` and `apply`: owns the schema, and is a member of the tables' owners."""
    RELAY = "relay"
    """`syncer run --only relay`: reads no table of an application."""
    WORKER = "worker"
    """`syncer run --only workers`: cannot empty the outbox, nor move the relay's cursor."""
    OPERATOR = "operator"
    """`syncer backfill`, also with --rebuild, `jobs`, `dead-letters`, `verify --repair`: a worker by hand."""
    READER = "reader"
    """`syncer status`, `verify`, `explain`: changes nothing but the note of what was found."""


ROLE_BYTES_MAX = 63
"""How long a name may be that Postgres does not cut."""

_SELECT = "SELECT"
_READ_AND_CHANGE = "SELECT, UPDATE"
_ADD = "SELECT, INSERT"
_ADD_AND_CHANGE = "SELECT, INSERT, UPDATE"
_ALL = "SELECT, INSERT, UPDATE, DELETE"

TABLES = (
    *("_yoyo_migration", "capture", "dead_letter", "document", "generation", "incarnation", "job", "job_page"),
    *("leftover", "outbox", "relay_cursor", "rewrite", "topic", "turn", "unreadable_record", "unreadable_topic"),
    *("verification", "version_time", "postponed"),
    *(f"outbox_{number}" for number in range(outbox.SEGMENTS)),
)
"""Every table that a version of the schema has, but for what yoyo alone uses; those that are not there get no grant."""
_EVERY_TABLE = dict.fromkeys(TABLES, _SELECT)
_LOOKED_AT = dict.fromkeys(
    (
        *("_yoyo_migration", "capture", "dead_letter", "document", "incarnation", "job", "outbox", "relay_cursor"),
        *("rewrite", "topic", "unreadable_topic", "verification", "version_time"),
    ),
    _SELECT,
)
"""What a daemon says of itself."""
_WATCHED = {"capture": _READ_AND_CHANGE, "outbox": _ADD, "version_time": _ALL}
"""What every daemon looks after: see `syncer.watch`."""
_WRITTEN = {
    **_WATCHED,
    "dead_letter": _ALL,
    "document": _READ_AND_CHANGE,
    "incarnation": _READ_AND_CHANGE,
    "job": _ALL,
    "job_page": _ALL,
    "postponed": _ALL,
    "rewrite": _ADD,
    "topic": _ADD_AND_CHANGE,
    # Locked by who draws a version.
    "turn": _READ_AND_CHANGE,
    "unreadable_record": _ADD,
    "unreadable_topic": _ADD_AND_CHANGE,
}

ON_TABLES: Mapping[Duty, Mapping[str, str]] = {
    Duty.RELAY: {
        **_LOOKED_AT,
        **_WATCHED,
        # A cursor of another cluster: all of the outbox gets transaction ids of this one.
        "outbox": _ADD_AND_CHANGE,
        **{f"outbox_{number}": "SELECT, TRUNCATE" for number in range(outbox.SEGMENTS)},
        "relay_cursor": _ADD_AND_CHANGE,
        # What Kafka has lost is made up for by jobs; what cannot go on is halted.
        "rewrite": "SELECT, INSERT",
        "topic": _ADD_AND_CHANGE,
        "document": _READ_AND_CHANGE,
        "job": _ALL,
        "job_page": "SELECT, DELETE",
        "postponed": "SELECT, DELETE",
    },
    Duty.WORKER: {**_EVERY_TABLE, **_WRITTEN},
    Duty.OPERATOR: {
        **_EVERY_TABLE,
        **_WRITTEN,
        "document": _ALL,
        "generation": _ALL,
        "leftover": _ALL,
        "unreadable_record": "SELECT, INSERT, DELETE",
        "verification": _ADD_AND_CHANGE,
    },
    # What a comparison has found is noted.
    Duty.READER: {**_EVERY_TABLE, "verification": _ADD_AND_CHANGE},
}
"""By duty, what it may do with which table. The schema's owner may do everything."""

_LOOKED_AT_SEQUENCES = {"outbox_id_seq": _SELECT, "outbox_segment": _SELECT, "version": _SELECT}
_DRAWN = {**_LOOKED_AT_SEQUENCES, "version": "USAGE, SELECT", "lane": "USAGE, SELECT"}
ON_SEQUENCES: Mapping[Duty, Mapping[str, str]] = {
    Duty.RELAY: {**_LOOKED_AT_SEQUENCES, "outbox_segment": _READ_AND_CHANGE},
    Duty.WORKER: _DRAWN,
    Duty.OPERATOR: _DRAWN,
    Duty.READER: _LOOKED_AT_SEQUENCES,
}
"""The same of sequences."""

READS = frozenset({Duty.WORKER, Duty.OPERATOR, Duty.READER})
"""Who reads the tables that documents are made of."""

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
# Of the schema syncer, and others that are named; those that everybody may call as it is need nothing.
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
    """What documents are made of.

    Args:
        tables: Relations, quoted, whose rows they show.
        views: Views that they are read through.
        functions: What their SELECTs call, beside Postgres' own, with the types of their arguments.
        left_out: Definitions that are refused as they are, and why.
    """

    tables: tuple[str, ...] = ()
    views: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def of_documents(connection: Connection, definitions: Iterable[Definition]) -> Reads:
    """What the documents in force read, and those that are yet to be applied."""
    found: list[Dependencies] = []
    left_out: list[str] = []
    for one in definitions:
        try:
            found.append(dependency.analyse(connection, one))
        except DefinitionError as error:
            left_out.append(f"{one.name} is left out: {error.message}")
    if schema.exists(connection):
        found += [one.dependencies for one in store.documents(connection)]
    shapes: Shapes = {name: shape for one in found for name, shape in one.shapes.items()}
    return Reads(
        tables=tuple(sorted({relation for one in found for relation in one.tables})),
        views=tuple(sorted({str(view) for one in found for view in one.views})),
        functions=tuple(sorted(name for name, shape in shapes.items() if shape.kind == FUNCTION)),
        left_out=tuple(left_out),
    )


def wanted(duties: Collection[Duty], by_duty: Mapping[Duty, Mapping[str, str]]) -> dict[str, frozenset[str]]:
    """The privileges that these duties have together, by name of the table, or of the sequence."""
    found: dict[str, frozenset[str]] = {}
    for duty in duties:
        for name, privileges in by_duty.get(duty, {}).items():
            found[name] = found.get(name, frozenset()) | frozenset(privileges.split(", "))
    return found


def script(connection: Connection, roles: Mapping[str, Collection[Duty]], reads: Reads) -> str:
    """SQL that gives these roles what their duties need: to be run by the owner of the schema, or a superuser.

    It may be run again, and is to be after `syncer migrate` and `syncer apply` have changed what there is.

    Raises:
        SourceError: The syncer schema is not there, and a role other than a migrator is asked for.
    """
    is_installed = schema.exists(connection)
    if not is_installed and any(set(duties) - {Duty.MIGRATOR} for duties in roles.values()):
        raise SourceError(
            "The database has no syncer schema to give privileges on",
            hint="First syncer grants --migrator ROLE alone, and as that role: syncer migrate",
        )
    lines = ["BEGIN;", *(f"-- {_one_line(one)}" for one in reads.left_out)]
    for role, duties in roles.items():
        lines.append(f"\n-- {_one_line(role)}: {', '.join(duties)}")
        lines += [f"{one.as_string(connection)};" for one in _of_role(connection, role, duties, reads)]
        lines += [f"-- {_one_line(one)}" for one in _remarks(connection, role, duties, reads)]
    return "\n".join((*lines, "\nCOMMIT;"))


def _one_line(text: str) -> str:
    """As a comment may have it: nothing of it is a statement."""
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
    if rest & READS:
        yield from _on_relations(connection, name, reads)
    elif rest:
        # To know of a table that it is there, as the relay has to, is no right to read it.
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
        needed = {one: privileges for one, privileges in wanted(duties, by_duty).items() if one in there}
        for privileges, names in by_privileges(needed):
            yield sql.SQL("GRANT {} ON {}{} TO {}").format(
                sql.SQL(", ").join(sql.SQL(one) for one in privileges),
                kind,
                sql.SQL(", ").join(sql.Identifier("syncer", one) for one in names),
                name,
            )


def _on_functions(connection: Connection, name: sql.Identifier, named: Collection[str]) -> Iterator[sql.Composed]:
    with names_in_full(connection):
        closed = connection.execute(_CLOSED_FUNCTIONS, (list(named),)).fetchall()
    for (one,) in closed:
        yield sql.SQL("GRANT EXECUTE ON FUNCTION {} TO {}").format(sql.SQL(one), name)  # quoted by Postgres itself


def by_privileges(privileges: Mapping[str, frozenset[str]]) -> list[tuple[list[str], list[str]]]:
    """The names that have the same privileges, together: the privileges in their order, and the names."""
    groups: dict[frozenset[str], list[str]] = {}
    for name, one in privileges.items():
        groups.setdefault(one, []).append(name)
    return [(sorted(one, key=_ORDER.index), sorted(names)) for one, names in groups.items()]


_ORDER = ("USAGE", "SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE")


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
    """Whether a role is a superuser, None if there is no such role; and whether it owns the syncer schema."""
    row = connection.execute(_ABOUT, (role,)).fetchone()
    return (None, False) if row is None else (row[0], bool(row[1]))


def _owners(connection: Connection, reads: Reads) -> list[tuple[str, str, bool]]:
    """Each table with its owner, and whether that is a superuser."""
    return [
        (relation, owner, is_super) for relation, owner, is_super in connection.execute(_OWNERS, ([*reads.tables],))
    ]


def _remarks(connection: Connection, role: str, duties: Collection[Duty], reads: Reads) -> Iterator[str]:
    is_super, is_owner = _standing(connection, role)
    if is_super:
        yield f"{role} is a superuser, who may do everything already."
    elif is_owner and Duty.MIGRATOR not in duties:
        yield f"{role} owns the schema syncer, and may do everything in it already."
    if is_super is None:
        quoted = value(connection, "SELECT quote_ident($1)", (role,))
        yield f"Give it a way to log in, as in psql: \\password {quoted}"
    if Duty.MIGRATOR in duties and not is_super:
        owned = [relation for relation, _, of_super in _owners(connection, reads) if of_super]
        for relation in owned:
            yield f"{relation} belongs to a superuser: apply as one, or ALTER TABLE {relation} OWNER TO another role."
