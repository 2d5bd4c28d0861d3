"""The floor: what Elasticsearch alone takes to make one document, or a thousand, visible."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from statistics import median

from tests.benchmarks import ceiling
from tests.benchmarks.blog import Blog
from tests.benchmarks.bulk import Connections
from tests.benchmarks.edits import Lookout

_BULKS = 20


class Floor:
    """Bare bulk requests to an index of its own, which holds as many documents as syncer's.

    Args:
        blog: Whose documents.
    """

    def __init__(self, blog: Blog) -> None:
        index = blog.loaded_like_it("floor")
        url = blog.world.endpoints.elasticsearch_url
        self._bodies = blog.bodies
        self._connections = Connections(url, index)
        self._lookout = Lookout(url, index)
        self._documents = self._numbered()

    def write_for(self, seconds: float, *, per_second: float) -> list[float]:
        """Write one document at a time at an even pace; milliseconds from each request to its GET's answer."""
        found = []
        began = time.monotonic()
        for number in range(int(seconds * per_second)):
            time.sleep(max(0.0, began + number / per_second - time.monotonic()))
            found.append(self._write_one())
        return found

    def bulk_milliseconds(self, documents: int) -> float:
        """The median of what one bulk request of so many documents takes, up to 1,000, one after the other."""
        lines = next(iter(ceiling.bodies(self._bodies))).splitlines(keepends=True)
        body = b"".join(lines[: 2 * documents])
        found = []
        for _ in range(_BULKS):
            began = time.monotonic()
            self._connections.post(body)
            found.append((time.monotonic() - began) * 1000)
        return median(found)

    def _write_one(self) -> float:
        post, body = next(self._documents)
        mark = f"floor{uuid.uuid4().hex}"
        marked = body.replace(b'"title":"', f'"title":"{mark} '.encode(), 1)
        began = time.monotonic()
        self._connections.post(marked)
        while mark.encode() not in self._lookout.look([post]):
            pass
        return (time.monotonic() - began) * 1000

    def _numbered(self) -> Iterator[tuple[int, bytes]]:
        """Each document's number, and the body of a bulk request for it alone; over and over."""
        while True:
            number = 0
            for body in ceiling.bodies(self._bodies):
                lines = body.splitlines(keepends=True)
                for action, source in zip(lines[::2], lines[1::2], strict=True):
                    number += 1
                    yield number, action + source
