"""A job worker that writes nothing: what the protocol of `syncer.jobs.chunks` says, without Elasticsearch.

Also as a process.

As a process it says that it has entered, and begins once it is told to, by a line on standard input. It prints a line
each time it takes, empty if there was nothing; with ``--holding`` it finishes what it has taken only once it is told
to, likewise. With ``--listing`` it lists the only job, and leaves. With ``--silent=SECONDS`` Postgres waits only that
long for it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from syncer.base import settings
from syncer.base.postgres import Connection, connect
from syncer.base.write_report import WriteReport
from syncer.documents import registry
from syncer.jobs import chunks, listing
from syncer.jobs.chunks import Chunk, Chunks
from syncer.jobs.model import due
from tests.support.world import World, wait_until


def written(chunk: Chunk) -> tuple[Chunk, WriteReport]:
    """What a job worker says of a chunk all of whose documents it has indexed."""
    return chunk, WriteReport(documents=len(chunk.ids), indexed=len(chunk.ids))


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
        """The next chunks, so many at most."""
        taken = [one for _ in range(number) if (one := self.chunks.take())]
        self.taken += taken
        return taken

    def finish(self, done: Sequence[Chunk]) -> int:
        """How many of them counted."""
        counted = self.chunks.finish([written(one) for one in done])
        self.counted += counted
        return counted

    def turn(self) -> bool:
        """Take and finish; whether there was anything."""
        chunks = self.take()
        if chunks:
            self.finish(chunks)
        return bool(chunks)

    def drain(self) -> None:
        """Take and finish until there is nothing more to take."""
        while self.turn():
            pass


class ChunkWorkerProcess:
    """A job worker in a process of its own, to be killed or stopped."""

    def __init__(self, world: World, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.job_worker", *arguments],
            env=world.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self) -> None:
        """Let it go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL, and no trace of it left here."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


def wait_until_gone(connection: Connection, alive: int) -> None:
    """Postgres has noticed that a job worker is dead."""
    wait_until(lambda: chunks.job_workers_alive(connection) == alive, what=f"{alive} job workers are alive")


def main() -> None:
    """What the arguments say: see above."""
    connection = connect(settings.load().postgres, name="job_worker")
    if "--listing" in sys.argv:
        [document], [job] = registry.documents(connection), due(connection)
        listing.list_ids(connection, job, document, chunk=10, sequence_numbers=dict)
        return
    for one in sys.argv:
        if one.startswith("--silent="):
            chunks.SILENT_SECONDS = float(one.partition("=")[2])
    job_worker = ChunkWorker(connection)
    is_holding = "--holding" in sys.argv
    print("entered", flush=True)  # noqa: T201 - the test reads it
    sys.stdin.readline()
    while True:
        taken = job_worker.take()
        print(",".join(str(chunk.number) for chunk in taken), flush=True)  # noqa: T201
        if is_holding and taken:
            sys.stdin.readline()
            print(job_worker.finish(taken), flush=True)  # noqa: T201
            return
        job_worker.finish(taken)


if __name__ == "__main__":
    main()
