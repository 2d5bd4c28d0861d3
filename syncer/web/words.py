"""Words: what a request says, read as what it has to be. Whoever mistypes is told what was meant."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from syncer.errors import ConfigError

IDS_MAX = 1000
_TEXT_MAX = 1000
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no", "")


def text(words: Mapping[str, Any], name: str) -> str | None:
    """A text; None if it is not said.

    Raises:
        ConfigError: It is none, or has what Postgres takes in no text.
    """
    said = words.get(name)
    if said is None:
        return None
    if not isinstance(said, str) or "\0" in said or len(said) > _TEXT_MAX or not _is_storable(said):
        raise ConfigError(f"{name} is to be a text of at most {_TEXT_MAX:,} characters")
    return said


def required(words: Mapping[str, Any], name: str) -> str:
    """A text that has to be said.

    Raises:
        ConfigError: It is not.
    """
    said = text(words, name)
    if not said:
        raise ConfigError(f"Which {name}?", hint=f"Say it, as in {name}=…")
    return said


def ids(words: Mapping[str, Any]) -> tuple[str, ...]:
    """Ids; none if they are not said.

    Raises:
        ConfigError: They are not a list of ids.
    """
    said = words.get("ids", [])
    if not isinstance(said, list) or len(said) > IDS_MAX:
        raise ConfigError(f"ids is to be a list of at most {IDS_MAX:,}")
    if not all(isinstance(one, str) and one and "\0" not in one and _is_storable(one) for one in said):
        raise ConfigError("An id is a text, and not an empty one")
    return tuple(dict.fromkeys(said))


def whether(words: Mapping[str, Any], name: str) -> bool:
    """Yes or no; no, if it is not said.

    Raises:
        ConfigError: It is neither.
    """
    said = words.get(name, False)
    if isinstance(said, bool):
        return said
    if isinstance(said, str) and said.lower() in (*_TRUE, *_FALSE):
        return said.lower() in _TRUE
    raise ConfigError(f"{name} is to be true or false")


def number(words: Mapping[str, Any], name: str, *, default: int, most: int) -> int:
    """A number from 0 to the most.

    Raises:
        ConfigError: It is none.
    """
    said = words.get(name, default)
    if isinstance(said, bool) or not str(said).isascii() or not str(said).isdigit() or len(str(said)) > len(str(most)):
        raise ConfigError(f"{name} is to be a number from 0 to {most:,}")
    if int(str(said)) > most:
        raise ConfigError(f"{name} is to be a number from 0 to {most:,}")
    return int(str(said))


def real(words: Mapping[str, Any], name: str, *, default: float) -> float:
    """A number.

    Raises:
        ConfigError: It is none.
    """
    try:
        said = float(words.get(name, default))
    except (TypeError, ValueError):
        said = math.nan
    if not math.isfinite(said):
        raise ConfigError(f"{name} is to be a number")
    return said


def _is_storable(said: str) -> bool:
    try:
        said.encode()
    except UnicodeEncodeError:  # half of a pair
        return False
    return True
