"""What syncer keeps in Postgres: its schema, the outbox, the sequence of versions, and the triggers on your tables."""

from __future__ import annotations

from collections.abc import Iterator

from syncer import capturable, capture, outbox, schema, trigger
from syncer.doctor.finding import check
from syncer.doctor.patient import Patient
from syncer.doctor.symptom import Symptom, advice, consider, shell, sql, wrong
from syncer.errors import DefinitionError, SourceError
from syncer.wording import amount, duration

_PUBLISHED = shell(
    "syncer apply", "It installs what is missing, and writes the documents once that may have missed changes."
)

_UNLOGGED = """
SELECT format('%I.%I', n.nspname, c.relname), c.relkind = 'S'
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'syncer' AND c.relkind IN ('r', 'S') AND c.relpersistence <> 'p'
ORDER BY 2, 1
"""
_SEGMENTS = """
SELECT format('syncer.outbox_%s', number), number,
       c.oid IS NOT NULL AND EXISTS (
           SELECT FROM pg_inherits
           WHERE inhrelid = c.oid AND inhparent = 'syncer.outbox'::regclass AND NOT inhdetachpending),
       EXISTS (SELECT FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
               WHERE i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL AND a.attname = 'xid')
FROM generate_series(0, $1 - 1) AS number LEFT JOIN pg_class AS c ON c.oid = to_regclass('syncer.outbox_' || number)
"""
_OUTBOX_SIZE = (
    "SELECT coalesce(sum(pg_total_relation_size(inhrelid)), 0)::bigint FROM pg_inherits WHERE inhparent = $1::regclass"
)
_SEQUENCE = """
SELECT seqincrement, seqmin, seqmax, seqcache, seqcycle, seqtypid = 'bigint'::regtype
FROM pg_sequence WHERE seqrelid = to_regclass('syncer.version')
"""
_SEQUENCE_MAX = (1 << 43) - 1
_SEQUENCE_SQL = (
    f"ALTER SEQUENCE syncer.version AS bigint INCREMENT 1 MINVALUE 1 MAXVALUE {_SEQUENCE_MAX} CACHE 1 NO CYCLE;"
)
_SEGMENT_SEQUENCE = """
SELECT (seqincrement, seqmin, seqmax, seqcycle) = (1, 0, $1 - 1, false)
FROM pg_sequence WHERE seqrelid = to_regclass('syncer.outbox_segment')
"""
_RUNS_AS = """
SELECT p.prosecdef, quote_ident(r.rolname),
       has_schema_privilege(p.proowner, 'syncer', 'USAGE')
         AND has_table_privilege(p.proowner, 'syncer.outbox', 'INSERT')
         AND (has_sequence_privilege(p.proowner, 'syncer.outbox_segment', 'USAGE')
              OR has_sequence_privilege(p.proowner, 'syncer.outbox_segment', 'SELECT'))
         AND has_function_privilege(p.proowner, 'syncer.row_image(json)', 'EXECUTE')
FROM pg_proc AS p JOIN pg_roles AS r ON r.oid = p.proowner WHERE p.oid = to_regproc($1)
"""


@check(
    "postgres.schema",
    "The syncer schema is that of this program",
    promises=(1,),
    why="A program that works with a schema that it does not know may do anything.",
)
def _schema(patient: Patient) -> Iterator[Symptom]:
    try:
        schema.require_current(patient.postgres)
    except SourceError as error:
        is_newer = "newer" in error.message
        yield wrong(error.message, advice(error.hint) if is_newer else shell("syncer migrate"))


@check(
    "postgres.logged",
    "Every table and sequence of syncer's is logged",
    promises=(1, 2),
    why="A crash of Postgres empties an unlogged table, and sets an unlogged sequence back.",
)
def _logged(patient: Patient) -> Iterator[Symptom]:
    assert patient.installed  # noqa: S101 - or it has raised
    for name, is_sequence in patient.rows(_UNLOGGED):
        what = "SEQUENCE" if is_sequence else "TABLE"
        yield wrong(f"{name} is unlogged", sql(f"ALTER {what} {name} SET LOGGED;"))


@check(
    "postgres.outbox",
    "The outbox has its segments, and finds its rows by index",
    promises=(1, 5),
    why="Without its segment a write of an application fails; without the index each look of the relay reads all "
    "of it.",
)
def _outbox(patient: Patient) -> Iterator[Symptom]:
    assert patient.installed  # noqa: S101 - or it has raised
    segments = patient.rows(_SEGMENTS, outbox.SEGMENTS)
    for name, number, is_attached, _ in segments:
        if not is_attached:
            yield wrong(
                f"{name} is not a partition of syncer.outbox",
                sql(
                    f"CREATE TABLE IF NOT EXISTS {name} (LIKE syncer.outbox INCLUDING ALL EXCLUDING IDENTITY);\n"
                    f"ALTER TABLE syncer.outbox ATTACH PARTITION {name} FOR VALUES IN ({number});"
                ),
            )
    if any(is_attached and not has_index for _, _, is_attached, has_index in segments):
        yield wrong(
            "Segments of the outbox have no index on xid",
            sql("CREATE INDEX IF NOT EXISTS outbox_xid ON syncer.outbox (xid);"),
        )
    if patient.value(_SEGMENT_SEQUENCE, outbox.SEGMENTS) is not True:
        yield wrong(
            "syncer.outbox_segment counts otherwise than the outbox has segments",
            sql(
                f"ALTER SEQUENCE syncer.outbox_segment INCREMENT 1 MINVALUE 0 MAXVALUE {outbox.SEGMENTS - 1} NO CYCLE;"
            ),
        )


