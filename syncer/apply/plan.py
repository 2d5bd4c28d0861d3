"""Plan: what apply will do, found by comparing the definitions with what is active. Nothing is changed here.

If an index cannot take a change in place, a new index is planned: see `syncer.apply.reindex`.

A table's triggers serve all documents that read it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from syncer.base.errors import ConfigError, DefinitionError
from syncer.base.model import Role, Target
from syncer.base.postgres import Connection
from syncer.capture import install
from syncer.capture.triggers import Capture
from syncer.documents import queries, registry
from syncer.documents.definition import Definition
from syncer.documents.registry import Dependencies, Document
from syncer.elasticsearch.indices import Indices
from syncer.lineage import fingerprint
from syncer.recovery import orphan_indices


class PlannedChange(StrEnum):
    """The difference between a document's definition and what is active: what apply does about it."""

    NEW = "new"
    CHANGED = "in_place"
    REBUILD = "reindex"
    """Its index cannot take the change: a new one is built beside it."""
    BUILDING = "building"
    """Its new index is being built: apply goes on with it."""
    INDEX_GONE = "index_gone"
    """Its index is gone, or its alias does not lead to it alone."""
    INCOMPLETE = "initial_load"
    """It is not yet loaded, still has the settings of a load, or may have missed changes: its triggers were gone."""
    UNCHANGED = "nothing"


