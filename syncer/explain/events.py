"""Events: the changes that touch one document: in the outbox, in the topic, and the last that the workers have done.

Which changes touch it is asked of the same derivation as the workers ask, with the tables as they are now. Both are
looked through from where they begin to where they end, but for no longer and no further than allowed; how far is said.
The outbox is read before the topic, so that a change that moves from the one to the other meanwhile is not overlooked.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import psycopg
from confluent_kafka import KafkaException

from syncer import capture, outbox, records, topic
from syncer.affected import AffectedReader
from syncer.errors import DocumentError, SyncerError, TopicError
from syncer.model import Change, Operation
from syncer.policy import explain, is_of_data, kind
from syncer.postgres import Connection
from syncer.records import Record, Span
from syncer.settings import KafkaSettings
from syncer.store import Document
from syncer.topic import PartitionLag

_PAGE = 1000
_STATEMENT_TIMEOUT = "SELECT set_config('statement_timeout', $1, false)"


class Stage(StrEnum):
    """How far a change has come."""

    OUTBOX = "outbox"
    """Committed, and not published."""
    TOPIC = "topic"
    """Published, and not known to be done."""
    DONE = "done"
    """Handled by a worker, and still in the topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far to look.

    Args:
        changes: How many changes, the oldest first, in the outbox and in the topic each.
        done: How many records back from what the workers have done.
        seconds: How long to look at each of the three.
    """

    changes: int = 50_000
    done: int = 10_000
    seconds: float = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A change that touches the document.

    Args:
        id: Its position in the outbox.
        changed_at: When the statement ran, in seconds since the Unix epoch.
        relation: The table.
        operation: What happened to a row of it.
        key: The row's key; nothing else of it.
        stage: How far it has come.
        partition: Where it is in the topic, if it is there.
        offset: Of that partition.
        indices: The physical indices for which it touches the document.
    """

    id: int
    changed_at: float
    relation: str
    operation: Operation
    key: dict[str, Any]
    stage: Stage
    partition: int | None = None
    offset: int | None = None
    indices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """How much of a stage was looked at, the oldest first; of what is done, the newest.

    Args:
        stage: Which.
        looked: So many changes.
        of: So many there are; of what is done, so many were to be looked at.
    """

    stage: Stage
    looked: int
    of: int

    @property
    def is_complete(self) -> bool:
        """Whether nothing was left out."""
        return self.looked >= self.of


@dataclass(slots=True)
class Flow:
    """What was found.

    Args:
        coming: What touches the document and is on its way, the oldest first.
        done: What touches it and is done, the oldest first.
        searched: How much was looked at.
        trouble: Why Kafka could not be asked, if it could not.
        lost: How many records have left the topic before the workers had them.
        unreadable: How many records in the topic are no changes that this version can read; workers set them aside.
        undecided: By physical index, why it cannot be said which changes touch the document.
    """

    coming: list[Event] = field(default_factory=list)
    done: list[Event] = field(default_factory=list)
    searched: list[Searched] = field(default_factory=list)
    trouble: SyncerError | None = None
    lost: int = 0
    unreadable: int = 0
    undecided: dict[str, str] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether nothing that is on its way can have been overlooked."""
        looked = all(one.is_complete for one in self.searched if one.stage is not Stage.DONE)
        return looked and self.trouble is None and not self.lost and not self.unreadable


def find(connection: Connection, kafka: KafkaSettings, documents: Sequence[Document], id_: str, limits: Limits) -> Flow:
    """Look for what touches one document, under each of its definitions.

    Raises:
        psycopg.Error: Postgres does not answer. That Kafka does not is said in what was found.
    """
    flow = Flow()
    finder = _Finder(connection, documents, id_, flow.undecided)
    _search_outbox(connection, finder, flow, limits)
    try:
        _search_topic(kafka, finder, flow, limits)
    except (TopicError, KafkaException) as error:
        flow.trouble = explain(error)
    published = {one.id for one in flow.coming if one.stage is Stage.TOPIC} | {one.id for one in flow.done}
    # What was published meanwhile was seen twice.
    flow.coming = [one for one in flow.coming if one.stage is Stage.TOPIC or one.id not in published]
    flow.coming.sort(key=_age)
    flow.done.sort(key=_age)
    return flow


def _age(event: Event) -> tuple[float, int]:
    return event.changed_at, event.id


def _search_outbox(connection: Connection, finder: _Finder, flow: Flow, limits: Limits) -> None:
    cursor = outbox.saved_cursor(connection)
    total, _ = outbox.waiting(connection, cursor, finder.relations)
    rows = outbox.oldest(connection, cursor, finder.relations, limit=limits.changes)
    looked, deadline = 0, time.monotonic() + limits.seconds
    for page in (rows[at : at + _PAGE] for at in range(0, len(rows), _PAGE)):
        found = finder.among([_Seen(change=Change.parse(one), stage=Stage.OUTBOX) for one in page], deadline)
        if found is None:
            break
        flow.coming += found
        looked += len(page)
    # There may be more by now than when they were counted.
    flow.searched.append(Searched(stage=Stage.OUTBOX, looked=looked, of=max(total, len(rows))))


def _search_topic(kafka: KafkaSettings, finder: _Finder, flow: Flow, limits: Limits) -> None:
    lags = topic.lag(kafka)
    flow.lost = sum(max(0, one.begin - one.committed) for one in lags)
    behind = [(one.partition, max(one.begin, one.committed), one.end) for one in lags if one.committed < one.end]
    share = max(1, limits.changes // max(1, len(behind)))
    spans = [Span(partition=one, begin=begin, end=min(end, begin + share)) for one, begin, end in behind]
    looked, found, flow.unreadable = _look(kafka, finder, spans, Stage.TOPIC, limits.seconds)
    flow.coming += found
    flow.searched.append(Searched(stage=Stage.TOPIC, looked=looked, of=sum(end - begin for _, begin, end in behind)))
    back = [_back(one, limits.done // max(1, len(lags))) for one in lags]
    looked, flow.done, _ = _look(kafka, finder, back, Stage.DONE, limits.seconds)
    of = sum(max(0, one.end - one.begin) for one in back)
    flow.searched.append(Searched(stage=Stage.DONE, looked=looked, of=of))


def _back(lag: PartitionLag, records: int) -> Span:
    """The last records that are done."""
    begin, end = max(lag.begin, lag.committed - records), min(lag.committed, lag.end)
    return Span(partition=lag.partition, begin=begin, end=end)


def _look(
    kafka: KafkaSettings, finder: _Finder, spans: Sequence[Span], stage: Stage, seconds: float
) -> tuple[int, list[Event], int]:
    """How many records were looked at, what was found among them, and how many of them are no changes."""
    looked = unreadable = 0
    events: list[Event] = []
    deadline = time.monotonic() + seconds
    with closing(records.look(kafka, spans, seconds=seconds)) as pages:
        for page in pages:
            seen = [parsed for one in page if (parsed := _parsed(one, stage)) is not None]
            found = finder.among(seen, deadline)
            if found is None:
                break
            looked += len(page)
            unreadable += len(page) - len(seen)
            events += found
    return looked, events, unreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A change, and where it was seen."""

    change: Change
    stage: Stage
    partition: int | None = None
    offset: int | None = None


