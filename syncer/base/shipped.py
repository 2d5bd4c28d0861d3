"""The location of the folders that ship with the package: ``migrations``, ``config``, and of ``docs`` operating.md.

In a wheel they are inside the package; in a checkout, beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

_PACKAGE = Path(__file__).parent.parent


def folder(name: Literal["migrations", "config", "docs"]) -> Path:
    """Return the shipped folder of that name."""
    in_wheel = _PACKAGE / "_shipped" / name
    return in_wheel if in_wheel.is_dir() else _PACKAGE.parent / name
