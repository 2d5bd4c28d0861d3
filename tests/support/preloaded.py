"""Runs the command ``syncer`` without the second that Python takes to load its libraries.

A server has loaded them once and forks for each command. What runs is the program's own entry point, in a process of
its own, with its own arguments, environment, folder and standard streams, to its ordinary end.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO

_CLIENT = """\
#!{python} -SE
import json, os, socket, sys
here, folder = socket.socket(socket.AF_UNIX), os.getcwd()
os.chdir({folder!r})  # the address of a socket has a hundred characters at most
here.connect("socket")
asked = json.dumps([sys.argv[1:], dict(os.environ), folder]).encode()
socket.send_fds(here, [len(asked).to_bytes(8, "big")], [0, 1, 2])
here.sendall(asked)
answer = here.makefile().read().split()
sys.exit(int(answer[1]) if len(answer) > 1 else 70)
"""


class Command:
    """A command that runs; to be asked as a `subprocess.Popen` is."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        streams: Sequence[int],
        folder: Path | None = None,
    ) -> None:
        self.args = ["syncer", *arguments]
        self.returncode: int | None = None
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(_server() / "socket"))
        asked = json.dumps([list(arguments), dict(environment), str(folder or Path.cwd())]).encode()
        socket.send_fds(self._socket, [len(asked).to_bytes(8, "big")], streams)
        self._socket.sendall(asked)
        self._answers = self._socket.makefile()
        self.pid = int(self._answers.readline())

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended."""
        if self.returncode is None:
            if not select.select([self._socket], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._answers.readline())
            self._answers.close()
            self._socket.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, if it has not ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended just now
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def run(
    *arguments: str, environment: Mapping[str, str], seconds: float, stdin: bytes | IO[bytes] = b""
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with this environment and no other."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        if isinstance(stdin, bytes):
            given.write(stdin)
            given.seek(0)
            stdin = given
        command = Command(arguments, environment=environment, streams=[stdin.fileno(), out.fileno(), err.fileno()])
        try:
            code = command.wait(seconds)
        except subprocess.TimeoutExpired:
            command.kill()
            command.wait()
            raise
        printed = []
        for file in (out, err):
            file.seek(0)
            printed.append(file.read().decode())
    return subprocess.CompletedProcess(command.args, code, *printed)


def program(folder: Path) -> None:
    """Put ``syncer`` into a folder for the PATH, for shells."""
    client = folder / "syncer"
    client.write_text(_CLIENT.format(python=sys.executable, folder=str(_server())))
    client.chmod(0o755)


@cache
def _server() -> Path:
    """Start the server of this process; its folder. It ends with this process."""
    folder = tempfile.TemporaryDirectory(prefix="syncer-")
    server = subprocess.Popen([sys.executable, "-m", "tests.support.preloaded", folder.name], stdin=subprocess.PIPE)

    def end() -> None:
        server.communicate()
        folder.cleanup()

    atexit.register(end)
    while not (Path(folder.name) / "socket").exists():
        assert server.poll() is None, "it cannot be loaded"
        time.sleep(0.02)
    return Path(folder.name)


def _serve(folder: str) -> None:
    """Fork for each command, until standard input ends. Return only in the process of a command."""
    for found in pkgutil.walk_packages(importlib.import_module("syncer").__path__, "syncer."):
        if found.name != "syncer.__main__":
            importlib.import_module(found.name)
    importlib.import_module("typer.rich_utils")
    gc.freeze()  # a collection in a command would copy every page
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        os.chdir(folder)
        listening.bind("socket.new")
        listening.listen()
        Path("socket.new").rename("socket")  # now clients may connect
        while True:
            if sys.stdin in select.select([listening, sys.stdin], [], [])[0]:
                os._exit(0)
            client, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                return _become(client)
            client.close()


def _become(client: socket.socket) -> None:
    """Become one command, below a process that tells how it ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, streams, _, _ = socket.recv_fds(client, 8, 3)
    asked = b""
    while len(asked) < int.from_bytes(size, "big"):
        more = client.recv(1 << 16)
        if not more:  # the client was killed
            os._exit(0)
        asked += more
    if pid := os.fork():
        client.sendall(f"{pid}\n".encode())
        for stream in (0, 1, 2, *streams):
            os.close(stream)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _, status = os.waitpid(pid, 0)
        client.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    client.close()
    arguments, environment, folder = json.loads(asked)
    for number, file in enumerate(streams):
        os.dup2(file, number)
        os.close(file)
    # The server's own may have been files, and these may be pipes.
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", buffering=1, closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(folder)
    sys.argv = ["syncer", *arguments]
    sys.modules["__main__"].__package__ = ""  # else the usage names this module
    render = importlib.import_module("syncer.cli.render")
    for module in [one for name, one in sys.modules.items() if name.startswith("syncer.cli.")]:
        for name, output in ("out", sys.stdout), ("err", sys.stderr):
            if hasattr(module, name):  # a console, which has looked at the terminal that the server has
                setattr(module, name, render.console(output))


def _main() -> None:
    """Run the command, and end as the interpreter does, but for taking its libraries apart, which takes long."""
    code = 0
    try:
        importlib.import_module("syncer.__main__").main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:  # noqa: BLE001 - as the interpreter
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1])
    _main()
