"""A job worker that writes nothing: what the protocol of `syncer.jobs.chunks` requires, without Elasticsearch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from syncer.base.model import WriteReport
from syncer.base.postgres import AdvisoryLock, Connection
from syncer.documents import registry
from syncer.jobs import queue
from syncer.jobs.chunks import Chunk, Chunks
from syncer.jobs.model import Job, JobKind


def hold(connection: Connection, job_id: int) -> None:
    """Keep job workers from listing a job as long as this connection is open, as a lister that hangs would."""
    connection.execute("SELECT pg_advisory_lock($1::bigint | $2::bigint)", (int(AdvisoryLock.JOBS), job_id))


def held_backfill(connection: Connection) -> Job:
    """A backfill of the blog's posts that no job worker lists as long as this connection is open."""
    with connection.transaction():
        job = queue.create(connection, registry.named(connection, "blogpost")[0], JobKind.BACKFILL)
        assert job is not None
        hold(connection, job.id)
    return job


@dataclass
class ChunkWorker:
    """Takes and finishes chunks on a connection of its own."""

    connection: Connection
    taken: list[Chunk] = field(default_factory=list)
    counted: int = 0

    def __post_init__(self) -> None:
        """Become a job worker."""
        self.chunks = Chunks(self.connection)

    def take(self, number: int = 1) -> list[Chunk]:
        """Take the next chunks, so many at most."""
        chunks = [chunk for _ in range(number) if (chunk := self.chunks.take())]
        self.taken += chunks
        return chunks

    def finish(self, chunks: Sequence[Chunk]) -> int:
        """Finish chunks, all of whose documents are indexed; return how many of them counted."""
        counted = self.chunks.finish([(chunk, WriteReport(indexed=len(chunk.ids))) for chunk in chunks])
        self.counted += counted
        return counted

    def turn(self) -> bool:
        """Take and finish a chunk; return whether there was one."""
        chunks = self.take()
        if chunks:
            self.finish(chunks)
        return bool(chunks)

    def drain(self) -> None:
        """Take and finish until there is nothing more to take."""
        while self.turn():
            pass
