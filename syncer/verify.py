"""Verify: every document against its SELECT, in both directions, by content, beside live traffic.

Streams both sides in bounded memory. What differs at first sight may merely be in flight, so it is looked at again
until it is equal or has stayed different for the time allowed; only that is drift. Reading Elasticsearch
by id is realtime, so no refresh is waited for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

from syncer import compose
from syncer.compose import Row
from syncer.index import Index, Stored
from syncer.model import Place, Target
from syncer.postgres import Connection
from syncer.store import Document

SUSPECTS_MAX = 10_000
_LOOK_AGAIN_SECONDS = 0.25


class Kind(StrEnum):
    """How a document differs."""

    MISSING = "missing"
    """Postgres has it, Elasticsearch has not."""
    EXTRA = "extra"
    """Elasticsearch has it, Postgres has not."""
    DIFFERENT = "different"
    """Both have it, with other contents."""
    MISPLACED = "misplaced"
    """Elasticsearch has it, or a second copy of it, under another routing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One document that is not equal to its SELECT.

    Args:
        document: Which definition.
        index_name: In which physical index.
        id: Which document.
        kind: How it differs.
        fields: The top-level fields that differ.
        version: The version that Elasticsearch holds, if it holds the document.
        routing: What leads to the copy that should not be where it is.
    """

    document: str
    index_name: str
    id: str
    kind: Kind
    fields: tuple[str, ...] = ()
    version: int | None = None
    routing: str | None = None


@dataclass(slots=True)
class VerifyReport:
    """What a verification found.

    Args:
        document: Which definition.
        documents: How many the SELECT returned.
        drifts: Those that stayed different.
        is_complete: False if so many differed that it stopped counting.
        halted: If the document is halted, or would have to be: what happened, and what to do. Nothing was compared.
        seconds: How long it took.
    """

    document: str
    documents: int = 0
    drifts: list[Drift] = field(default_factory=list)
    is_complete: bool = True
    halted: str | None = None
    seconds: float = 0

    @property
    def holds(self) -> bool:
        """Whether every document equals its SELECT."""
        return not self.drifts and self.is_complete and self.halted is None


def verify(
    connect: Callable[[], Connection],
    document: Document,
    *,
    index: Index,
    page: int = 1000,
    settle_seconds: float = 10,
    progress: Callable[[int], None] = lambda _: None,
) -> VerifyReport:
    """Compare every document with its SELECT.

    Args:
        connect: Opens a connection to Postgres.
        document: Which definition.
        index: Elasticsearch.
        page: How many documents are in memory at once.
        settle_seconds: How long a document may stay different before that is called drift.
        progress: Told how many documents have been compared so far.
    """
    report = VerifyReport(document=document.name)
    began = time.monotonic()
    with connect() as streaming, connect() as asking:
        walk = _Walk(document=document, target=document.target, index=index, page=page)
        suspects: dict[str, Drift] = {}
        for drifts, compared in walk.first_look(streaming, asking):
            report.documents += compared
            progress(report.documents)
            suspects |= {drift.id: drift for drift in drifts}
            if len(suspects) >= SUSPECTS_MAX:
                report.is_complete = False
                break
        report.drifts += walk.settled(asking, suspects, settle_seconds)
    report.seconds = time.monotonic() - began
    return report


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walk:
    """One document in one target, compared page by page."""

    document: Document
    target: Target
    index: Index
    page: int

    def first_look(self, streaming: Connection, asking: Connection) -> Iterator[tuple[list[Drift], int]]:
        """What differs: of all that Postgres has, then of what only Elasticsearch has. With each page's size."""
        for expected in compose.everything(streaming, self.document, page=self.page):
            held = self.index.read(self.target, [Place.of(id_, row.routing) for id_, row in expected.items()])
            yield list(compare(self.document, self.target, expected, held)), len(expected)
        for places in self.index.walk(self.target, page=self.page):
            present = compose.existing(asking, self.document, [one.id for one in places])
            yield list(self._strays(places, present)), 0

    def settled(self, asking: Connection, suspects: dict[str, Drift], seconds: float) -> list[Drift]:
        """Look at the suspects again and again; those that are still different in the end."""
        deadline = time.monotonic() + seconds
        while suspects:
            suspects = self._look_again(asking, list(suspects))
            if time.monotonic() >= deadline:
                break
            if suspects:
                time.sleep(_LOOK_AGAIN_SECONDS)
        return list(suspects.values())

    def _look_again(self, asking: Connection, ids: list[str]) -> dict[str, Drift]:
        still: dict[str, Drift] = {}
        for part in (ids[at : at + self.page] for at in range(0, len(ids), self.page)):
            held = self.index.read_everywhere(self.target, part)
            expected = compose.current(asking, self.document, part)
            still |= {drift.id: drift for drift in compare(self.document, self.target, expected, held)}
        return still

    def _strays(self, places: list[Place], present: set[Place]) -> Iterator[Drift]:
        ids = {one.id for one in present}
        for place in places:
            if place not in present:
                yield Drift(
                    document=self.document.name,
                    index_name=self.target.index_name,
                    id=place.id,
                    kind=Kind.MISPLACED if place.id in ids else Kind.EXTRA,
                    routing=place.routing,
                )


def compare(document: Document, target: Target, expected: dict[str, Row], held: Iterable[Stored]) -> Iterator[Drift]:
    """What differs between documents as Postgres says them and the copies that Elasticsearch holds."""
    copies: dict[str, list[Stored]] = {}
    for one in held:
        copies.setdefault(one.place.id, []).append(one)
    drift = partial(Drift, document=document.name, index_name=target.index_name)
    for id_ in expected.keys() | copies.keys():
        row, found = expected.get(id_), copies.get(id_, [])
        if row is None:
            yield drift(id=id_, kind=Kind.EXTRA, version=found[0].version, routing=found[0].place.routing)
        elif stray := next((one for one in found if one.place != Place.of(id_, row.routing)), None):
            yield drift(id=id_, kind=Kind.MISPLACED, version=stray.version, routing=stray.place.routing)
        elif not found:
            yield drift(id=id_, kind=Kind.MISSING)
        elif fields := _differing(json.loads(row.source), found[0].source):
            yield drift(id=id_, kind=Kind.DIFFERENT, fields=fields, version=found[0].version)


def _differing(expected: dict[str, Any], held: dict[str, Any]) -> tuple[str, ...]:
    return tuple(
        sorted(
            name
            for name in expected.keys() | held.keys()
            if name not in expected or name not in held or expected[name] != held[name]
        )
    )
