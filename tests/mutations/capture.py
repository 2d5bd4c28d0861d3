"""Rules of capture and of the outbox, taken out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from psycopg import sql

from syncer.base.model import Change
from syncer.base.postgres import Connection
from syncer.capture import table_files
from syncer.capture.triggers import Capture
from tests.mutations import Instead


def only_what_is_wanted(original: Instead, connection: Connection, capture: Capture, before: Capture | None) -> Capture:
    """What was captured before is no longer, though it is still read."""
    return capture


def remembers_files_of_now(original: Instead, connection: Connection, capture: Capture, files: object) -> None:
    """Partitions are looked at once the triggers are made."""
    original(connection, capture, table_files.present(connection, capture.relation))


def only_of_the_table(original: Instead, relation: str, partition: str) -> Iterator[sql.Composed]:
    """No partition has a trigger for TRUNCATE."""
    if partition == relation:
        yield from original(relation, partition)


def at_its_own_level(original: Instead, column: str) -> sql.Identifier:
    """A column that is gone is not found one level up."""
    return sql.Identifier("syncer row", column)


def only_the_new_image(original: Instead, cls: type[Change], record: bytes) -> Change:
    """An UPDATE leads to the documents of the row as it is, and not as it was."""
    change: Change = original(cls, record)
    return dataclasses.replace(change, images=change.images[-1:])


def nothing_in_progress(original: Instead, cursor: str) -> tuple[str, str]:
    """The cursor is the end of its snapshot, whatever was in progress before that."""
    xmax, _ = original(cursor)
    return xmax, "{}"


def from_the_oldest_on(original: Instead, cursor: str) -> tuple[str, str]:
    """Whatever came after the oldest transaction that was open is looked at again."""
    _, in_progress = original(cursor)
    return cursor.partition(":")[0], in_progress


def casts_to_json(original: Instead, value: sql.Identifier, type_: str | None, *, as_key: bool = False) -> sql.Composed:
    """A value of no type of Postgres's own is cast to json, as its owner has defined that."""
    if type_ is not None:
        known: sql.Composed = original(value, type_, as_key=as_key)
        return known
    return sql.SQL("to_json({}) #>> '{{}}'").format(value)