def _parsed(record: Record, stage: Stage) -> _Seen | None:
    try:
        change = Change.parse(record.value)
    except ValueError:
        return None
    return _Seen(change=change, stage=stage, partition=record.partition, offset=record.offset)


class _OutOfTimeError(Exception):
    """The derivation did not answer in time."""


class _Finder:
    """Finds the changes that touch one document.

    Args:
        connection: Nothing else is done on it meanwhile.
        documents: Its definitions.
        id_: Which.
        undecided: Is told, by physical index, why a definition cannot say it.
    """

    def __init__(
        self, connection: Connection, documents: Sequence[Document], id_: str, undecided: dict[str, str]
    ) -> None:
        self._connection = connection
        self._documents = documents
        self._id = id_
        self._undecided = undecided
        self._reader = AffectedReader(connection, page=_PAGE)
        self._keys = {relation: one.key for relation, one in capture.captured(connection).items()}
        self.relations = sorted({relation for one in documents for relation in one.dependencies.tables})

    def among(self, seen: Sequence[_Seen], deadline: float) -> list[Event] | None:
        """Those that touch the document; None if there is no time left to find out."""
        touched: dict[int, list[str]] = {}
        try:
            for document in self._documents:
                for place in self._touching(document, seen, deadline):
                    touched.setdefault(place, []).append(document.index_name)
        except _OutOfTimeError:
            return None
        return [self._event(seen[place], tuple(indices)) for place, indices in sorted(touched.items())]

    def _event(self, seen: _Seen, indices: tuple[str, ...]) -> Event:
        change = seen.change
        row = change.images[-1] if change.images else {}
        return Event(
            id=change.id,
            changed_at=change.changed_at,
            relation=change.relation,
            operation=change.operation,
            key={one: row[one] for one in self._keys.get(change.relation, ()) if one in row},
            stage=seen.stage,
            partition=seen.partition,
            offset=seen.offset,
            indices=indices,
        )

    def _touching(self, document: Document, seen: Sequence[_Seen], deadline: float) -> list[int]:
        """The places of those that touch it under this definition."""
        if document.index_name in self._undecided:
            return []
        # Changes of one row mostly have the same images, and touch the same documents.
        alike: dict[tuple[str, str], list[int]] = {}
        for place, one in enumerate(seen):
            if one.change.relation in document.dependencies.tables:
                alike.setdefault((one.change.relation, Change.dump_images([one.change])), []).append(place)
        try:
            found = self._narrowed(document, [(seen[places[0]].change, places) for places in alike.values()], deadline)
        except DocumentError as error:
            self._undecided[document.index_name] = _undecided(error)
            return []
        return [place for _, places in found for place in places]

    def _narrowed(self, document: Document, groups: _Groups, deadline: float) -> _Groups:
        """Those of the groups of changes that touch the document, found by halving."""
        if not groups or not self._touches(document, [change for change, _ in groups], deadline):
            return []
        if len(groups) == 1:
            return groups
        middle = len(groups) // 2
        halves = (groups[:middle], groups[middle:])
        found = [one for half in halves for one in self._narrowed(document, half, deadline)]
        # An affects query of the definition's own may find a document only from several rows together.
        return found or groups

    def _touches(self, document: Document, changes: Sequence[Change], deadline: float) -> bool:
        """Whether any of the changes touches the document.

        Raises:
            _OutOfTimeError: It cannot be said in time.
            DocumentError: It cannot be said at all.
        """
        left = deadline - time.monotonic()
        if left <= 0:
            raise _OutOfTimeError
        try:
            self._connection.execute(_STATEMENT_TIMEOUT, (f"{max(1, left * 1000):.0f}ms",))
            return self._reader.touches(document, changes, self._id)
        except (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable) as error:
            raise _OutOfTimeError from error
        finally:
            self._connection.execute(_STATEMENT_TIMEOUT, ("0",))


def _undecided(error: DocumentError) -> str:
    """Why a definition cannot say which documents changes touch; without the value on which its SQL fails."""
    if not is_of_data(error.__cause__):
        return error.message
    return f"an affects query of {error.document} fails on the data: {kind(error.__cause__)}"


_Groups = list[tuple[Change, list[int]]]
