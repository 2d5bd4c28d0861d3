"""Extracts one folder of a large remote zip without downloading the rest; unpacks, digests and opens what was fetched.

Only the ranges that the lock names are downloaded, those of the folder's members and of the zip's directory, into a
sparse file of the zip's full size, which `zipfile` reads as usual. After an interruption the sparse file is continued.
What is extracted is used only once it is verified.
"""

from __future__ import annotations

import hashlib
import shutil
import stat
import tarfile
import zipfile
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING

from syncer.base.errors import SandboxError
from syncer.sandbox.download import download

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from syncer.sandbox.lock import Archive
    from syncer.sandbox.report import Reporter

DAMAGED_HINT = "The download was damaged or replaced on its way, and has been discarded. Try again."


def fetch_folder(url: str, archive: Archive, work_folder: Path, *, report: Reporter) -> Path:
    """Return the archive's folder, extracted and verified, inside the work folder."""
    sparse_file = work_folder / "archive.partial"
    spans = [range(start, end) for start, end in archive.spans]
    with report.download("Elasticsearch", sum(map(len, spans))) as progress:
        download(url, sparse_file, spans, progress=progress)
    extracted = work_folder / "extracted"
    shutil.rmtree(extracted, ignore_errors=True)
    with report.step("unpacking Elasticsearch"):
        unpack(sparse_file, archive.folder, extracted)
        if tree_digest(extracted / archive.folder) != archive.tree_sha256:
            sparse_file.unlink()
            raise SandboxError(f"{archive.coordinate} is not what the lock pins", hint=DAMAGED_HINT)
    return extracted / archive.folder


def file_digest(file: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def tree_digest(folder: Path) -> str:
    """Return the SHA-256 of the sorted lines ``<path> <SHA-256 of content>`` of all files under a folder."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    lines = (f"{file.relative_to(folder).as_posix()} {file_digest(file)}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


@contextmanager
def opened(zip_file: Path) -> Iterator[zipfile.ZipFile]:
    """Open a downloaded zip for reading; delete it if it turns out to be damaged."""
    try:
        with zipfile.ZipFile(zip_file) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        zip_file.unlink()
        raise SandboxError(f"{zip_file} is damaged: {error}", hint=DAMAGED_HINT) from error


def unpack(zip_file: Path, folder: str, target: Path) -> None:
    """Extract the members under a folder of the zip."""
    with opened(zip_file) as archive:
        wanted = [name for name in archive.namelist() if name.startswith(folder)]
        archive.extractall(target, wanted)  # noqa: S202 - the rule is about tars


def unpack_tar(jar_file: Path, target: Path) -> None:
    """Extract the one compressed tar that a jar contains."""
    with opened(jar_file) as jar:
        [name] = [name for name in jar.namelist() if name.endswith(".txz")]
        with jar.open(name) as compressed, tarfile.open(fileobj=compressed, mode="r:xz") as content:
            content.extractall(target, filter="data")


def open_to_all(path: Path) -> None:
    """Make a file or folder readable for every account, whatever the umask; what its owner can run, all can."""
    for one in (path, *path.rglob("*")):
        if not one.is_symlink():
            one.chmod(0o755 if one.is_dir() or one.stat().st_mode & stat.S_IXUSR else 0o644)
