"""Downloads that are cut off, restarted, refused and falsified, against a small server on this machine."""

from __future__ import annotations

import hashlib
import http.server
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from syncer.base.errors import SandboxError
from syncer.sandbox.cache import fetch_jar
from syncer.sandbox.download import ATTEMPTS_WITHOUT_PROGRESS_MAX, download
from syncer.sandbox.lock import Jar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONTENT = hashlib.shake_256(b"syncer").digest(1_000_000)
WHOLE = [range(len(CONTENT))]


class Repository(http.server.ThreadingHTTPServer):
    """Serves `CONTENT`, with or without ranges, and cuts the first answers short if told to."""

    def __init__(self, *, ranges: bool = True, cuts: int = 0, cut_bytes: int = 300_000) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ranges, self.cuts, self.cut_bytes = ranges, cuts, cut_bytes
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        """Where it serves."""
        return f"http://127.0.0.1:{self.server_address[1]}/content"


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request."""

    server: Repository

    def do_GET(self) -> None:
        """Send the range that is asked for, or everything."""
        asked = self.headers["Range"]
        self.server.asked.append(asked)
        first, last = map(int, asked.removeprefix("bytes=").split("-"))
        body = CONTENT[first : last + 1] if self.server.ranges else CONTENT
        self.send_response(206 if self.server.ranges else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.server.cuts:
            self.server.cuts -= 1
            body = body[: self.server.cut_bytes]
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Keep quiet."""


@contextmanager
def current(repository: Repository) -> Iterator[Repository]:
    """Run the server while the block runs."""
    thread = threading.Thread(target=repository.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield repository
    finally:
        repository.shutdown()
        repository.server_close()
        thread.join()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):  # the latter goes before the former
        monkeypatch.setenv(name, "127.0.0.1")


def test_spans_land_at_their_own_offsets(tmp_path: Path) -> None:
    """Only what is wanted is fetched, and it lies where the whole resource would have it."""
    file = tmp_path / "file"
    seen: list[int] = []
    with current(Repository()) as repository:
        download(repository.url, file, [range(10, 20), range(900_000, 1_000_000)], progress=seen.append)
    content = file.read_bytes()
    assert content[10:20] == CONTENT[10:20]
    assert content[900_000:] == CONTENT[900_000:]
    assert not any(content[20:900_000])
    assert seen == sorted(seen)
    assert seen[-1] == 100_010


def test_partial_download_is_resumed(tmp_path: Path) -> None:
    """What an earlier run has written is not asked for again."""
    file = tmp_path / "file"
    file.write_bytes(CONTENT[:400_000])
    with current(Repository()) as repository:
        download(repository.url, file, WHOLE)
        assert repository.asked == ["bytes=400000-999999"]
    assert file.read_bytes() == CONTENT


def test_partial_download_is_started_over_without_ranges(tmp_path: Path) -> None:
    """A server that sends everything, whatever is asked, is written from the first byte."""
    file = tmp_path / "file"
    file.write_bytes(b"x" * 400_000)
    with current(Repository(ranges=False)) as repository:
        download(repository.url, file, WHOLE)
    assert file.read_bytes() == CONTENT


@pytest.mark.parametrize("ranges", [True, False])
def test_truncated_download_is_retried(tmp_path: Path, *, ranges: bool) -> None:
    """An answer that ends too early is not the end."""
    file = tmp_path / "file"
    with current(Repository(ranges=ranges, cuts=2)) as repository:
        download(repository.url, file, WHOLE, pause_seconds=0)
        assert len(repository.asked) == 3
    assert file.read_bytes() == CONTENT


def test_gives_up_when_nothing_comes(tmp_path: Path) -> None:
    """A few attempts without a single byte are enough; the error says what to check."""
    with current(Repository(cuts=100, cut_bytes=0)) as repository:
        with pytest.raises(SandboxError, match="Could not download") as raised:
            download(repository.url, tmp_path / "file", WHOLE, pause_seconds=0)
        assert len(repository.asked) == ATTEMPTS_WITHOUT_PROGRESS_MAX
    assert "proxy" in raised.value.hint


def test_gives_up_when_nobody_answers(tmp_path: Path) -> None:
    """No network is an error with a hint, not a traceback."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and does not listen: nobody else can meanwhile
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/content"
        with pytest.raises(SandboxError, match="Could not download"):
            download(url, tmp_path / "file", WHOLE, pause_seconds=0)


def test_jar_gets_its_name_once_verified(tmp_path: Path) -> None:
    """A jar that is what the lock pins is in its place, and nothing else is left."""
    jar = Jar(coordinate="group:artifact:1", size_bytes=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest())
    file, work_folder = tmp_path / "artifact-1.jar", tmp_path / "work"
    work_folder.mkdir()
    with current(Repository()) as repository:
        fetch_jar(jar, repository.url, file, work_folder)
    assert file.read_bytes() == CONTENT
    assert not list(work_folder.iterdir())


def test_falsified_jar_is_refused(tmp_path: Path) -> None:
    """A jar that differs from the lock is never used, and is not kept to be found again."""
    jar = Jar(coordinate="group:artifact:1", size_bytes=len(CONTENT), sha256="0" * 64)
    with current(Repository()) as repository, pytest.raises(SandboxError, match="not what the lock") as raised:
        fetch_jar(jar, repository.url, tmp_path / "artifact-1.jar", tmp_path)
    assert raised.value.hint
    assert not list(tmp_path.iterdir())
