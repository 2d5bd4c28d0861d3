"""One folder out of a zip: where its bytes are, and what becomes of damaged ones."""

from __future__ import annotations

import os
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

from syncer.base.errors import SandboxError
from syncer.sandbox import Reporter, archive as archive_module
from syncer.sandbox.archive import fetch_folder, open_to_all, tree_digest, unpack, unpack_tar
from syncer.sandbox.lock import GAP_BYTES_MAX, Archive, wanted_spans

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

FOLDER = "top/wanted/"


def make_zip(file: Path, names: Sequence[str]) -> None:
    """Members of more than the joined gap each, none of which can be compressed."""
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, os.urandom(GAP_BYTES_MAX + 1))


def locked(file: Path, tree_sha256: str) -> Archive:
    """The zip as the lock has it."""
    return Archive(coordinate="g:a:zip:1", folder=FOLDER, spans=wanted_spans(file, FOLDER), tree_sha256=tree_sha256)


def serve_from(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let downloads come out of a file."""
    content = source.read_bytes()

    def download(_url: str, file: Path, spans: Sequence[range], *, progress: Callable[[int], None]) -> None:
        with file.open("wb") as out:
            for span in spans:
                out.seek(span.start)
                out.write(content[span.start : span.stop])
        progress(sum(map(len, spans)))

    monkeypatch.setattr(archive_module, "download", download)


def test_folder_is_fetched_and_verified_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The members of the folder, wherever they lie, and the directory; of the others, nothing."""
    source, work_folder = tmp_path / "source.zip", tmp_path / "work"
    work_folder.mkdir()
    make_zip(source, ["top/a", f"{FOLDER}b", f"{FOLDER}c/d", "top/e", f"{FOLDER}f", "top/g"])
    unpack(source, FOLDER, tmp_path / "expected")
    digest = tree_digest(tmp_path / "expected" / FOLDER)
    spans = wanted_spans(source, FOLDER)
    assert len(spans) == 3
    assert sum(end - start for start, end in spans) < 3.1 * GAP_BYTES_MAX
    serve_from(source, monkeypatch)
    folder = fetch_folder("url", locked(source, digest), work_folder, report=Reporter())
    assert tree_digest(folder) == digest
    assert not (folder.parent / "a").exists()


def test_neighbouring_spans_are_joined(tmp_path: Path) -> None:
    """What lies next to each other is fetched by one request."""
    whole = tmp_path / "whole.zip"
    make_zip(whole, [f"{FOLDER}a", f"{FOLDER}b"])
    assert wanted_spans(whole, FOLDER) == [(0, whole.stat().st_size)]


def test_falsified_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that differs from the lock is never used, and the archive is not kept to be found again."""
    source, work_folder = tmp_path / "source.zip", tmp_path / "work"
    work_folder.mkdir()
    make_zip(source, [f"{FOLDER}b"])
    serve_from(source, monkeypatch)
    with pytest.raises(SandboxError, match="not what the lock pins"):
        fetch_folder("url", locked(source, "0" * 64), work_folder, report=Reporter())
    assert not (work_folder / "archive.partial").exists()


def test_damaged_archive_is_discarded(tmp_path: Path) -> None:
    """Bytes that are no zip, or a zip with holes, are an error with a hint, and are not kept."""
    source = tmp_path / "source.zip"
    make_zip(source, [f"{FOLDER}b"])
    half = source.stat().st_size // 2
    for damaged in (b"no zip", b"\0" * half + source.read_bytes()[half:]):
        source.write_bytes(damaged)
        with pytest.raises(SandboxError, match="is damaged") as raised:
            unpack(source, FOLDER, tmp_path / "target")
        assert "Try again" in raised.value.hint
        assert not source.exists()


def test_tar_inside_a_jar_is_unpacked(tmp_path: Path) -> None:
    """Programs stay programs, and links stay links."""
    program, tar_file, jar_file = tmp_path / "program", tmp_path / "content.txz", tmp_path / "content.jar"
    program.touch(0o755)
    (tmp_path / "link").symlink_to("program")
    with tarfile.open(tar_file, "w:xz") as tar:
        for name in ("program", "link"):
            tar.add(tmp_path / name, f"bin/{name}")
    with zipfile.ZipFile(jar_file, "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "")
        jar.write(tar_file, tar_file.name)
    unpack_tar(jar_file, tmp_path / "target")
    assert os.access(tmp_path / "target" / "bin" / "program", os.X_OK)
    assert (tmp_path / "target" / "bin" / "link").readlink().name == "program"


def test_tree_digest_sees_names_and_content(tmp_path: Path) -> None:
    """A renamed file, a changed byte: each makes another digest."""
    file = tmp_path / "a"
    file.write_bytes(b"1")
    digests = [tree_digest(tmp_path)]
    file.write_bytes(b"2")
    digests.append(tree_digest(tmp_path))
    file.rename(tmp_path / "b")
    digests.append(tree_digest(tmp_path))
    assert len(set(digests)) == 3


def test_open_to_all_keeps_what_can_be_run(tmp_path: Path) -> None:
    """Whatever the umask was, all may read, and programs stay programs."""
    program, data = tmp_path / "program", tmp_path / "data"
    for file, mode in ((program, 0o700), (data, 0o600)):
        file.touch()
        file.chmod(mode)
    open_to_all(tmp_path)
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path, program, data)]
    assert modes == [0o755, 0o755, 0o644]
