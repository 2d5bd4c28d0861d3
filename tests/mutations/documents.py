"""Rules of definitions, of what they read, and of what they affect, taken out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from syncer.apply import activate
from syncer.base.model import Role
from syncer.base.postgres import Connection
from syncer.documents.affected import AffectedReader
from syncer.documents.registry import Document
from syncer.elasticsearch.indices import Indices
from tests.mutations import Instead

_Answer = TypeVar("_Answer")


def only_current(original: Instead, self: AffectedReader) -> list[Document]:
    """An index that is built, or on standby, is not followed."""
    return [one for one in original(self) if one.role is Role.CURRENT]


def suspends_on_data(
    original: Instead,
    connection: Connection,
    document: Document,
    *,
    isolates: bool = False,
    lock_seconds: float,
) -> AbstractContextManager[None]:
    """A change that cannot be followed is the document's fault."""
    around: AbstractContextManager[None] = original(connection, document, lock_seconds=lock_seconds)
    return around


def asks_once(original: Instead, ask: Callable[[], _Answer]) -> _Answer:
    """A question that was planned too long ago is not asked again."""
    return ask()


def out_of_force_first(original: Instead, connection: Connection, indices: Indices, document: Document) -> None:
    """An index is searched that is no longer active."""
    activate.deactivate(connection, document)
    original(connection, indices, document)


def as_if_never_suspended(original: Instead, before: Document | None, after: Document) -> bool:
    """A suspended definition goes on under the revision that failed."""
    changed: bool = original(before if before is None else dataclasses.replace(before, suspended=None), after)
    return changed


def whole_tables(
    original: Instead, columns: Mapping[str, Iterable[str]], whole: Collection[str]
) -> dict[str, list[str]]:
    """Every column of a table is compared."""
    return {relation: ["*"] for relation in columns}


def waits_only_once(original: Instead, self: Any, building: Document) -> None:
    """What comes while a new index is compared is not waited for."""
    if building.index_name not in _WAITED_FOR:
        _WAITED_FOR.add(building.index_name)
        original(self, building)


_WAITED_FOR: set[str] = set()


def of_any_length(original: Instead, id_: str) -> str:
    """An id is recorded whole."""
    return id_
