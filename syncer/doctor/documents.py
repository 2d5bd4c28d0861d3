"""What is in force: documents that halted, are not filled or are parked; jobs that stand still; the definitions."""

from __future__ import annotations

from collections.abc import Iterator

from syncer import definition, job, unreadable
from syncer.doctor.finding import check
from syncer.doctor.patient import Patient, UnseenError
from syncer.doctor.symptom import Symptom, advice, consider, shell, sql, wrong
from syncer.errors import SyncerError
from syncer.job import Job
from syncer.model import Role
from syncer.wording import amount, duration

_DEAD_LETTERS = "SELECT index_name, count(*), min(id) FROM syncer.dead_letter GROUP BY index_name ORDER BY index_name"
_STILL = """
SELECT extract(epoch FROM clock_timestamp() - greatest(
           created_at, started_at, nullif(served_at, '-infinity'), nullif(next_at, '-infinity'), measured_at))::float8
FROM syncer.job WHERE id = $1
"""
_OLD = """
SELECT name, index_name, extract(epoch FROM now() - applied_at)::float8 FROM syncer.document
WHERE role = 'standby' AND applied_at < now() - make_interval(days => 1) * $1::float8 ORDER BY index_name
"""


@check(
    "postgres.halted",
    "No document is halted",
    promises=(3,),
    why="What is halted follows no change until somebody has mended what it says.",
)
def _halted(patient: Patient) -> Iterator[Symptom]:
    for one in patient.documents:
        if one.halted is not None:
            yield wrong(
                f"{one.name} ({one.index_name}) is halted: {one.halted.splitlines()[0]}",
                shell("syncer apply", "\n".join(one.halted.splitlines()[1:])),
            )


@check(
    "postgres.unwell",
    "No index is left until it takes documents again",
    promises=(3,),
    why="What changes of it waits in a job, and searches find what was before.",
)
def _unwell(patient: Patient) -> Iterator[Symptom]:
    for one in patient.documents:
        if one.unwell is not None:
            what, _, hint = one.unwell.partition("\n")
            yield wrong(what, advice(hint or f"Mend {one.index_name}: syncer goes on by itself."))


@check(
    "postgres.filled",
    "Every document has been written once since it was put in force",
    promises=(3,),
    why="Until then documents are missing, or older than their SELECT, and no change will come of them.",
)
def _filled(patient: Patient) -> Iterator[Symptom]:
    if not patient.documents:
        yield consider("No document is in force", shell("syncer apply"))
    under_way = {one.index_name for one in job.unfinished(patient.installed)}
    for one in patient.documents:
        if one.is_filled or one.halted is not None or one.index_name in under_way:
            continue
        if one.role is Role.BUILDING:
            yield consider(
                f"{one.index_name} is being built, and nothing is written to it",
                shell(f"syncer backfill {one.name} --rebuild", "Or give it up: --abandon instead."),
            )
        elif one.role is Role.STANDBY:
            yield consider(
                f"{one.index_name} is kept for a rollback, and may lack changes: there is no way back to it any more",
                shell(f"syncer backfill {one.name} --drop-old"),
            )
        else:
            yield wrong(f"{one.name} has not been filled since it was put in force", shell("syncer apply"))


@check(
    "postgres.dead_letters",
    "No document is parked",
    promises=(3,),
    why="What is parked is not in its index as its SELECT says it, until it can be written.",
)
def _dead_letters(patient: Patient) -> Iterator[Symptom]:
    assert patient.installed  # noqa: S101 - or it has raised
    for index_name, many, id_ in patient.rows(_DEAD_LETTERS):
        yield wrong(
            f"{amount(many, 'document')} of {index_name} could not be written, such as {id_}",
            shell("syncer dead-letters list", "It says what is at fault; show, retry and discard deal with it."),
        )


