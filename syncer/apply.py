"""Apply: definitions become indices, triggers and a generation in force.

The order is what makes it safe beside live traffic: the index is created first; then triggers, so that every
change is captured from then on; then one commit puts the generation in force for its index, and makes the job that
writes every document once; what that job writes is read after the commit, which covers whatever was composed before,
and whatever was skipped while the document was halted: see `syncer.halting`.

A change that the index does not take in place gets an index of its own, which is followed beside the one that serves
until it takes its place: see `syncer.rebuild`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from syncer import capture, jobs, leftover, store
from syncer.errors import ConfigError, IndexingError
from syncer.indices import Indices
from syncer.job import JobKind
from syncer.model import Target
from syncer.postgres import AdvisoryLock, Connection, value
from syncer.steps import Change, Plan, Step, standing
from syncer.store import Document
from syncer.trigger import Capture


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """A document that has to be written once, by a job.

    Args:
        document: Which.
        job: The job's id; None if it was filled already, and its index only has yet to serve.
    """

    document: Document
    job: int | None


def carry_out(
    connection: Connection,
    indices: Indices,
    decided: Plan,
    *,
    tell: Callable[[str], None] = lambda _: None,
    timeout_seconds: float = 60,
) -> list[Fill]:
    """Make indices, triggers and generations as planned.

    Args:
        connection: As a role that owns the tables and the syncer schema.
        indices: Elasticsearch's.
        decided: What to do.
        tell: Told of each step.
        timeout_seconds: How long to go on asking for the lock of a table that is in use.

    Returns:
        What now has to be written once; any lane does it: see `syncer.refresher`.

    Raises:
        SyncerError: A step was refused. What was done before it does no harm, and apply can be run again.
    """
    with alone(connection):
        _require_planned_on(decided, connection)
        indices.prepare()
        _clear_away(connection, indices, decided.leftovers, tell)
        steps = list(_with_indices(connection, indices, decided.steps, tell))
        # Once triggers are back, nothing else tells that they were gone.
        missed = [one for one in store.documents(connection) if decided.in_force.lost & one.dependencies.tables.keys()]
        jobs.mark_unfilled(connection, [one.index_name for one in missed])
        too_wide = _capture(connection, decided.captures, tell, timeout_seconds=timeout_seconds)
        _drop(connection, indices, decided, tell)
        with connection.transaction():
            fills = [_put_in_force(connection, step) for step in steps]
            _refresh(connection, missed, tell)
        for one in too_wide:
            capture.install(connection, one, timeout_seconds=timeout_seconds, waiting=tell)
        for relation in decided.released:
            capture.remove(connection, relation, timeout_seconds=timeout_seconds, waiting=tell)
            tell(f"released {relation}")
    return fills


def _with_indices(
    connection: Connection, indices: Indices, steps: Iterable[Step], tell: Callable[[str], None]
) -> Iterator[Step]:
    """The steps that change anything, with the indices that they need, which are there then."""
    for step in steps:
        if step.is_new_generation:
            yield dataclasses.replace(step, document=_with_index(connection, indices, step, tell))
        elif step.change is not Change.UNCHANGED:
            yield step


def _drop(connection: Connection, indices: Indices, decided: Plan, tell: Callable[[str], None]) -> None:
    """Put out of force what is not wanted any more."""
    for building in decided.abandoned:
        withdraw(connection, indices, building)
        tell(f"index {building.index_name} is built no more")
    for document in decided.removed:
        _remove(connection, indices, document)
        tell(f"index {document.index_name} of {document.name} is dropped")


def _require_planned_on(decided: Plan, connection: Connection) -> None:
    """Refuse a plan that was made before somebody else has changed what is in force, be it while a person was asked.

    Raises:
        ConfigError: It was.
    """
    if not decided.in_force.is_like(standing(connection)):
        raise ConfigError(
            "Somebody else has changed what is in force since this was planned",
            hint="Nothing was done. Run the same command again: it looks at what is in force now.",
        )


def _refresh(connection: Connection, missed: Iterable[Document], tell: Callable[[str], None]) -> None:
    """Have each index that may have missed changes written again, unless it is filled anyhow, gone or halted."""
    for one in missed:
        made = jobs.create(connection, one, JobKind.REFRESH) if one.halted is None else None
        if made is not None and made.kind is JobKind.REFRESH:
            tell(f"index {one.index_name} may have missed changes: job {made.id} writes all of it again")


def _capture(
    connection: Connection, wanted: Iterable[Capture], tell: Callable[[str], None], *, timeout_seconds: float
) -> list[Capture]:
    """Install triggers that watch what is wanted, and all that is watched now; those that then watch too much."""
    before = capture.captured(connection)
    too_wide = []
    for one in wanted:
        # Until the generation is in force, what is still needs what it watched.
        wide = capture.widened(connection, one, before.get(one.relation))
        capture.install(connection, wide, timeout_seconds=timeout_seconds, waiting=tell)
        tell(f"capturing {one.relation}")
        if wide != one:
            too_wide.append(one)
    return too_wide


def withdraw(connection: Connection, indices: Indices, document: Document) -> None:
    """Put a document's index that is being built, or on standby, out of force, and drop it.

    To be called by whoever is `alone`.
    """
    served = store.served(connection)[document.name]
    if indices.searched(document.index) == [document.index_name]:
        # Whoever was about to let it serve did not come to say so.
        indices.swap(document.index, served.target)
    put_out_of_force(connection, document)
    leftover.drop(connection, indices, document.target)


def put_out_of_force(connection: Connection, document: Document) -> None:
    """From here on nobody writes its index, which is to be dropped."""
    with connection.transaction():
        store.drop_document(connection, document)
        leftover.note(connection, document.target)


def _remove(connection: Connection, indices: Indices, document: Document) -> None:
    """Put a document's index out of force, whatever it is for, and drop it.

    Raises:
        IndexingError: It has an alias that is none of syncer's; nothing was changed.
    """
    # While it is in force, so that whoever dies in between leaves what can be removed again, or applied.
    indices.hide(document.target, document.index)
    put_out_of_force(connection, document)
    leftover.drop(connection, indices, document.target)


def _clear_away(
    connection: Connection, indices: Indices, leftovers: Iterable[Target], tell: Callable[[str], None]
) -> None:
    """Drop what somebody who died has left behind; what is searched stays."""
    for target in leftovers:
        try:
            leftover.drop(connection, indices, target)
        except IndexingError as error:
            tell(error.message)
        else:
            tell(f"index {target.index_name}, left behind by a command that did not come to its end, is dropped")


@contextmanager
def alone(connection: Connection) -> Iterator[None]:
    """Keep out everybody else who puts definitions in or out of force.

    Raises:
        ConfigError: There is one.
    """
    if not value(connection, "SELECT pg_try_advisory_lock($1)", (int(AdvisoryLock.APPLY),)):
        raise ConfigError(
            "Another `syncer apply` or `syncer backfill` is changing what is in force", hint="Wait until it is done."
        )
    try:
        yield
    finally:
        connection.execute("SELECT pg_advisory_unlock($1)", (int(AdvisoryLock.APPLY),))


def _put_in_force(connection: Connection, step: Step) -> Fill:
    document = step.document
    if step.change is Change.INDEX_GONE and step.before is not None and step.before.target != document.target:
        put_out_of_force(connection, step.before)
    if step.is_new_generation:
        store.put_document(connection, document)
        leftover.forget(connection, document.target)
    if step.change is Change.BUILDING and document.is_filled:
        return Fill(document=document, job=None)
    job = jobs.create(connection, document, JobKind.FILL, resumes=not step.is_new_generation)
    assert job is not None  # noqa: S101 - it is in force: nobody else applies
    return Fill(document=document, job=job.id)


def _with_index(connection: Connection, indices: Indices, step: Step, tell: Callable[[str], None]) -> Document:
    """The document with its index: made if it has none, its mapping brought up to date if it has."""
    document = step.document
    if step.change is Change.INDEX_GONE and indices.restore_aliases(document.target, document.index):
        tell(f"aliases of {document.index_name} are back")
    elif step.change in (Change.NEW, Change.INDEX_GONE, Change.REBUILD):
        make = indices.build if step.change is Change.REBUILD else indices.create
        target = make(
            document=document.name,
            alias=document.index,
            body=document.index_body,
            generation=document.generation,
            installation=store.installation(connection),
            announce=partial(leftover.note, connection),
        )
        later = ", once it is complete" if step.change is Change.REBUILD else ""
        tell(f"index {target.index_name}, searched as {document.index}{later}")
        return dataclasses.replace(document, target=target)
    indices.change(document=document.name, target=document.target, body=document.index_body)
    tell(f"index {document.index_name} is up to date")
    return document
