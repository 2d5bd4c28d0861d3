"""Locks under fire: processes that lock, what they did, and a checker over it.

Every process adds one to two documents under a lock, again and again: it reads them, waits a little, and writes both.
What it read and wrote, and in which term, it puts down in a file. `violations` reads these files afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Self

PAIR = ("left", "right")
"""The documents that are always to be equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What somebody did while he held a lock.

    Args:
        who: A process.
        term: In which term.
        read: What both documents said.
        wrote: What was to be written to both.
        is_done: Whether he was told that it is.
    """

    who: str
    term: int
    read: tuple[int, ...]
    wrote: int
    is_done: bool

    @classmethod
    def parse(cls, line: str) -> Self:
        """A turn, from its line."""
        stored = json.loads(line)
        return cls(**{**stored, "read": tuple(stored["read"])})

    def line(self) -> str:
        """A line for a file."""
        return json.dumps(asdict(self)) + "\n"


def history(files: Iterable[Path]) -> list[Turn]:
    """What all did; of each turn what was put down last."""
    turns: dict[tuple[str, int, int], Turn] = {}
    for file in files:
        for line in file.read_text().splitlines():
            if line.endswith("}"):  # who is killed may leave half a line
                turn = Turn.parse(line)
                turns[turn.who, turn.term, turn.wrote] = turn
    return sorted(turns.values(), key=lambda turn: turn.term)


def violations(turns: Sequence[Turn], last: tuple[int, ...]) -> list[str]:
    """What cannot be, if of all who hold a lock one at a time changes something, in the order of their terms.

    Whoever was told that his turn is done has changed the documents. Of who was not, because he was killed or has lost
    his lock, nobody knows; but then his successor has finished it or rolled it back, both documents alike.

    Args:
        turns: In the order of their terms.
        last: What both documents say in the end.
    """
    found = []
    possible = {0}
    for one in [*turns, Turn(who="the end", term=0, read=last, wrote=0, is_done=True)]:
        if len(set(one.read)) != 1:
            found.append(f"{one.who} in term {one.term} has seen half a change: {one.read}")
        elif one.read[0] not in possible:
            found.append(f"{one.who} in term {one.term} has read {one.read[0]}, which is none of {sorted(possible)}")
        possible = {one.wrote} if one.is_done else {*possible, one.wrote}
    twice = [one.term for one, other in pairwise(turns) if one.term == other.term]
    return found + [f"term {term} was granted twice" for term in twice]
