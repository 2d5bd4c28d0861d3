"""Apply: definitions become indices, triggers and a generation in force.

The order is what makes it safe beside live traffic: the index is created first; then triggers, so that every
change is captured from then on; then one commit puts the generation and the targets in force; and only after
that commit every document is written once, which covers whatever was composed before.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from syncer import capture, dependency, store
from syncer.capture import Capture
from syncer.definition import Definition
from syncer.dependency import Dependencies
from syncer.errors import DefinitionError
from syncer.index import Index
from syncer.model import Target
from syncer.postgres import Connection
from syncer.store import Document


class Change(StrEnum):
    """What apply does to a document."""

    NEW = "new"
    CHANGED = "changed"
    UNFILLED = "not yet filled"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What apply will do to one document.

    Args:
        document: As it will be in force.
        change: What is different from what is in force now.
    """

    document: Document
    change: Change


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What apply will do.

    Args:
        steps: For each document of the config folder.
        captures: How each table will be captured.
        released: Tables that no document reads any more.
        forgotten: Documents in force that the config folder no longer has; they are left as they are.
    """

    steps: tuple[Step, ...]
    captures: tuple[Capture, ...]
    released: tuple[str, ...]
    forgotten: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.released and all(step.change is Change.UNCHANGED for step in self.steps)


def plan(connection: Connection, definitions: Iterable[Definition]) -> Plan:
    """Compare the definitions with what is in force, and find out what they read.

    Raises:
        DefinitionError: A definition is refused; nothing was changed.
    """
    in_force = {document.name: document for document in store.documents(connection)}
    steps = tuple(_step(connection, definition, in_force.pop(definition.name, None)) for definition in definitions)
    read = [step.document for step in steps] + list(in_force.values())
    captures = tuple(_captures(connection, read))
    captured = capture.captured(connection)
    return Plan(
        steps=steps,
        captures=captures,
        released=tuple(sorted(captured.keys() - {one.relation for one in captures})),
        forgotten=tuple(sorted(in_force)),
    )


def _step(connection: Connection, definition: Definition, before: Document | None) -> Step:
    dependencies = dependency.analyse(connection, definition)
    generation = before.generation if before else 0
    document = Document(
        name=definition.name,
        generation=generation + 1,
        index=definition.index,
        select=definition.select,
        affects=definition.affects,
        index_body=definition.index_body,
        dependencies=dependencies,
    )
    if before is None:
        return Step(document=document, change=Change.NEW)
    if before.index != definition.index:
        raise DefinitionError(
            f"{definition.name}: the index cannot be changed from {before.index} to {definition.index}",
            hint="Make a new document folder for the new index, and remove this one once it is filled.",
        )
    same = (
        dependencies == before.dependencies
        and definition.index_body == before.index_body
        and definition.affects == before.affects
    )
    if not same:
        return Step(document=document, change=Change.CHANGED)
    return Step(document=before, change=Change.UNCHANGED if before.is_filled else Change.UNFILLED)


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
    uses: dict[str, list[tuple[Dependencies, str]]] = {}
    for document in documents:
        for relation in document.dependencies.tables:
            uses.setdefault(relation, []).append((document.dependencies, relation))
    for relation, found in sorted(uses.items()):
        key = dependency.primary_key(connection, relation)
        routing = frozenset().union(*(one.tables[relation].routing for one, _ in found))
        watched = frozenset().union(*(one.tables[relation].watched for one, _ in found))
        aggregate, column = _aggregate(connection, relation, key, [one for one, _ in found])
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


def carry_out(
    connection: Connection,
    index: Index,
    decided: Plan,
    *,
    tell: Callable[[str], None] = lambda _: None,
    timeout_seconds: float = 60,
) -> list[Document]:
    """Make indices, triggers and generations as planned.

    Args:
        connection: As a role that owns the tables and the syncer schema.
        index: Elasticsearch.
        decided: What to do.
        tell: Told of each step.
        timeout_seconds: How long to go on asking for the lock of a table that is in use.

    Returns:
        The documents that now have to be written once: see `syncer.refresh`.

    Raises:
        SyncerError: A step was refused. What was done before it does no harm, and apply can be run again.
    """
    installation = store.installation(connection)
    to_fill = [step for step in decided.steps if step.change is not Change.UNCHANGED]
    index.prepare()
    targets = {
        step.document.name: _target(connection, index, step.document, installation, tell)
        for step in to_fill
        if step.change is not Change.UNFILLED
    }
    for one in decided.captures:
        capture.install(connection, one, timeout_seconds=timeout_seconds, waiting=tell)
        tell(f"capturing {one.relation}")
    with connection.transaction():
        for step in to_fill:
            if step.document.name in targets:
                store.put_document(connection, step.document)
                store.put_target(connection, step.document.name, targets[step.document.name])
    for relation in decided.released:
        capture.remove(connection, relation, timeout_seconds=timeout_seconds, waiting=tell)
        tell(f"released {relation}")
    return [step.document for step in to_fill]


def _target(
    connection: Connection, index: Index, document: Document, installation: str, tell: Callable[[str], None]
) -> Target:
    """The document's index: made if it has none, its mapping brought up to date if it has."""
    existing = store.targets(connection, document.name)
    if not existing:
        target = index.create(
            document=document.name,
            alias=document.index,
            body=document.index_body,
            generation=document.generation,
            installation=installation,
        )
        tell(f"index {target.index_name}, searched as {document.index}")
        return target
    target = dataclasses.replace(existing[0], mapping_generation=document.generation)
    index.change_mapping(document=document.name, target=target, body=document.index_body)
    tell(f"mapping of {target.index_name} is current")
    return target
