"""What stands between a client and a server: a line that can go deaf in one direction, and a pooler of connections.

And a plain client of HTTP.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from enum import StrEnum
from http.client import HTTPConnection
from typing import NamedTuple
from urllib.parse import urlsplit

_PART_BYTES = 1 << 16


def ask(address: str, path: str, *, token: str = "") -> tuple[int, str]:
    """The status and the text with which an address, as http://127.0.0.1:8765, answers to GET."""
    with closing(HTTPConnection(urlsplit(address).netloc, timeout=120)) as connection:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


class Direction(StrEnum):
    """Where to nothing arrives."""

    SERVER = "server"
    CLIENT = "client"


class _Between:
    """A port that leads to a server on this machine, served by a thread of its own until `close`."""

    def __init__(self, server_port: int, port: int = 0) -> None:
        self._server_port = server_port
        self._loop = asyncio.new_event_loop()
        self._ends: set[asyncio.StreamWriter] = set()
        self._listening = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", port))
        self.port = int(self._listening.sockets[0].getsockname()[1])
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Serve a client."""
        raise NotImplementedError

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the server."""
        return await asyncio.open_connection("127.0.0.1", self._server_port)

    def close(self) -> None:
        """Carry nothing more."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._listening.close()
        self._loop.run_until_complete(self._cut())
        self._loop.close()

    async def _cut(self) -> None:
        for end in self._ends:
            end.transport.abort()
        if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(tasks)


class Line(_Between):
    """A line; `line` makes one.

    While it is deaf in one direction, what is sent that way waits and arrives late, as if it were retransmitted.

    Attributes:
        port: Where the line begins.
    """

    def __init__(self, server_port: int, port: int = 0) -> None:
        self._flows = {direction: asyncio.Event() for direction in Direction}
        for flow in self._flows.values():
            flow.set()
        super().__init__(server_port, port)

    @contextmanager
    def deaf(self, direction: Direction) -> Iterator[None]:
        """Nothing arrives in this direction while the block lasts."""
        self._loop.call_soon_threadsafe(self._flows[direction].clear)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._flows[direction].set)

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await self._open()
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
            while received := await source.read(_PART_BYTES):
                await flow.wait()
                target.write(received)
                await target.drain()
        await flow.wait()
        target.close()
        self._ends.discard(target)

    async def _cut(self) -> None:
        for flow in self._flows.values():
            flow.set()
        await super()._cut()


@contextmanager
def line(server_port: int, *, port: int = 0) -> Iterator[Line]:
    """A line to the server at this port, until the block ends; it begins at a port where nothing listens."""
    with closing(Line(server_port, port)) as line:
        yield line


class _Session(NamedTuple):
    """A session of Postgres, and what it said when it began."""

    answers: asyncio.StreamReader
    requests: asyncio.StreamWriter
    greeting: bytes


_ENDS_A_REQUEST = b"QSF"
_KEY, _READY, _TERMINATE, _IDLE = b"K", b"Z", b"X", b"I"
_ENCRYPTION_REQUESTS = (80877103, 80877104)
_MADE_UP_KEY = bytes((0, 0, 0, 1, 0, 0, 0, 2))


class Pooler(_Between):
    """Shares the sessions of a Postgres as PgBouncer does by transaction.

    It speaks as much of the protocol as psycopg does without pipelines and without COPY from the client.
    """

    def __init__(self, server_port: int) -> None:
        self._free: list[_Session] = []
        super().__init__(server_port)

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Greet the client, and have each of its transactions done in any session that is free."""
        self._ends.add(to_client)
        session: _Session | None = None
        with suppress(OSError, asyncio.IncompleteReadError):
            startup = await self._startup(from_client, to_client)
            session = await self._session(startup)
            to_client.write(session.greeting)
            while (message := await _message(from_client))[:1] != _TERMINATE:
                session = session or await self._session(startup)
                session.requests.write(message)
                if message[:1] not in _ENDS_A_REQUEST:
                    continue
                answer = await self._answer(session, to_client)
                if answer[-1:] == _IDLE:
                    self._free.append(session)
                    session = None
        if session is not None:
            session.requests.close()
        to_client.close()

    async def _session(self, startup: bytes) -> _Session:
        """The session that was given back last, or a new one."""
        if self._free:
            return self._free.pop()
        answers, requests = await self._open()
        self._ends.add(requests)
        requests.write(startup)
        message = greeting = b""
        while message[:1] != _READY:
            message = await _message(answers)
            greeting += message[:5] + _MADE_UP_KEY if message[:1] == _KEY else message
        return _Session(answers, requests, greeting)

    async def _answer(self, session: _Session, to_client: asyncio.StreamWriter | None) -> bytes:
        """Carry what the server answers to the client, if there is one; return the last message."""
        answer = b""
        while answer[:1] != _READY:
            answer = await _message(session.answers)
            if to_client is not None:
                to_client.write(answer)
        return answer

    @staticmethod
    async def _startup(from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> bytes:
        """The message that a client begins with; it gets no encryption."""
        while True:
            length = await from_client.readexactly(4)
            body = await from_client.readexactly(int.from_bytes(length) - 4)
            if int.from_bytes(body[:4]) not in _ENCRYPTION_REQUESTS:
                return length + body
            to_client.write(b"N")


class SessionPooler(Pooler):
    """Gives a client a session until it leaves, as PgBouncer does by session, with this query to reset it or none."""

    def __init__(self, server_port: int, *, reset_query: str = "") -> None:
        self._reset = reset_query.encode()
        super().__init__(server_port)

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self._ends.add(to_client)
        with suppress(OSError, asyncio.IncompleteReadError):
            session = await self._session(await self._startup(from_client, to_client))
            to_client.write(session.greeting)
            with suppress(asyncio.IncompleteReadError):
                while (message := await _message(from_client))[:1] != _TERMINATE:
                    session.requests.write(message)
                    if message[:1] in _ENDS_A_REQUEST:
                        await self._answer(session, to_client)
            if self._reset:
                session.requests.write(b"Q" + (len(self._reset) + 5).to_bytes(4) + self._reset + b"\0")
                await self._answer(session, None)
            self._free.append(session)
        to_client.close()


class Balancer(Pooler):
    """Sends the requests of one session that contain some words to a standby, and the others to the primary."""

    def __init__(self, server_port: int, *, standby_port: int, words: bytes) -> None:
        self._standby = standby_port
        self._words = words
        super().__init__(server_port)

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self._ends.add(to_client)
        prepared: set[bytes] = set()
        with suppress(OSError, asyncio.IncompleteReadError):
            startup = await self._startup(from_client, to_client)
            primary = await self._session(startup)
            self._server_port, primary_port = self._standby, self._server_port
            standby = await self._session(startup)
            self._server_port = primary_port
            to_client.write(primary.greeting)
            request = b""
            while (message := await _message(from_client))[:1] != _TERMINATE:
                request += message
                name = message[5:].split(b"\0")[message[:1] == b"B"]  # of the statement that it prepares or executes
                if message[:1] == b"P" and self._words in message and name:
                    prepared.add(name)
                if message[:1] in _ENDS_A_REQUEST:
                    is_balanced = self._words in request or any(b"\0" + name + b"\0" in request for name in prepared)
                    session = standby if is_balanced else primary
                    session.requests.write(request)
                    await self._answer(session, to_client)
                    request = b""
            for session in (primary, standby):
                session.requests.close()
        to_client.close()


async def _message(stream: asyncio.StreamReader) -> bytes:
    head = await stream.readexactly(5)
    return head + await stream.readexactly(int.from_bytes(head[1:]) - 4)
