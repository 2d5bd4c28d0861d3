"""Downloads that can be resumed, and never leave a partial file in place of a complete one.

The file's size is the only record of progress: bytes are written in ascending order, so everything wanted below that
size is there. Resuming after an interruption, even ``kill -9``, needs nothing else.
"""

from __future__ import annotations

import http
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import requests
from jgo.util import http as resolver_http

from syncer.base.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

ATTEMPTS_WITHOUT_PROGRESS_MAX = 5  # half a minute in all: long enough for a server's restart
TIMEOUT_SECONDS = (10.0, 30.0)  # to connect; between two reads
CHUNK_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes from ``start`` up to, but not including, ``end``."""

    start: int
    end: int

    def from_offset(self, offset: int) -> ByteRange:
        """Return the part of this range at or after an offset; empty if there is none."""
        return ByteRange(min(max(self.start, offset), self.end), self.end)

    def __len__(self) -> int:
        """Return the number of bytes."""
        return self.end - self.start


def download(
    url: str,
    file: Path,
    spans: Sequence[ByteRange],
    *,
    progress: Callable[[int], None] = lambda _completed_bytes: None,
    pause_seconds: float = 1.0,
) -> None:
    """Download ranges of a resource into a file, each at its own offset, with holes between them.

    Continues from the file's size. If the server ignores ranges, the file contains the whole resource. Gives up after
    a few attempts without progress.
    """
    file.touch()
    failures = _Failures(url, pause_seconds)
    while missing := _missing(spans, file):
        size_before = file.stat().st_size
        error = _try_to_fetch(url, missing[0], file, lambda: progress(_present_bytes(spans, file)))
        failures.note(error, has_progressed=file.stat().st_size > size_before)
    progress(_present_bytes(spans, file))


def fetch_span(url: str, span: ByteRange, *, pause_seconds: float = 1.0) -> bytes | None:
    """Return the bytes of a range; None if the server ignores ranges. Retries as often as `download`."""
    failures = _Failures(url, pause_seconds)
    while True:
        try:
            with _request(url, span) as response:
                return response.content if _is_partial(response) else None
        except requests.RequestException as error:
            failures.note(error)


class _Failures:
    """Counts consecutive attempts without progress, and gives up after a few. The pauses grow with the count."""

    def __init__(self, url: str, pause_seconds: float) -> None:
        self._url = url
        self._pause_seconds = pause_seconds
        self._number = 0

    def note(self, error: requests.RequestException | None, *, has_progressed: bool = False) -> None:
        """Record an attempt; return when the next one may begin.

        Raises:
            SandboxError: There were too many without progress.
        """
        self._number = 0 if has_progressed else self._number + 1
        if self._number == ATTEMPTS_WITHOUT_PROGRESS_MAX:
            raise _given_up(self._url, error) from error
        if error:
            time.sleep(self._pause_seconds * 2**self._number)


def _missing(spans: Sequence[ByteRange], file: Path) -> list[ByteRange]:
    size = file.stat().st_size
    return [rest for span in spans if len(rest := span.from_offset(size))]


def _present_bytes(spans: Sequence[ByteRange], file: Path) -> int:
    return sum(map(len, spans)) - sum(map(len, _missing(spans, file)))


def _try_to_fetch(
    url: str, span: ByteRange, file: Path, progress: Callable[[], None]
) -> requests.RequestException | None:
    """Request a range once and write what arrives; return the error that interrupted it, if any."""
    try:
        with _request(url, span) as response, file.open("r+b") as out:
            if _is_partial(response):
                out.seek(span.start)
            else:
                out.truncate(0)  # the response is the whole resource, from its first byte
            for chunk in response.iter_content(CHUNK_BYTES):
                out.write(chunk)
                out.flush()
                progress()
    except requests.RequestException as error:
        return error
    return None


def _request(url: str, span: ByteRange) -> requests.Response:
    headers = {"Range": f"bytes={span.start}-{span.end - 1}", "Accept-Encoding": "identity"}
    response = resolver_http.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS)
    response.raise_for_status()
    return response


def _is_partial(response: requests.Response) -> bool:
    return response.status_code == http.HTTPStatus.PARTIAL_CONTENT


def _given_up(url: str, error: requests.RequestException | None) -> SandboxError:
    return SandboxError(
        f"Could not download {url}: {error or 'it is shorter than expected'}",
        hint="The first start downloads the servers. Check the network and its proxy settings, and try again.",
    )
