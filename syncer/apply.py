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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from syncer import capturable, capture, compose, jobs, leftover, store, trial
from syncer.definition import Definition
from syncer.errors import ConfigError, DefinitionError, IndexingError
from syncer.indices import Indices
from syncer.job import JobKind
from syncer.model import Role, Target
from syncer.postgres import AdvisoryLock, Connection, value
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
        steps: For each document of the config folder.
        captures: The tables whose triggers are to be made or changed, and how.
        released: Tables that no document reads any more.
        forgotten: Documents in force that the config folder no longer has; they are left as they are.
        abandoned: Those whose new index is no longer wanted as it is being built.
        leftovers: Indices that somebody who died has left behind.
    """

    steps: tuple[Step, ...]
    captures: tuple[Capture, ...]
    released: tuple[str, ...]
    forgotten: tuple[str, ...]
    abandoned: tuple[Document, ...] = ()
    leftovers: tuple[Target, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        unchanged = all(step.change is Change.UNCHANGED for step in self.steps)
        return unchanged and not (self.captures or self.released or self.abandoned or self.leftovers)


def plan(connection: Connection, indices: Indices, definitions: Iterable[Definition]) -> Plan:
    """Compare the definitions with what is in force, and find out what they read.

    Raises:
        DefinitionError: A definition is refused; nothing was changed.
        ComposeError: A SELECT returns an id more than once; nothing was changed.
    """
    in_force = standing(connection)
    return assemble(
        connection, [step(connection, indices, definition, in_force) for definition in definitions], in_force
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


def assemble(connection: Connection, steps: Iterable[Step], in_force: Standing) -> Plan:
    """All steps together, and what they mean for the tables."""
    steps = tuple(steps)
    forgotten = in_force.documents.keys() - {one.document.name for one in steps}
    abandoned = tuple(building for one in steps if (building := _abandoned(one, in_force)) is not None)
    documents = [
        *(one.document for one in steps),
        *(one.before for one in steps if one.before is not None and one.document.role is Role.BUILDING),
        *(in_force.documents[name] for name in sorted(forgotten)),
        *(one for one in in_force.others if one not in abandoned),
    ]
    wanted = {one.relation: one for one in _captures(connection, documents)}
    captured = in_force.captured
    return Plan(
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
    from syncer import dependency  # noqa: PLC0415 - it parses SQL, which few commands need, and takes long to load

    before, lost = in_force.documents.get(definition.name), in_force.lost
    generation = in_force.generations.get(definition.name, 0) + 1
    after = Document(
        name=definition.name,
        generation=generation,
        index=definition.index,
        select=definition.select,
        affects=definition.affects,
        index_body=definition.index_body,
        dependencies=dependency.analyse(connection, definition),
        target=before.target if before else Target.of(definition.index, generation),
    )
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
    is_there = indices.exists(before.target, searched_as=before.index)
    building = in_force.building(after.name)
    if not is_there and building is not None:
        # Whoever was to let it serve may have died once he had moved the alias.
        is_there = indices.exists(building.target, searched_as=before.index)
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
        indices.prepare()
        _clear_away(connection, indices, decided.leftovers, tell)
        steps = [
            dataclasses.replace(step, document=_with_index(connection, indices, step, tell))
            if step.is_new_generation
            else step
            for step in decided.steps
            if step.change is not Change.UNCHANGED
        ]
        # Once triggers are back, nothing else tells that they were gone.
        lost = [step.document.index_name for step in steps if step.change is Change.TRIGGERS_GONE]
        jobs.mark_unfilled(connection, lost)
        before = capture.captured(connection)
        too_wide = []
        for one in decided.captures:
            # Until the commit below, what is in force still needs what it watched.
            wide = capture.widened(connection, one, before.get(one.relation))
            capture.install(connection, wide, timeout_seconds=timeout_seconds, waiting=tell)
            tell(f"capturing {one.relation}")
            if wide != one:
                too_wide.append(one)
        for building in decided.abandoned:
            withdraw(connection, indices, building)
            tell(f"index {building.index_name} is built no more")
        with connection.transaction():
            fills = [_put_in_force(connection, step) for step in steps]
        for one in too_wide:
            capture.install(connection, one, timeout_seconds=timeout_seconds, waiting=tell)
        for relation in decided.released:
            capture.remove(connection, relation, timeout_seconds=timeout_seconds, waiting=tell)
            tell(f"released {relation}")
    return fills


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
