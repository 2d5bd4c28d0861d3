"""Plan: what apply will do, found by comparing the definitions with what is active. Nothing is changed here."""

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
from syncer.documents.registry import Document, TableUse
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
    """What apply will do to one document: from ``previous``, as it is active, to ``document``, as it will be.

    The reason says what differs, or why it needs a new index. ``abandoned`` is being built and no longer matches the
    definition. If it ``takes_over``, the index of ``previous`` is another installation's, and is active here until it
    is replaced.
    """

    document: Document
    change: PlannedChange
    previous: Document | None
    reason: str | None = None
    abandoned: Document | None = None
    takes_over: bool = False

    @property
    def suspended(self) -> str | None:
        """Why the document is suspended, if it is."""
        return self.previous.suspended if self.previous else None

    @property
    def is_new_revision(self) -> bool:
        """Whether the definition, its index or its suspension changes."""
        return self.change in (*NEEDS_INDEX, PlannedChange.CHANGED)

    @property
    def is_stored_anew(self) -> bool:
        """Whether the same definition leads to other queries than those that are stored."""
        stored, document = self.previous, self.document
        return stored is None or (stored.dependencies, stored.apart_max) != (document.dependencies, document.apart_max)


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
        is_any_changed = any(
            step.change is not PlannedChange.UNCHANGED
            or (step.previous and bool(step.previous.apart_max) != bool(step.document.apart_max))
            for step in self.steps
        )
        tables_and_indices = (self.captures, self.released, self.abandoned, self.active.orphan_indices, self.removed)
        return not is_any_changed and not any(tables_and_indices)


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
    epoch: int = 0

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
        epoch=registry.epoch(connection),
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
        *(step.previous for step in steps if step.previous is not None and step.document.role is Role.BUILDING),
        *(active.documents[name] for name in forgotten),
        *(document for document in active.building.values() if document not in (*abandoned, *removed)),
    ]
    needed = {capture.relation: capture for capture in captures(connection, documents)}
    outdated = install.outdated(connection, needed.values())
    return Plan(
        active=active,
        steps=steps,
        captures=tuple(
            capture
            for relation, capture in needed.items()
            if relation not in active.captured or relation in active.lost or relation in outdated
        ),
        released=tuple(sorted(active.captured.keys() - needed.keys())),
        forgotten=tuple(forgotten),
        abandoned=abandoned,
        removed=removed,
    )


