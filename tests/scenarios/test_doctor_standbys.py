"""The doctor tells what stands where a primary, a replica or a session of Postgres's own should be."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psycopg
from pydantic import SecretStr

from syncer.doctor.examination import CHECKS, examine
from syncer.doctor.symptom import Severity
from syncer.sandbox import Endpoints, Sandbox
from syncer.settings import PostgresSettings
from tests.doctoring import is_well, look
from tests.harness import World
from tests.standbys import ask, standbys

CONSIDER = Severity.CONSIDER


def test_a_pool_between_is_told_of(endpoints: Endpoints, sandbox: Sandbox, tmp_path: Path) -> None:
    """A session whose key is not that of the server process behind it is a pool's."""
    world = World(sandbox=sandbox, endpoints=endpoints, folder=tmp_path, name="postgres")
    with Pool(world) as pool:
        settings = world.settings.model_copy(update={"postgres": PostgresSettings(dsn=SecretStr(pool.dsn))})
        (found,) = look(world, "postgres.session", settings=settings)
    assert found.severity is Severity.WRONG
    assert "a pool of connections" in found.found
    assert is_well(look(world, "postgres.session"))


class Pool:
    """What a pool of connections looks like from outside: it answers a login with a key of its own making."""

    def __init__(self, world: World) -> None:
        self._there = psycopg.conninfo.conninfo_to_dict(world.dsn)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[Any] = [self._listener]
        self.dsn = f"postgresql://postgres@127.0.0.1:{self._listener.getsockname()[1]}/{world.name}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        """Take connections."""
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take none any more, and end those that there are."""
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            there = socket.create_connection((str(self._there["host"]), int(str(self._there["port"]))))
            self._sockets += [here, there]
            for source, sink, change in ((here, there, bytes), (there, here, _with_another_key)):
                self._threads.append(threading.Thread(target=_copy, args=(source, sink, change), daemon=True))
                self._threads[-1].start()


def _with_another_key(data: bytes) -> bytes:
    head, key, rest = data.partition(b"K\0\0\0\x0c")
    return head + key + b"\0\0\0\1" + rest[4:] if key else data


def _copy(source: Any, sink: Any, change: Callable[[bytes], bytes]) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(change(data))
    except OSError:
        pass
    finally:
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


def test_standbys_are_looked_at(sandbox: Sandbox, endpoints: Endpoints, tmp_path: Path) -> None:
    """A standby where a primary should be, and every way in which a replica may not be fit to be read."""
    with standbys(sandbox) as servers:
        standby = servers.follow()
        base = World(sandbox=sandbox, endpoints=endpoints, folder=tmp_path).settings
        config = tmp_path / "config"

        def seen(id_: str, *, dsn: str, read_dsn: str | None = None) -> list[tuple[Severity, str]]:
            postgres = PostgresSettings(dsn=SecretStr(dsn), read_dsn=SecretStr(read_dsn) if read_dsn else None)
            settings = base.model_copy(update={"postgres": postgres})
            checks = [one for one in CHECKS if one.id == id_]
            return [(one.severity, one.found) for one in examine(settings, config, checks=checks).findings]

        def replica(read_dsn: str) -> list[tuple[Severity, str]]:
            return seen("postgres.replica", dsn=servers.primary.address, read_dsn=read_dsn)

        assert seen("postgres.primary", dsn=servers.primary.address) == [(Severity.WELL, "")]
        assert seen("postgres.primary", dsn=standby.address)[0][0] is Severity.WRONG
        ((severity, said),) = replica(standby.address)
        assert (severity, said.split()[0]) == (CONSIDER, "hot_standby_feedback")
        with psycopg.connect(standby.address, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET hot_standby_feedback = on")
            connection.execute("SELECT pg_reload_conf()")
        assert replica(standby.address) == [(Severity.WELL, "")]
        ask(standby, "SELECT pg_wal_replay_pause()")
        assert "paused" in replica(standby.address)[0][1]
        ask(standby, "SELECT pg_wal_replay_resume()")
        with psycopg.connect(standby.address, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET recovery_min_apply_delay = '1min'")
            connection.execute("SELECT pg_reload_conf()")
        assert "60 s late" in replica(standby.address)[0][1]
        assert "not a standby" in replica(servers.primary.address)[0][1]
        assert "not a replica" in replica(endpoints.postgres_dsn)[0][1]
        standby.stop("immediate")
        assert replica(standby.address)[0][0] is Severity.WRONG
