"""Words: parses and checks the parameters of a request. Errors say what was expected."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from syncer.base.errors import ConfigError

IDS_MAX = 1000
_TEXT_MAX = 1000
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no", "")


def text(words: Mapping[str, Any], name: str) -> str | None:
    """A text parameter; None if it is missing.

    Raises:
        ConfigError: It is not text, or Postgres cannot store it.
    """
    said = words.get(name)
    if said is None:
        return None
    if not isinstance(said, str) or "\0" in said or len(said) > _TEXT_MAX or not _is_storable(said):
        raise ConfigError(f"{name} must be text of at most {_TEXT_MAX:,} characters")
    return said


def required(words: Mapping[str, Any], name: str) -> str:
    """A required text parameter.

    Raises:
        ConfigError: It is missing.
    """
    said = text(words, name)
    if not said:
        raise ConfigError(f"Missing parameter: {name}", hint=f"Add {name}=…")
    return said


def ids(words: Mapping[str, Any]) -> tuple[str, ...]:
    """The ids; empty if they are missing.

    Raises:
        ConfigError: They are not a list of ids.
    """
    said = words.get("ids", [])
    if not isinstance(said, list) or len(said) > IDS_MAX:
        raise ConfigError(f"ids must be a list of at most {IDS_MAX:,}")
    if not all(isinstance(one, str) and one and "\0" not in one and _is_storable(one) for one in said):
        raise ConfigError("An id must be text that is not empty")
    return tuple(dict.fromkeys(said))


def whether(words: Mapping[str, Any], name: str) -> bool:
    """A boolean parameter; false if it is missing.

    Raises:
        ConfigError: It is not a boolean.
    """
    said = words.get(name, False)
    if isinstance(said, bool):
        return said
    if isinstance(said, str) and said.lower() in (*_TRUE, *_FALSE):
        return said.lower() in _TRUE
    raise ConfigError(f"{name} must be true or false")


def number(words: Mapping[str, Any], name: str, *, default: int, most: int) -> int:
    """A whole number from 0 to `most`.

    Raises:
        ConfigError: It is not one.
    """
    said = words.get(name, default)
    if isinstance(said, bool) or not str(said).isascii() or not str(said).isdigit() or len(str(said)) > len(str(most)):
        raise ConfigError(f"{name} must be a number from 0 to {most:,}")
    if int(str(said)) > most:
        raise ConfigError(f"{name} must be a number from 0 to {most:,}")
    return int(str(said))


def real(words: Mapping[str, Any], name: str, *, default: float) -> float:
    """A finite number.

    Raises:
        ConfigError: It is not one.
    """
    try:
        said = float(words.get(name, default))
    except (TypeError, ValueError):
        said = math.nan
    if not math.isfinite(said):
        raise ConfigError(f"{name} must be a number")
    return said


def _is_storable(said: str) -> bool:
    try:
        said.encode()
    except UnicodeEncodeError:  # an unpaired surrogate
        return False
    return True