@check(
    "postgres.outbox_backlog",
    "The outbox is published and given back",
    promises=(1,),
    why="What stays in the outbox is in no document yet; and it takes the disk.",
)
def _outbox_backlog(patient: Patient) -> Iterator[Symptom]:
    waiting, seconds = outbox.waiting(patient.installed, outbox.saved_cursor(patient.installed))
    if waiting and seconds > patient.limits.outbox_seconds:
        yield consider(
            f"{amount(waiting, 'change')} in the outbox wait to be published, the oldest for {duration(seconds)}",
            shell("syncer run", "If it runs: its log says what keeps it from Kafka."),
        )
    size = patient.value(_OUTBOX_SIZE, "syncer.outbox")
    if size > patient.limits.outbox_bytes:
        yield consider(
            f"The outbox takes {size / 1024**2:,.0f} MB of the disk",
            advice(
                "Segments are emptied once they are published and no transaction that has written them is open: see "
                "postgres.transactions and postgres.prepared, and whether a relay leads (syncer status)."
            ),
        )


@check(
    "postgres.sequence",
    "The sequence of versions counts by one, without a cache, and never begins again",
    promises=(2,),
    why="A version that is drawn later has to be the greater one; sessions that cache numbers draw them out of order.",
)
def _sequence(patient: Patient) -> Iterator[Symptom]:
    assert patient.installed  # noqa: S101 - or it has raised
    rows = patient.rows(_SEQUENCE)
    if not rows:
        yield wrong("There is no sequence syncer.version", advice("Restore the schema syncer from a backup, whole."))
        return
    increment, least, greatest, cache, cycles, is_bigint = rows[0]
    ills = {
        f"counts by {increment}": increment != 1,
        f"begins with {least}": least != 1,
        f"ends with {greatest}": greatest != _SEQUENCE_MAX,
        f"lets each session cache {cache} numbers": cache != 1,
        "begins again when it has come to its end": cycles,
        "is not of type bigint": not is_bigint,
    }
    found = [said for said, is_ill in ills.items() if is_ill]
    if found:
        yield wrong(f"syncer.version {' and '.join(found)}", sql(_SEQUENCE_SQL))


@check(
    "postgres.tables",
    "Every table that documents read can be captured",
    promises=(1, 3),
    why="An unlogged table is emptied by a crash without a change, and what inherits is written past the triggers.",
)
def _tables(patient: Patient) -> Iterator[Symptom]:
    for relation in patient.relations:
        oid = patient.value("SELECT to_regclass($1)::oid", relation)
        if oid is None:
            yield wrong(f"There is no table {relation} any more", advice(f"Bring {relation} back, or mend select.sql."))
            continue
        try:
            capturable.require_capturable(patient.postgres, oid, "A document")
        except DefinitionError as error:
            _, found, statement = error.hint.partition("ALTER TABLE ")
            mend = sql(f"ALTER TABLE {statement};") if found else advice(error.hint)
            yield wrong(error.message, mend)


@check(
    "postgres.triggers",
    "Every table that documents read has its triggers, and they always fire",
    promises=(1, 5),
    why="A change that no trigger sees reaches no document, and nothing tells of it.",
)
def _triggers(patient: Patient) -> Iterator[Symptom]:
    for relation in patient.relations:
        if relation not in patient.captures:
            yield wrong(f"syncer does not know how {relation} is captured", _PUBLISHED)
        elif not capture.is_installed(patient.postgres, relation):
            yield wrong(f"{relation} lacks triggers of syncer's, or they are disabled", _PUBLISHED)


@check(
    "postgres.functions",
    "The functions of the triggers are those that this program makes, and may write the outbox",
    promises=(1, 5),
    why="An edited function may leave out changes, or columns that say which documents they touch; one that may "
    "not write "
    "the outbox makes every write of an application fail.",
)
def _functions(patient: Patient) -> Iterator[Symptom]:
    for relation, one in patient.captures.items():
        if relation not in patient.relations:
            continue
        name = trigger.function(relation).as_string()
        rows = patient.rows(_RUNS_AS, name)
        if not rows or not capture.is_current(patient.postgres, one):
            yield wrong(f"The function {name} is not the one that this program makes", _PUBLISHED)
            continue
        is_definer, owner, may_write = rows[0]
        if not is_definer:
            yield wrong(
                f"The function {name} runs with the privileges of whoever writes {relation}",
                sql(f"ALTER FUNCTION {name}() SECURITY DEFINER;"),
            )
        if not may_write:
            yield wrong(
                f"{owner}, who owns the function {name}, may not write the outbox",
                sql(
                    f"GRANT USAGE ON SCHEMA syncer TO {owner};\n"
                    f"GRANT INSERT ON syncer.outbox TO {owner};\n"
                    f"GRANT USAGE ON SEQUENCE syncer.outbox_segment TO {owner};\n"
                    f"GRANT EXECUTE ON FUNCTION syncer.row_image(json) TO {owner};"
                ),
            )


CHECKS = (
    _schema,
    _logged,
    _outbox,
    _outbox_backlog,
    _sequence,
    _tables,
    _triggers,
    _functions,
)
