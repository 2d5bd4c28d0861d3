"""Downloads that can be resumed, and never leave a partial file in place of a complete one.

The file's size is the only record of progress: bytes are written in ascending order, so everything wanted below that
size is there. Resuming after an interruption, even ``kill -9``, needs nothing else.
"""

from __future__ import annotations

import http
import time
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


def download(
    url: str,
    file: Path,
    spans: Sequence[range],
    *,
    progress: Callable[[int], None] = lambda _completed_bytes: None,
    pause_seconds: float = 1.0,
) -> None:
    """Download ranges of a resource into a file, each at its own offset, with holes between them.

    Continues from the file's size. If the server ignores ranges, the file contains the whole resource. Gives up after
    a few attempts without progress.
    """
    file.touch()
    failures = 0
    while missing := _missing(spans, file):
        size_before = file.stat().st_size
        error = _try_to_fetch(url, missing[0], file, lambda: progress(_present_bytes(spans, file)))
        failures = 0 if file.stat().st_size > size_before else failures + 1
        if failures == ATTEMPTS_WITHOUT_PROGRESS_MAX:
            raise SandboxError(
                f"Could not download {url}: {error or 'it is shorter than expected'}",
                hint="The first start downloads the servers. Check the network and its proxy settings, and try again.",
            ) from error
        if error:
            time.sleep(pause_seconds * 2**failures)
    progress(_present_bytes(spans, file))


def _missing(spans: Sequence[range], file: Path) -> list[range]:
    size = file.stat().st_size
    return [range(max(span.start, size), span.stop) for span in spans if size < span.stop]


def _present_bytes(spans: Sequence[range], file: Path) -> int:
    return sum(map(len, spans)) - sum(map(len, _missing(spans, file)))


def _try_to_fetch(url: str, span: range, file: Path, progress: Callable[[], None]) -> requests.RequestException | None:
    """Request a range once and write what arrives; return the error that interrupted it, if any."""
    headers = {"Range": f"bytes={span.start}-{span.stop - 1}", "Accept-Encoding": "identity"}
    try:
        with (
            resolver_http.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS) as response,
            file.open("r+b") as out,
        ):
            response.raise_for_status()
            if response.status_code == http.HTTPStatus.PARTIAL_CONTENT:
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
