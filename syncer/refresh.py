"""Refresh of a whole document: every id that Postgres has is written, and every id that only Elasticsearch has.

Used after a TRUNCATE, when a definition is applied, and by `syncer backfill`. Runs beside live traffic:
what it writes follows the version rule like everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from syncer import compose
from syncer.index import Index
from syncer.model import Place
from syncer.policy import at_work_for
from syncer.postgres import Connection
from syncer.store import Document
from syncer.writer import Writer, WriteReport


def refresh_all(
    connection: Connection,
    document: Document,
    *,
    index: Index,
    writer: Writer,
    page: int,
    progress: Callable[[WriteReport], None] = lambda _: None,
) -> WriteReport:
    """Write every document again, and delete what the SELECT no longer returns, or not there.

    Args:
        connection: For reading ids; taken while this lasts.
        document: Which.
        index: Elasticsearch.
        writer: Writes, on a connection of its own.
        page: How many ids are in memory at once.
        progress: Told the total so far, after each page.

    Raises:
        Stopping: It was told to stop first.
        DocumentError: The document is to halt.
    """
    total = WriteReport()

    def write(ids: list[str], *, everywhere: bool = False) -> None:
        if ids:
            total.add(writer.write(document.index_name, ids, everywhere=everywhere))
            progress(total)

    for ids in compose.all_ids(connection, document, page=page):
        write(ids)
    for held in _walk(index, document, page):
        present = compose.existing(connection, document, [one.id for one in held])
        write([one.id for one in held if one not in present], everywhere=True)
    return total


def _walk(index: Index, document: Document, page: int) -> Iterator[list[Place]]:
    with at_work_for(document.name, document.generation):
        yield from index.holdings.walk(document.target, page=page)
