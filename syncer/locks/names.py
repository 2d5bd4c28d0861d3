"""The ids of locks: any name, any path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from hashlib import sha256
from urllib.parse import quote, unquote

from syncer.errors import LockError

_ID_BYTES_MAX = 512


class Mode(StrEnum):
    """How a lock is held."""

    SHARED = "shared"
    """Together with others who share it."""
    EXCLUSIVE = "exclusive"
    """Alone."""


def everything(name: str) -> dict[str, Mode]:
    """What a global lock takes: the one of that name."""
    return {_id("global", name): Mode.EXCLUSIVE}


def documents(index: str, ids: Iterable[str]) -> dict[str, Mode]:
    """What locks on documents take: one for each.

    Raises:
        LockError: The ids are one text, whose characters would be locked.
    """
    if isinstance(ids, str):
        raise LockError(f"{ids!r} is one id, and not some", hint=f"As in: [{ids!r}]")
    return {_id("document", index, one): Mode.EXCLUSIVE for one in ids}


def tree(name: str, paths: Iterable[str]) -> dict[str, Mode]:
    """What locks on paths take: each path alone, and what is above it together with others.

    Args:
        name: Which tree.
        paths: Absolute, as ``/clinton/projects``; ``/`` is the root. Empty parts and a trailing slash do not matter.

    Raises:
        LockError: A path is not absolute, or has a part ``.`` or ``..``.
    """
    wanted: dict[str, Mode] = {}
    for parts in map(_parts, paths):
        for depth in range(len(parts)):
            wanted.setdefault(_path_id(name, parts[:depth]), Mode.SHARED)
        wanted[_path_id(name, parts)] = Mode.EXCLUSIVE
    return wanted


def readable(lock: str) -> str:
    """A lock as a person calls it."""
    kind, *parts = lock.split(":")
    return f"{kind} {' '.join(map(unquote, parts))}"


def covers(held: Mode | None, wanted: Mode) -> bool:
    """Whether who holds a lock so need not take it."""
    return held is not None and (held is Mode.EXCLUSIVE or wanted is Mode.SHARED)


def in_order(wanted: Mapping[str, Mode]) -> list[str]:
    """The order in which everybody takes locks, so that nobody waits in a circle; a directory before what is in it."""
    return sorted(wanted)


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part]
    if not path.startswith("/") or {".", ".."} & set(parts):
        raise LockError(f"{path!r} is not an absolute path", hint="As in: /clinton/projects, without . and ..")
    return parts


def _path_id(name: str, parts: list[str]) -> str:
    return _id("tree", name, "/" + "/".join(parts))


def _id(*parts: str) -> str:
    """An id that Elasticsearch takes: the parts, each URL-encoded, so that none can be taken for another.

    Of one that is too long the end is replaced by a digest of the whole.
    """
    if not all(parts):
        raise LockError("A lock without a name", hint="Give it one that is not empty.")
    # Names of files that are no text have lone surrogates in Python.
    id_ = ":".join(quote(part, safe="", errors="surrogatepass") for part in parts)
    if len(id_) <= _ID_BYTES_MAX:
        return id_
    digest = sha256(id_.encode()).hexdigest()
    return f"{id_[: _ID_BYTES_MAX - len(digest) - 1]}~{digest}"
