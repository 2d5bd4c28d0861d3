"""What every demo needs: real servers of its own, the daemon as a process, the commands as you would type them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from elasticsearch import Elasticsearch
from rich.console import Console
from rich.markup import escape
from rich.rule import Rule

from syncer.base import shipped
from syncer.base.errors import SyncerError
from syncer.sandbox import Endpoints, Reporter, Sandbox

# The command as this program was called, so that the output can be pasted.
_COMMAND = sys.argv[0] if Path(sys.argv[0]).name == "syncer" else f"{sys.executable} -m syncer"
_PID_FILE = "daemon.pid"
_ANSWER_SECONDS = 60
_STOP_SECONDS = 30
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Finale:
    """The end of a demo.

    Args:
        holds: Whether `syncer verify` found every document equal to its SELECT.
        change: SQL to try by hand on a kept demo.
        search: A search that shows the change, as arguments to curl; ``{url}`` stands for Elasticsearch.
    """

    holds: bool
    change: str
    search: str


class Scene:
    """Servers, active documents, a daemon, and their output.

    Its servers and its config folder are those of this process: the environment says so.
    """

    def __init__(self, console: Console, folder: Path) -> None:
        self.console = console
        self._folder = folder
        self._log_file = folder / "daemon.log"
        self._sandbox = Sandbox(folder / "servers", report=Reporter(console))
        self._environment: dict[str, str] = {}
        self._daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> Endpoints:
        """Start the servers."""
        self.act("Real servers: Postgres, Kafka, Elasticsearch")
        endpoints = self._sandbox.start()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        config = str(self._folder / "config")
        self._environment = {**endpoints.environment(), "SYNCER_CONFIG": config, "SYNCER_WEB_PORT": port}
        os.environ.update(self._environment)
        return endpoints

    @property
    def _page(self) -> str:
        return f"http://127.0.0.1:{self._environment['SYNCER_WEB_PORT']}"

    def activate(self, *documents: str) -> None:
        """Activate documents of config/documents; start the daemon if it is not running."""
        ours = self._folder / "config" / "documents"
        for name in documents:
            shutil.copytree(shipped.folder("config") / "documents" / name, ours / name, dirs_exist_ok=True)
        if self._daemon is None:
            self.syncer("migrate")
        self.syncer("apply", "--yes")
        if self._daemon is None:
            with self._log_file.open("wb") as log:
                self._daemon = subprocess.Popen(
                    [sys.executable, "-m", "syncer", "run"],
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C must not reach it: the demo stops it in order
                )
            (self._folder / _PID_FILE).write_text(str(self._daemon.pid))
            self.console.print("$ syncer run &", style="bold")
            self.console.print(f"Watch it: [bold blue]{self._page}")

    def act(self, title: str) -> None:
        """Print a heading."""
        if self.console.is_terminal:
            self.console.print()
            self.console.print(Rule(f"[bold]{escape(title)}", align="left", style="blue"))
        else:
            self.console.print(f"\n# {title}", markup=False)

    def syncer(self, *arguments: str, may_fail: bool = False) -> bool:
        """Run a command and print its output; return whether it succeeded.

        Raises:
            SyncerError: It failed, and ``may_fail`` is not set.
        """
        self.console.print(f"$ syncer {' '.join(arguments)}", style="bold", markup=False)
        done = subprocess.run(
            [sys.executable, "-m", "syncer", *arguments],
            env={**os.environ, "COLUMNS": str(self.console.width)},
            capture_output=True,
            text=True,
            check=False,
        )
        self.console.print(done.stdout.rstrip(), markup=False)
        if done.returncode and not may_fail:
            raise SyncerError(f"syncer {' '.join(arguments)} failed", hint=done.stderr)
        return done.returncode == 0

    def wait(self, is_over: Callable[[], bool], trouble: Callable[[], str], *, seconds_max: float) -> None:
        """Return once something is over.

        Raises:
            SyncerError: The time is over, or the daemon has ended.
        """
        deadline = time.monotonic() + seconds_max
        while not is_over():
            if self._daemon is not None and self._daemon.poll() is not None:
                last = self._log_file.read_text().splitlines(keepends=True)[-8:]
                raise SyncerError(
                    f"The daemon has ended with exit code {self._daemon.returncode}",
                    hint="The end of its log:\n" + "".join(last),
                )
            if time.monotonic() > deadline:
                raise SyncerError(f"{trouble()}, within {seconds_max:.0f} s", hint=f"See {self._log_file}")
            time.sleep(_LOOK_SECONDS)

    def paste(self, text: str) -> None:
        """Print text for pasting, without breaking lines."""
        self.console.print(text, markup=False, soft_wrap=True)

    def say_how_to_go_on(self, finale: Finale) -> None:
        """Print how to use what is left running, and how to end it."""
        exports = "\n".join(f"  export {name}={value}" for name, value in self._environment.items())
        psql = self._sandbox.postgres.bin_folder / "psql"
        self.paste(f"""