@check(
    "postgres.unreadable_records",
    "Every record of the topic could be read",
    promises=(1,),
    why="A record that cannot be read may have been a change; it is kept until somebody decides.",
)
def _unreadable(patient: Patient) -> Iterator[Symptom]:
    for one in unreadable.topics(patient.installed):
        yield wrong(
            f"{amount(one.kept + one.only_counted, 'record')} of {one.topic} could not be read",
            shell(
                "syncer dead-letters list",
                "Of a newer syncer: upgrade, and retry them. Of somebody else: give him a topic of his own, and "
                "discard them.",
            ),
        )


@check(
    "postgres.jobs",
    "No job stands still",
    promises=(3, 4),
    why="What a job has yet to write may be stale until it is done.",
)
def _jobs(patient: Patient) -> Iterator[Symptom]:
    for one in job.unfinished(patient.installed):
        if one.is_paused:
            owed = " and documents may be stale until it is done" if one.kind.is_owed else ""
            yield consider(f"{_named(one)} is paused{owed}", shell(f"syncer jobs resume {one.id}"))
            continue
        seconds = patient.value(_STILL, one.id) or 0
        if not one.is_halted and not one.is_unwell and seconds > patient.limits.job_seconds:
            yield consider(
                f"{_named(one)} has not moved for {duration(seconds)}",
                shell("syncer run", f"If daemons run: syncer jobs show {one.id} and their log say what keeps them."),
            )


def _named(one: Job) -> str:
    return f"Job {one.id} ({one.kind}) of {one.index_name}"


@check(
    "postgres.standby_indices",
    "No index is kept for a rollback that nobody will make",
    promises=(),
    why="It gets every write, and takes as much room as the one that serves.",
)
def _standby_indices(patient: Patient) -> Iterator[Symptom]:
    assert patient.installed  # noqa: S101 - or it has raised
    for name, index_name, seconds in patient.rows(_OLD, patient.limits.standby_days):
        yield consider(
            f"{index_name} is kept for a rollback; its definition was put in force {duration(seconds)} ago",
            shell(f"syncer backfill {name} --drop-old"),
        )


@check(
    "postgres.indexes",
    "Every way from a changed row to its documents has an index",
    promises=(4,),
    why="Without it each change reads a whole table, and live traffic waits.",
)
def _indexes(patient: Patient) -> Iterator[Symptom]:
    from syncer.plan import cost  # noqa: PLC0415 - it parses SQL, which takes long to load

    lookups = [lookup for one in patient.documents for lookup in one.dependencies.lookups]
    for missing in cost.missing_indexes(patient.installed, lookups):
        yield consider(
            f"{missing.relation} ({amount(missing.rows, 'row')}) has no index that "
            "begins with "
            f"{', '.join(missing.columns)}",
            sql(missing.statement),
        )


@check(
    "syncer.definitions",
    "The config folder says what is in force",
    promises=(3,),
    why="Daemons follow what was applied; what was only written down is followed by nobody.",
)
def _definitions(patient: Patient) -> Iterator[Symptom]:
    served = {one.name: one for one in patient.documents if one.role is Role.SERVING}
    try:
        written = {one.name: one for one in definition.load_all(patient.config_folder)}
    except SyncerError as error:
        raise UnseenError(error.message) from error
    for name, one in written.items():
        there = served.get(name)
        if there is None:
            yield consider(f"{name} is in {patient.config_folder} and not in force", shell("syncer apply"))
            continue
        pairs = {
            "select.sql": (one.select, there.select),
            "affects": (one.affects, there.affects),
            "index.json": (one.index_body, there.index_body),
            "document.yaml": (one.index, there.index),
        }
        differ = [file for file, (here, in_force) in pairs.items() if here != in_force]
        if differ:
            yield consider(
                f"{name}: {' and '.join(differ)} of {one.folder} differ from what is in force",
                shell("syncer apply", "syncer plan says what it would do."),
            )
    for name in served.keys() - written.keys():
        yield consider(
            f"{name} is in force, and {patient.config_folder} has no folder of it",
            advice("Bring the folder back, or name the right one: SYNCER_CONFIG."),
        )


CHECKS = (_halted, _unwell, _filled, _dead_letters, _unreadable, _jobs, _standby_indices, _indexes)
OF_SYNCER = (_definitions,)
