"""Parts of syncer that break one rule each. Tests hand them to constructors instead of the real ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import elasticsearch
from elasticsearch import Elasticsearch

from syncer.base.model import Composition, Operation, Place, Target
from syncer.base.postgres import Connection
from syncer.base.settings import KafkaSettings
from syncer.capture.outbox import OutboxRow, Page
from syncer.capture.progress import Term
from syncer.capture.reader import OutboxReader
from syncer.elasticsearch.bulk import BulkOutcome, Index
from syncer.elasticsearch.reader import Holdings
from syncer.kafka.producer import ChangeProducer
from syncer.worker.source import ChangeBatch, Source

BULK_BYTES_MAX = 8_000_000


# Sources


class Spoiled:
    """A source that does something to what the real one has received."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.save, self.keep_alive, self.close = source.save, source.keep_alive, source.close

    def receive(self, *, records_max: int, wait_seconds: float) -> ChangeBatch | None:
        """Receive from the real source."""
        batch = self.source.receive(records_max=records_max, wait_seconds=wait_seconds)
        return None if batch is None else self.spoil(batch)

    def spoil(self, batch: ChangeBatch) -> ChangeBatch:
        """Break the rule."""
        raise NotImplementedError


def spoiled(kind: type[Spoiled], source: Callable[..., Source]) -> Callable[..., Spoiled]:
    """To take the place of a source where the daemon makes it."""
    return lambda **arguments: kind(source(**arguments))


class SavesFirst(Spoiled):
    """Saves the progress before the documents are written."""

    def spoil(self, batch: ChangeBatch) -> ChangeBatch:
        """Save it."""
        self.source.save(batch)
        return batch


class CursorIsAnId(Spoiled):
    """Remembers the greatest id that it has seen, and takes only what is beyond it for new."""

    last_number = 0

    def spoil(self, batch: ChangeBatch) -> ChangeBatch:
        """Keep changes with greater ids."""
        new = [change for change in batch.changes if change.id > self.last_number]
        self.last_number = max([self.last_number, *(change.id for change in new)])
        return replace(batch, changes=new)


class NewRowsOnly(Spoiled):
    """Leaves out the old image of each change, so that documents are sought by the new row alone."""

    def spoil(self, batch: ChangeBatch) -> ChangeBatch:
        """Keep the last image."""
        return replace(batch, changes=[replace(change, images=change.images[-1:]) for change in batch.changes])


class SkipsTruncates(Spoiled):
    """Passes over what names no row."""

    def spoil(self, batch: ChangeBatch) -> ChangeBatch:
        """Keep changes of rows."""
        rows = [change for change in batch.changes if change.operation is not Operation.TRUNCATE]
        return replace(batch, changes=rows)


class KilledError(Exception):
    """The process dies here."""


# The leader


class SavesUnacknowledged(OutboxReader):
    """Saves the cursor before Kafka has acknowledged the records."""

    def read(self, *, rows_max: int) -> Page:
        """Read and save."""
        page = super().read(rows_max=rows_max)
        self.save(page, self.numbers)
        return page


class DiesBeforeSaving(OutboxReader):
    """The process is killed before it saves."""

    def save(self, page: Page, numbers: Mapping[int, int]) -> None:
        """Save nothing."""
        raise KilledError(page.cursor, numbers)


class DiesBeforeSending(ChangeProducer):
    """The process is killed before Kafka has anything of it."""

    def produce(self, rows: Iterable[OutboxRow]) -> None:
        """Queue nothing."""
        raise KilledError(rows)


class OldTerm(ChangeProducer):
    """Goes on with the numbers of the term in which the cursor was saved."""

    def __init__(self, settings: KafkaSettings, *, term: Term, saved: Mapping[int, int], **more: Any) -> None:
        term = term._replace(start=max(saved.values(), default=0))
        super().__init__(settings, term=term, saved=saved, **more)


# Elasticsearch


class Killing(Index):
    """The process is killed before it writes; `syncer.worker` does not retry this error."""

    def write(self, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        """Write nothing."""
        raise KilledError(target.index_name, len(compositions))


class Slow(Index):
    """Something happens between the first read and its write."""

    meanwhile: Callable[[], object] | None = None

    def write(self, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        """Let it happen, then write."""
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return super().write(target, compositions)


class IgnoresVersions(Index):
    """Writes whatever comes, as if the last write were the newest."""

    def __init__(self, client: Elasticsearch, *, bulk_bytes_max: int) -> None:
        super().__init__(client, bulk_bytes_max=bulk_bytes_max)
        self.client = client

    def write(self, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        """Write without versions."""
        for composition in compositions:
            if composition.source is None:
                self.client.options(ignore_status=404).delete(index=target.write_alias, id=composition.id)
            else:
                self.client.index(index=target.write_alias, id=composition.id, document=json.loads(composition.source))
        return BulkOutcome(done={composition.id: "indexed" for composition in compositions})


class SlowIgnoringVersions(Slow, IgnoresVersions):
    """Both."""


class HidesCreations(Slow):
    """Does not say which documents it created, so that nothing is checked again."""

    def write(self, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        """Write, and forget what was created."""
        outcome = super().write(target, compositions)
        outcome.created.clear()
        return outcome


class FailsOnce(Index):
    """The first request does not arrive."""

    has_failed = False

    def write(self, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        """Fail, and write the next time."""
        if not self.has_failed:
            self.has_failed = True
            raise elasticsearch.ConnectionError("the line is cut")
        return super().write(target, compositions)


class SwallowsFailures(FailsOnce):
    """Counts a failed request as written."""

    def write(self, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        """Write if that is possible."""
        try:
            return super().write(target, compositions)
        except elasticsearch.ConnectionError:
            return BulkOutcome(done={composition.id: "indexed" for composition in compositions})


class FindsNoOrphans(Holdings):
    """Finds nothing that a cleanup would have to delete."""

    def untouched_since(self, target: Target, numbers: Mapping[str, int], *, page: int) -> Iterator[list[Place]]:
        """Yield nothing."""
        del target, numbers, page
        yield from ()


# Postgres


def reads_first(connect: Callable[[], Connection]) -> Callable[[], Connection]:
    """Connections whose snapshot is from now, so that a version that is assigned later belongs to an old state."""
    connection = connect()
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    connection.execute("SELECT txid_current_snapshot()")
    return lambda: connection


EVERY_NUMBER_IS_HANDLED = "UPDATE syncer.partition SET number = 9223372036854775807"
"""Workers that meet no gap: no record's predecessor is greater than what they believe to have handled."""
