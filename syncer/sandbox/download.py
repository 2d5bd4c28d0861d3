"""Downloads that survive being cut off, and never leave a half file where a whole one is expected.

The file's size is the only record of progress: bytes are written in ascending order, so everything that is
wanted below the size is there. Continuing after an interruption, even ``kill -9``, needs nothing else.
"""

from __future__ import annotations

import http
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import requests
from jgo.util import http as resolver_http

from syncer.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

ATTEMPTS_WITHOUT_PROGRESS_MAX = 5  # half a minute in all: a server that begins anew is waited for
TIMEOUT_SECONDS = (10.0, 30.0)  # to connect; between two bytes
CHUNK_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes from ``start`` up to, not including, ``end``."""

    start: int
    end: int

    def from_offset(self, offset: int) -> Span:
        """The part of this span at or after an offset; empty if it lies before."""
        return Span(min(max(self.start, offset), self.end), self.end)

    def __len__(self) -> int:
        """How many bytes."""
        return self.end - self.start


def download(
    url: str,
    file: Path,
    spans: Sequence[Span],
    *,
    progress: Callable[[int], None] = lambda _completed_bytes: None,
    pause_seconds: float = 1.0,
) -> None:
    """Bring the spans of the resource into the file, each at its own offset; what lies between stays a hole.

    Continues from the file's size. A server that ignores ranges is taken at its word: then the whole
    resource is in the file. Gives up after a few attempts that brought nothing.
    """
    file.touch()
    failures = _Failures(url, pause_seconds)
    while missing := _missing(spans, file):
        size_before = file.stat().st_size
        error = _try_to_fetch(url, missing[0], file, lambda: progress(_present_bytes(spans, file)))
        failures.note(error, has_progressed=file.stat().st_size > size_before)
    progress(_present_bytes(spans, file))


def fetch_span(url: str, span: Span, *, pause_seconds: float = 1.0) -> bytes | None:
    """The bytes of a span, or None if the server does not honour ranges. Tries as often as `download`."""
    failures = _Failures(url, pause_seconds)
    while True:
        try:
            with _request(url, span) as response:
                return response.content if _is_partial(response) else None
        except requests.RequestException as error:
            failures.note(error)


class _Failures:
    """Attempts in a row that brought nothing; after a few of them, it is given up.

    Args:
        url: What was asked for.
        pause_seconds: How long to wait after an attempt that failed, if it brought something; longer after others.
    """

    def __init__(self, url: str, pause_seconds: float) -> None:
        self._url = url
        self._pause_seconds = pause_seconds
        self._number = 0

    def note(self, error: requests.RequestException | None, *, has_progressed: bool = False) -> None:
        """An attempt is over; return when there may be another one.

        Raises:
            SandboxError: There is to be none.
        """
        self._number = 0 if has_progressed else self._number + 1
        if self._number == ATTEMPTS_WITHOUT_PROGRESS_MAX:
            raise _given_up(self._url, error) from error
        if error:
            time.sleep(self._pause_seconds * 2**self._number)


def _missing(spans: Sequence[Span], file: Path) -> list[Span]:
    size = file.stat().st_size
    return [rest for span in spans if len(rest := span.from_offset(size))]


def _present_bytes(spans: Sequence[Span], file: Path) -> int:
    return sum(map(len, spans)) - sum(map(len, _missing(spans, file)))


def _try_to_fetch(url: str, span: Span, file: Path, progress: Callable[[], None]) -> requests.RequestException | None:
    """Ask for a span once and write what comes; returns what cut it short, if anything did."""
    try:
        with _request(url, span) as response, file.open("r+b") as out:
            if _is_partial(response):
                out.seek(span.start)
            else:
                out.truncate(0)  # what comes is the whole resource, from its first byte
            for chunk in response.iter_content(CHUNK_BYTES):
                out.write(chunk)
                out.flush()
                progress()
    except requests.RequestException as error:
        return error
    return None


def _request(url: str, span: Span) -> requests.Response:
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
