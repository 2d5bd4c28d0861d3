"""A pooler of connections before a real Postgres, which shares the server's sessions as PgBouncer does by transaction.

It speaks as much of the protocol as psycopg does without pipelines and without COPY from the client.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedIOBase
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import cast

_LENGTH = struct.Struct("!I")
_ENCRYPTION_REQUESTS = (80877103, 80877104)
_ENDS_A_REQUEST = b"QSF"
_KEY, _READY, _TERMINATE = b"K", b"Z", b"X"
_IDLE = b"I"
_MADE_UP_KEY = _LENGTH.pack(1) + _LENGTH.pack(2)


def _message(stream: BufferedIOBase) -> tuple[bytes, bytes]:
    """The kind of the next message, and all of it."""
    kind, length = stream.read(1), stream.read(4)
    if not length:
        raise ConnectionError
    return kind, kind + length + stream.read(_LENGTH.unpack(length)[0] - 4)


class _Session:
    """A session of the server."""

    def __init__(self, server: tuple[str, int], startup: bytes) -> None:
        self._connection = socket.create_connection(server)
        self._answers = self._connection.makefile("rb")
        self.send(startup)
        self.greeting = b""
        kind = b""
        while kind != _READY:
            kind, message = _message(self._answers)
            self.greeting += message[:5] + _MADE_UP_KEY if kind == _KEY else message

    def send(self, message: bytes) -> None:
        """Hand a message on."""
        self._connection.sendall(message)

    def answer(self, client: BufferedIOBase) -> bool:
        """Hand on the answer to a request; whether no transaction is left open."""
        while True:
            kind, message = _message(self._answers)
            client.write(message)
            if kind == _READY:
                return message[-1:] == _IDLE

    def close(self) -> None:
        """End it."""
        self._answers.close()
        self._connection.close()


class _Pooler(ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, server: tuple[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), _Client)
        self._server = server
        self.free: list[_Session] = []

    def session(self, startup: bytes) -> _Session:
        """The session that was given back last, or a new one."""
        return self.free.pop() if self.free else _Session(self._server, startup)


class _Client(StreamRequestHandler):
    def handle(self) -> None:
        """Begin a session for the client, and have each of its transactions done in any that is free."""
        pooler, session = cast("_Pooler", self.server), None
        with suppress(OSError):
            startup = self._startup()
            session = pooler.session(startup)
            self.wfile.write(session.greeting)
            while True:
                kind, message = _message(self.rfile)
                if kind == _TERMINATE:
                    break
                session = session or pooler.session(startup)
                session.send(message)
                if kind in _ENDS_A_REQUEST and session.answer(self.wfile):
                    pooler.free.append(session)
                    session = None
        if session is not None:
            session.close()

    def _startup(self) -> bytes:
        """The message that a client begins with; it gets no encryption."""
        while True:
            length = self.rfile.read(4)
            rest = self.rfile.read(_LENGTH.unpack(length)[0] - 4)
            if _LENGTH.unpack(rest[:4])[0] not in _ENCRYPTION_REQUESTS:
                return length + rest
            self.wfile.write(b"N")


@contextmanager
def pooled(host: str, port: int) -> Iterator[int]:
    """The port of a pooler before that server."""
    with _Pooler((host, port)) as pooler:
        threading.Thread(target=pooler.serve_forever, daemon=True).start()
        try:
            yield int(pooler.server_address[1])
        finally:
            pooler.shutdown()
            for session in pooler.free:
                session.close()
