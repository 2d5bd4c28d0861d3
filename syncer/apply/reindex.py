"""Reindex: builds a new index beside the current one and replaces it. Searches never see a gap or an incomplete index.

    build ──▶ active ──▶ loaded ──▶ settled ──▶ verified ──▶ nothing pending ──▶ alias moved ──▶ current
                                                                                      (the one before: dropped)

While it is built, the new index is a document of its own: an active row with its own revision and definition, followed,
suspended, loaded and verified like any other. So it becomes complete in the same way: see `syncer.apply.activate`. Only
then does the alias move, in one call. The commit that records the move deactivates the index before, which is dropped.
To go back, apply the old definition: that is another rebuild.

*Nothing pending*: a fan-out may be done in the current index and still wait in the new one. A search after the move
would then find an older name than before. So pending jobs of the new index are waited for once it is verified: see
`pending`. Later jobs are not waited for, or the index might never become current: their changes
are at most as old as that wait, and follow.

Each step detects where the last one stopped. After a crash, run the same command again, or give up with `abort`. A
search between the move of the alias and the commit that records it finds a complete index: both are complete.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from syncer.apply import activate, plan
from syncer.apply.activate import InitialLoad
from syncer.apply.plan import PlannedChange, Step
from syncer.base.errors import DefinitionError
from syncer.base.model import Role
from syncer.base.postgres import Connection
from syncer.documents import queries, registry, suspend
from syncer.documents.registry import Document
from syncer.documents.snapshot import require_shape
from syncer.elasticsearch.indices import Indices
from syncer.jobs.model import Job, unfinished
from syncer.recovery import orphan_indices

_SETTLE_SECONDS_MAX = 600.0


def begin(connection: Connection, indices: Indices, name: str, *, report: Callable[[str], None]) -> InitialLoad:
    """Activate a new index beside the current one, or continue with the one that is being built.

    Raises:
        DocumentError: Its tables are not as they were applied, or its ids not unique; nothing was created.
        SyncerError: The new index was not activated.
    """
    active = plan.read_active(connection)
    current, building = active.documents[name], active.building.get(name)
    indices.require_free(current.index, active.installation)
    require_shape(connection, building or current)
    if current.suspended is not None:
        queries.require_unique(connection, current)
    if building is not None and building.suspended is None:
        step = Step(document=building, change=PlannedChange.BUILDING, previous=current)
    else:
        # The current index may be suspended: a new one is the way out if a shard is gone for good.
        document = plan.anew(building or current, active.revisions[name] + 1)
        step = Step(document=document, change=PlannedChange.REBUILD, previous=current, abandoned=building)
    decided = plan.assemble(connection, [step], active)
    (initial_load,) = activate.carry_out(connection, indices, decided, report=report)
    return initial_load


def settle(connection: Connection, indices: Indices, building: Document) -> None:
    """Give a loaded index its own settings, and wait until it is as healthy as the current one."""
    indices.settle(building.target)
    current = registry.named(connection, building.name)[0].target
    indices.require_healthy(building.target, like=current, seconds_max=_SETTLE_SECONDS_MAX)


def pending(connection: Connection, building: Document) -> list[Job]:
    """Return the pending jobs, oldest first; until they are done, the index may lack changes committed before them."""
    return [job for job in unfinished(connection, building.index_name) if job.kind.is_pending]


def serve(connection: Connection, indices: Indices, building: Document) -> Document:
    """Make a complete index without pending jobs current, and drop the one before.

    Returns:
        The document with its current index.

    Raises:
        DocumentError: It is suspended.
        DefinitionError: It is no longer being built, or not loaded.
        IndexingError: The new index is current; the one before has an alias that is not syncer's, and stays.
    """
    with activate.alone(connection):
        by_role = registry.by_role(connection, building.name)
        document = by_role.get(Role.BUILDING)
        if document is None or document.revision != building.revision:
            raise DefinitionError(
                f"{building.index_name} is no longer being built", hint="It was aborted, or replaced by another apply."
            )
        # Rule: the-alias-moves-to-what-is-loaded.
        suspend.require_active(document)
        if not document.is_loaded:
            hint = f"To load it and go on: syncer index rebuild {document.name}"
            raise DefinitionError(f"{document.index_name} is not loaded", hint=hint)
        indices.swap(document.index, document.target)
        # Rules: the-old-index-is-followed, out-of-force-before-dropping.
        with connection.transaction():
            activate.deactivate(connection, by_role[Role.CURRENT])
            registry.make_current(connection, document)
        orphan_indices.drop(connection, indices, by_role[Role.CURRENT].target)
    return dataclasses.replace(document, role=Role.CURRENT)


def abort(connection: Connection, indices: Indices, name: str) -> Document:
    """Withdraw and drop the index that is being built; return its document."""
    with activate.alone(connection):
        aborted = building(connection, name)
        activate.withdraw(connection, indices, aborted)
    return aborted


def building(connection: Connection, name: str) -> Document:
    """Return the document with the index that is being built."""
    document = registry.by_role(connection, name).get(Role.BUILDING)
    if document is None:
        raise DefinitionError(f"No index of {name} is being built", hint=f"To build one: syncer index rebuild {name}")
    return document
