"""An embedded Postgres."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import psutil
import psycopg

from syncer.sandbox.downloads import PACKAGED_POSTGRES
from syncer.sandbox.process import wait_until
from syncer.sandbox.server import LOOPBACK, EmbeddedServer

BUILTIN_LOCALE_SINCE = 17
ORPHAN_SECONDS = 10.0  # backends soon notice that their server was killed


class PostgresServer(EmbeddedServer):
    """Postgres with one superuser, ``postgres``; any local user may log in as it (trust authentication)."""

    name = "Postgres"
    default_version = PACKAGED_POSTGRES
    ready_seconds = 120.0
    stop_signal = signal.SIGINT  # "fast": roll back open transactions, do not wait for clients
    default_settings = {  # noqa: RUF012 - a ClassVar of the base class
        "listen_addresses": LOOPBACK,
        "unix_socket_directories": "",  # a socket's path is limited to 107 characters: too few for deep folders
        "max_connections": "200",
        "wal_level": "replica",  # the default; syncer needs no more
        "fsync": "on",  # crash tests need a database that keeps what it has committed
        "log_timezone": "UTC",
        "timezone": "UTC",
        "log_line_prefix": "%m [%p] %q%a ",
    }

    @property
    def address(self) -> str:
        """The connection string of the database ``postgres``."""
        return f"postgresql://postgres@{LOOPBACK}:{self.port}/postgres"

    @property
    def bin_folder(self) -> Path:
        """The folder of ``psql``, ``pgbench``, ``pg_dump`` and so on; of the newest version, for servers of all."""
        return self._cache.postgres_folder() / "bin"

    @property
    def server_bin_folder(self) -> Path:
        """The folder of ``postgres`` and ``initdb`` of this version."""
        return self._cache.postgres_folder(self.version) / "bin"

    def _prepare(self) -> None:
        if not self.data_folder.exists():
            self._initialise()
        # Postgres removes the lock file of a dead server only if its process id is unused. After a reboot another
        # process may have that id; in a container whose first process does not reap zombies, the dead one still has it.
        if wait_until(lambda: not self._has_living_processes(), seconds=ORPHAN_SECONDS):
            (self.data_folder / "postmaster.pid").unlink(missing_ok=True)
        quoted = {name: value.replace("'", "''") for name, value in self.settings.items()}
        lines = [f"{name} = '{value}'\n" for name, value in (quoted | {"port": str(self.port)}).items()]
        self._account.write(self.data_folder / "postgresql.conf", "".join(lines))

    def _initialise(self) -> None:
        """Run ``initdb`` in another folder first, so that an interrupted run leaves nothing like a database."""
        unfinished = self.folder / "data.partial"
        shutil.rmtree(unfinished, ignore_errors=True)
        command = [str(self.server_bin_folder / "initdb"), "--pgdata", str(unfinished), "--username=postgres"]
        command += ["--auth=trust", "--encoding=UTF8", "--no-instructions"]
        command += ["--locale=C"]  # the same everywhere, whatever locales the system has
        if int(self.version) >= BUILTIN_LOCALE_SINCE:
            command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        self._run(command, failure="could not create its data folder")
        unfinished.rename(self.data_folder)

    def _has_living_processes(self) -> bool:
        mine = {"name": "postgres", "cwd": str(self.data_folder)}  # the working directory of every Postgres process
        return any(process.info == mine for process in psutil.process_iter(list(mine)))

    def _command(self) -> Sequence[str]:
        return [str(self.server_bin_folder / "postgres"), "-D", str(self.data_folder)]

    def _is_ready(self) -> bool:
        try:
            psycopg.connect(self.address, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True
