"""A line to a server that can go deaf in one direction, as a network does that loses packets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum

_PART_BYTES = 1 << 16


class Direction(StrEnum):
    """Where to nothing arrives."""

    SERVER = "server"
    CLIENT = "client"


class Line:
    """A port that leads to a server; `line` makes one.

    While the line is deaf in one direction, what is sent that way waits and arrives late, as if it were retransmitted.

    Attributes:
        port: Where the line begins.
    """

    def __init__(self, server_port: int, port: int = 0) -> None:
        self._server_port = server_port
        self._loop = asyncio.new_event_loop()
        self._flows = {direction: asyncio.Event() for direction in Direction}
        for flow in self._flows.values():
            flow.set()
        self._ends: set[asyncio.StreamWriter] = set()
        self._listening = self._loop.run_until_complete(asyncio.start_server(self._connect, "127.0.0.1", port))
        self.port = int(self._listening.sockets[0].getsockname()[1])
        self._thread = threading.Thread(target=self._loop.run_forever, name="line", daemon=True)
        self._thread.start()

    @contextmanager
    def deaf(self, direction: Direction) -> Iterator[None]:
        """Nothing arrives in this direction while the block lasts."""
        self._loop.call_soon_threadsafe(self._flows[direction].clear)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._flows[direction].set)

    def close(self) -> None:
        """Carry nothing more."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._listening.close()
        self._loop.run_until_complete(self._cut())
        self._loop.close()

    async def _cut(self) -> None:
        for flow in self._flows.values():
            flow.set()
        for end in self._ends:
            end.transport.abort()
        if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(tasks)

    async def _connect(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            to_client.close()
            return
        await asyncio.gather(
            self._carry(from_client, to_server, Direction.SERVER),
            self._carry(from_server, to_client, Direction.CLIENT),
        )

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, direction: Direction) -> None:
        flow = self._flows[direction]
        self._ends.add(target)
        with suppress(OSError):
            while part := await source.read(_PART_BYTES):
                await flow.wait()
                target.write(part)
                await target.drain()
        await flow.wait()
        target.close()
        self._ends.discard(target)


@contextmanager
def line(server_port: int, *, port: int = 0) -> Iterator[Line]:
    """A line to the server at this port, until the block ends; it begins at a port where nothing listens."""
    made = Line(server_port, port)
    try:
        yield made
    finally:
        made.close()
