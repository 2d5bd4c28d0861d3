"""A pooler of connections before a real Postgres, which shares the server's sessions as PgBouncer does by transaction.

It speaks as much of the protocol as psycopg does without pipelines and without COPY from the client.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_LENGTH = struct.Struct("!I")
_ENCRYPTION_REQUESTS = (80877103, 80877104)
_ENDS_A_REQUEST = b"QSF"
_READY, _TERMINATE = b"Z", b"X"
_IDLE = b"I"
_MADE_UP_KEY = _LENGTH.pack(1) + _LENGTH.pack(2)


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            raise ConnectionError
        found += part
    return found


def _message(connection: socket.socket) -> tuple[bytes, bytes]:
    """The kind of the next message, and all of it."""
    kind, length = _exactly(connection, 1), _exactly(connection, 4)
    return kind, kind + length + _exactly(connection, _LENGTH.unpack(length)[0] - 4)


def _startup(client: socket.socket) -> bytes:
    """The message that a client begins with; it gets no encryption."""
    while True:
        length = _exactly(client, 4)
        rest = _exactly(client, _LENGTH.unpack(length)[0] - 4)
        if _LENGTH.unpack(rest[:4])[0] not in _ENCRYPTION_REQUESTS:
            return length + rest
        client.sendall(b"N")


class _Session:
    """A session of the server."""

    def __init__(self, server: tuple[str, int], startup: bytes) -> None:
        self.connection = socket.create_connection(server)
        self.connection.sendall(startup)
        self.greeting = b""
        kind = b""
        while kind != _READY:
            kind, message = _message(self.connection)
            if kind == b"K":
                message = message[:5] + _MADE_UP_KEY
            self.greeting += message

    def answer(self, client: socket.socket) -> bool:
        """Hand on the answer to a request; whether no transaction is left open."""
        while True:
            kind, message = _message(self.connection)
            client.sendall(message)
            if kind == _READY:
                return message[-1:] == _IDLE


class Pooler:
    """Listens until it is closed."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._free: list[_Session] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more clients, and give the sessions back."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for one in self._free:
            one.connection.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        session: _Session | None = None
        with client, suppress(OSError):
            startup = _startup(client)
            session = self._taken(startup)
            client.sendall(session.greeting)
            while True:
                kind, message = _message(client)
                if kind == _TERMINATE:
                    break
                session = session or self._taken(startup)
                session.connection.sendall(message)
                if kind in _ENDS_A_REQUEST and session.answer(client):
                    self._free.append(session)
                    session = None
        if session is not None:
            session.connection.close()

    def _taken(self, startup: bytes) -> _Session:
        """The session that was given back last, or a new one."""
        try:
            return self._free.pop()
        except IndexError:
            return _Session(self._server, startup)


@contextmanager
def pooled(host: str, port: int) -> Iterator[int]:
    """The port of a pooler before that server."""
    pooler = Pooler((host, port))
    try:
        yield pooler.port
    finally:
        pooler.close()
