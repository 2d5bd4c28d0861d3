"""Marks: up to where the search server shows nothing that a database with this row lacks.

A mark is a row of the database with the positions of the active indices, as they were before it was committed. WAL is
sequential. So a database that has the mark has every commit that documents show up to these positions, whatever else a
failover or a restore has taken back. What was written later is in doubt: see `syncer.indexing.failover`.

A mark is taken every few seconds while documents are written. It is also recorded in the search server, which tells
that the epoch is in use. If an index is behind its last mark, it has lost writes, and its document is refreshed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple
from uuid import UUID

import structlog
from psycopg.types.json import Jsonb

from syncer.base.model import Target
from syncer.base.postgres import Connection, row
from syncer.documents import registry
from syncer.elasticsearch.bulk import Index
from syncer.elasticsearch.reader import Position
from syncer.elasticsearch.record import STATE_INDEX
from syncer.jobs import queue
from syncer.jobs.model import JobKind

_READ = """
SELECT i.installation, i.epoch, m.number, m.positions FROM syncer.installation AS i CROSS JOIN syncer.mark AS m
"""
# OIDs do not tell a dump: of two new clusters, both begin with the same ones. The row is written within no savepoint.
IS_SAME = """
coalesce((
    SELECT c.database = (SELECT oid FROM pg_database WHERE datname = current_database())
           AND c.written_in::text::numeric % 4294967296 = c.xmin::text::numeric
    FROM syncer.cluster_identity AS c
), false)
"""
"""Whether the database is the one that has entered the epoch, and no dump was restored since."""
# By number, so that of several that are taken at a time one counts; by epoch, since another may have been entered.
# Rule: a-mark-is-of-the-same-database. A restore in one transaction ends no session.
_TAKE = f"""
UPDATE syncer.mark SET number = number + 1, positions = $3, last_version = (SELECT last_value FROM syncer.version)
WHERE number = $1 AND (SELECT epoch FROM syncer.installation) = $2 AND {IS_SAME}
RETURNING number
"""
_OCCASION = "the search server lost writes: an index was restored, or a stale copy of a shard was made its primary"

Positions = Mapping[str, Any]
"""As stored: by index, its id, and by shard its global checkpoint and the id of its history."""


class Mark(NamedTuple):
    """The last mark of the database, of the epoch in use."""

    installation: UUID
    epoch: int
    number: int
    positions: Positions


def last(connection: Connection) -> Mark:
    """Return the last mark."""
    return Mark(*row(connection, _READ))


def take(connection: Connection, index: Index, *, always: bool = False) -> bool:
    """Take a mark if documents were written since the last one, or ``always``; record that the epoch is in use.

    Return False if it was not taken: another process has taken one meanwhile, another epoch is recorded, or the
    database was set back.
    """
    mark, names = last(connection), {STATE_INDEX, *registry.index_names(connection)}
    # Rules: numbers-are-read-before-the-mark, a-mark-has-the-global-checkpoint.
    positions = index.holdings.positions(sorted(names))
    # Rule: a-mark-is-of-the-recorded-epoch. Another primary may have written what the positions cover.
    if index.record.read(mark.installation).epoch != mark.epoch:
        return False
    before = {name: mark.positions[name] for name in names & mark.positions.keys()}
    stored = before | {name: _stored(at) for name, at in positions.items() if _is_whole(before.get(name), at)}
    number, changed = mark.number, {name for name in stored if stored[name] != before.get(name)} - {STATE_INDEX}
    if always or changed:
        lost = {name for name in changed if _has_lost(before, name, positions)}
        documents = registry.documents(connection) if lost else []
        behind = [document for document in documents if document.is_loaded and document.index_name in lost]
        with connection.transaction():
            taken = connection.execute(_TAKE, (mark.number, mark.epoch, Jsonb(stored))).fetchone()
            if taken is None:
                return False
            [number] = taken
            refreshes = [queue.create(connection, document, JobKind.REFRESH, occasion=_OCCASION) for document in behind]
        for job in [job for job in refreshes if job is not None]:
            timeline = f"{job.index_name} is behind what was written: {_OCCASION}. All of it is written again."
            structlog.get_logger().warning("index.lost_writes", index=job.index_name, job=job.id, timeline=timeline)
    index.record.renew(mark.installation, mark.epoch, number)
    return True


def position(positions: Positions, index_name: str) -> dict[str, Any] | None:
    """Return what a job needs to find what was written to an index since a mark; None if the mark does not tell."""
    if index_name not in positions:
        return None
    return {"index": positions[index_name], "log": positions.get(STATE_INDEX)}


def written_since(
    index: Index, target: Target, mark: Mapping[str, Any] | None, *, page: int
) -> Iterator[list[str]] | None:
    """Return the ids that were written to an index or deleted since a mark, in chunks; None if it does not tell.

    ``mark`` is as `position` returned it.
    """
    if mark is None:
        return None
    numbers = numbers_since(mark["index"], index.holdings.position(target.index_name))
    logged = numbers_since(mark["log"], index.holdings.position(STATE_INDEX))
    if numbers is None or logged is None or index.record.pruned() > logged["0"]:
        return None
    written = index.holdings.written_since(target, numbers, page=page)
    return chain(written, index.record.logged_since(target.index_name, logged["0"], page=page))


def numbers_since(stored: Mapping[str, Any] | None, now: Position) -> dict[str, int] | None:
    """Return by shard the number from which on writes are later than a stored position; None if it does not tell.

    It does not if the index, a shard or its history is another one, or is behind.
    """
    if stored is None or stored["uuid"] != now.uuid or stored["shards"].keys() != now.shards.keys():
        return None
    shards: Mapping[str, Sequence[Any]] = stored["shards"]
    if any(shards[shard][1] != at.history or shards[shard][0] > at.greatest for shard, at in now.shards.items()):
        return None
    return {shard: int(checkpoint) for shard, (checkpoint, _) in shards.items()}


def _is_whole(stored: Mapping[str, Any] | None, now: Position) -> bool:
    """Whether a position has every shard that the one before had; if one does not answer, that is kept."""
    return stored is None or stored["uuid"] != now.uuid or stored["shards"].keys() <= now.shards.keys()


def _stored(position: Position) -> dict[str, Any]:
    return {"uuid": position.uuid, "shards": {shard: [at[0], at.history] for shard, at in position.shards.items()}}


def _has_lost(marked: Positions, index_name: str, positions: Mapping[str, Position]) -> bool:
    """Whether an index lacks writes that were acknowledged before the last mark."""
    if index_name not in marked or index_name not in positions:
        return False
    return numbers_since(marked[index_name], positions[index_name]) is None
