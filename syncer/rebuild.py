"""Rebuild: a new index beside the one that serves, until it takes its place. Searches never see a gap or half an index.

    build ──▶ in force ──▶ filled ──▶ settled ──▶ verified ──▶ nothing owed ──▶ alias moved ──▶ serving
                                                                                             (the one before: standby)

While it is being built, the new index is a document of its own to all who write: it has a row in force, with its own
generation and definition, and is followed, halted, filled and verified like any other. So what makes it complete is
what makes any document complete that is put in force beside live traffic: see `syncer.apply`. Only then does the alias
move, in one call. The index before goes on being followed, so that `roll_back` can move the alias back, until
`drop_standby`.

*Nothing owed*: a fan-out may be through in the index that serves, and wait for its turn in the new one; then a search
would find an older name after the move than before. So the jobs that may leave it stale and that are there when it is
verified are waited for, and likewise before a rollback: see `owed`. Those that come later are not, or it might never
serve: what they have yet to write is as old as that wait, at most, and follows.

Each step finds out where the last one has left off, so that whoever dies at any point is followed by whoever runs
the same command again; or it is given up, with `abandon`. A search that is answered between the alias's move and the
commit that says so is answered by an index that is complete: both are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from syncer import apply, halting, leftover, steps, store
from syncer.apply import Fill
from syncer.errors import DefinitionError, IndexingError, JobError
from syncer.indices import Indices
from syncer.job import Job, unfinished
from syncer.model import Role
from syncer.postgres import Connection
from syncer.steps import Change, Step
from syncer.store import Document

SETTLE_SECONDS_MAX = 600.0
"""How long to wait for the replicas of a new index."""


def begin(connection: Connection, indices: Indices, name: str, *, tell: Callable[[str], None]) -> Fill:
    """Put a new index in force beside the one that serves, or go on with the one that is being built.

    Raises:
        DocumentError: The document is halted.
        SyncerError: Nothing was put in force.
    """
    in_force = steps.standing(connection)
    served, building = in_force.documents[name], in_force.building(name)
    if building is not None and building.halted is None:
        step = Step(document=building, change=Change.BUILDING, before=served)
    else:
        halting.require_going(served)
        document = steps.anew(building or served, in_force.generations[name] + 1)
        step = Step(document=document, change=Change.REBUILD, before=served)
    decided = steps.assemble(connection, [step], in_force)
    (fill,) = apply.carry_out(connection, indices, decided, tell=tell)
    return fill


def settle(connection: Connection, indices: Indices, building: Document, *, seconds_max: float) -> None:
    """Give a filled index its own settings, make it durable, and wait for its replicas.

    Raises:
        IndexingError: It is not as healthy in time as the index that serves.
    """
    served = store.served(connection)[building.name]
    found = indices.settle(building.target, like=served.target, seconds_max=seconds_max)
    if not found.is_ready:
        raise IndexingError(
            f"{building.index_name} is {found.health} after {seconds_max:,.0f} s, and should be {found.wanted}",
            hint="Is a node away, or a disk full? What was searched before is searched still. "
            f"To go on: syncer backfill {building.name} --rebuild",
        )


def owed(connection: Connection, building: Document) -> list[Job]:
    """The jobs, oldest first, until which an index that is to serve may lack what was committed before them.

    To be waited for twice. What a fan-out has left out is in a page of another job, which may be younger, but was there
    before the fan-out was listed: so it is in what this returns once the fan-out is done; and what such a job has left
    out itself is none of what it has pages of.
    """
    return [one for one in unfinished(connection, building.index_name) if one.kind.is_owed]


def require_not_paused(job: Job) -> None:
    """Refuse to wait for what nobody does.

    Raises:
        JobError: It is paused.
    """
    if job.is_paused:
        raise JobError(
            f"{job.index_name} is not searched before job {job.id} ({job.reason}) is done, which is paused",
            hint=f"What was searched before is searched still. Run: syncer jobs resume {job.id}; "
            "then, to go on, the same command again.",
        )


def serve(connection: Connection, indices: Indices, building: Document) -> Document:
    """Let searches find a complete index to which nothing is owed, and keep the one before for a rollback.

    The one before that is dropped.

    Returns:
        The document whose index serves now.

    Raises:
        DocumentError: It is halted.
        DefinitionError: It is not being built any more, or was not filled.
    """
    with apply.alone(connection):
        now = store.by_role(connection, building.name)
        found = now.get(Role.BUILDING)
        if found is None or found.generation != building.generation:
            raise DefinitionError(
                f"{building.index_name} is being built no more", hint="Has somebody abandoned it, or applied anew?"
            )
        _require_current(found)
        indices.swap(found.index, found.target)
        with connection.transaction():
            if Role.STANDBY in now:
                apply.put_out_of_force(connection, now[Role.STANDBY])
            store.assign(connection, now[Role.SERVING], Role.STANDBY)
            store.assign(connection, found, Role.SERVING)
        if Role.STANDBY in now:
            leftover.drop(connection, indices, now[Role.STANDBY].target)
    return dataclasses.replace(found, role=Role.SERVING)


def standby(connection: Connection, name: str) -> Document:
    """The index before, which is kept for a rollback.

    Raises:
        DefinitionError: There is none.
    """
    return _require_standby(store.by_role(connection, name), name)


def roll_back(connection: Connection, indices: Indices, name: str) -> Document:
    """Let searches find the index before again; the one that served is kept on standby in its place.

    Returns:
        The document whose index serves now.

    Raises:
        DefinitionError: No index is on standby, or it was not filled.
        DocumentError: It is halted, and no longer current.
    """
    with apply.alone(connection):
        now = store.by_role(connection, name)
        standby = _require_standby(now, name)
        _require_current(standby)
        indices.swap(standby.index, standby.target)
        with connection.transaction():
            store.assign(connection, now[Role.SERVING], Role.STANDBY)
            store.assign(connection, standby, Role.SERVING)
    return dataclasses.replace(standby, role=Role.SERVING)


def drop_standby(connection: Connection, indices: Indices, name: str) -> Document:
    """Give up the index before; what it was.

    Raises:
        DefinitionError: No index is on standby.
    """
    with apply.alone(connection):
        standby = _require_standby(store.by_role(connection, name), name)
        apply.withdraw(connection, indices, standby)
    return standby


def abandon(connection: Connection, indices: Indices, name: str) -> Document:
    """Give up the index that is being built; what it was.

    Raises:
        DefinitionError: None is being built.
    """
    with apply.alone(connection):
        building = store.by_role(connection, name).get(Role.BUILDING)
        if building is None:
            raise DefinitionError(f"No index of {name} is being built", hint=f"To build one: {_command(name)}")
        apply.withdraw(connection, indices, building)
    return building


def _require_standby(rows: dict[Role, Document], name: str) -> Document:
    standby = rows.get(Role.STANDBY)
    if standby is None:
        raise DefinitionError(
            f"{name} has no index on standby",
            hint=f"There is one after a rebuild, until it is dropped: {_command(name)}",
        )
    return standby


def _require_current(document: Document) -> None:
    """Refuse to let an index serve that may lack something."""
    halting.require_going(document)
    if not document.is_filled:
        raise DefinitionError(f"{document.index_name} is not filled", hint=way_on(document))


def unfilled_by(connection: Connection, cancelled: Job) -> Document | None:
    """What counts as not filled, since a job that documents waited for was cancelled; None if nothing does."""
    rows = store.documents(connection) if cancelled.kind.is_owed else []
    return next((one for one in rows if one.index_name == cancelled.index_name and not one.is_filled), None)


def way_on(document: Document) -> str:
    """What to do about an index that is not filled, as after a job of it was cancelled that documents waited for."""
    if document.role is Role.SERVING:
        return f"To fill it: syncer apply, or syncer backfill {document.name}"
    if document.role is Role.BUILDING:
        return f"To fill it and go on: {_command(document.name)}"
    return halting.no_way_back(document.name)


def _command(name: str) -> str:
    return f"syncer backfill {name} --rebuild"
