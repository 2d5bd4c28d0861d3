"""Downloads that are cut off, restarted, refused and falsified, from a small server on this machine."""

from __future__ import annotations

import hashlib
import http.server
import os
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from syncer.base.errors import SandboxError
from syncer.sandbox import cache as cache_module
from syncer.sandbox.cache import Account, Cache
from syncer.sandbox.downloads import (
    ATTEMPTS_WITHOUT_PROGRESS_MAX,
    COORDINATES,
    Artifact,
    digest,
    download,
    fetch,
    read_lock,
    wanted_spans,
)

CONTENT = hashlib.shake_256(b"syncer").digest(1_000_000)
WHOLE = ((0, len(CONTENT)),)


class Repository(http.server.ThreadingHTTPServer):
    """Serves one file, with or without ranges, and cuts the first answers short if told to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.ranges, self.cuts, self.cut_bytes = CONTENT, True, 0, 300_000
        self.asked: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/content"


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request."""

    server: Repository

    def do_GET(self) -> None:
        """Send the range that is asked for, or everything."""
        asked = self.headers["Range"]
        self.server.asked.append(asked)
        first_byte, last_byte = map(int, asked.removeprefix("bytes=").split("-"))
        body = self.server.content[first_byte : last_byte + 1] if self.server.ranges else self.server.content
        self.send_response(206 if self.server.ranges else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.server.cuts:
            self.server.cuts -= 1
            body = body[: self.server.cut_bytes]
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Keep quiet."""


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """The server, running, with no proxy before it."""
    for name in ("NO_PROXY", "no_proxy"):  # the latter goes before the former
        monkeypatch.setenv(name, "127.0.0.1")
    server = Repository()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def get(repository: Repository, file: Path) -> None:
    """Download everything into a file."""
    download(repository.url, file, WHOLE, progress=lambda _: None, pause_seconds=0)


def test_only_what_is_missing_of_the_wanted_ranges_is_downloaded(repository: Repository, tmp_path: Path) -> None:
    """After a kill, the next run continues where the file ends; progress adds up to everything."""
    file = tmp_path / "file"
    file.write_bytes(bytes(10) + CONTENT[10:15])
    arrived: list[int] = []
    download(repository.url, file, ((10, 20), (900_000, 1_000_000)), progress=arrived.append)
    assert repository.asked == ["bytes=15-19", "bytes=900000-999999"]
    content = file.read_bytes()
    assert (content[10:20], content[900_000:]) == (CONTENT[10:20], CONTENT[900_000:])
    assert not any(content[20:900_000])
    assert sum(arrived) == 100_010


@pytest.mark.parametrize("ranges", [True, False])
def test_cut_off_download_is_retried(repository: Repository, tmp_path: Path, *, ranges: bool) -> None:
    """An answer that ends too early is not the end, whether the server knows ranges or starts over."""
    (tmp_path / "file").write_bytes(CONTENT[:100_000] if ranges else b"x" * 100_000)
    repository.ranges, repository.cuts = ranges, 2
    get(repository, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_gives_up_when_nothing_comes(repository: Repository, tmp_path: Path) -> None:
    """A few attempts without a single byte are enough; the error says what to check."""
    repository.cuts, repository.cut_bytes = 100, 0
    with pytest.raises(SandboxError, match="Could not download") as raised:
        get(repository, tmp_path / "file")
    assert len(repository.asked) == ATTEMPTS_WITHOUT_PROGRESS_MAX
    assert "proxy" in raised.value.hint


def test_falsified_download_is_refused(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that differs from its pin is never used, and is not kept to be found again."""
    pinned = Artifact(coordinate="group:artifact:1", spans=WHOLE, sha256=hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(Artifact, "url", repository.url)
    repository.content = CONTENT[:-1] + b"?"
    with pytest.raises(SandboxError, match="not what the lock pins") as raised:
        fetch(pinned, tmp_path)
    assert "Try again" in raised.value.hint
    assert not list(tmp_path.iterdir())
    repository.content = CONTENT
    assert fetch(pinned, tmp_path).read_bytes() == CONTENT


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    """An empty cache, under a strict umask."""
    umask = os.umask(0o077)
    yield Cache(tmp_path / "cache", account=Account())
    os.umask(umask)


def test_folder_of_a_zip_is_fetched_once_and_nothing_else(
    cache: Cache, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two who want it at once download it once; all may read it, and what surrounds it in the zip is not fetched."""
    source = tmp_path / "source.zip"
    with zipfile.ZipFile(source, "w") as archive:
        for name in ("a", "elasticsearch/bin/run", "elasticsearch/lib/b", "c"):
            archive.writestr(f"sonarqube-1/{name}", CONTENT)
    repository.content, spans = source.read_bytes(), wanted_spans(source)
    artifact = Artifact(coordinate="group:artifact:1", spans=spans, sha256=digest(source, spans))
    monkeypatch.setattr(Artifact, "url", repository.url)
    monkeypatch.setattr(cache_module, "read_lock", lambda: {"elasticsearch": {"8": [artifact]}})
    assert artifact.size_bytes < 2.1 * len(CONTENT)
    with ThreadPoolExecutor(2) as threads:
        folder, second_folder = threads.map(lambda _: cache.fetched("elasticsearch", "8"), range(2))
    assert folder == second_folder
    assert len(repository.asked) == 2
    assert {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()} == {"bin/run", "lib/b"}
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in (folder, *folder.rglob("*")))
    assert [path.suffix for path in (cache.folder / "partial").iterdir()] == [".lock"]


def test_lock_pins_what_is_asked_for() -> None:
    """The lock was regenerated when the versions changed; no server gets two files of one name."""
    lock = read_lock()
    assert {name: list(versions) for name, versions in lock.items()} == {
        name: list(versions) for name, versions in COORDINATES.items()
    }
    for name, versions in lock.items():
        for version, artifacts in versions.items():
            assert set(COORDINATES[name][version]) <= {artifact.coordinate for artifact in artifacts}
            assert len({artifact.url.rsplit("/", 1)[1] for artifact in artifacts}) == len(artifacts)
            assert all(artifact.size_bytes > 0 and len(artifact.sha256) == 64 for artifact in artifacts)
