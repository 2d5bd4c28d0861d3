"""How much is to be measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How much is to be measured.

    Args:
        passes: How often each contestant runs.
        seconds: How long edits at an even pace go on.
        is_profiled: Whether to say where the daemon's time goes.
    """

    passes: int = 3
    seconds: float = 30
    is_profiled: bool = False
