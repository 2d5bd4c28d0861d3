"""The ids of locks, for any name and any path."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from hashlib import sha256
from urllib.parse import quote, unquote

from syncer.base.errors import LockError

_ID_BYTES_MAX = 512


class Mode(StrEnum):
    """How a lock is held: together with other holders, or by one holder alone."""

    SHARED = "shared"
    EXCLUSIVE = "exclusive"


Wanted = dict[str, Mode]
"""How each of some locks is to be held."""


def everything(name: str) -> Wanted:
    """Return what a global lock needs: the lock of that name."""
    return {_id("global", name): Mode.EXCLUSIVE}


def documents(index: str, ids: Iterable[str]) -> Wanted:
    """Return what locks on documents need: one lock each."""
    if isinstance(ids, str):
        raise LockError(f"{ids!r} is a single id, not a list of ids", hint=f"Pass a list: [{ids!r}]")
    return {_id("document", index, id_): Mode.EXCLUSIVE for id_ in ids}


def tree(name: str, paths: Iterable[str]) -> Wanted:
    """Return what locks on paths need: each path exclusively, and its parents shared."""
    wanted: Wanted = {}
    for path in paths:
        parts = [part for part in path.split("/") if part]
        if not path.startswith("/") or {".", ".."} & set(parts):
            raise LockError(f"{path!r} is not an absolute path", hint="As in: /clinton/projects, without . and ..")
        *parents, target = [_id("tree", name, "/" + "/".join(parts[:depth])) for depth in range(len(parts) + 1)]
        wanted = dict.fromkeys(parents, Mode.SHARED) | wanted | {target: Mode.EXCLUSIVE}
    return wanted


def readable(lock: str) -> str:
    """Return a lock's name for people."""
    kind, *parts = lock.split(":")
    return f"{kind} {' '.join(map(unquote, parts))}"


def _id(*parts: str) -> str:
    """Return the parts, URL-encoded, so that different parts never collide; the end of a long id becomes a digest."""
    if not all(parts):
        raise LockError("A lock without a name", hint="Give it a name that is not empty.")
    # In Python, file names that are not valid text contain lone surrogates.
    id_ = ":".join(quote(part, safe="", errors="surrogatepass") for part in parts)
    digest = sha256(id_.encode()).hexdigest()
    return id_ if len(id_) <= _ID_BYTES_MAX else f"{id_[: _ID_BYTES_MAX - len(digest) - 1]}~{digest}"
