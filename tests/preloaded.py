"""The command ``syncer`` without the second that Python takes to load it: for who runs very many of them.

A server has loaded the program once, and forks for each command; what stands on the PATH as ``syncer`` hands it its
arguments, its environment, its folder and its standard streams, and ends as it does. What runs is the program's own
entry point, in a process of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness import wait_until

_LOADED_LATE = ("syncer.plan.forecast", "syncer.plan.page", "syncer.plan.caution", "syncer.doctor.examination")
_CLIENT = """\
#!{python} -SE
import json, os, socket, sys
here, folder = socket.socket(socket.AF_UNIX), os.getcwd()
os.chdir({folder!r})  # the address of a socket has a hundred characters at most
here.connect("socket")
asked = json.dumps([sys.argv[1:], dict(os.environ), folder]).encode()
socket.send_fds(here, [len(asked).to_bytes(8, "big")], [0, 1, 2])
here.sendall(asked)
answer = here.recv(1)
sys.exit(answer[0] if answer else 70)
"""


@contextmanager
def preloaded(folder: Path) -> Iterator[Path]:
    """A folder for the PATH, with ``syncer`` in it, for as long as the block lasts."""
    server = subprocess.Popen([sys.executable, "-m", "tests.preloaded", str(folder)])
    try:
        wait_until((folder / "socket").exists, what="the program is loaded")
        client = folder / "syncer"
        client.write_text(_CLIENT.format(python=sys.executable, folder=str(folder)))
        client.chmod(client.stat().st_mode | stat.S_IXUSR)
        yield folder
    finally:
        server.terminate()
        server.wait()


def serve(folder: str) -> None:
    """Run commands until told to end."""
    for name in ("syncer.cli", *_LOADED_LATE):
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        os.chdir(folder)
        listening.bind("socket.new")
        listening.listen()
        Path("socket.new").rename("socket")  # who sees it is let in
        while True:
            client, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                _run(client)
            client.close()


def _run(client: socket.socket) -> None:
    """One command, in a process of its own, which ends with it."""
    from syncer.cli import main  # noqa: PLC0415 - the server has loaded it, whoever imports this need not

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, streams, _, _ = socket.recv_fds(client, 8, 3)
    asked = b""
    while len(asked) < int.from_bytes(size, "big"):
        more = client.recv(1 << 16)
        if not more:  # who asked was killed meanwhile
            os._exit(0)
        asked += more
    arguments, environment, folder = json.loads(asked)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["syncer", *arguments]
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:  # noqa: BLE001 - as the interpreter would
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    client.sendall(bytes([code]))
    os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1])
