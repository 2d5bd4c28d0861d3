"""The ids of locks, for any name and any path."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from hashlib import sha256
from urllib.parse import quote, unquote

from syncer.base.errors import LockError

_ID_BYTES_MAX = 512


class Mode(StrEnum):
    """How a lock is held."""

    SHARED = "shared"
    """Together with other holders."""
    EXCLUSIVE = "exclusive"
    """By one holder alone."""


def everything(name: str) -> dict[str, Mode]:
    """Return what a global lock needs: the lock of that name."""
    return {_id("global", name): Mode.EXCLUSIVE}


def documents(index: str, ids: Iterable[str]) -> dict[str, Mode]:
    """Return what locks on documents need: one lock each.

    Raises:
        LockError: ``ids`` is a single string, whose characters would be locked.
    """
    if isinstance(ids, str):
        raise LockError(f"{ids!r} is one id, and not some", hint=f"As in: [{ids!r}]")
    return {_id("document", index, one): Mode.EXCLUSIVE for one in ids}


def tree(name: str, paths: Iterable[str]) -> dict[str, Mode]:
    """Return what locks on paths need: each path exclusively, and its parents shared.

    Args:
        name: The tree's name.
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
    """Return a lock's name for people."""
    kind, *parts = lock.split(":")
    return f"{kind} {' '.join(map(unquote, parts))}"


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part]
    if not path.startswith("/") or {".", ".."} & set(parts):
        raise LockError(f"{path!r} is not an absolute path", hint="As in: /clinton/projects, without . and ..")
    return parts


def _path_id(name: str, parts: list[str]) -> str:
    return _id("tree", name, "/" + "/".join(parts))


def _id(*parts: str) -> str:
    """Return an id that Elasticsearch accepts: the parts, URL-encoded, so that different parts never collide.

    If it is too long, its end is replaced by a digest of the whole.
    """
    if not all(parts):
        raise LockError("A lock without a name", hint="Give it one that is not empty.")
    # In Python, file names that are not valid text contain lone surrogates.
    id_ = ":".join(quote(part, safe="", errors="surrogatepass") for part in parts)
    if len(id_) <= _ID_BYTES_MAX:
        return id_
    digest = sha256(id_.encode()).hexdigest()
    return f"{id_[: _ID_BYTES_MAX - len(digest) - 1]}~{digest}"
