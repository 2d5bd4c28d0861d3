"""Steps: what apply will do, found out by comparing the definitions with what is in force; nothing is changed here.

A change that the index does not take in place gets an index of its own: see `syncer.rebuild`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from syncer import capturable, capture, compose, leftover, store, trial
from syncer.definition import Definition
from syncer.errors import ConfigError, DefinitionError
from syncer.indices import Indices
from syncer.model import Role, Target
from syncer.postgres import Connection
from syncer.store import Document
from syncer.trigger import Capture
from syncer.uses import Dependencies


class Change(StrEnum):
    """What apply finds of a document."""

    NEW = "new"
    CHANGED = "changed"
    REBUILD = "needs a new index"
    BUILDING = "its new index is being built"
    INDEX_GONE = "its index or alias is gone"
    HALTED = "halted"
    TRIGGERS_GONE = "its triggers were gone"
    UNFILLED = "not yet filled"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What apply will do to one document.

    Args:
        document: As it will be in force.
        change: What is different from what is in force now.
        before: As it is in force.
        reason: Why it needs a new index, if it does.
    """

    document: Document
    change: Change
    before: Document | None
    reason: str | None = None

    @property
    def halted(self) -> str | None:
        """If the document is halted: why."""
        return self.before.halted if self.before else None

    @property
    def is_new_generation(self) -> bool:
        """Whether the definition changes, or where it is written, or whether it is halted."""
        return self.change in (Change.NEW, Change.CHANGED, Change.REBUILD, Change.INDEX_GONE, Change.HALTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What apply will do.

    Args:
        in_force: What the definitions were compared with.
        steps: For each document of the config folder.
        captures: The tables whose triggers are to be made or changed, and how.
        released: Tables that no document reads any more.
        forgotten: Documents in force that the config folder no longer has; they are left as they are.
        removed: Those of them that are to be put out of force, each with all its indices; that which serves comes last.
        abandoned: Those whose new index is no longer wanted as it is being built.
        leftovers: Indices that somebody who died has left behind.
    """

    in_force: Standing
    steps: tuple[Step, ...]
    captures: tuple[Capture, ...]
    released: tuple[str, ...]
    forgotten: tuple[str, ...]
    abandoned: tuple[Document, ...] = ()
    leftovers: tuple[Target, ...] = ()
    removed: tuple[Document, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        unchanged = all(step.change is Change.UNCHANGED for step in self.steps)
        return unchanged and not (self.captures or self.released or self.abandoned or self.leftovers or self.removed)


def plan(
    connection: Connection, indices: Indices, definitions: Iterable[Definition], *, remove: Collection[str] = ()
) -> Plan:
    """Compare the definitions with what is in force, and find out what they read.

    Args:
        connection: As a role that owns the tables and the syncer schema.
        indices: Elasticsearch's.
        definitions: Those of the config folder.
        remove: Documents without a folder that are to be put out of force.

    Raises:
        ConfigError: What is to be removed has a folder, or is not in force; nothing was changed.
        DefinitionError: A definition is refused; nothing was changed.
        ComposeError: A SELECT returns an id more than once; nothing was changed.
    """
    in_force, definitions = standing(connection), list(definitions)
    _require_removable(remove, in_force, {one.name for one in definitions})
    return assemble(
        connection,
        [step(connection, indices, definition, in_force) for definition in definitions],
        in_force,
        remove=remove,
    )


def _require_removable(names: Collection[str], in_force: Standing, configured: set[str]) -> None:
    for name in names:
        if name in configured:
            raise ConfigError(
                f"{name} has a folder, and stays in force",
                hint="Only what has none can be removed: move its folder away first.",
            )
        if name not in in_force.documents:
            without = ", ".join(sorted(in_force.documents.keys() - configured))
            raise ConfigError(
                f"No document {name} is in force", hint=f"In force without a folder: {without or 'none'}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What is in force.

    Args:
        documents: Those that are served, by name.
        others: Those whose index is being built, or on standby: they need their tables captured as well.
        generations: The last generation of every document that was ever in force.
        captured: The tables that are captured, by relation.
        lost: Those of them whose triggers are gone.
        leftovers: Indices that somebody who died has left behind.
    """

    documents: dict[str, Document] = field(default_factory=dict)
    others: tuple[Document, ...] = ()
    generations: dict[str, int] = field(default_factory=dict)
    captured: dict[str, Capture] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()
    leftovers: tuple[Target, ...] = ()

    def is_like(self, other: Standing) -> bool:
        """Whether the same is in force, for the same indices; it may have been filled, or halted, in between."""
        return (self._rows, self.generations) == (other._rows, other.generations)

    @property
    def _rows(self) -> set[tuple[str, int, Role]]:
        return {(one.index_name, one.generation, one.role) for one in (*self.documents.values(), *self.others)}

    def building(self, name: str) -> Document | None:
        """The document's new index, if one is being built."""
        return next((one for one in self.others if one.name == name and one.role is Role.BUILDING), None)


def standing(connection: Connection) -> Standing:
    """What is in force now."""
    captured = capture.captured(connection)
    return Standing(
        documents=store.served(connection),
        others=tuple(one for one in store.documents(connection) if one.role is not Role.SERVING),
        generations=store.generations(connection),
        captured=captured,
        lost=frozenset(relation for relation in captured if not capture.is_installed(connection, relation)),
        leftovers=leftover.find(connection),
    )


def assemble(
    connection: Connection, steps: Iterable[Step], in_force: Standing, *, remove: Collection[str] = ()
) -> Plan:
    """All steps together, and what they mean for the tables."""
    steps = tuple(steps)
    removed = tuple(one for one in (*in_force.others, *in_force.documents.values()) if one.name in remove)
    forgotten = in_force.documents.keys() - {one.document.name for one in steps} - set(remove)
    abandoned = tuple(building for one in steps if (building := _abandoned(one, in_force)) is not None)
    documents = [
        *(one.document for one in steps),
        *(one.before for one in steps if one.before is not None and one.document.role is Role.BUILDING),
        *(in_force.documents[name] for name in sorted(forgotten)),
        *(one for one in in_force.others if one not in (*abandoned, *removed)),
    ]
    wanted = {one.relation: one for one in _captures(connection, documents)}
    captured = in_force.captured
    return Plan(
        in_force=in_force,
        steps=steps,
        captures=tuple(
            one
            for one in wanted.values()
            if one != captured.get(one.relation)
            or one.relation in in_force.lost
            or not capture.is_current(connection, one)
        ),
        released=tuple(sorted(captured.keys() - wanted.keys())),
        forgotten=tuple(sorted(forgotten)),
        abandoned=abandoned,
        leftovers=in_force.leftovers,
        removed=removed,
    )


def _abandoned(step: Step, in_force: Standing) -> Document | None:
    """The new index that is being built, if this is no longer what it is to be."""
    building = in_force.building(step.document.name)
    if building is None or building is step.document:
        return None
    return building if step.change is Change.REBUILD or _meaning(building) != _meaning(step.document) else None


def step(connection: Connection, indices: Indices, definition: Definition, in_force: Standing) -> Step:
    """What to do about one definition.

    Raises:
        DefinitionError: It is refused.
        ComposeError: Its SELECT returns an id more than once.
        IndexingError: Elasticsearch refuses its index.json, whatever the index.
    """
    before, lost = in_force.documents.get(definition.name), in_force.lost
    after = _defined(connection, definition, in_force)
    is_changed = before is None or before.halted is not None or _meaning(after) != _meaning(before)
    if is_changed:
        compose.require_unique(connection, after)
    if before is None:
        return Step(document=after, change=Change.NEW, before=None)
    if before.index != after.index:
        raise DefinitionError(
            f"{after.name}: the index cannot be changed from {before.index} to {after.index}",
            hint="Make a new document folder for the new index, and remove this one once it is filled.",
        )
    is_there = _is_there(indices, before, in_force)
    reason = _COPIES_LEFT if _leaves_copies(indices, before, after) else None
    if reason is None and is_there and is_changed:
        reason = trial.obstacle(connection, indices, after, before.target)
    if reason is not None:
        return _rebuild(before, after, in_force, reason)
    if not is_there:
        return Step(document=after, change=Change.INDEX_GONE, before=before)
    if is_changed:
        # A halted one gets a generation of its own, so that who is late with a halt does not halt it again.
        change = Change.CHANGED if before.halted is None else Change.HALTED
        return Step(document=after, change=change, before=before)
    if before.dependencies.tables.keys() & lost:
        return Step(document=before, change=Change.TRIGGERS_GONE, before=before)
    return Step(document=before, change=Change.UNCHANGED if before.is_filled else Change.UNFILLED, before=before)


def _defined(connection: Connection, definition: Definition, in_force: Standing) -> Document:
    """The document as its folder has it, under the next generation, for the index that it has already."""
    from syncer import dependency  # noqa: PLC0415 - it parses SQL, which few commands need, and takes long to load

    before, generation = in_force.documents.get(definition.name), in_force.generations.get(definition.name, 0) + 1
    return Document(
        name=definition.name,
        generation=generation,
        index=definition.index,
        select=definition.select,
        affects=definition.affects,
        index_body=definition.index_body,
        dependencies=dependency.analyse(connection, definition),
        target=before.target if before else Target.of(definition.index, generation),
    )


def _is_there(indices: Indices, before: Document, in_force: Standing) -> bool:
    """Whether the index is there, with both aliases."""
    is_there = indices.exists(before.target, searched_as=before.index)
    building = in_force.building(before.name)
    if not is_there and building is not None:
        # Whoever was to let it serve may have died once he had moved the alias.
        is_there = indices.exists(building.target, searched_as=before.index)
    return is_there


def _rebuild(before: Document, after: Document, in_force: Standing, reason: str) -> Step:
    """A new index, or on with the one that is being built."""
    building = in_force.building(after.name)
    if building is not None and building.halted is None and _meaning(building) == _meaning(after):
        return Step(document=building, change=Change.BUILDING, before=before, reason=reason)
    return Step(document=anew(after, after.generation), change=Change.REBUILD, before=before, reason=reason)


def anew(document: Document, generation: int) -> Document:
    """The same definition, for an index that is yet to be built."""
    target = Target.of(document.index, generation)
    return dataclasses.replace(
        document, generation=generation, target=target, role=Role.BUILDING, is_filled=False, halted=None
    )


def _leaves_copies(indices: Indices, before: Document, after: Document) -> bool:
    """Whether copies may lie on any shard, and nobody would look for them: a late writer may still put one there."""
    gives_up_routing = before.dependencies.has_routing and not after.dependencies.has_routing
    return gives_up_routing and indices.has_other_shards(before.target)


_COPIES_LEFT = (
    "the SELECT has its _routing no more, and copies may lie on any shard; "
    "with NULL::text AS _routing, every document goes to the shard of its id, in place"
)


def _meaning(document: Document) -> tuple[object, ...]:
    """What makes a definition another one; the layout of its SQL does not."""
    return document.dependencies, document.index_body, document.affects


_FOREIGN_KEYS = """
SELECT a.attname::text, format('%I.%I', n.nspname, c.relname), f.attname::text
FROM pg_constraint AS k
JOIN pg_attribute AS a ON a.attrelid = k.conrelid AND a.attnum = k.conkey[1]
JOIN pg_class AS c ON c.oid = k.confrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_attribute AS f ON f.attrelid = k.confrelid AND f.attnum = k.confkey[1]
WHERE k.conrelid = $1::regclass AND k.contype = 'f' AND cardinality(k.conkey) = 1
ORDER BY 1
"""


def _captures(connection: Connection, documents: Iterable[Document]) -> Iterable[Capture]:
    """How each table is captured for all documents together."""
    readers: dict[str, list[Dependencies]] = {}
    for document in documents:
        for relation in document.dependencies.tables:
            readers.setdefault(relation, []).append(document.dependencies)
    for relation, found in sorted(readers.items()):
        if not capturable.exists(connection, relation):
            continue  # only what goes away, or is halted, reads it still: what is to be put in force was just looked at
        key = capturable.primary_key(connection, relation)
        routing = frozenset().union(*(one.tables[relation].routing for one in found))
        watched = frozenset().union(*(one.tables[relation].watched for one in found))
        aggregate, column = _aggregate(connection, relation, key, found)
        yield Capture(
            relation=relation,
            key=key,
            watched=watched,
            routing=routing | {column},
            aggregate=aggregate,
            aggregate_column=column,
        )


def _aggregate(
    connection: Connection, relation: str, key: tuple[str, ...], readers: list[Dependencies]
) -> tuple[str, str]:
    """The root row that a row of this table belongs to, where a foreign key says so; else the row itself."""
    roots = Counter((one.root, one.root_key) for one in readers if one.root not in (None, relation))
    for column, referenced, referenced_column in connection.execute(_FOREIGN_KEYS, (relation,)).fetchall():
        if (referenced, referenced_column) in roots:
            return referenced, column
    return relation, key[0]
