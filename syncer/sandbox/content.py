"""The content of files and folders: digests, zips, and who may read it."""

from __future__ import annotations

import hashlib
import stat
import zipfile
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING

from syncer.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DAMAGED_HINT = "The download was damaged or replaced on its way, and has been discarded. Try again."


def file_digest(file: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def tree_digest(folder: Path) -> str:
    """SHA-256 of the sorted lines ``<path> <SHA-256 of content>`` of all files under a folder."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    lines = (f"{file.relative_to(folder).as_posix()} {file_digest(file)}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


@contextmanager
def opened(zip_file: Path) -> Iterator[zipfile.ZipFile]:
    """A downloaded zip for reading; one that turns out to be damaged is deleted."""
    try:
        with zipfile.ZipFile(zip_file) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        zip_file.unlink()
        raise SandboxError(f"{zip_file} is damaged: {error}", hint=DAMAGED_HINT) from error


def unpack(zip_file: Path, folder: str, target: Path) -> None:
    """Extract the members under a folder of the zip."""
    with opened(zip_file) as archive:
        archive.extractall(target, [name for name in archive.namelist() if name.startswith(folder)])


def open_to_all(path: Path) -> None:
    """Let every account read a file or folder, whatever the umask; what its owner can run, all can."""
    for one in (path, *path.rglob("*")):
        if not one.is_symlink():
            one.chmod(0o755 if one.is_dir() or one.stat().st_mode & stat.S_IXUSR else 0o644)
