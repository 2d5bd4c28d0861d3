"""What PGSync needs: an environment of its own, since it pins all that it uses, and a Postgres that decodes as text.

The sandbox's Postgres lacks the plugin for that, ``test_decoding``; one that the system has installed usually has it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from syncer.sandbox import Reporter, Sandbox
from syncer.sandbox.account import cache_folder, server_account
from syncer.sandbox.cache import Cache
from syncer.sandbox.postgres import PostgresServer
from tests.benchmarks.blog import Blogs
from tests.benchmarks.contest import say
from tests.benchmarks.report import SkippedError

_VERSION = "7.3.0"
_DEBIANS_FOLDERS = "usr/lib/postgresql/*/bin"


class _SystemPostgres(PostgresServer):
    """A Postgres that is installed on this machine, with a data folder of its own."""

    def __init__(self, sandbox_folder: Path, bin_folder: Path) -> None:
        account = server_account()
        super().__init__(
            sandbox_folder, Cache(cache_folder(account), account, report=Reporter()), account, report=Reporter()
        )
        self._bin_folder = bin_folder

    @property
    def server_bin_folder(self) -> Path:
        return self._bin_folder

    def _initialise(self) -> None:
        command = [str(self.server_bin_folder / "initdb"), "--pgdata", str(self.data_folder), "--username=postgres"]
        command += ["--auth=trust", "--encoding=UTF8", "--locale=C"]
        subprocess.run(
            command,
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self.folder,
            env=self._environment(),
            **self._account.popen_arguments(),
        )


def installed() -> Path:
    """PGSync's command, installed into the sandbox's cache once.

    Raises:
        SkippedError: It cannot be installed.
    """
    folder = cache_folder(server_account()) / f"pgsync-{_VERSION}"
    program = folder / "bin" / "pgsync"
    complete = folder / "complete"
    if not complete.exists():
        say(f"installing PGSync {_VERSION}")
        commands = (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", f"pgsync=={_VERSION}"],
        )
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SkippedError(f"PGSync {_VERSION} cannot be installed here: {done.stderr.strip()[-300:]}")
        complete.touch()
    return program


@contextmanager
def logical(blogs: Blogs, *, as_text: bool = True) -> Iterator[Blogs]:
    """The same servers, but another Postgres, with ``wal_level = logical``.

    Args:
        blogs: Whose servers.
        as_text: Whether it must have the plugin ``test_decoding``.

    Raises:
        SkippedError: No Postgres of this machine will do.
    """
    with tempfile.TemporaryDirectory(prefix="syncer-benchmarks-") as folder:
        Path(folder).chmod(0o755)  # for root's servers, which run as nobody
        sandbox = Sandbox(Path(folder))
        postgres = _SystemPostgres(sandbox.folder, _bin_folder()) if as_text else sandbox.postgres
        postgres.settings |= {"wal_level": "logical", "max_wal_size": "2GB"}
        sandbox.postgres = postgres
        sandbox.kafka, sandbox.elasticsearch = blogs.sandbox.kafka, blogs.sandbox.elasticsearch
        postgres.start()
        try:
            endpoints = replace(blogs.endpoints, postgres_dsn=postgres.address)
            yield Blogs(sandbox=sandbox, endpoints=endpoints, posts=blogs.posts)
        finally:
            postgres.stop()


def _bin_folder() -> Path:
    """The newest Postgres of this machine that has the plugin."""
    on_path = shutil.which("pg_config")
    found = [Path(on_path).resolve().parent] if on_path else []
    found += sorted(Path("/").glob(_DEBIANS_FOLDERS), key=lambda one: int(one.parent.name), reverse=True)
    for one in found:
        asked = subprocess.run([str(one / "pg_config"), "--pkglibdir"], capture_output=True, text=True, check=True)
        if (one / "initdb").exists() and (Path(asked.stdout.strip()) / "test_decoding.so").exists():
            return one
    raise SkippedError("PGSync needs a Postgres with the plugin test_decoding, which is not installed here")
