"""Pages of jobs: taken by lanes, finished, given back.

A lane is whoever writes pages, with a connection for them and a number of its own; it is alive as long as that session
is. Guarantees: a page is in the hands of one lane at a time, unless that one is dead or stalled; it is counted once, however
many have written it; lanes together write no more than a job's rate.

Commits of this module may be lost in a crash of Postgres, which is why they are fast: a page that was
finished is there again then, uncounted, and writing it twice is harmless.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from syncer.postgres import Connection
from syncer.writer import WriteReport

STALLED_SECONDS = 60.0
"""How long a page may be in hand before another lane may have it, unless the lane says `keep`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """Some ids to write.

    Args:
        job: The job's id.
        number: Which of its pages.
        document: The document's name.
        index_name: Where to write them.
        ids: Which. As many as whoever listed them thought right: a lane with less memory writes them in slices.
        everywhere: Whether copies may lie on any shard.
    """

    job: int
    number: int
    document: str
    index_name: str
    ids: list[str]
    everywhere: bool


def enter(connection: Connection) -> int:
    """Become a lane, for as long as the session lasts; its number."""


def lanes_alive(connection: Connection) -> int:
    """How many lanes there are, in all daemons and commands."""


def take(connection: Connection, lane: int, *, pages_max: int = 1) -> list[JobPage]:
    """The next pages of the job that was served least recently, now in the hands of the lane; empty if there are none now.

    Of no job that is paused, whose document is halted, or that has used up its rate; of one with a rate, one page.
    """


def finish(connection: Connection, done: Mapping[JobPage, WriteReport]) -> int:
    """Count pages that are written; how many were still to be counted.

    The others were finished meanwhile by another lane, or their job was cancelled.
    """


def release(connection: Connection, lane: int, pages: Iterable[JobPage]) -> None:
    """Give pages back that are not written; they are taken next."""


def keep(connection: Connection, lane: int, pages: Iterable[JobPage]) -> None:
    """Say that pages are still in hand: to be called while servers are away, more often than `STALLED_SECONDS`."""


def reclaim(connection: Connection, *, stalled_seconds: float = STALLED_SECONDS) -> int:
    """Give back the pages of lanes that are dead, or have had them for too long; how many."""
