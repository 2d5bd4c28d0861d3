"""Reconsider: whether a document can go on although the catalogue differs from what its definition was applied to.

The stored SELECT and affects queries are analysed again, against the catalogue of today. The definition can go on if
this leads to the same fields, tables and queries. If no value can differ either, nothing needs to be written again.

Guarantees: what can go on finds every document that a change touches, also by images that were written before. Every
column that it reads is watched: by its name, or since a watched column is gone, which makes every UPDATE a change. A
value is taken for unchanged only if nothing that it is made of differs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg

from syncer.base.errors import DefinitionError
from syncer.base.postgres import LOCK_SECONDS_MAX, Connection, lock_timeout
from syncer.documents import analyze
from syncer.documents.definition import Definition
from syncer.documents.registry import Dependencies, Document, TableUse
from syncer.lineage import fingerprint
from syncer.lineage.fingerprint import Shapes

_TO_TEXT = re.compile(r'CAST\(\(?("n\d+"\."[^"]+")\)? AS TEXT\)|\(([\w".]+)\)::text')
"""A column that is cast, as derived queries have it, or as Postgres deparses it."""


def analysed(connection: Connection, document: Document) -> Dependencies | None:
    """Analyse an active definition again, as it is stored; None if it no longer fits the catalogue.

    Raises:
        LockNotAvailable: A relation is being altered.
    """
    dependencies = document.dependencies
    stored = Definition(
        name=document.name,
        index=document.index,
        select=dependencies.canonical_select,
        index_body=document.index_body,
        affects={use.relation: use.affects for use in dependencies.tables.values() if use.affects is not None},
        folder=Path(document.name),
    )
    try:
        with connection.transaction():
            connection.execute(lock_timeout(LOCK_SECONDS_MAX, local=True))
            return analyze.analyse(connection, stored)
    except (DefinitionError, psycopg.ProgrammingError, psycopg.DataError, psycopg.InternalError):
        return None  # the last one if something is dropped at this moment


def reconsider(connection: Connection, document: Document) -> tuple[Dependencies, list[str]] | None:
    """Return what an active definition depends on now, with what differs in what it shows; None if it cannot go on.

    Raises:
        LockNotAvailable: A relation is being altered.
    """
    analysis, earlier, shapes = None, None, fingerprint.read(connection, document.shapes)
    while shapes != earlier:  # the analysis is no snapshot: it holds for a catalogue that is the same before and after
        analysis = analysed(connection, document)
        earlier, shapes = shapes, fingerprint.read(connection, document.shapes)
    if analysis is None or any(obstacles(connection, document.dependencies, analysis)):
        return None
    return analysis, shown(connection, document, analysis, shapes)


def shown(connection: Connection, document: Document, analysis: Dependencies, shapes: Shapes) -> list[str]:
    """Describe what differs in what a document shows, by the shapes that it has now."""
    today = fingerprint.rebased(connection, document.shapes, analysis.shapes, document.dependencies.shapes)
    return fingerprint.differences(today, shapes)


def obstacles(connection: Connection, recorded: Dependencies, today: Dependencies) -> Iterator[str]:
    """Yield why what is stored cannot go on, and has to be applied again."""
    if (recorded.fields, recorded.has_routing) != (today.fields, today.has_routing):
        yield "it has other fields"
    if (recorded.root, recorded.root_key) != (today.root, today.root_key):
        yield f"its ids are no longer those of {recorded.root or 'a query'}"
    yield from (f"it no longer reads {relation}" for relation in recorded.tables.keys() - today.tables.keys())
    shapes = fingerprint.read(connection, recorded.shapes)
    for relation, use in today.tables.items():
        stored = recorded.tables.get(relation)
        if stored is None:
            yield f"it reads {relation}"
        elif not _leads_alike(stored, use):
            yield f"a change of {relation} leads to documents in another way"
        elif (added := _added(stored, use)) and stored.watched <= shapes[relation].parts.keys():
            yield f"it reads {relation}.{', '.join(sorted(added))}"


def _added(recorded: TableUse, today: TableUse) -> frozenset[str]:
    """Return the columns that ways to documents watch now, and those that are stored do not."""
    return frozenset().union(
        *(new.watched - stored.watched for stored, new in zip(recorded.leads, today.leads, strict=False))
    )


def _leads_alike(recorded: TableUse, today: TableUse) -> bool:
    """Whether stored queries lead to the documents that new ones lead to; a cast to text may have become needless."""
    stored, new = (fingerprint.as_text("\n".join(use.affected)) for use in (recorded, today))
    is_fit = set(_TO_TEXT.findall(new)) <= set(_TO_TEXT.findall(stored))
    is_alike = is_fit and _TO_TEXT.sub(r"\1\2", stored) == _TO_TEXT.sub(r"\1\2", new)
    stored_columns, columns = ((use.id_columns, use.routing, use.places) for use in (recorded, today))
    return is_alike and stored_columns == columns
