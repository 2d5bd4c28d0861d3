"""An embedded Postgres 18."""

from __future__ import annotations

import shutil
import signal
from typing import TYPE_CHECKING, Literal

import psutil
import psycopg

from syncer.sandbox.process import run, wait_until
from syncer.sandbox.server import LOOPBACK, Server

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from syncer.sandbox.account import Account
    from syncer.sandbox.cache import Cache
    from syncer.sandbox.report import Reporter

SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",  # a socket's path has 107 characters at most: too few for deep folders
    "max_connections": "200",
    "wal_level": "replica",  # what a plain installation has; nothing of syncer needs more
    "fsync": "on",  # crash tests mean something only with a database that keeps what it has committed
    "log_timezone": "UTC",
    "timezone": "UTC",
    "log_line_prefix": "%m [%p] %q%a ",
}
ORPHAN_SECONDS = 10.0  # backends notice soon that their server was killed


class PostgresServer(Server):
    """Postgres with one superuser, ``postgres``, whom everybody on this machine may be (trust)."""

    name = "Postgres"
    ready_seconds = 120.0
    stop_signal = signal.SIGINT  # "fast": roll back what is open, do not wait for clients

    def __init__(self, sandbox_folder: Path, cache: Cache, account: Account, *, report: Reporter) -> None:
        super().__init__(sandbox_folder, cache, account, report=report)
        self.settings |= SETTINGS

    @property
    def address(self) -> str:
        """The connection string of the database ``postgres``."""
        return f"postgresql://postgres@{LOOPBACK}:{self.port}/postgres"

    @property
    def bin_folder(self) -> Path:
        """Where ``psql``, ``pgbench``, ``pg_dump`` and their like are."""
        return self._cache.postgres_folder() / "bin"

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop; "immediate" leaves without a checkpoint, so that the next start recovers as from a crash."""
        self._stop(signal.SIGQUIT if mode == "immediate" else self.stop_signal)

    def _prepare(self) -> None:
        if not self.data_folder.exists():
            with self._report.step(f"creating the database of {self.name}"):
                self._initialise()
        self._clear_stale_lock()
        settings = self.settings | {"port": str(self.port)}
        quoted = {name: value.replace("'", "''") for name, value in settings.items()}
        lines = [f"{name} = '{value}'\n" for name, value in quoted.items()]
        self._account.write(self.data_folder / "postgresql.conf", "".join(lines))

    def _initialise(self) -> None:
        """Under another name first: an interrupted ``initdb`` leaves nothing that looks like a database."""
        unfinished = self.folder / "data.partial"
        shutil.rmtree(unfinished, ignore_errors=True)
        command = [str(self.bin_folder / "initdb"), "--pgdata", str(unfinished), "--username=postgres"]
        command += ["--auth=trust", "--encoding=UTF8", "--no-instructions"]
        # This locale is Postgres's own: the same everywhere, whatever locales the system has.
        command += ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        failure = f"{self.name} could not create its data folder"
        environment = self._environment()
        run(command, failure=failure, folder=self.folder, environment=environment, account=self._account)
        unfinished.rename(self.data_folder)

    def _clear_stale_lock(self) -> None:
        """Remove the lock file of a server that is gone, together with all that it had started.

        Postgres itself removes it only if no process has the id in it. But after a reboot somebody else may
        have that id, and in a container whose first process does not bury the dead, the dead server has it.
        """
        if wait_until(lambda: not self._has_living_processes(), seconds=ORPHAN_SECONDS):
            (self.data_folder / "postmaster.pid").unlink(missing_ok=True)

    def _has_living_processes(self) -> bool:
        data_folder = str(self.data_folder)  # where every Postgres process works
        found = psutil.process_iter(["name", "cwd"])
        return any(one.info == {"name": "postgres", "cwd": data_folder} for one in found)

    def _command(self) -> Sequence[str]:
        return [str(self.bin_folder / "postgres"), "-D", str(self.data_folder)]

    def _is_ready(self) -> bool:
        try:
            psycopg.connect(self.address, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True
