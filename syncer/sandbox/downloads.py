"""Pinned downloads from a Maven repository: resumed after an interruption, and used only once they are verified.

The pins are in ``artifacts.json``, which is checked in and written by `syncer.sandbox.lock`. Nothing is resolved at run
time. Of a large zip only the ranges that hold the wanted folder are downloaded, into a sparse file of the zip's full
size, which `zipfile` reads as usual.
"""

from __future__ import annotations

import hashlib
import http
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import requests
from jgo.maven import MavenContext
from jgo.util import http as resolver_http

from syncer.base.errors import SandboxError

LOCK_FILE = Path(__file__).with_name("artifacts.json")
ATTEMPTS_WITHOUT_PROGRESS_MAX = 5  # half a minute in all: long enough for a server's restart
TIMEOUT_SECONDS = (10.0, 30.0)  # to connect; between two reads
CHUNK_BYTES = 1 << 18

Spans = Sequence[tuple[int, int]]
"""Ranges of bytes, each from its first to behind its last, in ascending order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One file of a Maven repository, ``group:artifact[:packaging]:version``, or the ranges of it that are used.

    ``sha256`` is the digest of the bytes in these ranges.
    """

    coordinate: str
    spans: Spans
    sha256: str

    @property
    def size_bytes(self) -> int:
        """How many bytes are downloaded."""
        return sum(end - start for start, end in self.spans)

    @property
    def url(self) -> str:
        """The address; its last part is the file's name."""
        group, artifact, *packaging, version = self.coordinate.split(":")
        context = MavenContext()
        component = context.project(group, artifact).at_version(version)
        file = component.artifact(packaging=packaging[0] if packaging else "jar")
        repository = next(iter(context.remote_repos.values()))
        return f"{repository}/{component.path_prefix.as_posix()}/{file.filename}"


def read_lock() -> dict[str, dict[str, list[Artifact]]]:
    """Return the pinned artifacts of each server or library, by version."""
    pins: dict[str, dict[str, list[Artifact]]] = {}
    for pin in json.loads(LOCK_FILE.read_text("utf-8")):
        pins.setdefault(pin.pop("server"), {}).setdefault(pin.pop("version"), []).append(Artifact(**pin))
    return pins


def fetch(artifact: Artifact, folder: Path, *, progress: Callable[[int], None] = lambda _: None) -> Path:
    """Download an artifact into a folder, verify it, and only then give it its name; return its file."""
    file = folder / artifact.url.rsplit("/", maxsplit=1)[1]
    if not file.exists():
        partial = file.with_name(f"{file.name}.partial")
        download(artifact.url, partial, artifact.spans, progress=progress)
        if digest(partial, artifact.spans) != artifact.sha256:
            partial.unlink()
            raise SandboxError(
                f"{artifact.coordinate} is not what the lock pins",
                hint="The download was damaged or replaced on its way, and has been discarded. Try again.",
            )
        partial.rename(file)
    return file


def digest(file: Path, spans: Spans) -> str:
    """Return the SHA-256 of the bytes in these ranges, in hexadecimal."""
    found = hashlib.sha256()
    with file.open("rb") as content:
        for start, end in spans:
            content.seek(start)
            for at in range(start, end, CHUNK_BYTES):
                found.update(content.read(min(CHUNK_BYTES, end - at)))
    return found.hexdigest()


def download(
    url: str, file: Path, spans: Spans, *, progress: Callable[[int], None], pause_seconds: float = 1.0
) -> None:
    """Download ranges of a resource into a file, each at its own offset, with holes between them.

    Bytes are written in ascending order, so everything wanted below the file's size is there: to resume after an
    interruption, even ``kill -9``, nothing else need be known. If the server ignores ranges, the file contains the
    whole resource. Gives up after a few attempts without progress.
    """
    file.touch()
    failures = 0
    while missing := _missing(spans, file):
        size_before = file.stat().st_size
        error: Exception | None = None
        try:
            _request(url, missing[0], file, lambda: progress(_present_bytes(spans, file)))
        except requests.RequestException as interruption:
            error = interruption
        failures = 0 if file.stat().st_size > size_before else failures + 1
        if failures == ATTEMPTS_WITHOUT_PROGRESS_MAX:
            raise SandboxError(
                f"Could not download {url}: {error or 'it is shorter than expected'}",
                hint="The first start downloads the servers. Check the network and its proxy settings, and try again.",
            ) from error
        if error:
            time.sleep(pause_seconds * 2**failures)
    progress(_present_bytes(spans, file))


def _missing(spans: Spans, file: Path) -> Sequence[tuple[int, int]]:
    size = file.stat().st_size
    return [(max(start, size), end) for start, end in spans if size < end]


def _present_bytes(spans: Spans, file: Path) -> int:
    size = file.stat().st_size
    return sum(min(end, max(start, size)) - start for start, end in spans)


def _request(url: str, span: tuple[int, int], file: Path, progress: Callable[[], None]) -> None:
    """Request a range once, and write what arrives."""
    start, end = span
    headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
    with (
        resolver_http.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS) as response,
        file.open("r+b") as out,
    ):
        response.raise_for_status()
        if response.status_code == http.HTTPStatus.PARTIAL_CONTENT:
            out.seek(start)
        else:
            out.truncate(0)  # the response is the whole resource, from its first byte
        for chunk in response.iter_content(CHUNK_BYTES):
            out.write(chunk)
            out.flush()
            progress()
