"""A lane that writes nothing: what the protocol of `syncer.job_pages` says, without Elasticsearch. Also as a process.

As a process it says that it has entered, and begins once it is told to, by a line on standard input. It prints a line
each time it takes, empty if there was nothing; with ``--holding`` it finishes what it has taken only once it is told
to, likewise. With ``--listing`` it lists the only job, and leaves.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from syncer import job_pages, listing, settings, store
from syncer.job import due
from syncer.job_pages import JobPage
from syncer.postgres import Connection, connect
from syncer.writer import WriteReport
from tests.harness import World, wait_until


def written(page: JobPage) -> tuple[JobPage, WriteReport]:
    """What a lane says of a page all of whose documents it has indexed."""
    return page, WriteReport(documents=len(page.ids), indexed=len(page.ids))


@dataclass
class Lane:
    """Takes and finishes pages on a connection of its own."""

    connection: Connection
    pages_max: int = 1
    taken: list[JobPage] = field(default_factory=list)
    counted: int = 0

    def __post_init__(self) -> None:
        """Become a lane."""
        self.number = job_pages.enter(self.connection)

    def take(self) -> list[JobPage]:
        """The next pages."""
        pages = job_pages.take(self.connection, self.number, pages_max=self.pages_max)
        self.taken += pages
        return pages

    def finish(self, pages: Sequence[JobPage]) -> int:
        """How many of them counted."""
        counted = job_pages.finish(self.connection, [written(one) for one in pages])
        self.counted += counted
        return counted

    def turn(self) -> bool:
        """Take and finish; whether there was anything."""
        pages = self.take()
        if pages:
            self.finish(pages)
        return bool(pages)

    def drain(self) -> None:
        """Take and finish until there is nothing more to take."""
        while self.turn():
            pass


class LaneProcess:
    """A lane in a process of its own, to be killed or stopped."""

    def __init__(self, world: World, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.lane", *arguments],
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
    """Postgres has noticed that a lane is dead."""
    wait_until(lambda: job_pages.lanes_alive(connection) == alive, what=f"{alive} lanes are alive")


def main() -> None:
    """What the arguments say: see above."""
    connection = connect(settings.load().postgres, name="lane")
    if "--listing" in sys.argv:
        [document], [job] = store.documents(connection), due(connection)
        listing.list_pages(connection, job, document, page=10)
        return
    lane = Lane(connection)
    is_holding = "--holding" in sys.argv
    print("entered", flush=True)  # noqa: T201 - the test reads it
    sys.stdin.readline()
    while True:
        pages = lane.take()
        print(",".join(str(page.number) for page in pages), flush=True)  # noqa: T201
        if is_holding and pages:
            sys.stdin.readline()
            print(lane.finish(pages), flush=True)  # noqa: T201
            return
        lane.finish(pages)


if __name__ == "__main__":
    main()