def captures(connection: Connection, documents: Iterable[Document]) -> Iterable[Capture]:
    """Yield how each table is captured for all documents together; not the tables that no longer exist."""
    uses_of_table: dict[str, list[TableUse]] = {}
    for document in documents:
        for relation, use in document.dependencies.tables.items():
            # Rule: every-table-is-captured.
            uses_of_table.setdefault(relation, []).append(use)
    # Of the others, only suspended documents, or some to be withdrawn, are made.
    for relation in install.existing(connection, uses_of_table):
        uses = uses_of_table[relation]
        yield Capture(
            relation=relation,
            routing=frozenset().union(*(use.routing for use in uses)),
            watched=frozenset(lead.watched for use in uses for lead in use.leads)
            | {use.places for use in uses if use.places},
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
    current = active.documents.get(definition.name)
    desired = _defined(connection, definition, active)
    # A suspended document needs a new revision, so that everything is written again, and a late suspension of the old
    # one has no effect.
    differing = [] if current is None else _differences(connection, current, desired)
    is_changed = current is None or current.suspended is not None or bool(differing)
    if is_changed:
        queries.require_unique(connection, desired)
    # The rows of a dump may come without the identity that they had.
    if current is None or indices.owned_elsewhere(desired.index, active.installation) == current.index_name:
        return _first_step(indices, desired, active, takes_over=takes_over)
    if current.index != desired.index:
        raise DefinitionError(
            f"{desired.name}: the index cannot be changed from {current.index} to {desired.index}",
            hint="Create a new document folder for the new index, and remove this one once the new one is loaded.",
        )
    building = active.building.get(desired.name)
    is_as_wanted = building is not None and _meaning(building) == _meaning(desired)
    # A command may have died after it moved the alias to the new index and before it recorded the move.
    is_moved = building is not None and indices.has_aliases(building.target, searched_as=current.index)
    is_there = indices.has_aliases(current.target, searched_as=None if is_moved else current.index)
    reason = _obstacle(indices, current, desired) if is_there and is_changed else None
    # A failover may have taken back the record of the move, after the index before was dropped. And an index that was
    # taken over is suspended until the new one takes its place.
    is_next = reason is not None or (is_moved and not is_there) or current.suspended is not None
    if building is not None and is_as_wanted and is_next and building.suspended is None:
        return Step(document=building, change=PlannedChange.BUILDING, previous=current, reason=reason)
    if reason is not None:
        desired, change = anew(desired, desired.revision), PlannedChange.REBUILD
    elif not is_there:
        indices.require_free(desired.index, active.installation)
        change = PlannedChange.INDEX_GONE
    elif is_changed:
        change, reason = PlannedChange.CHANGED, "; ".join(differing) or None
    else:
        is_loaded = current.is_loaded and current.dependencies.tables.keys().isdisjoint(active.lost)
        desired = dataclasses.replace(current, dependencies=desired.dependencies, is_loaded=is_loaded)
        is_complete = is_loaded and indices.is_settled(current.target)
        change = PlannedChange.UNCHANGED if is_complete else PlannedChange.INCOMPLETE
    abandoned = building if change is PlannedChange.REBUILD or not is_as_wanted else None
    return Step(document=desired, change=change, previous=current, reason=reason, abandoned=abandoned)


def _first_step(indices: Indices, desired: Document, active: ActiveDefinitions, *, takes_over: bool) -> Step:
    """Decide what to do about a definition that is not active."""
    foreign = indices.owned_elsewhere(desired.index, active.installation) if takes_over else None
    if foreign is None:
        indices.require_free(desired.index, active.installation, document=desired.name)
        return Step(document=desired, change=PlannedChange.NEW, previous=None)
    return Step(
        document=anew(desired, desired.revision + 1),
        change=PlannedChange.REBUILD,
        previous=dataclasses.replace(desired, target=Target.of_index(foreign, active.epoch)),
        reason="another installation of syncer created its index",
        abandoned=active.building.get(desired.name),
        takes_over=True,
    )


def _obstacle(indices: Indices, current: Document, desired: Document) -> str | None:
    """Return why the index cannot take the change in place; None if it can."""
    # A late writer may still put a copy on a shard, if the document had a routing.
    gives_up_routing = current.dependencies.has_routing and not desired.dependencies.has_routing
    if gives_up_routing and int(indices.body(current.target)["settings"]["index.number_of_shards"]) > 1:
        return (
            "the SELECT no longer has a _routing column, and copies may lie on any shard; "
            "with NULL::text AS _routing, every document goes to the shard of its id, in place"
        )
    return indices.obstacle(document=desired.name, alias=desired.index, body=desired.index_body, live=current.target)


def _defined(connection: Connection, definition: Definition, active: ActiveDefinitions) -> Document:
    """Return the document as its folder defines it, under the next revision, with its existing index."""
    from syncer.documents import analyze  # noqa: PLC0415 - it imports sqlglot: slow to load, and few commands need it

    existing, revision = active.documents.get(definition.name), active.revisions.get(definition.name, 0) + 1
    return Document(
        name=definition.name,
        revision=revision,
        index=definition.index,
        index_body=definition.index_body,
        dependencies=analyze.analyse(connection, definition),
        target=existing.target if existing else Target.of(definition.index, revision),
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


def _differences(connection: Connection, current: Document, desired: Document) -> list[str]:
    """Describe what differs between a definition as it is active and as it is defined, on the catalogue of today.

    What is stored is analysed again, so that it is told in the words of this version of Postgres, and of today's names.
    """
    from syncer.documents import reconsider  # noqa: PLC0415 - as in `_defined`

    differing = [] if current.index_body == desired.index_body else ["index.json"]
    if current.dependencies == desired.dependencies and current.accepted is None:
        return differing
    analysed, shapes = reconsider.analysed(connection, current), fingerprint.read(connection, current.shapes)
    if analysed is None:
        return [*differing, *fingerprint.differences(current.shapes, shapes), "the SELECT"]
    if analysed != desired.dependencies:
        differing.append("the SELECT, or an affects query")
    differing += reconsider.shown(connection, current, analysed, shapes)
    return differing + list(reconsider.obstacles(connection, current.dependencies, analysed))
