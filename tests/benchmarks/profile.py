"""Where a daemon's time went: which thread used the processor, and what each was doing or waiting for."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks import processes

INSIDE = Path(__file__).parent / "inside"
_SHARE_MIN = 0.005
_PLACES_MAX = 5
_POOLS = re.compile(r"_\d+$")  # the threads of a pool count as one
_UNINTERESTING = frozenset({"MainThread", "benchmarks"})


@dataclass(slots=True)
class Profile:
    """Of all daemons that were started with its environment.

    Args:
        file: Where the one that runs leaves what was found.
    """

    file: Path
    _seconds: Counter[str] = field(default_factory=Counter)
    _places: dict[str, Counter[str]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """What makes a Python process look at itself."""
        return {"PYTHONPATH": f"{INSIDE}:{Path.cwd()}", "SYNCER_BENCHMARKS_PLACES": str(self.file)}

    def note_threads(self, pid: int) -> None:
        """Add what its threads have used; to be called before it ends."""
        for name, seconds in processes.threads(pid).items():
            self._seconds[_POOLS.sub("", name)] += seconds  # type: ignore[assignment]  # a Counter of floats

    def note_places(self) -> None:
        """Add where its threads have been; to be called once it has ended."""
        for thread, place, count in json.loads(self.file.read_text()):
            if thread not in _UNINTERESTING:
                self._places.setdefault(_POOLS.sub("", thread), Counter())[place] += count

    def said(self) -> list[str]:
        """All that in words."""
        total = sum(self._seconds.values())
        used = [f"{name} {one / total:.0%}" for name, one in self._seconds.most_common() if one / total > _SHARE_MIN]
        lines = [f"the daemon's processor time, by thread: {', '.join(used)}"]
        for thread, places in sorted(self._places.items()):
            all_ = places.total()
            most = [f"{place} {count / all_:.0%}" for place, count in places.most_common(_PLACES_MAX)]
            lines.append(f"{thread} was in {', '.join(most)}")
        return lines
