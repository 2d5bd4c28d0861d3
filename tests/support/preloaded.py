"""Runs the command ``syncer`` without the second that Python takes to load its libraries.

A server has loaded them once and forks for each command. What runs is the program's own entry point, in a process of
its own, with its own arguments, environment, folder and standard streams, to its ordinary end.
"""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import multiprocessing
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from multiprocessing import connection
from multiprocessing.context import ForkServerContext
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Any

import syncer
from syncer.cli import render
from tests.support.breakpoints import AS_IT_IS, Plan

_LOCK = threading.Lock()
"""The end of a process can be read once, and starting one looks for others that have ended."""


class Command:
    """A command that runs; to be asked as a `subprocess.Popen` is.

    Args:
        arguments: What follows ``syncer``.
        environment: All of it.
        log_file: Where what it prints is added, unless its three streams are given.
        streams: Its standard streams.
        folder: Where it works; here by default.
        plan: What is different in it.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        log_file: Path | None = None,
        streams: Sequence[IO[bytes]] = (),
        folder: Path | None = None,
        plan: Plan = AS_IT_IS,
    ) -> None:
        self.args = ["syncer", *arguments]
        with _LOCK, Path(os.devnull).open("rb") as nothing, (log_file or Path(os.devnull)).open("ab") as log:
            files = _Streams([stream.fileno() for stream in streams or (nothing, log, log)])
            has_begun, begins = _server().Pipe(duplex=False)
            request = {"environment": dict(environment), "folder": str(folder or Path.cwd()), "streams": files}
            request |= {"plan": plan, "begins": begins}
            self._process = _server().Process(target=_run, args=self.args, kwargs=request, daemon=True)
            self._process.start()
            begins.close()
        # The server ignores Ctrl-C, and so does what it forks until then.
        with has_begun, suppress(EOFError):
            has_begun.recv_bytes()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, if it has ended."""
        with _LOCK:
            return self._process.exitcode

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended."""
        connection.wait([self._process.sentinel], timeout)
        code = self.returncode
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, if it has not ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended just now
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()


def run(
    *arguments: str,
    environment: Mapping[str, str],
    seconds: float,
    stdin: bytes | IO[bytes] = b"",
    plan: Plan = AS_IT_IS,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with this environment and no other."""
    with tempfile.TemporaryFile() as stdin_file, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        if isinstance(stdin, bytes):
            stdin_file.write(stdin)
            stdin_file.seek(0)
            stdin = stdin_file
        command = Command(arguments, environment=environment, streams=[stdin, out, err], plan=plan)
        try:
            code = command.wait(seconds)
        except subprocess.TimeoutExpired:
            command.kill()
            raise
        printed = []
        for file in (out, err):
            file.seek(0)
            printed.append(file.read().decode())
    return subprocess.CompletedProcess(command.args, code, *printed)


@cache
def _server() -> ForkServerContext:
    """The server of this process, with which it ends."""
    context = multiprocessing.get_context("forkserver")
    modules = [module.name for module in pkgutil.walk_packages(syncer.__path__, "syncer.")]
    # The last one would be loaded by each command, since it is how pytest was started.
    context.set_forkserver_preload([*modules, "typer.rich_utils", "pytest"])
    atexit.register(_kill_all)  # before multiprocessing's own end, which waits for each, even for a stopped one
    return context


def _kill_all() -> None:
    for process in multiprocessing.active_children():
        process.kill()


class _Streams:
    """The standard streams of a process, which its start hands over."""

    def __init__(self, files: Sequence[int]) -> None:
        self.files = files

    def __getstate__(self) -> list[Any]:
        return [DupFd(file) for file in self.files]

    def __setstate__(self, files: list[Any]) -> None:
        self.files = [file.detach() for file in files]


def _run(
    *arguments: str,
    environment: dict[str, str],
    folder: str,
    streams: _Streams,
    plan: Plan,
    begins: connection.Connection,
) -> None:
    """Become the command."""
    for number, file in enumerate(streams.files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(folder)
    sys.argv = list(arguments)
    # The server's own may have been files, and these may be pipes; consoles have looked at them.
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    faulthandler.enable()  # SIGABRT shows where it stands
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background lets programs ignore Ctrl-C
    for module in [module for name, module in sys.modules.items() if name.startswith("syncer.cli.")]:
        for name, output in ("out", sys.stdout), ("err", sys.stderr):
            if hasattr(module, name):
                setattr(module, name, render.console(output))
    plan.carry_out()
    try:
        begins.close()
        importlib.import_module("syncer.__main__").main()
    except KeyboardInterrupt:  # before the command has begun
        sys.exit(130)
