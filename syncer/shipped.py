"""Where the folders are that ship with the package: ``migrations`` and ``config``.

In an installed wheel they lie inside the package; in a checkout they lie beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

_PACKAGE = Path(__file__).parent


def folder(name: Literal["migrations", "config"]) -> Path:
    """The shipped folder of that name."""
    in_wheel = _PACKAGE / "_shipped" / name
    return in_wheel if in_wheel.is_dir() else _PACKAGE.parent / name
