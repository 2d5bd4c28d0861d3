"""What happens in a soak, and when: a line of JSON for each event, and a summary."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path


class Journal:
    """Written by all threads of a soak.

    Args:
        file: Where the events are kept.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.counts: Counter[str] = Counter()
        self.level_seconds: list[float] = []
        self.memory_bytes = 0
        self.findings: list[str] = []
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def note(self, event: str, **fields: object) -> None:
        """Something was done, or has happened."""
        line = {"seconds": round(time.monotonic() - self._began, 1), "event": event, **fields}
        with self._lock:
            self.counts[event] += 1
            with self.file.open("a") as file:
                file.write(json.dumps(line, default=str) + "\n")

    def find(self, finding: str) -> None:
        """Something happened that must not: the soak will fail."""
        self.note("finding", finding=finding[:2000])
        self.findings.append(finding)

    def noticed(self, memory_bytes: int) -> None:
        """The most memory that a daemon had."""
        self.memory_bytes = max(self.memory_bytes, memory_bytes)

    def summary(self, *, changes: int, seed: int) -> str:
        """All of it, for a person."""
        level = ", ".join(f"{one:.1f}" for one in self.level_seconds) or "-"
        counts = "\n".join(f"  {name:<28} {number}" for name, number in sorted(self.counts.items()))
        return (
            f"--soak-seed {seed}: {changes:,} changes in {time.monotonic() - self._began:,.0f} s\n"
            f"seconds until level at each checkpoint: {level}\n"
            f"most memory of a daemon: {self.memory_bytes / 1e6:.0f} MB\n{counts}\nevents: {self.file}"
        )
