"""Uses a share of one core, and does nothing with it: ``python -m tests.benchmarks.burner 0.4``."""

from __future__ import annotations

import sys
import time

_PERIOD_SECONDS = 0.01


def burn(share: float) -> None:
    """Go on until killed."""
    while True:
        began, used = time.monotonic(), time.thread_time()
        while time.thread_time() - used < share * _PERIOD_SECONDS:
            pass
        time.sleep(max(0.0, began + _PERIOD_SECONDS - time.monotonic()))


if __name__ == "__main__":
    burn(float(sys.argv[1]))