NEEDS_INDEX = (PlannedChange.NEW, PlannedChange.REBUILD, PlannedChange.INDEX_GONE)
"""The changes that create an index, as a rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What apply will do to one document: from ``before``, as it is active, to ``document``, as it will be.

    The reason says what differs, or why it needs a new index. ``abandoned`` is being built and no longer matches the
    definition. If it ``takes_over``, the index of ``before`` is another installation's, and is active here until it is
    replaced.
    """

    document: Document
    change: PlannedChange
    before: Document | None
    reason: str | None = None
    abandoned: Document | None = None
    takes_over: bool = False

    @property
    def suspended(self) -> str | None:
        """Why the document is suspended, if it is."""
        return self.before.suspended if self.before else None

    @property
    def is_new_revision(self) -> bool:
        """Whether the definition, its index or its suspension changes."""
        return self.change in (*NEEDS_INDEX, PlannedChange.CHANGED)

    @property
    def is_stored_anew(self) -> bool:
        """Whether the same definition leads to other queries than those that are stored."""
        before, after = self.before, self.document
        return before is None or (before.dependencies, before.apart_max) != (after.dependencies, after.apart_max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What apply will do.

    Args:
        active: What the definitions were compared with.
        captures: The tables whose triggers are to be created or changed, and how.
        released: Tables that no document reads any more.
        forgotten: Active documents without a step; they are left as they are.
        abandoned: New indices that are being built and no longer wanted.
        removed: Documents to withdraw, one for each of their indices, the current one last.
    """

    active: ActiveDefinitions
    steps: tuple[Step, ...]
    captures: tuple[Capture, ...]
    released: tuple[str, ...]
    forgotten: tuple[str, ...]
    abandoned: tuple[Document, ...] = ()
    removed: tuple[Document, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        unchanged = all(
            step.change is PlannedChange.UNCHANGED
            and not (step.before and bool(step.before.apart_max) != bool(step.document.apart_max))
            for step in self.steps
        )
        return unchanged and not (
            self.captures or self.released or self.abandoned or self.active.orphan_indices or self.removed
        )


def require_removable(names: Collection[str], active: ActiveDefinitions, configured: set[str]) -> None:
    """Refuse to remove a document that has a folder, or is not active."""
    for name in names:
        if name in configured:
            raise ConfigError(
                f"{name} has a folder, and stays active",
                hint="Only a document without a folder can be removed: move its folder away first.",
            )
        if name not in active.documents:
            without = ", ".join(sorted(active.documents.keys() - configured))
            raise ConfigError(f"No document {name} is active", hint=f"Active without a folder: {without or 'none'}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveDefinitions:
    """What is active.

    Args:
        documents: Documents with their current index, by name; those in ``building`` with the one that is being built.
        revisions: The last revision of every document that was ever active.
        captured: The captured tables, by relation; of those in ``lost``, the triggers are gone.
        orphan_indices: Indices left behind by commands that died.
        installation: This database's id; empty before `syncer migrate`.
    """

    documents: dict[str, Document] = field(default_factory=dict)
    building: dict[str, Document] = field(default_factory=dict)
    revisions: dict[str, int] = field(default_factory=dict)
    captured: dict[str, Capture] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()
    orphan_indices: tuple[Target, ...] = ()
    installation: str = ""

    def state(self) -> tuple[object, ...]:
        """Return which revisions are active for which indices, loaded and suspended or not: to notice a change."""
        documents = (*self.documents.values(), *self.building.values())
        rows = {(document.index_name, document.revision, document.role) for document in documents}
        return rows, self.revisions


def read_active(connection: Connection) -> ActiveDefinitions:
    """Return what is active now."""
    captured, documents = install.captured(connection), registry.documents(connection)
    return ActiveDefinitions(
        documents={document.name: document for document in documents if document.role is Role.CURRENT},
        building={document.name: document for document in documents if document.role is Role.BUILDING},
        revisions=registry.revisions(connection),
        captured=captured,
        lost=frozenset(install.lost(connection, captured)),
        orphan_indices=orphan_indices.find(connection),
        installation=registry.installation(connection),
    )


def assemble(
    connection: Connection, steps: Iterable[Step], active: ActiveDefinitions, *, remove: Collection[str] = ()
) -> Plan:
    """Combine steps into a plan, with what they mean for the tables."""
    steps = tuple(steps)
    both = (*active.building.values(), *active.documents.values())
    removed = tuple(document for document in both if document.name in remove)
    forgotten = sorted(active.documents.keys() - {step.document.name for step in steps} - set(remove))
    abandoned = tuple(step.abandoned for step in steps if step.abandoned is not None)
    documents = [
        *(step.document for step in steps),
        *(step.before for step in steps if step.before is not None and step.document.role is Role.BUILDING),
        *(active.documents[name] for name in forgotten),
        *(document for document in active.building.values() if document not in (*abandoned, *removed)),
    ]
    wanted = {capture.relation: capture for capture in captures(connection, documents)}
    return Plan(
        active=active,
        steps=steps,
        captures=tuple(
            capture
            for relation, capture in wanted.items()
            if relation not in active.captured or relation in active.lost or not install.is_current(connection, capture)
        ),
        released=tuple(sorted(active.captured.keys() - wanted.keys())),
        forgotten=tuple(forgotten),
        abandoned=abandoned,
        removed=removed,
    )


def captures(connection: Connection, documents: Iterable[Document]) -> Iterable[Capture]:
    """Yield how each table is captured for all documents together; not the tables that no longer exist."""
    readers: dict[str, list[Dependencies]] = {}
    for document in documents:
        for relation in document.dependencies.tables:
            # Rule: every-table-is-captured.
            readers.setdefault(relation, []).append(document.dependencies)
    for relation, readings in sorted(readers.items()):
        if not install.exists(connection, relation):
            continue  # only documents to be withdrawn, or suspended ones, still read it
        uses = [dependencies.tables[relation] for dependencies in readings]
        yield Capture(
            relation=relation,
            routing=frozenset().union(*(use.routing for use in uses)),
            watched=frozenset(lead.watched for use in uses for lead in use.leads),
        )


def step(
    connection: Connection,
    indices: Indices,
    definition: Definition,
    active: ActiveDefinitions,
    *,
    takes_over: bool = False,
) -> Step:
    """Decide what to do about one definition; if it ``takes_over``, also about the index that its alias points at.

    Raises:
        DefinitionError: The definition is refused.
        ComposeError: Its SELECT returns an id more than once.
        IndexingError: Elasticsearch refuses its index.json for any index, or the alias is not free.
    """
    before = active.documents.get(definition.name)
    after = _defined(connection, definition, active)
    # A suspended document needs a new revision, so that everything is written again, and a late suspension of the old
    # one has no effect.
    differing = [] if before is None else _differences(connection, before, after)
    is_changed = before is None or before.suspended is not None or bool(differing)
    if is_changed:
        queries.require_unique(connection, after)
    # The rows of a dump may come without the identity that they had.
    if before is None or indices.owned_elsewhere(after.index, active.installation) == before.target:
        return _first(indices, after, active, takes_over=takes_over)
    if before.index != after.index:
        raise DefinitionError(
            f"{after.name}: the index cannot be changed from {before.index} to {after.index}",
            hint="Create a new document folder for the new index, and remove this one once the new one is loaded.",
        )
    building = active.building.get(after.name)
    is_as_wanted = building is not None and _meaning(building) == _meaning(after)
    # A command may have died after it moved the alias to the new index and before it recorded the move.
    is_moved = building is not None and indices.exists(building.target, searched_as=before.index)
    is_there = indices.exists(before.target, searched_as=None if is_moved else before.index)
    reason = _obstacle(indices, before, after) if is_there and is_changed else None
    # A failover may have taken back the record of the move, after the index before was dropped. And an index that was
    # taken over is suspended until the new one takes its place.
    is_next = reason is not None or (is_moved and not is_there) or before.suspended is not None
    if building is not None and is_as_wanted and is_next and building.suspended is None:
        return Step(document=building, change=PlannedChange.BUILDING, before=before, reason=reason)
    if reason is not None:
        document = anew(after, after.revision)
        return Step(document=document, change=PlannedChange.REBUILD, before=before, reason=reason, abandoned=building)
    abandoned = None if is_as_wanted else building
    if not is_there:
        indices.require_free(after.index, active.installation)
        return Step(document=after, change=PlannedChange.INDEX_GONE, before=before, abandoned=abandoned)
    if is_changed:
        changed = "; ".join(differing) or None
        return Step(document=after, change=PlannedChange.CHANGED, before=before, reason=changed, abandoned=abandoned)
    is_lost = bool(before.dependencies.tables.keys() & active.lost)
    is_loaded = before.is_loaded and not is_lost
    document = dataclasses.replace(before, dependencies=after.dependencies, is_loaded=is_loaded)
    is_complete = document.is_loaded and indices.is_settled(before.target)
    change = PlannedChange.UNCHANGED if is_complete else PlannedChange.INCOMPLETE
    return Step(document=document, change=change, before=before, abandoned=abandoned)


def _first(indices: Indices, after: Document, active: ActiveDefinitions, *, takes_over: bool) -> Step:
    """Decide what to do about a definition that is not active."""
    taken = indices.owned_elsewhere(after.index, active.installation) if takes_over else None
    if taken is None:
        indices.require_free(after.index, active.installation, document=after.name)
        return Step(document=after, change=PlannedChange.NEW, before=None)
    return Step(
        document=anew(after, after.revision + 1),
        change=PlannedChange.REBUILD,
        before=dataclasses.replace(after, target=taken),
        reason="another installation of syncer created its index",
        abandoned=active.building.get(after.name),
        takes_over=True,
    )


def _obstacle(indices: Indices, before: Document, after: Document) -> str | None:
    """Return why the index cannot take the change in place; None if it can."""
    # A late writer may still put a copy on a shard, if the document had a routing.
    gives_up_routing = before.dependencies.has_routing and not after.dependencies.has_routing
    if gives_up_routing and int(indices.body(before.target)["settings"]["index.number_of_shards"]) > 1:
        return (
            "the SELECT no longer has a _routing column, and copies may lie on any shard; "
            "with NULL::text AS _routing, every document goes to the shard of its id, in place"
        )
    return indices.obstacle(document=after.name, alias=after.index, body=after.index_body, live=before.target)


def _defined(connection: Connection, definition: Definition, active: ActiveDefinitions) -> Document:
    """Return the document as its folder defines it, under the next revision, with its existing index."""
    from syncer.documents import analyze  # noqa: PLC0415 - it imports sqlglot: slow to load, and few commands need it

    before, revision = active.documents.get(definition.name), active.revisions.get(definition.name, 0) + 1
    return Document(
        name=definition.name,
        revision=revision,
        index=definition.index,
        index_body=definition.index_body,
        dependencies=analyze.analyse(connection, definition),
        target=before.target if before else Target.of(definition.index, revision),
    )


def anew(document: Document, revision: int) -> Document:
    """Return the same definition for an index that is yet to be built."""
    target = Target.of(document.index, revision)
    return dataclasses.replace(
        document, revision=revision, target=target, role=Role.BUILDING, is_loaded=False, suspended=None
    )


def _meaning(document: Document) -> tuple[object, ...]:
    """Return what distinguishes two definitions; the layout of the SQL does not."""
    return document.dependencies, document.index_body


def _differences(connection: Connection, before: Document, after: Document) -> list[str]:
    """Describe what differs between a definition as it is active and as it is defined, on the catalogue of today.

    What is stored is analysed again, so that it is told in the words of this version of Postgres, and of today's names.
    """
    from syncer.documents import reconsider  # noqa: PLC0415 - as in `_defined`

    differing = [] if before.index_body == after.index_body else ["index.json"]
    if before.dependencies == after.dependencies and before.accepted is None:
        return differing
    again, now = reconsider.analysed(connection, before), fingerprint.read(connection, before.shapes)
    if again is None:
        return [*differing, *fingerprint.differences(before.shapes, now), "the SELECT"]
    if again != after.dependencies:
        differing.append("the SELECT, or an affects query")
    differing += reconsider.shown(connection, before, again, now)
    return differing + list(reconsider.obstacles(connection, before.dependencies, again))