Everything is left running, and shown at {self._page}. To play with it:
{exports}
  {psql} "$SYNCER_POSTGRES_DSN" -c "{finale.change}"
  curl {finale.search.replace("{url}", self._environment["SYNCER_ELASTICSEARCH_URL"])}
  {_COMMAND} status --watch
  {_COMMAND} verify
  tail -f {self._log_file}
To end it:
  kill {(self._folder / _PID_FILE).read_text()}
  {_COMMAND} sandbox stop --folder {self._sandbox.folder}""")

    def say_what_to_try(self) -> None:
        """Print what to try after a demo that left nothing running."""
        self.paste(
            "\nTry next:\n"
            f"  {_COMMAND} demo --list         the guide's models, one by one\n"
            f"  {_COMMAND} demo --keep         left running to play with psql and curl\n"
            f"  {_COMMAND} sandbox start       the servers alone, for a document of your own\n"
            f"  {_COMMAND} --help"
        )

    def end(self) -> None:
        """Stop everything and delete the folder."""
        if self._daemon is not None:
            self._daemon.terminate()
            try:
                self._daemon.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._daemon.kill()
                self._daemon.wait()
        self._sandbox.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


def perform(console: Console, play: Callable[[Scene, Endpoints, Elasticsearch], Finale], *, keep: bool) -> bool:
    """Play a demo on servers of its own; return whether `syncer verify` found every document equal to its SELECT.

    If ``keep``, leave the servers and the daemon running, and print how to use them. The next demo ends them.

    Raises:
        SyncerError: A part of it failed; the servers are stopped.
    """
    folder = Sandbox().folder.parent / "demo"
    if folder.exists():
        console.print("The demo that was left running before is ended: this one takes its place.")
        _clear_away(folder)
    scene = Scene(console, folder)
    is_over = is_kept = False
    try:
        with _ended_like_ctrl_c():
            endpoints = scene.start()
            # A small machine may be slow to answer after its servers have started.
            with Elasticsearch(endpoints.elasticsearch_url, request_timeout=_ANSWER_SECONDS) as client:
                finale = play(scene, endpoints, client)
            is_over = True
            if keep:
                scene.say_how_to_go_on(finale)
                is_kept = True
            else:
                scene.say_what_to_try()
    finally:
        if not is_over:
            console.print("Stopping …")
        if not is_kept:
            scene.end()
    return finale.holds


@contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C, so that everything is stopped."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _clear_away(folder: Path) -> None:
    """Stop an earlier demo, kept or killed, and delete its folder."""
    with suppress(OSError, ValueError):
        pid = int((folder / _PID_FILE).read_text())
        # Check that it is still that daemon: process ids are reused.
        if b"syncer" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGTERM)
    Sandbox(folder / "servers").stop()
    shutil.rmtree(folder)
