"""One folder out of a large zip on a server, without downloading the rest of the zip.

The central directory, at the zip's end, says where each member lies. Only the spans that hold the folder's
members are downloaded, into a sparse file of the zip's full size, from which `zipfile` extracts as usual.
The sparse file survives an interruption and is continued; what is extracted counts only once it is verified.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from syncer.errors import SandboxError
from syncer.sandbox.content import DAMAGED_HINT, opened, tree_digest, unpack
from syncer.sandbox.download import Span, download, fetch_span

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Sequence
    from pathlib import Path

    from syncer.sandbox.lock import Archive
    from syncer.sandbox.report import Reporter

TAIL_BYTES = 1 << 20  # the central directory of a thousand members is a tenth of this
GAP_BYTES_MAX = 1 << 20  # fetching a gap this small is quicker than another request


def fetch_folder(url: str, archive: Archive, work_folder: Path, *, report: Reporter) -> Path:
    """The archive's folder, extracted and verified, somewhere in the work folder."""
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


def wanted_spans(directory: zipfile.ZipFile, folder: str, total_bytes: int) -> list[Span]:
    """The spans of a zip that hold the members under a folder, and its central directory.

    A member ends where the next one begins, whatever lies between; neighbours are joined.
    """
    members = sorted(directory.infolist(), key=lambda member: member.header_offset)
    starts = [member.header_offset for member in members] + [directory.start_dir]
    spans = [
        Span(start, end)
        for member, start, end in zip(members, starts, starts[1:], strict=False)
        if member.filename.startswith(folder)
    ]
    return _joined([*spans, Span(directory.start_dir, total_bytes)])


def _wanted_spans(url: str, archive: Archive, work_folder: Path) -> list[Span]:
    """What to download: the whole archive if the server does not honour ranges."""
    tail = Span(max(0, archive.size_bytes - TAIL_BYTES), archive.size_bytes)
    content = fetch_span(url, tail)
    if content is None:
        return [Span(0, archive.size_bytes)]
    directory_file = work_folder / "directory.partial"
    with directory_file.open("wb") as out:
        out.seek(tail.start)  # everything before is a hole: offsets are those of the archive
        out.write(content)
    with opened(directory_file) as directory:
        spans = wanted_spans(directory, archive.folder, archive.size_bytes)
    directory_file.unlink()
    return spans


def _joined(spans: Sequence[Span]) -> list[Span]:
    joined: list[Span] = []
    for span in spans:
        if joined and span.start - joined[-1].end <= GAP_BYTES_MAX:
            joined[-1] = Span(joined[-1].start, span.end)
        else:
            joined.append(span)
    return joined
