"""What happens in a soak, and when: a line of JSON for each event, and a summary."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path


class Record:
    """Written by all threads of a soak.

    Args:
        file: Where the events are kept.
        seed: The soak's.

    Attributes:
        findings: What must not happen and did.
        level_seconds: How long it took at the end of each round until every document was equal.
    """

    def __init__(self, file: Path, *, seed: int) -> None:
        self.file = file
        self.seed = seed
        self.findings: list[str] = []
        self.level_seconds: list[float] = []
        self._memory_bytes = 0
        self._counts: Counter[str] = Counter()
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def note(self, event: str, **fields: object) -> None:
        """Record an event."""
        line = {"seconds": round(time.monotonic() - self._began, 1), "event": event, **fields}
        with self._lock:
            self._counts[event] += 1
            with self.file.open("a") as file:
                file.write(json.dumps(line, default=str) + "\n")

    def find(self, finding: str) -> None:
        """Record something that must not happen: the soak fails."""
        self.note("finding", finding=finding[:2000])
        self.findings.append(finding)

    def note_memory(self, peak_bytes: int) -> None:
        """Record the greatest memory of a daemon."""
        self._memory_bytes = max(self._memory_bytes, peak_bytes)

    def summary(self, *, transactions: int) -> str:
        """Everything, for a person."""
        level = ", ".join(f"{seconds:.1f}" for seconds in self.level_seconds) or "-"
        counts = "\n".join(f"  {name:<28} {number}" for name, number in sorted(self._counts.items()))
        return (
            f"--soak-seed {self.seed}: {transactions:,} transactions in {time.monotonic() - self._began:,.0f} s\n"
            f"seconds until every document was equal, by round: {level}\n"
            f"most memory of a daemon: {self._memory_bytes / 1e6:.0f} MB\n{counts}\nevents: {self.file}"
        )
