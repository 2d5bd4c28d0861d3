"""Extracts one folder of a large remote zip without downloading the rest; unpacks, digests and opens what was fetched.

The central directory at the end of the zip tells where each member is. Only the ranges of the folder's members are
downloaded, into a sparse file of the zip's full size, which `zipfile` reads as usual. After an interruption the
sparse file is continued. What is extracted is used only once it is verified.
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
from syncer.sandbox.download import ByteRange, download, fetch_span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from syncer.sandbox.lock import Archive
    from syncer.sandbox.report import Reporter

DAMAGED_HINT = "The download was damaged or replaced on its way, and has been discarded. Try again."
TAIL_BYTES = 1 << 20  # the central directory of a thousand members takes a tenth of this
GAP_BYTES_MAX = 1 << 20  # a gap this small is fetched faster than another request is made


def fetch_folder(url: str, archive: Archive, work_folder: Path, *, report: Reporter) -> Path:
    """Return the archive's folder, extracted and verified, inside the work folder."""
    sparse_file = work_folder / "archive.partial"
    spans = _wanted_spans(url, archive, work_folder)
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


def wanted_spans(directory: zipfile.ZipFile, folder: str, total_bytes: int) -> list[ByteRange]:
    """Return the ranges of a zip that contain the members under a folder, and its central directory.

    A member ends where the next one begins, whatever is between; close ranges are joined.
    """
    members = sorted(directory.infolist(), key=lambda member: member.header_offset)
    starts = [member.header_offset for member in members] + [directory.start_dir]
    spans = [
        ByteRange(start, end)
        for member, start, end in zip(members, starts, starts[1:], strict=False)
        if member.filename.startswith(folder)
    ]
    return _joined([*spans, ByteRange(directory.start_dir, total_bytes)])


def _wanted_spans(url: str, archive: Archive, work_folder: Path) -> list[ByteRange]:
    """Return the ranges to download; the whole archive if the server does not support ranges."""
    tail = ByteRange(max(0, archive.size_bytes - TAIL_BYTES), archive.size_bytes)
    content = fetch_span(url, tail)
    if content is None:
        return [ByteRange(0, archive.size_bytes)]
    directory_file = work_folder / "directory.partial"
    with directory_file.open("wb") as out:
        out.seek(tail.start)  # leaves a hole before it, so that offsets are those of the archive
        out.write(content)
    with opened(directory_file) as directory:
        spans = wanted_spans(directory, archive.folder, archive.size_bytes)
    directory_file.unlink()
    return spans


def _joined(spans: Sequence[ByteRange]) -> list[ByteRange]:
    joined: list[ByteRange] = []
    for span in spans:
        if joined and span.start - joined[-1].end <= GAP_BYTES_MAX:
            joined[-1] = ByteRange(joined[-1].start, span.end)
        else:
            joined.append(span)
    return joined


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
